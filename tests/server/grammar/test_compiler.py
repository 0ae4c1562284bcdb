"""Grammars compiled in other processes: once each, within their budget, hurting nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from skirret_server.grammar import compiler as compilers
from skirret_server.grammar.compiler import CompileBudget, GrammarCompiler
from skirret_server.grammar.errors import BadGrammar, TooComplex
from skirret_server.grammar.masks import Vocabulary
from skirret_server.grammar.spec import Spec

SLOW = Spec.of("regex", "(a{0,60}){0,60}")
HUGE = Spec.of("json_schema", {"type": "array", "items": {"type": "string", "maxLength": 5000}})


def vocabulary() -> Vocabulary:
    return Vocabulary([bytes([byte]) for byte in range(256)], [], [256], size=257)


Compiling = Callable[..., GrammarCompiler]


@pytest.fixture
async def compiling() -> AsyncIterator[Compiling]:
    made: list[GrammarCompiler] = []

    def make(**budget: int | float) -> GrammarCompiler:
        made.append(GrammarCompiler(vocabulary, CompileBudget(**budget)))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for compiler in made:
        await compiler.close()


async def test_a_grammar_is_compiled_once_for_all_who_ask(compiling: Compiling) -> None:
    compiler = compiling()
    spec = Spec.of("regex", "a|ab")
    first, second = await asyncio.gather(compiler.compile(spec), compiler.compile(spec))
    assert first is second
    assert await compiler.compile(spec) is first


async def test_a_warm_compiler_has_its_masks_and_a_worker_that_has_started(
    compiling: Compiling, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = compiling()
    await asyncio.gather(compiler.warm(), compiler.warm())
    monkeypatch.setattr(asyncio, "create_subprocess_exec", None)
    compiler._vocabulary = None  # type: ignore[assignment]
    assert (await compiler.compile(Spec.of("regex", "a"))).grammar.start().allowed().ids.size


async def test_a_compiler_that_can_not_be_warmed_says_so_when_it_is_asked(
    compiling: Compiling,
) -> None:
    compiler = compiling(memory=1)
    await compiler.warm()
    with pytest.raises(TooComplex, match="memory"):
        await compiler.compile(HUGE)


async def test_a_refusal_is_remembered_too(compiling: Compiling) -> None:
    compiler = compiling()
    errors = []
    for _ in range(2):
        with pytest.raises(BadGrammar) as caught:
            await compiler.compile(Spec.of("regex", "("))
        errors.append(caught.value)
    assert errors[0] is errors[1]


async def test_what_takes_too_long_is_refused_and_the_next_one_compiled(
    compiling: Compiling,
) -> None:
    compiler = compiling(seconds=0.3)
    with pytest.raises(TooComplex):
        await compiler.compile(SLOW)
    assert (await compiler.compile(Spec.of("choice", ["a"]))).grammar.start().allowed().ids.size


async def test_a_machine_that_was_too_busy_is_asked_again(
    compiling: Compiling, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = compiling()
    monkeypatch.setattr(compilers, "_PATIENCE", 0)
    monkeypatch.setattr(compilers, "_GRACE", 0.0)
    with pytest.raises(TooComplex, match="too long"):
        await compiler.compile(Spec.of("choice", ["a"]))
    monkeypatch.undo()
    assert (await compiler.compile(Spec.of("choice", ["a"]))).grammar.start().allowed().ids.size


async def test_a_fault_of_ours_costs_one_request_and_no_worker(compiling: Compiling) -> None:
    compiler = compiling()
    with pytest.raises(BadGrammar, match="can't be compiled"):
        await compiler.compile(Spec("choice", "[3]"))
    assert len(compiler._idle) == 1


async def test_what_needs_too_much_memory_is_refused_and_the_next_one_compiled(
    compiling: Compiling,
) -> None:
    compiler = compiling(memory=1)  # no process can even start in that
    with pytest.raises(TooComplex, match="memory"):
        await compiler.compile(HUGE)


async def test_a_caller_that_leaves_does_not_spoil_it_for_the_others(compiling: Compiling) -> None:
    compiler = compiling()
    spec = Spec.of("json_object")
    leaving, staying = (asyncio.create_task(compiler.compile(spec)) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    assert (await staying).grammar.start().allowed().ids.size


async def test_the_cache_forgets_what_was_used_longest_ago(compiling: Compiling) -> None:
    compiler = compiling(cache=6000)
    specs = [Spec.of("regex", f"{'x' * 50}{i}") for i in range(4)]
    first = [await compiler.compile(spec) for spec in specs]
    assert await compiler.compile(specs[3]) is first[3]
    assert await compiler.compile(specs[0]) is not first[0]
