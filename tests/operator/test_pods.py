"""The pods we make; `UPDATE_GOLDEN=1 pytest tests/operator` accepts a change."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from skirret_api.launch import from_flags
from skirret_api.model import model_spec
from skirret_api.parts import Object
from skirret_operator.build.server import pod_template
from skirret_operator.reconcile.batch import reconcile as reconcile_batch
from skirret_operator.reconcile.observed import ObservedBatch
from skirret_operator.testing.objects import NOW, batch, config, model

GOLDEN = Path(__file__).parent / "golden"


def server_pod(configuration: Object | None = None, **spec: Any) -> Object:
    given = config(**(configuration or {}))
    desired = model(**spec)
    parsed = model_spec(desired)
    profile = given.profiles[parsed.profile or "cpu"]
    return pod_template(desired, parsed, profile, given, "0123456789")


def worker_pod(configuration: Object | None = None, **spec: Any) -> Object:
    given = config(**(configuration or {}))
    plan = reconcile_batch(batch(**spec), ObservedBatch(), given, NOW)
    found: Object = plan.apply[0]["spec"]["template"]
    return found


def container(template: Object) -> Object:
    (only,) = template["spec"]["containers"]
    found: Object = only
    return found


def settings(template: Object) -> Any:
    """What the server makes of the command that the pod runs."""
    made = container(template)
    return from_flags([*made["command"][4:], *made["args"]])


EVERYTHING: Object = {
    "profile": "gpu",
    "server": {"contextLength": 4096, "disableRadixCache": True},
    "cache": {"claimName": "weights"},
    "model": {
        "source": "hf://org/name",
        "revision": "main",
        "credentialsSecretRef": {"name": "hf"},
    },
    "pod": {
        "env": [{"name": "B", "value": "of the model"}],
        "labels": {"team": "a", "skirret.dev/model": "mine"},
        "annotations": {"note": "x"},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}, "podAffinity": {"x": 1}},
    },
}
GPU: Object = {
    "profiles": {
        "gpu": {
            "image": "skirret-server-cuda:1",
            "resources": {"limits": {"nvidia.com/gpu": 1, "memory": "64Gi"}},
            "nodeSelector": {"gpu": "h100"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "runtimeClassName": "nvidia",
            "server": {"contextLength": 1024, "maxRunningRequests": 128},
            "pod": {
                "env": [{"name": "A", "value": "of the profile"}, {"name": "B", "value": "x"}],
                "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
                "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
            },
        }
    },
    "defaultProfile": None,
    "imagePullSecrets": [{"name": "registry"}],
}

SECRETS: Object = {
    "storeSecretRef": {"name": "theirs"},
    "notify": {"url": "https://example.com/hook", "secretRef": {"name": "hook"}},
}


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("server", server_pod()),
        ("server-with-everything", server_pod(GPU, **EVERYTHING)),
        ("worker", worker_pod()),
        ("worker-with-secrets", worker_pod(**SECRETS)),
    ],
)
def test_pods_are_as_in_the_golden_files(name: str, made: Object) -> None:
    golden = GOLDEN / f"{name}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        # By way of JSON, so that nothing is written as a reference to something else.
        golden.write_text(yaml.safe_dump(json.loads(json.dumps(made)), sort_keys=False))
    assert made == yaml.safe_load(golden.read_text())


@pytest.mark.parametrize(
    "made",
    [server_pod(), server_pod(GPU, **EVERYTHING), worker_pod(), worker_pod(**SECRETS)],
)
def test_pods_are_restricted_and_have_no_token(made: Object) -> None:
    spec, security = made["spec"], container(made)["securityContext"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"] == {"drop": ["ALL"]}


def test_a_server_gets_the_token_and_never_the_store() -> None:
    (volume,) = [v for v in server_pod()["spec"]["volumes"] if v["name"] == "skirret-tenant"]
    assert volume["secret"]["items"] == [{"key": "token", "path": "token"}]


def test_a_cluster_may_assign_the_user() -> None:
    assert "runAsUser" not in server_pod({"runAsUser": None})["spec"]["securityContext"]


def test_the_server_reads_the_command_as_it_was_meant() -> None:
    read = settings(server_pod(GPU, **EVERYTHING))
    assert read.model_path == "hf://org/name@main"
    assert read.context_length == 4096
    assert read.max_running_requests == 128
    assert read.disable_radix_cache
    assert read.files == "off"
    assert read.host == "0.0.0.0"
    assert read.internal_token_file == "/etc/skirret/tenant/token"


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("pvc://models/smollm2", "/models/models/smollm2"),
        ("pvc://models/a/b/", "/models/models/a/b"),
        ("pvc://models", "/models/models"),
        ("file:///srv/model", "/srv/model"),
        ("s3://bucket/prefix", "s3://bucket/prefix"),
        ("hf://org/name", "hf://org/name"),
    ],
)
def test_a_source_becomes_what_the_server_loads(source: str, path: str) -> None:
    assert settings(server_pod(model={"source": source})).model_path == path


def test_a_claim_is_mounted_read_only() -> None:
    made = server_pod()
    (volume,) = [v for v in made["spec"]["volumes"] if v["name"] == "skirret-model"]
    (mount,) = [m for m in container(made)["volumeMounts"] if m["name"] == "skirret-model"]
    assert volume["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}
    assert mount == {"name": "skirret-model", "mountPath": "/models/models", "readOnly": True}


def test_an_explicit_default_wins_over_the_profile() -> None:
    read = settings(server_pod(GPU, profile="gpu", server={"maxRunningRequests": 64}))
    assert read.max_running_requests == 64


def test_a_model_is_split_over_all_gpus_of_its_pod() -> None:
    four = {"limits": {"nvidia.com/gpu": "4", "memory": "64Gi"}}
    made = server_pod(GPU, profile="gpu", resources=four)
    assert settings(made).tensor_parallel_size == 4
    assert {"name": "skirret-shm", "emptyDir": {"medium": "Memory"}} in made["spec"]["volumes"]
    alone = server_pod(GPU, profile="gpu", resources=four, server={"tensorParallelSize": 1})
    assert settings(alone).tensor_parallel_size == 1
    assert settings(server_pod(GPU, profile="gpu")).tensor_parallel_size == 1


def test_labels_of_ours_can_not_be_taken() -> None:
    labels = server_pod(GPU, **EVERYTHING)["metadata"]["labels"]
    assert labels["skirret.dev/model"] == "smollm2"
    assert labels["team"] == "a"


def test_a_batch_has_a_pod_for_each_worker() -> None:
    plan = reconcile_batch(batch(parallelism=3), ObservedBatch(), config(), NOW)
    spec = plan.apply[0]["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 3, 3)
    assert spec["backoffLimit"] == 2**31 - 1


def test_a_worker_knows_how_much_its_namespace_may_have_queued() -> None:
    limited = worker_pod({"batchWorker": {"maxEnqueuedTokens": 5_000_000}})
    assert "--max-enqueued-tokens=5000000" in container(limited)["args"]
