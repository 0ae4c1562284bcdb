"""Everything of one model, or of one batch, that there was at one time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from skirret_api.parts import Object
from skirret_batch.record import Record
from skirret_operator.reconcile.cause import Progress


@dataclass(frozen=True, slots=True)
class ObservedModel:
    deployment: Object | None = None
    service: Object | None = None
    budget: Object | None = None
    revisions: Sequence[Object] = ()
    preflights: Sequence[Object] = ()  # Jobs
    preflight_pods: Sequence[Object] = ()
    cache_claim: Object | None = None  # the claim of spec.cache, if it is there
    pods: Sequence[Object] = ()
    events: Mapping[str, str] = field(default_factory=dict)  # why a pod hangs, by its name
    progress: Mapping[str, Progress] = field(default_factory=dict)  # by the pod's name
    owners: Mapping[str, str] = field(default_factory=dict)  # names of models, by served name
    refusal: str | None = None  # what the API server said to the last write


@dataclass(frozen=True, slots=True)
class ObservedBatch:
    record: Record | None = None  # None: there is none
    trouble: str | None = None  # why the record could not be read
    jobs: Sequence[Object] = ()
    pods: Sequence[Object] = ()
    # Why a pod hangs, or why a Job has no pods, by its name.
    events: Mapping[str, str] = field(default_factory=dict)
    refusal: str | None = None  # what the API server said to the last write
