"""The decoder that Llama and its relatives share: functions over fused weights.

Matrices and the KV cache are of the model's dtype. What runs between them, the residual stream,
norms and rotation, is float32 throughout: it costs little, and in bfloat16 it would be most of the
error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from skirret_server.model.linear import Product, product
from skirret_server.model.rope import rotate, tables
from skirret_server.model.weights import Layer, Weights
from skirret_server.sampling.likeliest import likeliest

# T tokens of the step, R of them whose logits are wanted, D hidden, N query heads, K key-value
# heads, H head size, V vocabulary, C candidates

# How many logits are computed exactly where the head's matrix product is rounded to bfloat16:
# near 25, its steps are an eighth, and the likeliest tokens would tie.
_EXACT = 16

# Writes the new keys and values of a layer to the cache, and attends to all there are.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # (layer, q_TNH, k_TKH, v_TKH) -> o_TNH


@dataclass(frozen=True, slots=True)
class _Block:
    """One layer, ready to multiply."""

    input_norm: Tensor
    qkv: Product
    output: Product
    post_norm: Tensor
    gate_up: Product
    down: Product
    query_norm: Tensor | None
    key_norm: Tensor | None


class Decoder:
    """A model that can run. Takes the weights over: what is packed is gone from them."""

    def __init__(self, weights: Weights, positions: int) -> None:
        self.description = weights.description
        self.dtype = weights.dtype
        self.embedding = weights.embedding
        self._norm = weights.norm
        self._blocks: list[_Block] = []
        while weights.layers:  # one by one, so that no more than one layer is there twice
            self._blocks.append(_block(weights.layers.pop(0)))
        is_rounded = self.dtype != torch.float32
        self._plain_head = weights.head if is_rounded else None
        if is_rounded and not self.description.tied:
            # Needed plain, so packed it would be there twice.
            self._head: Product = partial(F.linear, weight=weights.head)
        else:
            self._head = product(weights.head)
        self._cos_PH, self._sin_PH = tables(
            self.description.rope, self.description.head_size, positions
        )

    def hidden(self, ids_T: Tensor, positions_T: Tensor, attend: Attend) -> Tensor:
        """x_TD after the last norm, in float32."""
        cos = self._cos_PH[positions_T].unsqueeze(1)
        sin = self._sin_PH[positions_T].unsqueeze(1)
        x = F.embedding(ids_T, self.embedding).float()
        for index, block in enumerate(self._blocks):
            normed = self._normed(x, block.input_norm).to(self.dtype)
            q, k, v = self._heads(block, block.qkv(normed), cos, sin)
            x += block.output(attend(index, q, k, v).view(len(x), -1))
            normed = self._normed(x, block.post_norm).to(self.dtype)
            gate, up = block.gate_up(normed).chunk(2, -1)
            x += block.down(F.silu(gate) * up)
        return self._normed(x, self._norm)

    def logits(self, x_RD: Tensor) -> Tensor:
        """logits_RV in float32."""
        logits_RV = self._head(x_RD.to(self.dtype)).float()
        if self._plain_head is None:
            return logits_RV
        best_RC = likeliest(logits_RV, min(_EXACT, logits_RV.shape[-1]))[1]
        heads_RCD = F.embedding(best_RC, self._plain_head).float()
        return logits_RV.scatter_(1, best_RC, torch.einsum("rd,rcd->rc", x_RD, heads_RCD))

    def _heads(
        self, block: _Block, qkv: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        description = self.description
        queries, keys = description.query_heads, description.kv_heads
        qkv = qkv.view(len(qkv), queries + 2 * keys, description.head_size)
        qk = qkv[:, : queries + keys].float()
        if block.query_norm is not None and block.key_norm is not None:
            qk = torch.cat(
                [
                    self._normed(qk[:, :queries], block.query_norm),
                    self._normed(qk[:, queries:], block.key_norm),
                ],
                1,
            )
        qk = rotate(qk, cos, sin).to(self.dtype)
        return qk[:, :queries], qk[:, queries:], qkv[:, queries + keys :]

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.description.norm_eps)


def _block(layer: Layer) -> _Block:
    return _Block(
        input_norm=layer.input_norm,
        qkv=product(layer.qkv, layer.qkv_bias),
        output=product(layer.output, layer.output_bias),
        post_norm=layer.post_norm,
        gate_up=product(layer.gate_up, layer.gate_up_bias),
        down=product(layer.down, layer.down_bias),
        query_norm=layer.query_norm,
        key_norm=layer.key_norm,
    )
