"""What the host side can carry: a model that answers every step after 5 ms, read as raw bytes.

    python benchmarks/front.py [--running 100] [--seconds 10] [--flags ...]

The reader has a process of its own, parses no JSON and shares the machine with the server.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import socket
import sys
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from bench import MODEL, cpu_seconds, serving

TOKENS = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--running", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--url", help="a server that runs already")
    parser.add_argument("--flags", default="", help="more flags for the server")
    given = parser.parse_args()
    if given.url:
        print(json.dumps(measure(given.url, given.running, given.seconds)))
        return
    flags = ["--attention-backend", "null", "--max-running-requests", "256", *given.flags.split()]
    with serving("skirret_server.testing", [str(MODEL), *flags]) as (url, process):
        measure(url, given.running, 2.0)
        for _ in range(given.rounds):
            before = cpu_seconds(process.pid)
            figures = measure(url, given.running, given.seconds)
            used = cpu_seconds(process.pid) - before
            tokens = figures["tokens_per_second"] * given.seconds
            figures["server_cpu_us_per_token"] = round(used / tokens * 1e6, 1)
            print(json.dumps({**figures, "load": round(os.getloadavg()[0], 1)}), flush=True)


@dataclass(slots=True)
class Connection:
    socket: socket.socket
    is_busy: bool = False
    tail: bytes = field(default=b"", repr=False)


def measure(url: str, running: int, seconds: float) -> dict[str, float]:
    """Closed loop: every connection asks again when its stream has ended."""
    parts = urlsplit(url)
    selector = selectors.DefaultSelector()
    request = _request(parts.netloc)
    for _ in range(running):
        connected = socket.create_connection((parts.hostname or "", parts.port or 80))
        selector.register(connected, selectors.EVENT_READ, Connection(connected))
        connected.sendall(request)
    buffer = bytearray(1 << 18)
    began = time.monotonic()
    events = reads = done = 0
    settled = began + min(1.0, seconds / 4)  # not counted: prompts come all at once
    counted_from = (0, 0)
    is_settled = False
    while (now := time.monotonic()) < began + seconds:
        if not is_settled and now > settled:
            is_settled, settled, counted_from = True, now, (events, done)
        for key, _ in selector.select(0.1):
            connection: Connection = key.data
            size = connection.socket.recv_into(buffer)
            if not size:
                sys.exit("the server has closed a connection")
            data = connection.tail + buffer[:size]
            reads += 1
            events += data.count(b'data: {"id"') - connection.tail.count(b'data: {"id"')
            connection.tail = data[-16:]
            if b"[DONE]" in connection.tail:
                done += 1
                connection.tail = b""
                connection.socket.sendall(request)
    wall = time.monotonic() - settled
    for key in list(selector.get_map().values()):
        key.data.socket.close()
    events -= counted_from[0]
    done -= counted_from[1]
    return {
        "running": running,
        "tokens_per_second": round((events - 2 * done) / wall),  # role and end are events too
        "finished_tokens_per_second": round(done * TOKENS / wall),
        "answers_per_second": round(done / wall, 1),
    }


def _request(host: str) -> bytes:
    body = json.dumps(
        {
            "model": "default",
            "messages": [{"role": "user", "content": "Tell me of the roots of the skirret."}],
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "stream": True,
        }
    ).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


if __name__ == "__main__":
    main()
