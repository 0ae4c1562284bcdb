"""The shapes of chat messages, for every role."""

from __future__ import annotations

from skirret_server.api.shapes import (
    Anything,
    Array,
    Either,
    Enum,
    Field,
    Object,
    Shape,
    String,
    Tagged,
    Unsupported,
)

_TEXT = Object({"type": Field(Enum(("text",)), True), "text": Field(String(), True)})
_REFUSAL = Object({"type": Field(Enum(("refusal",)), True), "refusal": Field(String(), True)})
_PARTS: dict[str, Shape] = {
    "text": _TEXT,
    "image_url": Unsupported("this model reads text alone, no images"),
    "input_audio": Unsupported("this model reads text alone, no audio"),
    "file": Unsupported("this model reads text alone, no files"),
}

_CONTENT = Either((String(), Array(Tagged("type", _PARTS), min=1)))
_ASSISTANT_CONTENT = Either(
    (String(), Array(Tagged("type", {**_PARTS, "refusal": _REFUSAL}), min=1))
)
_TEXT_CONTENT = Either((String(), Array(Tagged("type", {"text": _TEXT}), min=1)))
_NAME = Field(String(max=256))

_FUNCTION = Object({"name": Field(String(min=1), True), "arguments": Field(String(), True)})
_TOOL_CALL = Object(
    {
        "id": Field(String(min=1), True),
        "type": Field(Enum(("function",)), True),
        "function": Field(_FUNCTION, True),
        "index": Field(Anything()),  # clients that echo a stream's deltas send it back
    }
)


def _message(role: str, **fields: Field) -> Object:
    return Object({"role": Field(Enum((role,)), True), **fields})


MESSAGE = Tagged(
    "role",
    {
        "system": _message("system", content=Field(_TEXT_CONTENT, True), name=_NAME),
        "developer": _message("developer", content=Field(_TEXT_CONTENT, True), name=_NAME),
        "user": _message("user", content=Field(_CONTENT, True), name=_NAME),
        "assistant": _message(
            "assistant",
            content=Field(_ASSISTANT_CONTENT),
            refusal=Field(String()),
            name=_NAME,
            tool_calls=Field(Array(_TOOL_CALL, max=10_000)),
            function_call=Field(_FUNCTION),
            reasoning_content=Field(String()),
            annotations=Field(Array(Anything())),
            audio=Field(Unsupported("this model writes text alone, no audio")),
        ),
        "tool": _message(
            "tool",
            content=Field(_TEXT_CONTENT, True),
            tool_call_id=Field(String(min=1), True),
            name=_NAME,
        ),
        "function": _message("function", content=Field(String()), name=Field(String(min=1), True)),
    },
)
