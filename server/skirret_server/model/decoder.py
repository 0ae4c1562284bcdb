"""The decoder that Llama and its relatives share: functions over fused weights.

Split over several devices, each has whole heads and a slice of the MLP, and what they give is
summed twice a layer; each has a slice of the vocabulary too, whose logits are put side by side.

Matrices and the KV cache are of the model's dtype. What runs between them, the residual stream,
norms and rotation, is float32 throughout: it costs little, and in bfloat16 it would be most of the
error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from skirret_server.model.description import Rope
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


class Group(Protocol):
    """The devices that a model is split over. Each of them calls the same, in the same order."""

    def sum(self, x: Tensor) -> None:
        """Over all devices, in place."""

    def side_by_side(self, x_RV: Tensor) -> Tensor:
        """The columns of all devices."""


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
    attention_norm: Tensor | None
    mlp_norm: Tensor | None
    rope: int | None  # which of the decoder's tables; None: it knows no positions


class Decoder:
    """A model that can run. Takes the weights over: what is packed is gone from them."""

    def __init__(self, weights: Weights, positions: int, group: Group | None = None) -> None:
        description = weights.description
        self.description = description
        self.dtype = weights.dtype
        self.device = weights.embedding.device
        self.embedding = weights.embedding
        self._group = group
        self._first_token = weights.shard.rank * len(weights.embedding)
        # Rounded as in training, where it was a number of the model's dtype.
        scale = torch.tensor(description.embedding_scale, dtype=self.dtype)
        self._embedding_scale = float(scale)
        self._activation = _ACTIVATIONS[description.activation]
        self._norm = self._norm_weight(weights.norm)
        ropes = list(dict.fromkeys(each for each in description.ropes if each is not None))
        self._blocks: list[_Block] = []
        while weights.layers:  # one by one, so that no more than one layer is there twice
            rope = description.ropes[len(self._blocks)]
            table = None if rope is None else ropes.index(rope)
            self._blocks.append(self._block(weights.layers.pop(0), table))
        is_rounded = self.dtype != torch.float32
        self._plain_head = weights.head if is_rounded else None
        if is_rounded and not description.tied:
            # Needed plain, so packed it would be there twice.
            self._head: Product = partial(F.linear, weight=weights.head)
        else:
            self._head = product(weights.head)
        self._tables = [self._table(each, positions) for each in ropes]

    def hidden(self, ids_T: Tensor, positions_T: Tensor, attend: Attend) -> Tensor:
        """x_TD after the last norm, in float32."""
        angles = [
            (cos_PH[positions_T].unsqueeze(1), sin_PH[positions_T].unsqueeze(1))
            for cos_PH, sin_PH in self._tables
        ]
        x = self._embedded(ids_T)
        for index, block in enumerate(self._blocks):
            normed = self._normed(x, block.input_norm).to(self.dtype)
            q, k, v = self._heads(
                block, block.qkv(normed), None if block.rope is None else angles[block.rope]
            )
            x += self._summed(
                block.output(attend(index, q, k, v).view(len(x), -1)), block.attention_norm
            )
            normed = self._normed(x, block.post_norm).to(self.dtype)
            gate, up = block.gate_up(normed).chunk(2, -1)
            x += self._summed(block.down(self._activation(gate) * up), block.mlp_norm)
        return self._normed(x, self._norm)

    def logits(self, x_RD: Tensor) -> Tensor:
        """logits_RV in float32."""
        logits_RV = self._head(x_RD.to(self.dtype)).float()
        if self._plain_head is not None:
            best_RC = likeliest(logits_RV, min(_EXACT, logits_RV.shape[-1]))[1]
            heads_RCD = F.embedding(best_RC, self._plain_head).float()
            logits_RV.scatter_(1, best_RC, torch.einsum("rd,rcd->rc", x_RD, heads_RCD))
        if self._group is not None:
            logits_RV = self._group.side_by_side(logits_RV)[:, : self.description.vocabulary]
        cap = self.description.logit_cap
        return torch.tanh(logits_RV / cap) * cap if cap else logits_RV

    def _embedded(self, ids_T: Tensor) -> Tensor:
        """x_TD. Each device knows some tokens, and gives zeros for the others."""
        if self._group is None:
            x = F.embedding(ids_T, self.embedding).float()
        else:
            own_T = ids_T - self._first_token
            is_own_T = (own_T >= 0) & (own_T < len(self.embedding))
            # Times, since `where` with a number copies it to the device, which no graph can hold.
            x = F.embedding(own_T * is_own_T, self.embedding).float()
            x *= is_own_T.unsqueeze(1)
            self._group.sum(x)
        return x if self._embedding_scale == 1 else x.mul_(self._embedding_scale)

    def _summed(self, x_TD: Tensor, norm: Tensor | None) -> Tensor:
        """What attention or MLP adds, normed where the model wants that."""
        return x_TD if norm is None else self._normed(x_TD.float(), norm)

    def _heads(
        self, block: _Block, qkv: Tensor, angles: tuple[Tensor, Tensor] | None
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
        qk = (qk if angles is None else rotate(qk, *angles)).to(self.dtype)
        return qk[:, :queries], qk[:, queries:], qkv[:, queries + keys :]

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.description.norm_eps)

    def _norm_weight(self, weight: Tensor) -> Tensor:
        offset = self.description.norm_offset
        return weight + offset if offset else weight

    def _table(self, rope: Rope, positions: int) -> tuple[Tensor, Tensor]:
        cos_PH, sin_PH = tables(rope, self.description.head_size, positions)
        return cos_PH.to(self.device), sin_PH.to(self.device)

    def _block(self, layer: Layer, rope: int | None) -> _Block:
        def norm(weight: Tensor | None) -> Tensor | None:
            return None if weight is None else self._norm_weight(weight)

        return _Block(
            input_norm=self._norm_weight(layer.input_norm),
            qkv=product(layer.qkv, layer.qkv_bias),
            output=self._over_all(layer.output, layer.output_bias),
            post_norm=self._norm_weight(layer.post_norm),
            gate_up=product(layer.gate_up, layer.gate_up_bias),
            down=self._over_all(layer.down, layer.down_bias),
            query_norm=norm(layer.query_norm),
            key_norm=norm(layer.key_norm),
            attention_norm=norm(layer.attention_norm),
            mlp_norm=norm(layer.mlp_norm),
            rope=rope,
        )

    def _over_all(self, weight: Tensor, bias: Tensor | None) -> Product:
        """A product whose inputs are split over the devices."""
        if self._group is None:
            return product(weight, bias)
        return partial(_summed_product, product(weight), bias, self._group)


def _summed_product(multiply: Product, bias: Tensor | None, group: Group, x: Tensor) -> Tensor:
    y = multiply(x)
    group.sum(y)
    return y if bias is None else y.add_(bias)


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}
