"""What Prometheus is told of the operator."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class Metrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.reconciles = Counter(
            "skirret_operator_reconciles_total",
            "Objects looked at, by kind and by how it went.",
            ["kind", "result"],
            registry=registry,
        )
        self.seconds = Histogram(
            "skirret_operator_reconcile_seconds",
            "How long one look took, writes included.",
            ["kind"],
            buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10),
            registry=registry,
        )
        self.writes = Counter(
            "skirret_operator_writes_total",
            "Writes to the API server, by verb and kind.",
            ["verb", "kind"],
            registry=registry,
        )
        self.events = Counter(
            "skirret_operator_watch_events_total",
            "Events the watches have told.",
            ["kind"],
            registry=registry,
        )
        self.queued = Gauge(
            "skirret_operator_queue_depth",
            "Objects that wait to be looked at.",
            ["kind"],
            registry=registry,
        )
        self.faults = Counter(
            "skirret_operator_loop_faults_total",
            "Resyncs, looks at the records and sweeps that failed.",
            ["loop"],
            registry=registry,
        )
        self.resynced = Gauge(
            "skirret_operator_last_resync_timestamp_seconds",
            "When all objects were last listed.",
            registry=registry,
        )
