"""A model's part on one of several devices: whole heads, and slices of the MLP and vocabulary."""

from __future__ import annotations

from dataclasses import dataclass, replace

from skirret_server.load.errors import UnsupportedModel
from skirret_server.model.description import Description


@dataclass(frozen=True, slots=True)
class Shard:
    """The `rank`th of `size` parts."""

    rank: int = 0
    size: int = 1

    def share(self, count: int) -> tuple[int, int]:
        """[start, end) of so many, when the last parts may be smaller."""
        each = -(-count // self.size)
        return min(self.rank * each, count), min((self.rank + 1) * each, count)


WHOLE = Shard()


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a part lies in a checkpoint's tensor: [start, start + length) along `axis`."""

    axis: int
    start: int
    whole: int  # length of the axis


def local(description: Description, size: int) -> Description:
    """What one of `size` devices computes. Raises UnsupportedModel when it can't be split evenly.

    Where there are more devices than key-value heads, several have the same one.
    """
    queries, keys, mlp = description.query_heads, description.kv_heads, description.mlp
    if queries % size or mlp % size or (keys % size and size % keys):
        raise UnsupportedModel(
            f"--tensor-parallel-size={size}: {queries} query heads, {keys} key-value heads and "
            f"{mlp} MLP rows can't be split evenly among {size} devices"
        )
    return replace(
        description,
        query_heads=queries // size,
        kv_heads=max(keys // size, 1),
        mlp=mlp // size,
    )


def first_kv_head(description: Description, shard: Shard) -> int:
    """Of the whole model's, the first that this part has."""
    return shard.rank * description.kv_heads // shard.size
