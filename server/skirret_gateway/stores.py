"""Files and batches of each namespace, in its own store."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from skirret_api.errors import NotFound
from skirret_api.tenants import FolderStore, S3Store, Tenant
from skirret_batch.dry_run import Models
from skirret_batch.http import files_and_batches
from skirret_batch.receive import Limits
from skirret_batch.store import BatchStore, open_store
from skirret_gateway import asgi
from skirret_gateway.caller import Caller

NAMESPACE = "skirret.namespace"  # in the scope: whose request it is


class Stores:
    """Opens a namespace's store when it is first asked for, and anew when its settings change."""

    def __init__(
        self,
        tenants: Callable[[], Mapping[str, Tenant]],
        models: Callable[[str], Models],
        limits: Limits,
    ) -> None:
        """`models` gives those that a namespace sees."""
        self._tenants = tenants
        self._open: dict[str, tuple[S3Store | FolderStore, BatchStore]] = {}
        self._replaced: list[BatchStore] = []  # requests may still use them
        self._app: asgi.Application = files_and_batches(
            lambda scope: self.of(str(scope[NAMESPACE])),
            limits=limits,
            models=lambda scope: models(str(scope[NAMESPACE])),
        )

    def app(self, caller: Caller) -> asgi.Application:
        """`/v1/files` and `/v1/batches` as this caller sees them."""

        async def of_namespace(scope: asgi.Message, receive: asgi.Receive, send: asgi.Send) -> None:
            await self._app({**scope, NAMESPACE: caller.namespace}, receive, send)

        return of_namespace

    async def close(self) -> None:
        for store in [*self._replaced, *(store for _, store in self._open.values())]:
            await store.close()

    def of(self, namespace: str) -> BatchStore:
        """Raises NotFound."""
        tenant = self._tenants().get(namespace)
        if tenant is None:
            raise NotFound(
                "There is no store for files and batches here: the namespace "
                f"`{namespace}` is none of the chart's `namespaces`."
            )
        known = self._open.get(namespace)
        if known is not None and known[0] == tenant.store:
            return known[1]
        if known is not None:
            self._replaced.append(known[1])
        store = open_store(tenant.store)
        self._open[namespace] = (tenant.store, store)
        return store
