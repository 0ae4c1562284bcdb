"""Batch records and the BatchJobs that stand for them: each is made for the other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from skirret_api.batchjob import BATCH_ID_LABEL
from skirret_api.parts import Object
from skirret_batch import record as records
from skirret_batch import sweep
from skirret_batch.record import CustomResource, Record
from skirret_batch.store import BatchStore, Changed, NotThere, StoreError
from skirret_operator.build.batch import custom_resource
from skirret_operator.kinds import BATCH
from skirret_operator.kube import Conflict, Kube, KubeError

_log = logging.getLogger(__name__)


class Records:
    """The records in each namespace's store. `wake` is told which BatchJob has news."""

    def __init__(
        self,
        stores: Mapping[str, BatchStore],
        kube: Kube,
        wake: Callable[[str, str], None],
        clock: Callable[[], float],
    ) -> None:
        self._stores = stores
        self._kube = kube
        self._wake = wake
        self._clock = clock
        self._known: dict[str, dict[str, tuple[Record, str]]] = {}  # live ones, by namespace

    async def load(self, namespace: str, batch_id: str) -> Record | None:
        """Raises StoreError."""
        try:
            return (await records.load(self._store(namespace), batch_id))[0]
        except NotThere:
            return None

    async def create(self, namespace: str, record: Record) -> None:
        """One that is there already, from a try whose end was not seen, is as good. StoreError."""
        try:
            await records.create(self._store(namespace), record)
        except Changed:
            return

    async def poll(self, namespace: str) -> None:
        """Looks at every live record once. Raises StoreError and KubeError."""
        store = self._stores.get(namespace)
        if store is None:
            return
        before = self._known.get(namespace, {})
        now = await records.live(store, before)
        self._known[namespace] = now
        for batch_id, known in before.items():
            if now.get(batch_id) != known:
                self._tell(known[0])
        if not now:
            return
        # Listed after the records: a BatchJob that a record names was there before the record.
        jobs = {each["metadata"]["uid"] for each in await self._kube.list(BATCH, namespace)}
        for record, _ in now.values():
            try:
                if record.cr is None:
                    await self._adopt(namespace, store, record)
                elif record.cr.uid not in jobs:
                    await self._discard(store, record)
            except (KubeError, StoreError) as error:  # one batch holds up no other
                _log.warning("batch %s: %s", record.id, error)

    async def sweep(self, namespace: str) -> None:
        """Takes away what nobody needs any more. Raises StoreError."""
        if store := self._stores.get(namespace):
            await sweep.sweep(store, self._clock())

    async def close(self) -> None:
        for store in self._stores.values():
            await store.close()

    def _store(self, namespace: str) -> BatchStore:
        store = self._stores.get(namespace)
        if store is None:
            raise StoreError(f"no store is configured for the namespace {namespace}")
        return store

    def _tell(self, record: Record) -> None:
        if record.cr is not None:
            self._wake(record.cr.namespace, record.cr.name)

    async def _adopt(self, namespace: str, store: BatchStore, record: Record) -> None:
        """Makes the BatchJob of a batch that came by the API."""
        desired = custom_resource(namespace, record)
        try:
            live: Object | None = await self._kube.create(desired)
        except Conflict:  # made by a try that did not come to say so in the record
            live = await self._kube.get(BATCH, namespace, desired["metadata"]["name"])
        labels = live["metadata"].get("labels", {}) if live else {}
        if live is None or labels.get(BATCH_ID_LABEL) != record.id:
            _log.error("the name of batch %s is taken by another BatchJob", record.id)
            return
        uid, name = live["metadata"]["uid"], live["metadata"]["name"]
        cr = CustomResource(namespace=namespace, name=name, uid=uid)
        await records.change(store, record.id, lambda it: records.link(it, cr))
        self._wake(namespace, name)

    async def _discard(self, store: BatchStore, record: Record) -> None:
        """Its BatchJob was deleted: nothing of it is published, and what it left goes."""
        await records.change(store, record.id, lambda it: records.discard(it, self._clock()))
        _log.info("batch %s is cancelled: its BatchJob was deleted", record.id)
        await sweep.clear(store, record.id)
