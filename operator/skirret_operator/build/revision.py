"""Revisions: what `spec` said about the pod, and the template that was rendered from it then.

A model's Deployment is always applied from a stored template. So a new Skirret, image or profile
restarts no pod: it renders another template, which only the next revision takes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from hashlib import sha256

from skirret_api import meta
from skirret_api.meta import REVISION_LABEL, child_name
from skirret_api.model import POD_FIELDS
from skirret_api.parts import Object
from skirret_operator.build.metadata import child
from skirret_operator.build.server import labels
from skirret_operator.kinds import REVISION
from skirret_operator.reconcile.times import epoch, rfc3339

KEPT = 3


@dataclass(frozen=True, slots=True)
class Revision:
    inputs: Object
    template: Object
    number: int  # the highest is the one last asked for
    asked: float  # when `spec` last came to ask for it
    served: bool = False  # since then, every pod of it has answered at one time
    failed: str | None = None  # why it gave way to another since then
    live: Object | None = None  # None: not stored yet

    @property
    def name(self) -> str:
        return digest(self.inputs)

    def again(self, number: int, now: float) -> Revision:
        """The same, asked for anew."""
        return replace(self, number=number, asked=now, served=False, failed=None)


def inputs(model: Object) -> Object:
    """The user's words that shape the pod, as they are stored: no release reads them otherwise."""
    return {field: model["spec"][field] for field in POD_FIELDS if field in model["spec"]}


def digest(said: Object) -> str:
    """Names a revision: equal words make an equal revision, in whatever order they stand."""
    text = json.dumps(said, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()[:10]


def controller_revision(model: Object, revision: Revision) -> Object:
    """Its data can't change; the number does when it is asked for again, and what became of it."""
    made = child(
        REVISION,
        model,
        child_name(model["metadata"]["name"], revision.name),
        {**labels(model), REVISION_LABEL: revision.name},
        revision=revision.number,
        data={"inputs": revision.inputs, "template": revision.template},
    )
    marks = {
        meta.ASKED: rfc3339(revision.asked),
        meta.SERVED: "true" if revision.served else None,
        meta.FAILED: revision.failed,
    }
    made["metadata"]["annotations"] = {k: v for k, v in marks.items() if v is not None}
    return made


def stored(live: Object) -> Revision:
    data, metadata = live["data"], live["metadata"]
    marks = metadata.get("annotations", {})
    return Revision(
        data["inputs"],
        data["template"],
        live["revision"],
        asked=epoch(marks.get(meta.ASKED) or metadata["creationTimestamp"]),
        served=marks.get(meta.SERVED) == "true",
        failed=marks.get(meta.FAILED),
        live=live,
    )
