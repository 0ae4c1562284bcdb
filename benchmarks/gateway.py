"""Measures what a gateway adds before a server that answers at once; ours and its peers in one run.

    python benchmarks/gateway.py [--rounds 3] [--streams 1000] [--peers VENV]

VENV is an environment with `sglang-router` and `litellm[proxy]` (peers/setup_gateways.sh). The
gateway has one core, the server and the load the other. Throughput is wrk's where it is installed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httptools
import uvloop
from bench import machine
from fixed_upstream import DONE, EVENT
from plot import bars

HERE = Path(__file__).parent
RESULTS = HERE / "results"
INTRODUCTION = [
    "# What the gateway adds",
    "",
    "By `make bench-gateway`: one gateway process on one core, a server that answers at once and",
    "the load on the other; without keys, with the access log. `direct` is the server",
    "without a gateway. ![Requests a second](gateway.svg)",
    "",
]
PATH = "/v1/chat/completions"
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hello " * 50}]}).encode()
GATEWAY_CORE, LOAD_CORE = 0, 1
Figures = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=10, help="tokens a second in each stream")
    parser.add_argument("--peers", type=Path, help="an environment with the peers")
    parser.add_argument("--write", action="store_true", help="into results/")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends what was started
    os.sched_setaffinity(0, {LOAD_CORE})
    upstream = free_port()
    with started([sys.executable, str(HERE / "fixed_upstream.py"), str(upstream)], upstream, None):
        gateways = [direct(upstream), ours(upstream), *peers(upstream, given.peers)]
        figures = {gateway.name: measure(gateway, given) for gateway in gateways}
    text = table(figures)
    print(text)
    if given.write:
        (RESULTS / "gateway.md").write_text(
            "\n".join([*INTRODUCTION, f"On {machine()}.", "", text, ""])
        )
        rates = {name: each["requests_s"] for name, each in figures.items() if name != "direct"}
        plot = bars("Requests a second at 32 connections, one core", {"requests/s": rates})
        (RESULTS / "gateway.svg").write_text(plot)


@dataclass(frozen=True)
class Candidate:
    name: str
    port: int
    command: Sequence[str]
    environment: dict[str, str] | None = None
    streams: int = 10**6  # more would only show that it can't


def direct(upstream: int) -> Candidate:
    return Candidate("direct", upstream, ())


def ours(upstream: int) -> Candidate:
    endpoints = _file("endpoints.json", json.dumps({"m": [f"http://127.0.0.1:{upstream}"]}))
    port = free_port()
    flags = ["--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"]
    command = [sys.executable, "-m", "skirret_gateway", "--endpoints", endpoints, *flags]
    return Candidate("skirret", port, command)


def peers(upstream: int, environment: Path | None) -> Iterator[Candidate]:
    if environment is None:
        return
    port, python = free_port(), str(environment / "bin/python")
    flags = ["--host", "127.0.0.1", "--port", str(port), "--policy", "cache_aware"]
    flags += ["--worker-urls", f"http://127.0.0.1:{upstream}", "--log-level", "error"]
    flags += ["--prometheus-port", str(free_port())]
    yield Candidate("sglang-router", port, [python, "-m", "sglang_router.launch_router", *flags])
    port = free_port()
    config = {
        "model_list": [
            {
                "model_name": "m",
                "litellm_params": {
                    "model": "openai/m",
                    "api_base": f"http://127.0.0.1:{upstream}/v1",
                    "api_key": "none",
                },
            }
        ]
    }
    flags = ["--config", _file("litellm.yaml", json.dumps(config)), "--host", "127.0.0.1"]
    flags += ["--port", str(port), "--num_workers", "1", "--telemetry", "False"]
    offline = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    }
    yield Candidate("litellm", port, [str(environment / "bin/litellm"), *flags], offline, 50)


def measure(candidate: Candidate, given: argparse.Namespace) -> Figures:
    print(f"{candidate.name}: measuring", file=sys.stderr)
    with started(candidate.command, candidate.port, candidate.environment) as (pid, start):
        figures: Figures = {"start_s": start, "rss_idle_mib": resident(pid)}
        one(candidate.port, 0.5)
        rounds = [one(candidate.port, given.seconds) for _ in range(given.rounds)]
        figures["p50_ms"], figures["p99_ms"] = map(statistics.median, zip(*rounds, strict=True))
        rates = [many(candidate.port, 32, given.seconds) for _ in range(given.rounds)]
        figures["requests_s"] = statistics.median(rates)
        count = min(given.streams, candidate.streams)
        streams = uvloop.run(stream(candidate.port, count, given.rate, given.seconds))
        figures |= {"streams": count, **streams, "rss_streams_mib": resident(pid)}
    print(f"{candidate.name}: {json.dumps(figures)}", file=sys.stderr)
    return figures


def one(port: int, seconds: float) -> tuple[float, float]:
    """Latency of one client that asks again and again: median and 99th percentile, in ms."""
    request = _request(BODY)
    taken = []
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end = time.monotonic() + seconds
        while (began := time.monotonic()) < end:
            sock.sendall(request)
            _read_answer(sock)
            taken.append((time.monotonic() - began) * 1000)
    return statistics.median(taken), statistics.quantiles(taken, n=100)[98]


def many(port: int, connections: int, seconds: float) -> float:
    """Requests a second that so many connections get answered."""
    if wrk := shutil.which("wrk"):
        script = f"wrk.method = 'POST'\nwrk.body = [[{BODY.decode()}]]\n"
        script += "wrk.headers['Content-Type'] = 'application/json'\n"
        flags = [
            "-t1",
            f"-c{connections}",
            f"-d{seconds:g}s",
            "--timeout",
            "60s",
            "-s",
            _file("post.lua", script),
        ]
        command = [wrk, *flags, f"http://127.0.0.1:{port}{PATH}"]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        if "Non-2xx" in out or "Socket errors" in out:
            sys.exit(f"requests failed:\n{out}")
        return float(out.split("Requests/sec:")[1].split()[0])
    return uvloop.run(_many(port, connections, seconds))


async def _many(port: int, connections: int, seconds: float) -> float:
    request = _request(BODY)
    end = time.monotonic() + seconds

    async def client() -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        count = 0
        while time.monotonic() < end:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            count += 1
        writer.close()
        return count

    return sum(await asyncio.gather(*[client() for _ in range(connections)])) / seconds


class StreamClient(asyncio.Protocol):
    """Reads one stream; notes how long each event took and how evenly they came."""

    def __init__(self, request: bytes, ended: asyncio.Future[None]) -> None:
        self._request = request
        self._ended = ended
        self._parser = httptools.HttpResponseParser(self)
        self._rest = b""
        self._before = (0, 0)  # when the last event was sent, and came
        self.next = 0
        self.is_ordered = self.is_exact = True
        self.delays: list[float] = []  # ms
        self.added: list[float] = []  # ms between two events, beyond what the server let pass
        self.is_whole = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        now = time.monotonic_ns()
        events = (self._rest + body).split(b"\n\n")
        self._rest = events.pop()
        for event in events:
            self._take(event, now)

    def _take(self, event: bytes, now: int) -> None:
        if event + b"\n\n" == DONE:
            self.is_whole = not self._rest
            return
        found = re.search(rb'"content": ?"(\d+):(\d+)"', event)
        if not found:
            return  # a peer's own
        sent, number = int(found[1]), int(found[2])
        self.is_exact = self.is_exact and event + b"\n\n" == EVENT % (sent, number)
        self.is_ordered = self.is_ordered and number == self.next
        self.next += 1
        self.delays.append((now - sent) / 1e6)
        if self._before[0]:
            self.added.append((now - self._before[1] - (sent - self._before[0])) / 1e6)
        self._before = (sent, now)

    def on_message_complete(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._ended.done():
            self._ended.set_exception(exc or ConnectionError("the stream was cut"))


async def stream(port: int, count: int, rate: float, seconds: float) -> Figures:
    """So many streams at once, each of them a while at `rate` tokens a second."""
    loop = asyncio.get_running_loop()
    events = round(rate * seconds * 2)
    body = BODY[:-1] + b', "stream": true}'
    body = body.replace(b"Hello ", f"pace {events}x{1000 / rate:g} ".encode(), 1)
    clients: list[StreamClient] = []
    ends = []
    for _ in range(count):
        ended = loop.create_future()
        client = StreamClient(_request(body), ended)
        await loop.create_connection(lambda client=client: client, "127.0.0.1", port)
        clients.append(client)
        ends.append(ended)
        await asyncio.sleep(0.002)
    await asyncio.gather(*ends)
    whole = [c for c in clients if c.is_whole and c.is_ordered and c.next == events]
    delays = sorted(delay for client in clients for delay in client.delays)
    added = sorted(abs(each) for client in clients for each in client.added)
    return {
        "incomplete": count - len(whole),
        "changed": sum(not client.is_exact for client in clients),
        "event_p50_ms": delays[len(delays) // 2],
        "event_p99_ms": delays[len(delays) * 99 // 100],
        "between_p99_ms": added[len(added) * 99 // 100],
    }


def _request(body: bytes) -> bytes:
    head = f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body


def _read_answer(sock: socket.socket) -> None:
    data = b""
    while b"\r\n\r\n" not in data:
        if not (piece := sock.recv(65536)):
            sys.exit("the gateway closed the connection")
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        sys.exit(f"the gateway answered {head.decode()}")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += sock.recv(65536)


@contextlib.contextmanager
def started(
    command: Sequence[str], port: int, environment: dict[str, str] | None
) -> Iterator[tuple[int, float]]:
    """Its process and the seconds until it answered; (0, 0) for what is there already."""
    if not command:
        yield 0, 0
        return
    core = LOAD_CORE if "fixed_upstream" in " ".join(command) else GATEWAY_CORE
    began = time.monotonic()
    log = tempfile.TemporaryFile()  # noqa: SIM115
    process = subprocess.Popen(
        ["taskset", "-c", str(core), *command],
        env={**os.environ, **(environment or {})},
        stdout=log,
        stderr=log,
    )
    try:
        while not answers(port):
            if process.poll() is not None or time.monotonic() > began + 120:
                log.seek(0)
                sys.exit(f"{command} didn't start:\n{log.read().decode()[-2000:]}")
            time.sleep(0.01)
        yield process.pid, time.monotonic() - began
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def answers(port: int) -> bool:
    """Whether a completion is answered."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{PATH}", BODY, {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def resident(pid: int) -> float:
    if not pid:
        return 0
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(x for x in status.splitlines() if x.startswith("VmRSS")).split()[1]) / 1024


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def table(figures: dict[str, Figures]) -> str:
    rows: dict[str, Any] = {
        "added latency p50, ms": lambda x: x["p50_ms"] - figures["direct"]["p50_ms"],
        "added latency p99, ms": lambda x: x["p99_ms"] - figures["direct"]["p99_ms"],
        "requests/s, 32 connections": lambda x: x["requests_s"],
        "streams": lambda x: x["streams"],
        "streams not whole": lambda x: x["incomplete"],
        "streams with changed bytes": lambda x: x["changed"],
        "event's way p99, ms": lambda x: x["event_p99_ms"],
        "added between events p99, ms": lambda x: x["between_p99_ms"],
        "RSS idle, MiB": lambda x: x["rss_idle_mib"],
        "RSS with streams, MiB": lambda x: x["rss_streams_mib"],
        "start to serving, s": lambda x: x["start_s"],
    }
    lines = ["| | " + " | ".join(figures) + " |", "|---|" + "---|" * len(figures)]
    for name, value in rows.items():
        lines.append(
            f"| {name} | " + " | ".join(f"{value(x):.5g}" for x in figures.values()) + " |"
        )
    return "\n".join(lines)


_FILES = tempfile.TemporaryDirectory()


def _file(name: str, text: str) -> str:
    path = Path(_FILES.name) / name
    path.write_text(text)
    return str(path)


if __name__ == "__main__":
    main()
