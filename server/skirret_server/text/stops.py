"""Stop strings, found at the first character that completes one, whatever the token boundaries."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


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


class StopScan:
    """One text on its way out: passes on what no stop string can take back."""

    def __init__(self, strings: StopStrings, *, keeps_match: bool = False) -> None:
        self.matched: str | None = None
        self._strings = strings
        self._keeps_match = keeps_match
        self._state = 0
        self._held = ""

    def feed(self, text: str) -> str:
        """What may go out now; once `matched` is set, nothing more may."""
        step, completed = self._strings.step, self._strings.completed
        state = self._state
        for index, character in enumerate(text):
            state = step(state, character)
            if (string := completed[state]) is not None:
                return self._match(string, self._held + text[: index + 1])
        self._state = state
        whole = self._held + text
        safe = len(whole) - self._strings.depth[state]
        self._held = whole[safe:]
        return whole[:safe]

    def flush(self) -> str:
        """The rest, when the text has ended without a match."""
        rest, self._held = self._held, ""
        return rest

    def _match(self, string: str, text: str) -> str:
        self.matched, self._held = string, ""
        return text if self._keeps_match else text[: -len(string)]
