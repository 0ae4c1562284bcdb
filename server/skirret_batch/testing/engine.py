"""`python -m skirret_batch.testing.engine`: a server to be killed; what it was asked outlives it.

It answers as `FakeCompletions` does. With `--folder` it keeps files and batches there and works on
them itself, as the embedded server does.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from skirret_api import internal
from skirret_api.tenants import FolderStore
from skirret_batch.completions import Answer, Turn
from skirret_batch.embedded import Runner
from skirret_batch.folder import Folder
from skirret_batch.http import files_and_batches
from skirret_batch.plan import Body
from skirret_batch.testing import FakeCompletions, last_message
from skirret_batch.worker import WorkerSettings


class Counting(FakeCompletions):
    """Writes every line it is asked into a file that outlives it."""

    def __init__(self, asked: Path, seconds: float) -> None:
        super().__init__(self._write_down, seconds=seconds)
        self._file = os.open(asked, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    async def _write_down(self, request: Body) -> Answer | None:
        os.write(self._file, last_message(request).encode() + b"\n")
        return None


async def serve(port: int, engine: FakeCompletions, folder: str | None, changes: list[str]) -> None:
    async def chat(request: Request) -> Response:
        answer = await engine.complete(request.url.path, await request.body(), Turn(0))
        load = f"{engine.running},0,0.1"
        return Response(answer.body, answer.status, {**answer.headers, internal.LOAD: load})

    async def model(request: Request) -> Response:
        return JSONResponse({"id": request.path_params["name"]})

    async def ready(request: Request) -> Response:
        return JSONResponse({})

    routes: list[Route | Mount] = [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/models/{name}", model),
        Route("/ready", ready),
    ]
    runner: Runner | None = None
    if folder is not None:
        store = Folder(FolderStore(path=folder))
        runner = Runner(store, engine, WorkerSettings().but(changes), look_every=0.5)
        routes.append(Mount("/", files_and_batches(lambda scope: store, started=runner.started)))
    server = uvicorn.Server(
        uvicorn.Config(
            Starlette(routes=routes), "127.0.0.1", port, lifespan="off", log_level="warning"
        )
    )
    working = asyncio.create_task(runner.run()) if runner else None
    await server.serve()
    if working is not None:
        await working


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m skirret_batch.testing.engine")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--asked", type=Path, required=True, help="file with what it was asked")
    parser.add_argument("--seconds", type=float, default=0.1, help="that one answer takes")
    parser.add_argument("--folder", help="store of files and batches")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    flags = parser.parse_args()
    engine = Counting(flags.asked, flags.seconds)
    asyncio.run(serve(flags.port, engine, flags.folder, flags.set))


if __name__ == "__main__":
    main()
