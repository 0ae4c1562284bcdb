from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from skirret_api.errors import ServerFault
from skirret_gateway.sse import DONE, EventStream

_PIECES = st.lists(
    st.sampled_from([b"data: {}", b"\n", b"\n\n", b"\r\n", b"\r\n\r\n", b": note", b"[DONE]", b"x"])
)
EVENT = b'data: {"a": 1}\n\n'


@given(_PIECES)
def test_no_byte_is_changed_or_lost(pieces: list[bytes]) -> None:
    events = EventStream()
    sent = b"".join(events.feed(piece) for piece in pieces) + events.rest()
    assert sent == b"".join(pieces)


@given(_PIECES)
def test_what_was_sent_so_far_ends_with_a_whole_event(pieces: list[bytes]) -> None:
    events = EventStream()
    sent = b"".join(events.feed(piece) for piece in pieces)
    assert sent == b"" or sent.endswith((b"\n\n", b"\r\n\r\n"))


def test_a_part_of_an_event_waits_for_the_rest() -> None:
    events = EventStream()
    assert events.feed(EVENT + b'data: {"b"') == EVENT
    assert events.feed(b": 2}\n\n") == b'data: {"b": 2}\n\n'


def test_a_stream_is_done_after_its_done_event_only() -> None:
    events = EventStream()
    events.feed(EVENT)
    assert not events.is_done
    events.feed(b": x-skirret-usage 1,0,1\n\n" + DONE)
    assert events.is_done


def test_text_that_says_done_does_not_end_a_stream() -> None:
    events = EventStream()
    events.feed(b"data: %b\n\n" % json.dumps({"a": "\ndata: [DONE]\n\n"}).encode())
    assert not events.is_done


def test_one_that_breaks_off_in_an_event_ends_with_an_error_and_done() -> None:
    events = EventStream()
    sent = events.feed(EVENT + b'data: {"half') + events.close(ServerFault("req_1"))
    first, error, done = sent.split(b"\n\n")[:3]
    assert first + b"\n\n" == EVENT
    assert json.loads(error.removeprefix(b"data: "))["error"]["type"] == "server_error"
    assert done == b"data: [DONE]"


def test_one_that_breaks_off_after_done_ends_as_it_is() -> None:
    events = EventStream()
    events.feed(EVENT + DONE)
    assert events.close(ServerFault("req_1")) == b""


def test_an_event_too_long_to_hold_back_passes_in_pieces() -> None:
    events = EventStream()
    assert len(events.feed(b"data: " + b"x" * 100_000)) > 100_000
    assert events.is_torn
    events.feed(b"\n\n")
    assert not events.is_torn
