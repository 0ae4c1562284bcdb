"""Generates: the step thread, its door, and what a step runs on."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from skirret_api.internal import FATAL
from skirret_api.launch import ServerSettings
from skirret_server import model
from skirret_server.engine import machine
from skirret_server.load import folder as files
from skirret_server.load.fit import Size, fit
from skirret_server.load.progress import Progress

if TYPE_CHECKING:
    from skirret_server.core import ModelInfo
    from skirret_server.engine.engine import Fatal, SteppingEngine
    from skirret_server.engine.stepper import Runner


def end_process(reason: str, message: str) -> None:
    """Tells Kubernetes why, and is gone: a stuck thread can't be joined."""
    print(FATAL + json.dumps({"reason": reason, "message": message}), file=sys.stderr, flush=True)
    os._exit(1)


def check(settings: ServerSettings, folder: Path) -> tuple[model.Description, model.DType, Size]:
    """What the model is and whether it fits; needs no more than its `config.json`.

    Raises LoadError.
    """
    description = model.describe(files.config(folder))
    dtype = machine.native_dtype() if settings.dtype == "auto" else settings.dtype
    return description, dtype, fit(description, settings, dtype, machine.memory())


def open(  # noqa: A001 (read as engine.open)
    settings: ServerSettings, folder: Path, progress: Progress, fatal: Fatal = end_process
) -> SteppingEngine:
    """Loads the model in `folder` and starts to step. Takes seconds: not for an event loop.

    Raises LoadError, before any weight is read where that can be known.
    """
    progress.begin("checking")
    description, dtype, size = check(settings, folder)

    progress.begin("importing torch")  # only now: it takes as long as all the rest
    import torch

    from skirret_server.attention import backend
    from skirret_server.core import ModelInfo
    from skirret_server.engine.pool import KvPool
    from skirret_server.engine.runner import ModelRunner
    from skirret_server.load.checkpoint import read_into
    from skirret_server.model.decoder import Decoder
    from skirret_server.model.weights import Weights

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(machine.cores())
    precision = getattr(torch, dtype)
    weights = Weights(description, precision)
    read_into(weights.parameters(), folder, progress)
    decoder = Decoder(weights, size.context)
    pool = KvPool.zeros(description, size.pages, settings.page_size, precision)
    info = ModelInfo(
        vocab_size=description.vocabulary,
        context_length=size.context,
        eos_token_ids=files.end_tokens(folder),
        max_total_tokens=size.pages * settings.page_size,
    )
    runner = ModelRunner(
        decoder, backend(settings.attention_backend, pool), pool, info.eos_token_ids
    )
    return assembled(settings, size, runner, info, fatal)


def assembled(
    settings: ServerSettings,
    size: Size,
    runner: Runner,
    info: ModelInfo,
    fatal: Fatal = end_process,
) -> SteppingEngine:
    """An engine around this runner, stepping."""
    from skirret_server.cache.eviction import eviction
    from skirret_server.cache.prefix import PrefixCache
    from skirret_server.engine.engine import SteppingEngine
    from skirret_server.scheduler.scheduler import Limits, Scheduler

    cache = PrefixCache(
        size.pages,
        settings.page_size,
        eviction=eviction(settings.radix_eviction_policy),
        reuse=not settings.disable_radix_cache,
    )
    limits = Limits(
        # Room for prompts even when every sequence decodes.
        step_tokens=max(settings.chunked_prefill_size, 2 * settings.max_running_requests),
        running=settings.max_running_requests,
        queued=settings.max_queued_requests,
        longest_prefix_first=settings.schedule_policy == "lpm",
    )
    engine = SteppingEngine(
        Scheduler(cache, limits),
        runner,
        info,
        fatal=fatal,
        watchdog_timeout=settings.watchdog_timeout,
        random_seed=settings.random_seed,
    )
    engine.start()
    return engine
