"""The part of FlashInfer that we call; `skirret_server.testing.flashinfer` stands in for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from skirret_server.load.errors import UnsupportedModel

VERSION = "0.7.4"  # what pyproject.toml pins, and the stand-in is compared with


@dataclass(frozen=True, slots=True)
class Library:
    prefill: Callable[..., Any]  # BatchPrefillWithPagedKVCacheWrapper
    decode: Callable[..., Any]  # BatchDecodeWithPagedKVCacheWrapper
    merge_state_in_place: Callable[..., Any]
    top_k_mask_logits: Callable[..., Any]
    top_p_renorm_probs: Callable[..., Any]
    sampling_from_probs: Callable[..., Any]
    top_p_sampling_from_probs: Callable[..., Any]
    min_p_sampling_from_probs: Callable[..., Any]
    dtypes: frozenset[torch.dtype] = frozenset({torch.float16, torch.bfloat16})
    head_sizes: frozenset[int] = frozenset({64, 128, 256})  # prebuilt ones


def installed() -> Library:
    """FlashInfer itself. Imported here and nowhere else, since it takes seconds and a GPU.

    Raises UnsupportedModel.
    """
    try:
        from flashinfer import cascade, decode, prefill, sampling
    except ImportError as error:
        raise UnsupportedModel(
            f"--attention-backend=flashinfer needs flashinfer-python {VERSION}, which can't be "
            f"imported ({error}): install skirret[server,cuda]"
        ) from error
    return Library(
        prefill=prefill.BatchPrefillWithPagedKVCacheWrapper,
        decode=decode.BatchDecodeWithPagedKVCacheWrapper,
        merge_state_in_place=cascade.merge_state_in_place,
        top_k_mask_logits=sampling.top_k_mask_logits,
        top_p_renorm_probs=sampling.top_p_renorm_probs,
        sampling_from_probs=sampling.sampling_from_probs,
        top_p_sampling_from_probs=sampling.top_p_sampling_from_probs,
        min_p_sampling_from_probs=sampling.min_p_sampling_from_probs,
    )
