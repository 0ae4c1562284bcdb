"""V28: pages in browsers, when the server is started for them."""

from __future__ import annotations

from typing import Any

import pytest

from skirret_server.api.app import Access
from skirret_server.api.cors import Cors
from skirret_server.api.inprocess import ask

CHAT = "/v1/chat/completions"
PAGE = {"origin": "https://page.example"}


@pytest.mark.parametrize(
    ("origins", "said"), [(("*",), "*"), (("https://page.example",), "https://page.example")]
)
async def test_a_page_may_ask_and_read(
    saying: Any, chat: Any, origins: tuple[str, ...], said: str
) -> None:
    """V28"""
    server = saying("ok", cors=Cors(origins), access=Access(api_key="key"))
    wants = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type, x-stainless-os",
    }
    response = await ask(server.app, "OPTIONS", CHAT, headers={**PAGE, **wants})
    assert response.status == 200
    assert response.headers["access-control-allow-origin"] == said
    assert response.headers["access-control-allow-methods"] == "POST"
    allowed = response.headers["access-control-allow-headers"]
    assert allowed == wants["access-control-request-headers"]
    for key, status in (("key", 200), ("nope", 401)):
        headers = {**PAGE, "authorization": f"Bearer {key}"}
        answer = await server.post(CHAT, chat(stream=True), headers)
        assert answer.status == status
        assert answer.headers["access-control-allow-origin"] == said
        assert "x-request-id" in answer.headers["access-control-expose-headers"]


async def test_other_pages_are_told_nothing(saying: Any, chat: Any) -> None:
    for cors in (Cors(), Cors(("https://other.example",))):
        server = saying("ok", cors=cors)
        assert (await ask(server.app, "OPTIONS", CHAT, headers=PAGE)).status == 405
        answer = await server.post(CHAT, chat(), PAGE)
        assert answer.status == 200
        assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_a_page_may_not_ask_where_there_is_nothing(saying: Any) -> None:
    server = saying("ok", cors=Cors(("*",)))
    response = await ask(server.app, "OPTIONS", "/v1/nope", headers=PAGE)
    assert response.status == 404
    assert response.headers["access-control-allow-origin"] == "*"
