"""Stop strings and patterns, found at the character that completes one, wherever tokens end."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class StopStrings:
    """An Aho-Corasick automaton: a state is the longest end of the text that begins a string."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._fallback = [0]
        self.depth = [0]  # characters that the state stands for
        self.completed: list[str | None] = [None]  # the longest string that ends in the state
        for string in strings:
            self._insert(string)
        self._link()

    def step(self, state: int, character: str) -> int:
        while state and character not in self._next[state]:
            state = self._fallback[state]
        return self._next[state].get(character, 0)

    def _insert(self, string: str) -> None:
        state = 0
        for character in string:
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self._fallback.append(0)
                self.depth.append(self.depth[state] + 1)
                self.completed.append(None)
            state = self._next[state][character]
        self.completed[state] = string

    def _link(self) -> None:
        """Breadth first: a state's fallback is shorter, so it is ready before."""
        waiting = deque(self._next[0].values())
        while waiting:
            state = waiting.popleft()
            if self.completed[state] is None:
                self.completed[state] = self.completed[self._fallback[state]]
            for character, child in self._next[state].items():
                self._fallback[child] = self.step(self._fallback[state], character)
                waiting.append(child)


# As in grammar.automaton, whose numpy no start should wait for.
_DEAD, _START = 0, 1


class Matcher(Protocol):
    """A deterministic automaton over UTF-8."""

    def step(self, state: int, data: bytes) -> int: ...

    def accepts_in(self, state: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class StopPattern:
    source: str  # as it was asked for
    matcher: Matcher


class _Search:
    """Every place where a match may have begun: of those in one state, the first will do."""

    def __init__(self, pattern: StopPattern) -> None:
        self.source = pattern.source
        self._matcher = pattern.matcher
        self._begun: dict[int, int] = {}  # by state, where

    def step(self, character: str, at: int) -> int | None:
        """Where the match began that this character, the `at`-th, completes."""
        data = character.encode()
        begun: dict[int, int] = {}
        for state, start in (*self._begun.items(), (_START, at)):
            state = self._matcher.step(state, data)
            if state != _DEAD:
                begun[state] = min(start, begun.get(state, start))
        self._begun = begun
        found = (start for state, start in begun.items() if self._matcher.accepts_in(state))
        return min(found, default=None)

    def first(self, otherwise: int) -> int:
        """Where the first match may have begun that is not complete."""
        return min(self._begun.values(), default=otherwise)


class StopScan:
    """One text on its way out: passes on what no stop can take back."""

    def __init__(
        self,
        strings: StopStrings | None,
        patterns: Sequence[StopPattern] = (),
        *,
        keeps_match: bool = False,
    ) -> None:
        self.matched: str | None = None  # the string, or the pattern's source
        self._strings = strings or _NONE
        self._searches = [_Search(pattern) for pattern in patterns]
        self._keeps_match = keeps_match
        self._state = 0
        self._held = ""
        self._count = 0  # characters that came before

    def feed(self, text: str) -> str:
        """What may go out now; once `matched` is set, nothing more may."""
        step, completed = self._strings.step, self._strings.completed
        state = self._state
        for index, character in enumerate(text):
            state = step(state, character)
            string = completed[state]
            if string is not None or self._searches:
                at = self._count + index
                start, matched = self._completed_at(at, string, character)
                if matched is not None:
                    return self._match(matched, self._held + text[: index + 1], at + 1 - start)
        self._state = state
        self._count += len(text)
        whole = self._held + text
        held = self._strings.depth[state]
        for search in self._searches:
            held = max(held, self._count - search.first(self._count))
        safe = len(whole) - held
        self._held = whole[safe:]
        return whole[:safe]

    def flush(self) -> str:
        """The rest, when the text has ended without a match."""
        rest, self._held = self._held, ""
        return rest

    def _completed_at(self, at: int, string: str | None, character: str) -> tuple[int, str | None]:
        """Of what ends here, the one that began first, and where."""
        start, matched = (at, None) if string is None else (at + 1 - len(string), string)
        for search in self._searches:
            began = search.step(character, at)
            if began is not None and (matched is None or began < start):
                start, matched = began, search.source
        return start, matched

    def _match(self, matched: str, text: str, length: int) -> str:
        self.matched, self._held = matched, ""
        return text if self._keeps_match else text[:-length]


_NONE = StopStrings(())
