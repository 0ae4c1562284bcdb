"""From what is asked to its automaton."""

from __future__ import annotations

import json
from dataclasses import dataclass

from skirret_server.grammar.automaton import Automaton, Budget, automaton
from skirret_server.grammar.regex import whole
from skirret_server.grammar.schema import Schema, any_json_object
from skirret_server.grammar.spec import Spec
from skirret_server.grammar.syntax import alt, literal


@dataclass(frozen=True, slots=True)
class Made:
    automaton: Automaton
    unenforced: frozenset[str]  # keywords that were let pass


def make(spec: Spec, budget: Budget) -> Made:
    """Raises GrammarError."""
    source = json.loads(spec.source)
    if spec.kind == "json_schema":
        schema = Schema(source)
        return Made(automaton(schema.tree(), budget), frozenset(schema.unenforced))
    if spec.kind == "regex":
        tree = whole(source)
    elif spec.kind == "choice":
        tree = alt(map(literal, source))
    else:
        tree = any_json_object()
    return Made(automaton(tree, budget), frozenset())
