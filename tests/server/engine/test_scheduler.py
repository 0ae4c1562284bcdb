"""The scheduler, driven by a model that draws tokens at random."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skirret_server.cache.check import check
from skirret_server.cache.prefix import PrefixCache
from skirret_server.core import GenerateRequest, Lane, QueueFull, Refused, Sampling
from skirret_server.scheduler.scheduler import Limits, Scheduler
from skirret_server.scheduler.sequence import Row, Sequence, Step

LIMITS = Limits(step_tokens=32, running=4, queued=1000)


def request(
    prompt: bytes | list[int],
    max_tokens: int = 4,
    lane: Lane = "interactive",
    *,
    tenant: str = "",
    priority: int = 0,
    batch_priority: int = 0,
    deadline: float | None = None,
    ignore_eos: bool = False,
) -> GenerateRequest:
    sampling = Sampling(max_tokens=max_tokens, ignore_eos=ignore_eos)
    return GenerateRequest(
        id="",
        prompt=list(prompt),
        sampling=sampling,
        lane=lane,
        tenant=tenant,
        priority=priority,
        batch_priority=batch_priority,
        deadline=deadline,
    )


@dataclass
class World:
    """A scheduler, and a model that always draws the same token.

    Its KV cache remembers, for each slot, the prefix that was computed there.
    """

    scheduler: Scheduler
    now: float = 0.0
    kv: dict[int, tuple[int, ...]] = field(default_factory=dict)
    ended: list[Sequence] = field(default_factory=list)
    draw: Callable[[Sequence], int] = lambda sequence: 0
    takes: Callable[[Step], float] = lambda step: 0.01  # seconds
    ends: Callable[[Sequence], bool] = lambda sequence: (
        sequence.generated >= sequence.request.sampling.max_tokens
    )

    def add(self, request: GenerateRequest) -> Sequence:
        return self.scheduler.add(request, self.now)

    def step(self) -> Step:
        self.now += 0.01
        step = self.scheduler.plan(self.now)
        self.check()
        for row in step.rows:
            self.compute(row)
        self.scheduler.advance(step, self.takes(step))
        for row in step.rows:
            if row.samples:
                row.sequence.tokens.append(self.draw(row.sequence))
                if self.ends(row.sequence):
                    self.scheduler.remove(row.sequence)
                    self.ended.append(row.sequence)
        self.check()
        return step

    def compute(self, row: Row) -> None:
        """As a model would: reads all earlier positions, writes the new ones."""
        tokens, slots = row.sequence.tokens.tolist(), self.slots(row.sequence)
        assert row.samples == (row.start + row.count == len(tokens))
        for at in range(row.start):
            assert self.kv[slots[at]] == tuple(tokens[: at + 1])
        for at in range(row.start, row.start + row.count):
            self.kv[slots[at]] = tuple(tokens[: at + 1])

    def slots(self, sequence: Sequence) -> list[int]:
        assert sequence.holding is not None
        size = self.scheduler.cache.page_size
        return [page * size + at for page in sequence.holding.pages for at in range(size)]

    def run(self, steps: int = 10_000) -> None:
        for _ in range(steps):
            if self.scheduler.is_idle:
                return
            assert self.step().rows, "nothing goes on although somebody waits"
        raise AssertionError("it never ends")

    def check(self) -> None:
        running = self.scheduler.running
        holdings = [each.holding for each in running if each.holding is not None]
        assert len(holdings) == len(running) <= self.scheduler.limits.running
        check(self.scheduler.cache, holdings)
        for each in running:
            assert each.holding is not None
            assert each.computed <= len(each.holding.pages) * self.scheduler.cache.page_size


def world(
    pages: int = 64, page_size: int = 4, limits: Limits = LIMITS, *, reuse: bool = True
) -> World:
    return World(Scheduler(PrefixCache(pages, page_size, reuse=reuse), limits))


requests = st.builds(
    request,
    prompt=st.lists(st.integers(0, 1), min_size=1, max_size=60).map(lambda tail: [7] * 20 + tail),
    max_tokens=st.integers(0, 40),
    lane=st.sampled_from(["interactive", "batch"]),
    tenant=st.sampled_from(["a", "b"]),
    priority=st.integers(0, 1),
    batch_priority=st.integers(-1, 1),
    deadline=st.none() | st.floats(0, 10),
    ignore_eos=st.booleans(),
)


@given(
    arrivals=st.lists(st.tuples(st.integers(0, 3), requests), max_size=25),
    page_size=st.sampled_from([1, 4, 16]),
    spare_pages=st.integers(0, 40),
    reuse=st.booleans(),
    lpm=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=80, deadline=None)
def test_every_request_ends_and_every_page_comes_back(
    arrivals: list[tuple[int, GenerateRequest]],
    page_size: int,
    spare_pages: int,
    reuse: bool,
    lpm: bool,
    seed: int,
) -> None:
    """Whatever arrives when, with aborts at random moments and barely enough pages; and however a
    sequence is cut up, retracted and resumed, what it reads from the cache is its own prefix.
    """
    dice = random.Random(seed)
    limits = Limits(step_tokens=24, running=5, queued=100, longest_prefix_first=lpm)
    w = world(-(-120 // page_size) + spare_pages, page_size, limits, reuse=reuse)
    w.draw = lambda sequence: dice.randrange(2)
    alive: list[Sequence] = []
    aborted = 0
    for steps, arrived in arrivals:
        alive.append(w.add(arrived))
        for _ in range(steps):
            w.step()
            alive = [each for each in alive if each not in w.ended]
            if alive and dice.random() < 0.1:
                w.scheduler.remove(alive.pop(dice.randrange(len(alive))))
                aborted += 1
    w.run()
    assert len(w.ended) + aborted == len(arrivals)
    for each in w.ended:
        assert each.generated == max(each.request.sampling.max_tokens, 1)
    cache = w.scheduler.cache
    assert cache.available == cache.pool.size
    cache.flush()
    assert cache.pool.free == cache.pool.size


def test_the_same_arrivals_give_the_same_steps() -> None:
    def shapes() -> list[list[tuple[int, int, int]]]:
        w, dice = world(24), random.Random(3)
        for _ in range(20):
            lane: Lane = dice.choice(["interactive", "batch"])
            w.add(request([1] * dice.randrange(1, 30), dice.randrange(1, 30), lane))
        steps = []
        while not w.scheduler.is_idle:
            rows = w.step().rows
            steps.append([(row.sequence.number, row.start, row.count) for row in rows])
        return steps

    assert shapes() == shapes()


def test_a_long_prompt_is_computed_in_chunks_beside_running_decodes() -> None:
    w = world()
    short = w.add(request(b"hi", 50))
    w.step()
    long = w.add(request(bytes(100), 4))
    step = w.step()
    assert [(row.sequence, row.count, row.samples) for row in step.rows] == [
        (short, 1, True),
        (long, 31, False),
    ]


def test_requests_that_begin_alike_wait_for_the_first_to_compute_the_beginning() -> None:
    w = world(pages=256, limits=Limits(step_tokens=64, running=16, queued=100))
    prefix = list(range(100, 200))
    for index in range(8):
        w.add(request([*prefix, index], 2))
    w.run()
    computed = w.scheduler.queried_tokens - w.scheduler.hit_tokens
    assert computed <= 101 + 7 * 5  # the prefix once; its last partial page and a token for each


def test_the_cached_prefix_goes_first_until_another_has_waited_too_long() -> None:
    w = world(pages=256, limits=Limits(step_tokens=32, running=1, queued=9, age_bound=1.0))
    w.add(request(range_of(1, 40), 1))
    w.run()
    stranger = w.add(request(range_of(500, 40), 1))
    w.now += 0.5
    relative = w.add(request([*range_of(1, 40), 7], 1))
    w.step()
    assert w.ended[-1] is relative
    w.add(request([*range_of(1, 40), 8], 1))
    w.now += 0.6
    w.step()
    assert w.scheduler.running == [stranger]
    assert w.scheduler.waiting("interactive") == 1


def test_a_sequence_that_lacks_pages_retracts_the_last_in_rank_which_then_ends_as_well() -> None:
    w = world(pages=12, page_size=4)
    first = w.add(request(b"abcdefgh", 24))
    second = w.add(request(b"ijklmnop", 24))
    w.run()
    assert w.scheduler.retractions > 0
    assert w.ended == [first, second]


def test_interactive_work_takes_the_place_of_batch_work() -> None:
    w = world(limits=Limits(step_tokens=32, running=2, queued=9))
    slow = [w.add(request([each] * 4, 30, "batch")) for each in (1, 2)]
    w.step()
    assert w.scheduler.running == slow
    urgent = w.add(request(b"now", 2))
    w.step()
    assert w.scheduler.running == [urgent, slow[0]]
    w.run()
    assert set(w.ended) == {urgent, *slow}


def test_batch_work_is_never_admitted_before_waiting_interactive_work() -> None:
    w = world(limits=Limits(step_tokens=32, running=2, queued=9))
    for each in range(4):
        w.add(request([each], 6, "batch"))
    for each in range(4):
        w.add(request([10 + each], 6))
    w.step()
    while w.scheduler.waiting("interactive"):
        assert all(each.request.lane == "interactive" for each in w.scheduler.running)
        w.step()


def test_batch_work_takes_a_small_share_of_the_step_while_people_are_about() -> None:
    w = world(pages=256, limits=Limits(step_tokens=32, running=8, queued=9))
    chat = w.add(request(b"chat", 5))
    w.step()
    w.add(request(bytes(200), 1, "batch"))
    assert [row.count for row in w.step().rows] == [1, 2]
    while chat not in w.ended:
        w.step()
    assert [row.count for row in w.step().rows] == [2]
    w.now += 5.0
    assert [row.count for row in w.step().rows] == [32]


def test_batch_work_stands_still_while_somebody_waits_for_a_first_token() -> None:
    w = world(pages=256, limits=Limits(step_tokens=32, running=8, queued=9))
    for each in range(4):
        w.add(request([each] * 8, 20, "batch"))
    assert len(w.step().rows) == 4
    chat = w.add(request(bytes(64), 5))
    for _ in range(2):
        assert [row.sequence for row in w.step().rows] == [chat]
    assert len(w.step().rows) == 3
    w.run()
    assert len(w.ended) == 5
    assert w.scheduler.retractions == 0


def test_tenants_of_the_batch_lane_are_served_alike() -> None:
    w = world(pages=256, limits=Limits(step_tokens=32, running=2, queued=100))
    for index in range(20):
        w.add(request([index] * 8, 8, "batch", tenant="many"))
    for index in range(4):
        w.add(request([50 + index] * 8, 8, "batch", tenant="few"))
    w.run()
    assert [each.request.tenant for each in w.ended[:8]].count("few") == 4


def test_a_tenants_batch_requests_go_by_deadline() -> None:
    w = world(limits=Limits(step_tokens=32, running=1, queued=100))
    for deadline in (3.0, None, 1.0, 2.0):
        w.add(request([9, 9, 9], 1, "batch", deadline=deadline))
    w.run()
    assert [each.request.deadline for each in w.ended] == [1.0, 2.0, 3.0, None]


def test_a_batchs_priority_comes_before_its_deadline() -> None:
    w = world(limits=Limits(step_tokens=32, running=1, queued=100))
    for priority, deadline in ((0, 1.0), (5, 9.0), (-5, 0.0), (5, 8.0)):
        w.add(request([9, 9, 9], 1, "batch", batch_priority=priority, deadline=deadline))
    w.run()
    ended = [(each.request.batch_priority, each.request.deadline) for each in w.ended]
    assert ended == [(5, 8.0), (5, 9.0), (0, 1.0), (-5, 0.0)]


def test_a_batchs_priority_takes_nothing_from_other_tenants() -> None:
    w = world(pages=256, limits=Limits(step_tokens=32, running=2, queued=100))
    for index in range(20):
        w.add(request([index] * 8, 8, "batch", tenant="urgent", batch_priority=100))
    for index in range(4):
        w.add(request([50 + index] * 8, 8, "batch", tenant="calm"))
    w.run()
    assert [each.request.tenant for each in w.ended[:8]].count("calm") == 4


def test_no_batch_is_as_urgent_as_a_person() -> None:
    w = world(limits=Limits(step_tokens=32, running=1, queued=9))
    w.add(request([1] * 4, 30, "batch", batch_priority=100))
    w.step()
    person = w.add(request(b"now", 2, priority=-100))
    w.step()
    assert w.scheduler.running == [person]


def test_a_batch_flood_does_not_fill_the_interactive_queue() -> None:
    w = world(limits=Limits(step_tokens=32, running=1, queued=2))
    for _ in range(2):
        w.add(request([1], 1, "batch"))
    with pytest.raises(QueueFull):
        w.add(request([1], 1, "batch"))
    w.add(request([1], 1))


def test_what_can_never_fit_is_refused() -> None:
    with pytest.raises(Refused, match="holds 256"):
        world(pages=64, page_size=4).add(request(bytes(200), 57))


def test_a_sequence_removed_while_waiting_running_or_half_computed_leaves_nothing() -> None:
    w = world()
    waiting, half, running = (w.add(request(bytes([each]) * 60, 20)) for each in (1, 2, 3))
    w.scheduler.remove(waiting)
    w.step()
    w.scheduler.remove(half)
    w.step()
    w.scheduler.remove(running)
    w.check()
    assert w.scheduler.is_idle
    assert w.scheduler.cache.available == 64


def test_a_failed_sequence_shares_nothing_of_its_last_tokens() -> None:
    w = world()
    sequence = w.add(request(b"abcd", 20))
    w.step()
    for _ in range(8):
        w.step()
    w.scheduler.remove(sequence, keep=False)
    assert w.scheduler.cache.tree.evictable == 1  # the prompt's page


def range_of(first: int, count: int) -> list[int]:
    return list(range(first, first + count))


def paced(decoding: int, prompts: int) -> Step:
    """A step when so many decode and so many long prompts have come, after some were measured."""
    limits = Limits(step_tokens=512, running=16, queued=100, patience=2.5)
    made = world(pages=4000, limits=limits)
    made.takes = lambda step: 0.02 + 0.0002 * (step.tokens - decoding)  # seconds
    for index in range(decoding):
        made.add(request([index], max_tokens=200))
    for _ in range(5):
        made.step()
    for index in range(prompts):
        made.add(request([100 + index] * 900, max_tokens=200))
    made.step()
    return made.step()


def test_prompts_make_a_step_little_longer_while_most_people_decode() -> None:
    assert paced(decoding=8, prompts=1).tokens == 8 + 150  # 20 ms, and 30 of 0.2 ms each


def test_prompts_fill_the_step_while_most_people_wait_for_a_first_token() -> None:
    assert paced(decoding=2, prompts=6).tokens == 512
