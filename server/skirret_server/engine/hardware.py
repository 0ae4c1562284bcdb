"""Which device a model is served on, and how to reach it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from skirret_api.launch import ServerSettings
from skirret_server.engine import machine
from skirret_server.engine.machine import Memory
from skirret_server.load.errors import UnsupportedModel
from skirret_server.model.description import DType

if TYPE_CHECKING:  # torch takes as long to import as all the rest
    from skirret_server.attention.library import Library
    from skirret_server.engine.device import Device

_log = logging.getLogger(__name__)

# Of a GPU, beside weights and cache: CUDA itself, FlashInfer's workspaces, graphs, activations.
_GPU_PROCESS = 2 << 30
_GPU_LOGIT = 24  # bytes: float32, and as many again scaled, masked, as probabilities, sorted


@dataclass(frozen=True, slots=True)
class Hardware:
    """One kind of device. Nothing of it is touched before `device` is called."""

    name: str  # cpu, cuda
    device: Callable[[int], Device]  # the nth
    library: Callable[[], Library]
    memory: Callable[[], Memory]  # of the first
    native_dtype: Callable[[], DType]
    collectives: str  # what torch.distributed calls those between several: gloo, nccl


def hardware(settings: ServerSettings) -> Hardware:
    """What the settings ask for. Raises UnsupportedModel when it isn't there."""
    if settings.device == "cpu" or (settings.device == "auto" and not machine.has_gpu()):
        return _CPU
    import torch

    if torch.cuda.is_available():
        present = torch.cuda.device_count()
        if present < settings.tensor_parallel_size:
            raise UnsupportedModel(
                f"--tensor-parallel-size={settings.tensor_parallel_size}: there are {present} GPUs"
            )
        return _CUDA
    if settings.device == "cuda":
        raise UnsupportedModel(
            f"--device=cuda: torch {torch.__version__} finds no GPU; is its build one for CUDA, "
            "and does the container have the device?"
        )
    _log.warning("a GPU is there, but torch can't use it", extra={"torch": torch.__version__})
    return _CPU


def _cpu(index: int) -> Device:
    from skirret_server.engine.device import Cpu

    return Cpu()


def _cuda(index: int) -> Device:
    from skirret_server.engine.device import Cuda

    return Cuda(index)


def _library() -> Library:
    from skirret_server.attention.library import installed

    return installed()


def _no_library() -> Library:
    raise UnsupportedModel(
        "--attention-backend=flashinfer runs on a GPU alone; give reference or auto"
    )


def _gpu_memory() -> Memory:
    import torch

    free, total = torch.cuda.mem_get_info(0)
    return Memory(total, free, share=0.85, process=_GPU_PROCESS, logit=_GPU_LOGIT)


def _gpu_dtype() -> DType:
    """Turing, the oldest that FlashInfer knows, multiplies no bfloat16."""
    import torch

    return "bfloat16" if torch.cuda.get_device_capability(0) >= (8, 0) else "float16"


_CPU = Hardware("cpu", _cpu, _no_library, machine.memory, machine.native_dtype, "gloo")
_CUDA = Hardware("cuda", _cuda, _library, _gpu_memory, _gpu_dtype, "nccl")
