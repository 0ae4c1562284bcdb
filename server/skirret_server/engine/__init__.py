"""Generates: the step thread, its door, and what a step runs on."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from skirret_api.internal import fatal as fatal_line
from skirret_api.launch import ServerSettings
from skirret_server import model
from skirret_server.engine import machine
from skirret_server.engine.hardware import Hardware, hardware
from skirret_server.load import folder as files
from skirret_server.load.fit import Size, fit
from skirret_server.load.progress import Progress

if TYPE_CHECKING:
    from skirret_server.core import ModelInfo
    from skirret_server.engine.engine import Fatal, SteppingEngine
    from skirret_server.engine.stepper import Runner


def end_process(reason: str, message: str) -> None:
    """Tells Kubernetes why, and is gone: a stuck thread can't be joined."""
    print(fatal_line(reason, message), file=sys.stderr, flush=True)
    os._exit(1)


def check(
    settings: ServerSettings, folder: Path, on: Hardware | None = None
) -> tuple[model.Description, model.DType, Size]:
    """What the model is and whether it fits; needs no more than its `config.json`.

    Raises LoadError.
    """
    description = model.describe(files.config(folder))
    on = on or hardware(settings)
    dtype = on.native_dtype() if settings.dtype == "auto" else settings.dtype
    return description, dtype, fit(description, settings, dtype, on.memory())


def open(  # noqa: A001 (read as engine.open)
    settings: ServerSettings,
    folder: Path,
    progress: Progress,
    fatal: Fatal = end_process,
    make: Callable[[ServerSettings], Hardware] = hardware,
) -> SteppingEngine:
    """Loads the model in `folder` and starts to step. Takes seconds: not for an event loop.

    Raises LoadError, before any weight is read where that can be known.
    """
    progress.begin("checking")
    on = make(settings)
    description, dtype, size = check(settings, folder, on)

    progress.begin("importing torch")  # only now: it takes as long as all the rest
    import torch

    from skirret_server.core import ModelInfo
    from skirret_server.engine.build import Plan, build
    from skirret_server.engine.ranks import Ranks
    from skirret_server.engine.runner import Draw, ModelRunner, draw_at_once
    from skirret_server.sampling.launched import Sampler

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, machine.cores() // settings.tensor_parallel_size))
    plan = Plan(settings, folder, description, dtype, size)
    device = on.device(0)
    ranks = None
    if settings.tensor_parallel_size > 1:
        ranks = Ranks(plan, make, fatal)
        try:
            ranks.join(on, plan, device, progress)
        except BaseException:
            ranks.close()
            raise
    forward = ranks.forward if ranks else build(plan, on, device, progress)
    info = ModelInfo(
        vocab_size=description.vocabulary,
        context_length=size.context,
        eos_token_ids=files.end_tokens(folder),
        max_total_tokens=size.pages * settings.page_size,
    )
    draw: Draw = draw_at_once
    if on.name == "cuda":
        sampler = Sampler(device, on.library(), settings.random_seed)
        sampler.warm(description.vocabulary)
        draw = sampler.draw
    runner = ModelRunner(
        forward,
        info.eos_token_ids,
        together=ranks,
        draw=draw,
    )
    return assembled(settings, size, runner, info, fatal, ranks.close if ranks else None)


def assembled(
    settings: ServerSettings,
    size: Size,
    runner: Runner,
    info: ModelInfo,
    fatal: Fatal = end_process,
    ended: Callable[[], None] | None = None,
) -> SteppingEngine:
    """An engine around this runner, stepping. `ended` is called when it is closed."""
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
        ended=ended,
    )
    engine.start()
    return engine
