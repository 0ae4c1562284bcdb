"""Files and batches on a local folder, answered and worked on by the server itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from skirret_api import internal
from skirret_api.errors import ApiError, NotFound
from skirret_api.tenants import FolderStore
from skirret_server.api.app import AsgiApp, Mount
from skirret_server.api.exchange import Receive, Scope, Send
from skirret_server.api.served import Served

if TYPE_CHECKING:
    from skirret_batch.completions import AsgiCompletions

PATHS = ("/v1/files", "/v1/batches")


class FilesAndBatches:
    """Mounted from the start, there once the model is."""

    def __init__(
        self, folder: str, app: AsgiApp, token: str, loading: Callable[[], ApiError]
    ) -> None:
        """`app` answers the lines of batches, and knows them by `token`."""
        self.mounts = [Mount(path, self._answer) for path in PATHS]
        self._folder = folder
        self._completions_of = app
        self._token = token
        self._loading = loading
        self._app: Any = None
        self._runner: Any = None
        self._opening: asyncio.Task[None] | None = None
        self._running: asyncio.Task[None] | None = None

    def open(self, served: Served) -> None:
        """From now on requests wait until the folder is open, and are not refused."""
        self._opening = asyncio.create_task(asyncio.to_thread(self._open, served))

    async def start(self) -> asyncio.Task[None]:
        """Resumes every batch of the folder that has not ended. It has been opened.

        The task that works on them ends early only when it can't go on, as in a full folder.
        """
        await self._opened()
        self._running = asyncio.create_task(self._runner.run())
        return self._running

    async def stop(self) -> None:
        """Leaves every batch so that the next server goes on with it."""
        if self._running is None:
            return
        self._runner.stop()
        await asyncio.wait({self._running})

    async def _opened(self) -> None:
        if self._opening is None:
            raise self._loading()
        await asyncio.shield(self._opening)

    def _open(self, served: Served) -> None:
        # Not at the top: fastapi and the stores take as long to import as all the rest.
        from skirret_batch.completions import AsgiCompletions
        from skirret_batch.embedded import Runner
        from skirret_batch.http import files_and_batches
        from skirret_batch.store import open_store
        from skirret_batch.worker import WorkerSettings

        settings = WorkerSettings()
        store = open_store(FolderStore(path=self._folder))
        headers = {internal.TOKEN: self._token, internal.LANE: internal.BATCH}
        completions = AsgiCompletions(self._completions_of, headers, settings.answer_timeout)
        self._runner = Runner(store, completions, settings)
        models = _OneModel(served, completions)
        self._app = files_and_batches(
            lambda scope: store, started=self._runner.started, models=lambda scope: models
        )

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._opened()
        await self._app(scope, receive, send)


@dataclass(frozen=True, slots=True)
class _OneModel:
    """What a dry run asks of its models."""

    served: Served
    completions: AsgiCompletions

    def model_id(self, name: str) -> str | None:
        return self.served.path if self.served.answers_to(name) else None

    async def tokens(self, asked: dict[str, Any]) -> int | None:
        return await self.completions.tokens(asked)


async def gateway_has_them(scope: Scope, receive: Receive, send: Send) -> None:
    """The answer of a server that was started with `--files off`."""
    raise NotFound(
        "This model server keeps no files and batches; Skirret's gateway answers "
        f"{' and '.join(PATHS)}. Send this request to the gateway's address."
    )


ELSEWHERE = [Mount(path, gateway_has_them) for path in PATHS]
