"""Stand-ins for tests: an engine that says what it is told, a store that dies on its n-th call."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic_core import from_json

from skirret_api.openai import FileObject
from skirret_batch import files
from skirret_batch.completions import Answer, Template, Turn, Unreachable
from skirret_batch.plan import Body
from skirret_batch.record import Record, blob_key, create, new_id, new_record
from skirret_batch.store import BatchStore, Blob, Entry, Part, PendingUpload, Stream

T = TypeVar("T")
Script = Callable[[Body], Awaitable[Answer | None]]  # None: the usual answer


class FakeCompletions:
    """Answers every request with its last message in capitals, and counts.

    `script` may answer, wait or raise instead.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        aliases: dict[str, str] | None = None,
        seconds: float = 0.0,
        template: Template | None = None,
    ) -> None:
        self._script = script
        self._aliases = {"m": "m"} if aliases is None else aliases
        self._seconds = seconds
        self._template = template or Template()
        self.asked: Counter[str] = Counter()  # last messages, by how often they were asked
        self.order: list[str] = []
        self.running = 0
        self.most_running = 0

    async def complete(self, endpoint: str, body: bytes, turn: Turn) -> Answer:
        try:
            request: Body = from_json(body)
        except ValueError:
            return error_answer(400, "We could not parse the JSON body of your request.")
        text = last_message(request)
        self.asked[text] += 1
        self.order.append(text)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            scripted = await self._script(request) if self._script else None
            if scripted is None:
                await asyncio.sleep(self._seconds)
            return scripted or completion(request)
        finally:
            self.running -= 1

    async def model(self, name: str) -> str | None:
        return self._aliases.get(name)

    async def template(self, name: str) -> Template:
        return self._template


def last_message(request: Body) -> str:
    if "prompt" in request:
        return str(request["prompt"])
    return str(request["messages"][-1]["content"])


def completion(request: Body) -> Answer:
    """A whole chat completion or text completion, as a server gives it."""
    text = last_message(request).upper()
    usage = {
        "prompt_tokens": len(text),
        "completion_tokens": 3,
        "total_tokens": len(text) + 3,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    choice: Body = {"index": 0, "logprobs": None, "finish_reason": "stop"}
    if "prompt" in request:
        kind, choice = "text_completion", {**choice, "text": text}
    else:
        message = {"role": "assistant", "content": text, "refusal": None}
        kind, choice = "chat.completion", {**choice, "message": message}
    body = {
        "id": "chatcmpl-fake",
        "object": kind,
        "created": 1,
        "model": request["model"],
        "choices": [choice],
        "usage": usage,
    }
    return Answer(200, json.dumps(body).encode(), {"x-request-id": "req_fake"})


def error_answer(status: int, message: str = "no", **headers: str) -> Answer:
    """An error envelope with this status; `retry_after="1"` becomes the header."""
    body = {"error": {"message": message, "type": "t", "param": None, "code": None}}
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, json.dumps(body).encode(), names)


def chat_line(custom_id: str, text: str = "hi", **extra: object) -> bytes:
    """One line of an input file."""
    body = {"model": "m", "messages": [{"role": "user", "content": text}], **extra}
    request = {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": body,
    }
    return json.dumps(request).encode() + b"\n"


async def submit(store: BatchStore, *requests: bytes, window: str = "24h", **options: Any) -> str:
    """Stores an input file and creates a batch of it, as the API does; returns the batch's id."""
    now = time.time()
    data = b"".join(requests)
    file_id = new_id("file", now)
    await store.put(blob_key(file_id), data)
    file = FileObject(
        id=file_id, bytes=len(data), created_at=int(now), filename="in.jsonl", purpose="batch"
    )
    await files.publish(store, file)
    record = new_record(
        new_id("batch", now),
        now=now,
        endpoint="/v1/chat/completions",
        completion_window=window,
        input_file_id=file_id,
        **options,
    )
    await create(store, record)
    return record.id


@dataclass(frozen=True, slots=True)
class Outcome:
    """The files of an ended batch, line by line."""

    output: list[dict[str, Any]]
    error: list[dict[str, Any]]

    @property
    def ids(self) -> list[str]:
        """Every custom_id, of both files."""
        return [line["custom_id"] for line in (*self.output, *self.error)]

    @property
    def errors(self) -> dict[str, str | int]:
        """What each failed line failed with: its code when it never ran, else its status."""
        return {
            line["custom_id"]: line["error"]["code"]
            if line["error"]
            else line["response"]["status_code"]
            for line in self.error
        }


async def outcome(store: BatchStore, record: Record) -> Outcome:
    async def read(file_id: str | None) -> list[dict[str, Any]]:
        if file_id is None:
            return []
        data = await store.read(blob_key(file_id))
        file = await files.retrieve(store, file_id, 0)
        assert file.bytes == len(data)
        assert data.endswith(b"\n")
        return [json.loads(line) for line in data.decode("ascii").split("\n")[:-1]]

    return Outcome(await read(record.batch.output_file_id), await read(record.batch.error_file_id))


class Wrapped:
    """A BatchStore that calls `before` and `after` around every operation on another one."""

    def __init__(
        self,
        store: BatchStore,
        before: Callable[[str, str], Awaitable[None]],
        after: Callable[[str, str], Awaitable[None]],
    ) -> None:
        self._store = store
        self._before = before
        self._after = after

    async def _do(self, name: str, key: str, work: Callable[[], Awaitable[T]]) -> T:
        await self._before(name, key)
        result = await work()
        await self._after(name, key)
        return result

    async def _each(self, name: str, key: str, items: AsyncIterator[T]) -> AsyncIterator[T]:
        await self._before(name, key)
        async for item in items:
            yield item
        await self._after(name, key)

    async def probe(self) -> None:
        await self._store.probe()

    def key_of(self, uri: str) -> str:
        return self._store.key_of(uri)

    async def get(self, key: str) -> Blob:
        return await self._do("get", key, lambda: self._store.get(key))

    async def get_if_changed(self, key: str, etag: str) -> Blob | None:
        return await self._do("get", key, lambda: self._store.get_if_changed(key, etag))

    async def read(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        return await self._do("read", key, lambda: self._store.read(key, start, end))

    async def stream(self, key: str, start: int = 0, end: int | None = None) -> Stream:
        await self._before("stream", key)
        async with aclosing(self._store.stream(key, start, end)) as pieces:
            async for piece in pieces:
                yield piece
        await self._after("stream", key)

    async def head(self, key: str) -> Entry:
        return await self._do("head", key, lambda: self._store.head(key))

    async def put(self, key: str, data: bytes) -> str:
        return await self._do("put", key, lambda: self._store.put(key, data))

    async def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        return await self._do("put", key, lambda: self._store.put_if_match(key, data, etag))

    async def put_if_absent(self, key: str, data: bytes) -> str:
        return await self._do("put", key, lambda: self._store.put_if_absent(key, data))

    async def delete(self, key: str) -> None:
        await self._do("delete", key, lambda: self._store.delete(key))

    def list(self, prefix: str, after: str = "") -> AsyncIterator[Entry]:
        return self._each("list", prefix, self._store.list(prefix, after))

    def folders(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        return self._each("list", prefix, self._store.folders(prefix, after))

    async def begin(self, key: str) -> str:
        return await self._do("begin", key, lambda: self._store.begin(key))

    async def put_part(self, key: str, upload: str, number: int, data: bytes) -> Part:
        return await self._do(
            "put_part", key, lambda: self._store.put_part(key, upload, number, data)
        )

    async def complete(self, key: str, upload: str, parts: Sequence[Part]) -> str:
        return await self._do("complete", key, lambda: self._store.complete(key, upload, parts))

    async def abort(self, key: str, upload: str) -> None:
        await self._do("abort", key, lambda: self._store.abort(key, upload))

    def uploads(self, prefix: str) -> AsyncIterator[PendingUpload]:
        return self._each("list", prefix, self._store.uploads(prefix))

    async def close(self) -> None:
        await self._store.close()


class Killed(BaseException):
    """The process is gone: nothing after this instruction happens."""


class MortalStore(Wrapped):
    """Dies before or after its n-th operation, and does nothing ever after."""

    def __init__(self, store: BatchStore, dies_at: int, *, carried_out: bool) -> None:
        super().__init__(store, self._begin, self._end)
        self._dies_at = dies_at
        self._carried_out = carried_out
        self.operations = 0
        self.is_dead = False

    async def _begin(self, name: str, key: str) -> None:
        self.operations += 1
        if self.operations == self._dies_at and not self._carried_out:
            self.is_dead = True
        self._check()

    async def _end(self, name: str, key: str) -> None:
        if self.operations >= self._dies_at and self._carried_out:
            self.is_dead = True
        self._check()

    def _check(self) -> None:
        if self.is_dead:
            raise Killed


class MortalEngine(FakeCompletions):
    """An engine behind a gateway: it dies of some requests, and of nothing while it runs others.

    Dying, it drops what it has in flight (502), and is away for a while.
    """

    def __init__(
        self,
        *poison: str,
        dies_at: Container[int] = (),  # while it runs its n-th request, from 1
        seconds: float = 0.01,
        away: float = 0.02,
    ) -> None:
        super().__init__(self._answer)
        self._poison = poison
        self._dies_at = dies_at
        self._takes = seconds
        self._away = away
        self._up_at = 0.0
        self._life = asyncio.Event()
        self.deaths = 0
        self.died_with: Counter[str] = Counter()  # last messages, by how often they were in flight

    def die(self) -> None:
        self.deaths += 1
        self._up_at = time.monotonic() + self._away
        life, self._life = self._life, asyncio.Event()
        life.set()

    async def _answer(self, request: Body) -> Answer | None:
        if time.monotonic() < self._up_at:
            raise Unreachable("the engine is away")
        life = self._life
        if last_message(request) in self._poison or self.asked.total() in self._dies_at:
            await asyncio.sleep(self._takes / 2)
            if life is self._life:
                self.die()
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._takes):
                    await life.wait()
        if life is self._life:
            return None
        self.died_with[last_message(request)] += 1
        return error_answer(502, "The server went away.")
