"""Mistral: a Llama; where it has a sliding window, sequences end with the window."""

from __future__ import annotations

from skirret_server.model.description import Config, Description, decoder


def describe(config: Config) -> Description:
    return decoder(config)
