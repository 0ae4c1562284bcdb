"""Checks structured answers after they ended, for servers that are asked to."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from prometheus_client import Counter

from skirret_server.api.generation import Step, Work
from skirret_server.core import TokenId
from skirret_server.text.tokenizer import Tokenizer

if TYPE_CHECKING:  # numpy takes long to import, and the socket must answer first
    from skirret_server.grammar.masks import CompiledGrammar

log = logging.getLogger("skirret.api")


class AnswerCheck:
    """The answers of one request. Those that a stop string or their length cut are no wholes."""

    def __init__(
        self, work: Work, tokenizer: Tokenizer, ends: frozenset[TokenId], checked: Counter,
        violations: Counter,
    ) -> None:  # fmt: skip
        self._work = work
        self._tokenizer = tokenizer
        self._ends = ends
        self._checked = checked
        self._violations = violations
        self._answers: defaultdict[int, bytearray] = defaultdict(bytearray)
        self._whole: list[int] = []

    def add(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if self._work.task(step.index).grammar is None:
                continue
            for token in step.tokens:
                if token not in self._ends:
                    self._answers[step.index] += self._tokenizer.bytes_of(token)
            ending = step.piece.ending
            if ending and ending.reason == "stop" and ending.matched in {None, *self._ends}:
                self._whole.append(step.index)

    async def finish(self) -> None:
        """Counts and logs what is broken: which request and which rule, nothing of its text."""
        for index in self._whole:
            grammar = self._work.task(index).grammar
            assert grammar is not None, "only structured answers are added"
            try:
                rule = await asyncio.to_thread(_broken, grammar, bytes(self._answers[index]))
            except Exception as error:  # the answer is out, and right as far as anybody knows
                log.error(
                    "a structured answer can't be checked",
                    extra={"request_id": self._work.request_id, "cause": type(error).__name__},
                )
                continue
            self._checked.inc()
            if rule is not None:
                self._violations.inc()
                log.error(
                    "a structured answer breaks its rules",
                    extra={"request_id": self._work.request_id, "rule": rule},
                )


def _broken(grammar: CompiledGrammar, answer: bytes) -> str | None:
    from skirret_server.grammar.validating import broken_rule

    return None if grammar.spec is None else broken_rule(grammar.spec, grammar.automaton, answer)
