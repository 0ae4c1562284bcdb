"""Which batch a create means when it is sent twice.

`requests/{hash}` reserves an id before the record exists; whoever comes with the same request then
creates the record under that id, or finds it. The hash is of the Idempotency-Key, or else of what
is asked for: then the reservation is only for the client's own retries, for ten minutes.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from hashlib import sha256

from pydantic import BaseModel

from skirret_api.errors import InvalidRequest
from skirret_batch.asked import BatchRequest
from skirret_batch.record import new_id
from skirret_batch.store import BatchStore, Changed, NotThere

REQUESTS = "requests/"
RETRIED_WITHIN = 600.0  # seconds
KEPT_FOR = 24 * 3600.0  # seconds, of a reservation by key


class Reservation(BaseModel):
    batch_id: str
    body: str  # its hash
    created_at: float


class Once:
    """One create, however often it is sent."""

    def __init__(self, wanted: BatchRequest, *, key: str | None, is_retry: bool) -> None:
        self._digest = _hash(json.dumps(asdict(wanted), sort_keys=True))
        self._key = key or None
        self._is_retry = is_retry

    async def find(self, store: BatchStore, now: float) -> str | None:
        """The id that an earlier sending has reserved. Raises InvalidRequest."""
        if self._key is None and not self._is_retry:
            return None
        try:
            earlier = Reservation.model_validate_json((await store.get(self._where)).data)
        except NotThere:
            return None
        if self._key is None:
            return earlier.batch_id if earlier.created_at > now - RETRIED_WITHIN else None
        if earlier.body != self._digest:
            raise InvalidRequest(
                "This Idempotency-Key was used with another request body.",
                param=None,
                code="idempotency_key_reused",
            )
        return earlier.batch_id

    async def reserve(self, store: BatchStore, now: float) -> str:
        """The id of the batch that this create makes, or has made. Raises InvalidRequest."""
        mine = Reservation(batch_id=new_id("batch", now), body=self._digest, created_at=now)
        data = mine.model_dump_json().encode()
        while (earlier := await self.find(store, now)) is None:
            try:
                if self._key is None:
                    await store.put(self._where, data)
                else:
                    await store.put_if_absent(self._where, data)
            except Changed:  # sent twice at once
                continue
            return mine.batch_id
        return earlier

    @property
    def _where(self) -> str:
        kind, value = ("body", self._digest) if self._key is None else ("key", _hash(self._key))
        return f"{REQUESTS}{kind}-{value}"


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
