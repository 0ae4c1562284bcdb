"""Language models as plain functions over their weights: which there are, and their families."""

from __future__ import annotations

from skirret_server.load.errors import UnsupportedModel
from skirret_server.model import gemma2, gemma3, llama, mistral, qwen2, qwen3, smollm3
from skirret_server.model.description import Config, Description, DType

__all__ = ["Description", "DType", "describe"]

FAMILIES = {
    "LlamaForCausalLM": llama.describe,
    "MistralForCausalLM": mistral.describe,
    "Qwen2ForCausalLM": qwen2.describe,
    "Qwen3ForCausalLM": qwen3.describe,
    "SmolLM3ForCausalLM": smollm3.describe,
    "Gemma2ForCausalLM": gemma2.describe,
    "Gemma3ForCausalLM": gemma3.describe,
}


def describe(config: Config) -> Description:
    """What `config.json` says of the model. Raises UnsupportedModel."""
    quantisation = config.get("quantization_config") or config.get("compression_config")
    if quantisation:
        method = quantisation.get("quant_method", "by an unnamed method")
        raise UnsupportedModel(
            f"the checkpoint is quantised ({method}); give the bf16 or fp32 one instead"
        )
    names = config.get("architectures") or ["(none named)"]
    family = FAMILIES.get(names[0])
    if family is None:
        raise UnsupportedModel(f"architecture {names[0]}; known are {', '.join(FAMILIES)}")
    return family(config)
