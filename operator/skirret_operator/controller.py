"""Takes one key at a time from the queue, looks, decides, and has it carried out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial

from skirret_api.config import OperatorConfig
from skirret_api.parts import Object
from skirret_batch.store import StoreError
from skirret_operator.informer import DeadWatch, Informer
from skirret_operator.kinds import BATCH, MODEL
from skirret_operator.kube import Conflict, Kube, KubeError, Refused
from skirret_operator.lease import LeaseLost
from skirret_operator.metrics import Metrics
from skirret_operator.observer import Key, Observer
from skirret_operator.reconcile import batch as batches
from skirret_operator.reconcile import model as models
from skirret_operator.reconcile.plan import Plan
from skirret_operator.records import Records
from skirret_operator.workqueue import WorkQueue

_WORKERS = 4  # of each queue
_log = logging.getLogger(__name__)


class Controller:
    def __init__(
        self,
        kube: Kube,
        observer: Observer,
        records: Records,
        informer: Informer,
        queues: Mapping[str, WorkQueue[Key]],
        config: OperatorConfig,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._kube = kube
        self._observer = observer
        self._records = records
        self._informer = informer
        # One for each kind: a store that does not answer holds up batches alone.
        self._queues = queues
        self._config = config
        self._metrics = metrics
        self._clock = clock
        self.resynced_at: float | None = None  # None: it has just begun

    async def run(self) -> None:
        """Until something ends the process: LeaseLost, DeadWatch."""
        self.resynced_at = self._clock()
        timings = self._config.timings
        async with asyncio.TaskGroup() as tasks:
            for queue in self._queues.values():
                for _ in range(_WORKERS):
                    tasks.create_task(self._work(queue))
            loops = [("resync", self.resync, timings.resync_seconds)]
            for each in self._config.namespaces:
                loops.append(
                    ("records", partial(self._records.poll, each), timings.records_seconds)
                )
                loops.append(("sweep", partial(self._records.sweep, each), timings.sweep_seconds))
            for loop in loops:
                tasks.create_task(self._repeat(*loop))

    def trouble(self, now: float) -> str | None:
        """What a probe must know: the resync has not come through for too long."""
        limit = max(3 * self._config.timings.resync_seconds, 30.0)
        if self.resynced_at is None or now - self.resynced_at < limit:
            return None
        return f"nothing was listed for {now - self.resynced_at:.0f} s"

    async def reconcile(self, key: Key) -> float | None:
        """Seconds until it should be looked at again, if nothing happens before."""
        kind, namespace, name = key
        if kind == MODEL.name:
            return await self._reconcile_model(namespace, name)
        return await self._reconcile_batch(namespace, name)

    async def resync(self) -> None:
        """Lists everything once, and has a closer look at what is not as it should be."""
        told = self._informer.told()
        snapshot = await self._observer.snapshot()
        self._informer.compare(snapshot, told)
        now = self._clock()
        for model, seen in snapshot.models():
            if not _rests(partial(models.reconcile, model, seen, self._config, now)):
                self._queues[MODEL.name].add(_key(model))
        for batch in snapshot.of(BATCH):
            # Of a batch that lives, the record must be read; one that has ended waits for its TTL.
            if not _rests(partial(batches.after_the_end, batch, now)):
                self._queues[BATCH.name].add(_key(batch))
        self.resynced_at = now
        self._metrics.resynced.set(now)

    # The loops below must survive whatever one object or one call throws at them: each has the one
    # broad `except` of its kind, and counts.

    async def _work(self, queue: WorkQueue[Key]) -> None:
        while True:
            key = await queue.take()
            self._metrics.queued.labels(key[0]).set(len(queue))
            result = "error"
            try:
                with self._metrics.seconds.labels(key[0]).time():
                    again = await self.reconcile(key)
                result = "ok"
            except LeaseLost:
                raise
            except Conflict as error:
                result = "conflict"
                _log.debug("%s: %s", "/".join(key), error)
            except (KubeError, StoreError) as error:
                _log.warning("%s: %s", "/".join(key), error)
            except Exception:
                _log.exception("%s: this is a bug", "/".join(key))
            finally:
                queue.done(key)
            self._metrics.reconciles.labels(key[0], result).inc()
            if result != "ok":
                queue.retry(key)
                continue
            queue.forget(key)
            if again is not None:
                queue.add_after(key, again)

    async def _repeat(self, name: str, what: Callable[[], Awaitable[None]], seconds: float) -> None:
        while True:
            try:
                await what()
            except (LeaseLost, DeadWatch):
                raise
            except (KubeError, StoreError) as error:
                self._metrics.faults.labels(name).inc()
                _log.warning("%s: %s", name, error)
            except Exception:
                self._metrics.faults.labels(name).inc()
                _log.exception("%s: this is a bug", name)
            await asyncio.sleep(seconds)

    async def _reconcile_model(self, namespace: str, name: str) -> float | None:
        seen = await self._observer.model(namespace, name)
        if seen is None:
            return None
        model, observed = seen
        plan = models.reconcile(model, observed, self._config, self._clock())
        try:
            await self._kube.carry_out(plan, model)
        except Refused as refusal:
            told = replace(observed, refusal=refusal.words)
            await self._tell(models.reconcile(model, told, self._config, self._clock()), model)
            raise
        return plan.again

    async def _reconcile_batch(self, namespace: str, name: str) -> float | None:
        seen = await self._observer.batch(namespace, name)
        if seen is None:
            return None
        batch, observed = seen
        trouble: StoreError | None = None
        if not batches.has_ended(batch):
            try:
                record = await self._records.load(namespace, batches.record_id(batch))
                observed = replace(observed, record=record)
            except StoreError as error:
                trouble = error
                observed = replace(observed, trouble=str(error))
        plan = batches.reconcile(batch, observed, self._config, self._clock())
        try:
            if plan.record is not None:
                await self._records.create(namespace, plan.record)
            await self._kube.carry_out(plan, batch)
        except Refused as refusal:
            told = replace(observed, refusal=refusal.words)
            await self._tell(batches.reconcile(batch, told, self._config, self._clock()), batch)
            raise
        if trouble is not None:
            raise trouble
        return plan.again

    async def _tell(self, plan: Plan, owner: Object) -> None:
        """Writes the status alone, after the API server has refused the rest."""
        await self._kube.carry_out(Plan(status=plan.status, note=plan.note), owner)


def _rests(decide: Callable[[], Plan | None]) -> bool:
    """Whether nothing is to be done. Whoever takes the key reports what goes wrong in deciding."""
    try:
        plan = decide()
    except Exception:
        return False
    return plan is not None and not plan.changes_anything


def _key(live: Object) -> Key:
    return live["kind"], live["metadata"]["namespace"], live["metadata"]["name"]
