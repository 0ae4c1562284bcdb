"""Whether a model fits this machine, and how large its KV cache can be. The loader's first act."""

from __future__ import annotations

from dataclasses import dataclass

from skirret_api.launch import ServerSettings
from skirret_server.engine.machine import Memory
from skirret_server.load.errors import DoesNotFit
from skirret_server.model.description import BYTES, Description, DType
from skirret_server.model.shard import local

_LEAST_CONTEXT = 1024  # tokens; with less room than this a model is not worth serving


@dataclass(frozen=True, slots=True)
class Size:
    pages: int
    context: int  # tokens


def fit(description: Description, settings: ServerSettings, dtype: DType, memory: Memory) -> Size:
    """How much cache there is room for beside the weights, on each of the devices.

    Raises DoesNotFit, or UnsupportedModel where the model can't be split over them.
    """
    size = settings.tensor_parallel_size
    weights = description.parameters * BYTES[dtype] // size
    token = local(description, size).kv_numbers * BYTES[dtype]
    share = settings.mem_fraction_static or memory.share
    logits = settings.max_running_requests * description.vocabulary
    process = memory.process + logits * memory.logit
    context = settings.context_length or description.context
    wanted = settings.max_total_tokens or min(
        settings.max_running_requests * context,
        int(memory.total * share - weights) // token,
    )
    # What was asked for must fit; what was not is cut to what does.
    asked = settings.context_length or settings.max_total_tokens
    least = asked or min(context, _LEAST_CONTEXT)
    possible = (memory.available - weights - process) // token
    if possible < least:
        raise DoesNotFit(
            f"weights of {_gib(weights)} and a KV cache of {_gib(least * token)} for {least} "
            f"tokens need {_gib(weights + least * token + process)}; "
            f"{_gib(memory.available)} are free. Give more memory, a smaller model or a shorter "
            "context"
        )
    tokens = min(max(wanted, least), possible)
    pages = max(tokens // settings.page_size, 1)
    return Size(pages, min(context, pages * settings.page_size))


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
