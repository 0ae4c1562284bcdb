"""Token rows, and where two of them part."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from array import array

# Of type code "i". Slices of arrays compare at memcmp's speed; lists of ints do not.
Tokens: TypeAlias = "array[int]"


def common_prefix(left: Tokens, right: Tokens, *, right_from: int = 0, limit: int) -> int:
    """How many tokens `left` and `right[right_from:]` begin with alike, up to `limit`."""
    high = min(limit, len(left), len(right) - right_from)
    if left[:high] == right[right_from : right_from + high]:
        return high
    low, reach = 0, min(16, high)
    while reach < high and left[low:reach] == right[right_from + low : right_from + reach]:
        low, reach = reach, 2 * reach
    high = min(reach, high)
    while high - low > 1:  # [0, low) is equal, [0, high) is not
        middle = (low + high) // 2
        if left[low:middle] == right[right_from + low : right_from + middle]:
            low = middle
        else:
            high = middle
    return low
