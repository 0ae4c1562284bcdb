"""Products with weights, packed once in the order in which oneDNN reads them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

Product = Callable[[Tensor], Tensor]

_ops = torch.ops.mkldnn


def product(weight: Tensor, bias: Tensor | None = None) -> Product:
    """x @ weight.T + bias. The packed weight is a copy: let go of the plain one."""
    if not _can_pack(weight):
        return partial(F.linear, weight=weight, bias=bias)
    packed = _packed(weight)

    def multiply(x: Tensor) -> Tensor:
        result: Tensor = _ops._linear_pointwise(x, packed, bias, "none", [], "")
        return result

    return multiply


def _can_pack(weight: Tensor) -> bool:
    """Where oneDNN has kernels of its own for the type; elsewhere it would convert every time."""
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if weight.device.type != "cpu" or not has_onednn:
        return False
    if weight.dtype == torch.bfloat16:
        return bool(_ops._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


def _packed(weight: Tensor) -> Tensor:
    try:
        packed: Tensor = _ops._reorder_linear_weight(weight, None)
    except NotImplementedError:  # torch before 2.15 packs only tensors that are mkldnn's already
        packed = _ops._reorder_linear_weight(weight.to_mkldnn(), None)
    return packed
