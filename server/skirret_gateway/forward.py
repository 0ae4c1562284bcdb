"""The hot path: from a request's bytes to a server's answer, and back."""

from __future__ import annotations

import json
import logging
from binascii import hexlify
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from skirret_api import internal
from skirret_api.errors import ApiError, BadGateway, InvalidRequest, ServerFault, Unavailable
from skirret_gateway.caller import Caller
from skirret_gateway.fleet import Fleet, Lease, Wish
from skirret_gateway.headers import is_event_stream, is_json, lines, passing
from skirret_gateway.health import Outcome
from skirret_gateway.meter import Bill, Meter
from skirret_gateway.metrics import Metrics, Record
from skirret_gateway.prompt import Prompt
from skirret_gateway.relay import Relay
from skirret_gateway.reply import Reply
from skirret_gateway.request import Request
from skirret_gateway.scan import NotJson, Scan, WrongType, scan
from skirret_gateway.sse import COMMENT, DONE, event
from skirret_gateway.table import Replica, Route
from skirret_gateway.upstream import ConnectFailed, Ended, Head, Pool, Silent

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ForwardSettings:
    body_bytes: int = 32 << 20
    heartbeat_after: float = 10.0  # seconds that a stream waits in silence
    heartbeat_every: float = 10.0
    keeps_authorization: bool = False  # the client's key is for the servers, not for us


class Call(NamedTuple):
    """What is asked of one server, and may be asked of another."""

    route: Route
    request: Request
    reply: Reply
    is_stream: bool
    is_worker: bool  # told what the server says of its load
    headers: bytes  # as sent, but for the host
    body: bytes
    bill: Bill


class Forward:
    """Sends requests to a server of their model and passes on the answer."""

    def __init__(
        self,
        fleet: Fleet,
        pool: Pool,
        token: Callable[[str], str | None],
        meter: Meter,
        metrics: Metrics,
        settings: ForwardSettings,
    ) -> None:
        self._fleet = fleet
        self._pool = pool
        self._token = token
        self._meter = meter
        self._metrics = metrics
        self._settings = settings
        not_ours = frozenset({b"host", b"expect", b"x-request-id"})
        secret = frozenset() if settings.keeps_authorization else frozenset({b"authorization"})
        self._not_sent_on = not_ours | secret

    async def completion(self, request: Request, reply: Reply, caller: Caller) -> None:
        """A request whose body names its model."""
        if not is_json(request.header(b"content-type")):
            raise InvalidRequest("The request's body must be application/json.", status=415)
        body = await request.body.read(self._settings.body_bytes)
        asked = _scan(body)
        name = asked.model
        if name is None:
            raise InvalidRequest(
                "Missing required parameter: 'model'.",
                param="model",
                code="missing_required_parameter",
            )
        prompt = asked.prompt
        if caller.is_worker and (group := request.header(_GROUP)) is not None:
            prompt = replace(prompt, head=group, session=b"")
        route = self._fleet.split(self._fleet.find(caller, name), name, prompt.session)
        lane = internal.BATCH if caller.is_worker or asked.flex else internal.INTERACTIVE
        headers = self._headers(request, len(body), caller, route, name, lane, prompt)
        request.notes.update(key=f"{caller.namespace}/{caller.name}", lane=lane)
        with (
            self._metrics.request(route.id) as record,
            self._meter.open(caller, route.id, len(body), asked.stream, request.notes) as bill,
        ):
            call = Call(route, request, reply, asked.stream, caller.is_worker, headers, body, bill)
            record.status = await self._forward(call, prompt, record)

    async def native(self, request: Request, reply: Reply, caller: Caller, name: str) -> None:
        """A request whose URL names its model; workers ask so."""
        body = await request.body.read(self._settings.body_bytes)
        route = self._fleet.find(caller, name)
        headers = self._headers(request, len(body), caller, route, name, internal.BATCH, Prompt())
        # Its bill is never settled: no tokens are used.
        bill = Bill(self._meter, caller, route.id, 0, False, request.notes)
        call = Call(route, request, reply, False, True, headers, body, bill)
        with self._metrics.request(route.id) as record:
            record.status = await self._forward(call, Prompt(), record)

    def _headers(
        self,
        request: Request,
        length: int,
        caller: Caller,
        route: Route,
        name: str,
        lane: str,
        prompt: Prompt,
    ) -> bytes:
        headers = passing(request.headers, self._not_sent_on)
        headers.append((b"x-request-id", request.id.encode()))
        headers.append((b"content-length", b"%d" % length))
        token = self._token(route.id.namespace)
        if token is not None:
            headers.append((_TOKEN, token.encode()))
            headers.append((_LANE, lane.encode()))
            headers.append((_OWNER, caller.namespace.encode()))
            if name.isprintable():
                headers.append((_SERVED_NAME, name.encode()))
            if route.model.strategy == "CacheAware" and prompt.blocks:
                headers.append((_BLOCKS, b",".join([hexlify(x) for x in prompt.blocks])))
            for own in _WORKERS_OWN if caller.is_worker else ():
                if (value := request.header(own)) is not None:
                    headers.append((own, value))
        return lines(headers) + b"\r\n"

    async def _forward(self, call: Call, prompt: Prompt, record: Record) -> int:
        """The status it was answered with."""
        wish = self._fleet.wish(call.route.id, prompt, len(call.body))
        notes = call.request.notes
        notes.update(model=str(call.route.id), stream=call.is_stream)
        lease, relay, answer = await self._answer(call, wish)
        notes.update(server=str(lease.replica), first_byte=round(record.first_byte(), 4))
        try:
            lease.done(await self._pass_on(call, lease, relay, answer))
        finally:
            relay.cancel()
            lease.done(Outcome.UNKNOWN)
        return answer.status

    async def _answer(self, call: Call, wish: Wish) -> tuple[Lease, Relay, Head]:
        """The answer of a server that took the request, before the client has had any part of it.

        Raises ApiError when there will be none.
        """
        was_cut = False
        while True:
            lease = await self._lease(call, wish)
            try:
                # What ended one server is not given to the next for a worker: it finds out why.
                may_repeat = not was_cut and not call.is_worker
                relay, answer = await self._ask(call, lease, may_repeat)
            except _TryAgain as again:
                self._failed(call, lease, again.outcome, again.__cause__)
                was_cut = was_cut or again.outcome is Outcome.CUT
                wish.avoid.add(lease.replica)
            except Ended as error:
                self._failed(call, lease, Outcome.CUT, error)
                raise _no_answer(call.route, error) from error
            except BaseException:
                lease.done(Outcome.UNKNOWN)
                raise
            else:
                return lease, relay, answer

    async def _lease(self, call: Call, wish: Wish) -> Lease:
        """A server, now or after a wait; a stream that waits long is opened and kept awake."""
        lease = self._fleet.try_lease(wish)
        was_held = lease is None
        patience = self._settings.heartbeat_after if call.is_stream else None
        while lease is None:
            lease = await self._fleet.lease(wish, patience)
            if lease is None:
                if not call.reply.is_started:
                    head = [*_STREAM_HEAD, *call.bill.headers]
                    call.reply.start(200, head, None, events=True)
                call.reply.write(COMMENT)
                patience = self._settings.heartbeat_every
        if was_held:
            call.request.notes["held"] = self._fleet.waited(wish)
        return lease

    async def _ask(self, call: Call, lease: Lease, may_repeat: bool) -> tuple[Relay, Head]:
        """Raises _TryAgain when another server may be asked, else Ended."""
        replica = lease.replica
        try:
            upstream = await self._pool.connect(replica)
        except ConnectFailed as error:
            raise _TryAgain(Outcome.UNREACHABLE) from error
        # One that ends as it is used again was closed by the server before the request came.
        may_repeat = may_repeat and (upstream.was_used or not call.is_stream)
        relay = Relay(upstream)
        call.bill.is_sent = True
        upstream.send(relay, _start_line(call.request, replica) + call.headers, call.body)
        try:
            answer = await relay.answered()
        except Ended as error:
            if may_repeat and not isinstance(error, Silent):
                raise _TryAgain(Outcome.CUT) from error
            raise
        except BaseException:
            relay.cancel()
            raise
        if answer.status == 503 and (_DRAINING, b"1") in answer.headers:
            relay.cancel()
            raise _TryAgain(Outcome.DRAINING)
        return relay, answer

    async def _pass_on(self, call: Call, lease: Lease, relay: Relay, answer: Head) -> Outcome:
        reply = call.reply
        is_events = is_event_stream(answer.headers)
        try:
            if reply.is_started and not (answer.status == 200 and is_events):
                reply.write(_as_event(await relay.collect(), call.request.id) + DONE)
            else:
                if not reply.is_started:
                    headers = passing(answer.headers, _NOT_SENT_BACK, ours=call.is_worker)
                    headers += call.bill.headers
                    reply.start(answer.status, headers, answer.length, events=is_events)
                call.bill.answered(answer, reply.events)
                await relay.pass_on(reply)
        except Ended as error:
            self._failed(call, lease, Outcome.CUT, error)
            call.request.notes["error"] = "broke_off"
            reply.error(_BROKE_OFF)
            return Outcome.CUT
        reply.end()
        is_fault = answer.status in (500, 502, 504)
        return Outcome.SERVER_ERROR if is_fault else Outcome.ANSWERED

    def _failed(
        self, call: Call, lease: Lease, outcome: Outcome, error: BaseException | None
    ) -> None:
        reason = f"{outcome.value}: {error}" if error else outcome.value
        log.warning("model %s: %s: %s", call.route.id, lease.replica, reason)
        self._metrics.failure(call.route.id, outcome)
        lease.done(outcome)


class _TryAgain(Exception):
    """This server didn't take the request; another may be asked for the same."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.value)
        self.outcome = outcome


_TOKEN = internal.TOKEN.encode()
_LANE = internal.LANE.encode()
_OWNER = internal.OWNER.encode()
_SERVED_NAME = internal.SERVED_NAME.encode()
_BLOCKS = internal.BLOCKS.encode()
_WORKERS_OWN = (internal.DEADLINE.encode(), internal.PRIORITY.encode())
_GROUP = internal.GROUP.encode()
_DRAINING = internal.DRAINING.encode()

_NOT_SENT_BACK = frozenset({b"x-request-id"})
_STREAM_HEAD = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_BROKE_OFF = ApiError("The server broke off in the middle of its answer. Please try again.")


def _scan(body: bytes) -> Scan:
    try:
        return scan(body)
    except NotJson:
        raise InvalidRequest(
            "We could not parse the JSON body of your request. (HINT: This likely means you aren't "
            "using your HTTP library correctly. The body must be one JSON object.)"
        ) from None
    except WrongType as error:
        raise InvalidRequest(
            f"Invalid type for 'model': expected a string, but got {error} instead.",
            param="model",
            code="invalid_type",
        ) from None


def _start_line(request: Request, replica: Replica) -> bytes:
    query = b"?" + request.query if request.query else b""
    # The end of an answer to HEAD can't be told by the parser; our reply leaves out its body.
    method = "GET" if request.method == "HEAD" else request.method
    return b"%b %b%b%b HTTP/1.1\r\nhost: %b\r\n" % (
        method.encode(),
        replica.path.encode(),
        request.raw_path,
        query,
        str(replica).encode(),
    )


def _no_answer(route: Route, error: Ended) -> ApiError:
    if isinstance(error, Silent):  # sent again, it would only keep another server busy
        message = f"The server of the model `{route.id}` took too long to answer."
        return Unavailable(message, headers={"x-should-retry": "false"})
    return BadGateway(
        f"The server of the model `{route.id}` went away before it answered. Please try again."
    )


def _as_event(body: bytes, request_id: str) -> bytes:
    """An answer that isn't a stream, for a client that has one: most likely an error's envelope."""
    try:
        answer: Any = json.loads(body)
    except ValueError:
        answer = ServerFault(request_id).body()
    return event(answer)
