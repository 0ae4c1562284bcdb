"""A model's life: started by kubectl alone, side by side with others, through kills, to its end."""

import time
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from skirret_local.installation import ROOT, Site, until
from skirret_local.manifests import inference_model


def test_the_quickstart_needs_kubectl_alone(
    site: Site, figure: Callable[[str, float, float, str], None]
) -> None:
    site.kubectl("delete", "inferencemodel", "smollm2", "--ignore-not-found")
    until("no pod of it is left", lambda: not all_pods(site, "smollm2"), within=60)
    applied = time.monotonic()
    site.apply((ROOT / "examples/model.yaml").read_text())
    with site.client(max_retries=0, timeout=60) as client:
        first = until("the first token", lambda: first_token(client, "smollm2"), within=60)
    assert first
    figure("apply to first token", time.monotonic() - applied, 20, "s")
    site.kubectl("wait", "--for=condition=Ready", "inferencemodel/smollm2", "--timeout=30s")
    row = site.kubectl("get", "inferencemodels", "--no-headers")
    assert row.split()[:2] == ["smollm2", "True"]


def all_pods(site: Site, model: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = site.get("pods", f"--selector=skirret.dev/model={model}")["items"]
    return items


def first_token(client: OpenAI, model: str) -> str | None:
    """None while the gateway doesn't know the model yet; it holds the request from then on."""
    try:
        stream = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Say hello."}],
            max_tokens=4,
            stream=True,
        )
    except openai.NotFoundError:
        return None
    return next((x.choices[0].delta.content for x in stream if x.choices[0].delta.content), None)


def test_two_models_are_routed_by_name(
    site: Site, client: OpenAI, model: str, ready: Callable[[str], None]
) -> None:
    site.apply(inference_model("second", servedNames=["also-second"]))
    ready("second")
    for name in (model, "second", "also-second"):
        answer = client.chat.completions.create(
            model=name, messages=[{"role": "user", "content": "Hi"}], max_tokens=1
        )
        assert answer.model == name
    site.kubectl("delete", "inferencemodel", "second")


def test_deleting_a_model_removes_everything_made_for_it(
    site: Site, ready: Callable[[str], None]
) -> None:
    site.apply(inference_model("brief"))
    ready("brief")
    site.kubectl("delete", "inferencemodel", "brief")
    kinds = "deployments,services,pods,controllerrevisions,endpointslices"

    def gone() -> bool:
        return not site.get(kinds, "--selector=skirret.dev/model=brief")["items"]

    until("its children are gone", gone, within=60)


def test_a_stream_whose_server_is_killed_ends_in_an_error(
    site: Site, client: OpenAI, ready: Callable[[str], None]
) -> None:
    site.apply(inference_model("fragile"))
    ready("fragile")
    (pod,) = site.pods("skirret.dev/model=fragile")
    stream = client.chat.completions.create(
        model="fragile",
        messages=[{"role": "user", "content": "Count to a thousand."}],
        max_tokens=1500,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    pieces = iter(stream)
    next(pieces)
    site.kubectl("delete", "pod", pod["metadata"]["name"], "--grace-period=0", "--force")
    with pytest.raises(openai.APIError):
        for _ in pieces:
            pass
    until(
        "another pod serves",
        lambda: [
            x for x in site.pods("skirret.dev/model=fragile")
            if x["metadata"]["uid"] != pod["metadata"]["uid"]
        ],
        within=30,
    )  # fmt: skip
    ready("fragile")
    site.kubectl("delete", "inferencemodel", "fragile")


@pytest.mark.parametrize("part", ["operator", "gateway"])
def test_killing_a_part_of_skirret_touches_no_server_pod(site: Site, model: str, part: str) -> None:
    def uids() -> list[str]:
        return sorted(x["metadata"]["uid"] for x in site.pods("skirret.dev/model"))

    before = uids()
    selector = f"app.kubernetes.io/component={part}"
    for pod in site.pods(selector):
        site.kubectl("delete", "pod", pod["metadata"]["name"], "--grace-period=0", "--force")
    site.kubectl("rollout", "status", f"deployment/{site.release}-{part}", "--timeout=60s")
    until("it is back", lambda: len(site.pods(selector)) == 1, within=30)
    time.sleep(3)  # long enough for a first reconcile of everything
    assert uids() == before


def test_traffic_goes_on_while_the_operator_is_away(site: Site, client: OpenAI, model: str) -> None:
    site.kubectl("scale", f"deployment/{site.release}-operator", "--replicas=0")
    try:
        answer = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "Hi"}], max_tokens=2
        )
        assert answer.choices
    finally:
        site.kubectl("scale", f"deployment/{site.release}-operator", "--replicas=1")
        site.kubectl("rollout", "status", f"deployment/{site.release}-operator", "--timeout=60s")


def test_a_client_that_leaves_frees_the_engine(site: Site, client: OpenAI, model: str) -> None:
    with client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Count."}],
        max_tokens=1500,
        stream=True,
        extra_body={"ignore_eos": True},
    ) as stream:
        pieces = iter(stream)
        next(pieces)
        assert running(site, model) == 1
        pieces.close()  # type: ignore[attr-defined]
    until("nothing runs", lambda: running(site, model) == 0, within=3)


def running(site: Site, model: str) -> int:
    (pod,) = site.pods(f"skirret.dev/model={model}")
    status = httpx.get(f"http://{pod['status']['podIP']}:30000/status", timeout=5).json()
    return int(status["running"])
