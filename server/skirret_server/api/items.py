"""The shapes of what /v1/responses takes as input: messages, calls, their outputs, reasoning."""

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

_INPUT: dict[str, Shape] = {
    "input_text": Object({"type": Field(String(), True), "text": Field(String(), True)}),
    "input_image": Unsupported("this model reads text alone, no images"),
    "input_audio": Unsupported("this model reads text alone, no audio"),
    "input_file": Unsupported("this model reads text alone, no files"),
}
_OUTPUT: dict[str, Shape] = {
    "output_text": Object(
        {
            "type": Field(String(), True),
            "text": Field(String(), True),
            "annotations": Field(Array(Anything())),
            "logprobs": Field(Array(Anything())),
        }
    ),
    "refusal": Object({"type": Field(String(), True), "refusal": Field(String(), True)}),
}
_STATUS = {
    "id": Field(String()),
    "status": Field(Enum(("in_progress", "completed", "incomplete"))),
}


def _text(parts: dict[str, Shape]) -> Either:
    return Either((String(), Array(Tagged("type", parts), min=1)))


def _message(role: str, parts: dict[str, Shape]) -> Object:
    return Object(
        {
            "type": Field(String()),
            "role": Field(Enum((role,)), True),
            "content": Field(_text(parts), True),
            "phase": Field(Enum(("commentary", "final_answer"))),
            **_STATUS,
        }
    )


_TYPE = Field(String(), True)
_STATEFUL = Unsupported("responses are not stored; send the item itself")

ITEM = Tagged(
    "type",
    {
        "message": Tagged(
            "role",
            {
                "user": _message("user", _INPUT),
                "system": _message("system", _INPUT),
                "developer": _message("developer", _INPUT),
                "assistant": _message("assistant", {**_OUTPUT, "input_text": _INPUT["input_text"]}),
            },
        ),
        "function_call": Object(
            {
                "type": _TYPE,
                "call_id": Field(String(min=1), True),
                "name": Field(String(min=1), True),
                "arguments": Field(String(), True),
                **_STATUS,
            }
        ),
        "function_call_output": Object(
            {
                "type": _TYPE,
                "call_id": Field(String(min=1), True),
                "output": Field(_text(_INPUT), True),
                **_STATUS,
            }
        ),
        "reasoning": Object(
            {
                "type": _TYPE,
                "summary": Field(Array(Anything())),
                "content": Field(
                    Array(
                        Object(
                            {
                                "type": Field(Enum(("reasoning_text", "text")), True),
                                "text": Field(String(), True),
                            }
                        )
                    )
                ),
                "encrypted_content": Field(String()),
                **_STATUS,
            }
        ),
        "item_reference": _STATEFUL,
    },
    default="message",
)
