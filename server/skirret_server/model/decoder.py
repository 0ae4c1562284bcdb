"""The decoder that Llama and its relatives share: functions over fused weights.

Matrices and the KV cache are of the model's dtype. What runs between them, the residual stream,
norms and rotation, is float32 throughout: it costs little, and in bfloat16 it would be most of the
error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from skirret_server.model.description import Description
from skirret_server.model.rope import rotate, tables
from skirret_server.sampling.likeliest import likeliest

# T tokens of the step, R of them whose logits are wanted, D hidden, N query heads, K key-value
# heads, H head size, V vocabulary, C candidates

# How many logits are computed exactly where the head's matrix product is rounded to bfloat16:
# near 25, its steps are an eighth, and the likeliest tokens would tie.
_EXACT = 16

# Writes the new keys and values of a layer to the cache, and attends to all there are.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # (layer, q_TNH, k_TKH, v_TKH) -> o_TNH


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer; queries, keys and values in one matrix, gate and up in another."""

    input_norm: Tensor
    qkv: Tensor
    output: Tensor
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor
    qkv_bias: Tensor | None
    output_bias: Tensor | None
    gate_up_bias: Tensor | None
    down_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None


class Decoder:
    """A model in memory. Empty at first: `parameters` says where each tensor belongs."""

    def __init__(
        self, description: Description, dtype: torch.dtype, positions: int, device: str = "cpu"
    ) -> None:
        self.description = description
        self.dtype = dtype
        with torch.device(device):
            self.embedding = torch.empty(description.vocabulary, description.hidden, dtype=dtype)
            self.head = self.embedding if description.tied else torch.empty_like(self.embedding)
            self.norm = torch.empty(description.hidden, dtype=torch.float32)
            self.layers = [_empty_layer(description, dtype) for _ in range(description.layers)]
        self.cos_PH, self.sin_PH = (
            table.to(device) for table in tables(description.rope, description.head_size, positions)
        )

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Each tensor of a checkpoint by name, and the place in ours to copy it to."""
        yield "model.embed_tokens.weight", self.embedding
        yield "model.norm.weight", self.norm
        if not self.description.tied:
            yield "lm_head.weight", self.head
        for index, layer in enumerate(self.layers):
            for name, place in _places(layer, self.description):
                yield f"model.layers.{index}.{name}", place

    def hidden(self, ids_T: Tensor, positions_T: Tensor, attend: Attend) -> Tensor:
        """x_TD after the last norm, in float32."""
        cos = self.cos_PH[positions_T].unsqueeze(1)
        sin = self.sin_PH[positions_T].unsqueeze(1)
        x = F.embedding(ids_T, self.embedding).float()
        for index, layer in enumerate(self.layers):
            normed = self._normed(x, layer.input_norm).to(self.dtype)
            q, k, v = self._heads(layer, F.linear(normed, layer.qkv, layer.qkv_bias), cos, sin)
            attended = attend(index, q, k, v).view(len(x), -1)
            x += F.linear(attended, layer.output, layer.output_bias)
            normed = self._normed(x, layer.post_norm).to(self.dtype)
            gate_up = F.linear(normed, layer.gate_up, layer.gate_up_bias)
            gate, up = gate_up.chunk(2, -1)
            x += F.linear(F.silu(gate) * up, layer.down, layer.down_bias)
        return self._normed(x, self.norm)

    def logits(self, x_RD: Tensor) -> Tensor:
        """logits_RV in float32."""
        if self.dtype == torch.float32:
            return F.linear(x_RD, self.head)
        logits_RV = F.linear(x_RD.to(self.dtype), self.head).float()
        best_RC = likeliest(logits_RV, min(_EXACT, logits_RV.shape[-1]))[1]
        heads_RCD = F.embedding(best_RC, self.head).float()
        return logits_RV.scatter_(1, best_RC, torch.einsum("rd,rcd->rc", x_RD, heads_RCD))

    def _heads(
        self, layer: Layer, qkv: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        description = self.description
        queries, keys = description.query_heads, description.kv_heads
        qkv = qkv.view(len(qkv), queries + 2 * keys, description.head_size)
        qk = qkv[:, : queries + keys].float()
        if layer.query_norm is not None and layer.key_norm is not None:
            qk = torch.cat(
                [
                    self._normed(qk[:, :queries], layer.query_norm),
                    self._normed(qk[:, queries:], layer.key_norm),
                ],
                1,
            )
        qk = rotate(qk, cos, sin).to(self.dtype)
        return qk[:, :queries], qk[:, queries:], qkv[:, queries + keys :]

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.description.norm_eps)


def _empty_layer(description: Description, dtype: torch.dtype) -> Layer:
    def empty(*shape: int) -> Tensor:
        return torch.empty(*shape, dtype=dtype)

    def empty_norm(size: int) -> Tensor:
        return torch.empty(size, dtype=torch.float32)

    hidden, mlp, size = description.hidden, description.mlp, description.head_size
    queries = description.query_heads * size
    qkv = queries + 2 * description.kv_heads * size
    normed = description.normed_heads
    return Layer(
        input_norm=empty_norm(hidden),
        qkv=empty(qkv, hidden),
        output=empty(hidden, queries),
        post_norm=empty_norm(hidden),
        gate_up=empty(2 * mlp, hidden),
        down=empty(hidden, mlp),
        qkv_bias=empty(qkv) if description.qkv_bias else None,
        output_bias=empty(hidden) if description.output_bias else None,
        gate_up_bias=empty(2 * mlp) if description.mlp_bias else None,
        down_bias=empty(hidden) if description.mlp_bias else None,
        query_norm=empty_norm(size) if normed else None,
        key_norm=empty_norm(size) if normed else None,
    )


def _places(layer: Layer, description: Description) -> Iterator[tuple[str, Tensor]]:
    """Where the checkpoint's tensors of one layer lie in the fused ones."""
    queries = description.query_heads * description.head_size
    keys = description.kv_heads * description.head_size
    yield "input_layernorm.weight", layer.input_norm
    yield "post_attention_layernorm.weight", layer.post_norm
    for kind, qkv, output, gate_up, down in (
        ("weight", layer.qkv, layer.output, layer.gate_up, layer.down),
        ("bias", layer.qkv_bias, layer.output_bias, layer.gate_up_bias, layer.down_bias),
    ):
        if qkv is not None:
            names = ("q_proj", "k_proj", "v_proj")
            for name, part in zip(names, _parts(qkv, queries, keys, keys), strict=True):
                yield f"self_attn.{name}.{kind}", part
        if output is not None:
            yield f"self_attn.o_proj.{kind}", output
        if gate_up is not None:
            for name, part in zip(("gate_proj", "up_proj"), gate_up.chunk(2), strict=True):
                yield f"mlp.{name}.{kind}", part
        if down is not None:
            yield f"mlp.down_proj.{kind}", down
    if layer.query_norm is not None and layer.key_norm is not None:
        yield "self_attn.q_norm.weight", layer.query_norm
        yield "self_attn.k_norm.weight", layer.key_norm


def _parts(tensor: Tensor, *sizes: int) -> list[Tensor]:
    return list(torch.split_with_sizes(tensor, sizes))
