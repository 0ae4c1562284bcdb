"""The life of a batch: from wherever it is to its end.

    validating    its input is copied, read and checked; its plan is written once, by whoever is
                  first → in_progress, or failed
    in_progress   its shards are claimed, their lines asked, their results committed
    ending        a cancel, the deadline, or no line left → finalizing, or it is cancelling already
    publishing    every shard is sealed; what is committed becomes two files → a terminal state

Each step begins by reading what is in the store and ends by one compare-and-set there, so a worker
may die after any instruction, and any number may run at once: the next goes on from the last step.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from tempfile import TemporaryFile
from typing import Any

from skirret_batch import files, quota
from skirret_batch import record as records
from skirret_batch.completions import Completions, CompletionsError, Template
from skirret_batch.plan import Index, Keys, Plan, Reading, cut, decode_plan, first_model
from skirret_batch.prompts import renderer
from skirret_batch.record import (
    OWN_FOLDERS,
    Record,
    Transition,
    change,
    decode,
    folder_of,
    live_key,
    load,
    record_key,
    usage_of,
)
from skirret_batch.store import BatchStore, Changed, NotThere, StoreError, StoreRefused
from skirret_batch.worker.beside import beside
from skirret_batch.worker.ending import Ending
from skirret_batch.worker.publish import publish, retract
from skirret_batch.worker.rate import Rate
from skirret_batch.worker.run import Job, Run
from skirret_batch.worker.settings import WorkerSettings
from skirret_batch.worker.shard import FINAL, Board, Fenced, Holder, Shard, Tally
from skirret_batch.worker.source import BadInput, Spool, bad_input, snapshot

log = logging.getLogger(__name__)

_HEAD = 1 << 20  # bytes of the input in which its model is looked for


class Worker:
    """One run of one worker on one batch.

    `slot` names whose place it takes: after a crash it goes on at once with what a worker of the
    same slot held, and with what others held once they have shown no sign for a while.
    """

    def __init__(
        self,
        store: BatchStore,
        batch_id: str,
        completions: Completions,
        settings: WorkerSettings,
        *,
        slot: str,
        uris: BatchStore | None = None,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._uris = uris or store  # where the user's URIs are
        self._id = batch_id
        self._completions = completions
        self._settings = settings
        self._holder = Holder(slot=slot, worker=secrets.token_hex(8))
        self._clock = clock
        self._steady = steady
        self._jitter = jitter
        self._ending = Ending()
        self._predicted = 0  # tokens of prompts that the plan hopes to find cached

    async def live(self) -> Record:
        """Returns the record in its terminal state, or as it is after `stop`. Raises StoreError."""
        record, _ = await load(self._store, self._id)
        spool = Spool()
        try:
            if not record.is_terminal:
                async with beside(self._watch()):
                    await self._work(record, spool)
        except BadInput as error:
            await self._fail(error)
        except StoreError:
            # What we read may be gone because the batch ended without us.
            if not (await load(self._store, self._id))[0].is_terminal:
                raise
        finally:
            spool.close()
        record, _ = await load(self._store, self._id)
        if record.is_terminal:
            await self._clean_up(record)
        return record

    def stop(self) -> None:
        """Ends the run soon, what is finished committed, so that another worker can go on."""
        self._ending.set("stopped")

    async def _work(self, record: Record, spool: Spool) -> None:
        plan = await self._prepare(record, spool)
        self._predicted = plan.shared
        total = len(spool.index)
        record = await self._change(records.start, model=plan.model, total=total, now=self._clock())
        self._notice(record)
        board = Board(self._store, self._id, plan, self._holder, self._settings, self._steady)
        if not self._ending:
            await self._run(record, plan, spool, board)
        await self._finish(spool, board)

    async def _fail(self, error: BadInput) -> None:
        try:
            await self._change(records.fail, error.errors, self._clock())
        except Transition as late:
            log.info("%s", late)

    # validating → in_progress

    async def _prepare(self, record: Record, spool: Spool) -> Plan:
        """Reads the input into the spool, and loads the plan or makes it."""
        record = await self._with_source(record)
        plan = await self._load_plan(spool)
        try:
            if plan is None:
                return await self._make_plan(record, spool)
            async with aclosing(self._store.stream(record.source or "")) as pieces:
                async for piece in pieces:
                    spool.write(piece)
            return plan
        except NotThere as error:
            if plan is not None and not self._ending:
                # Its results so far would be lost with it.
                raise StoreRefused(
                    f"{error}: the input of batch {self._id} is gone since it was validated; "
                    "put it back, or cancel the batch"
                ) from error
            raise bad_input("input_not_found", "The input is gone.") from error

    async def _with_source(self, record: Record) -> Record:
        if record.output_uri is not None:
            output = self._key_of(record.output_uri)
            if output.startswith(OWN_FOLDERS):
                raise bad_input("invalid_uri", f"{record.output_uri} is a folder of Skirret's own.")
        if record.source is not None or record.input_uri is None:
            return record
        key = self._key_of(record.input_uri)
        source = await snapshot(
            self._uris,
            key,
            self._store,
            folder_of(self._id),
            max_bytes=self._settings.max_bytes,
            part_size=self._settings.part_size,
        )
        record = await self._change(records.settle_source, source)
        if record.source != source:  # another worker's copy was first
            await self._store.delete(source)
        return record

    def _key_of(self, uri: str) -> str:
        try:
            return self._uris.key_of(uri)
        except StoreRefused as error:
            raise bad_input("invalid_uri", f"{error}.") from error

    async def _load_plan(self, spool: Spool) -> Plan | None:
        try:
            plan = await self._store.get(self._key("plan.bin"))
        except NotThere:
            return None
        spool.index = Index((await self._store.get(self._key("index.bin"))).data)
        return decode_plan(plan.data)

    async def _make_plan(self, record: Record, spool: Spool) -> Plan:
        settings = self._settings
        template = await self._template(record)
        with TemporaryFile() as heads:
            keys = Keys(heads, renderer(template), template.tokens_per_byte)
            reading = Reading(record.batch.endpoint, settings.max_lines, keys)
            async with aclosing(self._store.stream(record.source or "")) as pieces:
                async for piece in pieces:
                    spool.write(piece)
                    reading.feed(piece)
            reading.finish()
            errors = reading.errors(await self._identities(reading.models))
            if errors:
                raise BadInput(errors)
            await self._check_quota(reading.index)
            ordered = await asyncio.to_thread(keys.sorted)
            shared = await asyncio.to_thread(keys.shared_tokens, ordered)
            groups = await asyncio.to_thread(keys.groups, ordered)
            order = keys.order(groups, ordered)
        index = reading.index
        lines = min(settings.shard_lines, -(-len(order) // (4 * record.parallelism)))
        if record.parallelism == 1:
            lines = settings.shard_lines
        plan = Plan(
            model=next(iter(reading.models), ""),
            order=order,
            ends=cut(order, index, lines=lines, tokens=settings.shard_tokens),
            shared=shared,
            groups=groups,
        )
        # The index follows from the input alone. The plan may not, a template can change: so the
        # first one written is everybody's.
        spool.index = Index(await self._once("index.bin", bytes(index.packed)))
        return decode_plan(await self._once("plan.bin", plan.encode()))

    async def _check_quota(self, index: Index) -> None:
        tokens = sum(index[ordinal].tokens for ordinal in range(len(index)))
        record = await self._change(records.measure, tokens)
        most = self._settings.max_enqueued_tokens
        if most is None:
            return
        live = await records.live(self._store, {})
        if quota.is_over(record, (each for each, _ in live.values()), most):
            raise bad_input("token_limit_exceeded", quota.message(most))

    async def _template(self, record: Record) -> Template:
        """How the model's prompts are made; a plain guess while no server is there to ask."""
        name = first_model(await self._store.read(record.source or "", 0, _HEAD))
        if name is None:
            return Template()
        try:
            async with asyncio.timeout(self._settings.template_wait):
                return await self._completions.template(name)
        except (TimeoutError, CompletionsError) as error:
            reason = str(error) or "no answer in time"
            log.info("batch %s is ordered without its model's template: %s", self._id, reason)
            return Template()

    async def _identities(self, names: Sequence[str]) -> dict[str, str | None]:
        """What the models' names are names of; all of one, when the batch ends before we know."""
        known: dict[str, str | None] = {}
        while len(known) < len(names):
            name = names[len(known)]
            try:
                known[name] = await self._completions.model(name)
            except CompletionsError as error:
                log.info("batch %s waits to know its model: %s", self._id, error)
                if await self._ending.wait(self._settings.poll):
                    return dict.fromkeys(names, "unknown")
        return known

    async def _once(self, name: str, data: bytes) -> bytes:
        """Writes what nobody may write twice; returns what is there then."""
        try:
            await self._store.put_if_absent(self._key(name), data)
            return data
        except Changed:
            return (await self._store.get(self._key(name))).data

    # in_progress → finalizing

    async def _run(self, record: Record, plan: Plan, spool: Spool, board: Board) -> None:
        batch, workers = record.batch, record.parallelism
        job = Job(self._id, batch.endpoint, batch.expires_at, record.priority, plan.groups, workers)
        run = Run(
            job,
            spool,
            board,
            self._completions,
            self._ending,
            self._settings,
            self._steady,
            self._jitter,
        )
        async with beside(self._report(record, board, len(spool.index))):
            await run.to_the_end()

    async def _report(self, record: Record, board: Board, total: int) -> None:
        """Keeps the record's counts up to what is committed."""
        await board.look()
        reported = board.tally()
        rate = Rate(self._steady)
        rate.progress(reported.completed + reported.failed, total, reported.usage.completion)
        looked_at = self._steady()
        while True:
            if record.parallelism > 1 and self._steady() - looked_at >= self._settings.flush_after:
                await board.look()
                looked_at = self._steady()
            tally = board.tally()
            if tally != reported:
                done = tally.completed + tally.failed
                progress = rate.progress(done, total, tally.usage.completion)
                await self._change(records.count, **self._counts(tally), progress=progress)
                reported = tally
            await asyncio.sleep(self._settings.report_after)

    # finalizing | cancelling → completed | expired | cancelled

    async def _finish(self, spool: Spool, board: Board) -> None:
        while self._ending.is_ours:
            lease = await board.claim_right(FINAL)
            if lease is None:
                await asyncio.sleep(self._settings.poll)
                continue
            try:
                async with beside(self._renew(lease)):
                    await self._publish(spool, board)
                return
            except Fenced as error:
                log.warning("%s", error)
                board.let_go(lease)
            except Transition as late:  # it ended without us: its BatchJob was deleted
                log.info("%s", late)
                return

    async def _publish(self, spool: Spool, board: Board) -> None:
        record = await self._change(records.finalize, self._clock())
        manifests = await board.seal()
        part_size = self._settings.part_size
        published = await publish(self._store, record, spool, manifests, part_size, self._uris)
        try:
            await self._change(
                records.end,
                **self._counts(board.tally()),
                output_file_id=published.output,
                error_file_id=published.error,
                now=self._clock(),
            )
        except Transition:
            record, _ = await load(self._store, self._id)
            if record.batch.output_file_id is None and record.batch.error_file_id is None:
                await retract(self._store, published)
            raise

    async def _renew(self, lease: Shard) -> None:
        while True:
            await asyncio.sleep(self._settings.renew_after / 4)
            await lease.tend()

    async def _clean_up(self, record: Record) -> None:
        """Idempotent, and done again by the sweep if nobody gets to it."""
        await self._store.delete(live_key(self._id))
        if record.input_uri is None and record.source is not None:
            await files.drop_orphan(self._store, record.source)

    # beside all of it

    async def _watch(self) -> None:
        """Looks at the record every second, so that a cancel is noticed in time."""
        record, etag = await load(self._store, self._id)
        while True:
            self._notice(record)
            await asyncio.sleep(self._settings.poll)
            blob = await self._store.get_if_changed(record_key(self._id), etag)
            if blob is not None:
                record, etag = decode(blob.data), blob.etag

    def _notice(self, record: Record) -> None:
        if record.is_terminal:
            self._ending.set("over")
        elif record.batch.status == "cancelling":
            self._ending.set("cancelled")
        elif record.batch.status == "finalizing":
            self._ending.set("taken")
        elif self._clock() >= record.batch.expires_at:
            self._ending.set("expired")

    def _key(self, name: str) -> str:
        return folder_of(self._id) + name

    async def _change(
        self, transition: Callable[..., Record], *arguments: Any, **named: Any
    ) -> Record:
        return await change(
            self._store, self._id, lambda record: transition(record, *arguments, **named)
        )

    def _counts(self, tally: Tally) -> dict[str, Any]:
        tokens = tally.usage
        usage = usage_of(tokens.prompt, tokens.cached, tokens.completion, self._predicted)
        return {"completed": tally.completed, "failed": tally.failed, "usage": usage}
