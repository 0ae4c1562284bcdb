"""The sequences of one request, side by side: what the engine gives, as pieces of text."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from math import ceil
from typing import TYPE_CHECKING, Protocol, cast

from skirret_api.errors import ApiError, InvalidRequest, Overloaded, ServerFault
from skirret_api.internal import BLOCK_BYTES
from skirret_server.api.lifecycle import draining
from skirret_server.api.prompts import Prompt
from skirret_server.core import (
    Draining,
    Engine,
    EngineError,
    GenerateRequest,
    Lane,
    Logprob,
    QueueFull,
    Refused,
    Sampling,
    TokenId,
    Update,
)
from skirret_server.text.choice import ChoiceText, Ending, Entry, Piece, TextRules
from skirret_server.text.tokenizer import Tokenizer

if TYPE_CHECKING:  # numpy takes long to import, and the socket must answer first
    from skirret_server.grammar.masks import AutomatonGrammar, CompiledGrammar

log = logging.getLogger("skirret.api")

_MOST_READY = 256  # updates that wait for a slow reader
_SEED_STEP = 0x9E3779B97F4A7C15  # of splitmix64: neighbours far apart


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt, and how it is to be answered."""

    prompt: Prompt
    sampling: Sampling
    rules: TextRules
    grammar: CompiledGrammar | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """Every task `n` times: choice j of task t is number t·n + j."""

    id: str  # unique, unlike the request's, which its caller may choose
    request_id: str
    tasks: Sequence[Task]
    n: int = 1
    lane: Lane = "interactive"
    priority: int = 0
    batch_priority: int = 0
    deadline: float | None = None
    tenant: str = ""
    blocks: Sequence[str] = ()  # of the one prompt
    body_bytes: int = 1  # of the request

    def task(self, index: int) -> Task:
        return self.tasks[index // self.n]

    def requests(self) -> list[GenerateRequest]:
        blocks = self._depths() if self.blocks and len(self.tasks) == 1 else ()
        return [
            GenerateRequest(
                id=f"{self.id}-{index}",
                prompt=self.task(index).prompt.ids,
                sampling=_derived(self.task(index).sampling, index % self.n),
                lane=self.lane,
                priority=self.priority,
                batch_priority=self.batch_priority,
                deadline=self.deadline,
                tenant=self.tenant,
                grammar=_started(self.task(index).grammar),
                blocks=blocks,
            )
            for index in range(len(self.tasks) * self.n)
        ]

    def _depths(self) -> list[tuple[str, int]]:
        """Where in the prompt's tokens each block ends: nearly, for tokens are not equally long."""
        tokens = len(self.tasks[0].prompt.ids)
        share = min(BLOCK_BYTES / self.body_bytes, 1 / len(self.blocks))
        return [(block, ceil(tokens * share * at)) for at, block in enumerate(self.blocks, 1)]


@dataclass(slots=True)
class Usage:
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0  # of the completion's


@dataclass(slots=True)  # not frozen, as `core.Update`
class Step:
    """One update of one choice."""

    index: int
    piece: Piece
    tokens: Sequence[TokenId]  # counted in usage, whether or not their text is shown
    logprobs: Sequence[Logprob] = ()  # of `tokens`
    cached_tokens: int = 0
    prompt_logprobs: Sequence[Logprob | None] | None = None  # with the first, when asked for
    reasoning_tokens: int = 0  # of `tokens`


@dataclass(slots=True)
class Choice:
    """All steps of one choice, folded."""

    text: str = ""
    reasoning: str = ""
    entries: list[Entry] = field(default_factory=list)
    tokens: list[TokenId] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)
    cached_tokens: int = 0
    prompt_logprobs: Sequence[Logprob | None] | None = None
    ending: Ending | None = None

    def add(self, step: Step) -> None:
        self.text += step.piece.text
        self.reasoning += step.piece.reasoning
        self.entries += step.piece.entries
        self.tokens += step.tokens
        self.logprobs += step.logprobs
        self.cached_tokens += step.cached_tokens
        self.prompt_logprobs = step.prompt_logprobs or self.prompt_logprobs
        self.ending = step.piece.ending or self.ending


@dataclass(slots=True)
class Generation:
    """Runs the work. Leaving it, however that happens, ends every sequence in the engine."""

    engine: Engine
    tokenizer: Tokenizer
    work: Work
    usage: Usage = field(default_factory=Usage)
    texts: set[ChoiceText] = field(default_factory=set)  # where its texts are accounted

    async def steps(self) -> AsyncGenerator[list[Step]]:
        """Everything that came since the last look. Raises ApiError."""
        requests = self.work.requests()
        texts = [
            ChoiceText(self.tokenizer, task.rules, task.prompt.tail)
            for task in map(self.work.task, range(len(requests)))
        ]
        self.texts.update(texts)
        self.usage.prompt_tokens = sum(len(task.prompt.ids) for task in self.work.tasks)
        cached: dict[int, int] = {}
        try:
            async with _sequences(self.engine, requests) as sequences:
                while sequences.are_running:
                    steps = []
                    for index, update in await sequences.updates():
                        steps.append(step := _step(index, update, texts[index]))
                        self.usage.completion_tokens += len(step.tokens)
                        self.usage.reasoning_tokens += step.reasoning_tokens
                        if index not in cached:
                            cached[index] = update.cached_tokens
                            self.usage.cached_tokens = _cached_tokens(cached, self.work.n)
                        if step.piece.ending is not None:
                            sequences.end(index)
                    if steps:
                        yield steps
        except EngineError as error:
            raise _api_error(error, self.work) from error
        finally:
            self.texts.difference_update(texts)


class _Sequences(Protocol):
    """Engine iterators, read side by side. Leaving them early ends what still runs."""

    @property
    def are_running(self) -> bool: ...

    async def updates(self) -> Sequence[tuple[int, Update]]:
        """What has come since the last call, at least one. Raises EngineError."""

    def end(self, index: int) -> None: ...


def _sequences(
    engine: Engine, requests: Sequence[GenerateRequest]
) -> AbstractAsyncContextManager[_Sequences]:
    return _Single(engine, requests[0]) if len(requests) == 1 else _Many(engine, requests)


class _Single:
    """The usual case, without a task between the engine and the answer."""

    def __init__(self, engine: Engine, request: GenerateRequest) -> None:
        # Closing it is how the engine is told to let go.
        self._updates = cast(AsyncGenerator[Update], engine.generate(request))
        self.are_running = True

    async def __aenter__(self) -> _Single:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._updates.aclose()

    async def updates(self) -> Sequence[tuple[int, Update]]:
        return ((0, await anext(self._updates)),)

    def end(self, index: int) -> None:
        self.are_running = False


class _Many:
    """A task for each, so that whatever is there is read in one go."""

    def __init__(self, engine: Engine, requests: Sequence[GenerateRequest]) -> None:
        self._engine = engine
        self._requests = requests
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._ready: list[tuple[int, Update]] = []
        self._error: BaseException | None = None
        self._wake = asyncio.Event()
        self._taken = asyncio.Event()

    async def __aenter__(self) -> _Many:
        self._tasks = {
            index: asyncio.create_task(self._pump(index, request))
            for index, request in enumerate(self._requests)
        }
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        # The engine has let go of a sequence when its task has ended.
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def are_running(self) -> bool:
        return bool(self._tasks)

    async def updates(self) -> Sequence[tuple[int, Update]]:
        """An error of any of them comes before the updates of its siblings."""
        while not self._ready and self._error is None:
            self._wake.clear()
            await self._wake.wait()
        if self._error is not None:
            raise self._error
        ready, self._ready = self._ready, []
        self._taken.set()
        return [(index, update) for index, update in ready if index in self._tasks]

    def end(self, index: int) -> None:
        self._tasks.pop(index).cancel()

    async def _pump(self, index: int, request: GenerateRequest) -> None:
        try:
            # A cancel is felt inside the engine's iterator, where the sequence is let go.
            async for update in self._engine.generate(request):
                self._ready.append((index, update))
                self._wake.set()
                if len(self._ready) >= _MOST_READY:  # the engine merges what waits longer
                    self._taken.clear()
                    await self._taken.wait()
        except Exception as error:
            self._error = self._error or error
            self._wake.set()


def _step(index: int, update: Update, text: ChoiceText) -> Step:
    before, thought_before = text.completion_tokens, text.reasoning_tokens
    piece = text.feed(update)
    taken = text.completion_tokens - before  # fewer than came when a stop string ended it
    return Step(
        index,
        piece,
        update.tokens[:taken],
        update.logprobs[:taken],
        update.cached_tokens,
        update.prompt_logprobs,
        text.reasoning_tokens - thought_before,
    )


def _cached_tokens(by_index: Mapping[int, int], n: int) -> int:
    """Choices of one task share its prefill: the least cached of them tells what was there."""
    by_task: dict[int, int] = {}
    for index, tokens in by_index.items():
        by_task[index // n] = min(tokens, by_task.get(index // n, tokens))
    return sum(by_task.values())


def _started(grammar: CompiledGrammar | None) -> AutomatonGrammar | None:
    return grammar.start() if grammar else None


def _derived(sampling: Sampling, choice: int) -> Sampling:
    """Every choice draws from a seed of its own; the first from the one given."""
    if sampling.seed is None or choice == 0:
        return sampling
    return replace(sampling, seed=(sampling.seed + choice * _SEED_STEP + 2**63) % 2**64 - 2**63)


def _api_error(error: EngineError, work: Work) -> ApiError:
    if isinstance(error, QueueFull):
        return Overloaded(f"The server's queue is full: {error}. Please retry soon.")
    if isinstance(error, Draining):
        return draining()
    if isinstance(error, Refused):
        return InvalidRequest(str(error))
    log.error("engine failed", extra={"request_id": work.request_id, "cause": str(error)})
    return ServerFault(work.request_id)
