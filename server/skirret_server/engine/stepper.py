"""What happens in a step, on whatever thread: plan, run, and tell each reader what it got."""

from __future__ import annotations

import logging
import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Listing
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from skirret_server.cache.check import check
from skirret_server.core import (
    CacheNews,
    EngineError,
    Finish,
    FinishReason,
    GenerateRequest,
    Grammar,
    Logprob,
    ModelInfo,
    Stats,
    TokenId,
    Update,
)
from skirret_server.scheduler.ending import finish_of
from skirret_server.scheduler.scheduler import Scheduler, is_batch
from skirret_server.scheduler.sequence import LANES, Outcome, Row, Sequence, Step

_log = logging.getLogger(__name__)

# Steps that fail one after the other before the engine gives up on itself.
_FAILURES = 3

Reader = TypeVar("Reader")
Clock = Callable[[], float]


class Runner(Protocol):
    """Computes steps."""

    def run(self, step: Step) -> Listing[Outcome]:
        """One outcome for each row."""

    def wipe(self, pages: list[int]) -> None:
        """Makes pages harmless after their sequence failed."""


@dataclass(slots=True)
class _Client(Generic[Reader]):
    """Who reads a sequence, and what is kept for it until the first update."""

    reader: Reader
    is_new: bool = True
    prompt_logprobs: list[Logprob | None] = field(default_factory=list)


class Stepper(Generic[Reader]):
    """Owns the scheduler and the runner. A reader is whatever the caller knows a sequence by."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        info: ModelInfo,
        clock: Clock,
        random_seed: int | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._clock = clock
        self._end_tokens = info.eos_token_ids
        self._seeds = random.Random(random_seed)
        self._clients: dict[Sequence, _Client[Reader]] = {}
        self._sequences: dict[Reader, Sequence] = {}
        self._finished: Counter[FinishReason] = Counter()
        self._aborted = 0
        self._failed = 0
        self._failures_in_a_row = 0
        self._steps = 0
        self._step_seconds = 0.0
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._jumped_tokens = 0
        self._grammars = 0

    @property
    def is_idle(self) -> bool:
        return self._scheduler.is_idle

    def add(self, request: GenerateRequest, reader: Reader) -> None:
        """Raises Refused or QueueFull."""
        seed = request.sampling.seed
        sequence = self._scheduler.add(
            request, self._clock(), self._seeds.getrandbits(63) if seed is None else seed
        )
        self._prompt_tokens += sequence.length
        self._grammars += sequence.grammar is not None
        self._clients[sequence] = _Client(reader)
        self._sequences[reader] = sequence

    def abort(self, reader: Reader) -> None:
        """Nothing to do when its sequence has ended in the meantime."""
        sequence = self._sequences.get(reader)
        if sequence is not None:
            self._aborted += 1
            self._remove(sequence)

    def step(self) -> list[tuple[Reader, Update | EngineError]]:
        """Computes one step; what each sequence in it got. Raises after too many failed steps."""
        started = self._clock()
        step = self._scheduler.plan(started)
        if not step.rows:
            return []
        try:
            outcomes = self._runner.run(step)
        except Exception as error:
            self._failures_in_a_row += 1
            if self._failures_in_a_row >= _FAILURES:
                raise
            _log.exception("a step of %d sequences failed", len(step.rows))
            outcomes = [Outcome(error=f"the step failed: {error}")] * len(step.rows)
        else:
            self._failures_in_a_row = 0
        given = list(self._give(step, outcomes, self._clock() - started))
        self._steps += 1
        self._step_seconds += self._clock() - started
        return given

    def end_all(self, error: EngineError) -> list[tuple[Reader, Update | EngineError]]:
        """Ends every sequence with this error."""
        readers = [client.reader for client in self._clients.values()]
        for sequence in list(self._clients):
            self._remove(sequence)
        return [(reader, error) for reader in readers]

    def flush(self) -> None:
        """Forgets every cached prefix that no running sequence uses."""
        self._scheduler.cache.flush()

    def cache_news(self, after: int) -> CacheNews:
        """May be asked on any thread."""
        return self._scheduler.cache.journal.since(after)

    def check(self) -> None:
        """Raises Broken when pages leak or are shared by mistake."""
        running = self._scheduler.running
        check(self._scheduler.cache, [each.holding for each in running if each.holding])

    def stats(self) -> Stats:
        scheduler, cache = self._scheduler, self._scheduler.cache
        running = len(scheduler.running)
        people = bisect_left(scheduler.running, True, key=is_batch)
        return Stats(
            running={"interactive": people, "batch": running - people},
            waiting={lane: scheduler.waiting(lane) for lane in LANES},
            kv_usage=cache.held / cache.pool.size,
            held_pages=cache.held,
            grammars=self._grammars,
            cached_usage=cache.tree.evictable / cache.pool.size,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            cache_query_tokens=scheduler.queried_tokens,
            cache_hit_tokens=scheduler.hit_tokens,
            evicted_tokens=cache.evicted_tokens,
            retractions=scheduler.retractions,
            finished=dict(self._finished),
            jumped_tokens=self._jumped_tokens,
            aborted=self._aborted,
            failed=self._failed,
            steps=self._steps,
            step_seconds=self._step_seconds,
        )

    def _give(
        self, step: Step, outcomes: Listing[Outcome], seconds: float
    ) -> Iterator[tuple[Reader, Update | EngineError]]:
        # First, so that what they computed is not shared.
        for row, outcome in zip(step.rows, outcomes, strict=True):
            if outcome.error is not None:
                reader = self._clients[row.sequence].reader
                self._fail(row.sequence)
                yield reader, EngineError(outcome.error)
        self._scheduler.advance(step, seconds)
        for row, outcome in zip(step.rows, outcomes, strict=True):
            if outcome.error is not None:
                continue
            client, token = self._clients[row.sequence], outcome.token
            if client.is_new or outcome.then or token is None:
                update = self._update(row, outcome, client)
                if update is None:
                    continue
            else:  # nearly every one
                finish = self._append(row.sequence, token)
                logprobs = (outcome.logprob,) if outcome.logprob else ()
                update = Update((token,), logprobs, 0, None, finish)
            if update.finish is not None:
                self._finished[update.finish.reason] += 1
                self._remove(row.sequence)
            yield client.reader, update

    def _update(self, row: Row, outcome: Outcome, client: _Client[Reader]) -> Update | None:
        """Whatever a step can give; None when a prompt goes on."""
        sequence = row.sequence
        sampling = sequence.request.sampling
        if sampling.prompt_logprobs is not None and client.is_new:
            if row.start == 0:  # also when it begins again after a retraction
                client.prompt_logprobs = [None]
            client.prompt_logprobs += outcome.prompt_logprobs
        if not row.samples:
            return None
        tokens: list[TokenId] = []
        logprobs: list[Logprob] = []
        finish: Finish | None = None
        if sampling.max_tokens == 0 or outcome.token is None:
            finish = Finish("length")
        else:
            for drawn in (outcome, *outcome.then):
                assert drawn.token is not None, "it was drawn"
                if tokens:
                    self._scheduler.accept_guess(sequence)
                    self._jumped_tokens += 1
                tokens.append(drawn.token)
                logprobs += [drawn.logprob] if drawn.logprob else []
                finish = self._append(sequence, drawn.token)
                if finish is not None:
                    break
        update = Update(
            tokens=tuple(tokens),
            logprobs=tuple(logprobs),
            cached_tokens=(sequence.cached or 0) if client.is_new else 0,
            prompt_logprobs=(
                tuple(client.prompt_logprobs)
                if client.is_new and sampling.prompt_logprobs is not None
                else None
            ),
            finish=finish,
        )
        client.is_new = False
        return update

    def _append(self, sequence: Sequence, token: TokenId) -> Finish | None:
        sequence.tokens.append(token)
        self._generation_tokens += 1
        finish = finish_of(token, sequence.generated, sequence.request.sampling, self._end_tokens)
        if sequence.grammar is None or finish is not None:
            return finish
        if token in self._end_tokens:  # even with ignore_eos: no grammar goes on after it
            return Finish("stop", token)
        sequence.grammar.accept(token)
        left = sequence.request.sampling.max_tokens - sequence.generated
        sequence.guess = sequence.grammar.guess(token)[: left - 1]
        return Finish("stop") if self._has_only_ends(sequence.grammar) else None

    def _has_only_ends(self, grammar: Grammar) -> bool:
        if not grammar.is_complete():
            return False
        allowed = grammar.allowed()
        return not allowed.are_excluded and self._end_tokens.issuperset(allowed.ids.tolist())

    def _fail(self, sequence: Sequence) -> None:
        self._failed += 1
        if sequence.holding is not None:
            self._runner.wipe(sequence.holding.private.tolist())
        self._remove(sequence, keep=False)

    def _remove(self, sequence: Sequence, *, keep: bool = True) -> None:
        self._grammars -= sequence.grammar is not None
        del self._sequences[self._clients.pop(sequence).reader]
        self._scheduler.remove(sequence, keep=keep)
