"""Who asks: a namespace, and whether it is that namespace's own batch worker."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from skirret_api.errors import Overloaded, Unauthorized
from skirret_api.tenants import ApiKey, Tenant, read_keys, read_tenants
from skirret_gateway.request import Request
from skirret_gateway.table import Route
from skirret_gateway.usage import ANYBODY, BATCH

log = logging.getLogger(__name__)

FREE_GUESSES, GUESS_SECONDS, MOST_WAITING = 20, 1.0, 200


@dataclass(frozen=True, slots=True)
class Caller:
    namespace: str
    is_worker: bool = False  # of batches; asked with the namespace's internal token
    key: ApiKey | None = None

    @property
    def name(self) -> str:
        """Whom usage counts for, in the namespace."""
        if self.key is not None:
            return self.key.name
        return BATCH if self.is_worker else ANYBODY

    def may_ask(self, name: str, route: Route) -> bool:
        """Whether its key is for a model, called by this name."""
        models = self.key.models if self.key is not None else ()
        return not models or name in models or str(route.id) in models


class Guesses:
    """Wrong keys: a few are answered at once, more only slowly, and no more than that wait."""

    def __init__(
        self, clock: Callable[[], float], sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._recent = 0.0  # falls by one a second
        self._at = clock()
        self._waiting = 0

    async def slow_down(self) -> None:
        """Called with each wrong key before it is answered. Raises Overloaded."""
        now = self._clock()
        self._recent = max(0.0, self._recent - (now - self._at)) + 1
        self._at = now
        if self._recent <= FREE_GUESSES:
            return
        if self._waiting >= MOST_WAITING:
            raise Overloaded("There are too many wrong API keys at this moment.", retry_after=10)
        self._waiting += 1
        try:
            await self._sleep(GUESS_SECONDS)
        finally:
            self._waiting -= 1


class Tenants:
    """The mounted tenants and their keys, read again when a file changes."""

    def __init__(
        self,
        folder: Path | None,
        release_namespace: str,
        keys: Path | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        today: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._today = today
        self._folder = folder
        self._keys_folder = keys
        self._anybody = Caller(release_namespace)
        self._stamp: object = None
        self.by_namespace: Mapping[str, Tenant] = {}
        self._callers: Mapping[bytes, Caller] = {}
        self._guesses = Guesses(clock, sleep)

    @property
    def key_namespaces(self) -> set[str]:
        return {c.namespace for c in self._callers.values() if c.key is not None}

    def read(self) -> None:
        """Raises OSError or ValueError when a file can't be read or says nonsense."""
        folders = [each for each in (self._folder, self._keys_folder) if each is not None]
        if (stamp := [_stamp(each) for each in folders]) == self._stamp:
            return
        tenants = read_tenants(self._folder) if self._folder else {}
        keys = read_keys(self._keys_folder) if self._keys_folder else {}
        for tenant in tenants.values():
            if not tenant.token:
                raise ValueError(f"{self._folder}/{tenant.namespace}.token is empty")
        self.by_namespace = tenants
        self._callers = _callers(keys, tenants)
        self._stamp = stamp

    def refresh(self) -> None:
        """Like `read`, but what was read before stays in force when it fails."""
        try:
            self.read()
        except (OSError, ValueError) as error:
            log.error("the tenants and keys stay as they were: %s", error)

    def token(self, namespace: str) -> str | None:
        tenant = self.by_namespace.get(namespace)
        return tenant.token if tenant else None

    async def caller(self, request: Request) -> Caller:
        """Whose request this is. Raises Unauthorized where keys are asked for."""
        given = request.header(b"authorization") or b""
        key = given[7:].strip() if given[:7].lower() == b"bearer " else b""
        known = self._callers.get(_digest(key))
        if known is not None and not self._is_expired(known.key):
            return known
        if self._keys_folder is None:  # nobody needs a key: all are the release's own
            return self._anybody
        if not key:
            raise Unauthorized("You didn't provide an API key: send it as a Bearer token.")
        await self._guesses.slow_down()
        reason = "Expired" if known is not None else "Incorrect"
        raise Unauthorized(f"{reason} API key provided: {_masked(key)}.")

    def _is_expired(self, key: ApiKey | None) -> bool:
        return key is not None and key.expires is not None and key.expires <= self._today()


def _callers(keys: Mapping[bytes, ApiKey], tenants: Mapping[str, Tenant]) -> dict[bytes, Caller]:
    """By the digest of what they send. A worker's token is never taken for a key."""
    callers = {digest: Caller(key.namespace, key=key) for digest, key in keys.items()}
    for tenant in tenants.values():
        callers[_digest(tenant.token.encode())] = Caller(tenant.namespace, is_worker=True)
    return callers


def _masked(key: bytes) -> str:
    """Enough to know one's own key by."""
    shown = key.decode("ascii", "replace") if len(key) >= 20 else ""
    return f"{shown[:3]}…{shown[-4:]}" if shown.isprintable() else "…"


def _digest(token: bytes) -> bytes:
    """Looked up instead of the token, so that the time it takes tells nothing of a token."""
    return sha256(token).digest()


def _stamp(folder: Path) -> object:
    return sorted(
        (path.name, path.stat().st_mtime_ns) for path in folder.iterdir() if path.is_file()
    )
