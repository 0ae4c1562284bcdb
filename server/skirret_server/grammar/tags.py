"""Structural tags: free text, and a grammar wherever a trigger stands in it.

Both forms that SGLang's clients send: `structures` with `triggers`, and XGrammar's `format`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from skirret_server.grammar.automaton import Budget, both
from skirret_server.grammar.ebnf import grammar
from skirret_server.grammar.errors import BadGrammar
from skirret_server.grammar.regex import ANY, whole
from skirret_server.grammar.syntax import (
    EMPTY,
    NEVER,
    Graph,
    Node,
    alt,
    literal,
    repeat,
    seq,
)

_LEVELS = 16  # of formats inside each other
_MOST_TRIGGERS = 33
_MOST_TRIGGER_TEXT = 1000  # characters

OfSchema = Callable[[Any], Node]


def structural_tag(source: Any, of_schema: OfSchema, budget: Budget) -> Node:
    """`of_schema` makes the tree of a JSON Schema. Raises GrammarError."""
    formats = _Formats(of_schema, budget)
    if not isinstance(source, dict):
        raise BadGrammar("a structural tag is an object")
    if "format" in source:
        _check_fields(source, "#", {"format"}, {"type"})
        return formats.node(source["format"], "#/format", None)
    _check_fields(source, "#", {"structures", "triggers"}, {"type"})
    tags = []
    for index, one in enumerate(_items(source, "structures", "#")):
        _check_fields(one, f"#/structures/{index}", {"begin", "schema", "end"}, set())
        content = {"type": "json_schema", "json_schema": one["schema"]}
        tags.append({"type": "tag", "begin": one["begin"], "content": content, "end": one["end"]})
    triggered = {"type": "triggered_tags", "triggers": source["triggers"], "tags": tags}
    return formats.node(triggered, "#", None)


class _Formats:
    def __init__(self, of_schema: OfSchema, budget: Budget) -> None:
        self._of_schema = of_schema
        self._budget = budget
        self._level = 0
        self._kinds: dict[str, Callable[[Mapping[str, Any], str, str | None], Node]] = {
            "const_string": self._constant,
            "json_schema": self._schema,
            "regex": self._regex,
            "grammar": self._grammar,
            "any_text": self._any_text,
            "sequence": self._sequence,
            "or": self._or,
            "tag": self._tag,
            "triggered_tags": self._triggered,
            "tags_with_separator": self._separated,
        }

    def node(self, one: Any, at: str, end: str | None) -> Node:
        """`end`: what ends the tag around it, and so can't stand in its free text."""
        kind = one.get("type") if isinstance(one, dict) else None
        if kind not in self._kinds:
            known = ", ".join(self._kinds)
            raise BadGrammar(f"{at}: 'type' must be one of {known}")
        self._level += 1
        if self._level > _LEVELS:
            raise BadGrammar(f"{at}: formats are nested more than {_LEVELS} levels deep")
        found = self._kinds[kind](one, at, end)
        self._level -= 1
        return found

    def _constant(self, one: Mapping[str, Any], at: str, _: str | None) -> Node:
        _check_fields(one, at, {"type", "value"}, set())
        return literal(_text(one, "value", at))

    def _schema(self, one: Mapping[str, Any], at: str, _: str | None) -> Node:
        _check_fields(one, at, {"type", "json_schema"}, set())
        return self._of_schema(one["json_schema"])

    def _regex(self, one: Mapping[str, Any], at: str, _: str | None) -> Node:
        _check_fields(one, at, {"type", "pattern"}, set())
        return whole(_text(one, "pattern", at))

    def _grammar(self, one: Mapping[str, Any], at: str, _: str | None) -> Node:
        _check_fields(one, at, {"type", "grammar"}, set())
        return grammar(_text(one, "grammar", at))

    def _any_text(self, one: Mapping[str, Any], at: str, end: str | None) -> Node:
        _check_fields(one, at, {"type"}, set())
        if end and len(end) > _MOST_TRIGGER_TEXT:
            raise BadGrammar(f"{at}: an 'end' has at most {_MOST_TRIGGER_TEXT} characters")
        return self._free([end] if end else [])

    def _sequence(self, one: Mapping[str, Any], at: str, end: str | None) -> Node:
        _check_fields(one, at, {"type", "elements"}, set())
        return seq(*self._each(one, "elements", at, end))

    def _or(self, one: Mapping[str, Any], at: str, end: str | None) -> Node:
        _check_fields(one, at, {"type", "elements"}, set())
        return alt(self._each(one, "elements", at, end))

    def _each(self, one: Mapping[str, Any], name: str, at: str, end: str | None) -> list[Node]:
        return [
            self.node(part, f"{at}/{name}/{index}", end)
            for index, part in enumerate(_items(one, name, at))
        ]

    def _tag(self, one: Mapping[str, Any], at: str, _: str | None) -> Node:
        return seq(literal(_text(one, "begin", at)), self._after_begin(one, at))

    def _after_begin(self, one: Mapping[str, Any], at: str) -> Node:
        _check_fields(one, at, {"begin", "content", "end"}, {"type"})
        end = _text(one, "end", at, may_be_empty=True)
        return seq(self.node(one["content"], f"{at}/content", end or None), literal(end))

    def _triggered(self, one: Mapping[str, Any], at: str, end: str | None) -> Node:
        _check_fields(one, at, {"type", "triggers", "tags"}, {"at_least_one", "stop_after_first"})
        triggers = _items(one, "triggers", at)
        if not all(isinstance(each, str) and each for each in triggers):
            raise BadGrammar(f"{at}: 'triggers' must be texts that are not empty")
        words = [*triggers, *([end] if end else [])]
        if len(words) > _MOST_TRIGGERS or sum(map(len, words)) > _MOST_TRIGGER_TEXT:
            raise BadGrammar(
                f"{at}: at most {_MOST_TRIGGERS - 1} 'triggers' are supported, with "
                f"{_MOST_TRIGGER_TEXT} characters in all"
            )
        _check_apart(words, at)
        tags: dict[str, list[Node]] = {trigger: [] for trigger in triggers}
        wholes: list[Node] = []
        for index, tag in enumerate(_items(one, "tags", at)):
            here = f"{at}/tags/{index}"
            if not isinstance(tag, dict):
                raise BadGrammar(f"{here} must be an object")
            begin, after = _text(tag, "begin", here), self._after_begin(tag, here)
            trigger = next((each for each in triggers if begin.startswith(each)), None)
            if trigger is None:
                raise BadGrammar(f"{here}: 'begin' starts with none of the triggers")
            tags[trigger].append(seq(literal(begin[len(trigger) :]), after))
            wholes.append(seq(literal(begin), after))
        tag_in_text = alt(
            seq(self._until(words, trigger), alt(nodes)) for trigger, nodes in tags.items()
        )
        text = self._free(words)
        must, is_last = _flag(one, "at_least_one", at), _flag(one, "stop_after_first", at)
        first = alt(wholes) if must else tag_in_text  # what must come comes at once
        if is_last:
            return first if must else alt([first, text])
        return seq(first if must else EMPTY, repeat(tag_in_text, 0, None), text)

    def _separated(self, one: Mapping[str, Any], at: str, end: str | None) -> Node:
        _check_fields(one, at, {"type", "tags", "separator"}, {"at_least_one", "stop_after_first"})
        tags = alt(
            self._tag(tag, f"{at}/tags/{index}", end) if isinstance(tag, dict) else NEVER
            for index, tag in enumerate(_items(one, "tags", at))
        )
        between = literal(_text(one, "separator", at, may_be_empty=True))
        most = 1 if _flag(one, "stop_after_first", at) else None
        return repeat(tags, int(_flag(one, "at_least_one", at)), most, between)

    def _free(self, words: Sequence[str]) -> Node:
        """Texts in which none of the words stands."""
        return self._scanned(words, None)

    def _until(self, words: Sequence[str], word: str) -> Node:
        """Texts that end with this one, the first of the words in them."""
        return self._scanned(words, word)

    def _scanned(self, words: Sequence[str], word: str | None) -> Node:
        found = _scan([each.encode() for each in words], word.encode() if word else None)
        return both(found, repeat(ANY, 0, None), self._budget)


def _scan(words: Sequence[bytes], word: bytes | None) -> Graph:
    """States are how much of a word was just read. A whole word ends the text, or forbids it."""
    heads = {each[:length] for each in words for length in range(len(each) + 1)} | {b""}
    number = {head: index for index, head in enumerate(sorted(heads, key=len))}
    after: dict[bytes, list[bytes]] = {}  # of each head: what is read of a word behind each byte
    shorter = {b"": b""}  # of each head: the longest other one that ends like it
    for head in number:
        if len(head) > 1:
            shorter[head] = after[shorter[head[:-1]]][head[-1]]
        else:
            shorter[head] = b""
        longer = [head + bytes((byte,)) for byte in range(256)]
        others = after[shorter[head]] if head else [b""] * 256
        after[head] = [
            one if one in number else other for one, other in zip(longer, others, strict=True)
        ]
    edges = [
        tuple(
            (byte, byte, number[following])
            for byte, following in enumerate(after[head] if head not in words else ())
            if following not in words or following == word
        )
        for head in number
    ]
    ends = [head for head in number if (head not in words if word is None else head == word)]
    return Graph(tuple(edges), frozenset(number[head] for head in ends), number[b""])


def _check_apart(words: Sequence[str], at: str) -> None:
    for one in words:
        if any(one in other for other in words if other is not one):
            raise BadGrammar(f"{at}: one of 'triggers' is part of another, or of the tag's 'end'")


def _check_fields(one: Any, at: str, required: set[str], optional: set[str]) -> None:
    if not isinstance(one, dict):
        raise BadGrammar(f"{at} must be an object")
    for name in sorted(required - one.keys()):
        raise BadGrammar(f"{at}: '{name}' is missing")
    for name in sorted(one.keys() - required - optional):
        raise BadGrammar(f"{at}: '{name[:60]}' is not supported")


def _items(one: Mapping[str, Any], name: str, at: str) -> list[Any]:
    value = one.get(name)
    if not isinstance(value, list) or not value:
        raise BadGrammar(f"{at}: '{name}' must be a list that is not empty")
    return value


def _text(one: Mapping[str, Any], name: str, at: str, *, may_be_empty: bool = False) -> str:
    value = one.get(name)
    if not isinstance(value, str) or not (value or may_be_empty):
        raise BadGrammar(f"{at}: '{name}' must be a text{'' if may_be_empty else ', not empty'}")
    return value


def _flag(one: Mapping[str, Any], name: str, at: str) -> bool:
    value = one.get(name, False)
    if not isinstance(value, bool):
        raise BadGrammar(f"{at}: '{name}' must be true or false")
    return value
