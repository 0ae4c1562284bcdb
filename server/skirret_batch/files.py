"""File objects in the store: `files/{id}/blob` and, once it is whole, `files/{id}/meta.json`.

A file exists while its meta.json does. So a publisher writes the blob first, and a delete removes
meta.json first; the blob of an input that a live batch still reads stays until that batch ends.
"""

from __future__ import annotations

from skirret_api.openai import FileObject
from skirret_batch.record import blob_key, live
from skirret_batch.store import BatchStore, NotThere

FILES = "files/"
KEPT_FOR = 30 * 86_400  # seconds, of batch inputs and outputs that say nothing else
MIN_EXPIRY = 3600
MAX_EXPIRY = 30 * 86_400


def meta_key(file_id: str) -> str:
    return f"{FILES}{file_id}/meta.json"


def is_expired(file: FileObject, now: float) -> bool:
    return file.expires_at is not None and file.expires_at <= now


async def publish(store: BatchStore, file: FileObject) -> None:
    """Makes a file whose blob is written visible."""
    await store.put(meta_key(file.id), file.model_dump_json().encode())


async def retrieve(store: BatchStore, file_id: str, now: float) -> FileObject:
    """Raises NotThere, for an expired file too."""
    file = FileObject.model_validate_json((await store.get(meta_key(file_id))).data)
    if is_expired(file, now):
        raise NotThere(f"file {file_id} has expired")
    return file


async def remove(store: BatchStore, file_id: str) -> None:
    """Takes the file away; its blob too, unless a live batch reads it."""
    await store.delete(meta_key(file_id))
    # In this order: a batch created since then found no meta.json.
    readers = await live(store, {})
    if all(record.source != blob_key(file_id) for record, _ in readers.values()):
        await store.delete(blob_key(file_id))


async def erase(store: BatchStore, file_id: str) -> None:
    """Takes the file away with its blob; one that isn't there is no error."""
    await store.delete(meta_key(file_id))
    await store.delete(blob_key(file_id))


async def drop_orphan(store: BatchStore, blob: str) -> None:
    """Removes an input's blob when its file was deleted while the batch still read it."""
    try:
        await store.head(meta_key(blob.removeprefix(FILES).removesuffix("/blob")))
    except NotThere:
        await store.delete(blob)
