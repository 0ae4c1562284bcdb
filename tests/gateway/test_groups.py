"""Lines of a batch that begin alike meet on one server, and servers share a batch's work."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from skirret_api.tenants import FolderStore
from skirret_batch.completions import Answer, HttpCompletions, Turn
from skirret_batch.folder import Folder
from skirret_batch.testing import FakeCompletions, chat_line, submit
from skirret_batch.worker import Worker, WorkerSettings
from skirret_gateway.fleet import Fleet
from skirret_gateway.gateway import Settings
from skirret_gateway.health import Outcome
from skirret_gateway.hold import HoldLimits
from skirret_gateway.prompt import Prompt
from skirret_gateway.table import Model, ModelId, Replica, Slice, build
from skirret_gateway.testing.running import CHAT, Start, chat, mount_tenants
from skirret_gateway.testing.scripted import ScriptedServer

M = ModelId("here", "m")


class Routed(FakeCompletions):
    """Sends each line where the gateway would, to servers that take a moment for each."""

    def __init__(self, replicas: int) -> None:
        super().__init__(seconds=0.005)
        loop = asyncio.get_running_loop()
        self._fleet = Fleet(
            limits=HoldLimits(), hold_timeout=9, clock=loop.time, later=loop.call_later
        )
        servers = tuple(Replica(f"10.0.0.{number}", 1) for number in range(replicas))
        self._fleet.update(build([Model(M, 1, ("m",))], [Slice(M, servers)]))
        self.lines: Counter[Replica] = Counter()
        self.homes: defaultdict[str, Counter[Replica]] = defaultdict(Counter)

    async def complete(self, endpoint: str, body: bytes, turn: Turn) -> Answer:
        lease = self._fleet.try_lease(
            self._fleet.wish(M, Prompt(head=turn.group.encode()), len(body))
        )
        assert lease is not None
        self.lines[lease.replica] += 1
        self.homes[json.loads(body)["messages"][0]["content"]][lease.replica] += 1
        try:
            return await super().complete(endpoint, body, turn)
        finally:
            lease.done(Outcome.ANSWERED)

    @property
    def at_home(self) -> float:
        """The share of lines that were run where most of their group were."""
        return sum(max(home.values()) for home in self.homes.values()) / self.lines.total()

    @property
    def balance(self) -> float:
        """What the least loaded server did, of what the most loaded did."""
        return min(self.lines.values()) / max(self.lines.values())


async def run(folder: Path, groups: int, each: int, replicas: int) -> Routed:
    """A batch of so many system prompts with so many lines each, shuffled."""
    lines = [(n % groups, n) for n in range(groups * each)]
    random.Random(1).shuffle(lines)
    store = Folder(FolderStore(path=str(folder / "store")), durable=False)
    system = [{"role": "system", "content": f"You are number {n}. " * 30} for n in range(groups)]
    requests = [
        chat_line(f"{n}", messages=[system[group], {"role": "user", "content": f"{n}"}])
        for group, n in lines
    ]
    batch_id = await submit(store, *requests)
    servers = Routed(replicas)
    settings = WorkerSettings(poll=0.05)
    record = await Worker(store, batch_id, servers, settings, slot="0").live()
    assert record.batch.request_counts.completed == groups * each
    return servers


@pytest.mark.parametrize(("replicas", "at_home"), [(2, 0.9), (4, 0.8)])
async def test_each_groups_lines_meet_and_servers_share_the_work(
    tmp_path: Path, replicas: int, at_home: float
) -> None:
    servers = await run(tmp_path, groups=20, each=50, replicas=replicas)
    print(f"{replicas} servers: {servers.at_home:.0%} at home, balance {servers.balance:.2f}")
    assert servers.at_home >= at_home
    assert servers.balance >= 0.4


async def test_a_group_too_large_for_one_server_is_spread(tmp_path: Path) -> None:
    servers = await run(tmp_path, groups=2, each=200, replicas=4)
    assert max(servers.lines.values()) <= 0.4 * 400


async def test_lines_that_all_begin_alike_are_spread_evenly(tmp_path: Path) -> None:
    servers = await run(tmp_path, groups=1, each=400, replicas=2)
    assert servers.balance >= 0.8


async def test_a_workers_group_goes_before_the_prompt_and_a_clients_does_not(
    tmp_path: Path, start: Start, server: ScriptedServer
) -> None:
    settings = replace(
        Settings(),
        tenants=mount_tenants(tmp_path, "team"),
        release_namespace="team",
        strategy="PrefixHash",
    )
    async with ScriptedServer() as other:
        gateway = await start({"m": [server.url, other.url]}, settings)
        worker = HttpCompletions(f"http://127.0.0.1:{gateway.port}", "token-of-team", timeout=5)
        for number in range(12):
            body = json.dumps(chat(messages=[{"role": "user", "content": f"{number} " * 300}]))
            await worker.complete(CHAT, body.encode(), Turn(1_800_000_000, group="cafe"))
        await worker.close()
        assert sorted((len(server.seen), len(other.seen))) == [0, 12]
        for number in range(12):
            asked = chat(messages=[{"role": "user", "content": f"{number} " * 300}])
            await gateway.ask("POST", CHAT, asked, x_skirret_group="cafe")
        assert min(len(server.seen), len(other.seen)) > 0
