"""Waits for a batch to end, and shows how far it is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import IO, Any

from skirret_cli.batches.api import Api, Away
from skirret_cli.batches.words import bar, has_ended

_LOOK_EVERY = 1.0  # seconds
_TELL_EVERY = 10.0  # where lines can't be overwritten
_PATIENCE = 600.0  # with a server that is away


class Screen:
    """One line that is written again and again on a terminal, and now and then elsewhere."""

    def __init__(self, out: IO[str], clock: Callable[[], float]) -> None:
        self._out = out
        self._clock = clock
        self._is_terminal = out.isatty()
        self._told = ""
        self._told_at = clock()

    @property
    def width(self) -> int:
        return shutil.get_terminal_size().columns - 1 if self._is_terminal else 200

    def show(self, line: str) -> None:
        if self._is_terminal:
            self._write(f"\r\x1b[K{line}")
        elif line != self._told and self._clock() - self._told_at >= _TELL_EVERY:
            self._told, self._told_at = line, self._clock()
            self._write(f"{line}\n")

    def clear(self) -> None:
        if self._is_terminal:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def follow(
    api: Api,
    batch_id: str,
    screen: Screen,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> dict[str, Any]:
    """The batch as it ended. Outlives a server that is away for a while; raises ApiError."""
    seen_at = clock()
    while True:
        try:
            batch = api.batch(batch_id)
        except Away as error:
            if clock() - seen_at > _PATIENCE:
                raise
            screen.show(f"{error}; trying again"[: screen.width])
        else:
            seen_at = clock()
            if has_ended(batch):
                screen.clear()
                return batch
            screen.show(bar(batch, screen.width))
        sleep(_LOOK_EVERY)
