"""The files and batches of one server, over HTTP.

ApiError
├── Refused   the server said no: trying again says the same
└── Away      nobody answered, or not now
"""

from __future__ import annotations

import http.client
import json
import secrets
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any, TypeVar
from urllib.parse import quote, urlencode

Json = dict[str, Any]
_T = TypeVar("_T")

_TIMEOUT = 120.0  # seconds of silence
_UPLOAD_TIMEOUT = 600.0  # the server answers when the last byte is in its store
_TRIES = 4
_LONGEST_PAUSE = 30.0
_PIECE = 1 << 18  # bytes
_NOT_NOW = frozenset({429, 500, 502, 503, 504})


class ApiError(Exception):
    """The message is for the user."""


class Refused(ApiError):
    pass


class Away(ApiError):
    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Api:
    """`url` may end in /v1 or not. Every call raises ApiError."""

    def __init__(self, url: str, key: str | None, sleep: Callable[[float], None]) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._sleep = sleep

    def upload(self, name: str, file: IO[bytes], sent: Callable[[int], None]) -> Json:
        """Streams a file; `sent` is told how many bytes have gone so far."""
        boundary = secrets.token_hex(16)
        head, tail = _form(boundary, name)
        size = file.seek(0, 2)
        headers = {
            "content-type": f"multipart/form-data; boundary={boundary}",
            "content-length": str(len(head) + size + len(tail)),
        }

        def body() -> Iterator[bytes]:
            yield head
            file.seek(0)
            while piece := file.read(_PIECE):
                yield piece
                sent(file.tell())
            yield tail

        # Twice the same file does no harm, but a file of 200 MB is not sent again unasked.
        return self._json(self._open("POST", "/v1/files", body(), headers, _UPLOAD_TIMEOUT))

    def create(self, wanted: Json) -> Json:
        # With the key, a create that is sent again makes no second batch.
        headers = {
            "content-type": "application/json",
            "idempotency-key": secrets.token_hex(16),
        }
        return self._call("POST", "/v1/batches", json.dumps(wanted).encode(), headers)

    def dry_run(self, wanted: Json) -> Json:
        """What a create would come to."""
        headers = {"content-type": "application/json"}
        body = json.dumps(wanted).encode()
        return self._call("POST", "/v1/batches?dry_run=true", body, headers)

    def delete(self, file_id: str) -> None:
        self._call("DELETE", _path("files", file_id))

    def batch(self, batch_id: str) -> Json:
        return self._call("GET", _path("batches", batch_id))

    def cancel(self, batch_id: str) -> Json:
        return self._call("POST", _path("batches", batch_id) + "/cancel", b"")

    def batches(self, limit: int) -> Iterator[Json]:
        """Newest first."""
        after: dict[str, str] = {}
        while limit > 0:
            query = urlencode({"limit": min(limit, 100), **after})
            page = self._call("GET", f"/v1/batches?{query}")
            yield from page["data"]
            limit -= len(page["data"])
            if not page["has_more"]:
                return
            after = {"after": page["last_id"]}

    def content(self, file_id: str) -> Iterator[bytes]:
        """A whole file; a download that breaks off is gone on with."""
        size = self._call("GET", _path("files", file_id))["bytes"]
        at = fruitless = 0
        while at < size:
            before = at
            for piece in self._pieces(file_id, at):
                at += len(piece)
                yield piece
            fruitless = fruitless + 1 if at == before else 0
            if fruitless == _TRIES:
                raise Away(f"{self.url}: the download of {file_id} breaks off at byte {at:,}")

    def _pieces(self, file_id: str, at: int) -> Iterator[bytes]:
        headers = {"range": f"bytes={at}-"} if at else {}
        path = _path("files", file_id) + "/content"
        response = self._again(lambda: self._open("GET", path, None, headers))
        with response:
            try:
                while piece := response.read(_PIECE):
                    yield piece
            except (OSError, http.client.HTTPException):
                return  # the caller counts what came

    def _call(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = {}
    ) -> Json:
        return self._again(lambda: self._json(self._open(method, path, body, headers)))

    def _again(self, call: Callable[[], _T]) -> _T:
        pause = 0.5
        for _ in range(_TRIES - 1):
            try:
                return call()
            except Away as error:
                self._sleep(min(error.retry_after or pause, _LONGEST_PAUSE))
                pause *= 2
        return call()

    def _json(self, response: http.client.HTTPResponse) -> Json:
        with response:
            try:
                found: Json = json.loads(response.read())
            except (OSError, http.client.HTTPException) as error:
                raise Away(f"{self.url}: the answer broke off: {error}") from error
            except ValueError as error:
                raise Refused(f"{self.url} answers, but not as an OpenAI API does") from error
        return found

    def _open(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] | None,
        headers: Mapping[str, str],
        timeout: float = _TIMEOUT,
    ) -> http.client.HTTPResponse:
        request = urllib.request.Request(
            self.url + path,
            data=body,
            method=method,
            headers={**self._headers, **headers},
        )
        try:
            response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=timeout)
        except urllib.error.HTTPError as error:
            with error:
                raise self._failure(error) from error
        except urllib.error.URLError as error:
            raise Away(f"{self.url} does not answer: {error.reason}") from error
        except (OSError, http.client.HTTPException) as error:
            raise Away(f"{self.url} broke off: {error or type(error).__name__}") from error
        return response

    def _failure(self, error: urllib.error.HTTPError) -> ApiError:
        words = _words(error)
        if error.code in _NOT_NOW and error.headers.get("x-should-retry") != "false":
            return Away(f"{self.url}: {words}", _seconds(error.headers.get("retry-after")))
        if error.code in (401, 403):
            words += " (the key is read from OPENAI_API_KEY)"
        return Refused(words)


def _path(kind: str, object_id: str) -> str:
    return f"/v1/{kind}/{quote(object_id, safe='')}"


def _form(boundary: str, name: str) -> tuple[bytes, bytes]:
    """What goes before and after the file's bytes."""
    plain = "".join(each if each.isprintable() and each not in '"\\' else "_" for each in name)
    head = (
        f"--{boundary}\r\n"
        'content-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f"--{boundary}\r\n"
        f'content-disposition: form-data; name="file"; filename="{plain}"\r\n'
        "content-type: application/octet-stream\r\n\r\n"
    )
    return head.encode(), f"\r\n--{boundary}--\r\n".encode()


def _words(error: urllib.error.HTTPError) -> str:
    """What the server says, of its error envelope."""
    try:
        raw = error.read(65536)
        return str(json.loads(raw)["error"]["message"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return f"HTTP {error.code} {error.reason}"


def _seconds(header: str | None) -> float | None:
    try:
        return max(0.0, float(header or ""))
    except ValueError:
        return None
