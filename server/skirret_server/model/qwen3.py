"""Qwen3: a Llama whose queries and keys are normed head by head."""

from __future__ import annotations

from skirret_server.model.description import Config, Description, decoder, later_windows


def describe(config: Config) -> Description:
    bias = bool(config.get("attention_bias", False))
    return decoder(
        {"head_dim": 128, **config},
        qkv_bias=bias,
        output_bias=bias,
        normed_heads=True,
        windows=later_windows(config),
    )
