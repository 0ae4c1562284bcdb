"""U10, U11: thousands of streams at once, clients that leave at any moment, nothing left behind."""

from __future__ import annotations

import asyncio
import random
from typing import Any

STREAMS = 5000
CHAT = "/v1/chat/completions"


async def test_a_storm_of_disconnects_leaves_nothing(saying: Any, chat: Any) -> None:
    """U10, U11"""
    server = saying("a", "b", "c", "d")
    rng = random.Random(7)
    finished = 0

    async def stream(pieces_read: int) -> None:
        nonlocal finished
        async with server.call(CHAT, chat(stream=True, max_tokens=5)) as call:
            body = b""
            async for piece in call.pieces():
                body += piece
                pieces_read -= 1
                if pieces_read == 0:
                    return
        assert body.endswith(b"data: [DONE]\n\n")
        finished += 1

    plan = [rng.choice((1, 2, 3, -1)) for _ in range(STREAMS)]
    await asyncio.gather(*map(stream, plan))
    assert finished >= plan.count(-1)
    await server.until_idle()
    assert set((await server.accounting()).values()) == {0}
    assert await server.is_alive()
