"""The prompts that lines are sorted by are the ones that the server makes."""

from __future__ import annotations

from typing import Any

import pytest

from skirret_batch.completions import Template
from skirret_batch.plan import canonical
from skirret_batch.prompts import renderer
from skirret_server.text.template import ChatTemplate

SOURCE = """
{%- if messages[0].role != 'system' %}{{ bos_token }}You are helpful.{% endif %}
{%- for message in messages %}
    {%- if message.role not in ['system', 'user', 'assistant'] %}
        {{- raise_exception('no such role') }}
    {%- endif %}
    {{- '<' + message.role + '>' + message.content | trim + '\n' }}
{%- endfor %}
{%- if tools %}{{ tools | tojson(indent=2) }}{% endif %}
{%- if add_generation_prompt %}{% generation %}<assistant>{% endgeneration %}{% endif %}"""
TOKENS = {"bos_token": "<s>"}
SYSTEM = {"role": "system", "content": " Be brief.\n"}
USER = {"role": "user", "content": "größer \u2028 <s>"}

render = renderer(Template(SOURCE, TOKENS))


@pytest.mark.parametrize("messages", [[USER], [SYSTEM, USER], [SYSTEM, USER, USER]])
@pytest.mark.parametrize("tools", [None, [{"type": "function", "function": {"name": "f"}}]])
def test_a_chat_is_rendered_as_the_server_renders_it(
    messages: list[dict[str, str]], tools: list[dict[str, Any]] | None
) -> None:
    server = ChatTemplate(SOURCE, TOKENS).render(messages, tools=tools)
    assert render({"messages": messages, "tools": tools}).decode() == server


def test_parts_of_a_text_and_developers_are_what_the_template_knows() -> None:
    parts = [{"type": "text", "text": " Be "}, {"type": "text", "text": "brief.\n"}]
    body = {"messages": [{"role": "developer", "content": parts}, USER]}
    assert render(body) == render({"messages": [SYSTEM, USER]})


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "text"},
        {"messages": [{"role": "robot", "content": "x"}]},
        {"messages": [3]},
        {"messages": [{"role": "user", "content": [7]}]},
        {},
    ],
)
def test_what_the_template_refuses_is_ordered_by_what_it_says(body: dict[str, Any]) -> None:
    assert render(body) == canonical(body)


@pytest.mark.parametrize("source", [None, "{% if %}"])
def test_a_model_without_a_template_that_works_is_no_obstacle(source: str | None) -> None:
    assert renderer(Template(source)) is canonical
