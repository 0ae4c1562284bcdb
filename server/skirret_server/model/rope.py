"""Rotary position embedding: its frequencies for every kind of scaling, and its tables."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from skirret_server.model.description import Rope

# T tokens, N heads, H head size, P positions


def tables(rope: Rope, head_size: int, positions: int) -> tuple[Tensor, Tensor]:
    """cos_PH and sin_PH, the first half of sin negated: see `rotate`."""
    frequencies, scale = _frequencies(rope, head_size, positions)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    cos, sin = angles.cos() * scale, angles.sin() * scale
    return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)


def rotate(x_TNH: Tensor, cos_T1H: Tensor, sin_T1H: Tensor) -> Tensor:
    """Turns each pair (x[i], x[i + H/2]) by its position's angle."""
    swapped = x_TNH.roll(x_TNH.shape[-1] // 2, -1)
    return torch.addcmul(x_TNH * cos_T1H, swapped, sin_T1H)


def _frequencies(rope: Rope, head_size: int, positions: int) -> tuple[Tensor, float]:
    """The angle of each pair for one position, and a factor on cos and sin."""
    plain: Tensor = 1.0 / rope.theta ** (torch.arange(0, head_size, 2).float() / head_size)
    match rope.kind:
        case "default":
            return plain, 1.0
        case "linear":
            return plain / float(rope.parameters["factor"]), 1.0
        case "dynamic":
            return _dynamic(rope, head_size, positions), 1.0
        case "llama3":
            return _llama3(rope, plain), 1.0
        case "yarn":
            return _yarn(rope, plain, head_size)


def _dynamic(rope: Rope, head_size: int, positions: int) -> Tensor:
    """Slower the longer the context that is served, from the model's own on.

    Not the longer the sequence: what was computed of a prefix must stay right as it grows.
    """
    parameters = rope.parameters
    factor = float(parameters["factor"])
    stretch = max(positions / float(parameters["original_max_position_embeddings"]), 1.0)
    theta = rope.theta * (factor * stretch - (factor - 1)) ** (head_size / (head_size - 2))
    frequencies: Tensor = 1.0 / theta ** (torch.arange(0, head_size, 2).float() / head_size)
    return frequencies


def _llama3(rope: Rope, plain: Tensor) -> Tensor:
    """Long waves are stretched by `factor`, short ones kept, those between blended."""
    parameters = rope.parameters
    low, high = float(parameters["low_freq_factor"]), float(parameters["high_freq_factor"])
    turns = plain * (float(parameters["original_max_position_embeddings"]) / (2 * math.pi))
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return kept * plain + (1 - kept) * plain / float(parameters["factor"])


def _yarn(rope: Rope, plain: Tensor, head_size: int) -> tuple[Tensor, float]:
    """As llama3, but blended over the pairs' numbers, and attention is made a little sharper."""
    parameters = rope.parameters
    factor, original = parameters["factor"], parameters["original_max_position_embeddings"]

    def pair(turns: float) -> float:
        """The pair that turns so many times within the original context."""
        ratio = math.log(original / (turns * 2 * math.pi)) / math.log(rope.theta)
        return head_size * ratio / 2

    low = pair(parameters.get("beta_fast") or 32)
    high = pair(parameters.get("beta_slow") or 1)
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_size - 1)
    index = torch.arange(head_size // 2).float()
    stretched = ((index - low) / max(high - low, 1e-3)).clamp(0, 1)
    return plain * (1 - stretched) + plain / factor * stretched, _sharpness(rope)


def _sharpness(rope: Rope) -> float:
    parameters = rope.parameters
    given = parameters.get("attention_factor")
    if given is not None:
        return float(given)

    def mscale(weight: float) -> float:
        factor = parameters["factor"]
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    one, all_dim = parameters.get("mscale"), parameters.get("mscale_all_dim")
    return mscale(one) / mscale(all_dim) if one and all_dim else mscale(1.0)
