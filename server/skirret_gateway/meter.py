"""Holds each request to the limits of its key, and writes up what it used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any

from skirret_api import internal
from skirret_api.tenants import ApiKey
from skirret_gateway import limits
from skirret_gateway.caller import Caller
from skirret_gateway.limits import BYTES_A_TOKEN, Share, Used
from skirret_gateway.metrics import Metrics
from skirret_gateway.reply import Header
from skirret_gateway.sse import EventStream
from skirret_gateway.table import ModelId
from skirret_gateway.upstream import Head
from skirret_gateway.usage import Tokens, Usage, parse

_USAGE = internal.USAGE.encode()


class Meter:
    def __init__(self, usage: Usage, metrics: Metrics, clock: Callable[[], float]) -> None:
        self.share = Share()  # set anew when gateways come and go
        self._usage = usage
        self._metrics = metrics
        self._clock = clock
        self._used: dict[str, Used] = {}  # by hash, so that a key that is replaced begins anew

    def open(
        self,
        caller: Caller,
        model: ModelId,
        size: int,
        is_stream: bool,
        notes: dict[str, object],
    ) -> Bill:
        """The bill of a request with a body of so many bytes. Raises Overloaded.

        `notes` get what it counted in the end.
        """
        guess = max(1, size // BYTES_A_TOKEN)
        bill = Bill(self, caller, model, guess, is_stream, notes)
        if (key := caller.key) is None:
            return bill
        now, used = self._clock(), self._used_by(key)
        today = self._usage.tokens(key.namespace, key.name)
        limits.check(key, used, today, self.share, guess, is_stream, now)
        used.requests.add(1, now)
        used.tokens.add(guess, now)
        used.streams += is_stream
        told = limits.headers(key, used, self.share, now)
        bill.headers = [(name.encode(), value.encode()) for name, value in told.items()]
        return bill

    def settle(self, bill: Bill, tokens: Tokens) -> None:
        caller = bill.caller
        bill.notes["tokens"] = list(tokens)
        if (key := caller.key) is not None:
            used = self._used_by(key)
            used.tokens.add(tokens.total - bill.guess, self._clock())
            used.streams -= bill.is_stream
        self._usage.add(caller.namespace, caller.name, str(bill.model), tokens)
        self._metrics.tokens(f"{caller.namespace}/{caller.name}", bill.model, tokens)

    def today(self, caller: Caller) -> dict[str, Any]:
        """What `/v1/usage` answers."""
        by_model = self._usage.by_model(caller.namespace, caller.name)
        key = caller.key
        return {
            "object": "usage",
            "day": self._usage.day,
            "key": caller.name,
            "namespace": caller.namespace,
            "total_tokens": sum(x.prompt + x.completion for x in by_model.values()),
            "limits": {
                "requests_per_minute": key and key.requests_per_minute,
                "tokens_per_minute": key and key.tokens_per_minute,
                "tokens_per_day": key and key.tokens_per_day,
                "streams": key and key.streams,
            },
            "data": [
                {
                    "model": model,
                    "requests": counts.requests,
                    "prompt_tokens": counts.prompt,
                    "cached_tokens": counts.cached,
                    "completion_tokens": counts.completion,
                }
                for model, counts in sorted(by_model.items())
            ],
        }

    def _used_by(self, key: ApiKey) -> Used:
        used = self._used.get(key.sha256)
        if used is None:
            used = self._used[key.sha256] = Used()
        return used


class Bill:
    """What one request uses, from its admission to its end; settled by leaving its context."""

    def __init__(
        self,
        meter: Meter,
        caller: Caller,
        model: ModelId,
        guess: int,
        is_stream: bool,
        notes: dict[str, object],
    ) -> None:
        self.caller = caller
        self.model = model
        self.guess = guess
        self.is_stream = is_stream
        self.notes = notes
        self.headers: list[Header] = []
        self.is_sent = False  # to a server
        self._meter = meter
        self._answer: Head | None = None
        self._events: EventStream | None = None

    def answered(self, head: Head, events: EventStream | None) -> None:
        self._answer, self._events = head, events

    def __enter__(self) -> Bill:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._meter.settle(self, self.count(error))

    def count(self, error: BaseException | None) -> Tokens:
        answer, events = self._answer, self._events
        if answer is None:  # a client that leaves has had its prompt read all the same
            is_read = self.is_sent and isinstance(error, asyncio.CancelledError)
            return Tokens(prompt=self.guess) if is_read else Tokens()
        if answer.status != 200:
            return Tokens()
        told = parse(dict(answer.headers).get(_USAGE, b"")) or (events and events.usage)
        if told:
            return told
        # Cut short, or a server that doesn't tell.
        completion = events.count if events else (answer.length or 0) // BYTES_A_TOKEN
        return Tokens(self.guess, 0, completion)
