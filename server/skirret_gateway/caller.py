"""Who asks: a namespace, and whether it is that namespace's own batch worker."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from skirret_api.errors import Unauthorized
from skirret_api.tenants import ApiKey, Tenant, read_keys, read_tenants
from skirret_gateway.request import Request

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Caller:
    namespace: str
    is_worker: bool = False  # of batches; asked with the namespace's internal token


class Tenants:
    """The mounted tenants and their keys, read again when a file changes."""

    def __init__(
        self, folder: Path | None, release_namespace: str, keys: Path | None = None
    ) -> None:
        self._folder = folder
        self._keys_folder = keys
        self._anybody = Caller(release_namespace)
        self._stamp: object = None
        self.by_namespace: Mapping[str, Tenant] = {}
        self._callers: Mapping[bytes, Caller] = {}

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

    def caller(self, request: Request) -> Caller:
        """Whose request this is. Raises Unauthorized where keys are asked for."""
        given = request.header(b"authorization") or b""
        key = given[7:].strip() if given[:7].lower() == b"bearer " else b""
        known = self._callers.get(_digest(key))
        if known is not None:
            return known
        if self._keys_folder is None:  # nobody needs a key: all are the release's own
            return self._anybody
        if not key:
            raise Unauthorized("You didn't provide an API key: send it as a Bearer token.")
        raise Unauthorized(f"Incorrect API key provided: {_masked(key)}.")


def _callers(keys: Mapping[bytes, ApiKey], tenants: Mapping[str, Tenant]) -> dict[bytes, Caller]:
    """By the digest of what they send. A worker's token is never taken for a key."""
    callers = {digest: Caller(key.namespace) for digest, key in keys.items()}
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
