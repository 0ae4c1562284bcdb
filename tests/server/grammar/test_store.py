"""Compiled grammars on disk: found again, never trusted, bounded, compiled again in doubt."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import numpy as np
import pytest

from skirret_server.grammar import store as stores
from skirret_server.grammar.automaton import Budget, automaton
from skirret_server.grammar.compiler import GrammarCompiler
from skirret_server.grammar.errors import BadGrammar, BadTool, GrammarError, TooComplex
from skirret_server.grammar.making import Made, make
from skirret_server.grammar.masks import Vocabulary
from skirret_server.grammar.packing import Corrupt, packed, unpacked
from skirret_server.grammar.regex import whole
from skirret_server.grammar.spec import Spec
from skirret_server.grammar.store import GrammarStore
from skirret_server.grammar.validating import broken_rule

SPEC = Spec.of("json_schema", {"type": "string", "maxLength": 3, "format": "colour"})


def made(spec: Spec = SPEC) -> Made:
    return make(spec, Budget())


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def test_what_is_packed_comes_out_the_same() -> None:
    before, after = made(), unpacked(packed(made()))
    assert isinstance(after, Made)
    for one, other in (
        (before.automaton.table, after.automaton.table),
        (before.automaton.class_of, after.automaton.class_of),
        (before.automaton.accepts, after.automaton.accepts),
        (before.likely, after.likely),
    ):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)
    assert after.unenforced == {"format:colour"}


@pytest.mark.parametrize("error", [BadGrammar("é"), TooComplex("large"), BadTool(3, "bad")])
def test_a_refusal_comes_out_the_same(error: GrammarError) -> None:
    found = unpacked(packed(error))
    assert (type(found), str(found)) == (type(error), str(error))
    assert getattr(found, "index", None) == getattr(error, "index", None)


def test_no_byte_of_it_can_change_unseen() -> None:
    data = packed(made(Spec.of("regex", "ab")))
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 0x11
        with pytest.raises(Corrupt):
            unpacked(bytes(changed))
    for length in range(0, len(data), 7):
        with pytest.raises(Corrupt):
            unpacked(data[:length])


def test_states_that_are_not_there_are_found_even_under_a_right_hash() -> None:
    found = made(Spec.of("regex", "ab"))
    found.automaton.table[1, 0] = 999
    with pytest.raises(Corrupt, match="states"):
        unpacked(packed(found))


def test_a_grammar_is_found_again_under_what_was_asked(tmp_path: Path) -> None:
    store = GrammarStore(tmp_path / "new" / "folder")
    assert store.get(SPEC) is None
    store.put(SPEC, packed(made()))
    found = GrammarStore(tmp_path / "new" / "folder").get(SPEC)
    assert found is not None
    assert found.automaton.matches(b'"abc"')
    assert store.get(Spec.of("regex", "b")) is None


def test_another_version_of_the_source_finds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    GrammarStore(tmp_path).put(SPEC, packed(made()))
    monkeypatch.setattr(stores, "_source_version", lambda: "another")
    assert GrammarStore(tmp_path).get(SPEC) is None


@pytest.mark.parametrize("data", [b"", b"junk", packed(BadGrammar("no")), packed(made())[:-1]])
def test_what_is_damaged_is_dropped(tmp_path: Path, data: bytes) -> None:
    store = GrammarStore(tmp_path)
    store.put(SPEC, packed(made()))
    (path,) = files(tmp_path)
    path.write_bytes(data)
    assert store.get(SPEC) is None


def test_those_read_longest_ago_make_room(tmp_path: Path) -> None:
    specs = [Spec.of("regex", letter * 30) for letter in "abc"]
    store = GrammarStore(tmp_path, most_bytes=int(2.5 * len(packed(made(specs[0])))))
    for age, spec in enumerate(specs[:2]):
        store.put(spec, packed(made(spec)))
        os.utime(store._path(spec), (age, age))
    assert store.get(specs[0])  # read now: the other is the older one
    store.put(specs[2], packed(made(specs[2])))
    assert [store.get(spec) is not None for spec in specs] == [True, False, True]


def test_nothing_half_written_is_left(tmp_path: Path) -> None:
    store = GrammarStore(tmp_path)
    for _ in range(3):
        store.put(SPEC, packed(made()))
    assert len(files(tmp_path)) == 1


def test_a_folder_that_went_away_costs_no_answer(tmp_path: Path) -> None:
    store = GrammarStore(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    store.put(SPEC, packed(made()))
    assert store.get(SPEC) is None


async def test_a_compiler_that_starts_again_asks_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiler() -> GrammarCompiler:
        words = Vocabulary([bytes([byte]) for byte in range(256)], [], [256], size=257)
        return GrammarCompiler(lambda: words, store=GrammarStore(tmp_path))

    first = compiler()
    before = await first.compile(SPEC)
    await first.close()
    monkeypatch.setattr(asyncio, "create_subprocess_exec", None)
    after = await compiler().compile(SPEC)
    assert np.array_equal(after.grammar.automaton.table, before.grammar.automaton.table)
    assert after.unenforced == before.unenforced


@pytest.mark.parametrize(
    ("schema", "answer", "rule"),
    [
        ({"const": "a"}, '"a"', None),
        ({"const": "b"}, '"a"', "const"),
        ({"type": "integer"}, '"a"', "type"),
        ({"pattern": "^(a+)+b$"}, '"a"', None),  # the automaton's alone
        ({"maximum": 2}, '"b"', "json_schema"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, '"a"', None),
    ],
)
def test_an_answer_is_told_by_the_rule_that_it_breaks(
    schema: object, answer: str, rule: str | None
) -> None:
    spec = Spec("json_schema", json.dumps(schema))
    assert broken_rule(spec, automaton(whole('"a"')), answer.encode()) == rule


def test_decimal_steps_are_checked_as_they_are_enforced() -> None:
    spec = Spec.of("json_schema", {"type": "number", "multipleOf": 0.01})
    assert broken_rule(spec, made(spec).automaton, b"0.07") is None
    either = Spec.of("json_schema", {"anyOf": [{"multipleOf": 0.01}, {"type": "number"}]})
    assert broken_rule(either, made(either).automaton, b"1e99") is None
