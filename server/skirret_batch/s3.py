"""A BatchStore in a bucket of MinIO or any other S3-compatible service.

Every request is a URL signed by the minio client's signer, sent over one aiohttp session: its own
`put_object` has no If-Match, and blocks. A request is tried again on SlowDown, 5xx, time-outs and
cut connections, with growing, jittered pauses.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO
from urllib.parse import unquote_plus, urlunsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import aiohttp
from minio.credentials import Credentials
from minio.helpers import BaseURL
from minio.signer import presign_v4
from yarl import URL

from skirret_api.tenants import S3Store
from skirret_batch.store import (
    Blob,
    Changed,
    Entry,
    NotThere,
    Part,
    PendingUpload,
    Retries,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    Stream,
)

_SIGNED_FOR = 3600  # seconds
_PIECE = 1 << 20  # bytes of a streamed read
_CONNECT = 5.0  # seconds
# Statuses and codes that say "later", not "no".
_LATER = frozenset({408, 429, 500, 502, 503, 504})
_LATER_CODES = frozenset(
    {"RequestTimeout", "ConditionalRequestConflict", "OperationAborted", "InternalError"}
)
_KEYS = "check the store's accessKey and secretKey, and what they may do"
_SPACE = "free some space, or raise the quota"
_MENDED_BY = {
    "NoSuchBucket": "make the bucket, or name another as the store's",
    "AccessDenied": _KEYS,
    "ExpiredToken": _KEYS,
    "InvalidAccessKeyId": _KEYS,
    "InvalidToken": _KEYS,
    "SignatureDoesNotMatch": _KEYS,
    "RequestTimeTooSkewed": "set the clock of this machine, or the store's",
    "QuotaExceeded": _SPACE,
    "XMinioAdminBucketQuotaExceeded": _SPACE,
    "XMinioStorageFull": _SPACE,
}
_MENDED_BY_STATUS = {401: _KEYS, 403: _KEYS, 507: _SPACE}  # of an answer that names no code
_CUT = (aiohttp.ClientError, TimeoutError, ConnectionError)

Query = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    etag: str
    size: int
    body: bytes
    code: str  # of an error, else ""
    message: str
    retried: bool  # an earlier try may have been carried out

    @property
    def xml(self) -> ElementTree.Element:
        return ElementTree.fromstring(self.body)


class S3:
    """Objects of one bucket, below one prefix."""

    def __init__(
        self,
        settings: S3Store,
        retries: Retries,
        *,
        clock: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
        page: int = 1000,  # entries of a list, at once
    ) -> None:
        self._page = page
        self._bucket = settings.bucket
        self.where = f"bucket {settings.bucket} at {settings.endpoint}"
        self._prefix = f"{settings.prefix.strip('/')}/" if settings.prefix.strip("/") else ""
        self._region = settings.region
        self._base = BaseURL(settings.endpoint, settings.region)
        self._base.virtual_style_flag = not settings.pathStyle
        self._credentials = (
            Credentials(settings.accessKey, settings.secretKey) if settings.accessKey else None
        )
        self._tls = ssl.create_default_context(cadata=settings.caBundle)
        if settings.caBundle:
            self._tls.load_default_certs()
        self._retries = retries
        self._clock = clock
        self._jitter = jitter
        self._session: aiohttp.ClientSession | None = None

    async def probe(self) -> None:
        await self.compares()

    async def compares(self) -> bool:
        """Whether it honours If-Match. Raises StoreRefused for one without If-None-Match."""
        key = f".probe/{int(self._clock() * 1e6):x}-{int(self._jitter() * 1e9):x}"
        try:
            first = await self.put_if_absent(key, b"first")
            if not await self._honours(key, {"If-None-Match": "*"}):
                raise StoreRefused(
                    f"{self.where} ignores If-None-Match on PUT. Batches need conditional "
                    "writes: use a release of MinIO, S3 or SeaweedFS that has them"
                )
            if not await self._honours(key, {"If-Match": f'"{"0" * 32}"'}):
                return False
            await self.put_if_match(key, b"third", first)
            return True
        finally:
            await self.delete(key)

    async def _honours(self, key: str, condition: dict[str, str]) -> bool:
        """Whether a condition that doesn't hold hinders a write."""
        try:
            await self._put_on_condition(key, b"second", condition)
        except Changed:
            return True
        except StoreRefused:  # a header it says it doesn't have; we may write, as we just did
            return False
        return False

    def key_of(self, uri: str) -> str:
        root = f"s3://{self._bucket}/{self._prefix}"
        if not uri.startswith(root):
            raise StoreRefused(f"{uri} is outside this store, {root}")
        return uri.removeprefix(root)

    async def get(self, key: str) -> Blob:
        reply = await self._found("GET", key)
        return Blob(reply.body, reply.etag)

    async def get_if_changed(self, key: str, etag: str) -> Blob | None:
        headers = {"If-None-Match": f'"{etag}"'} if etag else {}
        reply = await self._found("GET", key, headers=headers)
        return None if reply.status == 304 else Blob(reply.body, reply.etag)

    async def read(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        return b"".join([piece async for piece in self.stream(key, start, end)])

    async def stream(self, key: str, start: int = 0, end: int | None = None) -> Stream:
        if end is not None and end <= start:
            return
        position = start
        etag = ""
        pauses = self._pauses(f"GET {key}")
        while True:
            headers = {"If-Match": f'"{etag}"'} if etag else {}
            if position or end is not None:
                headers["Range"] = f"bytes={position}-{'' if end is None else end - 1}"
            try:
                url = self._signed("GET", key, {})
                async with self._open().get(url, headers=headers) as response:
                    if response.status == 416:  # starts at or after the end
                        return
                    if response.status in (200, 206):
                        etag = response.headers.get("ETag", "").strip('"')
                        async for piece in response.content.iter_chunked(_PIECE):
                            position += len(piece)
                            yield piece
                            pauses = self._pauses(f"GET {key}")
                        return
                    reply = await _reply(response, retried=False)
                if not _is_later(reply):
                    raise self._refusal(reply, "GET", key)
                reason = reply.message
            except _CUT as error:
                reason = type(error).__name__
            await pauses.pause(reason)

    async def head(self, key: str) -> Entry:
        reply = await self._found("HEAD", key)
        return Entry(key, reply.size, reply.etag)

    async def put(self, key: str, data: bytes) -> str:
        return (await self._done("PUT", key, data=data)).etag

    async def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        return await self._put_on_condition(key, data, {"If-Match": f'"{etag}"'})

    async def put_if_absent(self, key: str, data: bytes) -> str:
        return await self._put_on_condition(key, data, {"If-None-Match": "*"})

    async def delete(self, key: str) -> None:
        await self._send("DELETE", key, accept=(200, 204, 404))

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[Entry]:
        async for page in self._pages(prefix, after, {}):
            for each in page.iterfind("{*}Contents"):
                key = self._listed(each, "{*}Key")
                yield Entry(key, int(_text(each, "{*}Size")), _text(each, "{*}ETag").strip('"'))

    async def folders(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        # "0" follows "/": it is after every key inside the folder, and before the next folder.
        start = f"{prefix}{after}0" if after else ""
        async for page in self._pages(prefix, start, {"delimiter": "/"}):
            for each in page.iterfind("{*}CommonPrefixes"):
                name = self._listed(each, "{*}Prefix").removeprefix(prefix).rstrip("/")
                if name > after:
                    yield name

    async def begin(self, key: str) -> str:
        reply = await self._done("POST", key, {"uploads": ""})
        return _text(reply.xml, "{*}UploadId")

    async def put_part(self, key: str, upload: str, number: int, data: bytes) -> Part:
        query = {"uploadId": upload, "partNumber": str(number)}
        reply = await self._found("PUT", key, query, data=data)
        return Part(number, reply.etag, len(data))

    async def complete(self, key: str, upload: str, parts: Sequence[Part]) -> str:
        body = "".join(
            f'<Part><PartNumber>{part.number}</PartNumber><ETag>"{escape(part.etag)}"</ETag></Part>'
            for part in parts
        )
        data = f"<CompleteMultipartUpload>{body}</CompleteMultipartUpload>".encode()
        reply = await self._send("POST", key, {"uploadId": upload}, data=data, accept=(200, 404))
        if reply.status == 200:
            return _text(reply.xml, "{*}ETag").strip('"')
        if reply.retried:
            # A first try that seemed to fail had published it, and the upload went with it.
            published = await self.head(key)
            if published.size == sum(part.size for part in parts):
                return published.etag
        raise NotThere(f"the upload of {key} is gone")

    async def abort(self, key: str, upload: str) -> None:
        await self._send("DELETE", key, {"uploadId": upload}, accept=(200, 204, 404))

    async def uploads(self, prefix: str) -> AsyncIterator[PendingUpload]:
        query = {"uploads": "", "prefix": self._prefix + prefix}
        while True:
            page = (await self._done("GET", "", query)).xml
            for each in page.iterfind("{*}Upload"):
                key, upload = _text(each, "{*}Key"), _text(each, "{*}UploadId")
                started = datetime.fromisoformat(_text(each, "{*}Initiated")).timestamp()
                yield PendingUpload(key.removeprefix(self._prefix), upload, started)
                query |= {"key-marker": key, "upload-id-marker": upload}
            if page.findtext("{*}IsTruncated") != "true":
                return

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _put_on_condition(self, key: str, data: bytes, condition: dict[str, str]) -> str:
        reply = await self._send("PUT", key, data=data, headers=condition, accept=(200, 404, 412))
        if reply.status == 200:
            return reply.etag
        # The loss may be to ourselves: a first try was carried out, its answer lost on the way, and
        # we, or aiohttp unasked, sent it again.
        try:
            there = await self.get(key)
        except NotThere:
            raise Changed(f"{key} is gone") from None
        if there.data != data:
            raise Changed(f"{key} is no longer what was read")
        return there.etag

    async def _pages(
        self, prefix: str, after: str, query: Query
    ) -> AsyncIterator[ElementTree.Element]:
        asked = {
            **query,
            "list-type": "2",
            "encoding-type": "url",
            "max-keys": str(self._page),
            "prefix": self._prefix + prefix,
        }
        if after:
            asked["start-after"] = self._prefix + after
        while True:
            page = (await self._done("GET", "", asked)).xml
            yield page
            if page.findtext("{*}IsTruncated") != "true":
                return
            asked["continuation-token"] = _text(page, "{*}NextContinuationToken")

    def _listed(self, element: ElementTree.Element, path: str) -> str:
        return unquote_plus(_text(element, path)).removeprefix(self._prefix)

    async def _done(
        self, method: str, key: str, query: Query | None = None, *, data: bytes | None = None
    ) -> Reply:
        return await self._send(method, key, query or {}, data=data, accept=(200, 204))

    async def _found(
        self,
        method: str,
        key: str,
        query: Query | None = None,
        *,
        data: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        """The same for an object that must be there. Raises NotThere."""
        return await self._send(
            method, key, query or {}, data=data, headers=headers, accept=(200, 304)
        )

    async def _send(
        self,
        method: str,
        key: str,
        query: Query | None = None,
        *,
        data: bytes | None = None,
        headers: dict[str, str] | None = None,
        accept: tuple[int, ...],
    ) -> Reply:
        """One request, tried again while the store says or seems to say "later"."""
        pauses = self._pauses(f"{method} {key or 'list'}")
        while True:
            try:
                url = self._signed(method, key, query or {})
                body = None if data is None else BytesIO(data)  # sent in pieces
                async with self._open().request(
                    method, url, data=body, headers=headers, allow_redirects=False
                ) as response:
                    reply = await _reply(response, pauses.taken > 0)
                if not _is_later(reply):
                    if reply.status in accept and not _is_refusal(reply):
                        return reply
                    raise self._refusal(reply, method, key)
                reason = reply.message
            except _CUT as error:
                reason = type(error).__name__
            await pauses.pause(reason)

    def _refusal(self, reply: Reply, method: str, key: str) -> StoreError:
        if reply.status == 404 and reply.code != "NoSuchBucket":
            return NotThere(f"nothing at {key} in {self.where}")
        if reply.status == 412:
            return Changed(f"{key} was overwritten while it was read")
        advice = _MENDED_BY.get(reply.code) or _MENDED_BY_STATUS.get(reply.status)
        what = f"{self.where} refuses {method} {key or 'list'}: {reply.message.rstrip('.')}"
        return StoreRefused(f"{what}; {advice}" if advice else what)

    def _pauses(self, what: str) -> Pauses:
        return Pauses(self._retries, self._jitter, f"{self.where} doesn't answer {what}")

    def _signed(self, method: str, key: str, query: Query) -> URL:
        url = self._base.build(
            method=method,
            region=self._region,
            bucket_name=self._bucket,
            object_name=self._prefix + key if key else None,
            query_params=dict(query),
        )
        if self._credentials is not None:
            url = presign_v4(
                method=method,
                url=url,
                region=self._region,
                credentials=self._credentials,
                date=datetime.fromtimestamp(self._clock(), UTC),
                expires=_SIGNED_FOR,
            )
        return URL(urlunsplit(url), encoded=True)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=64, ssl=self._tls),
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=_CONNECT, sock_read=self._retries.silence
                ),
                trust_env=True,  # HTTPS_PROXY, NO_PROXY
                auto_decompress=False,
            )
        return self._session


class Pauses:
    """Growing, jittered pauses between tries, until their time is spent."""

    def __init__(self, retries: Retries, jitter: Callable[[], float], failing: str) -> None:
        self._retries = retries
        self._jitter = jitter
        self._failing = failing
        self._deadline = time.monotonic() + retries.seconds
        self.taken = 0

    async def pause(self, reason: str) -> None:
        longest = min(self._retries.first_pause * 2**self.taken, self._retries.longest_pause)
        seconds = longest * (0.5 + self._jitter() / 2)
        if time.monotonic() + seconds > self._deadline:
            raise StoreUnavailable(f"{self._failing}: {reason}, {self.taken + 1} times")
        self.taken += 1
        await asyncio.sleep(seconds)


async def _reply(response: aiohttp.ClientResponse, retried: bool) -> Reply:
    body = await response.read()
    code, message = "", f"HTTP status {response.status}"
    # A POST that fails after its headers says so in the body of a 200.
    if (response.status > 299 or response.method == "POST") and b"<Error" in body[:200]:
        with suppress(ElementTree.ParseError):  # an error page of something in between
            xml = ElementTree.fromstring(body)
            code = xml.findtext("{*}Code") or ""
            message = xml.findtext("{*}Message") or code
    etag = response.headers.get("ETag", "").strip('"')
    size = response.content_length or 0
    return Reply(response.status, etag, size, body, code, message, retried)


def _is_later(reply: Reply) -> bool:
    return reply.status in _LATER or reply.code in _LATER_CODES


def _is_refusal(reply: Reply) -> bool:
    return reply.code == "NoSuchBucket" or (reply.status == 200 and reply.code != "")


def _text(element: ElementTree.Element, path: str) -> str:
    text = element.findtext(path)
    if text is None:
        raise StoreError(f"the store's answer has no {path.removeprefix('{*}')}")
    return text
