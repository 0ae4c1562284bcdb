"""Which batch a create means when it is sent twice.

`requests/{hash}` reserves an id before the record exists; whoever comes with the same request then
creates the record under that id, or finds it. The hash is of the Idempotency-Key, or else of the
body: then the reservation is only for the client's own retries, for ten minutes.
"""

from __future__ import annotations

from hashlib import sha256

from pydantic import BaseModel

from skirret_api.errors import InvalidRequest
from skirret_batch.record import new_id
from skirret_batch.store import BatchStore, Changed, NotThere

REQUESTS = "requests/"
RETRIED_WITHIN = 600.0  # seconds
KEPT_FOR = 24 * 3600.0  # seconds, of a reservation by key


class Reservation(BaseModel):
    batch_id: str
    body: str  # its hash
    created_at: float


async def reserve(
    store: BatchStore, body: bytes, *, key: str | None, is_retry: bool, now: float
) -> str:
    """The id of the batch that this create makes, or has made. Raises InvalidRequest."""
    digest = sha256(body).hexdigest()
    mine = Reservation(batch_id=new_id("batch", now), body=digest, created_at=now)
    if key is not None:
        return await _by_key(store, f"{REQUESTS}key-{sha256(key.encode()).hexdigest()}", mine)
    where = f"{REQUESTS}body-{digest}"
    if is_retry:
        earlier = await _find(store, where)
        if earlier is not None and earlier.created_at > now - RETRIED_WITHIN:
            return earlier.batch_id
    await store.put(where, mine.model_dump_json().encode())
    return mine.batch_id


async def _by_key(store: BatchStore, where: str, mine: Reservation) -> str:
    while True:
        try:
            await store.put_if_absent(where, mine.model_dump_json().encode())
            return mine.batch_id
        except Changed:
            earlier = await _find(store, where)
        if earlier is None:
            continue
        if earlier.body != mine.body:
            raise InvalidRequest(
                "This Idempotency-Key was used with another request body.",
                param=None,
                code="idempotency_key_reused",
            )
        return earlier.batch_id


async def _find(store: BatchStore, where: str) -> Reservation | None:
    try:
        return Reservation.model_validate_json((await store.get(where)).data)
    except NotThere:
        return None
