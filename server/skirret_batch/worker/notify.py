"""Tells a batch's end to a URL, as OpenAI's signed webhook: `client.webhooks.unwrap` reads it.

Told at least once. Every try, also of the next process, has the same `webhook-id`, so a receiver
can tell a repetition. The signature is that of standardwebhooks.com.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from skirret_batch.record import Record

log = logging.getLogger(__name__)

_TIMEOUT = 15.0  # seconds for one answer
_LONGEST_PAUSE = 300.0
_GONE = 410  # the receiver wants no more


@dataclass(frozen=True, slots=True)
class Target:
    url: str
    key: bytes | None = field(default=None, repr=False)

    @property
    def host(self) -> str:
        """What a log may say of it: a path or query can hold a secret."""
        return urlsplit(self.url).hostname or "?"


def read_key(path: Path) -> bytes:
    """A key as OpenAI writes it, whsec_ and base64, or any other text. Raises ValueError."""
    text = path.read_text().strip()
    if not text:
        raise ValueError(f"{path}: the key is empty")
    if not text.startswith("whsec_"):
        return text.encode()
    try:
        return b64decode(text.removeprefix("whsec_"), validate=True)
    except ValueError:
        raise ValueError(f"{path}: what follows whsec_ is not base64") from None


async def notify(
    record: Record,
    target: Target,
    *,
    patience: float = 3600.0,
    first_pause: float = 1.0,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> bool:
    """Whether the receiver took it: it is asked again for so many seconds."""
    event_id, body = event(record)
    give_up, pause = clock() + patience, first_pause
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        while True:
            headers = signed(event_id, body, target.key, int(clock()))
            answer = await _post(session, target.url, body, headers)
            if isinstance(answer, int) and 200 <= answer < 300:
                log.info("batch %s: its end is told to %s", record.id, target.host)
                return True
            if answer == _GONE or clock() + pause > give_up:
                log.error("batch %s: %s was not told: %s", record.id, target.host, answer)
                return False
            log.warning("batch %s: %s was not told yet: %s", record.id, target.host, answer)
            await sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def event(record: Record) -> tuple[str, bytes]:
    """The event's id and body, the same whoever tells it."""
    batch = record.batch
    event_id = "evt_" + sha256(f"{batch.id}:{batch.status}".encode()).hexdigest()[:32]
    told = {
        "id": event_id,
        "object": "event",
        "created_at": getattr(batch, f"{batch.status}_at"),
        "type": f"batch.{batch.status}",
        "data": {"id": batch.id},
    }
    return event_id, json.dumps(told).encode()


def signed(event_id: str, body: bytes, key: bytes | None, at: int) -> dict[str, str]:
    """The headers of one try; without a key, without a signature."""
    headers = {
        "content-type": "application/json",
        "webhook-id": event_id,
        "webhook-timestamp": str(at),
    }
    if key is not None:
        digest = hmac.digest(key, f"{event_id}.{at}.".encode() + body, sha256)
        headers["webhook-signature"] = f"v1,{b64encode(digest).decode()}"
    return headers


async def _post(
    session: aiohttp.ClientSession, url: str, body: bytes, headers: dict[str, str]
) -> int | str:
    """The status of the answer, or why there is none."""
    try:
        # A redirect could lead to where nobody allowed us to post.
        async with session.post(url, data=body, headers=headers, allow_redirects=False) as response:
            return response.status
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        # Its words may hold the URL.
        return type(error).__name__
