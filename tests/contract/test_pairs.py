"""Features two by two: the stream adds up to the whole answer whatever they are."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from skirret_server.testing import END_THINK, THINK

_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
_CALL = '<tool_call>{"name": "f", "arguments": {"a": "é"}}</tool_call>'

FEATURES: dict[str, dict[str, Any]] = {
    "n": {"n": 2},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "tools": {"tools": [_TOOL]},
    "single": {"tools": [_TOOL], "parallel_tool_calls": False},
    "required": {"tools": [_TOOL], "tool_choice": "required"},
    "stop": {"stop": ["x", "e"]},
    "kept": {"stop": "e", "no_stop_trim": True},
    "regex": {"regex": "[a-z]{3,6}"},
    "seed": {"temperature": 1, "seed": 5},
    "least": {"min_tokens": 3},
    "special": {"skip_special_tokens": False},
    "penalty": {"frequency_penalty": 1, "logit_bias": {"101": 5}},
}
PAIRS = [
    pytest.param(FEATURES[a] | FEATURES[b], id=f"{a}-{b}")
    for a, b in combinations(FEATURES, 2)
    if {a, b} != {"required", "regex"}
]


@pytest.mark.parametrize("body", PAIRS)
async def test_two_features_hold_together_on_a_script(saying: Any, body: dict[str, Any]) -> None:
    thought = [THINK, "hm", END_THINK]
    await saying(*thought, "He", "y 😀".encode()[:3], "y 😀".encode()[3:], *_CALL).every_way(
        **{"max_tokens": 100, **body}
    )


# Without logprobs: a cached prefix changes their last digits.
ON_A_MODEL = [pair for pair in PAIRS[::3] if "logprobs" not in str(pair.id)]


@pytest.mark.parametrize("body", ON_A_MODEL)
async def test_two_features_hold_together_on_a_model(real: Any, body: dict[str, Any]) -> None:
    answer = await real.every_way(**{"max_tokens": 12, **body})
    assert len(answer["choices"]) == body.get("n", 1)
