"""What a JSON value must look like, checked strictly, refused in OpenAI's words.

A shape checks a value and returns it; its `str()` is what the documentation says of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from skirret_api.errors import InvalidRequest


class Shape(Protocol):
    @property
    def noun(self) -> str:
        """What is expected, with its article."""

    def accepts(self, value: Any) -> bool:
        """Whether the value is of the right JSON type."""

    def check(self, value: Any, path: str) -> Any:
        """The value. Raises InvalidRequest; `path` is where it stands in the request."""


@dataclass(frozen=True, slots=True)
class Boolean:
    noun = "a boolean"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, bool)

    def check(self, value: Any, path: str) -> Any:
        return value if isinstance(value, bool) else _refuse_type(self, value, path)

    def __str__(self) -> str:
        return "boolean"


@dataclass(frozen=True, slots=True)
class Integer:
    min: int
    max: int
    noun = "an integer"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool)

    def check(self, value: Any, path: str) -> Any:
        if not self.accepts(value):
            _refuse_type(self, value, path)
        return _in_range(value, self.min, self.max, "integer", path)

    def __str__(self) -> str:
        return f"integer {_number(self.min)}…{_number(self.max)}"


@dataclass(frozen=True, slots=True)
class Decimal:
    min: float
    max: float
    excludes_min: bool = False
    noun = "a decimal"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, (int, float)) and not isinstance(value, bool)

    def check(self, value: Any, path: str) -> Any:
        if not self.accepts(value):
            _refuse_type(self, value, path)
        if self.excludes_min and value == self.min:
            _refuse_number(value, self.min, "decimal", path, "below minimum", ">")
        return float(_in_range(value, self.min, self.max, "decimal", path))

    def __str__(self) -> str:
        return f"number {'above ' if self.excludes_min else ''}{self.min:g}…{self.max:g}"


@dataclass(frozen=True, slots=True)
class String:
    min: int = 0
    max: int = 10_485_760
    pattern: str | None = None
    noun = "a string"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, str)

    def check(self, value: Any, path: str) -> Any:
        if not isinstance(value, str):
            _refuse_type(self, value, path)
        length = len(value)
        if length > self.max:
            raise _invalid(
                f"Invalid '{path}': string too long. Expected a string with maximum length "
                f"{self.max}, but got a string with length {length} instead.",
                path,
                "string_above_max_length",
            )
        if length < self.min:
            raise _invalid(
                f"Invalid '{path}': string too short. Expected a string with minimum length "
                f"{self.min}, but got a string with length {length} instead.",
                path,
                "string_below_min_length",
            )
        if self.pattern is not None and not re.fullmatch(self.pattern, value):
            raise _invalid(
                f"Invalid '{path}': string does not match pattern. Expected a string that "
                f"matches the pattern '^{self.pattern}$'.",
                path,
                "invalid_value",
            )
        return value

    def __str__(self) -> str:
        limits = f" of {self.min}…{self.max} characters" if self.max < 10_485_760 else ""
        return f"string{limits}" + (f" matching `^{self.pattern}$`" if self.pattern else "")


@dataclass(frozen=True, slots=True)
class Enum:
    values: tuple[str, ...]
    noun = "a string"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, str)

    def check(self, value: Any, path: str) -> Any:
        if not isinstance(value, str):
            _refuse_type(self, value, path)
        if value not in self.values:
            supported = ", ".join(f"'{v}'" for v in self.values)
            shown = value if len(value) <= 100 else value[:100] + "…"
            raise _invalid(
                f"Invalid value: '{shown}'. Supported values are: {supported}.",
                path,
                "invalid_value",
            )
        return value

    def __str__(self) -> str:
        return " \\| ".join(f"`{value}`" for value in self.values)


@dataclass(frozen=True, slots=True)
class Array:
    item: Shape
    min: int = 0
    max: int = 1_000_000
    noun = "an array"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, list)

    def check(self, value: Any, path: str) -> Any:
        if not isinstance(value, list):
            _refuse_type(self, value, path)
        self._check_length(len(value), path)
        check = self.item.check
        return [check(item, f"{path}[{index}]") for index, item in enumerate(value)]

    def _check_length(self, length: int, path: str) -> None:
        if length > self.max:
            raise _invalid(
                f"Invalid '{path}': array too long. Expected an array with maximum length "
                f"{self.max}, but got an array with length {length} instead.",
                path,
                "array_above_max_length",
            )
        if length >= self.min:
            return
        if length == 0:
            raise _invalid(
                f"Invalid '{path}': empty array. Expected an array with minimum length "
                f"{self.min}, but got an empty array instead.",
                path,
                "empty_array",
            )
        raise _invalid(
            f"Invalid '{path}': array too short. Expected an array with minimum length "
            f"{self.min}, but got an array with length {length} instead.",
            path,
            "array_below_min_length",
        )

    def __str__(self) -> str:
        length = f" of {self.min}…{self.max}" if self.max < 1_000_000 else ""
        return f"array{length} of {self.item}"


@dataclass(frozen=True, slots=True)
class TokenIds:
    """An array of token ids: often long, so looked at as a whole first."""

    max_id: int
    noun = "an array"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, list) and bool(value) and set(map(type, value)) == {int}

    def check(self, value: Any, path: str) -> Any:
        if self.accepts(value) and min(value) >= 0 and max(value) <= self.max_id:
            return value
        return Array(Integer(0, self.max_id), min=1).check(value, path)

    def __str__(self) -> str:
        return "array of token ids"


@dataclass(frozen=True, slots=True)
class Map:
    """An object whose keys the caller chooses."""

    value: Shape
    max: int = 1_000_000
    key_max: int = 10_485_760
    names_items: bool = True  # a refused item is named by its key, or by the map alone
    noun = "an object"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, dict)

    def check(self, value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            _refuse_type(self, value, path)
        if len(value) > self.max:
            raise _invalid(
                f"Invalid '{path}': too many properties. Expected an object with at most "
                f"{self.max} properties, but got an object with {len(value)} properties instead.",
                path,
                "object_above_max_properties",
            )
        for key in value:
            if len(key) > self.key_max:
                raise _invalid(
                    f"Invalid '{path}': key too long. Expected keys of at most {self.key_max} "
                    f"characters, but got one of {len(key)} instead.",
                    path,
                    "string_above_max_length",
                )
        return {
            key: self.value.check(item, f"{path}.{key}" if self.names_items else path)
            for key, item in value.items()
        }

    def __str__(self) -> str:
        size = f" of at most {self.max}" if self.max < 1_000_000 else ""
        return f"map{size} to {self.value}"


@dataclass(frozen=True, slots=True)
class Anything:
    """Any JSON value; somebody else judges it."""

    noun = "a value"

    def accepts(self, value: Any) -> bool:
        return True

    def check(self, value: Any, path: str) -> Any:
        return value

    def __str__(self) -> str:
        return "any value"


@dataclass(frozen=True, slots=True)
class Field:
    shape: Shape
    required: bool = False


@dataclass(frozen=True, slots=True)
class Object:
    """An object with these fields and no others; null is absent."""

    fields: Mapping[str, Field]
    noun = "an object"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, dict)

    def check(self, value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            _refuse_type(self, value, path)
        prefix = f"{path}." if path else ""
        refuse_unknown(value, self.fields, prefix)
        checked = {}
        for name, field_ in self.fields.items():
            item = value.get(name)
            if item is not None:
                checked[name] = field_.shape.check(item, prefix + name)
            elif field_.required:
                raise missing(prefix + name)
        return checked

    def __str__(self) -> str:
        return "{" + ", ".join(f"`{name}`" for name in self.fields) + "}"


@dataclass(frozen=True, slots=True)
class Tagged:
    """An object whose other fields depend on one of them."""

    tag: str
    variants: Mapping[str, Shape]
    default: str | None = None  # for objects without the tag
    noun = "an object"
    _tags: Enum = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_tags", Enum(tuple(self.variants)))

    def accepts(self, value: Any) -> bool:
        return isinstance(value, dict)

    def check(self, value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            _refuse_type(self, value, path)
        tag = value.get(self.tag, self.default)
        if tag is None:
            raise missing(f"{path}.{self.tag}")
        return self.variants[self._tags.check(tag, f"{path}.{self.tag}")].check(value, path)

    def __str__(self) -> str:
        return f"object with `{self.tag}` {self._tags}"


@dataclass(frozen=True, slots=True)
class Either:
    """The first shape of the value's JSON type decides."""

    shapes: tuple[Shape, ...]

    @property
    def noun(self) -> str:
        return " or ".join(dict.fromkeys(shape.noun for shape in self.shapes))

    def accepts(self, value: Any) -> bool:
        return any(shape.accepts(value) for shape in self.shapes)

    def check(self, value: Any, path: str) -> Any:
        for shape in self.shapes:
            if shape.accepts(value):
                return shape.check(value, path)
        return _refuse_type(self, value, path)

    def __str__(self) -> str:
        return ", or ".join(map(str, self.shapes))


@dataclass(frozen=True, slots=True)
class OnlyFalse:
    """A switch for what is not there: `reason` says what is missing."""

    reason: str
    noun = "a boolean"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, bool)

    def check(self, value: Any, path: str) -> Any:
        return Boolean().check(value, path) and Unsupported(self.reason).check(value, path)

    def __str__(self) -> str:
        return "`false`"


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A feature that is known and not there: `reason` says what is missing."""

    reason: str
    code: str = "unsupported_value"
    noun = "nothing"

    def accepts(self, value: Any) -> bool:
        return True

    def check(self, value: Any, path: str) -> Any:
        raise _invalid(f"Unsupported '{path}': {self.reason}.", path, self.code)

    def __str__(self) -> str:
        return f"refused: {self.reason}"


def refuse_unknown(value: Mapping[str, Any], known: Mapping[str, Any], prefix: str = "") -> None:
    for name in value:
        if name not in known:
            shown = prefix + (name if len(name) <= 100 else name[:100] + "…")
            raise _invalid(f"Unknown parameter: '{shown}'.", shown, "unknown_parameter")


def missing(path: str) -> InvalidRequest:
    return _invalid(f"Missing required parameter: '{path}'.", path, "missing_required_parameter")


def _invalid(message: str, param: str, code: str) -> InvalidRequest:
    return InvalidRequest(message, param=param, code=code)


def _in_range(value: Any, low: Any, high: Any, kind: str, path: str) -> Any:
    if value > high:
        _refuse_number(value, high, kind, path, "above maximum", "<=")
    if not value >= low:
        _refuse_number(value, low, kind, path, "below minimum", ">=")
    return value


def _refuse_number(value: Any, limit: Any, kind: str, path: str, side: str, relation: str) -> None:
    raise _invalid(
        f"Invalid '{path}': {kind} {side} value. Expected a value {relation} {_number(limit)}, "
        f"but got {_number(value)} instead.",
        path,
        f"{kind}_{side.replace('imum', '').replace(' ', '_')}_value",
    )


def _number(value: float) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 24 else text[:20] + "…"


def _refuse_type(shape: Shape, value: Any, path: str) -> Any:
    raise _invalid(
        f"Invalid type for '{path}': expected {shape.noun}, but got {_type_noun(value)} instead.",
        path,
        "invalid_type",
    )


def _type_noun(value: Any) -> str:
    if value is None:
        return "null"
    nouns = {
        bool: "a boolean",
        int: "an integer",
        float: "a decimal",
        str: "a string",
        list: "an array",
        dict: "an object",
    }
    return nouns[type(value)]
