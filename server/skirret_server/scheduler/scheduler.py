"""The scheduler: which tokens of which sequences the next step computes."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable
from collections.abc import Sequence as Listing
from dataclasses import dataclass
from itertools import takewhile

from skirret_server.cache.prefix import Holding, PrefixCache
from skirret_server.cache.tokens import common_prefix
from skirret_server.core import GenerateRequest, Lane, QueueFull, Refused
from skirret_server.scheduler.expectation import Expectation
from skirret_server.scheduler.lanes import BatchLane, InteractiveLane
from skirret_server.scheduler.pace import Pace
from skirret_server.scheduler.sequence import Row, Sequence, Step

# Waiting for another's prefix must save at least this many tokens.
_WORTH_WAITING = 32


# With more rows in a step, a row costs as much in it as in a step of its own.
_MOST_GUESSING = 16


@dataclass(frozen=True, slots=True)
class Limits:
    step_tokens: int  # computed in one step, over all sequences; at least `running`
    running: int  # sequences decoded together
    queued: int  # sequences that may wait, in each lane
    longest_prefix_first: bool = True
    age_bound: float = 2.0  # seconds after which a waiting sequence is not overtaken any more
    batch_share: float = 1 / 16  # of a step's tokens, for batch work while people are about
    people_window: float = 5.0  # seconds after their last work for which they are
    patience: float = 2.5  # how much longer a step may be for prompts, while most people decode


@dataclass(slots=True)
class _Draft:
    """A step in the making."""

    room: int
    batch_room: int
    rows: dict[Sequence, int]  # how many tokens of it

    def give(self, sequence: Sequence) -> None:
        room = self.room_for(sequence)
        if room > 0:
            self.add(sequence, min(sequence.remaining, room))

    def add(self, sequence: Sequence, count: int) -> None:
        self.rows[sequence] = self.rows.get(sequence, 0) + count
        self._take(sequence, count)

    def drop(self, sequence: Sequence) -> None:
        self._take(sequence, -self.rows.pop(sequence, 0))

    def room_for(self, sequence: Sequence) -> int:
        return min(self.room, self.batch_room) if is_batch(sequence) else self.room

    def _take(self, sequence: Sequence, count: int) -> None:
        self.room -= count
        if is_batch(sequence):
            self.batch_room -= count


class Scheduler:
    """Owns every sequence from `add` to `remove`, and through the cache every page.

    `running` is in order of rank: whoever needs pages takes them from the end of it, so the first
    always goes on and every sequence ends.
    """

    def __init__(self, cache: PrefixCache, limits: Limits) -> None:
        assert limits.step_tokens >= limits.running, "every running sequence decodes in every step"
        self.cache = cache
        self.limits = limits
        self.running: list[Sequence] = []
        self.retractions = 0
        self.queried_tokens = 0
        self.hit_tokens = 0
        self._expectation = Expectation()
        self._pace = Pace(limits.patience)
        self._interactive = InteractiveLane(
            self._cached_tokens if limits.longest_prefix_first and cache.reuse else None,
            limits.age_bound,
        )
        self._batch = BatchLane()
        self._arrivals = 0
        self._people_until = -math.inf

    @property
    def is_idle(self) -> bool:
        return not self.running and not self._interactive and not self._batch

    def waiting(self, lane: Lane) -> int:
        return len(self._interactive if lane == "interactive" else self._batch)

    def add(self, request: GenerateRequest, now: float, seed: int = 0) -> Sequence:
        """Lets a request wait. Raises Refused when it can never fit, QueueFull."""
        sequence = Sequence(request, self._arrivals, now, seed)
        most = self.cache.pool.size * self.cache.page_size
        if sequence.capacity > most:
            raise Refused(
                f"prompt and answer may take {sequence.capacity} tokens; the KV cache holds {most}"
            )
        if self.waiting(request.lane) >= self.limits.queued:
            raise QueueFull(f"{self.limits.queued} {request.lane} requests are waiting already")
        self._arrivals += 1
        if is_batch(sequence):
            self._batch.enter(request.tenant)
        self._wait(sequence)
        return sequence

    def remove(self, sequence: Sequence, *, keep: bool = True) -> None:
        """Ends a sequence, at any moment between two steps; `keep` shares its KV with others."""
        if sequence.holding is None:
            self._lane(sequence).remove(sequence)
        else:
            self._release(sequence, keep)
            self.running.remove(sequence)
        if is_batch(sequence):
            self._batch.leave(sequence.request.tenant)

    def plan(self, now: float) -> Step:
        """The next step; without rows when there is nothing to do. Pages are taken here."""
        draft = _Draft(self.limits.step_tokens, self._batch_room(now), {})
        self._decode(draft)
        prompts = [each for each in self.running if not each.is_decoding]
        if self._more_decode(len(draft.rows), prompts):
            draft.room = self._pace.room(draft.room)
        self._continue(prompts, "interactive", draft)
        if not self._interactive or (
            self._has_place("interactive") and self._admit(self._interactive.in_order(now), draft)
        ):
            self._continue(prompts, "batch", draft)
            if self._has_place("batch"):
                self._admit(self._batch.in_order(), draft)
        self._add_guesses(draft)
        return Step(tuple(_row(sequence, count) for sequence, count in draft.rows.items()))

    def advance(self, step: Step, seconds: float | None = None) -> None:
        """The step was computed, in `seconds`; its prompts' prefixes can be shared from now on.

        Sequences that were removed since it was planned are left out.
        """
        prompt_tokens = 0
        for row in step.rows:
            sequence = row.sequence
            if sequence.holding is None:
                continue
            was_decoding = sequence.is_decoding
            sequence.computed += row.count - len(row.guess)
            if not was_decoding:
                prompt_tokens += row.count
                self._share(sequence)
            elif is_batch(sequence):
                self._batch.charge(sequence.request.tenant, 1)
        self._expectation.relax()
        if seconds is not None:
            self._pace.measured(prompt_tokens, seconds)

    def _batch_room(self, now: float) -> int:
        """Tokens of this step for the batch lane: none while somebody waits for a first token.

        Whoever comes waits for the step that runs already, so steps stay short while people are
        about, and for some time after.
        """
        running = self.running
        if self._interactive or (running and not is_batch(running[0])):
            self._people_until = now + self.limits.people_window
        if self._interactive or not (self._batch or (running and is_batch(running[-1]))):
            return 0
        people = takewhile(lambda each: not is_batch(each), running)
        if not all(each.is_decoding for each in people):
            return 0
        share = self.limits.batch_share if now < self._people_until else 1.0
        return max(1, int(self.limits.step_tokens * share))

    def accept_guess(self, sequence: Sequence) -> None:
        """Its last token was guessed right: it has been computed already."""
        sequence.computed += 1
        if is_batch(sequence):
            self._batch.charge(sequence.request.tenant, 1)

    def _add_guesses(self, draft: _Draft) -> None:
        """Into the room that is left: nobody waits for them, and nobody is retracted."""
        if len(draft.rows) > _MOST_GUESSING:
            return
        for sequence in draft.rows:
            guessed = min(len(sequence.guess), draft.room_for(sequence))
            if guessed <= 0 or not sequence.is_decoding:
                continue
            assert sequence.holding is not None, "a row without pages"
            if self.cache.grow(sequence.holding, sequence.length + guessed):
                draft.add(sequence, guessed)

    def _more_decode(self, decoding: int, prompts: Listing[Sequence]) -> bool:
        """Than wait for a first token: then a long step would hold up more than it helps."""
        waiting = len(self._interactive) + sum(not is_batch(each) for each in prompts)
        return decoding >= waiting > 0

    def _decode(self, draft: _Draft) -> None:
        """The next token of each, in order of rank, while some of the later are retracted."""
        running, page_size = self.running, self.cache.page_size
        index = 0
        while index < len(running):
            sequence = running[index]
            index += 1
            if not sequence.is_decoding:
                continue
            is_paced = is_batch(sequence)  # of the others, all have room: `Limits` sees to it
            if is_paced and draft.room_for(sequence) <= 0:
                continue
            assert sequence.holding is not None, "only running sequences decode"
            has_page = len(sequence.tokens) <= len(sequence.holding.pages) * page_size
            if has_page or self._grow(sequence, draft):
                draft.rows[sequence] = 1
                draft.room -= 1
                draft.batch_room -= is_paced

    def _continue(self, prompts: Iterable[Sequence], lane: Lane, draft: _Draft) -> None:
        for sequence in prompts:
            if sequence.request.lane == lane:
                draft.give(sequence)

    def _has_place(self, lane: Lane) -> bool:
        """Asked before waiting sequences are put in order, which takes time."""
        is_full = len(self.running) >= self.limits.running
        return not is_full or (lane == "interactive" and is_batch(self.running[-1]))

    def _admit(self, waiting: Iterable[Sequence], draft: _Draft) -> bool:
        """Lets waiting sequences run, in this order; False when one found no room."""
        for sequence in waiting:
            if draft.room_for(sequence) <= 0:
                return False
            if not self._awaits_prefix(sequence) and not self._start(sequence, draft):
                return False
        return True

    def _start(self, sequence: Sequence, draft: _Draft) -> bool:
        """Admits a sequence, with pages for all of its tokens, if there is room for it."""
        while len(self.running) >= self.limits.running:
            if not self._make_way(sequence, draft):
                return False
        request = sequence.request
        while True:
            holding = self.cache.hold(sequence.tokens, sequence.reusable, request.namespace)
            if self._fits(sequence, holding):
                break
            self.cache.release(holding)
            if not self._make_way(sequence, draft):
                return False
        self._lane(sequence).remove(sequence)
        sequence.holding = holding
        sequence.computed = holding.shared * self.cache.page_size
        has_room = self.cache.grow(holding, sequence.length)
        assert has_room, "_fits has looked"
        if sequence.cached is None:
            sequence.cached = sequence.computed
            self.queried_tokens += sequence.length
            self.hit_tokens += sequence.computed
        if is_batch(sequence):
            self._batch.charge(request.tenant, sequence.remaining)
        insort(self.running, sequence, key=_rank)
        draft.give(sequence)
        return True

    def _fits(self, sequence: Sequence, holding: Holding) -> bool:
        """Whether there are pages for its tokens and for what all are expected to generate."""
        needed = self.cache.pages_for(sequence.length) - len(holding.pages)
        if self.running:
            needed += sum(self._expected_pages(each) for each in (sequence, *self.running))
        return needed <= self.cache.available

    def _expected_pages(self, sequence: Sequence) -> int:
        end = sequence.length + self._expectation.tokens(sequence)
        return self.cache.pages_for(end) - self.cache.pages_for(sequence.length)

    def _awaits_prefix(self, sequence: Sequence) -> bool:
        """Whether a running sequence is about to compute a prefix that this one can then share.

        Nobody waits for a lower lane: it might be slow.
        """
        if not self.cache.reuse:
            return False
        cached: int | None = None
        for leader in self.running:
            if leader.is_decoding or leader.request.namespace != sequence.request.namespace:
                continue
            if is_batch(leader) and not is_batch(sequence):
                continue
            shared = common_prefix(leader.tokens, sequence.tokens, limit=sequence.reusable)
            shared -= shared % self.cache.page_size
            if shared <= leader.computed or shared < _WORTH_WAITING:
                continue
            cached = self._cached_tokens(sequence) if cached is None else cached
            if shared - cached >= _WORTH_WAITING:
                return True
        return False

    def _grow(self, sequence: Sequence, draft: _Draft) -> bool:
        """Gets a page for the next token if it needs one, from the last in rank if it must."""
        assert sequence.holding is not None, "only running sequences grow"
        while not self.cache.grow(sequence.holding, sequence.length):
            last = self.running[-1]
            self._retract(last, draft)
            self._expectation.tighten(self.running)
            if last is sequence:
                return False
        return True

    def _make_way(self, sequence: Sequence, draft: _Draft) -> bool:
        """Retracts a batch sequence for an interactive one."""
        if is_batch(sequence) or not self.running or not is_batch(self.running[-1]):
            return False
        self._retract(self.running[-1], draft)
        return True

    def _retract(self, sequence: Sequence, draft: _Draft) -> None:
        """Back to waiting. What it computed stays in the tree until the pages are needed."""
        self.retractions += 1
        draft.drop(sequence)
        self._release(sequence, keep=True)
        self.running.remove(sequence)
        self._wait(sequence)

    def _release(self, sequence: Sequence, keep: bool) -> None:
        assert sequence.holding is not None, "a waiting sequence has no pages"
        if keep:
            self._share(sequence)
        self.cache.release(sequence.holding)
        sequence.holding = None
        sequence.computed = 0

    def _share(self, sequence: Sequence) -> None:
        """The prompt is worth one more than the answer: it is what others begin with."""
        assert sequence.holding is not None, "a waiting sequence has no pages"
        is_prompt = sequence.computed <= sequence.prompt_length
        self.cache.commit(
            sequence.holding,
            sequence.tokens[: sequence.computed],
            sequence.request.priority + is_prompt,
        )
        if is_prompt and sequence.request.blocks:
            self.cache.mark(sequence.holding, sequence.request.blocks)

    def _wait(self, sequence: Sequence) -> None:
        self._lane(sequence).add(sequence)

    def _lane(self, sequence: Sequence) -> InteractiveLane | BatchLane:
        return self._batch if is_batch(sequence) else self._interactive

    def _cached_tokens(self, sequence: Sequence) -> int:
        return self.cache.longest(sequence.tokens, sequence.reusable, sequence.request.namespace)


def is_batch(sequence: Sequence) -> bool:
    return sequence.request.lane == "batch"


def _rank(sequence: Sequence) -> tuple[int, int, int, int]:
    return sequence.rank


def _row(sequence: Sequence, count: int) -> Row:
    start, length = sequence.computed, len(sequence.tokens)
    guess = sequence.guess and sequence.guess[: max(0, start + count - length)]
    return Row(sequence, start, count, start + count >= length, guess)
