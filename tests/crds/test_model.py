"""Who answers to a served name, and how quantities of time are read."""

from __future__ import annotations

import pytest

from skirret_api.model import model_spec, owners, served_names
from skirret_api.parts import Object, seconds


def model(name: str, created: str = "2026-01-01T00:00:00Z", **spec: object) -> Object:
    return {
        "metadata": {"name": name, "namespace": "team-a", "creationTimestamp": created},
        "spec": {"model": {"source": "pvc://models/x"}, **spec},
    }


def test_a_model_without_served_names_goes_by_its_own() -> None:
    assert served_names(model("chat")) == ["chat"]
    assert served_names(model("chat", servedNames=["gpt"])) == ["gpt"]


def test_a_name_belongs_to_the_oldest_that_claims_it() -> None:
    newer = model("a", "2026-02-01T00:00:00Z", servedNames=["chat", "new"])
    older = model("z", "2026-01-01T00:00:00Z", servedNames=["chat"])
    assert owners([newer, older]) == {"chat": "z", "new": "a"}


def test_of_two_equally_old_ones_the_first_by_name_has_it() -> None:
    both = [model(name, servedNames=["chat"]) for name in "ba"]
    assert owners(both)["chat"] == "a"


def test_a_model_that_is_going_lets_go_of_its_names() -> None:
    going = model("older", servedNames=["chat"])
    going["metadata"]["deletionTimestamp"] = "2026-03-01T00:00:00Z"
    heir = model("newer", "2026-02-01T00:00:00Z", servedNames=["chat"])
    assert owners([going, heir])["chat"] == "newer"


def test_fields_of_a_newer_release_are_passed_over() -> None:
    body = model("x", future=1, server={"contextLength": 8, "future": 2})
    body["spec"]["pod"] = {"volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}]}
    spec = model_spec(body)
    assert spec.server is not None
    assert spec.server.context_length == 8
    assert spec.pod is not None
    assert spec.pod.volumes == [{"name": "v", "emptyDir": {"medium": "Memory"}}]


@pytest.mark.parametrize(
    ("text", "length"), [("30s", 30), ("10m", 600), ("2h", 7200), ("1d", 86400)]
)
def test_durations(text: str, length: int) -> None:
    assert seconds(text) == length


@pytest.mark.parametrize("text", ["", "10", "h", "1w", "1.5h"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="write it as"):
        seconds(text)
