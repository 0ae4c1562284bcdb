"""Qwen2 and Qwen2.5: a Llama with biases on queries, keys and values."""

from __future__ import annotations

from skirret_server.model.description import Config, Description, decoder


def describe(config: Config) -> Description:
    return decoder({"use_sliding_window": False, **config}, qkv_bias=True)
