"""Who asks: a namespace, and whether it is that namespace's own batch worker."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from skirret_api.tenants import Tenant, read_tenants
from skirret_gateway.request import Request

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Caller:
    namespace: str
    is_worker: bool = False  # of batches; asked with the namespace's internal token


class Tenants:
    """The mounted tenants, read again when a file changes."""

    def __init__(self, folder: Path | None, release_namespace: str) -> None:
        self._folder = folder
        self._anybody = Caller(release_namespace)
        self._stamp: object = None
        self.by_namespace: Mapping[str, Tenant] = {}
        self._workers: Mapping[bytes, Caller] = {}

    def read(self) -> None:
        """Raises OSError or ValueError when a file can't be read or says nonsense."""
        if self._folder is None or (stamp := _stamp(self._folder)) == self._stamp:
            return
        tenants = read_tenants(self._folder)
        for tenant in tenants.values():
            if not tenant.token:
                raise ValueError(f"{self._folder}/{tenant.namespace}.token is empty")
        self.by_namespace = tenants
        self._workers = {
            _digest(tenant.token.encode()): Caller(tenant.namespace, is_worker=True)
            for tenant in tenants.values()
        }
        self._stamp = stamp

    def refresh(self) -> None:
        """Like `read`, but what was read before stays in force when it fails."""
        try:
            self.read()
        except (OSError, ValueError) as error:
            log.error("the tenants in %s stay as they were: %s", self._folder, error)

    def token(self, namespace: str) -> str | None:
        tenant = self.by_namespace.get(namespace)
        return tenant.token if tenant else None

    def caller(self, request: Request) -> Caller:
        """Whose request this is. Only workers have keys yet; all others are the release's own."""
        given = request.header(b"authorization")
        if given is None or not self._workers or given[:7].lower() != b"bearer ":
            return self._anybody
        return self._workers.get(_digest(given[7:].strip()), self._anybody)


def _digest(token: bytes) -> bytes:
    """Looked up instead of the token, so that the time it takes tells nothing of a token."""
    return sha256(token).digest()


def _stamp(folder: Path) -> object:
    return sorted(
        (path.name, path.stat().st_mtime_ns) for path in folder.iterdir() if path.is_file()
    )
