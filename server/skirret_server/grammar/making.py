"""From what is asked to its automaton."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from skirret_server.grammar.automaton import Automaton, Budget, automaton
from skirret_server.grammar.ebnf import grammar
from skirret_server.grammar.errors import BadGrammar, BadTool
from skirret_server.grammar.likely import likely_bytes
from skirret_server.grammar.regex import whole
from skirret_server.grammar.schema import Schema, any_json_object
from skirret_server.grammar.spec import Spec
from skirret_server.grammar.syntax import Node, alt, literal, repeat, seq
from skirret_server.grammar.tags import structural_tag


@dataclass(frozen=True, slots=True)
class Made:
    automaton: Automaton
    likely: npt.NDArray[np.int16]  # by state: see likely_bytes
    unenforced: frozenset[str]  # keywords that were let pass


def make(spec: Spec, budget: Budget) -> Made:
    """Raises GrammarError."""
    unenforced: set[str] = set()
    tree = _tree(spec, unenforced, budget)
    found = automaton(tree, budget)
    return Made(found, likely_bytes(found), frozenset(unenforced))


def _tree(spec: Spec, unenforced: set[str], budget: Budget) -> Node:
    source = json.loads(spec.source)
    try:
        json.dumps(source, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise BadGrammar("it has half a surrogate pair, which is no character") from None
    except ValueError:
        raise BadGrammar("it has a number that is too large") from None
    if spec.kind == "regex":
        return whole(source)
    if spec.kind == "ebnf":
        return grammar(source)
    if spec.kind == "choice":
        return alt(map(literal, source))
    if spec.kind == "json_schema":
        return _schema(source, unenforced, budget)
    if spec.kind == "tools":
        return _calls(source, unenforced, budget)
    if spec.kind == "structural_tag":
        return structural_tag(source, lambda one: _schema(one, unenforced, budget), budget)
    return any_json_object()


def _schema(source: Any, unenforced: set[str], budget: Budget) -> Node:
    schema = Schema(source, budget)
    tree = schema.tree()
    unenforced |= schema.unenforced
    return tree


def _calls(source: Mapping[str, Any], unenforced: set[str], budget: Budget) -> Node:
    """Calls of the tools as the model's format writes them; or what may come instead."""
    call = alt(
        _call(index, tool, source["arguments"], unenforced, budget)
        for index, tool in enumerate(source["tools"])
    )
    opening, closing = source["opening"], source["closing"]
    # Counting more than one would take a copy of all for each.
    between, most = literal(source["between"]), 1 if source["is_single"] else None
    if source["repeats_frame"]:
        frame = seq(literal(opening + "\n"), call, literal("\n" + closing))
        calls = repeat(frame, 1, most, between)
    elif opening:
        calls = seq(literal(opening + " ["), repeat(call, 1, most, between), literal(closing))
    else:
        calls = repeat(call, 1, most, between)
    if source["or"] is None:
        return calls
    return alt([calls, _tree(Spec(**source["or"]), unenforced, budget)])


def _call(
    index: int, tool: Mapping[str, Any], key: str, unenforced: set[str], budget: Budget
) -> Node:
    parameters = tool["parameters"]
    try:
        if not parameters:
            arguments = any_json_object()
        else:
            arguments = _schema({"type": "object", **parameters}, unenforced, budget)
    except BadGrammar as error:
        raise BadTool(index, str(error)) from error
    head = f'{{"name": {json.dumps(tool["name"])}, "{key}": '
    return seq(literal(head), arguments, literal("}"))
