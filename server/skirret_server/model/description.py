"""What a model is made of, read from its `config.json`. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from skirret_server.load.errors import BrokenCheckpoint, UnsupportedModel

Config = Mapping[str, Any]
DType = Literal["bfloat16", "float16", "float32"]
BYTES: Mapping[DType, int] = {"bfloat16": 2, "float16": 2, "float32": 4}


RopeKind = Literal["default", "linear", "llama3", "yarn"]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding; `parameters` are those of its kind."""

    theta: float
    kind: RopeKind
    parameters: Config


@dataclass(frozen=True, slots=True)
class Description:
    """A decoder of the Llama kind, and where its relatives differ."""

    vocabulary: int
    hidden: int
    mlp: int
    layers: int
    query_heads: int
    kv_heads: int
    head_size: int
    context: int  # longest sequence it was made for
    norm_eps: float
    rope: Rope
    tied: bool  # the head is the embedding
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    normed_heads: bool = False  # queries and keys are normed head by head

    @property
    def parameters(self) -> int:
        """How many numbers the weights are, biases and norms aside."""
        attention = self.hidden * self.head_size * 2 * (self.query_heads + self.kv_heads)
        layer = attention + 3 * self.hidden * self.mlp
        heads = 1 if self.tied else 2
        return self.layers * layer + heads * self.vocabulary * self.hidden

    @property
    def kv_numbers(self) -> int:
        """How many numbers the KV cache holds for each token."""
        return 2 * self.layers * self.kv_heads * self.head_size


def decoder(
    config: Config,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    normed_heads: bool = False,
) -> Description:
    """The part that all families write alike."""
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedModel(f"activation {activation!r}; only silu is known")
    hidden = _number(config, "hidden_size")
    query_heads = _number(config, "num_attention_heads")
    kv_heads = config.get("num_key_value_heads") or query_heads
    if query_heads % kv_heads:
        raise BrokenCheckpoint(
            f"config.json: {query_heads} attention heads can't share {kv_heads} key-value heads"
        )
    return Description(
        vocabulary=_number(config, "vocab_size"),
        hidden=hidden,
        mlp=_number(config, "intermediate_size"),
        layers=_number(config, "num_hidden_layers"),
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_size=config.get("head_dim") or hidden // query_heads,
        context=_context(config),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope=_rope(config),
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        mlp_bias=mlp_bias,
        normed_heads=normed_heads,
    )


def _context(config: Config) -> int:
    """No longer than the sliding window: up to there it makes no difference."""
    longest = _number(config, "max_position_embeddings")
    window = config.get("sliding_window")
    if window and config.get("use_sliding_window", True):
        return min(longest, int(window))
    return longest


def _rope(config: Config) -> Rope:
    """Written as `rope_parameters` since transformers 5, before as theta and `rope_scaling`."""
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in get_args(RopeKind):
        raise UnsupportedModel(f"rope scaling {kind!r}; known are {', '.join(get_args(RopeKind))}")
    theta = parameters.get("rope_theta") or config.get("rope_theta") or 10_000.0
    if parameters.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0:
        raise UnsupportedModel("rotary embedding of a part of each head")
    longest = config.get("max_position_embeddings")
    return Rope(
        float(theta),
        cast(RopeKind, kind),
        {"original_max_position_embeddings": longest, **parameters},
    )


def _number(config: Config, name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or value < 1:
        raise BrokenCheckpoint(f"config.json: {name} is {value!r}, not a positive number")
    return value
