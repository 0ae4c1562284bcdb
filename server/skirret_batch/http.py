"""`/v1/files` and `/v1/batches`: one ASGI application, for the gateway and the embedded server."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import wraps
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Match, Route
from starlette.types import Scope

from skirret_api.errors import (
    ApiError,
    Conflict,
    InvalidRequest,
    NotFound,
    OverQuota,
    ServerFault,
    TooLarge,
    Unavailable,
)
from skirret_api.openai import FileObject
from skirret_batch import asked, files, quota
from skirret_batch import record as records
from skirret_batch.dry_run import AnyModel, Models, dry_run
from skirret_batch.listing import Shelf, batches
from skirret_batch.receive import BATCH, Limits, receive
from skirret_batch.record import Record, Transition
from skirret_batch.reservation import Once
from skirret_batch.so_far import BadCursor, so_far
from skirret_batch.store import BatchStore, Changed, NotThere, StoreError, Stream

log = logging.getLogger(__name__)

_PAGE_OF_BATCHES = (1, 100, 20)  # smallest, largest, default limit
_PAGE_OF_FILES = (1, 10_000, 10_000)
_RANGE = re.compile(r"bytes=\s*([0-9]*)-([0-9]*)\s*", re.IGNORECASE)
_JSON = re.compile(r"[^;]*[/+]json\s*(?:;.*)?", re.IGNORECASE)
# What can be part of a key. Ids are opaque otherwise: an unknown one is simply not there.
_ID = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9_.-]{1,128}")


async def nobody(store: BatchStore, batch_id: str) -> None:
    """For a host that has others notice a new batch."""


def any_model(scope: Scope) -> Models:
    """For a host that doesn't know its models."""
    return AnyModel()


def files_and_batches(
    store_of: Callable[[Scope], BatchStore],
    *,
    clock: Callable[[], float] = time.time,
    limits: Limits | None = None,
    started: Callable[[BatchStore, str], Awaitable[None]] = nobody,
    models: Callable[[Scope], Models] = any_model,
) -> FastAPI:
    """The application. The host knows the caller: `store_of` gives its store or raises ApiError.

    `started` is told of every new batch, once its record is written. `models` gives what a dry run
    asks.
    """
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    door = _Door(store_of, clock, limits or Limits(), started, models)
    for method, path, handler in (
        ("POST", "/v1/files", door.upload),
        ("GET", "/v1/files", door.list_files),
        ("GET", "/v1/files/{file_id}", door.retrieve_file),
        ("DELETE", "/v1/files/{file_id}", door.delete_file),
        ("GET", "/v1/files/{file_id}/content", door.content),
        ("POST", "/v1/batches", door.create),
        ("GET", "/v1/batches", door.list_batches),
        ("GET", "/v1/batches/{batch_id}", door.retrieve),
        ("POST", "/v1/batches/{batch_id}/cancel", door.cancel),
        ("GET", "/v1/batches/{batch_id}/output", door.output),
    ):
        methods = ["GET", "HEAD"] if method == "GET" else [method]
        app.add_api_route(path, _guarded(handler), methods=methods, response_model=None)
    app.add_exception_handler(ApiError, _refuse)
    app.add_exception_handler(StoreError, _store_failed)
    app.add_exception_handler(HTTPException, _no_route)
    return app


@dataclass(frozen=True, slots=True)
class _Page:
    """Where a list begins and how long it is."""

    limit: int
    after: str
    is_ascending: bool = False


class _Door:
    def __init__(
        self,
        store_of: Callable[[Scope], BatchStore],
        clock: Callable[[], float],
        limits: Limits,
        started: Callable[[BatchStore, str], Awaitable[None]],
        models: Callable[[Scope], Models],
    ) -> None:
        self._store_of = store_of
        self._clock = clock
        self._limits = limits
        self._started = started
        self._models = models
        self._shelf = Shelf()
        # Each parses a whole file: beside requests, but not many at once.
        self._dry_runs = asyncio.Semaphore(1)

    # files

    async def upload(self, request: Request) -> Response:
        store = self._store_of(request.scope)
        content_type = request.headers.get("content-type", "")
        file = await receive(store, content_type, request.stream(), self._limits, self._clock())
        return JSONResponse(file.model_dump())

    async def list_files(self, request: Request) -> Response:
        store = self._store_of(request.scope)
        page = _page(request, _PAGE_OF_FILES)
        if page.after:
            await self._check_cursor(store, files.meta_key(page.after))
        purpose = request.query_params.get("purpose")
        found: list[FileObject] = []
        listed = self._shelf.files(store, page.after, page.is_ascending, self._clock())
        async for file in listed:
            if purpose in (None, file.purpose):
                found.append(file)
            if len(found) > page.limit:
                break
        return _list([file.model_dump() for file in found], page.limit)

    async def retrieve_file(self, request: Request, file_id: str) -> Response:
        file = await self._file(self._store_of(request.scope), file_id)
        return JSONResponse(file.model_dump())

    async def delete_file(self, request: Request, file_id: str) -> Response:
        store = self._store_of(request.scope)
        await self._file(store, file_id)
        await files.remove(store, file_id)
        return JSONResponse({"id": file_id, "object": "file", "deleted": True})

    async def content(self, request: Request, file_id: str) -> Response:
        store = self._store_of(request.scope)
        file = await self._file(store, file_id)
        etag = f'"{file_id}"'  # a file never changes
        headers = {
            "content-disposition": _attachment(file.filename),
            "accept-ranges": "bytes",
            "etag": etag,
        }
        span = None
        if request.method == "GET" and request.headers.get("if-range", etag) == etag:
            span = _span(request.headers.get("range"), file.bytes)
        start, end = span or (0, file.bytes)
        headers["content-length"] = str(end - start)
        status = 200
        if span is not None:
            status = 206
            headers["content-range"] = f"bytes {start}-{end - 1}/{file.bytes}"
        media_type = "application/octet-stream"
        if request.method == "HEAD":
            return Response(None, status, headers, media_type)
        blob = store.stream(records.blob_key(file_id), start, end)
        try:
            first = await anext(blob, b"")
        except NotThere:  # deleted a moment ago
            raise _no_file(file_id) from None
        return StreamingResponse(_rejoined(first, blob), status, headers, media_type)

    # batches

    async def create(self, request: Request) -> Response:
        store = self._store_of(request.scope)
        if not _JSON.fullmatch(request.headers.get("content-type", "application/json")):
            raise InvalidRequest("The request's body must be application/json.", status=415)
        wanted = asked.parse(await self._body(request))
        now = self._clock()
        once = Once(
            wanted,
            key=request.headers.get("idempotency-key"),
            is_retry=request.headers.get("x-stainless-retry-count", "0") != "0",
        )
        is_dry = _is_dry(request)
        known = None if is_dry else await once.find(store, now)
        if known is not None:
            try:  # its input may be gone since
                return _batch((await records.load(store, known))[0])
            except NotThere:  # that create died before it came to the record
                pass
        file = await self._check_input(store, wanted.input_file_id)
        if is_dry:
            models = self._models(request.scope)
            async with self._dry_runs:
                said = await dry_run(store, wanted, self._limits.lines, models)
            return JSONResponse(said)
        batch_id = await once.reserve(store, now)
        await self._check_quota(store, file, batch_id)
        record = records.new_record(
            batch_id,
            now=records.id_time(batch_id) or now,
            endpoint=wanted.endpoint,
            completion_window=wanted.completion_window,
            input_file_id=wanted.input_file_id,
            output_expires_after=wanted.output_expires_after,
            metadata=wanted.metadata,
        )
        try:
            await records.create(store, record)
        except Changed:  # the same create, sent again
            record = await self._record(store, batch_id)
        await self._started(store, batch_id)
        return _batch(record)

    async def list_batches(self, request: Request) -> Response:
        store = self._store_of(request.scope)
        page = _page(request, _PAGE_OF_BATCHES)
        if page.after:
            await self._check_cursor(store, records.record_key(page.after))
        found: list[Record] = []
        async for record in batches(store, page.after, page.is_ascending):
            found.append(record)
            if len(found) > page.limit:
                break
        return _list([_shown(record) for record in found], page.limit)

    async def retrieve(self, request: Request, batch_id: str) -> Response:
        return _batch(await self._record(self._store_of(request.scope), batch_id))

    async def cancel(self, request: Request, batch_id: str) -> Response:
        store = self._store_of(request.scope)
        await self._record(store, batch_id)
        try:
            record = await records.change(
                store, batch_id, lambda record: records.cancel(record, self._clock())
            )
        except Transition as error:
            raise Conflict(str(error)) from error
        return _batch(record)

    async def output(self, request: Request, batch_id: str) -> Response:
        """Results so far; the next call's `after` is in a header."""
        store = self._store_of(request.scope)
        record = await self._record(store, batch_id)
        if record.is_terminal:
            raise NotFound(_ended(record))
        try:
            found = await so_far(store, batch_id, request.query_params.get("after", "0"))
        except BadCursor:
            raise InvalidRequest(
                "'after' is not what an earlier answer named in x-next-after.", param="after"
            ) from None
        headers = {"x-next-after": found.cursor}
        return StreamingResponse(found.lines(), 200, headers, media_type="application/jsonl")

    # what both need

    async def _file(self, store: BatchStore, file_id: str) -> FileObject:
        try:
            return await files.retrieve(store, _checked(file_id), self._clock())
        except NotThere:
            raise _no_file(file_id) from None

    async def _record(self, store: BatchStore, batch_id: str) -> Record:
        try:
            return (await records.load(store, _checked(batch_id)))[0]
        except NotThere:
            raise NotFound(f"No batch found with id '{batch_id}'.") from None

    async def _check_input(self, store: BatchStore, file_id: str) -> FileObject:
        try:
            file = await files.retrieve(store, _checked(file_id), self._clock())
        except NotThere:
            raise InvalidRequest(
                f"Cannot find file {file_id[:128]}, or your key has no access to it.",
                param="input_file_id",
            ) from None
        if file.purpose != BATCH:
            raise InvalidRequest(
                f"The file's purpose is '{file.purpose}'; the input of a batch needs '{BATCH}'.",
                param="input_file_id",
            )
        return file

    async def _check_quota(self, store: BatchStore, file: FileObject, batch_id: str) -> None:
        """What isn't sure before the input is read, the worker says later."""
        most = self._limits.enqueued_tokens
        if most is None:
            return
        live = await records.live(store, {})
        if batch_id in live:  # the same create, sent again
            return
        if quota.surely_over(file.bytes, (record for record, _ in live.values()), most):
            raise OverQuota(quota.message(most), code="token_limit_exceeded")

    async def _check_cursor(self, store: BatchStore, key: str) -> None:
        try:
            await store.head(key)
        except NotThere:
            raise InvalidRequest("'after' is no id in this list.", param="after") from None

    async def _body(self, request: Request) -> bytes:
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > self._limits.json:
                raise TooLarge(
                    f"The body is larger than the limit of {self._limits.json:,} bytes.",
                    headers={"connection": "close"},
                )
        return bytes(body)


def _is_dry(request: Request) -> bool:
    return _one_of(request, "dry_run", ("true", "false"), usual="false") == "true"


def _one_of(request: Request, param: str, supported: tuple[str, ...], *, usual: str) -> str:
    text = request.query_params.get(param, usual)
    if text not in supported:
        names = ", ".join(f"'{name}'" for name in supported)
        raise InvalidRequest(
            f"Invalid value for '{param}'. Supported values are: {names}.",
            param=param,
            code="invalid_value",
        )
    return text


def _ended(record: Record) -> str:
    batch = record.batch
    named = [each for each in (batch.output_file_id, batch.error_file_id) if each]
    where = f"its results are in {' and '.join(named)}" if named else "it has no results"
    return f"Batch {batch.id} is {batch.status}; {where}."


def _page(request: Request, limits: tuple[int, int, int]) -> _Page:
    smallest, largest, usual = limits
    text = request.query_params.get("limit", str(usual))
    if not re.fullmatch("-?[0-9]{1,9}", text) or not smallest <= int(text) <= largest:
        raise InvalidRequest(
            f"Invalid 'limit': expected an integer from {smallest} to {largest}.",
            param="limit",
            code="invalid_value",
        )
    order = _one_of(request, "order", ("asc", "desc"), usual="desc")
    after = request.query_params.get("after", "")
    if after and not _ID.fullmatch(after):
        raise InvalidRequest("'after' is no id in this list.", param="after")
    return _Page(int(text), after, order == "asc")


def _list(data: list[dict[str, Any]], limit: int) -> Response:
    shown = data[:limit]
    return JSONResponse(
        {
            "object": "list",
            "data": shown,
            "first_id": shown[0]["id"] if shown else None,
            "last_id": shown[-1]["id"] if shown else None,
            "has_more": len(data) > limit,
        }
    )


def _batch(record: Record) -> Response:
    return JSONResponse(_shown(record))


def _shown(record: Record) -> dict[str, Any]:
    """The batch object, and what it has no field for under a name that is ours."""
    return {**record.batch.model_dump(), "x_progress": record.progress.model_dump()}


def _no_file(file_id: str) -> NotFound:
    return NotFound(f"No such File object: {file_id}", param="id")


async def _rejoined(first: bytes, rest: Stream) -> Stream:
    async with aclosing(rest):
        yield first
        async for piece in rest:
            yield piece


def _checked(object_id: str) -> str:
    """Raises NotThere for what can't be an id: it would be another key."""
    if not _ID.fullmatch(object_id):
        raise NotThere("no such id")
    return object_id


def _span(header: str | None, size: int) -> tuple[int, int] | None:
    """The bytes [start, end) that a Range header asks for; None without one that we understand."""
    match = _RANGE.fullmatch(header or "")
    if match is None or not (match[1] or match[2]):
        return None
    first, last = map(_position, match.groups())
    if not match[1]:
        start, end = max(0, size - last), size
    else:
        start, end = first, min(size, last + 1) if match[2] else size
        if match[2] and last < first:
            return None
    if start >= size:
        raise InvalidRequest(
            f"The file has {size} bytes; the range is outside of them.",
            status=416,
            headers={"content-range": f"bytes */{size}"},
        )
    return start, end


def _position(digits: str) -> int:
    """As a number, of which no file has so many bytes."""
    return int(digits.lstrip("0")[:18] or "0")


def _attachment(filename: str) -> str:
    plain = re.sub(r"[^ !#-\[\]-~]", "_", filename)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(filename, safe='')}"


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body(), error.status, error.headers)


async def _store_failed(request: Request, error: Exception) -> Response:
    log.error("%s %s: %s", request.method, request.url.path, error)
    return await _refuse(request, Unavailable(f"The object store failed: {error}", retry_after=5))


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    method, path = request.method, request.url.path
    if error.status_code == 405:
        headers = {"allow": ", ".join(_allowed(request))}
        refusal: ApiError = InvalidRequest(
            f"Not allowed to {method} on {path}.", status=405, headers=headers
        )
    else:
        refusal = NotFound(f"Invalid URL ({method} {path})")
    return await _refuse(request, refusal)


def _allowed(request: Request) -> list[str]:
    """The methods of this path; each has a route of its own."""
    matching = [
        route.methods or set()
        for route in request.app.routes
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
    ]
    return sorted(set[str]().union(*matching))


def _guarded(handler: Callable[..., Awaitable[Response]]) -> Callable[..., Awaitable[Response]]:
    """The handler, with any fault of ours as an answer; the traceback is for the log alone."""

    @wraps(handler)
    async def guarded(request: Request, **path: str) -> Response:
        try:
            return await handler(request, **path)
        except (ApiError, StoreError):
            raise
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it
        except Exception:
            log.exception("%s %s failed", request.method, request.url.path)
            request_id = request.headers.get("x-request-id", "unknown")
            return await _refuse(request, ServerFault(request_id))

    return guarded
