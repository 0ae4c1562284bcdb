"""A new revision takes over under load: not one request fails, with a GPU to spare or without."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from skirret_local.installation import Site, until
from skirret_local.manifests import inference_model

pytestmark = pytest.mark.full


@dataclass
class Load:
    answered: int = 0
    failures: list[str] = field(default_factory=list)
    longest: float = 0.0  # seconds


@contextmanager
def load(site: Site, name: str) -> Iterator[Load]:
    """Two users who ask one short question after the other, and retry nothing."""
    seen, over = Load(), threading.Event()

    def ask() -> None:
        with site.client(max_retries=0, timeout=120) as client:
            while not over.is_set():
                began = time.monotonic()
                try:
                    client.chat.completions.create(
                        model=name, messages=[{"role": "user", "content": "Hi"}], max_tokens=4
                    )
                    seen.answered += 1
                except Exception as error:  # whatever it is, it is a request that failed
                    seen.failures.append(repr(error))
                seen.longest = max(seen.longest, time.monotonic() - began)

    users = [threading.Thread(target=ask) for _ in range(2)]
    for user in users:
        user.start()
    try:
        yield seen
    finally:
        over.set()
        for user in users:
            user.join()


def revisions(site: Site, name: str) -> dict[str, str]:
    found: dict[str, str] = site.get(f"inferencemodel/{name}")["status"].get("revisions", {})
    return found


def is_rolled_out(site: Site, name: str, target: str) -> bool:
    seen = revisions(site, name)
    pods = site.pods(f"skirret.dev/model={name}")
    return (
        seen.get("target") != target
        and seen.get("serving") == seen.get("target")
        and len(pods) == 1
        and site.condition("inferencemodel", name, "Ready").get("status") == "True"
    )


@pytest.mark.parametrize(("profile", "surges"), [("both-gpus", False), ("one-gpu", True)])
def test_a_rollout_fails_no_request(
    site: Site,
    ready: Callable[[str], None],
    figure: Callable[[str, float, float, str], None],
    profile: str,
    surges: bool,
) -> None:
    name = f"rolls-{profile}"
    site.apply(inference_model(name, profile=profile))
    try:
        ready(name)
        before = revisions(site, name)["target"]
        with load(site, name) as seen:
            until("the load runs", lambda: seen.answered > 2, within=120)
            site.apply(inference_model(name, profile=profile, templateRevision=1))
            most = 1

            def done() -> bool:
                nonlocal most
                most = max(most, len(site.pods(f"skirret.dev/model={name}")))
                return is_rolled_out(site, name, before)

            until("the new revision serves alone", done, within=150)
            after = seen.answered
            until("it answers", lambda: seen.answered > after + 1, within=60)
        assert seen.failures == []
        assert most == 2 if surges else True
        figure(f"longest wait in a rollout on {profile}", seen.longest, 60, "s")
    finally:
        site.kubectl("delete", "inferencemodel", name, "--wait=true")


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ({"profile": "no-image"}, "localhost/nobody:1"),
        ({"server": {"chatTemplate": "/no/such"}}, "/no/such"),
    ],
    ids=["no image", "crashes"],
)
def test_a_broken_revision_gives_way_and_fails_no_request(
    site: Site, ready: Callable[[str], None], broken: dict[str, Any], words: str
) -> None:
    name = "breaks"
    good = {"profile": "both-gpus"}
    site.apply(inference_model(name, **good))
    try:
        ready(name)
        before = revisions(site, name)["serving"]
        with load(site, name) as seen:
            until("the load runs", lambda: seen.answered > 2, within=120)
            site.apply(inference_model(name, **good | broken))

            def told() -> dict[str, Any] | None:
                condition = site.condition("inferencemodel", name, "Ready")
                return condition if condition.get("reason") == "RolloutFailed" else None

            condition = until("the failure is told", told, within=90)
            assert words in condition["message"]
            until("the old one serves", lambda: serves(site, name, before), within=60)
            after = seen.answered
            until("it answers", lambda: seen.answered > after + 1, within=60)
        assert seen.failures == []
    finally:
        site.kubectl("delete", "inferencemodel", name, "--wait=true")


def serves(site: Site, name: str, revision: str) -> bool:
    return revisions(site, name).get("serving") == revision
