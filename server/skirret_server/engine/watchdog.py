"""Ends the process when a step hangs: nobody else can free the requests in it."""

from __future__ import annotations

import faulthandler
import threading
from collections.abc import Callable

Hung = Callable[[float], None]


class Watchdog:
    """Asks every now and then how long the step under way has been running."""

    def __init__(self, running: Callable[[], float], timeout: float, hung: Hung) -> None:
        self._running = running  # seconds; 0 between steps
        self._timeout = timeout
        self._hung = hung
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(self._timeout / 10):
            seconds = self._running()
            if seconds > self._timeout:
                faulthandler.dump_traceback(all_threads=True)
                self._hung(seconds)
                return
