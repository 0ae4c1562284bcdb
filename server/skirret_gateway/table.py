"""Which servers answer for which name: a pure function of the models and EndpointSlices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from skirret_api.meta import RoutingStrategy

DEFAULT_STRATEGY: RoutingStrategy = "PrefixTree"  # by benchmarks/results/fleet.md


class ModelId(NamedTuple):
    """A model's namespace and name; without Kubernetes the namespace is empty."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class Replica(NamedTuple):
    """Where one server listens. Two models may name the same one; its load is theirs together."""

    host: str
    port: int
    tls: bool = False
    path: str = ""  # before /v1

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Model:
    """What the gateway reads of an InferenceModel."""

    id: ModelId
    created: int  # seconds since the epoch
    claims: tuple[str, ...]  # served names; each is the oldest claimant's of the namespace
    strategy: RoutingStrategy = DEFAULT_STRATEGY
    split: tuple[tuple[str, int], ...] = ()  # other models of the namespace, and their hundredths
    is_leaving: bool = False  # being deleted; it claims nothing more


@dataclass(frozen=True, slots=True)
class Slice:
    """What the gateway reads of an EndpointSlice: servers that are ready and not terminating."""

    model: ModelId
    ready: tuple[Replica, ...]


@dataclass(frozen=True, slots=True)
class Route:
    """A model as requests see it."""

    model: Model
    served_names: tuple[str, ...]  # those of its claims that are its own
    replicas: tuple[Replica, ...]  # in order

    @property
    def id(self) -> ModelId:
        return self.model.id


@dataclass(frozen=True, slots=True)
class Table:
    routes: Mapping[ModelId, Route] = field(default_factory=dict)  # in order of their ids
    served: Mapping[tuple[str, str], Route] = field(default_factory=dict)  # by namespace and name
    elsewhere: Mapping[str, Route] = field(default_factory=dict)  # whose name it is for strangers

    def find(self, namespace: str, name: str) -> Route | None:
        """Who answers to a name: first as namespace/name, then in the caller's namespace, then in
        any other; in each as a served name before a model's own."""
        owner, slash, rest = name.partition("/")
        full = self.routes.get(ModelId(owner, rest)) if slash else None
        return (
            full
            or self.served.get((namespace, name))
            or self.routes.get(ModelId(namespace, name))
            or self.elsewhere.get(name)
        )

    def names(self, namespace: str, route: Route) -> tuple[str, ...]:
        """What a caller of this namespace calls a model; its full name if no other means it."""
        found = (name for name in route.served_names if self.find(namespace, name) is route)
        return tuple(found) or (str(route.id),)


def build(models: Iterable[Model], slices: Iterable[Slice]) -> Table:
    by_age = sorted(models, key=lambda model: (model.created, model.id))
    served: dict[tuple[str, str], ModelId] = {}
    claimed: dict[str, ModelId] = {}
    named: dict[str, ModelId] = {}
    for model in by_age:
        named.setdefault(model.id.name, model.id)
        for name in () if model.is_leaving else model.claims:
            served.setdefault((model.id.namespace, name), model.id)
            claimed.setdefault(name, model.id)
    ready = _ready(slices)
    routes = {
        model.id: Route(
            model,
            served_names=tuple(
                name for name in model.claims if served.get((model.id.namespace, name)) == model.id
            ),
            replicas=ready.get(model.id, ()),
        )
        for model in sorted(by_age, key=lambda model: model.id)
    }
    return Table(
        routes,
        served={name: routes[owner] for name, owner in served.items()},
        elsewhere={name: routes[owner] for name, owner in (named | claimed).items()},
    )


def _ready(slices: Iterable[Slice]) -> dict[ModelId, tuple[Replica, ...]]:
    """A server may stand in two slices while it moves from one to the other."""
    pairs = sorted((part.model, replica) for part in slices for replica in set(part.ready))
    return {
        model: tuple(dict.fromkeys(replica for _, replica in group))
        for model, group in groupby(pairs, key=lambda pair: pair[0])
    }
