"""A line's prompt as the model will see it: to sort lines by, and to guess their tokens. Pure.

The server renders for real. A line that the template refuses is ordered by what it says; why it was
refused is the server's to answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from skirret_batch.completions import Template
from skirret_batch.plan import Body, Render, canonical
from skirret_template import environment


def renderer(template: Template) -> Render:
    """Renders chats as the server's template does, near enough to sort by."""
    if template.source is None:
        return canonical
    try:
        compiled = environment().from_string(template.source)
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
