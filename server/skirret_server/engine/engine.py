"""The engine: a thread that steps, behind an asyncio door."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from skirret_server.core import (
    CacheNews,
    Draining,
    EngineError,
    Finish,
    GenerateRequest,
    Load,
    ModelInfo,
    Refused,
    Stats,
    Update,
)
from skirret_server.engine.report import Report
from skirret_server.engine.stepper import Runner, Stepper
from skirret_server.engine.stream import Stream
from skirret_server.engine.watchdog import Watchdog
from skirret_server.scheduler.scheduler import Scheduler

_log = logging.getLogger(__name__)

# After so many seconds without work the invariants are checked, once.
_IDLE_CHECK = 1.0
_DRAIN_POLL = 0.05  # seconds

Fatal = Callable[[str, str], None]  # (CamelCase reason, message); the process ends with it


@dataclass(frozen=True, slots=True)
class _Add:
    request: GenerateRequest
    stream: Stream


@dataclass(frozen=True, slots=True)
class _Abort:
    stream: Stream


@dataclass(frozen=True, slots=True)
class _Flush:
    done: Callable[[bool], None]


class _Close:
    pass


_Command = _Add | _Abort | _Flush | _Close


class SteppingEngine:
    """Implements `core.Engine`. Everything but the door runs on one thread.

    What a step gives reaches an event loop in one call, however many sequences it moved.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        info: ModelInfo,
        *,
        fatal: Fatal,
        watchdog_timeout: float = 300.0,
        random_seed: int | None = None,
        ended: Callable[[], None] | None = None,
    ) -> None:
        """`ended` is called when no step can run any more."""
        self._ended = ended
        self._info = info
        self._fatal = fatal
        self._stepper: Stepper[Stream] = Stepper(
            scheduler, runner, info, time.monotonic, random_seed
        )
        self._stats = self._stepper.stats()
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._report = Report(time.monotonic())
        self._step_started: float | None = None
        self._open = 0  # sequences that are in the door
        self._refusal: Callable[[], EngineError] | None = None  # of every new request
        self._thread = threading.Thread(target=self._live, name="engine", daemon=True)
        self._watchdog = Watchdog(self._step_running, watchdog_timeout, self._hung)

    def start(self) -> None:
        self._thread.start()
        self._watchdog.start()

    # The door, on event loops

    @property
    def info(self) -> ModelInfo:
        return self._info

    def load(self) -> Load:
        running = sum(self._stats.running.values())
        return Load(running, max(self._open - running, 0), self._stats.kv_usage)

    def stats(self) -> Stats:
        return replace(self._stats, step_running_seconds=self._step_running())

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Update]:
        self._refuse(request)
        if request.sampling.max_tokens == 0 and request.sampling.prompt_logprobs is None:
            yield Update(tokens=(), finish=Finish("length"))
            return
        stream = Stream(asyncio.get_running_loop())
        self._open += 1
        self._commands.put(_Add(request, stream))
        try:
            finish = None
            while finish is None:
                update = await stream.take()
                finish = update.finish
                yield update
        finally:
            self._open -= 1
            if not stream.ended:
                self._commands.put(_Abort(stream))

    def cache_news(self, after: int) -> CacheNews:
        return self._stepper.cache_news(after)

    async def flush_cache(self) -> bool:
        if self._refusal is not None:
            raise self._refusal()
        loop = asyncio.get_running_loop()
        flushed: asyncio.Future[bool] = loop.create_future()

        def done(is_flushed: bool) -> None:
            loop.call_soon_threadsafe(_answer, flushed, is_flushed)

        self._commands.put(_Flush(done))
        return await flushed

    async def drain(self) -> None:
        self._refusal = self._refusal or _draining
        while self._open:
            await asyncio.sleep(_DRAIN_POLL)

    async def close(self) -> None:
        self._refusal = _closed
        self._commands.put(_Close())
        await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._watchdog.stop)
        if self._ended is not None:
            ended, self._ended = self._ended, None
            await asyncio.to_thread(ended)

    def _refuse(self, request: GenerateRequest) -> None:
        if self._refusal is not None:
            raise self._refusal()
        info, length = self._info, len(request.prompt)
        if not length:
            raise Refused("the prompt has no tokens")
        if length + request.sampling.max_tokens > info.context_length:
            raise Refused(
                f"{length} tokens of prompt and {request.sampling.max_tokens} of answer are more "
                f"than the context of {info.context_length}"
            )
        prompt = np.asarray(request.prompt)
        if prompt.min() < 0 or prompt.max() >= info.vocab_size:
            raise Refused(f"the prompt has token ids outside of 0 to {info.vocab_size - 1}")

    # The thread

    def _live(self) -> None:
        try:
            while self._obey():
                self._step_started = time.monotonic()
                given = self._stepper.step()
                self._step_started = None
                self._stats = self._stepper.stats()
                self._deliver(given)
                self._report.step(self._stats, time.monotonic())
        except Exception as error:
            _log.exception("the engine stops")
            self._refusal = _closed
            self._deliver(self._stepper.end_all(_closed()))
            self._fatal("EngineFailed", f"{type(error).__name__}: {error}")

    def _obey(self) -> bool:
        """Carries out all commands there are, and waits for some when there is no work.

        False when the engine is closed.
        """
        unchecked = True
        while True:
            try:
                command = self._next_command(unchecked)
            except queue.Empty:
                if not self._stepper.is_idle:
                    return True
                self._report.rest()
                self._stepper.check()
                unchecked = False
                continue
            if isinstance(command, _Close):
                self._deliver(self._stepper.end_all(_closed()))
                return False
            self._carry_out(command)
            self._stats = self._stepper.stats()

    def _next_command(self, unchecked: bool) -> _Command:
        """Raises Empty when there is none and there is other work."""
        if not self._stepper.is_idle:
            return self._commands.get_nowait()
        return self._commands.get(timeout=_IDLE_CHECK if unchecked else None)

    def _carry_out(self, command: _Add | _Abort | _Flush) -> None:
        match command:
            case _Add(request, stream):
                try:
                    self._stepper.add(request, stream)
                except EngineError as error:
                    self._deliver([(stream, error)])
            case _Abort(stream):
                self._stepper.abort(stream)
            case _Flush(done):
                is_idle = self._stepper.is_idle
                if is_idle:
                    self._stepper.flush()
                done(is_idle)

    def _deliver(self, given: Iterable[tuple[Stream, Update | EngineError]]) -> None:
        by_loop: defaultdict[asyncio.AbstractEventLoop, list[tuple[Stream, Update | EngineError]]]
        by_loop = defaultdict(list)
        for stream, update in given:
            by_loop[stream.loop].append((stream, update))
        for loop, updates in by_loop.items():
            try:
                loop.call_soon_threadsafe(_put, updates)
            except RuntimeError:  # the loop is closed, and its readers are gone with it
                for stream, _ in updates:
                    self._stepper.abort(stream)

    def _step_running(self) -> float:
        started = self._step_started
        return 0.0 if started is None else time.monotonic() - started

    def _hung(self, seconds: float) -> None:
        self._fatal("StepHung", f"a step has been running for {seconds:.0f} s; stacks are above")


def _answer(future: asyncio.Future[bool], value: bool) -> None:
    if not future.done():
        future.set_result(value)


def _draining() -> EngineError:
    return Draining("the server is draining")


def _closed() -> EngineError:
    return EngineError("the engine has stopped")


def _put(updates: Iterable[tuple[Stream, Update | EngineError]]) -> None:
    for stream, update in updates:
        if isinstance(update, Update):
            stream.put(update)
        else:
            stream.fail(update)
