"""The lines of a batch on their way: asked, asked again, committed.

Three activities share the state of a `Run`: `_dispatch` decides which line is sent next, one task
for each line in flight waits for its answer, and `_keep` commits results and renews leases.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from skirret_api.errors import ApiError, InvalidRequest
from skirret_batch import lines
from skirret_batch.completions import Answer, Broken, Completions, TimedOut, Turn, Unreachable
from skirret_batch.lines import Result
from skirret_batch.worker.beside import first_failure
from skirret_batch.worker.ending import Ending
from skirret_batch.worker.inquest import Inquest, Work
from skirret_batch.worker.pace import Pace
from skirret_batch.worker.pending import Pending
from skirret_batch.worker.settings import WorkerSettings
from skirret_batch.worker.shard import ALONE, Board, Fenced, Shard
from skirret_batch.worker.source import Spool

log = logging.getLogger(__name__)

# Answers that say nothing of the request: not ready, or not knowing us (a changed token).
_NOT_CARRIED_OUT = frozenset({401, 403, 503})
_TRY_AGAIN = frozenset({408, 409, 425})
_ENGINE_DIED = 502
_BREAKS = 3  # of the way to the gateway, before a line may be what ends gateways


@dataclass(frozen=True, slots=True)
class Job:
    """The batch that the lines are of."""

    batch_id: str
    endpoint: str
    deadline: float
    priority: int
    groups: Sequence[int]  # by ordinal
    workers: int = 1

    def turn(self, ordinal: int) -> Turn:
        group = self.groups[ordinal]
        return Turn(self.deadline, self.priority, f"{group:08x}" if group else "")


class Run:
    def __init__(
        self,
        job: Job,
        spool: Spool,
        board: Board,
        completions: Completions,
        ending: Ending,
        settings: WorkerSettings,
        clock: Callable[[], float],
        jitter: Callable[[], float],
    ) -> None:
        self._job = job
        self._spool = spool
        self._board = board
        self._completions = completions
        self._ending = ending
        self._settings = settings
        self._clock = clock
        self._jitter = jitter
        self._pace = Pace(settings.concurrency, settings.rest_first, settings.rest_longest)
        self._pending = Pending()
        self._inquest = Inquest(shared=job.workers > 1)
        self._shards: dict[int, Shard] = {}
        self._in_flight: dict[asyncio.Task[None], Work] = {}
        self._claim_at = 0.0
        self._alone: Shard | None = None  # the right to ask lines alone, among several workers
        self._alone_at = 0.0
        self._moved = asyncio.Event()  # something the dispatcher waits for has happened
        ending.tell(self._moved.set)
        self._full = asyncio.Event()  # something the keeper waits for has
        self._is_closing = False

    async def to_the_end(self) -> None:
        """Until every line has a committed result, or the batch is ending."""
        with first_failure():
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep())
                await self._dispatch(tasks)
                await self._drain()
                self._is_closing = True
                self._full.set()
        await self._hand_in()

    async def _dispatch(self, tasks: asyncio.TaskGroup) -> None:
        while not self._ending:
            self._moved.clear()
            await self._seek_right()
            work = self._next()
            if work is None and not await self._claim():
                if self._is_done:
                    return
                work = self._try_accused()
                if work is None:
                    await self._wait()
            if work is not None:
                task = tasks.create_task(self._ask(work))
                self._in_flight[task] = work
                task.add_done_callback(self._landed)

    @property
    def _is_done(self) -> bool:
        busy = self._in_flight or len(self._pending) or self._pending.accused or self._shards
        return not busy and self._board.is_over

    def _next(self) -> Work | None:
        now = self._clock()
        if not self._has_room(now):
            return None
        return self._pending.take(now, len(self._in_flight), alone=self._may_ask_alone)

    @property
    def _may_ask_alone(self) -> bool:
        return self._job.workers == 1 or self._alone is not None

    async def _seek_right(self) -> None:
        """One worker at a time asks suspects, or they would be suspects of each other."""
        right, now = self._alone, self._clock()
        if right is None:
            if self._pending.suspected and self._job.workers > 1 and now >= self._alone_at:
                self._alone = await self._board.claim_right(ALONE)
                self._alone_at = now + self._settings.poll
            return
        try:
            if self._pending.suspected or self._in_flight:
                await right.tend()
                return
            await right.release()
        except Fenced as error:
            log.warning("%s", error)
        self._alone = None
        self._board.let_go(right)

    def _try_accused(self) -> Work | None:
        """What to ask about a line that seems to end engines; None when there is nothing to."""
        if not self._pending.accused or len(self._pending) or not self._has_room(self._clock()):
            return None
        if self._in_flight or not self._may_ask_alone:
            return None
        work = self._pending.take_accused()
        match self._inquest.verdict(work):
            case "once more":
                return work
            case "ask another":
                self._pending.put_back(work)
                return self._inquest.another()
            case "guilty":
                message = "The engine died whenever it ran this request, the last time alone."
                custom_id: str = self._spool.request(work.ordinal)["custom_id"]
                self._give_up(work, custom_id, 500, message, "engine_died")
                self._moved.set()
        return None

    def _has_room(self, now: float) -> bool:
        if len(self._in_flight) >= self._pace.room(now):
            return False
        if any(work.is_suspect for work in self._in_flight.values()):
            return False
        buffered = sum(shard.buffered for shard in self._shards.values())
        return buffered < self._settings.most_buffered

    async def _claim(self) -> bool:
        """Takes another shard when ours run low, so that the end of one overlaps the next."""
        now = self._clock()
        if len(self._pending) >= self._pace.limit or now < self._claim_at:
            return False
        if self._board.is_over and not self._shards:
            return False
        shard = await self._board.claim()
        if shard is None:
            self._claim_at = now + self._settings.poll
            return False
        self._shards[shard.number] = shard
        self._pending.add(Work(ordinal, shard.number) for ordinal in shard.remaining)
        return True

    async def _wait(self) -> None:
        """For an answer, a commit, or the end of a pause."""
        now = self._clock()
        pause = self._pending.wait(now) if self._has_room(now) else self._pace.wait(now)
        try:
            async with asyncio.timeout(min(pause or self._settings.poll, self._settings.poll)):
                await self._moved.wait()
        except TimeoutError:
            return

    def _landed(self, task: asyncio.Task[None]) -> None:
        del self._in_flight[task]
        self._moved.set()

    async def _ask(self, work: Work) -> None:
        """Sends one line and settles what came of it."""
        request = self._spool.request(work.ordinal)
        custom_id: str = request["custom_id"]
        body = request["body"]
        refusal = _refusal(body)
        if refusal is not None:
            self._settle(work, self._failed(work, custom_id, refusal.status, refusal.body()))
            return
        sent = self._clock()
        try:
            answer = await self._completions.complete(
                self._job.endpoint, json.dumps(body).encode(), self._job.turn(work.ordinal)
            )
        except Unreachable as error:
            self._put_off(work, sent, str(error))
        except Broken as error:
            work.breaks += 1  # first of all it is the gateway that has gone
            if work.breaks < _BREAKS:
                self._put_off(work, sent, str(error))
            else:
                self._suspect(work, sent, str(error))
        except TimedOut as error:
            self._retry(work, custom_id, 504, str(error))
        except Exception as error:  # a fault of whoever answers must not be the batch's
            log.exception("batch %s: asking for a line failed", self._job.batch_id)
            self._retry(work, custom_id, 500, type(error).__name__)
        else:
            self._judge(work, custom_id, sent, answer)

    def _judge(self, work: Work, custom_id: str, sent: float, answer: Answer) -> None:
        status = answer.status
        if status == 429:
            self._pace.refused(self._clock(), sent, answer.retry_after)
            self._pending.put_back(work)
        elif status in _NOT_CARRIED_OUT and answer.may_be_repeated:
            self._put_off(work, sent, f"status {status}", answer.retry_after)
        elif status == _ENGINE_DIED:
            self._suspect(work, sent, f"status {status}")
        elif (status in _TRY_AGAIN or status >= 500) and work.tries + 1 < self._settings.tries:
            self._retry(work, custom_id, status, f"status {status}")
        else:
            try:
                result = lines.answered(self._job.batch_id, work.ordinal, custom_id, answer)
            except ValueError as error:
                self._retry(
                    work, custom_id, 500, f"unreadable answer with status {status}: {error}"
                )
                return
            now = self._clock()
            self._pace.answered(now, now - sent, result.usage.completion, answer.load)
            if work.is_suspect and answer.load and answer.load.running + answer.load.waiting:
                self._inquest.others_seen()  # of ours it was the only one
            self._inquest.answered(work, now)
            self._settle(work, result)

    def _settle(self, work: Work, result: Result) -> None:
        shard = self._shards.get(work.shard)
        if shard is not None:
            shard.add(result)
            if shard.is_full or shard.buffered >= self._settings.flush_bytes:
                self._full.set()

    def _put_off(
        self, work: Work, sent: float, reason: str, retry_after: float | None = None
    ) -> None:
        """It wasn't carried out. The whole batch pauses: the line has no part in it."""
        log.info("batch %s pauses: %s", self._job.batch_id, reason)
        self._pace.away(self._clock(), sent, retry_after)
        self._pending.put_back(work)

    def _suspect(self, work: Work, sent: float, reason: str) -> None:
        """It was in flight when an engine died, and may be why."""
        log.warning("batch %s: an engine died with a line: %s", self._job.batch_id, reason)
        now = self._clock()
        self._pace.away(now, sent, None)
        self._inquest.died(work, sent, now)
        self._pending.suspect(work)

    def _retry(self, work: Work, custom_id: str, status: int, reason: str) -> None:
        """A server's fault, of which a line gets only so many."""
        work.tries += 1
        log.info("batch %s: try %d of a line: %s", self._job.batch_id, work.tries, reason)
        if work.tries >= self._settings.tries:
            message = f"No answer after {work.tries} tries; the last one: {reason}"
            self._give_up(work, custom_id, status, message, None)
            return
        pause = self._settings.retry_first * 2 ** (work.tries - 1)
        pause = min(pause, self._settings.retry_longest) * (0.5 + self._jitter() / 2)
        self._pending.retry(work, self._clock() + pause)

    def _give_up(
        self, work: Work, custom_id: str, status: int, message: str, code: str | None
    ) -> None:
        envelope = ApiError(message, code=code).body()
        self._settle(work, self._failed(work, custom_id, status, envelope))

    def _failed(
        self, work: Work, custom_id: str, status: int, envelope: dict[str, object]
    ) -> Result:
        return lines.refused(self._job.batch_id, work.ordinal, custom_id, status, envelope)

    async def _drain(self) -> None:
        """Gives what is in flight a moment when the batch or this process is ending; drops it then.

        Without an ending nothing is in flight.
        """
        drain = {"cancelled": self._settings.cancel_drain, "stopped": self._settings.stop_drain}
        if self._in_flight:
            await asyncio.wait(self._in_flight, timeout=drain.get(self._ending.reason or "", 0.0))
        for task in self._in_flight:
            task.cancel()

    async def _keep(self) -> None:
        pause = min(1.0, self._settings.flush_after / 4, self._settings.renew_after / 4)
        while not self._is_closing:
            for shard in list(self._shards.values()):
                await self._tend(shard)
            try:
                async with asyncio.timeout(pause):
                    await self._full.wait()
            except TimeoutError:
                continue
            self._full.clear()

    async def _tend(self, shard: Shard) -> None:
        try:
            await shard.tend()
        except Fenced as error:
            log.warning("%s", error)
            self._lose(shard)
        if shard.is_over:
            self._forget(shard)
        self._moved.set()

    def _lose(self, shard: Shard) -> None:
        self._forget(shard)
        self._pending.drop(shard.number)
        for task, work in self._in_flight.items():
            if work.shard == shard.number:
                task.cancel()

    def _forget(self, shard: Shard) -> None:
        self._shards.pop(shard.number, None)
        self._board.let_go(shard)

    async def _hand_in(self) -> None:
        """Commits what is left; a stopped worker lets others go on at once."""
        for shard in list(self._shards.values()):
            try:
                await shard.commit()
                if self._ending.reason == "stopped":
                    await shard.release()
            except Fenced as error:
                log.warning("%s", error)
            self._forget(shard)


def _refusal(body: dict[str, object]) -> ApiError | None:
    """What only a batch refuses; the rest is for the server to say."""
    if body.get("stream"):
        return InvalidRequest("Streaming is not supported in a batch.", param="stream")
    try:
        json.dumps(body, allow_nan=False)
    except ValueError:  # 1e999 is JSON, and read as infinity
        return InvalidRequest("A number in the body is too large.", code="invalid_value")
    return None
