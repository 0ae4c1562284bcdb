"""Every example is one that the API server and the chart take."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from skirret_api.batchjob import BatchJobSpec
from skirret_api.meta import API_VERSION
from skirret_api.model import InferenceModelSpec

EXAMPLES = Path(__file__).parents[2] / "examples"
PROFILES = yaml.safe_load((EXAMPLES.parent / "charts/skirret/values.yaml").read_text())["profiles"]


def resource(path: Path, kind: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    assert (found["apiVersion"], found["kind"]) == (API_VERSION, kind)
    return found


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("model*.yaml")), ids=lambda path: path.stem)
def test_a_models_fields_and_profile_exist(path: Path) -> None:
    spec = InferenceModelSpec.model_validate(resource(path, "InferenceModel")["spec"])
    assert spec.profile in PROFILES


@pytest.mark.parametrize(
    "path", sorted(EXAMPLES.glob("batchjob*.yaml")), ids=lambda path: path.stem
)
def test_the_batchs_fields_exist(path: Path) -> None:
    *_, job = yaml.safe_load_all(path.read_text())
    assert (job["apiVersion"], job["kind"]) == (API_VERSION, "BatchJob")
    BatchJobSpec.model_validate(job["spec"])


def test_the_batchs_input_asks_the_example_model_by_unique_ids() -> None:
    lines = [json.loads(x) for x in (EXAMPLES / "capitals.jsonl").read_text().splitlines()]
    model = resource(EXAMPLES / "model.yaml", "InferenceModel")["metadata"]["name"]
    assert {line["body"]["model"] for line in lines} == {model}
    assert len({line["custom_id"] for line in lines}) == len(lines)


def test_the_readme_names_every_file() -> None:
    readme = (EXAMPLES / "README.md").read_text()
    assert [x.name for x in EXAMPLES.iterdir() if f"`{x.name}`" not in readme] == ["README.md"]


def test_the_chat_script_compiles() -> None:
    path = EXAMPLES / "chat.py"
    compile(path.read_text(), path, "exec")
