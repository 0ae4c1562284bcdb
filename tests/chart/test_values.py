"""The values: described one by one, and refused with a path when they are wrong."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic.json_schema import models_json_schema

from skirret_api.config import BatchWorker, Profile, Timings
from skirret_api.parts import EnvVar, SecretRef

CHART = Path(__file__).parents[2] / "charts/skirret"
Json = dict[str, Any]


@pytest.fixture
def schema() -> Json:
    found: Json = json.loads((CHART / "values.schema.json").read_text())
    return found


def test_the_schema_of_profiles_is_the_operators_own(schema: Json) -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        schema["$defs"] = operator_definitions()
        text = json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
        (CHART / "values.schema.json").write_text(text)
    assert schema["$defs"] == operator_definitions(), "run UPDATE_GOLDEN=1 pytest tests/chart"


def test_the_table_in_the_readme_is_fresh(schema: Json) -> None:
    readme = CHART / "README.md"
    before, _, rest = readme.read_text().partition("<!-- values -->\n")
    _, _, after = rest.partition("<!-- /values -->\n")
    text = f"{before}<!-- values -->\n{table(schema)}<!-- /values -->\n{after}"
    if os.environ.get("UPDATE_GOLDEN"):
        readme.write_text(text)
    assert readme.read_text() == text, "run UPDATE_GOLDEN=1 pytest tests/chart"


def test_every_value_has_a_description_in_the_schema(schema: Json) -> None:
    parts = [("", schema), *schema["$defs"].items()]
    silent = [
        path
        for name, part in parts
        for path, value in _properties(part, name)
        if not value.get("description")
    ]
    assert silent == []


def test_every_value_of_the_schema_has_its_default_in_the_values_file(schema: Json) -> None:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    missing = [
        path
        for path, _ in _properties(schema, "")
        if "[]" not in path and path != "global" and _at(defaults, path) is _MISSING
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("gatway.replicas=3", "gatway"),
        ("gateway.replica=3", "replica"),
        ("gateway.replicas=0", "/gateway/replicas"),
        ("store.endpoint=minio:9000", "/store/endpoint"),
        ("store.keyPrefix=a", "keyPrefix"),
        ("namespaces[0].name=Team", "/namespaces/0/name"),
        ("namespaces[0].storage=x", "storage"),
        ("namespaces[0].token=short", "/namespaces/0/token"),
        ("profiles.l4.resource.limits=1", "resource"),
        ("profiles.l4.server.contextLenght=1", "contextLenght"),
        ("profiles.l4.tolerations[0].effect=Never", "/profiles/l4/tolerations/0/effect"),
        ("operator.timings.resync=3", "resync"),
        ("httpRoute.enabled=true", "/httpRoute/parentRefs"),
        ("imagePullPolicy=Sometimes", "/imagePullPolicy"),
    ],
)
def test_a_wrong_value_is_refused_by_its_path(
    given: str, path: str, refusal: Callable[..., str]
) -> None:
    assert path in refusal("minimal", given)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            ("store.endpoint=", "store.bucket=b"),
            "store.endpoint is missing for namespace skirret",
        ),
        (
            ("namespaces[1].name=other",),
            "namespaces skirret and other share the store http://minio.minio.svc:9000/skirret/",
        ),
    ],
)
def test_values_that_contradict_each_other_are_refused_in_words(
    given: tuple[str, ...], sentence: str, refusal: Callable[..., str]
) -> None:
    assert sentence in refusal("minimal", *given)


def operator_definitions() -> Json:
    """The parts of the operator's configuration that are values of the chart."""
    models = (Profile, BatchWorker, Timings, EnvVar, SecretRef)
    _, schema = models_json_schema([(model, "validation") for model in models])
    definitions: Json = _tidy(schema["$defs"])
    return definitions


def _tidy(part: Any) -> Any:
    """Without what only the API server reads, and without pydantic's titles."""
    if isinstance(part, list):
        return [_tidy(x) for x in part]
    if not isinstance(part, dict):
        return part
    return {
        key: {name: _tidy(x) for name, x in value.items()} if key == "properties" else _tidy(value)
        for key, value in part.items()
        if key != "title" and not key.startswith("x-kubernetes-")
    }


def table(schema: Json) -> str:
    """The values as Markdown, in the order of the schema."""
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    rows = ["| value | what it is | default |", "|---|---|---|"]
    for path, value in _properties(schema, ""):
        if "properties" in value:
            continue
        default = _at(defaults, path)
        shown = "" if default in (_MISSING, "", None) else f"`{json.dumps(default)}`"
        if path == "profiles":
            shown = ", ".join(f"`{name}`" for name in default)
        if path == "ingress.annotations":
            shown = "see `values.yaml`"
        rows.append(f"| `{path}` | {value['description']} | {shown} |")
    return "\n".join(rows) + "\n"


_MISSING: Any = object()


def _properties(part: Json, path: str) -> Iterator[tuple[str, Json]]:
    """Every value below `part` by its dotted path, `[]` standing for an entry of a list."""
    for name, value in part.get("properties", {}).items():
        below = f"{path}.{name}" if path else name
        yield below, value
        yield from _properties(value, below)
        yield from _properties(value.get("items", {}), f"{below}[]")


def _at(values: Any, path: str) -> Any:
    for key in path.split("."):
        if not isinstance(values, dict) or key not in values:
            return _MISSING
        values = values[key]
    return values
