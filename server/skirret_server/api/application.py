"""Every route of the server, and who answers it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from skirret_api import internal
from skirret_api.errors import NotFound
from skirret_server.api.answer import Pace, Reply
from skirret_server.api.app import Access, App, Mount, Route
from skirret_server.api.completions import Completions
from skirret_server.api.cors import Cors
from skirret_server.api.exchange import Request
from skirret_server.api.lifecycle import Lifecycle
from skirret_server.api.metrics import Metrics
from skirret_server.api.models import Models
from skirret_server.api.native import Native
from skirret_server.api.probes import Probes

log = logging.getLogger("skirret.api")


def application(
    lifecycle: Lifecycle,
    access: Access,
    *,
    pace: Pace | None = None,
    cors: Cors | None = None,
    tells_accounting: bool = False,
    mounts: Callable[[], list[Mount]] = list,
    settings: Mapping[str, Any] | None = None,
    logs_requests: bool = False,
    started: float | None = None,
) -> App:
    """`started`: of the process, on the monotonic clock."""
    begun = time.monotonic() if started is None else started
    metrics = Metrics(lambda: lifecycle.served.engine.stats() if lifecycle.served else None)
    probes = Probes(lifecycle, metrics, lambda: time.monotonic() - begun)
    completions = Completions(lifecycle, metrics)
    models = Models(lifecycle)
    native = Native(lifecycle, completions, settings or {})
    debug = [Route("/debug/accounting", {"GET": probes.accounting})] if tells_accounting else []
    return App(
        [
            Route("/v1/chat/completions", {"POST": completions.chat}),
            Route("/v1/completions", {"POST": completions.text}),
            Route("/v1/responses", {"POST": completions.responses}),
            Route("/v1/embeddings", {"POST": _no_embeddings}),
            Route("/v1/models", {"GET": models.list}),
            Route("/v1/models/", {"GET": models.retrieve}),
            Route("/health", {"GET": probes.health}, is_open=True),
            Route("/health_generate", {"GET": probes.health_generate}, is_open=True),
            Route("/ready", {"GET": probes.ready}, is_open=True),
            Route("/status", {"GET": probes.status}, is_open=True),
            Route("/metrics", {"GET": probes.metrics}, is_open=True),
            Route(internal.CACHE_EVENTS, {"GET": probes.cache_events}),
            Route("/generate", {"POST": native.generate}),
            Route("/tokenize", {"POST": native.tokenize}),
            Route("/detokenize", {"POST": native.detokenize}),
            Route("/get_model_info", {"GET": native.model_info}),
            Route("/get_server_info", {"GET": native.server_info}),
            Route("/abort_request", {"POST": native.abort}),
            Route("/flush_cache", {"GET": native.flush, "POST": native.flush}),
            *debug,
        ],
        access,
        pace=pace,
        cors=cors,
        mounts=mounts,
        done=partial(_done, metrics, logs_requests),
    )


async def _no_embeddings(request: Request) -> Reply:
    raise NotFound(
        "This server makes no embeddings: its models write text, and what they hold of a text in "
        "between is no measure of its meaning. Ask a model that is made for embeddings.",
        code="unsupported_endpoint",
    )


def _done(metrics: Metrics, logs: bool, request: Request, status: int) -> None:
    metrics.http_responses.labels(status).inc()
    if not logs:
        return
    log.info(
        "request",
        extra={
            "request_id": request.id,
            "method": request.method,
            "path": request.path,
            "status": status,
            "seconds": round(time.monotonic() - request.started, 4),
            "lane": request.caller.lane,
            **request.facts,
        },
    )
