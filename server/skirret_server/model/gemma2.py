"""Gemma 2: norms around attention and MLP, capped scores, every other layer with a window."""

from __future__ import annotations

from dataclasses import replace

from skirret_server.load.errors import UnsupportedModel
from skirret_server.model.description import Config, Description, decoder, number, windows

# What a config leaves out because it is Gemma's default.
DEFAULTS: Config = {
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}


def describe(config: Config) -> Description:
    config = {
        **DEFAULTS,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        **config,
    }
    layers = range(number(config, "num_hidden_layers"))
    types = ["full_attention" if at % 2 else "sliding_attention" for at in layers]
    bias = bool(config.get("attention_bias", False))
    made = decoder(config, qkv_bias=bias, output_bias=bias, windows=windows(config, types))
    return as_gemma(made, config)


def as_gemma(made: Description, config: Config) -> Description:
    """What Gemma 2 and 3 have in common."""
    if config.get("use_bidirectional_attention"):
        raise UnsupportedModel("attention to later tokens (use_bidirectional_attention)")
    return replace(
        made,
        score_scale=float(config["query_pre_attn_scalar"]) ** -0.5,
        score_cap=float(config["attn_logit_softcapping"] or 0.0),
        logit_cap=float(config["final_logit_softcapping"] or 0.0),
        embedding_scale=made.hidden**0.5,
        norm_offset=1.0,
        norms_outputs=True,
    )
