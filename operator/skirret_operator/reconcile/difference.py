"""Whether an object must be applied: nothing is written when nothing differs.

Two questions. Does the live object still say all that we want? And is what we want the same as what
we wanted last time? The second one, answered by a digest on the object, is how a field that we no
longer want is found: the live object can't tell whose it is.
"""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation
from hashlib import sha256
from typing import Any

from skirret_api.meta import GROUP
from skirret_api.parts import Object

APPLIED = f"{GROUP}/applied"


def stamped(desired: Object) -> Object:
    """`desired` with its digest on it."""
    text = json.dumps(desired, sort_keys=True, separators=(",", ":"))
    metadata = desired["metadata"]
    annotations = {
        **metadata.get("annotations", {}),
        APPLIED: sha256(text.encode()).hexdigest()[:16],
    }
    return {**desired, "metadata": {**metadata, "annotations": annotations}}


def differs(live: Object | None, desired: Object) -> bool:
    """Whether applying the stamped `desired` would change anything."""
    return live is None or not covers(live, desired)


def is_going(live: Object | None) -> bool:
    """Whether it is being deleted: its end is awaited then, since a write would be lost with it."""
    return live is not None and "deletionTimestamp" in live["metadata"]


def covers(live: Any, desired: Any) -> bool:
    """Whether `live` says all that `desired` says; what others or defaults added is no matter."""
    if isinstance(desired, dict):
        return isinstance(live or {}, dict) and all(
            covers((live or {}).get(name), value) for name, value in desired.items()
        )
    if isinstance(desired, list):
        return _covers_list(live or [], desired)
    return _same(live, desired)


def _covers_list(live: list[Any], desired: list[Any]) -> bool:
    if not all(isinstance(item, dict) for item in desired):
        return live == desired
    left = list(live)
    for item in desired:
        match = next((each for each in left if covers(each, item)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def _same(live: Any, desired: Any) -> bool:
    # The API server leaves out what is empty, and writes 1000m as 1.
    if live == desired or (not live and not desired):
        return True
    return _quantity(live) is not None and _quantity(live) == _quantity(desired)


_SUFFIXES = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal(10) ** 3,
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate("MGTPE", start=2)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", start=1)},
}


def _quantity(value: Any) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    number = str(value).rstrip("numkKMGTPEi")
    factor = _SUFFIXES.get(str(value)[len(number) :])
    try:
        return None if factor is None else Decimal(number) * factor
    except InvalidOperation:
        return None
