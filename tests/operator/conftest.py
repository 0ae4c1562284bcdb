"""An operator at work on an API server in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from skirret_batch.store import BatchStore, open_store
from skirret_operator.process import run
from skirret_operator.testing.api_server import ApiServer, kubeconfig, serve
from skirret_operator.testing.objects import NAMESPACE, config, tenant

Operating = Callable[..., AbstractAsyncContextManager["asyncio.Task[None]"]]


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServer]:
    found = ApiServer()
    async with serve(found) as url:
        (tmp_path / "kubeconfig").write_text(kubeconfig(url))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        yield found


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[BatchStore]:
    """The store of the operator's one tenant."""
    found = open_store(tenant(str(tmp_path / "store")).store)
    yield found
    await found.close()


@pytest.fixture
def operating(tmp_path: Path) -> Operating:
    """An operator that works while the context lasts; gives its task."""

    @asynccontextmanager
    async def start(*, has_store: bool = True, **timings: Any) -> AsyncIterator[asyncio.Task[None]]:
        quick = {"resyncSeconds": 0.2, "recordsSeconds": 0.1, "statusSeconds": 0.1, **timings}
        tenants = {NAMESPACE: tenant(str(tmp_path / "store"))} if has_store else {}
        task = asyncio.create_task(run(config(timings=quick), tenants, port=0))
        try:
            yield task
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, ExceptionGroup):
                await task

    return start


async def eventually(what: Callable[[], Any], seconds: float = 10.0) -> Any:
    """The first true answer of `what`."""
    async with asyncio.timeout(seconds):
        while not (found := what()):
            await asyncio.sleep(0.01)
    return found


@pytest.fixture(name="eventually")
def eventually_fixture() -> Callable[..., Any]:
    return eventually
