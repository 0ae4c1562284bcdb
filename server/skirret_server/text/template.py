"""Hugging Face's chat templates: Jinja in a sandbox, rendered as transformers renders them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import meta, nodes

from skirret_server.text.tokenizer import read_config
from skirret_template import environment

# Set beside the messages by the server itself.
RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})

# Ends in a space, so that a template which trims the message is seen to have done so.
_CONTINUE = "\U0010fffc "


class TemplateError(Exception):
    """The template refused these messages, or can't render them; the message says why."""


class ChatTemplate:
    """Renders a conversation into the text that the model was trained on."""

    def __init__(self, source: str, named_tokens: Mapping[str, str]) -> None:
        """Raises TemplateError when the source is no template."""
        jinja = environment()
        try:
            tree = jinja.parse(source)
            self._template = jinja.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"line {error.lineno}: {error.message}") from error
        self.source = source
        self.variables = frozenset(meta.find_undeclared_variables(tree))
        self.takes_parts = _iterates_over_content(tree)
        self.knows_developer = "developer" in source
        self._named_tokens = dict(named_tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        continue_final_message: bool = False,
    ) -> str:
        """The prompt, ending where the assistant begins to write. Raises TemplateError."""
        conversation = [dict(message) for message in messages]
        if continue_final_message:
            conversation[-1] = _marked(conversation[-1])
        try:
            text = self._template.render(
                {
                    **self._named_tokens,
                    **(variables or {}),
                    "messages": conversation,
                    "tools": tools,
                    "documents": None,
                    "add_generation_prompt": not continue_final_message,
                }
            )
        except (jinja2.TemplateError, TypeError, ValueError, AttributeError, LookupError) as error:
            raise TemplateError(str(error)) from error
        return _cut(text) if continue_final_message else text


def find_template(folder: Path, override: Path | None = None) -> str | None:
    """The source of a model's chat template; `override` is a file that is taken instead."""
    for path in (override, folder / "chat_template.jinja"):
        if path is not None and (path is override or path.exists()):
            return path.read_text(encoding="utf-8")
    found = read_config(folder).get("chat_template")
    if isinstance(found, list):
        named = {entry["name"]: entry["template"] for entry in found}
        found = named.get("default", next(iter(named.values()), None))
    return found if isinstance(found, str) else None


def _iterates_over_content(tree: nodes.Template) -> bool:
    """Whether the template walks a list of content parts, and so wants them as they came."""
    return any(_names_content(loop.iter) for loop in tree.find_all(nodes.For))


def _names_content(expression: nodes.Node) -> bool:
    if isinstance(expression, nodes.Name):
        return expression.name == "content"
    if isinstance(expression, nodes.Getattr):
        return expression.attr == "content"
    return (
        isinstance(expression, nodes.Getitem)
        and isinstance(expression.arg, nodes.Const)
        and expression.arg.value == "content"
    )


def _marked(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": content + _CONTINUE}
    if isinstance(content, list) and content:
        last = {**content[-1], "text": content[-1].get("text", "") + _CONTINUE}
        return {**message, "content": [*content[:-1], last]}
    raise TemplateError("the last message has no text to continue")


def _cut(text: str) -> str:
    mark = text.rfind(_CONTINUE.rstrip())
    if mark < 0:
        raise TemplateError("the chat template does not print the last message, or changes it")
    if text.startswith(_CONTINUE, mark):
        return text[:mark]
    return text[:mark].rstrip()
