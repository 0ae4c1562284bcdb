"""The operator's process: every part, put together, until it is told to end or must."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack

import aiohttp
import kopf
from prometheus_client import CollectorRegistry

from skirret_api import internal
from skirret_api.config import OperatorConfig
from skirret_api.tenants import Tenant
from skirret_batch.store import Retries, open_store
from skirret_operator.controller import Controller
from skirret_operator.door import door
from skirret_operator.informer import Informer, registry, settings
from skirret_operator.kinds import BATCH, MODEL
from skirret_operator.kube import Kube, KubeError, connect
from skirret_operator.lease import Lease
from skirret_operator.metrics import Metrics
from skirret_operator.observer import Key, Observer
from skirret_operator.records import Records
from skirret_operator.servers import Servers
from skirret_operator.workqueue import WorkQueue

# Short: whoever meets a store that is down comes again later.
_RETRIES = Retries(seconds=2.0, longest_pause=0.5)
_log = logging.getLogger(__name__)


async def run(
    config: OperatorConfig, tenants: Mapping[str, Tenant], port: int = internal.OPERATOR_PORT
) -> None:
    """Until SIGTERM. Raises an ExceptionGroup with LeaseLost, DeadWatch or what ended kopf."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(await connect())
        session = await stack.enter_async_context(aiohttp.ClientSession())
        metrics = Metrics(CollectorRegistry())
        lease = Lease(
            Kube(client, time.time),
            config.release_namespace,
            _identity(),
            config.timings.lease_seconds,
            time.monotonic,
        )
        kube = Kube(
            client,
            time.time,
            guard=lease.check,
            wrote=lambda verb, kind: metrics.writes.labels(verb, kind).inc(),
        )
        queues: dict[str, WorkQueue[Key]] = {
            kind.name: WorkQueue(time.monotonic) for kind in (MODEL, BATCH)
        }

        def wake(key: Key) -> None:
            metrics.events.labels(key[0]).inc()
            queues[key[0]].add(key)

        informer = Informer(wake)
        servers = Servers(session, {name: tenant.token for name, tenant in tenants.items()})
        observer = Observer(kube, servers, config.namespaces, informer.is_contested)
        records = Records(
            {name: open_store(tenant.store, _RETRIES) for name, tenant in tenants.items()},
            kube,
            wake=lambda namespace, name: wake((BATCH.name, namespace, name)),
            clock=time.time,
        )
        stack.push_async_callback(records.close)
        controller = Controller(
            kube, observer, records, informer, queues, config, metrics, time.time
        )
        await stack.enter_async_context(
            door(port, metrics.registry, lambda: controller.trouble(time.time()))
        )
        await lease.acquire()
        _log.info("operating in %s", ", ".join(config.namespaces))
        await _operate(config, controller, lease, informer)


async def _operate(
    config: OperatorConfig, controller: Controller, lease: Lease, informer: Informer
) -> None:
    async with asyncio.TaskGroup() as tasks:
        ours = [tasks.create_task(lease.keep()), tasks.create_task(controller.run())]

        def end() -> None:
            for task in ours:
                task.cancel()

        await kopf.operator(
            registry=registry(informer, cleanup=end),
            settings=settings(),
            standalone=True,
            namespaces=config.namespaces,
        )
        # kopf has seen SIGTERM, or one of its own parts has ended without a word.
        end()
    try:
        await lease.release()
    except KubeError as error:
        _log.warning("the Lease was not released: %s", error)


def _identity() -> str:
    """A container that was restarted in its pod holds the Lease that it held before."""
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return socket.gethostname()
    return f"{socket.gethostname()}-{os.getpid()}"
