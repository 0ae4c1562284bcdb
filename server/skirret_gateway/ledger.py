"""Keeps the usage of a namespace's keys in its store, where every gateway writes and sums it.

Each gateway has a file of its own, `usage/{day}/{unit}.json`, so nobody overwrites another's.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime

from skirret_api.errors import ApiError
from skirret_batch.store import BatchStore, StoreError
from skirret_gateway import usage
from skirret_gateway.usage import ByKey, Usage

log = logging.getLogger(__name__)

WRITE_SECONDS, READ_SECONDS = 10.0, 30.0
_LAST_SECONDS = 5.0


def day_of(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).date().isoformat()


class Ledger:
    def __init__(
        self,
        counted: Usage,
        store: Callable[[str], BatchStore],
        namespaces: Callable[[], Iterable[str]],
        unit: str,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`store` raises ApiError for a namespace without one; `namespaces` are those of keys."""
        self._usage = counted
        self._store = store
        self._namespaces = namespaces
        self._unit = unit
        self._clock = clock
        self._sleep = sleep
        # What was written before a restart must be read before it is overwritten.
        self._read_once: set[str] = set()
        self._known: dict[str, tuple[str, ByKey]] = {}  # of others, by namespace and key: the ETag

    async def run(self) -> None:
        wrote = read = 0.0
        while True:
            now = self._clock()
            if day_of(now) != self._usage.day:
                await self.write()
                self._usage.begin(day_of(now))
                self._read_once.clear()
                self._known.clear()
            if now - read >= READ_SECONDS:
                await self.read()
                read = now
            if now - wrote >= WRITE_SECONDS:
                await self.write()
                wrote = now
            await self._sleep(1.0)

    @property
    def has_read(self) -> bool:
        """Whether what was counted before is known, of every namespace with keys."""
        return self._read_once.issuperset(self._namespaces())

    async def write(self) -> None:
        """What this gateway counted, of each namespace in which something changed."""
        for namespace in list(self._usage.changed & self._read_once):
            self._usage.changed.discard(namespace)
            text = json.dumps(usage.written(self._usage.own.get(namespace, {})))
            try:
                await self._store(namespace).put(self._key, text.encode())
            except (StoreError, ApiError) as error:
                self._usage.changed.add(namespace)
                log.warning("usage of %s is written later: %s", namespace, error)

    async def close(self) -> None:
        """Writes once more, unless the store is too slow for an end."""
        try:
            async with asyncio.timeout(_LAST_SECONDS):
                await self.write()
        except TimeoutError:
            log.error("the usage of the last %g s is lost: the store is too slow", WRITE_SECONDS)

    async def read(self) -> None:
        """What the other gateways counted, and this one before it was started anew."""
        for namespace in set(self._namespaces()):
            try:
                await self._read(namespace)
            except (StoreError, ApiError) as error:
                log.warning("usage of %s is read later: %s", namespace, error)

    async def _read(self, namespace: str) -> None:
        store = self._store(namespace)
        found: list[ByKey] = []
        async for entry in store.list(f"usage/{self._usage.day}/"):
            if entry.key != self._key:
                found.append(await self._of(store, namespace, entry.key, entry.etag))
            elif namespace not in self._read_once:
                own = _parsed(entry.key, (await store.get(entry.key)).data)
                self._usage.take_back(namespace, own)
        self._read_once.add(namespace)
        self._usage.heard(namespace, found)

    async def _of(self, store: BatchStore, namespace: str, key: str, etag: str) -> ByKey:
        place = f"{namespace}/{key}"
        known = self._known.get(place)
        if known is None or known[0] != etag:
            blob = await store.get(key)
            known = self._known[place] = (blob.etag, _parsed(key, blob.data))
        return known[1]

    @property
    def _key(self) -> str:
        return f"usage/{self._usage.day}/{self._unit}.json"


def _parsed(key: str, data: bytes) -> ByKey:
    try:
        return usage.read(json.loads(data))
    except ValueError as error:
        log.error("%s counts for nothing: %s", key, error)
        return {}
