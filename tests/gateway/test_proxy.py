"""Behind a real nginx, set up as the chart's Ingress asks: slow streams and large files pass."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from skirret_gateway.gateway import Settings
from skirret_gateway.testing import scripted
from skirret_gateway.testing.client import Client, request
from skirret_gateway.testing.running import CHAT, Running, Start, chat, mount_tenants
from skirret_gateway.testing.scripted import DONE, ScriptedServer, event

ROOT = Path(__file__).parents[2]
PREFIX = "nginx.ingress.kubernetes.io/"
# What each annotation means in nginx's own words; times are in seconds there.
DIRECTIVES = {
    "proxy-buffering": "proxy_buffering {};",
    "proxy-request-buffering": "proxy_request_buffering {};",
    "proxy-read-timeout": "proxy_read_timeout {}s;",
    "proxy-send-timeout": "proxy_send_timeout {}s;",
    "proxy-body-size": "client_max_body_size {};",
}
FULL = bool(os.environ.get("SKIRRET_FULL"))


def location(annotations: Mapping[str, str], changes: Mapping[str, str] | None = None) -> str:
    """The directives for an Ingress with these annotations. Raises KeyError for one unknown."""
    asked = {name.removeprefix(PREFIX): value for name, value in annotations.items()}
    return "\n".join(
        DIRECTIVES[name].format(value) for name, value in {**asked, **(changes or {})}.items()
    )


@pytest.fixture
def asked() -> Mapping[str, str]:
    """The annotations of the Ingress as it is rendered; tests/chart keeps this file fresh."""
    objects = yaml.safe_load_all((ROOT / "tests/chart/golden/ingress.yaml").read_text())
    (ingress,) = [each for each in objects if each and each["kind"] == "Ingress"]
    found: dict[str, str] = ingress["metadata"]["annotations"]
    return found


@asynccontextmanager
async def nginx(folder: Path, directives: str, upstream: int) -> AsyncIterator[int]:
    """Its port. The location is proxied as ingress-nginx does: HTTP/1.1, connections kept."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    assert program, "nginx is missing: run `make setup`, or install Debian's nginx-light"
    port = await _free_port()
    (folder / "nginx.conf").write_text(f"""
        daemon off; pid {folder}/pid; error_log stderr warn; worker_processes 1;
        events {{ worker_connections 512; }}
        http {{
            access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
            fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
            upstream gateway {{ server 127.0.0.1:{upstream}; keepalive 8; }}
            server {{
                listen 127.0.0.1:{port};
                location / {{
                    proxy_pass http://gateway;
                    proxy_http_version 1.1;
                    proxy_set_header Connection "";
                    proxy_set_header Host $host;
                    {directives}
                }}
            }}
        }}
    """)
    process = await asyncio.create_subprocess_exec(program, "-c", folder / "nginx.conf")
    try:
        async with asyncio.timeout(10):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    assert process.returncode is None, "nginx ended"
                    await asyncio.sleep(0.02)
                else:
                    writer.close()
                    break
        yield port
    finally:
        process.terminate()
        await process.wait()


async def _free_port() -> int:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    server.close()
    return port


@pytest.fixture
async def gateway(start: Start, server: ScriptedServer, tmp_path: Path) -> Running:
    return await start(
        {"m": [server.url]}, replace(Settings(), tenants=mount_tenants(tmp_path, ""))
    )


def test_every_annotation_of_the_ingress_is_understood(asked: Mapping[str, str]) -> None:
    assert len(location(asked).splitlines()) == len(asked) == len(DIRECTIVES)


async def test_events_pass_a_proxy_one_by_one(
    gateway: Running, server: ScriptedServer, asked: Mapping[str, str], tmp_path: Path
) -> None:
    gate = asyncio.Event()

    async def two(seen: scripted.Seen, to: scripted.Connection) -> None:
        await to.send(scripted.head(200, scripted.EVENTS, scripted.CHUNKED))
        await to.chunk(event("a"))
        await gate.wait()
        await to.chunk(event("b") + DONE)
        await to.send(b"0\r\n\r\n")

    server.default = two
    async with (
        nginx(tmp_path, location(asked), gateway.port) as port,
        Client(port) as client,
        asyncio.timeout(10),
    ):
        await client.send(request("POST", CHAT, chat(stream=True)))
        await client.head()
        assert await client.chunk() == event("a")
        gate.set()
        assert await client.chunk() == event("b") + DONE


async def test_a_stream_outlasts_the_time_out_that_a_proxy_has_by_itself(
    gateway: Running, server: ScriptedServer, asked: Mapping[str, str], tmp_path: Path
) -> None:
    """In full: 60 s, nginx's own, and 90 s of silence. Else scaled down to a second and a half."""
    own, silence = ("60", 90.0) if FULL else ("1", 1.5)
    server.default = scripted.stream(event("a"), event("b") + DONE, pause=silence)
    for directives, ends_well in (
        (location({}, {"proxy-read-timeout": own, "proxy-buffering": "off"}), False),
        (location(asked), True),
    ):
        async with (
            nginx(tmp_path, directives, gateway.port) as port,
            Client(port) as client,
            asyncio.timeout(10 + 3 * silence),
        ):
            await client.send(request("POST", CHAT, chat(stream=True)))
            await client.head()
            got = b""
            with suppress(asyncio.IncompleteReadError):
                while chunk := await client.chunk():
                    got += chunk
            assert (DONE in got) is ends_well


async def test_a_large_file_passes_a_proxy(
    gateway: Running, asked: Mapping[str, str], tmp_path: Path
) -> None:
    line = b'{"custom_id":"%07d","method":"POST","url":"/v1/chat/completions","body":{}}\n'
    count = (100 << 20) // (len(line) + 4) if FULL else (4 << 20) // (len(line) + 4)
    lines = b"".join([line % number for number in range(count)])
    form = (
        b"--x\r\ncontent-disposition: form-data; name=purpose\r\n\r\nbatch\r\n"
        b"--x\r\ncontent-disposition: form-data; name=file; filename=in.jsonl\r\n\r\n"
        + lines
        + b"\r\n--x--\r\n"
    )
    async with (
        nginx(tmp_path, location(asked), gateway.port) as port,
        Client(port) as client,
        asyncio.timeout(60),
    ):
        kind = "multipart/form-data; boundary=x"
        answer = await client.ask("POST", "/v1/files", form, content_type=kind)
    assert (answer.status, answer.json()["bytes"]) == (200, len(lines))
