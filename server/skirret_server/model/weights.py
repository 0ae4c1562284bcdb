"""The weights of a decoder, as a checkpoint fills them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from skirret_server.model.description import Description
from skirret_server.model.shard import WHOLE, Cut, Shard, first_kv_head, local


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer; queries, keys and values in one matrix, gate and up in another."""

    input_norm: Tensor
    qkv: Tensor
    output: Tensor
    post_norm: Tensor  # before the MLP
    gate_up: Tensor
    down: Tensor
    qkv_bias: Tensor | None
    output_bias: Tensor | None
    gate_up_bias: Tensor | None
    down_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    attention_norm: Tensor | None  # of what attention gives
    mlp_norm: Tensor | None  # of what the MLP gives


class Weights:
    """Empty at first: `parameters` says where each tensor of a checkpoint belongs.

    Of one shard, if the model is split: the part of each tensor that `cuts` names.
    """

    def __init__(
        self,
        description: Description,
        dtype: torch.dtype,
        shard: Shard = WHOLE,
        device: torch.device | str = "cpu",
    ) -> None:
        self.description = local(description, shard.size)
        self.dtype = dtype
        self.shard = shard
        rows = -(-description.vocabulary // shard.size)
        # Zeros where the vocabulary ends before the part does.
        empty = torch.empty if rows * shard.size == description.vocabulary else torch.zeros
        self.embedding = empty(rows, description.hidden, dtype=dtype, device=device)
        self.head = (
            self.embedding
            if description.tied
            else empty(rows, description.hidden, dtype=dtype, device=device)
        )
        self.norm = torch.empty(description.hidden, dtype=torch.float32, device=device)
        self.layers = [
            _empty_layer(self.description, dtype, device) for _ in range(description.layers)
        ]
        self._whole = description

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Each tensor of a checkpoint by name, and the place in ours to copy it to."""
        start, end = self.shard.share(self._whole.vocabulary)
        yield "model.embed_tokens.weight", self.embedding[: end - start]
        yield "model.norm.weight", self.norm
        if not self.description.tied:
            yield "lm_head.weight", self.head[: end - start]
        for index, layer in enumerate(self.layers):
            for name, place in _places(layer, self.description):
                yield f"model.layers.{index}.{name}", place

    def cuts(self) -> dict[str, Cut]:
        """Which part of a checkpoint's tensor is ours, by name; of those not here, all is."""
        if self.shard.size == 1:
            return {}
        whole, mine, rank = self._whole, self.description, self.shard.rank
        size = whole.head_size
        rows = Cut(0, self.shard.share(whole.vocabulary)[0], whole.vocabulary)
        queries = (rank * mine.query_heads * size, whole.query_heads * size)
        keys = (first_kv_head(whole, self.shard) * size, whole.kv_heads * size)
        mlp = (rank * mine.mlp, whole.mlp)
        found = {"model.embed_tokens.weight": rows, "lm_head.weight": rows}
        for index in range(whole.layers):
            layer = f"model.layers.{index}."
            for kind in ("weight", "bias"):
                found |= {
                    f"{layer}self_attn.q_proj.{kind}": Cut(0, *queries),
                    f"{layer}self_attn.k_proj.{kind}": Cut(0, *keys),
                    f"{layer}self_attn.v_proj.{kind}": Cut(0, *keys),
                    f"{layer}mlp.gate_proj.{kind}": Cut(0, *mlp),
                    f"{layer}mlp.up_proj.{kind}": Cut(0, *mlp),
                }
            # These sum over what is split; their biases are added once, after the sum.
            found[f"{layer}self_attn.o_proj.weight"] = Cut(1, *queries)
            found[f"{layer}mlp.down_proj.weight"] = Cut(1, *mlp)
        return found


def _empty_layer(description: Description, dtype: torch.dtype, device: torch.device | str) -> Layer:
    def empty(*shape: int) -> Tensor:
        return torch.empty(*shape, dtype=dtype, device=device)

    def empty_norm(size: int) -> Tensor:
        return torch.empty(size, dtype=torch.float32, device=device)

    hidden, mlp, size = description.hidden, description.mlp, description.head_size
    queries = description.query_heads * size
    qkv = queries + 2 * description.kv_heads * size
    normed, norms_outputs = description.normed_heads, description.norms_outputs
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
        attention_norm=empty_norm(hidden) if norms_outputs else None,
        mlp_norm=empty_norm(hidden) if norms_outputs else None,
    )


def _places(layer: Layer, description: Description) -> Iterator[tuple[str, Tensor]]:
    """Where the checkpoint's tensors of one layer lie in the fused ones."""
    queries = description.query_heads * description.head_size
    keys = description.kv_heads * description.head_size
    yield "input_layernorm.weight", layer.input_norm
    if layer.attention_norm is not None and layer.mlp_norm is not None:
        yield "post_attention_layernorm.weight", layer.attention_norm
        yield "pre_feedforward_layernorm.weight", layer.post_norm
        yield "post_feedforward_layernorm.weight", layer.mlp_norm
    else:
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
