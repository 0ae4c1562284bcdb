"""Every family against Hugging Face's own code, on tiny random models in float32."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from skirret_server import model
from skirret_server.attention.flashinfer import FlashInfer
from skirret_server.attention.interface import Attention
from skirret_server.attention.reference import Reference
from skirret_server.cache.prefix import PrefixCache
from skirret_server.core import GenerateRequest, Sampling
from skirret_server.engine.pool import KvPool
from skirret_server.engine.runner import arrays
from skirret_server.load import folder as files
from skirret_server.load.checkpoint import read_into
from skirret_server.load.errors import UnsupportedModel
from skirret_server.load.progress import Progress
from skirret_server.model.decoder import Decoder
from skirret_server.model.description import Description
from skirret_server.model.weights import Weights
from skirret_server.scheduler.sequence import Row, Sequence
from skirret_server.testing.flashinfer import fake_library
from skirret_server.testing.gpu import FakeGpu

pytestmark = pytest.mark.usefixtures("workspace")

PROMPT = [5, 17, 3, 99, 42, 7, 7, 61, 12, 80, 33, 2, 54, 90, 21, 8, 66, 19, 71]
SMALL = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"hidden_size": 96}),
    "llama tied with biases": (
        "Llama",
        {
            "hidden_size": 96,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    "llama 3.1": ("Llama", {"hidden_size": 96, "rope_parameters": LLAMA3}),
    "llama linear": (
        "Llama",
        {
            "hidden_size": 96,
            "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4},
        },
    ),
    "llama yarn": ("Llama", {"hidden_size": 96, "rope_parameters": YARN}),
    "mistral": ("Mistral", {}),
    "qwen2": ("Qwen2", {"hidden_size": 96}),
    "llama dynamic": (
        "Llama",
        {
            "hidden_size": 96,
            "max_position_embeddings": 16,  # the prompt is longer
            "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4},
        },
    ),
    "mistral with a window": ("Mistral", {"sliding_window": 5}),
    "qwen2 with windows": (
        "Qwen2",
        {
            "hidden_size": 96,
            "use_sliding_window": True,
            "sliding_window": 6,
            "max_window_layers": 1,
        },
    ),
    "qwen3": ("Qwen3", {}),
    "smollm3": ("SmolLM3", {"hidden_size": 96, "num_hidden_layers": 4, "pad_token_id": 0}),
    "gemma2": (
        "Gemma2",
        {
            "hidden_size": 96,
            "sliding_window": 6,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma3": (
        "Gemma3Text",
        {
            "hidden_size": 96,
            "num_hidden_layers": 3,
            "sliding_window": 6,
            "query_pre_attn_scalar": 24,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
}


def by_flashinfer(pool: KvPool, description: Description) -> FlashInfer:
    gpu = FakeGpu()
    return FlashInfer(pool, description, gpu, fake_library(gpu))


def logits_of(
    folder: Path,
    cuts: list[int],
    page_size: int = 4,
    dtype: torch.dtype = torch.float32,
    attention: Callable[[KvPool, Description], Attention] = Reference,
) -> torch.Tensor:
    """Of PROMPT, computed in steps that end at `cuts`."""
    description = model.describe(files.config(folder))
    weights = Weights(description, dtype)
    read_into(weights.parameters(), folder, Progress())
    decoder = Decoder(weights, len(PROMPT))
    pool = KvPool.zeros(decoder.description, 32, page_size, dtype)
    cache = PrefixCache(32, page_size)
    sequence = Sequence(GenerateRequest("", PROMPT, Sampling(1)), 0, 0.0, 0)
    sequence.holding = cache.hold(array("i"), 0, "")
    cache.grow(sequence.holding, len(PROMPT))
    attends, parts = attention(pool, description), []
    for start, end in zip([0, *cuts], [*cuts, len(PROMPT)], strict=True):
        layout, ids, positions = arrays((Row(sequence, start, end - start, False),), page_size)
        with torch.inference_mode():
            hidden = decoder.hidden(
                torch.from_numpy(ids), torch.from_numpy(positions), attends.plan(layout)
            )
            parts.append(decoder.logits(hidden))
    return torch.cat(parts)


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_hugging_face(name: str, tmp_path: Path) -> None:
    import transformers

    family, options = FAMILIES[name]
    config = getattr(transformers, f"{family}Config")(**{**SMALL, **options})
    torch.manual_seed(1)
    config._attn_implementation = "eager"  # SDPA knows no caps
    made = getattr(transformers, f"{family.removesuffix('Text')}ForCausalLM")
    theirs = made(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in theirs.named_parameters():
            if "norm" in parameter_name or "bias" in parameter_name:
                parameter.normal_(1.0, 0.3)  # they start as ones and zeros, which hide mistakes
        expected = theirs(torch.tensor([PROMPT])).logits[0]
    theirs.save_pretrained(tmp_path)
    assert (logits_of(tmp_path, []) - expected).abs().max() < 1e-4
    for attention in (Reference, by_flashinfer):
        found = logits_of(tmp_path, [7, 8, 9, 16], attention=attention)
        assert (found - expected).abs().max() < 1e-4


@pytest.mark.model
def test_smollm2_is_the_model_that_hugging_face_runs() -> None:
    import transformers

    folder = Path(__file__).parents[3] / ".cache/models/smollm2"
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        expected = theirs.eval()(torch.tensor([PROMPT])).logits[0]
    ours = logits_of(folder, [7, 8])
    assert (ours - expected).abs().max() < 1e-3
    assert (ours.argmax(-1) == expected.argmax(-1)).all()
    rounded = logits_of(folder, [], dtype=torch.bfloat16)
    assert divergence(expected, rounded) < 1e-3


def divergence(expected: torch.Tensor, found: torch.Tensor) -> float:
    """Kullback-Leibler, the mean over tokens."""
    p, q = expected.log_softmax(-1), found.log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).mean())


@pytest.mark.parametrize("page_size", [1, 16])
def test_pages_of_any_size_hold_the_same(tiny: Path, page_size: int) -> None:
    difference = logits_of(tiny, [3, 4, 5, 11], page_size) - logits_of(tiny, [], 4)
    assert difference.abs().max() < 1e-4


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "architecture MambaForCausalLM"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised .gptq"),
        ({"compression_config": {"quant_method": "compressed-tensors"}}, "quantised .compressed"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"architectures": ["Gemma2ForCausalLM"], "use_bidirectional_attention": True}, "later"),
        ({"architectures": ["MistralForCausalLM"], "layer_types": ["chunked"] * 2}, "'chunked'"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope scaling 'longrope'"),
    ],
)
def test_what_is_not_known_is_refused_by_name(
    tiny: Path, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UnsupportedModel, match=complaint):
        model.describe({**files.config(tiny), **changes})


OLD = {"rope_parameters": None, "rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0}


def test_configs_from_before_transformers_5_mean_the_same() -> None:
    import transformers

    shape = {**SMALL, "hidden_size": 96, "num_hidden_layers": 12, "sliding_window_pattern": 6}
    new = transformers.Gemma3TextConfig(**shape).to_dict()
    old = {**new, **OLD, "sliding_window_pattern": 6, "layer_types": None}
    names = {"architectures": ["Gemma3ForCausalLM"]}
    assert model.describe({**old, **names}) == model.describe({**new, **names})
    described = model.describe({**new, **names})
    assert [each and each.theta for each in described.ropes] == ([1e4] * 5 + [1e6]) * 2
    assert described.windows == (*[4096] * 5, 0) * 2


def test_a_window_no_shorter_than_the_context_leaves_attention_plain(tiny: Path) -> None:
    config = {**files.config(tiny), "architectures": ["MistralForCausalLM"], "sliding_window": 32}
    described = model.describe(config)
    assert described.has_plain_attention(32)
    assert not described.has_plain_attention(33)
