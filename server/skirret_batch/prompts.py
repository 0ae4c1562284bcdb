"""A line's prompt as the model will see it: to sort lines by, and to guess their tokens. Pure.

The server renders for real. A line that the template refuses is ordered by what it says; why it was
refused is the server's to answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from skirret_batch.completions import Template
from skirret_batch.plan import Body, Render, canonical


def renderer(template: Template) -> Render:
    """Renders chats as the server's template does, near enough to sort by."""
    if template.source is None:
        return canonical
    try:
        compiled = _environment().from_string(template.source)
    except jinja2.TemplateSyntaxError:
        return canonical
    knows_developer = "developer" in template.source

    def render(body: Body) -> bytes:
        messages = body.get("messages")
        if not isinstance(messages, list):
            return canonical(body)
        variables = body.get("chat_template_kwargs")
        try:
            text = compiled.render(
                {
                    **template.tokens,
                    **(variables if isinstance(variables, dict) else {}),
                    "messages": [_plain(each, knows_developer) for each in messages],
                    "tools": body.get("tools"),
                    "documents": None,
                    "add_generation_prompt": True,
                }
            )
        except (jinja2.TemplateError, TypeError, ValueError, AttributeError, LookupError):
            return canonical(body)
        return text.encode("utf-8", "surrogatepass")

    return render


def _plain(message: Mapping[str, Any], knows_developer: bool) -> dict[str, Any]:
    """A message with one text, in a role that every template knows."""
    plain = dict(message)
    content = plain.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        plain["content"] = "".join(part["text"] for part in content if part["type"] == "text")
    if plain.get("role") == "developer" and not knows_developer:
        plain["role"] = "system"
    return plain


def _environment() -> ImmutableSandboxedEnvironment:
    """What Hugging Face's templates expect to find."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
    return environment


class _Generation(Extension):
    """`{% generation %}`, which marks what the assistant wrote, is transparent."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(value: object, **options: Any) -> str:
    return json.dumps(value, **{"ensure_ascii": False, **options})


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)
