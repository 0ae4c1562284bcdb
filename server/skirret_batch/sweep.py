"""Takes away what nobody needs any more. Safe at any time, by any number of processes.

- files that have expired, and blobs that never became files
- all of an ended batch but its record
- reservations of a day ago, markers of batches that were never created
- multipart uploads of a day ago
"""

from __future__ import annotations

import logging
from itertools import groupby

from skirret_api.openai import FileObject
from skirret_batch import files, reservation
from skirret_batch.record import (
    BATCHES,
    LIVE,
    Record,
    ResultKind,
    blob_key,
    folder_of,
    id_time,
    live,
    load,
    record_key,
    result_id,
)
from skirret_batch.store import BatchStore, NotThere

_KINDS: tuple[ResultKind, ...] = ("output", "error")
_SETTLED = 24 * 3600.0  # seconds after which whoever began something has given up

log = logging.getLogger(__name__)


async def sweep(store: BatchStore, now: float) -> None:
    """One round. Raises StoreError; the next round does what is left."""
    read = {record.source for record, _ in (await live(store, {})).values()}
    await _files(store, now, read)
    await _batches(store)
    await _reservations(store, now)
    await _markers(store, now)
    async for upload in store.uploads(""):
        if upload.started < now - _SETTLED:
            await store.abort(upload.key, upload.upload)


async def clear(store: BatchStore, batch_id: str) -> None:
    """Removes everything of an ended batch but its record and its files."""
    folder, record = folder_of(batch_id), await _find(store, batch_id)
    begun = [folder]
    if record is not None:  # files that a publisher began, and that will never be
        begun += [blob_key(result_id(record, kind)) for kind in _KINDS]
    for prefix in begun:
        async for upload in store.uploads(prefix):
            await store.abort(upload.key, upload.upload)
    if record is not None and not (record.batch.output_file_id or record.batch.error_file_id):
        for kind in _KINDS:  # a discarded batch's, whose publisher died before it took them back
            await files.erase(store, result_id(record, kind))
    async for entry in store.list(folder):
        if entry.key != record_key(batch_id):
            await store.delete(entry.key)


async def _files(store: BatchStore, now: float, read: set[str | None]) -> None:
    keys = [entry.key async for entry in store.list(files.FILES)]
    for file_id, names in groupby(keys, key=lambda key: key.split("/")[1]):
        if files.meta_key(file_id) in names:
            needed = not await _is_expired(store, file_id, now)
        else:  # being uploaded, unless that was long ago
            needed = (id_time(file_id) or now) > now - _SETTLED
        if needed or blob_key(file_id) in read:
            continue
        await files.erase(store, file_id)
        log.info("removed file %s", file_id)


async def _is_expired(store: BatchStore, file_id: str, now: float) -> bool:
    try:
        blob = await store.get(files.meta_key(file_id))
    except NotThere:  # deleted since it was listed
        return True
    return files.is_expired(FileObject.model_validate_json(blob.data), now)


async def _batches(store: BatchStore) -> None:
    crowded = set()
    async for entry in store.list(BATCHES):
        batch_id = entry.key.split("/")[1]
        if entry.key != record_key(batch_id):
            crowded.add(batch_id)
    for batch_id in crowded:
        record = await _find(store, batch_id)
        if record is not None and record.is_terminal:
            await clear(store, batch_id)
            log.info("cleared batch %s", batch_id)


async def _reservations(store: BatchStore, now: float) -> None:
    async for entry in store.list(reservation.REQUESTS):
        blob = await store.get(entry.key)
        made = reservation.Reservation.model_validate_json(blob.data).created_at
        if made < now - reservation.KEPT_FOR:
            await store.delete(entry.key)


async def _markers(store: BatchStore, now: float) -> None:
    async for entry in store.list(LIVE):
        batch_id = entry.key.removeprefix(LIVE)
        made = id_time(batch_id)
        if made is not None and made < now - _SETTLED and not await _find(store, batch_id):
            await store.delete(entry.key)


async def _find(store: BatchStore, batch_id: str) -> Record | None:
    try:
        return (await load(store, batch_id))[0]
    except NotThere:
        return None
