"""Taking in a file: from a multipart body straight into the store."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from skirret_api.errors import ApiError, InvalidRequest, TooLarge
from skirret_api.openai import FileObject
from skirret_batch import files, form
from skirret_batch.record import blob_key, id_time, new_id
from skirret_batch.store import BatchStore
from skirret_batch.upload import Upload

BATCH = "batch"
PURPOSES = (BATCH, "assistants", "evals", "fine-tune", "user_data", "vision")

_FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")
_LONGEST_FIELD = 1024  # bytes


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes, where nothing else is said."""

    batch_file: int = 200_000_000
    file: int = 512_000_000
    part: int = 8 << 20  # the most of a file that is in memory
    json: int = 1 << 20
    lines: int = 50_000  # of a batch; for a dry run, the worker has its own
    enqueued_tokens: int | None = None  # of prompts of a namespace's live batches
    drained: int = 64_000_000  # of a body too large, read on so that the client sees our answer


async def receive(
    store: BatchStore, content_type: str, body: AsyncIterator[bytes], limits: Limits, now: float
) -> FileObject:
    """Stores the file of a form and makes it visible. Raises ApiError."""
    file_id = new_id("file", now)
    incoming = _Incoming(Upload(store, blob_key(file_id), limits.part), limits)
    try:
        async for event in form.events(content_type, body):
            await incoming.take(event)
        incoming.check()
        await incoming.upload.finish()
        created = int(id_time(file_id) or now)
        seconds = incoming.expires_after
        file = FileObject(
            id=file_id,
            bytes=incoming.upload.size,
            created_at=created,
            expires_at=None if seconds is None else created + seconds,
            filename=incoming.filename or "",
            purpose=incoming.fields["purpose"],
        )
        await files.publish(store, file)
        return file
    except BaseException:
        await incoming.upload.abort()
        raise


class _Incoming:
    """The form so far. A refusal waits while the rest of the body is read and dropped."""

    def __init__(self, upload: Upload, limits: Limits) -> None:
        self.upload = upload
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self._limits = limits
        self._part: form.PartBegins | None = None
        self._value = bytearray()
        self._refusal: ApiError | None = None
        self._dropped = 0

    @property
    def expires_after(self) -> int | None:
        """Seconds; inputs of batches don't stay for ever."""
        seconds = self.fields.get("expires_after[seconds]")
        if seconds is None:
            return files.KEPT_FOR if self.fields["purpose"] == BATCH else None
        return int(seconds)

    async def take(self, event: form.Event) -> None:
        if self._refusal is not None:
            self._drop(event)
            return
        try:
            await self._take(event)
        except ApiError as error:
            self._refusal = error

    def check(self) -> None:
        """Raises ApiError for a form that is no file."""
        if self._refusal is not None:
            raise self._refusal
        for name, value in (("file", self.filename), ("purpose", self.fields.get("purpose"))):
            if value is None:
                raise InvalidRequest(
                    f"Missing required parameter: '{name}'.",
                    param=name,
                    code="missing_required_parameter",
                )
        self._check_file()
        self._check_size()
        if not self.upload.size:
            raise InvalidRequest("The file is empty.", param="file", code="empty_file")
        anchor = self.fields.get("expires_after[anchor]")
        seconds = self.fields.get("expires_after[seconds]")
        if anchor is not None or seconds is not None:
            number = int(seconds) if seconds and re.fullmatch("-?[0-9]{1,18}", seconds) else None
            check_expiry("expires_after", anchor, number)

    def _drop(self, event: form.Event) -> None:
        if isinstance(event, form.PartData) and self._refusal is not None:
            self._dropped += len(event.data)
            if self._dropped > self._limits.drained:
                raise self._refusal

    async def _take(self, event: form.Event) -> None:
        match event:
            case form.PartBegins():
                self._begin(event)
            case form.PartData() if self._part is not None and self._part.name == "file":
                await self.upload.write(event.data)
                self._check_size()
            case form.PartData():
                self._value += event.data
                if len(self._value) > _LONGEST_FIELD:
                    raise InvalidRequest("A field of the form is too long.")
            case form.PartEnds() if self._part is not None and self._part.name != "file":
                self.fields[self._part.name] = self._value.decode("utf-8", "replace")
                self._value.clear()
                self._check_purpose()

    def _begin(self, part: form.PartBegins) -> None:
        self._part = part
        if part.name == "file":
            filename = PurePosixPath((part.filename or "").replace("\\", "/")).name[:255]
            if not filename:
                raise InvalidRequest("'file' must be a file, with a name.", param="file")
            if self.filename is not None:
                raise InvalidRequest("There is more than one 'file'.", param="file")
            self.filename = filename
            self._check_file()
        elif part.name not in _FIELDS:
            raise InvalidRequest(
                f"Unknown parameter: '{part.name[:64]}'.",
                param=part.name[:64],
                code="unknown_parameter",
            )
        elif part.name in self.fields:
            raise InvalidRequest(f"There is more than one '{part.name}'.", param=part.name)

    def _check_purpose(self) -> None:
        purpose = self.fields.get("purpose")
        if purpose is not None and purpose not in PURPOSES:
            raise InvalidRequest(
                f"Invalid value: '{purpose[:64]}'. Supported values are: "
                + ", ".join(f"'{each}'" for each in PURPOSES)
                + ".",
                param="purpose",
                code="invalid_value",
            )
        self._check_file()

    def _check_file(self) -> None:
        is_batch = self.fields.get("purpose") == BATCH
        if is_batch and self.filename is not None and not self.filename.endswith(".jsonl"):
            raise InvalidRequest("Invalid file format for Batch API. Must be .jsonl", param="file")

    def _check_size(self) -> None:
        is_batch = self.fields.get("purpose") == BATCH
        limit = self._limits.batch_file if is_batch else self._limits.file
        if self.upload.size > limit:
            raise TooLarge(
                f"The file is larger than the limit of {limit:,} bytes.",
                param="file",
                headers={"connection": "close"},
            )


def check_expiry(param: str, anchor: object, seconds: object) -> int:
    """The seconds of such a parameter. Raises InvalidRequest."""
    if anchor != "created_at":
        raise InvalidRequest(
            "Invalid value for the anchor. Supported values are: 'created_at'.",
            param=f"{param}.anchor",
            code="invalid_value",
        )
    if not isinstance(seconds, int) or isinstance(seconds, bool):
        raise InvalidRequest(
            "The seconds must be an integer.", param=f"{param}.seconds", code="invalid_type"
        )
    if not files.MIN_EXPIRY <= seconds <= files.MAX_EXPIRY:
        raise InvalidRequest(
            f"The seconds must be from {files.MIN_EXPIRY} to {files.MAX_EXPIRY}.",
            param=f"{param}.seconds",
            code="invalid_value",
        )
    return seconds
