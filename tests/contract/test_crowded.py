"""An answer does not depend on who else asks, nor on having been put back to wait half-way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skirret_server.testing import END_OF_TEXT, IM_END

SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "array", "items": {"enum": ["x", "yy"]}, "minItems": 6, "maxItems": 6},
        "b": {"type": "integer", "minimum": 0, "maximum": 999},
    },
    "required": ["a", "b"],
}
# Unlike `ignore_eos`, it leaves the engine to guess how long an answer will be.
ENDLESS = {"logit_bias": {str(IM_END): -100, str(END_OF_TEXT): -100}}
BODIES = [
    pytest.param({"logprobs": True, "top_logprobs": 2, **ENDLESS}, id="L11"),
    pytest.param({"frequency_penalty": 1, "presence_penalty": 0.5, **ENDLESS}, id="P10"),
    pytest.param({"temperature": 1, "seed": 7, "n": 2, **ENDLESS}, id="P8"),
    pytest.param({"json_schema": SCHEMA}, id="G35"),
]


@pytest.fixture
def engine(folder: Path, opening: Any) -> Iterator[Any]:
    """With room for two sequences at once, and no idea yet how long answers are."""
    with opening(folder, max_total_tokens=160) as found:
        yield found


@pytest.mark.parametrize("body", BODIES)
async def test_an_answer_is_the_same_alone_and_in_a_crowd(
    saying: Any, real: Any, engine: Any, body: dict[str, Any]
) -> None:
    """L11, P8, P10, G35"""
    alone = (await real.chat(**body)).json()["choices"]
    server = saying(engine=engine)
    try:
        before = engine.stats().retractions
        answers = await asyncio.gather(*(server.chat(**body) for _ in range(6)))
        assert engine.stats().retractions > before
    finally:
        await server.grammars.close()
    for answer in answers:
        for one, other in zip(answer.json()["choices"], alone, strict=True):
            assert one["message"] == other["message"]
            for entry, expected in zip(_entries(one), _entries(other), strict=True):
                assert entry["token"] == expected["token"]
                assert entry["logprob"] == pytest.approx(expected["logprob"], abs=1e-2)
            if "json_schema" in body:
                assert set(json.loads(one["message"]["content"])) == {"a", "b"}


async def test_a_prompt_given_up_half_way_leaves_nothing_wrong_in_the_cache(
    saying: Any, engine: Any
) -> None:
    """A7"""
    server = saying(engine=engine)
    body = {"prompt": "the ring and the king " * 6, "max_tokens": 8}
    cold = (await server.text(**body)).json()["choices"]
    await engine.flush_cache()
    for wait in (0.0, 0.001, 0.003):
        call = asyncio.create_task(server.text(**body))
        await asyncio.sleep(wait)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert (await server.text(**body)).json()["choices"] == cold
    async with asyncio.timeout(1):
        while set((await server.accounting()).values()) != {0}:
            await asyncio.sleep(0.01)


def _entries(choice: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (choice["logprobs"] or {"content": []})["content"]
    return found
