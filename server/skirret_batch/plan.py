"""What a batch's input says and in which order to run it. Reads and writes no store.

`Reading` takes the input in pieces and gives every error in it, or an `Index` of its lines.
`Keys` puts them into the order of a radix tree, `cut` cuts that order into shards.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import groupby, islice
from typing import Any, BinaryIO, NamedTuple
from zlib import crc32

from pydantic_core import from_json

from skirret_api.openai import BatchError
from skirret_batch.record import endpoint_of

Body = dict[str, Any]
Render = Callable[[Body], bytes]  # the prompt as the model will see it, or near enough to sort by

MOST_ERRORS = 100  # listed one by one
TOKENS_PER_BYTE = 0.25  # of a prompt, where no server says better
SORTED_BYTES = 8192  # of a rendered prompt
_ENDLESS = 1 << 31  # tokens
DEEPEST = 200  # brackets within brackets

_ENTRY = struct.Struct("<QIIQ")
_TAIL = 256  # lines at the end that go by their length, so that no long one is left for last
_STRANDS = 8  # groups that are run beside each other, so that they can be on different servers
_WORTH_MEETING = 32  # tokens that prompts share, beyond what all do, to be of one group
_BLOCK = 256  # bytes of the rendered prompts compared at once
_MOST_NAMES = 1000  # distinct model names told apart
_BOM = b"\xef\xbb\xbf"


class Line(NamedTuple):
    """Where one request is in the input."""

    offset: int
    length: int  # bytes, without the line's end
    tokens: int  # of its prompt, estimated
    custom_id: int  # the first 64 bits of its hash


class Index:
    """`index.bin`: 24 bytes for every line that isn't blank."""

    def __init__(self, packed: bytes | bytearray) -> None:
        self.packed = packed

    def __len__(self) -> int:
        return len(self.packed) // _ENTRY.size

    def __getitem__(self, ordinal: int) -> Line:
        return Line(*_ENTRY.unpack_from(self.packed, ordinal * _ENTRY.size))


@dataclass(frozen=True, slots=True)
class Plan:
    """`plan.bin`: the lines in the order they are best run in, cut into shards."""

    model: str
    order: Sequence[int]  # ordinals of lines
    ends: Sequence[int]  # shard i is order[ends[i - 1]:ends[i]]
    shared: int = 0  # tokens of prompts that this order finds in a prefix cache, estimated
    groups: Sequence[int] = ()  # by ordinal; lines of one group begin alike, 0: like no other

    def shard(self, number: int) -> Sequence[int]:
        return self.order[self.ends[number - 1] if number else 0 : self.ends[number]]

    def encode(self) -> bytes:
        head = {"model": self.model, "ends": list(self.ends), "shared": self.shared}
        packed = _little(array("I", [*self.order, *self.groups]))
        return json.dumps(head).encode() + b"\n" + packed.tobytes()


def decode_plan(data: bytes) -> Plan:
    head, _, packed = data.partition(b"\n")
    values = from_json(head)
    numbers = array("I")
    numbers.frombytes(packed)
    numbers = _little(numbers)
    total = values["ends"][-1]
    return Plan(
        values["model"],
        numbers[:total],
        values["ends"],
        values.get("shared", 0),
        numbers[total:] or array("I", bytes(numbers.itemsize * total)),
    )


class Reading:
    """One pass over an input: feed it pieces, `finish`, then read `errors` or the index."""

    def __init__(self, endpoint: str, max_lines: int, keys: Keys) -> None:
        self._endpoint = endpoint
        self._max_lines = max_lines
        self._keys = keys
        self._tail = bytearray()
        self._offset = 0
        self._number = 0  # physical line, from 1
        self._requests = 0
        self._packed = bytearray()
        self._seen: dict[bytes, int] = {}  # hash of custom_id → line
        self._models: dict[str, _Uses] = {}
        self._errors = _Errors()

    def feed(self, piece: bytes) -> None:
        # Only \n ends a line: U+2028, U+0085 and form feeds are legal inside of JSON strings.
        lines = piece.split(b"\n")
        self._tail += lines[0]
        for line in lines[1:]:
            self._take(bytes(self._tail), ended=True)
            self._tail = bytearray(line)

    def finish(self) -> None:
        if self._tail:
            self._take(bytes(self._tail), ended=False)
            self._tail.clear()

    @property
    def index(self) -> Index:
        return Index(self._packed)

    @property
    def models(self) -> Sequence[str]:
        """The model names used, in order of first use."""
        return list(self._models)

    def errors(self, identities: Mapping[str, str | None]) -> list[BatchError]:
        """Everything wrong, by line; `identities` says what each model name is a name of."""
        errors = self._errors.copy()
        if not self._requests:
            errors.add(None, "empty_file", "The input has no requests.")
        if self._requests > self._max_lines:
            errors.add(
                None,
                "too_many_tasks",
                f"The input has {self._requests:,} requests; a batch has at most "
                f"{self._max_lines:,}.",
            )
        model = next((known for known in map(identities.get, self._models) if known), None)
        for name, uses in self._models.items():
            identity = identities.get(name)
            if identity is None:
                code = "model_not_found"
                message = f"The model `{name}` does not exist or you do not have access to it."
            elif identity != model:
                code = "mismatched_model"
                message = f"A batch is for one model; `{name}` is not the one of the lines before."
            else:
                continue
            errors.add_all(uses, code, message, "body.model")
        return errors.listed()

    def _take(self, line: bytes, *, ended: bool) -> None:
        offset = self._offset
        self._offset += len(line) + ended
        self._number += 1
        if self._number == 1 and line.startswith(_BOM):
            offset += len(_BOM)
            line = line[len(_BOM) :]
        if not line.strip():
            return
        self._requests += 1
        request = parse_line(line)
        if request is None:
            self._errors.add(
                self._number, "invalid_json_line", "This line is not parseable as valid JSON."
            )
            return
        problems = self._errors.count
        custom_id, body = self._check(request)
        if self._errors.count == problems and self._requests <= self._max_lines:
            tokens = self._keys.add(body)
            digest = int.from_bytes(_hash(custom_id)[:8], "little")
            self._packed += _ENTRY.pack(offset, len(line), tokens, digest)

    def _check(self, request: dict[str, Any]) -> tuple[str, Body]:
        custom_id = request.get("custom_id")
        if isinstance(custom_id, str):
            self._check_is_new(custom_id)
        else:
            self._missing("custom_id", "a string")
            custom_id = ""
        method = request.get("method")
        if not isinstance(method, str):
            self._missing("method", "a string")
        elif method != "POST":
            self._wrong("invalid_method", "method", "The method of every line must be POST.")
        url = request.get("url")
        if not isinstance(url, str):
            self._missing("url", "a string")
        elif endpoint_of(url) != self._endpoint:
            self._wrong(
                "url_mismatch", "url", f"The URL of every line must be {self._endpoint} here."
            )
        body = request.get("body")
        if not isinstance(body, dict):
            self._missing("body", "an object")
            return custom_id, {}
        model = body.get("model")
        # A line without a model is answered like any request without one: by its own error.
        if isinstance(model, str) and (model in self._models or len(self._models) < _MOST_NAMES):
            self._models.setdefault(model, _Uses()).add(self._number)
        return custom_id, body

    def _check_is_new(self, custom_id: str) -> None:
        digest = _hash(custom_id)
        first = self._seen.setdefault(digest, self._number)
        if first != self._number:
            self._wrong(
                "duplicate_custom_id", "custom_id", f"This custom_id was used on line {first}."
            )

    def _missing(self, param: str, kind: str) -> None:
        self._wrong("missing_required_parameter", param, f"{param} is required and must be {kind}.")

    def _wrong(self, code: str, param: str, message: str) -> None:
        self._errors.add(self._number, code, message, param)


def first_model(head: bytes) -> str | None:
    """The model that the first readable line names, of the beginning of an input."""
    for line in head.removeprefix(_BOM).split(b"\n"):
        body = (parse_line(line) or {}).get("body") if line.strip() else None
        if isinstance(body, dict) and isinstance(body.get("model"), str):
            return str(body["model"])
    return None


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The JSON object on a line; None for anything else."""
    try:
        value = from_json(line, allow_inf_nan=False)
    except ValueError as error:
        if "hex escape" not in str(error):
            return None
        value = _parse_with_surrogates(line)
    return value if isinstance(value, dict) else None


class Keys:
    """What the lines are sorted by: the head of each rendered prompt, kept in a file."""

    def __init__(self, file: BinaryIO, render: Render, tokens_per_byte: float) -> None:
        self._file = file
        self._render = render
        self._tokens_per_byte = tokens_per_byte
        self._ends = array("Q", [0])
        self._work = array("I")

    def add(self, body: Body) -> int:
        """Takes the next line; returns its prompt's tokens, estimated."""
        prompt = self._render(body)
        self._file.write(prompt[:SORTED_BYTES])
        self._ends.append(self._ends[-1] + min(len(prompt), SORTED_BYTES))
        self._work.append(_asked_tokens(body))
        return int(len(prompt) * self._tokens_per_byte) + 1

    def block(self, ordinal: int, depth: int) -> bytes:
        """Bytes of the key from `depth` on."""
        start, end = self._ends[ordinal] + depth, self._ends[ordinal + 1]
        self._file.seek(start)
        return self._file.read(max(0, min(_BLOCK, end - start)))

    def order(self, groups: Sequence[int], ordered: Sequence[int]) -> list[int]:
        """Ordinals in the order to run them in, of those by key.

        Some groups beside each other, and at the tail by length of work.
        """
        woven = _woven(ordered, groups)
        tail = min(_TAIL, len(woven) // 4)
        head = len(woven) - tail
        return woven[:head] + sorted(woven[head:], key=lambda each: -self._work[each])

    def groups(self, ordered: Sequence[int]) -> array[int]:
        """By ordinal, a number that lines share whose prompts begin alike; 0 for one like no other.

        What all lines share is no reason to meet: every server has it soon.
        """
        groups = array("I", bytes(4 * len(ordered)))
        if not ordered:
            return groups
        first, last = self._key(ordered[0]), self._key(ordered[-1])
        length = _common_prefix(first, last) + int(_WORTH_MEETING / self._tokens_per_byte)
        for ordinal in ordered:
            key = self._key(ordinal)
            groups[ordinal] = (crc32(key[:length]) or 1) if len(key) >= length else 0
        sizes = Counter(groups)
        for ordinal, group in enumerate(groups):
            if sizes[group] in (1, len(ordered)):
                groups[ordinal] = 0
        return groups

    def shared_tokens(self, ordered: Sequence[int]) -> int:
        """What a prefix cache saves at best: of each key, what the one before it shares."""
        shared, before = 0, b""
        for ordinal in ordered:
            key = self._key(ordinal)
            shared += int(_common_prefix(before, key) * self._tokens_per_byte)
            before = key
        return shared

    def _key(self, ordinal: int) -> bytes:
        self._file.seek(self._ends[ordinal])
        return self._file.read(self._ends[ordinal + 1] - self._ends[ordinal])

    def sorted(self) -> list[int]:
        """Ordinals by key; of equal keys, the longest work first.

        Most significant block first, so that only one block of each key is in memory.
        """
        ordered: list[int] = []
        groups: list[tuple[list[int], int]] = [(list(range(len(self._work))), 0)]
        while groups:
            group, depth = groups.pop()
            if len(group) == 1 or depth >= SORTED_BYTES:
                ordered += sorted(group, key=lambda ordinal: -self._work[ordinal])
                continue
            blocks: dict[bytes, list[int]] = {}
            for ordinal in group:
                blocks.setdefault(self.block(ordinal, depth), []).append(ordinal)
            for block in sorted(blocks, reverse=True):
                # A short block is the key's end: what is equal here is equal.
                deeper = depth + _BLOCK if len(block) == _BLOCK else SORTED_BYTES
                groups.append((blocks[block], deeper))
        return ordered


def cut(order: Sequence[int], index: Index, *, lines: int, tokens: int) -> list[int]:
    """Ends of shards of at most so many lines, and about so many estimated tokens."""
    ends: list[int] = []
    start = spent = 0
    for position, ordinal in enumerate(order):
        if position > start and (position - start >= lines or spent >= tokens):
            ends.append(position)
            start, spent = position, 0
        spent += index[ordinal].tokens
    return [*ends, len(order)]


def canonical(body: Body) -> bytes:
    """The prompt without a template: what any template would put in this order."""
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return prompt.encode("utf-8", "surrogatepass")
    if prompt is not None:
        return json.dumps(prompt).encode()
    parts = [json.dumps(body["tools"])] if body.get("tools") else []
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else [messages]:
        if isinstance(message, dict):
            content = message.get("content")
            text = content if isinstance(content, str) else json.dumps(content)
            parts.append(f"\x02{message.get('role')}\n{text}\x03")
        else:
            parts.append(json.dumps(message))
    return "".join(parts).encode("utf-8", "surrogatepass")


@dataclass(slots=True)
class _Uses:
    """The lines that use one model name; the first are known by number."""

    lines: list[int] = field(default_factory=list)
    count: int = 0

    def add(self, line: int) -> None:
        self.count += 1
        if len(self.lines) < MOST_ERRORS:
            self.lines.append(line)


@dataclass(slots=True)
class _Errors:
    """The first errors, and how many there are."""

    first: list[BatchError] = field(default_factory=list)
    count: int = 0

    def add(self, line: int | None, code: str, message: str, param: str | None = None) -> None:
        self.count += 1
        if line is None or len(self.first) < MOST_ERRORS:
            self.first.append(BatchError(code=code, message=message, param=param, line=line))

    def add_all(self, uses: _Uses, code: str, message: str, param: str) -> None:
        self.first += (
            BatchError(code=code, message=message, param=param, line=line) for line in uses.lines
        )
        self.count += uses.count

    def copy(self) -> _Errors:
        return _Errors(list(self.first), self.count)

    def listed(self) -> list[BatchError]:
        """By line, the file's own first; a last entry stands for those not shown."""
        shown = sorted(self.first, key=lambda error: error.line or 0)[:MOST_ERRORS]
        hidden = self.count - len(shown)
        if hidden:
            message = f"{hidden:,} more errors are not listed."
            shown.append(BatchError(code="more_errors", message=message))
        return shown


def _hash(custom_id: str) -> bytes:
    return sha256(custom_id.encode("utf-8", "surrogatepass")).digest()[:16]


def _parse_with_surrogates(line: bytes) -> object:
    """Lone surrogate escapes are JSON, if no text: the request, not the batch, answers for them."""
    try:
        value = json.loads(line.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None
    return value if _depth(value) <= DEEPEST else None


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def _depth(value: object) -> int:
    deepest, level = 0, [value]
    while level:
        inner: list[object] = []
        for each in level:
            if isinstance(each, dict):
                inner += each.values()
            elif isinstance(each, list):
                inner += each
        deepest += any(isinstance(each, (dict, list)) for each in level)
        level = inner
    return deepest


def _asked_tokens(body: Body) -> int:
    """The longest its answer may be; a chat that doesn't say may go on to the context's end."""
    asked = body.get("max_completion_tokens") or body.get("max_tokens")
    if isinstance(asked, int) and asked > 0:
        return min(asked, _ENDLESS)
    return 16 if "prompt" in body else _ENDLESS


def _woven(ordered: Sequence[int], groups: Sequence[int]) -> list[int]:
    """Lines of a few groups in turn; each group's lines stay in their order.

    One after the other, groups would all be on one server, or all on several.
    """
    by_group: Iterator[deque[int]] = (deque(run) for _, run in groupby(ordered, groups.__getitem__))
    strands = deque(islice(by_group, _STRANDS))
    woven = []
    while strands:
        strand = strands.popleft()
        woven.append(strand.popleft())
        following = strand or next(by_group, deque())
        if following:
            strands.append(following)
    return woven


def _common_prefix(one: bytes, other: bytes) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


def _little(values: array[int]) -> array[int]:
    if struct.pack("=I", 1) != struct.pack("<I", 1):  # a big-endian machine
        values = array("I", values)
        values.byteswap()
    return values
