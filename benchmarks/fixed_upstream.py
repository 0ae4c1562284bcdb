"""A server that answers at once and always the same: what a gateway adds is what is left over.

    python benchmarks/fixed_upstream.py PORT

A request whose body asks for a stream gets events; `pace 100x50` in its prompt means 100 of them,
one each 50 ms. Each carries when it was sent and its number, so that its reader can tell how long
it took and whether one is missing. (Not in a header or
a field of its own: some gateways pass on few of them.)
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from random import random

import httptools
import uvloop

ANSWER = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Paris"},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6},
    }
).encode()
# Enough for peers that ask about a worker before they trust it.
ABOUT = json.dumps(
    {
        "model_path": "m",
        "served_model_name": "m",
        "is_generation": True,
        "status": "ok",
        "object": "list",
        "data": [{"id": "m", "object": "model"}],
    }
).encode()
EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":"%d:%d"},"finish_reason":null}]}\n\n'
)
DONE = b"data: [DONE]\n\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


def plain(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


ANSWERED, TOLD = plain(ANSWER), plain(ABOUT)


class Server(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._body = b""

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if not re.search(rb'"stream": ?true', self._body):
            self._transport.write(ANSWERED if self._parser.get_method() == b"POST" else TOLD)
            return
        pace = re.search(rb"pace (\d+)x([\d.]+)", self._body)
        events, pause = (int(pace[1]), float(pace[2]) / 1000) if pace else (20, 0.0)
        self._transport.write(STREAM_HEAD)
        self._loop = asyncio.get_running_loop()
        first = self._loop.time() + random() * pause  # streams of real servers aren't in step
        self._loop.call_at(first, self._tick, 0, first, events, pause)

    def _tick(self, number: int, due: float, events: int, pause: float) -> None:
        if self._transport.is_closing():
            return
        if number == events:
            self._transport.write(chunk(DONE) + b"0\r\n\r\n")
            return
        self._transport.write(chunk(EVENT % (time.monotonic_ns(), number)))
        self._loop.call_at(due + pause, self._tick, number + 1, due + pause, events, pause)


async def serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Server, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
