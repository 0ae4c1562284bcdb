"""/metrics: the engine's totals and the times of requests, under the suffixes vLLM's use."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from skirret_server.core import Lane, Stats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "skirret:"

_TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0,
)  # fmt: skip
_ITL = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
_E2E = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0,
)  # fmt: skip


class Metrics:
    """One server's own registry."""

    def __init__(self, stats: Callable[[], Stats | None]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineTotals(stats))
        self.time_to_first_token = Times(
            "time_to_first_token_seconds", "From the request to its first token", _TTFT
        )
        self.inter_token_latency = Times(
            "inter_token_latency_seconds", "From one update of a request to the next", _ITL
        )
        self.e2e_latency = Times(
            "e2e_request_latency_seconds", "From the request to the end of its answer", _E2E
        )
        for times in (self.time_to_first_token, self.inter_token_latency, self.e2e_latency):
            self._registry.register(times)
        self.http_responses = Counter(
            f"{PREFIX}http_responses",
            "Answers by status",
            ["status"],
            registry=self._registry,
        )

        self.structured_checks = Counter(
            f"{PREFIX}structured_checks",
            "Structured answers that were checked after they ended",
            registry=self._registry,
        )
        self.structured_violations = Counter(
            f"{PREFIX}structured_violations",
            "Those that broke what was asked of them: must stay 0",
            registry=self._registry,
        )

    def page(self) -> bytes:
        page: bytes = generate_latest(self._registry)
        return page


class Times(Collector):
    """A histogram of seconds for one event loop: without a lock, it costs nothing per token."""

    def __init__(self, name: str, text: str, buckets: tuple[float, ...]) -> None:
        self._name = name
        self._text = text
        self._buckets = buckets
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._buckets, seconds)] += 1
        self._sum += seconds

    def collect(self) -> Iterator[Metric]:
        names = [*map(str, self._buckets), "+Inf"]
        yield HistogramMetricFamily(
            f"{PREFIX}{self._name}",
            self._text,
            buckets=list(zip(names, accumulate(self._counts), strict=True)),
            sum_value=self._sum,
        )


class _EngineTotals(Collector):
    """Read from the engine at each scrape; nothing before the engine is there."""

    def __init__(self, stats: Callable[[], Stats | None]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        if stats is None:
            return
        yield _gauge("num_requests_running", "Sequences in the batch", sum(stats.running.values()))
        yield _gauge("num_requests_waiting", "Sequences in the queue", sum(stats.waiting.values()))
        yield _by_lane("lane_requests_running", "Sequences in the batch", stats.running)
        yield _by_lane("lane_requests_waiting", "Sequences in the queue", stats.waiting)
        yield _gauge("kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1", stats.kv_usage)
        yield _gauge(
            "kv_cache_evictable_perc", "Share that holds reusable prefixes", stats.cached_usage
        )
        for name, text, value in (
            ("prompt_tokens", "Tokens of prompts", stats.prompt_tokens),
            ("generation_tokens", "Tokens generated", stats.generation_tokens),
            ("prefix_cache_queries", "Prompt tokens looked up", stats.cache_query_tokens),
            ("prefix_cache_hits", "Prompt tokens found", stats.cache_hit_tokens),
            ("evicted_tokens", "Tokens dropped from the cache", stats.evicted_tokens),
            ("num_preemptions", "Running sequences put back to wait", stats.retractions),
            ("jumped_tokens", "Generated tokens that took no step", stats.jumped_tokens),
            ("aborted_requests", "Sequences that their caller ended", stats.aborted),
            ("failed_requests", "Sequences that the engine gave up on", stats.failed),
            ("engine_steps", "Steps of the engine", stats.steps),
            ("engine_step_seconds", "Time spent in steps", stats.step_seconds),
        ):
            yield CounterMetricFamily(f"{PREFIX}{name}", text, value=value)
        done = CounterMetricFamily(
            f"{PREFIX}request_success", "Sequences that ended well", labels=["finished_reason"]
        )
        for reason, count in stats.finished.items():
            done.add_metric([reason], count)
        yield done


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{PREFIX}{name}", text, value=value)


def _by_lane(name: str, text: str, counts: Mapping[Lane, int]) -> Metric:
    family = GaugeMetricFamily(f"{PREFIX}{name}", text, labels=["lane"])
    for lane, count in counts.items():
        family.add_metric([lane], count)
    return family
