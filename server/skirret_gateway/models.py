"""What a dry run asks of the models of one namespace: their names, and tokens of prompts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from skirret_api import internal
from skirret_api.errors import NotFound
from skirret_batch.completions import Answer, counted_tokens
from skirret_gateway.caller import Caller
from skirret_gateway.fleet import Fleet
from skirret_gateway.headers import lines
from skirret_gateway.health import Outcome
from skirret_gateway.prompt import Prompt
from skirret_gateway.relay import Relay
from skirret_gateway.table import Replica
from skirret_gateway.upstream import ConnectFailed, Ended, Pool


@dataclass(frozen=True, slots=True)
class Models:
    fleet: Fleet
    pool: Pool
    token: Callable[[str], str | None]
    namespace: str

    def model_id(self, name: str) -> str | None:
        try:
            return str(self.fleet.find(Caller(self.namespace), name).id)
        except NotFound:
            return None

    async def tokens(self, asked: dict[str, Any]) -> int | None:
        """As a server counts them that is there now: none is woken, and nobody waits for one."""
        name, body = asked.get("model"), json.dumps(asked).encode()
        if not isinstance(name, str) or self.model_id(name) is None:
            return 0  # such a line is refused
        model = self.fleet.find(Caller(self.namespace), name).id
        lease = self.fleet.try_lease(self.fleet.wish(model, Prompt(), len(body)))
        if lease is None:
            return None
        outcome = Outcome.UNKNOWN
        try:
            answer = await self._ask(lease.replica, name, body)
            outcome = Outcome.ANSWERED
        except (ConnectFailed, Ended):
            return None
        finally:
            lease.done(outcome)
        return counted_tokens(answer)

    async def _ask(self, replica: Replica, name: str, body: bytes) -> Answer:
        """Raises ConnectFailed or Ended."""
        upstream = await self.pool.connect(replica)
        relay = Relay(upstream)
        try:
            upstream.send(relay, self._head(replica, name, len(body)), body)
            head = await relay.answered()
            return Answer(head.status, await relay.collect())
        finally:
            relay.cancel()

    def _head(self, replica: Replica, name: str, length: int) -> bytes:
        headers = [
            (b"host", str(replica).encode()),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % length),
        ]
        token = self.token(self.fleet.find(Caller(self.namespace), name).id.namespace)
        if token is not None:
            headers.append((internal.TOKEN.encode(), token.encode()))
            headers.append((internal.LANE.encode(), internal.BATCH.encode()))
            headers.append((internal.SERVED_NAME.encode(), name.encode()))
        return b"POST %b/tokenize HTTP/1.1\r\n%b\r\n" % (
            replica.path.encode(),
            lines(headers),
        )
