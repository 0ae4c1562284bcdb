"""What a model is made of, read from its `config.json`. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from skirret_server.load.errors import BrokenCheckpoint, UnsupportedModel

Config = Mapping[str, Any]
DType = Literal["bfloat16", "float16", "float32"]
BYTES: Mapping[DType, int] = {"bfloat16": 2, "float16": 2, "float32": 4}


RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn"]
_NEEDED: Mapping[RopeKind, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}
Activation = Literal["silu", "gelu_pytorch_tanh"]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding; `parameters` are those of its kind."""

    theta: float
    kind: RopeKind
    parameters: Config = field(hash=False)


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
    ropes: tuple[Rope | None, ...]  # of each layer; None: it knows no positions
    tied: bool  # the head is the embedding
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    normed_heads: bool = False  # queries and keys are normed head by head
    activation: Activation = "silu"
    windows: tuple[int, ...] = ()  # of each layer: tokens a token sees, itself included; 0: all
    score_scale: float = 0.0  # of queries with keys; 0: one over the root of the head size
    score_cap: float = 0.0  # bounds their scores softly; 0: not at all
    logit_cap: float = 0.0  # the same for logits
    embedding_scale: float = 1.0
    norm_offset: float = 0.0  # added to every norm's weight
    norms_outputs: bool = False  # of attention and MLP, before they are added

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

    @property
    def scale(self) -> float:
        return self.score_scale or self.head_size**-0.5

    def window(self, layer: int) -> int:
        return self.windows[layer] if self.windows else 0

    def has_plain_attention(self, context: int) -> bool:
        """Whether all layers see all of a sequence this long, scored as Llama scores."""
        is_wide = all(window == 0 or window >= context for window in self.windows)
        return is_wide and not self.score_cap and not self.score_scale


def decoder(
    config: Config,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    normed_heads: bool = False,
    windows: tuple[int, ...] = (),
    ropes: tuple[Rope | None, ...] | None = None,
) -> Description:
    """The part that all families write alike; `ropes` where layers differ in theirs."""
    hidden = number(config, "hidden_size")
    layers = number(config, "num_hidden_layers")
    query_heads = number(config, "num_attention_heads")
    kv_heads = config.get("num_key_value_heads") or query_heads
    if query_heads % kv_heads:
        raise BrokenCheckpoint(
            f"config.json: {query_heads} attention heads can't share {kv_heads} key-value heads"
        )
    return Description(
        vocabulary=number(config, "vocab_size"),
        hidden=hidden,
        mlp=number(config, "intermediate_size"),
        layers=layers,
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_size=config.get("head_dim") or hidden // query_heads,
        context=number(config, "max_position_embeddings"),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        ropes=(rope(config),) * layers if ropes is None else ropes,
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        mlp_bias=mlp_bias,
        normed_heads=normed_heads,
        activation=_activation(config),
        windows=windows if any(windows) else (),
    )


def rope(config: Config, parameters: Config | None = None, theta: float = 10_000.0) -> Rope:
    """Written as `rope_parameters` since transformers 5, before as theta and `rope_scaling`."""
    if parameters is None:
        parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in get_args(RopeKind):
        raise UnsupportedModel(f"rope scaling {kind!r}; known are {', '.join(get_args(RopeKind))}")
    if parameters.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0:
        raise UnsupportedModel("rotary embedding of a part of each head")
    for name in _NEEDED[cast(RopeKind, kind)]:
        if not isinstance(parameters.get(name), int | float):
            raise BrokenCheckpoint(
                f"config.json: rope scaling {kind!r} needs {name}, which is {parameters.get(name)}"
            )
    own = {k: v for k, v in parameters.items() if k not in ("rope_type", "type", "rope_theta")}
    return Rope(
        float(parameters.get("rope_theta") or config.get("rope_theta") or theta),
        cast(RopeKind, kind),
        {"original_max_position_embeddings": config.get("max_position_embeddings"), **own},
    )


def windows(config: Config, layer_types: Sequence[str] | None = None) -> tuple[int, ...]:
    """The window of each layer, as `layer_types` of the config name them, or as given."""
    types = config.get("layer_types") or layer_types or ()
    window = config.get("sliding_window")
    unknown = set(types) - {"full_attention", "sliding_attention"}
    if unknown:
        raise UnsupportedModel(f"layers of type {sorted(unknown)[0]!r}")
    if not window:
        return ()
    if len(types) != number(config, "num_hidden_layers"):
        raise BrokenCheckpoint(
            f"config.json: {len(types)} layer_types for {config['num_hidden_layers']} layers"
        )
    return tuple(int(window) if each == "sliding_attention" else 0 for each in types)


def later_windows(config: Config) -> tuple[int, ...]:
    """Qwen's way: where windows are used at all, the later layers have one."""
    if not config.get("use_sliding_window", False):
        return ()
    layers = number(config, "num_hidden_layers")
    full = min(int(config.get("max_window_layers", 28)), layers)
    types = ["full_attention"] * full + ["sliding_attention"] * (layers - full)
    return windows({"sliding_window": 4096, **config}, types)


def number(config: Config, name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or value < 1:
        raise BrokenCheckpoint(f"config.json: {name} is {value!r}, not a positive number")
    return value


def _activation(config: Config) -> Activation:
    name = config.get("hidden_activation") or config.get("hidden_act", "silu")
    if name not in get_args(Activation):
        known = " and ".join(get_args(Activation))
        raise UnsupportedModel(f"activation {name!r}; known are {known}")
    return cast(Activation, name)
