"""Follows what servers say of their caches, of every model that is routed by it."""

from __future__ import annotations

import asyncio
import logging
from binascii import unhexlify
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from skirret_api import internal
from skirret_gateway.prefixes import Knowledge
from skirret_gateway.prompt import Block
from skirret_gateway.table import Replica, Table

if TYPE_CHECKING:
    import aiohttp

log = logging.getLogger(__name__)

WAIT_SECONDS = 30
_GRACE_SECONDS = 10
_PAUSES = (0.5, 1, 2, 5, 10, 30)  # seconds between tries


class Failed(Exception):
    """A server didn't tell; the message says why."""


class News(NamedTuple):
    epoch: str
    sequence: int
    full: bool
    stored: Sequence[Block]
    removed: Sequence[Block]


class Follower:
    def __init__(
        self,
        knowledge: Knowledge,
        token: Callable[[str], str | None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._knowledge = knowledge
        self._token = token
        self._sleep = sleep
        self._tasks: dict[Replica, asyncio.Task[None]] = {}
        self._session: aiohttp.ClientSession | None = None

    def update(self, table: Table) -> None:
        """From now on these servers are followed, and no others."""
        wanted = {
            replica: route.id.namespace
            for route in table.routes.values()
            if route.model.strategy == "CacheAware"
            for replica in route.replicas
        }
        for replica in self._tasks.keys() - wanted.keys():
            self._tasks.pop(replica).cancel()
            self._knowledge.tells(replica, False)
        for replica in wanted.keys() - self._tasks.keys():
            follow = self._follow(replica, wanted[replica])
            self._tasks[replica] = asyncio.get_running_loop().create_task(follow)

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def _follow(self, replica: Replica, namespace: str) -> None:
        epoch, after, failures = "", -1, 0
        while True:
            try:
                news = await self._ask(replica, namespace, epoch, after)
            except Failed as error:
                if not failures:
                    log.warning("%s doesn't tell what it has cached: %s", replica, error)
                self._knowledge.tells(replica, False)
                epoch, after = "", -1
                await self._sleep(_PAUSES[min(failures, len(_PAUSES) - 1)])
                failures += 1
                continue
            failures = 0
            self._knowledge.tells(replica, True)
            told = self._knowledge.told
            if news.full:
                told.forget(replica)
            told.remove(replica, news.removed)
            told.add(replica, news.stored)
            epoch, after = news.epoch, news.sequence

    async def _ask(self, replica: Replica, namespace: str, epoch: str, after: int) -> News:
        """Raises Failed."""
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        scheme = "https" if replica.tls else "http"
        token = self._token(namespace)
        try:
            async with self._session.get(
                f"{scheme}://{replica}{replica.path}{internal.CACHE_EVENTS}",
                params={"epoch": epoch, "after": str(after), "wait": str(WAIT_SECONDS)},
                headers={internal.TOKEN: token} if token else {},
                timeout=aiohttp.ClientTimeout(total=WAIT_SECONDS + _GRACE_SECONDS, sock_connect=5),
            ) as response:
                if response.status != 200:
                    raise Failed(f"it answers {response.status}")
                return read(await response.json(content_type=None))
        except TimeoutError as error:
            raise Failed("nothing came in time") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Failed(str(error)) from error


def read(data: Any) -> News:
    """Raises ValueError for what is none of internal.CACHE_EVENTS's answers."""
    try:
        return News(
            epoch=str(data["epoch"]),
            sequence=int(data["sequence"]),
            full=bool(data["full"]),
            stored=[unhexlify(block) for block in data["stored"]],
            removed=[unhexlify(block) for block in data["removed"]],
        )
    except (LookupError, TypeError) as error:
        raise ValueError(f"no news of a cache: {error!r}") from error
