"""Which structure a request asks for, under any of the names that clients use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from skirret_api.errors import InvalidRequest
from skirret_server.grammar.errors import BadTool, GrammarError, TooComplex
from skirret_server.grammar.spec import Kind, Spec
from skirret_server.text.stops import StopPattern

if TYPE_CHECKING:  # numpy takes long to import, and the socket must answer first
    from skirret_server.grammar.compiler import GrammarCompiler, Ready


@dataclass(frozen=True, slots=True)
class Structure:
    spec: Spec
    param: str  # that asked for it
    name: str = ""  # of the schema, in response_format


def structure(values: Mapping[str, Any]) -> Structure | None:
    """Raises InvalidRequest when it is asked for twice, or isn't JSON."""
    found = [
        *_response_format(values.get("response_format")),
        *_flat(values, "regex", "regex"),
        *_flat(values, "ebnf", "ebnf"),
        *_flat(values, "json_schema", "json_schema"),
        *_flat(values, "structural_tag", "structural_tag"),
        *_flat(values, "guided_regex", "regex"),
        *_flat(values, "guided_json", "json_schema"),
        *_flat(values, "guided_choice", "choice"),
        *_flat(values, "guided_grammar", "ebnf"),
        *_nested(values.get("structured_outputs", {})),
    ]
    if len(found) > 1:
        names = " and ".join(f"'{one.param}'" for one in found)
        raise InvalidRequest(
            f"Only one structure can be asked for, but got {names}.",
            param=found[1].param,
            code="invalid_value",
        )
    return found[0] if found else None


async def compiled(wanted: Structure, compiler: GrammarCompiler) -> Ready:
    """Raises InvalidRequest."""
    try:
        return await compiler.compile(wanted.spec)
    except GrammarError as error:
        raise _refusal(wanted, error) from error


async def compiled_stops(
    patterns: Sequence[str], compiler: GrammarCompiler
) -> tuple[StopPattern, ...]:
    """Raises InvalidRequest."""
    return tuple([await _compiled_stop(pattern, compiler) for pattern in patterns])


async def _compiled_stop(pattern: str, compiler: GrammarCompiler) -> StopPattern:
    from skirret_server.grammar.regex import is_anchored

    ready = await compiled(Structure(Spec.of("regex", pattern), "stop_regex"), compiler)
    if is_anchored(pattern):
        raise _bad_stop("anchors are not supported: it is searched anywhere in the text")
    automaton = ready.grammar.automaton
    if automaton.matches(b""):
        raise _bad_stop("it matches the empty text, so it would stop everything at once")
    return StopPattern(pattern, automaton)


def _bad_stop(reason: str) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid regex for stop_regex: {reason}.", param="stop_regex", code="invalid_grammar"
    )


def _refusal(wanted: Structure, error: GrammarError) -> InvalidRequest:
    if isinstance(error, BadTool):
        param = f"tools[{error.index}].function.parameters"
        return InvalidRequest(
            f"Invalid schema for {param}: {error}", param=param, code="invalid_json_schema"
        )
    kind = wanted.spec.kind
    where = f"{wanted.param} '{wanted.name}'" if wanted.name else wanted.param
    return InvalidRequest(
        f"Invalid {_what(kind)} for {where}: {error}",
        param=wanted.param,
        code="grammar_too_complex" if isinstance(error, TooComplex) else _code(kind),
    )


def _what(kind: Kind) -> str:
    return "schema" if _is_schema(kind) else kind.replace("_", " ")


def _code(kind: Kind) -> str:
    return "invalid_json_schema" if _is_schema(kind) else "invalid_grammar"


def _is_schema(kind: Kind) -> bool:
    return kind in ("json_schema", "json_object", "tools")


def _response_format(value: Mapping[str, Any] | None) -> list[Structure]:
    if value is None or value["type"] == "text":
        return []
    if value["type"] == "json_object":
        return [Structure(Spec.of("json_object"), "response_format")]
    if value["type"] == "structural_tag":
        return [Structure(Spec.of("structural_tag", dict(value)), "response_format")]
    described = value["json_schema"]
    # A schema of null is no schema: any object will do.
    if described.get("schema") is None:
        spec = Spec.of("json_object")
    else:
        spec = Spec.of("json_schema", described["schema"])
    return [Structure(spec, "response_format", described["name"])]


def _nested(value: Mapping[str, Any]) -> list[Structure]:
    kinds: dict[str, Kind] = {
        "json": "json_schema",
        "regex": "regex",
        "choice": "choice",
        "grammar": "ebnf",
        "structural_tag": "structural_tag",
    }
    return [
        Structure(Spec.of(kind, _source(value[name], kind, param)), param)
        for name, kind in kinds.items()
        if name in value and (param := f"structured_outputs.{name}")
    ]


def _flat(values: Mapping[str, Any], param: str, kind: Kind) -> list[Structure]:
    if param not in values:
        return []
    return [Structure(Spec.of(kind, _source(values[param], kind, param)), param)]


def _source(value: Any, kind: Kind, param: str) -> Any:
    """SGLang's and vLLM's clients send schemas as objects, or as JSON in a string."""
    if kind not in ("json_schema", "structural_tag") or not isinstance(value, str):
        return value
    try:
        return from_json(value, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidRequest(
            f"Invalid {_what(kind)} for {param}: it is not JSON: {error}",
            param=param,
            code=_code(kind),
        ) from None
