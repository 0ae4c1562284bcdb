"""Reads a model, or one device's part of it, and makes it ready to compute steps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from skirret_api.launch import ServerSettings
from skirret_server.attention import backend
from skirret_server.engine.device import Device
from skirret_server.engine.forward import Forward
from skirret_server.engine.graphs import Graphs, sizes
from skirret_server.engine.hardware import Hardware
from skirret_server.engine.pool import KvPool
from skirret_server.load.checkpoint import read_into
from skirret_server.load.fit import Size
from skirret_server.load.progress import Progress
from skirret_server.model.decoder import Decoder, Group
from skirret_server.model.description import Description, DType
from skirret_server.model.shard import WHOLE, Shard
from skirret_server.model.weights import Weights


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be built; the same on every device."""

    settings: ServerSettings
    folder: Path
    description: Description
    dtype: DType
    size: Size


def build(
    plan: Plan,
    hardware: Hardware,
    device: Device,
    progress: Progress,
    shard: Shard = WHOLE,
    group: Group | None = None,
) -> Forward:
    """Raises LoadError."""
    settings, size = plan.settings, plan.size
    precision = getattr(torch, plan.dtype)
    weights = Weights(plan.description, precision, shard, device.place)
    read_into(weights.parameters(), plan.folder, progress, weights.cuts())
    decoder = Decoder(weights, size.context, group)
    pool = KvPool.zeros(
        decoder.description, size.pages, settings.page_size, precision, device.place
    )
    name = settings.attention_backend
    if name == "flashinfer" or (name == "auto" and hardware.name == "cuda"):
        from skirret_server.attention.flashinfer import FlashInfer

        attention = FlashInfer(pool, decoder.description, device, hardware.library())
        progress.begin("compiling kernels")
        attention.warm()
        Forward(decoder, attention, pool, device).warm()
        graphs = None
        if device.captures and not settings.disable_cuda_graph:
            progress.begin("recording graphs")
            graphs = Graphs(
                decoder,
                attention,
                device,
                sizes(settings.max_running_requests),
                longest=-(-size.context // settings.page_size),
            )
        return Forward(decoder, attention, pool, device, graphs)
    return Forward(decoder, backend(name, pool, decoder.description), pool, device)
