"""Batches without Kubernetes: every one that is live in a store is worked on in this process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from skirret_batch.completions import Completions
from skirret_batch.record import Record, live
from skirret_batch.store import BatchStore, StoreError
from skirret_batch.sweep import sweep
from skirret_batch.worker import Worker, WorkerSettings

_SLOT = "embedded"
_LOOK_EVERY = 5.0  # seconds
_SWEEP_EVERY = 3600.0

log = logging.getLogger(__name__)


class Runner:
    """Resumes what is live, starts what is new, and sweeps.

    Two processes on one store are safe: the fence lets each result count once.
    """

    def __init__(
        self,
        store: BatchStore,
        completions: Completions,
        settings: WorkerSettings | None = None,
        *,
        clock: Callable[[], float] = time.time,
        look_every: float = _LOOK_EVERY,
    ) -> None:
        self._store = store
        self._completions = completions
        self._settings = settings or WorkerSettings()
        self._clock = clock
        self._look_every = look_every
        self._known: dict[str, tuple[Record, str]] = {}
        self._workers: dict[str, Worker] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._is_stopping = False

    async def run(self) -> None:
        """Until `stop`; then every batch is left so that the next process goes on with it."""
        await self._store.probe()
        sweeper = asyncio.create_task(self._sweep())
        try:
            while not self._is_stopping:
                await self._look()
                await self._pause()
        finally:
            sweeper.cancel()
            for worker in self._workers.values():
                worker.stop()
            await asyncio.gather(sweeper, *self._tasks, return_exceptions=True)

    async def started(self, store: BatchStore, batch_id: str) -> None:
        """A batch was just created: begin at once. For `files_and_batches`."""
        self._wake.set()

    def stop(self) -> None:
        self._is_stopping = True
        self._wake.set()

    async def _look(self) -> None:
        try:
            self._known = await live(self._store, self._known)
        except StoreError as error:
            log.warning("can't look for batches: %s", error)
            return
        for batch_id in self._known.keys() - self._workers.keys():
            worker = Worker(self._store, batch_id, self._completions, self._settings, slot=_SLOT)
            self._workers[batch_id] = worker
            task = asyncio.create_task(self._work(batch_id, worker))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self, batch_id: str, worker: Worker) -> None:
        try:
            record = await worker.live()
            log.info("batch %s is %s", batch_id, record.batch.status)
        except Exception:  # one batch's fault must not end the others; it is tried again
            log.exception("batch %s stopped", batch_id)
            await asyncio.sleep(self._look_every)
        finally:
            del self._workers[batch_id]

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._look_every):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    async def _sweep(self) -> None:
        while True:
            try:
                await sweep(self._store, self._clock())
            except StoreError as error:
                log.warning("can't sweep: %s", error)
            await asyncio.sleep(_SWEEP_EVERY)
