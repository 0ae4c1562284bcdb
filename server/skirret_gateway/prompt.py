"""What routing knows of a prompt: whose turn it is, how it begins, and its blocks.

Blocks are hashes of the prompt's raw bytes, each chained to those before it, so that an equal hash
means an equal beginning. No tokenizer is needed: a server ties each to a depth in its own cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

from skirret_api.internal import BLOCK_BYTES, MAX_BLOCKS

Block = bytes


@dataclass(eq=False)
class Prompt:
    text: bytes = b""  # the JSON value, or its first MAX_BLOCKS blocks
    head: bytes = b""  # the same for all turns of a conversation
    session: bytes = b""  # a client's own name for what should stay together
    before: bytes = b""  # what a server puts in front of the text: its tools

    @property
    def key(self) -> bytes:
        """Prompts with equal keys are sent to one server."""
        return self.session or self.head

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """One for each whole block of the text."""
        return chain(self.text, self.before)


def chain(text: bytes, before: bytes = b"") -> tuple[Block, ...]:
    last = _hash(before) if before else b""
    found = []
    for at in range(0, min(len(text), MAX_BLOCKS * BLOCK_BYTES) - BLOCK_BYTES + 1, BLOCK_BYTES):
        last = _hash(last + text[at : at + BLOCK_BYTES])
        found.append(last)
    return tuple(found)


def _hash(data: bytes) -> bytes:
    return blake2b(data, digest_size=8).digest()
