"""Which headers pass the gateway."""

from __future__ import annotations

from skirret_gateway.headers import passing


def test_every_connection_header_names_what_ends_here() -> None:
    named = [
        (b"connection", b"keep-alive, x-a"),
        (b"connection", b"X-B"),
        (b"connection", b"close"),
    ]
    kept = (b"x-c", b"3")
    assert passing([*named, (b"x-a", b"1"), (b"x-b", b"2"), kept], frozenset()) == [kept]
