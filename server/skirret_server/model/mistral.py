"""Mistral: a Llama; where it has a sliding window, all layers have it."""

from __future__ import annotations

from skirret_server.model.description import Config, Description, decoder, number, windows


def describe(config: Config) -> Description:
    config = {"sliding_window": 4096, **config}  # the first one's; later ones write null
    all_slide = ["sliding_attention"] * number(config, "num_hidden_layers")
    return decoder(config, windows=windows(config, all_slide))
