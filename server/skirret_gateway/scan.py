"""What routing needs of a request's body, found in one pass over its bytes.

No document is built: each top-level value is stepped over by one regular expression, so a large
body costs a millisecond or two a megabyte and no memory to speak of. Where the body is JSON, the
answer is the parser's: the last of equal keys counts, keys and names may be written with escapes.
Where it isn't, `NotJson` or any answer will do, since the server reads the same bytes and refuses
them.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import NamedTuple

from skirret_api.internal import BLOCK_BYTES, MAX_BLOCKS
from skirret_gateway.prompt import Prompt

HEAD_BYTES = 512  # of the prompt; two prompts equal so far are likely to share a prefix
MAX_DEPTH = 200  # brackets; the servers' parser stops there too
MAX_MEMBERS = 1000  # of the body itself; requests have a few dozen


class NotJson(ValueError):
    """The body is no JSON object that a server would read."""


class WrongType(ValueError):
    """`model` is there, and is no string; the message names what it is."""


class Scan(NamedTuple):
    model: str | None  # None: absent or null
    stream: bool
    flex: bool  # service_tier is "flex"
    prompt: Prompt


def scan(body: bytes) -> Scan:
    """Raises NotJson or WrongType."""
    plain = _without_escapes(body)
    spans = _spans(body, plain)
    prompt = spans.get(b"messages") or spans.get(b"prompt") or spans.get(b"input")
    session = spans.get(b"prompt_cache_key") or spans.get(b"user")
    start, end = prompt or (0, 0)
    return Scan(
        model=_name(_at(body, spans.get(b"model"))),
        stream=_at(body, spans.get(b"stream")) == b"true",
        flex=_at(body, spans.get(b"service_tier")) == b'"flex"',
        prompt=Prompt(
            text=body[start : min(end, start + _TEXT_BYTES)],
            head=body[start : _end_of_head(plain, start, end)] if prompt else b"",
            session=_session(_at(body, session)),
            before=_at(body, spans.get(b"tools")) if b"tools" in spans else b"",
        ),
    )


_WANTED = frozenset(
    b"model stream service_tier messages prompt input tools prompt_cache_key user".split()
)
_TEXT_BYTES = BLOCK_BYTES * MAX_BLOCKS
_Span = tuple[int, int]

# All of these are matched against text in which every quote begins or ends a string. None can match
# in two ways (++ and *+ never give back), so each costs one look at each byte.
_STRING = rb'"[^"]*+"'
_SPACE = rb"[ \t\n\r]*+"
_OPEN = re.compile(_SPACE + rb"\{" + _SPACE)
_CLOSE = re.compile(rb"\}" + _SPACE + rb"\Z")
_COMMA = re.compile(_SPACE + rb"," + _SPACE)
_USER = re.compile(rb'"role"' + _SPACE + rb":" + _SPACE + rb'"user"')
_USUAL_DEPTH = 10


def _brackets(depth: int) -> bytes:
    inner = rb"" if depth == 1 else rb"|" + _brackets(depth - 1)
    return rb"[\[{](?:" + _STRING + rb'|[^"\[\]{}]++' + inner + rb")*+[\]}]"


@cache  # the deep one takes long to make and is hardly ever needed
def _member(depth: int) -> re.Pattern[bytes]:
    """A key, its value, and what must follow: another key, or the end."""
    value = _STRING + rb'|[^"\[\]{},:\s]++|' + _brackets(depth)
    key = rb'"([^"]*+)"' + _SPACE + rb":" + _SPACE
    more = _SPACE + rb"(?:," + _SPACE + rb'(?=")|(?=\}))'
    return re.compile(key + rb"(" + value + rb")" + more)


_USUAL_MEMBER = _member(_USUAL_DEPTH)
_MESSAGE = re.compile(_brackets(_USUAL_DEPTH))


def _without_escapes(body: bytes) -> bytes:
    """The same length, every escaped quote or backslash blotted out."""
    if b"\\" not in body:
        return body
    return body.replace(b"\\\\", b"__").replace(b'\\"', b"__")


def _spans(body: bytes, plain: bytes) -> dict[bytes, _Span]:
    """Where the values of the wanted keys are; of equal keys, the last one's."""
    spans = {}
    start = _OPEN.match(plain)
    if start is None:
        raise NotJson
    at = start.end()
    for _ in range(MAX_MEMBERS):
        if not plain.startswith(b'"', at):
            break
        member = _USUAL_MEMBER.match(plain, at) or _member(MAX_DEPTH - 1).match(plain, at)
        if member is None:
            raise NotJson
        key = _unescaped(body[member.start(1) : member.end(1)])
        if key in _WANTED:
            spans[key] = member.span(2)
        at = member.end()
    if _CLOSE.match(plain, at) is None:
        raise NotJson
    return spans


def _unescaped(key: bytes) -> bytes:
    return _text(b'"%b"' % key).encode() if b"\\" in key else key


def _at(body: bytes, span: _Span | None) -> bytes:
    return body[span[0] : span[1]] if span else b"null"


def _session(value: bytes) -> bytes:
    """A name that is no string, or empty, is none; the server refuses the former."""
    return value[1:-1][:HEAD_BYTES] if value.startswith(b'"') else b""


def _name(value: bytes) -> str | None:
    if value == b"null":
        return None
    if value.startswith(b'"'):
        return _text(value)
    kinds = {b"{": "an object", b"[": "an array", b"t": "a boolean", b"f": "a boolean"}
    raise WrongType(kinds.get(value[:1], "a number"))


def _text(quoted: bytes) -> str:
    try:
        if b"\\" not in quoted:
            return quoted[1:-1].decode()
        text: str = json.loads(quoted)
        text.encode()
    except ValueError as error:  # a bad escape, bad UTF-8 or half of a surrogate pair
        raise NotJson from error
    return text


def _end_of_head(plain: bytes, start: int, end: int) -> int:
    """Where the prompt's head ends; of messages, no later than the first one of the user.

    So the turns of one conversation have one head, and so have conversations that begin with the
    same long text.
    """
    limit = min(start + HEAD_BYTES, end)
    at = start + 1
    while at < limit and plain[at] == _BRACE and (message := _MESSAGE.match(plain, at)):
        if _USER.search(plain, at, message.end()):
            return min(limit, message.end())
        comma = _COMMA.match(plain, message.end())
        at = comma.end() if comma else limit
    return limit


_BRACE = ord("{")
