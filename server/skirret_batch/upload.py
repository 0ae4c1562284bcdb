"""Writing one object whose size nobody knows yet."""

from __future__ import annotations

from skirret_batch.store import BatchStore, Part


class Upload:
    """Parts of one size, so the same bytes always make the same parts; a small object is one put.

    Holds at most one part in memory.
    """

    def __init__(self, store: BatchStore, key: str, part_size: int) -> None:
        self._store = store
        self._key = key
        self._part_size = part_size
        self._pending = bytearray()
        self._id: str | None = None
        self._parts: list[Part] = []
        self.size = 0

    async def write(self, data: bytes) -> None:
        self.size += len(data)
        start = 0
        while start < len(data):
            end = start + self._part_size - len(self._pending)
            self._pending += data[start:end]
            start = end
            if len(self._pending) == self._part_size:
                await self._put_part()

    async def finish(self) -> str:
        """Publishes the object; returns its ETag."""
        if self._id is None:
            return await self._store.put(self._key, bytes(self._pending))
        if self._pending:
            await self._put_part()
        return await self._store.complete(self._key, self._id, self._parts)

    async def abort(self) -> None:
        if self._id is not None:
            await self._store.abort(self._key, self._id)

    async def _put_part(self) -> None:
        if self._id is None:
            self._id = await self._store.begin(self._key)
        number = len(self._parts) + 1
        part = await self._store.put_part(self._key, self._id, number, bytes(self._pending))
        self._parts.append(part)
        self._pending.clear()
