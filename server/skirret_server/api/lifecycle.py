"""From start to drain: what the server is doing, and the requests it is doing it for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from skirret_api import internal
from skirret_api.errors import ApiError, Overloaded, Unavailable
from skirret_server.api.departures import Departures
from skirret_server.api.interrupts import Interruptible
from skirret_server.api.served import Served
from skirret_server.load.progress import LoadStatus
from skirret_server.text.choice import ChoiceText


class Lifecycle:
    """Owns the phase, the served model and the set of running requests."""

    def __init__(
        self, loading: Callable[[], LoadStatus], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`loading` tells how far the model is, until `serve` is called."""
        self.has_generated = False
        self._loading = loading
        self._served: Served | None = None
        self._is_draining = False
        self._running: dict[Interruptible, str | None] = {}  # with the caller's rid
        # Of every generation that runs: what /debug/accounting counts.
        self.texts: set[ChoiceText] = set()
        self._departures = Departures(clock)
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def status(self) -> LoadStatus:
        if self._is_draining:
            return LoadStatus("draining")
        if self._served is None:
            return self._loading()
        return LoadStatus("ready" if self.has_generated else "warming up", percent=100.0)

    @property
    def is_ready(self) -> bool:
        """Loaded, has generated once, and takes new work."""
        return self._served is not None and self.has_generated and not self._is_draining

    @property
    def served(self) -> Served | None:
        return self._served

    @property
    def running(self) -> int:
        return len(self._running)

    def serve(self, served: Served) -> None:
        self._served = served

    def admit(self) -> Served:
        """The model, for new work. Raises Unavailable while loading or draining."""
        if self._is_draining:
            raise draining()
        if self._served is None:
            raise self.loading()
        return self._served

    def loading(self) -> Unavailable:
        status = self._loading()
        how_far = "" if status.percent is None else f", {status.percent:.0f}%"
        return Unavailable(
            f"The model is still loading ({status.phase}{how_far}). Please try again soon.",
            retry_after=2 if status.eta_seconds is None else max(1, round(status.eta_seconds)),
        )

    def enter(self, running: Interruptible, rid: str | None) -> None:
        """Counts a request in. Raises when its rid is in use."""
        if rid is not None and rid in self._running.values():
            raise DuplicateRid(rid)
        self._running[running] = rid
        self._idle.clear()

    def leave(self, running: Interruptible) -> None:
        self._running.pop(running, None)
        self._departures.ended()
        if not self._running:
            self._idle.set()

    def refuse(self, error: Overloaded) -> Overloaded:
        """The same refusal, with the time after which there should be room."""
        return Overloaded(error.message, retry_after=self._departures.refused())

    def abort(self, wanted: Callable[[str | None], bool]) -> int:
        """Ends the requests whose rid is wanted; how many there were."""
        chosen = [running for running, rid in self._running.items() if wanted(rid)]
        for running in chosen:
            running.interrupt(Aborted())
        return len(chosen)

    async def drain(self, timeout: float) -> None:
        """Refuses new work, waits for what runs, then ends the rest with an error."""
        self._is_draining = True
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            self.end_all()
            await self._idle.wait()

    def end_all(self) -> None:
        """Ends every running request with an error that invites to try elsewhere."""
        for running in list(self._running):
            running.interrupt(draining())


class Aborted(ApiError):
    """Somebody asked /abort_request to end this one; a retry would undo that."""

    code = "request_aborted"

    def __init__(self) -> None:
        super().__init__("The request was aborted.", headers={"x-should-retry": "false"})


class DuplicateRid(ApiError):
    status = 400
    type = "invalid_request_error"
    code = "duplicate_rid"

    def __init__(self, rid: str) -> None:
        super().__init__(f"A request with rid '{rid}' is still running.", param="rid")


def draining() -> Unavailable:
    return Unavailable(
        "The server is shutting down and takes no new requests. Please retry.",
        headers={internal.DRAINING: "1"},
    )
