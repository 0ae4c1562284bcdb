"""The weights of a decoder, as a checkpoint fills them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from skirret_server.model.description import Description


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


class Weights:
    """Empty at first: `parameters` says where each tensor of a checkpoint belongs."""

    def __init__(self, description: Description, dtype: torch.dtype) -> None:
        self.description = description
        self.dtype = dtype
        self.embedding = torch.empty(description.vocabulary, description.hidden, dtype=dtype)
        self.head = self.embedding if description.tied else torch.empty_like(self.embedding)
        self.norm = torch.empty(description.hidden, dtype=torch.float32)
        self.layers = [_empty_layer(description, dtype) for _ in range(description.layers)]

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Each tensor of a checkpoint by name, and the place in ours to copy it to."""
        yield "model.embed_tokens.weight", self.embedding
        yield "model.norm.weight", self.norm
        if not self.description.tied:
            yield "lm_head.weight", self.head
        for index, layer in enumerate(self.layers):
            for name, place in _places(layer, self.description):
                yield f"model.layers.{index}.{name}", place


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
