"""CustomResourceDefinitions out of the pydantic models: `python -m skirret_api.crd [--check]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from skirret_api.batchjob import BatchJob
from skirret_api.meta import GROUP, VERSION
from skirret_api.model import InferenceModel, ServerOverrides
from skirret_api.parts import Object

_HEADER = "# Made by `python -m skirret_api.crd` from crds/skirret_api; edit it there.\n"


def inference_models() -> Object:
    return _definition(
        InferenceModel,
        plural="inferencemodels",
        short_name="skm",
        subresources={
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas.current",
                "labelSelectorPath": ".status.selector",
            },
        },
        columns=[
            _column("Ready", '.status.conditions[?(@.type=="Ready")].status'),
            _column("Replicas", ".status.replicas.summary"),
            _column("Reason", '.status.conditions[?(@.type=="Ready")].reason'),
            _column("Message", '.status.conditions[?(@.type=="Ready")].message'),
            _column("Age", ".metadata.creationTimestamp", kind="date"),
            _column("URL", ".status.url", priority=1),
            _column("Revision", ".status.revisions.serving", priority=1),
        ],
    )


def batch_jobs() -> Object:
    return _definition(
        BatchJob,
        plural="batchjobs",
        short_name="skb",
        subresources={"status": {}},
        columns=[
            _column("Model", ".status.model"),
            _column("Status", ".status.status"),
            _column("Done", ".status.done"),
            _column("Failed", ".status.requestCounts.failed", kind="integer"),
            _column("Tok/s", ".status.progress.tokensPerSecond", kind="number"),
            _column("ETA", ".status.progress.eta"),
            _column("Age", ".metadata.creationTimestamp", kind="date"),
            _column("Reason", '.status.conditions[?(@.type=="Complete")].reason', priority=1),
            _column("Message", '.status.conditions[?(@.type=="Complete")].message', priority=1),
        ],
    )


def definitions() -> list[Object]:
    return [inference_models(), batch_jobs()]


def schema(model: type[BaseModel]) -> Object:
    """The structural OpenAPI v3 schema of a model, as a CRD takes it."""
    raw = model.model_json_schema(by_alias=True)
    defs = raw.get("$defs", {})
    for setting in defs.get(ServerOverrides.__name__, {}).get("properties", {}).values():
        _tell_default(setting)
    return _structural(raw, defs)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m skirret_api.crd", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if one is stale")
    parser.add_argument("--folder", type=Path, default=Path("crds"), help="where they are (crds)")
    options = parser.parse_args(arguments)
    stale = []
    for definition in definitions():
        path = options.folder / f"{definition['metadata']['name']}.yaml"
        text = _HEADER + yaml.dump(definition, Dumper=_Plain, sort_keys=False, width=100)
        if path.exists() and path.read_text() == text:
            continue
        stale.append(path)
        if not options.check:
            path.write_text(text)
    for path in stale:
        print(f"{path}: {'stale; run python -m skirret_api.crd' if options.check else 'written'}")
    return 1 if options.check and stale else 0


class _Plain(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _definition(
    model: type[BaseModel],
    *,
    plural: str,
    short_name: str,
    subresources: Object,
    columns: list[Object],
) -> Object:
    kind = model.__name__
    body = schema(model)
    body["properties"] = {
        "apiVersion": {
            "type": "string",
            "description": "Group and version of this object's schema.",
        },
        "kind": {"type": "string", "description": "What this object is."},
        "metadata": {"type": "object"},
        **body["properties"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short_name],
                "categories": ["skirret"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": subresources,
                    "additionalPrinterColumns": columns,
                    "schema": {"openAPIV3Schema": body},
                }
            ],
        },
    }


def _column(name: str, path: str, *, kind: str = "string", priority: int = 0) -> Object:
    column: Object = {"name": name, "type": kind, "jsonPath": path}
    return column | {"priority": priority} if priority else column


# JSON Schema words that a structural schema keeps as they are.
_KEPT = (
    "type",
    "format",
    "description",
    "enum",
    "pattern",
    "required",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
)


def _structural(node: Any, defs: Object) -> Object:
    """`node` without references, unions with null, and words that OpenAPI v3 does not know."""
    node = _resolve(node, defs)
    found: Object = {word: node[word] for word in _KEPT if word in node}
    found |= {word: value for word, value in node.items() if word.startswith("x-kubernetes-")}
    if "const" in node:
        found["enum"] = [node["const"]]
    for bound in ("Minimum", "Maximum"):
        if f"exclusive{bound}" in node:
            found[bound.lower()] = node[f"exclusive{bound}"]
            found[f"exclusive{bound}"] = True
    if "properties" in node:
        found["properties"] = {
            name: _structural(child, defs) for name, child in node["properties"].items()
        }
    if "items" in node:
        found["items"] = _structural(node["items"], defs)
    if isinstance(node.get("additionalProperties"), dict):
        found["additionalProperties"] = _structural(node["additionalProperties"], defs)
    # Only a plain value becomes a default of the API server; an absent list means an empty one.
    if isinstance(node.get("default"), str | int | float) and node["default"] != "":
        found["default"] = node["default"]
    return found


def _resolve(node: Object, defs: Object) -> Object:
    """What a `$ref` names or what `anyOf: [it, null]` means, under the words said beside it."""
    while "$ref" in node or "anyOf" in node:
        beside = {word: value for word, value in node.items() if word not in ("$ref", "anyOf")}
        if "$ref" in node:
            target = defs[node["$ref"].removeprefix("#/$defs/")]
        else:
            (target,) = [option for option in node["anyOf"] if option.get("type") != "null"]
        # Rules of a class and of the field that holds it both count.
        both = [*target.get(_RULES, ()), *beside.get(_RULES, ())]
        node = {**target, **beside} | ({_RULES: both} if both else {})
    return node


_RULES = "x-kubernetes-validations"


def _tell_default(setting: Object) -> None:
    """Says a launch setting's default instead of setting it: the profile's may differ."""
    default = setting.pop("default", None)
    if default is not None:
        setting["description"] += f" ({str(default).lower()} by default)"
    setting["description"] += "."


if __name__ == "__main__":
    sys.exit(main())
