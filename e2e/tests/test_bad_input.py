"""What goes wrong is said: at admission by the field's name, later in the status, within 15 s."""

from typing import Any

import pytest

from skirret_local.installation import KubectlFailed, Site, until
from skirret_local.manifests import batch_job, inference_model

SAID_WITHIN = 15


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"replicas": -1}, "spec.replicas"),
        ({"model": {"source": "ftp://x/y"}}, "spec.model.source"),
        ({"server": {"chunkedPrefillSize": "many"}}, "spec.server.chunkedPrefillSize"),
        ({"rollout": {"strategy": "Maybe"}}, "spec.rollout.strategy"),
        ({"repilcas": 2}, "repilcas"),
    ],
)
def test_an_invalid_model_is_refused_by_the_name_of_its_field(
    site: Site, wrong: dict[str, Any], field: str
) -> None:
    with pytest.raises(KubectlFailed) as refused:
        site.apply(inference_model("invalid", **wrong))
    assert field in refused.value.said


def test_a_batchjob_without_an_input_is_refused_by_the_name_of_its_field(site: Site) -> None:
    with pytest.raises(KubectlFailed) as refused:
        site.apply(batch_job("invalid", "s3://b/k", input={}))
    assert "spec.input" in refused.value.said


@pytest.mark.parametrize(
    ("name", "spec", "reason", "words"),
    [
        (
            "no-such-source",
            {"model": {"source": "pvc://models/nothing-here"}},
            "SourceNotFound",
            "nothing-here",
        ),
        (
            "no-such-claim",
            {"model": {"source": "pvc://nobody/smollm2"}},
            "Unschedulable",
            "nobody",
        ),
        ("no-image", {"profile": "no-image"}, "ErrImagePull", "localhost/nobody:1"),
        ("no-memory", {"profile": "no-memory"}, "DoesNotFit", "Give more memory"),
        ("no-gpu", {"profile": "three-gpus"}, "Unschedulable", "nvidia.com/gpu"),
    ],
)
def test_a_model_that_cannot_start_says_why(
    site: Site, name: str, spec: dict[str, Any], reason: str, words: str
) -> None:
    site.apply(inference_model(name, **spec))

    def said() -> dict[str, Any] | None:
        condition = site.condition("inferencemodel", name, "Ready")
        return condition if condition.get("reason") == reason else None

    try:
        condition = until(f"{name} says {reason}", said, within=SAID_WITHIN)
        assert condition["status"] == "False"
        assert words in condition["message"]
        assert reason in site.kubectl("get", "inferencemodel", name)
    finally:
        site.kubectl("delete", "inferencemodel", name, "--wait=false")


def test_a_batchjob_whose_input_is_missing_says_so(site: Site, model: str) -> None:
    site.apply(batch_job("no-input", f"s3://{site.namespace}/in/nothing.jsonl"))

    def failed() -> dict[str, Any] | None:
        condition = site.condition("batchjob", "no-input", "Failed")
        return condition if condition.get("status") == "True" else None

    condition = until("the BatchJob fails", failed, within=30)
    assert "in/nothing.jsonl" in condition["message"]
