"""/v1/responses as a chat: its items become messages, its parameters those of a chat.

Nothing is kept between requests, so what needs an earlier response is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from skirret_api.errors import InvalidRequest
from skirret_server.api.parameters import RESPONSES, Checked, check

LOGPROBS = "message.output_text.logprobs"

# A chat's names for what /v1/responses calls otherwise, longest first.
_RENAMED = (
    ("max_completion_tokens", "max_output_tokens"),
    ("response_format", "text.format"),
    ("reasoning_effort", "reasoning.effort"),
    ("messages", "input"),
)
_SAME = (
    "model",
    "temperature",
    "top_p",
    "stream",
    "parallel_tool_calls",
    "service_tier",
)


@dataclass(frozen=True, slots=True)
class ResponseAsk:
    chat: Mapping[str, Any]  # the body of the chat that it is
    echo: Mapping[str, Any]  # what the answer repeats of the request
    ignored: tuple[str, ...]
    has_logprobs: bool


def response_ask(body: Mapping[str, Any]) -> ResponseAsk:
    """Raises InvalidRequest."""
    checked = check(body, RESPONSES)
    if "stream_options" in checked.values and not checked.get("stream", False):
        raise InvalidRequest(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
            param="stream_options",
        )
    included = checked.get("include", [])
    top = checked.get("top_logprobs")
    has_logprobs = LOGPROBS in included or bool(top)
    if has_logprobs and checked.get("tools"):
        raise InvalidRequest(
            "Log-probabilities are not given beside 'tools' here; /v1/chat/completions has them.",
            param="top_logprobs" if top else "include",
            code="unsupported_value",
        )
    return ResponseAsk(_chat(checked, has_logprobs), _echo(checked), _ignored(checked),
                       has_logprobs)  # fmt: skip


@contextmanager
def renamed() -> Iterator[None]:
    """Names what a chat refuses as /v1/responses calls it."""
    try:
        yield
    except InvalidRequest as error:
        error.param = response_name(error.param) if error.param else None
        raise


def response_name(param: str) -> str:
    """A chat's parameter as /v1/responses calls it."""
    for chats, ours in _RENAMED:
        if param.startswith(chats):
            # A message is not the item of the same number.
            return ours if chats == "messages" else ours + param.removeprefix(chats)
    return param.replace(".function.", ".")


def _chat(checked: Checked, has_logprobs: bool) -> dict[str, Any]:
    body = {name: checked.get(name) for name in _SAME if name in checked.values}
    body["messages"] = _messages(checked.get("input"), checked.get("instructions"))
    if "max_output_tokens" in checked.values:
        body["max_completion_tokens"] = checked.get("max_output_tokens")
    if has_logprobs:
        body |= {"logprobs": True, "top_logprobs": checked.get("top_logprobs", 0)}
    if effort := checked.get("reasoning", {}).get("effort"):
        body["reasoning_effort"] = effort
    if form := checked.get("text", {}).get("format"):
        body["response_format"] = _format(form)
    if tools := checked.get("tools"):
        body["tools"] = [{"type": "function", "function": _without(tool, "type")} for tool in tools]
    if "tool_choice" in checked.values:
        body["tool_choice"] = _choice(checked.get("tool_choice"))
    return body


def _echo(checked: Checked) -> dict[str, Any]:
    get = checked.get
    return {
        "background": False,
        "instructions": get("instructions"),
        "max_output_tokens": get("max_output_tokens"),
        "metadata": get("metadata", {}),
        "parallel_tool_calls": get("parallel_tool_calls", True),
        "previous_response_id": None,
        "reasoning": {"effort": get("reasoning", {}).get("effort"), "summary": None},
        "store": False,
        "temperature": get("temperature", 1.0),
        "text": {"format": get("text", {}).get("format", {"type": "text"})},
        "tool_choice": get("tool_choice", "auto"),
        "tools": [{"parameters": None, "strict": None, **tool} for tool in get("tools", [])],
        "top_logprobs": get("top_logprobs", 0),
        "top_p": get("top_p", 1.0),
        "truncation": "disabled",
        "user": get("user"),
    }


def _ignored(checked: Checked) -> tuple[str, ...]:
    return (
        *checked.ignored,
        *(f"include: {name}" for name in checked.get("include", []) if name != LOGPROBS),
        *(f"reasoning.{name}" for name in checked.get("reasoning", {}) if name != "effort"),
        *(f"text.{name}" for name in checked.get("text", {}) if name == "verbosity"),
        *(f"stream_options.{name}" for name in checked.get("stream_options", {})),
    )


def _format(form: Mapping[str, Any]) -> dict[str, Any]:
    if form["type"] != "json_schema":
        return dict(form)
    return {"type": "json_schema", "json_schema": _without(form, "type")}


def _choice(choice: Any) -> Any:
    if isinstance(choice, str):
        return choice
    if choice["type"] == "function":
        return _named(choice)
    tools = [_named(tool) for tool in choice["tools"]]
    return {"type": "allowed_tools", "allowed_tools": {"mode": choice["mode"], "tools": tools}}


def _named(choice: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": choice["name"]}}


def _messages(given: str | Sequence[Mapping[str, Any]], instructions: str | None) -> list[Any]:
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    thought = ""  # of the message that comes next
    for item in given:
        kind = item.get("type", "message")
        if kind == "reasoning":
            thought += "".join(part["text"] for part in item.get("content", ()))
            continue
        if kind == "function_call_output":
            output = _content(item["output"])
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": output})
        elif kind == "function_call":
            _add_call(messages, item)
        else:
            messages.append({"role": item["role"], "content": _content(item["content"])})
        if thought and messages[-1]["role"] == "assistant":
            messages[-1]["reasoning_content"], thought = thought, ""
    return messages


def _add_call(messages: list[dict[str, Any]], item: Mapping[str, Any]) -> None:
    """Calls that follow each other, or a message, are one message of a chat."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    function = {"name": item["name"], "arguments": item["arguments"]}
    call = {"id": item["call_id"], "type": "function", "function": function}
    messages[-1].setdefault("tool_calls", []).append(call)


def _content(content: str | Sequence[Mapping[str, Any]]) -> Any:
    if isinstance(content, str):
        return content
    return [{"type": "text", "text": part.get("text", part.get("refusal"))} for part in content]


def _without(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}
