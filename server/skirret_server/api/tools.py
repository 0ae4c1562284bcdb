"""Tools a request offers: which may be called, how the model is told, what it must then write."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from skirret_api.errors import InvalidRequest
from skirret_server.api.structured import Structure
from skirret_server.core import TokenId
from skirret_server.grammar.spec import Spec
from skirret_server.text.tokenizer import Tokenizer
from skirret_server.text.tool_calls import ToolFormat

Mode = Literal["auto", "required", "named"]


@dataclass(frozen=True, slots=True)
class ToolUse:
    tools: Sequence[Mapping[str, Any]]  # those that may be called, as they were given
    mode: Mode
    is_single: bool  # one call at most; else as many as the answer has room for

    @property
    def must_call(self) -> bool:
        return self.mode != "auto"


def tool_use(values: Mapping[str, Any], structure: Structure | None) -> ToolUse | None:
    """None where no tool may be called. Raises InvalidRequest."""
    tools = values.get("tools", [])
    _check_names(tools)
    mode, names = _choice(values.get("tool_choice", "auto" if tools else "none"), tools)
    if mode is None:
        return None
    if mode != "auto" and structure is not None:
        raise InvalidRequest(
            f"'{structure.param}' is not allowed when 'tool_choice' demands a call.",
            param="tool_choice",
            code="invalid_value",
        )
    offered = [tool for tool in tools if tool["function"]["name"] in names]
    is_single = mode == "named" or not values.get("parallel_tool_calls", True)
    return ToolUse(offered, mode, is_single) if offered else None


def tool_structure(use: ToolUse, form: ToolFormat, other: Structure | None) -> Structure | None:
    """What the text must be: calls alone; or calls or a schema; None where it is free."""
    if not use.must_call and other is None:
        return None
    source = {
        "opening": form.opening,
        "closing": form.closing,
        "between": form.between,
        "arguments": form.arguments,
        "repeats_frame": form.repeats_frame,
        "tools": [
            {"name": tool["function"]["name"], "parameters": tool["function"].get("parameters")}
            for tool in use.tools
        ],
        "is_single": use.is_single,
        "or": None if other is None else {"kind": other.spec.kind, "source": other.spec.source},
    }
    return Structure(Spec.of("tools", source), other.param if other else "tools")


def shown_tokens(form: ToolFormat, tokenizer: Tokenizer) -> frozenset[TokenId]:
    """Control tokens that are part of a call's text."""
    markers = (form.opening, form.closing, "<|python_tag|>")
    ids = (tokenizer.id_of(marker) for marker in markers if marker)
    return frozenset(token for token in ids if token is not None)


def told(messages: Sequence[Mapping[str, Any]], use: ToolUse) -> list[dict[str, Any]]:
    """The messages for a template that knows no tools: the system tells of them."""
    described = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in use.tools)
    text = (
        "You may call these functions to help with the user's request:\n"
        f"<tools>\n{described}\n</tools>\n"
        "For each call write a JSON object with its name and arguments between <tool_call> and "
        '</tool_call>:\n<tool_call>\n{"name": NAME, "arguments": ARGUMENTS}\n</tool_call>'
    )
    first, *rest = ({**message} for message in messages)
    if first["role"] in ("system", "developer") and isinstance(first.get("content"), str):
        return [{**first, "content": f"{first['content']}\n\n{text}"}, *rest]
    return [{"role": "system", "content": text}, first, *rest]


def _choice(choice: Any, tools: Sequence[Mapping[str, Any]]) -> tuple[Mode | None, set[str]]:
    known = {tool["function"]["name"] for tool in tools}
    if choice == "none" or (choice == "auto" and not tools):
        return None, set()
    if not tools:
        raise InvalidRequest(
            "'tool_choice' demands a call, and there are no 'tools'.",
            param="tool_choice",
            code="invalid_value",
        )
    if isinstance(choice, str):
        return ("auto" if choice == "auto" else "required"), known
    if choice["type"] == "function":
        return "named", _known({choice["function"]["name"]}, known)
    allowed = choice["allowed_tools"]
    names = {tool["function"]["name"] for tool in allowed["tools"]}
    return ("auto" if allowed["mode"] == "auto" else "required"), _known(names, known)


def _known(names: set[str], known: set[str]) -> set[str]:
    for name in sorted(names - known):
        raise InvalidRequest(
            f"'tool_choice' names the function '{name}', which is not in 'tools'.",
            param="tool_choice",
            code="invalid_value",
        )
    return names


def _check_names(tools: Sequence[Mapping[str, Any]]) -> None:
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        name = tool["function"]["name"]
        if name in seen:
            raise InvalidRequest(
                f"'tools' has two functions named '{name}'.",
                param=f"tools[{index}].function.name",
                code="invalid_value",
            )
        seen.add(name)
