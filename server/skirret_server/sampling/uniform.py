"""One random number for each token, fixed by its seed and position alone."""

from __future__ import annotations

_MASK = (1 << 64) - 1


def uniform(seed: int, position: int) -> float:
    """In [0, 1). The same whatever else is in the batch, and after a retraction.

    The finaliser of splitmix64, once over each input. 52 bits, so that no product with it in double
    precision rounds up to the whole.
    """
    mixed = _mix(_mix(seed & _MASK) ^ (position * 0x9E3779B97F4A7C15 & _MASK))
    return (mixed >> 12) / (1 << 52)


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)
