"""Llama 1 to 3, SmolLM2 and everything else that calls itself Llama."""

from __future__ import annotations

from skirret_server.model.description import Config, Description, decoder


def describe(config: Config) -> Description:
    bias = bool(config.get("attention_bias", False))
    return decoder(
        config, qkv_bias=bias, output_bias=bias, mlp_bias=bool(config.get("mlp_bias", False))
    )
