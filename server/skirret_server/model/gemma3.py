"""Gemma 3, text alone: a Gemma 2 with normed heads, five layers of six with a window."""

from __future__ import annotations

from skirret_server.model.description import Config, Description, decoder, number, rope, windows
from skirret_server.model.gemma2 import DEFAULTS, as_gemma


def describe(config: Config) -> Description:
    config = {
        **DEFAULTS,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        **config,
    }
    layers = range(number(config, "num_hidden_layers"))
    every = config.get("sliding_window_pattern", 6)
    types = config.get("layer_types") or [
        "sliding_attention" if (at + 1) % every else "full_attention" for at in layers
    ]
    # Layers with a window turn faster. Since transformers 5 each type has its own parameters.
    given = config.get("rope_parameters") or {}
    wide = rope(config, given.get("full_attention"), theta=1_000_000.0)
    narrow = rope(
        {**config, "rope_theta": config.get("rope_local_base_freq")},
        given.get("sliding_attention") or {},
    )
    bias = bool(config.get("attention_bias", False))
    made = decoder(
        config,
        qkv_bias=bias,
        output_bias=bias,
        normed_heads=True,
        windows=windows(config, types),
        ropes=tuple(narrow if each == "sliding_attention" else wide for each in types),
    )
    return as_gemma(made, config)
