"""Real processes that are killed at random, and started again as Kubernetes would."""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path


class Crew:
    """Each member is a `python -m` command, kept alive until it ends with status 0."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._members: dict[str, asyncio.Task[None]] = {}
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self.killed: Counter[str] = Counter()

    @classmethod
    @asynccontextmanager
    async def of(cls, logs: Path) -> AsyncIterator[Crew]:
        crew = cls(logs)
        try:
            yield crew
        finally:
            for task in crew._members.values():
                task.cancel()
            await asyncio.gather(*crew._members.values(), return_exceptions=True)

    def hire(self, name: str, *command: str) -> None:
        self._members[name] = asyncio.create_task(self._keep_alive(name, command))

    async def done(self, *names: str) -> None:
        """When these have ended by themselves."""
        await asyncio.gather(*(self._members[name] for name in names))

    async def kill_at_random(
        self, chance: random.Random, kills: int, moment: Callable[[int], Awaitable[None]]
    ) -> None:
        """So many SIGKILLs; `moment` waits for that of each, counted from 0."""
        for kill in range(kills):
            await moment(kill)
            while not self._running:
                await asyncio.sleep(0.01)
            self.signal(chance.choice(sorted(self._running)), signal.SIGKILL)

    def signal(self, name: str, number: signal.Signals) -> None:
        if number == signal.SIGKILL:
            self.killed[name] += 1
            self._running.pop(name).kill()
        else:
            self._running[name].send_signal(number)

    async def _keep_alive(self, name: str, command: Sequence[str]) -> None:
        with (self._logs / f"{name}.log").open("ab", buffering=0) as log:
            while True:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", *command, stdout=log, stderr=log
                )
                self._running[name] = process
                try:
                    status = await process.wait()
                finally:
                    self._running.pop(name, None)
                    if process.returncode is None:
                        process.kill()
                        await process.wait()
                if status == 0:
                    return
                log.write(f"ended with status {status}\n".encode())
                await asyncio.sleep(0.1)


def free_ports(count: int) -> list[int]:
    """Below those that outgoing connections take: they stay free while their owner is dead."""
    found: set[int] = set()
    while len(found) < count:
        port = random.randrange(10_000, 32_768)
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            found.add(port)
    return list(found)
