"""The pairs that the network policies allow, evaluated pod by pod; all others are refused."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

Render = Callable[..., list[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class End:
    """A pod, or a place outside that only has a namespace."""

    namespace: str
    labels: tuple[tuple[str, str], ...] = ()


def ours(component: str) -> End:
    return End(
        "skirret",
        (
            ("app.kubernetes.io/name", "skirret"),
            ("app.kubernetes.io/instance", "skirret"),
            ("app.kubernetes.io/component", component),
        ),
    )


ENDS = {
    "gateway": ours("gateway"),
    "operator": ours("operator"),
    "hook": ours("crds"),
    "server": End("team-a", (("skirret.dev/model", "chat"),)),
    "worker": End("team-a", (("skirret.dev/batch", "nightly"),)),
    "prometheus": End("monitoring"),
    "ingress": End("ingress"),
    "store": End("minio"),
    "stranger": End("team-b"),
}
PORTS = {"gateway": 8080, "operator": 8081, "server": 30000, "store": 9000, "hook": 80}
ALLOWED = {
    ("ingress", "gateway"),
    ("worker", "gateway"),
    ("operator", "gateway"),
    ("prometheus", "gateway"),
    ("gateway", "server"),
    ("operator", "server"),
    ("prometheus", "server"),
    ("prometheus", "operator"),
    ("gateway", "store"),
    ("operator", "store"),
    ("worker", "store"),
}


def test_exactly_the_pairs_of_the_architecture_may_talk(render: Render) -> None:
    policies = [x for x in render("network") if x["kind"] == "NetworkPolicy"]
    allowed = {
        (source, target)
        for source, target in product(ENDS, PORTS)
        if source != target
        and may_send(policies, ENDS[source], ENDS[target], PORTS[target])
        and may_receive(policies, ENDS[target], ENDS[source], PORTS[target])
    }
    # Whom no policy of ours speaks of sends where it likes: their owners' business.
    foreign = {("ingress", "store"), ("prometheus", "store"), ("stranger", "store")}
    assert allowed - foreign == ALLOWED


def test_everything_may_ask_the_cluster_dns(render: Render) -> None:
    policies = [x for x in render("network") if x["kind"] == "NetworkPolicy"]
    dns = End("kube-system", (("k8s-app", "kube-dns"),))
    for name in ("gateway", "operator", "hook", "server", "worker"):
        assert may_send(policies, ENDS[name], dns, 53), name


def test_no_policy_is_made_unless_asked_for(render: Render) -> None:
    assert not [x for x in render("minimal") if x["kind"] == "NetworkPolicy"]


def may_send(policies: list[dict[str, Any]], source: End, target: End, port: int) -> bool:
    return _allows(policies, source, target, port, "Egress", "egress", "to")


def may_receive(policies: list[dict[str, Any]], target: End, source: End, port: int) -> bool:
    return _allows(policies, target, source, port, "Ingress", "ingress", "from")


def _allows(
    policies: list[dict[str, Any]],
    pod: End,
    peer: End,
    port: int,
    direction: str,
    rules: str,
    peers: str,
) -> bool:
    """Whether a pod may talk with a peer: freely if no policy selects it, else by any rule."""
    selecting = [
        policy["spec"]
        for policy in policies
        if policy["metadata"]["namespace"] == pod.namespace
        and direction in policy["spec"]["policyTypes"]
        and _selects(policy["spec"]["podSelector"], dict(pod.labels))
    ]
    return not selecting or any(
        (not rule.get("ports") or port in [x["port"] for x in rule["ports"]])
        and (not rule.get(peers) or any(_is(x, peer, pod.namespace) for x in rule[peers]))
        for spec in selecting
        for rule in spec.get(rules) or []
    )


def _is(selector: dict[str, Any], end: End, home: str) -> bool:
    if "ipBlock" in selector:
        return False  # the ends of this test are inside the cluster
    in_namespace = (
        _selects(selector["namespaceSelector"], {"kubernetes.io/metadata.name": end.namespace})
        if "namespaceSelector" in selector
        else end.namespace == home
    )
    return in_namespace and _selects(selector.get("podSelector", {}), dict(end.labels))


def _selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    exact = selector.get("matchLabels", {}).items() <= labels.items()
    return exact and all(
        labels.get(x["key"]) in x["values"] if x["operator"] == "In" else x["key"] in labels
        for x in selector.get("matchExpressions", [])
    )
