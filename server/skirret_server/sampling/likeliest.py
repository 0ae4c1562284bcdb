"""The largest of many: topk, but fast over a whole vocabulary."""

from __future__ import annotations

import math

from torch import Tensor

# R rows, V vocabulary, C chunks of W ids each, K likeliest


def likeliest(values_RV: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row, largest first, and their ids; a NaN counts as largest.

    They lie in the chunks with the largest maxima, as many chunks as there are of them; and a
    maximum over chunks is vectorised, where topk looks at one number after the other.
    """
    vocabulary = values_RV.shape[-1]
    width = math.gcd(vocabulary, 256 if count <= 32 else 32)
    chunks = vocabulary // width
    if width < 16 or chunks <= 2 * count:
        values, ids = values_RV.topk(count, -1)
        return values, ids
    values_RCW = values_RV.view(-1, chunks, width)
    best_RK = values_RCW.amax(-1).topk(count, -1).indices
    candidates_RKW = values_RCW.gather(1, best_RK.unsqueeze(-1).expand(-1, -1, width))
    values_RK, places_RK = candidates_RKW.flatten(1).topk(count, -1)
    chunk_RK = best_RK.gather(1, places_RK // width)
    return values_RK, chunk_RK * width + places_RK % width
