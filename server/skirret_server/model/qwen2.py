"""Qwen2 and Qwen2.5: a Llama with biases on queries, keys and values."""

from __future__ import annotations

from skirret_server.model.description import Config, Description, decoder, later_windows


def describe(config: Config) -> Description:
    return decoder(config, qkv_bias=True, windows=later_windows(config))
