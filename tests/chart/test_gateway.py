"""The gateway's pods end without cutting answers off, and only its public routes lead outside."""

from collections.abc import Callable
from typing import Any

Render = Callable[..., list[dict[str, Any]]]


def of_kind(kind: str, objects: list[dict[str, Any]]) -> dict[str, Any]:
    return next(
        x for x in objects if (x["kind"], x["metadata"]["name"]) == (kind, "skirret-gateway")
    )


def test_a_gateway_has_time_for_its_sleep_and_its_drain(render: Render) -> None:
    pod = of_kind("Deployment", render("minimal", "gateway.drainSeconds=120"))["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert "--drain-timeout=120" in container["args"]
    sleep = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["spec"]["terminationGracePeriodSeconds"] > sleep + 120


def test_a_pool_is_the_servers_of_its_model(render: Render) -> None:
    (pool,) = [x for x in render("ingress") if x["kind"] == "InferencePool"]
    assert pool["spec"]["selector"]["matchLabels"]["skirret.dev/model"] == "smollm2"
    assert pool["spec"]["targetPorts"] == [{"number": 30000}]
    assert pool["spec"]["endpointPickerRef"]["failureMode"] == "FailClose"


def test_what_is_for_the_cluster_alone_is_not_led_outside(render: Render) -> None:
    objects = render("ingress")
    public = {("/v1", "Prefix"), ("/health", "Exact")}
    for rule in of_kind("Ingress", objects)["spec"]["rules"]:
        assert {(x["path"], x["pathType"]) for x in rule["http"]["paths"]} == public
    (rule,) = of_kind("HTTPRoute", objects)["spec"]["rules"]
    paths = {(x["path"]["value"], x["path"]["type"]) for x in rule["matches"]}
    assert paths == {("/v1", "PathPrefix"), ("/health", "Exact")}


def test_a_limit_of_enqueued_tokens_is_the_gateways_and_the_workers(render: Render) -> None:
    objects = render("minimal", "batchWorker.maxEnqueuedTokens=5000000")
    pod = of_kind("Deployment", objects)["spec"]["template"]
    assert "--max-enqueued-tokens=5000000" in pod["spec"]["containers"][0]["args"]
    config = next(x for x in objects if x["kind"] == "ConfigMap")
    assert "maxEnqueuedTokens: 5000000" in "".join(config["data"].values())
