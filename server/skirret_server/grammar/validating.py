"""Whether an answer keeps to what was asked for, told apart from how it was made."""

from __future__ import annotations

import json
from decimal import Decimal, localcontext
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from skirret_server.grammar.automaton import Automaton
from skirret_server.grammar.spec import Spec

_DIGITS = 1000


def broken_rule(spec: Spec, automaton: Automaton, answer: bytes) -> str | None:
    """The name of a rule that the whole answer breaks: never any of its text.

    Of a schema also by `jsonschema`, where that is installed.
    """
    if not automaton.matches(answer):
        return spec.kind
    if spec.kind != "json_schema":
        return None
    try:
        value = _decimal(answer.decode())
    except ValueError:
        return "JSON"
    validator = _validator(spec.source)
    try:
        with localcontext(prec=_DIGITS):  # of a remainder: 1e99 by steps of 0.01
            error = None if validator is None else next(validator.iter_errors(value), None)
    except RecursionError:  # it follows references that go round, which nothing written depends on
        return None
    return None if error is None else str(error.validator)


def _decimal(text: str) -> Any:
    """In binary fractions 0.07 would be no multiple of 0.01."""
    return json.loads(text, parse_float=Decimal)


@lru_cache(maxsize=64)
def _validator(source: str) -> Any:
    if find_spec("jsonschema") is None:
        return None
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend, validator_for

    schema = _decimal(source)
    # Patterns are the automaton's: Python's engine may need for ever, and reads another dialect.
    kind = extend(  # type: ignore[no-untyped-call]
        validator_for(schema, default=Draft202012Validator), {"pattern": _passes}
    )
    return kind(schema)


def _passes(*_: Any) -> None:
    return None
