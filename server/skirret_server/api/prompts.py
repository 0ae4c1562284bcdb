"""From messages or text to the tokens that the engine is given."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from skirret_api.errors import InvalidRequest
from skirret_server.api.asks import ChatAsk
from skirret_server.api.asks import Prompt as Asked
from skirret_server.api.served import Served
from skirret_server.api.tools import told
from skirret_server.core import TokenId
from skirret_server.text.choice import incomplete_tail
from skirret_server.text.template import RESERVED, ChatTemplate, TemplateError

MOST_ANSWERS = 4096  # of one request


@dataclass(frozen=True, slots=True)
class Prompt:
    ids: Sequence[TokenId]
    text: str = ""  # as echoed; empty for chats
    tail: bytes = b""  # of a character that the prompt leaves unfinished


def chat_prompt(ask: ChatAsk, served: Served) -> Prompt:
    """Raises InvalidRequest."""
    template = _template(served)
    _check_variables(ask.variables)
    messages = [_for_template(message, template) for message in _checked(ask.messages)]
    tools = ask.tools.tools if ask.tools else None
    if ask.tools and "tools" not in template.variables:
        messages, tools = told(messages, ask.tools), None
    veil = served.tokenizer.control.veil
    try:
        text = template.render(
            veil(messages),
            tools=veil(list(tools)) if tools else None,
            variables=veil(dict(ask.variables)),
            continue_final_message=ask.continue_final_message,
        )
    except TemplateError as error:
        raise InvalidRequest(
            f"The model's chat template refused these messages: {error}", param="messages"
        ) from error
    return Prompt(served.tokenizer.encode_chat(text))


def ignored_variables(ask: ChatAsk, served: Served) -> tuple[str, ...]:
    """What was given for the template, and the template never looks at."""
    if served.template is None:
        return ()
    return tuple(
        name if name == "reasoning_effort" else f"chat_template_kwargs.{name}"
        for name in ask.variables
        if name not in served.template.variables
    )


def text_prompt(prompt: Asked, served: Served, kind: str = "prompt") -> Prompt:
    """`kind`: the parameter that gave it. Raises InvalidRequest."""
    if isinstance(prompt, str):
        found = Prompt(served.tokenizer.encode(prompt), prompt)
    else:
        data = served.tokenizer.join(prompt)
        tail = incomplete_tail(data)
        whole = data[: len(data) - len(tail)]
        found = Prompt(prompt, whole.decode(errors="replace"), tail)
    if not found.ids:
        raise InvalidRequest(
            f"Invalid '{kind}': it has no tokens. Give the model at least one.",
            param=kind,
            code="invalid_value",
        )
    return found


def token_budget(
    size: int, asked: int | None, limit: int, *, kind: str, default: int | None = None
) -> int:
    """Tokens that may follow a prompt of `size`, which the parameter `kind` gave.

    Raises InvalidRequest.
    """
    if asked is None:
        left = limit - size
        if left >= 1:
            return left if default is None else min(left, default)
        asked = 1
    if size + asked <= limit:
        return asked
    noun = "messages" if kind == "messages" else "prompt"
    raise InvalidRequest(
        f"This model's maximum context length is {limit} tokens. However, you requested "
        f"{size + asked} tokens ({size} in the {noun}, {asked} in the completion). "
        f"Please reduce the length of the {noun} or completion.",
        param=kind,
        code="context_length_exceeded",
    )


def check_work(count: int, asked: int | None, most: int) -> None:
    """Refuses `count` answers of `asked` tokens when they are more than the server gives one.

    A single one that is too long is left to the context's limit. Raises InvalidRequest.
    """
    if count > MOST_ANSWERS:
        raise InvalidRequest(
            f"One request may ask for {MOST_ANSWERS} answers at most, prompts times choices, but "
            f"this one asks for {count}.",
            param="n",
            code="integer_above_max_value",
        )
    if count == 1 or asked is None or count * asked <= most:
        return
    raise InvalidRequest(
        f"{count} answers of {asked} tokens are {count * asked} tokens; one request may ask for "
        f"{most} at most. Ask for fewer or shorter ones.",
        param="n",
        code="integer_above_max_value",
    )


def check_mentions_json(ask: ChatAsk) -> None:
    """OpenAI's own rule, which saves its models from endless white space. Raises InvalidRequest."""
    wanted = ask.common.structure
    is_object = wanted is not None and wanted.spec.kind == "json_object"
    if is_object and "json" not in json.dumps(ask.messages).lower():
        raise InvalidRequest(
            "'messages' must contain the word 'json' in some form, to use 'response_format' of "
            "type 'json_object'.",
            param="messages",
        )


def _template(served: Served) -> ChatTemplate:
    if served.template is not None:
        return served.template
    reason = served.template_fault or "this model has none"
    raise InvalidRequest(
        f"Chat needs a chat template, and {reason}. Use /v1/completions, or start the server "
        "with --chat-template FILE.",
        param="messages",
    )


def _check_variables(variables: Mapping[str, Any]) -> None:
    for name in variables:
        if name not in RESERVED and name.isascii() and name.isidentifier():
            continue
        reason = "the server sets it itself" if name in RESERVED else "it is no variable's name"
        raise InvalidRequest(
            f"Invalid 'chat_template_kwargs.{name[:100]}': {reason}.",
            param=f"chat_template_kwargs.{name[:100]}",
            code="invalid_value",
        )


def _checked(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    for index, message in enumerate(messages):
        if message["role"] != "assistant" or message.get("content") is not None:
            continue
        if not any(message.get(key) for key in ("tool_calls", "function_call", "refusal")):
            path = f"messages[{index}].content"
            raise InvalidRequest(
                f"Missing required parameter: '{path}'. An assistant's message needs content "
                "unless it has tool_calls.",
                param=path,
                code="missing_required_parameter",
            )
    return messages


def _for_template(message: Mapping[str, Any], template: ChatTemplate) -> dict[str, Any]:
    """A message in the form that Hugging Face's templates are written for."""
    found = dict(message)
    if found["role"] == "developer" and not template.knows_developer:
        found["role"] = "system"
    content = found.get("content")
    if isinstance(content, list) and not template.takes_parts:
        found["content"] = "".join(part.get("text", part.get("refusal", "")) for part in content)
    elif content is None:
        # Most templates add it to a string; an absent one would be their crash.
        found["content"] = found.get("refusal", "")
    calls = found.pop("tool_calls", None)
    if calls:
        found["tool_calls"] = [_with_parsed_arguments(call) for call in calls]
    return found


def _with_parsed_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": _arguments(function["arguments"])}}


def _arguments(text: str) -> Any:
    """Templates print arguments as JSON, so they must not be JSON in a string already."""
    try:
        return from_json(text or "{}", allow_inf_nan=False)
    except ValueError:
        return text
