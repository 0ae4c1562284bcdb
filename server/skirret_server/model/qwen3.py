"""Qwen3: a Llama whose queries and keys are normed head by head."""

from __future__ import annotations

from skirret_server.model.description import Config, Description, decoder


def describe(config: Config) -> Description:
    bias = bool(config.get("attention_bias", False))
    return decoder(
        {"use_sliding_window": False, **config},
        qkv_bias=bias,
        output_bias=bias,
        normed_heads=True,
    )
