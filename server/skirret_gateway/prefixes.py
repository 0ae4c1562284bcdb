"""Which server has how much of a prompt in its cache, as far as is known.

`Prefixes` is a set of blocks for each server. Since blocks are chained, it is a tree without being
built as one: whoever has a block has, or had, all before it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from skirret_gateway.prompt import Block
from skirret_gateway.table import Replica

GUESSED_BLOCKS = 8192  # of each server: 4 MiB of prompts, about a million tokens
EXPECTED_BLOCKS = 1024
TOLD_BLOCKS = 1 << 20  # more would be a mistake


class Prefixes:
    """Blocks by server; of each, those used last."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blocks: dict[Replica, OrderedDict[Block, None]] = {}

    def depth(self, replica: Replica, blocks: Sequence[Block]) -> int:
        """How many of the first blocks a server has."""
        here = self._blocks.get(replica)
        if not here:
            return 0
        for depth, block in enumerate(blocks):
            if block not in here:
                return depth
        return len(blocks)

    def add(self, replica: Replica, blocks: Sequence[Block]) -> None:
        here = self._blocks.setdefault(replica, OrderedDict())
        for block in reversed(blocks):  # what comes first is used last, and stays longest
            here[block] = None
            here.move_to_end(block)
        while len(here) > self._capacity:
            here.popitem(last=False)

    def remove(self, replica: Replica, blocks: Iterable[Block]) -> None:
        here = self._blocks.get(replica, OrderedDict())
        for block in blocks:
            here.pop(block, None)

    def forget(self, replica: Replica) -> None:
        self._blocks.pop(replica, None)

    def keep(self, replicas: Iterable[Replica]) -> None:
        """Forgets all other servers."""
        for replica in self._blocks.keys() - set(replicas):
            del self._blocks[replica]

    def count(self, replica: Replica) -> int:
        return len(self._blocks.get(replica, ()))


class Knowledge:
    """What every server is known, or may be taken, to have."""

    def __init__(self) -> None:
        self.guessed = Prefixes(GUESSED_BLOCKS)  # by what it was sent
        self.told = Prefixes(TOLD_BLOCKS)  # by itself
        self.expected = Prefixes(EXPECTED_BLOCKS)  # sent lately; soon it will tell
        self.telling: set[Replica] = set()

    def sent(self, replica: Replica, blocks: Sequence[Block]) -> None:
        (self.expected if replica in self.telling else self.guessed).add(replica, blocks)

    def depth(self, replica: Replica, blocks: Sequence[Block]) -> int:
        """How many of the first blocks a server has; of one that doesn't tell, a guess."""
        if replica not in self.telling:
            return self.guessed.depth(replica, blocks)
        told = self.told.depth(replica, blocks)
        return max(told, self.expected.depth(replica, blocks))

    def tells(self, replica: Replica, does: bool) -> None:
        if does:
            self.telling.add(replica)
            self.guessed.forget(replica)
        else:
            self.telling.discard(replica)
            self.told.forget(replica)

    def keep(self, replicas: Iterable[Replica]) -> None:
        every = set(replicas)
        self.telling &= every
        for each in (self.guessed, self.told, self.expected):
            each.keep(every)
