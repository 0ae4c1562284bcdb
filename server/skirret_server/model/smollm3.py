"""SmolLM3: a Llama that tells every fourth layer no positions."""

from __future__ import annotations

from skirret_server.load.errors import BrokenCheckpoint
from skirret_server.model.description import Config, Description, decoder, number, rope, windows


def describe(config: Config) -> Description:
    config = {"tie_word_embeddings": True, **config}
    layers = number(config, "num_hidden_layers")
    every = config.get("no_rope_layer_interval", 4)
    # Named for what it is not: 1 is a layer with positions.
    knows = config.get("no_rope_layers") or [(at + 1) % every != 0 for at in range(layers)]
    if len(knows) < layers:
        raise BrokenCheckpoint(f"config.json: no_rope_layers has {len(knows)} of {layers} layers")
    rotary = rope(config, theta=2_000_000.0)
    bias = bool(config.get("attention_bias", False))
    return decoder(
        config,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
        ropes=tuple(rotary if each else None for each in knows[:layers]),
        windows=windows(config) if config.get("use_sliding_window", False) else (),
    )
