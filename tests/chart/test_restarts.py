"""Which edit of the values restarts which process; models follow their revisions alone."""

from collections.abc import Callable
from typing import Any

import pytest

Render = Callable[..., list[dict[str, Any]]]


def templates(objects: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        x["metadata"]["name"]: x["spec"]["template"] for x in objects if x["kind"] == "Deployment"
    }


@pytest.mark.parametrize(
    ("given", "restarted"),
    [
        ("profiles.l4.description=another", {"skirret-operator"}),
        ("operator.timings.resyncSeconds=30", {"skirret-operator"}),
        ("store.bucket=another", {"skirret-operator", "skirret-gateway"}),
        ("store.secretKey=another", {"skirret-operator", "skirret-gateway"}),
        ("namespaces[0].token=another-token-of-this", {"skirret-operator", "skirret-gateway"}),
        ("podAnnotations.rolled=today", {"skirret-operator", "skirret-gateway"}),
        ("gateway.replicas=5", set()),
        ("ingress.enabled=true", set()),
    ],
)
def test_an_edit_restarts_whom_it_concerns(given: str, restarted: set[str], render: Render) -> None:
    before, after = templates(render("minimal")), templates(render("minimal", given))
    assert {name for name in before if before[name] != after[name]} == restarted


def test_a_token_nobody_gave_restarts_nobody_at_each_rendering(render: Render) -> None:
    first = templates(render("minimal", "namespaces[0].token="))
    second = templates(render("minimal", "namespaces[0].token=", "gateway.replicas=2"))
    assert first == second
