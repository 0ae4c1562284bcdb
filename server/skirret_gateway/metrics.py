"""What the gateway counts. A label is the name of a model there is, never what a client made up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from skirret_api.errors import ApiError
from skirret_gateway.health import Outcome
from skirret_gateway.table import ModelId
from skirret_gateway.usage import Tokens

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
CLIENT_GONE = 499
MOST_KEYS, OTHERS = 1000, "(others)"  # pairs of key and model that are told apart

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)


class Metrics:
    def __init__(self, clock: Callable[[], float]) -> None:
        self.registry = CollectorRegistry()
        self.clock = clock
        self._series: dict[ModelId, _Series] = {}
        self._requests = Counter(
            "skirret_gateway_requests",
            "Requests that ended, by the status they were answered with.",
            ["model", "status"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "skirret_gateway_request_seconds",
            "From a request's last byte to its answer's last.",
            ["model"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._first_byte_seconds = Histogram(
            "skirret_gateway_first_byte_seconds",
            "From a request's last byte to the head of its answer; waiting for a server included.",
            ["model"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._failures = Counter(
            "skirret_gateway_upstream_failures",
            "Servers that didn't answer, by what they did instead.",
            ["model", "outcome"],
            registry=self.registry,
        )
        self._held = Gauge(
            "skirret_gateway_held",
            "Requests that wait for a server.",
            ["model"],
            registry=self.registry,
        )
        self._running = Gauge(
            "skirret_gateway_running",
            "Requests that a server works on.",
            ["model"],
            registry=self.registry,
        )
        self._tokens = Counter(
            "skirret_gateway_tokens",
            "Tokens by key (namespace/name) and model; cached ones are of the prompt.",
            ["key", "model", "kind"],
            registry=self.registry,
        )
        self._keys: set[tuple[str, ModelId]] = set()
        self._replicas = Gauge(
            "skirret_gateway_replicas",
            "Servers that are ready.",
            ["model"],
            registry=self.registry,
        )

    def request(self, model: ModelId) -> Record:
        """Counts the request that is answered in its context."""
        return Record(self, model)

    def first_byte(self, model: ModelId, seconds: float) -> None:
        self._of(model).first_byte_seconds.observe(seconds)

    def ended(self, model: ModelId, status: int, seconds: float) -> None:
        series = self._of(model)
        series.seconds.observe(seconds)
        counter = series.requests.get(status)
        if counter is None:
            counter = series.requests[status] = self._requests.labels(str(model), str(status))
        counter.inc()

    def failure(self, model: ModelId, outcome: Outcome) -> None:
        self._failures.labels(str(model), outcome.value).inc()

    def tokens(self, key: str, model: ModelId, tokens: Tokens) -> None:
        pair = (key, model)
        if pair not in self._keys and len(self._keys) >= MOST_KEYS:
            key = OTHERS
        else:
            self._keys.add(pair)
        for kind, amount in zip(Tokens._fields, tokens, strict=True):
            self._tokens.labels(key, str(model), kind).inc(amount)

    def render(self, now: Iterable[tuple[ModelId, int, int, int]]) -> bytes:
        """The page for Prometheus. `now` holds for each model: held, running, replicas."""
        for gauge in (self._held, self._running, self._replicas):
            gauge.clear()  # a model that is gone shows nothing
        for model, held, running, replicas in now:
            self._held.labels(str(model)).set(held)
            self._running.labels(str(model)).set(running)
            self._replicas.labels(str(model)).set(replicas)
        return generate_latest(self.registry)

    def _of(self, model: ModelId) -> _Series:
        series = self._series.get(model)
        if series is None:
            name = str(model)
            series = self._series[model] = _Series(
                self._seconds.labels(name), self._first_byte_seconds.labels(name)
            )
        return series


@dataclass(frozen=True, slots=True)
class _Series:
    """A model's own counters, found once: looking them up costs more than counting."""

    seconds: Histogram
    first_byte_seconds: Histogram
    requests: dict[int, Counter] = field(default_factory=dict)


class Record:
    """One request's time and status."""

    def __init__(self, metrics: Metrics, model: ModelId) -> None:
        self.status = 500
        self._metrics = metrics
        self._model = model
        self._began = metrics.clock()

    def first_byte(self) -> float:
        """Seconds until now."""
        seconds = self._metrics.clock() - self._began
        self._metrics.first_byte(self._model, seconds)
        return seconds

    def __enter__(self) -> Record:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, ApiError):
            self.status = error.status
        elif isinstance(error, asyncio.CancelledError):
            self.status = CLIENT_GONE
        self._metrics.ended(self._model, self.status, self._metrics.clock() - self._began)
