"""Who holds which lines, and which results count.

`commit/{shard}.json` is a shard's manifest: its epoch, its holder, the segments that count. Every
write of it is a compare-and-set on what its holder read or wrote last. So whoever takes the shard,
by raising the epoch, makes every later write of the holder before fail: the fence. A holder shows
that it lives by changing the manifest; who waits for it to die watches for a change on a clock of
its own, and taking too early is safe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pydantic import BaseModel

from skirret_batch.lines import Result, Usage
from skirret_batch.plan import Plan
from skirret_batch.record import folder_of
from skirret_batch.store import BatchStore, Changed
from skirret_batch.worker.settings import WorkerSettings

# Numbers of shards without lines, each a right that one worker of a batch has at a time:
FINAL = -1  # to publish
ALONE = -2  # to ask lines alone, and find out which of them ends engines

_NAMES = {FINAL: "final", ALONE: "alone"}
_NUMBERS = {name: number for number, name in _NAMES.items()}


class Fenced(Exception):
    """Somebody else holds this shard now; nothing of ours counts any more."""


class Holder(BaseModel):
    slot: str  # whose replacement may take over at once: the completion index of a Job, a folder
    worker: str  # one run of one process


class Segment(BaseModel):
    """One immutable object with results, and what is in it."""

    key: str
    etag: str
    lines: list[int]  # ordinals, in the order of their results
    sizes: list[int]  # bytes of each
    failed: list[int]  # ordinals that belong into the error file


class Manifest(BaseModel):
    epoch: int = 0
    beat: int = 0
    holder: Holder | None = None
    segments: list[Segment] = []
    prompt: int = 0  # tokens, of all segments
    cached: int = 0
    completion: int = 0
    sealed: bool = False  # nothing will be added

    @property
    def done(self) -> int:
        return sum(len(segment.lines) for segment in self.segments)

    @property
    def failed(self) -> int:
        return sum(len(segment.failed) for segment in self.segments)

    def is_over(self, lines: int) -> bool:
        return self.sealed or (lines > 0 and self.done == lines)


@dataclass(frozen=True, slots=True)
class Tally:
    """What is committed, over all shards."""

    completed: int = 0
    failed: int = 0
    usage: Usage = Usage()


class Shard:
    """A shard we hold: takes results, commits them, renews the lease."""

    def __init__(
        self,
        store: BatchStore,
        folder: str,
        number: int,
        lines: Sequence[int],
        manifest: Manifest,
        etag: str,
        settings: WorkerSettings,
        clock: Callable[[], float],
    ) -> None:
        self.number = number
        self.manifest = manifest
        self.etag = etag
        self.buffered = 0  # bytes of results not yet committed
        self._store = store
        self._folder = folder
        self._total = len(lines)
        self._settings = settings
        self._clock = clock
        self._results: list[Result] = []
        self._since = self._written_at = clock()
        self._segments = 0  # written in this epoch
        done = {line for segment in manifest.segments for line in segment.lines}
        self.remaining = [line for line in lines if line not in done]  # in the plan's order
        self._open = set(self.remaining)  # without a result, committed or not

    @property
    def is_over(self) -> bool:
        return self.manifest.is_over(self._total)

    @property
    def is_full(self) -> bool:
        """Every line has a result, committed or not."""
        return not self._open

    def add(self, result: Result) -> None:
        """The first result of a line is its result."""
        if result.ordinal not in self._open:
            return
        self._open.remove(result.ordinal)
        if not self._results:
            self._since = self._clock()
        self._results.append(result)
        self.buffered += len(result.line)

    async def tend(self) -> bool:
        """Commits or renews when it is time; True when it committed. Raises Fenced."""
        now = self._clock()
        due = self.is_full or self.buffered >= self._settings.flush_bytes
        if self._results and (due or now - self._since >= self._settings.flush_after):
            await self.commit()
            return True
        if now - self._written_at >= self._settings.renew_after:
            await self._write(self.manifest)
        return False

    async def commit(self) -> None:
        """Makes the results so far count. Raises Fenced: then they don't, and never will."""
        if not self._results:
            return
        results, self._results = self._results, []
        data = b"".join(result.line for result in results)
        name = f"{self.number}/{self.manifest.epoch}-{self._segments}.jsonl"
        self._segments += 1
        key = f"{self._folder}seg/{name}"
        etag = await self._store.put(key, data)
        segment = Segment(
            key=key,
            etag=etag,
            lines=[result.ordinal for result in results],
            sizes=[len(result.line) for result in results],
            failed=[result.ordinal for result in results if not result.ok],
        )
        usage = sum((result.usage for result in results), Usage())
        update = {
            "segments": [*self.manifest.segments, segment],
            "prompt": self.manifest.prompt + usage.prompt,
            "cached": self.manifest.cached + usage.cached,
            "completion": self.manifest.completion + usage.completion,
        }
        await self._write(self.manifest.model_copy(update=update))
        self.buffered -= len(data)

    async def release(self) -> None:
        """Lets anybody take the shard at once. Raises Fenced."""
        await self._write(self.manifest.model_copy(update={"holder": None}))

    async def _write(self, manifest: Manifest) -> None:
        beating = manifest.model_copy(update={"beat": manifest.beat + 1})
        key = _manifest_key(self._folder, self.number)
        try:
            self.etag = await self._store.put_if_match(key, _encode(beating), self.etag)
        except Changed as error:
            raise Fenced(f"shard {self.number} of {self._folder} was taken over") from error
        self.manifest = beating
        self._written_at = self._clock()


@dataclass(frozen=True, slots=True)
class _Seen:
    manifest: Manifest
    etag: str
    since: float  # when we first saw it like this, on our clock
    inherited: bool = False  # its holder is the one we replace


class Board:
    """All shards of one batch, as one worker sees them."""

    def __init__(
        self,
        store: BatchStore,
        batch_id: str,
        plan: Plan,
        holder: Holder,
        settings: WorkerSettings,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._folder = folder_of(batch_id)
        self._plan = plan
        self._holder = holder
        self._settings = settings
        self._clock = clock
        self._mine: dict[int, Shard] = {}
        self._seen: dict[int, _Seen] = {}
        self._is_first_look = True

    @property
    def is_over(self) -> bool:
        """Every shard is complete or sealed, as far as we have looked."""
        return all(self._is_over(number) for number in self._numbers)

    async def claim(self) -> Shard | None:
        """Takes the next shard that nobody works on; None when there is none at the moment."""
        await self.look()
        for number in self._numbers:
            if number not in self._mine and not self._is_over(number) and self._may_take(number):
                shard = await self._take(number)
                if shard is not None:
                    return shard
        return None

    async def claim_right(self, number: int) -> Shard | None:
        """Takes FINAL or ALONE; None while another worker has it."""
        await self.look()
        return await self._take(number) if self._may_take(number) else None

    def let_go(self, shard: Shard) -> None:
        """We no longer work on this shard: it is over, released or lost."""
        self._mine.pop(shard.number, None)
        self._seen[shard.number] = _Seen(shard.manifest, shard.etag, self._clock())

    async def seal(self) -> dict[int, Manifest]:
        """Fences every holder out and freezes what counts; returns the manifests by shard."""
        while True:
            await self.look()
            for number in self._numbers:
                if not self._is_over(number):
                    await self._put(number, {"sealed": True, "holder": None})
            if self.is_over:
                return {number: self._seen[number].manifest for number in self._numbers}

    def tally(self) -> Tally:
        """What is committed, by the last look and our own commits since."""
        total = Tally()
        for number in self._numbers:
            manifest = self._manifest(number)
            if manifest is not None:
                total = Tally(
                    total.completed + manifest.done - manifest.failed,
                    total.failed + manifest.failed,
                    total.usage + Usage(manifest.prompt, manifest.cached, manifest.completion),
                )
        return total

    async def look(self) -> None:
        """Reads the manifests that changed since the last look."""
        prefix = f"{self._folder}commit/"
        began = self._clock()
        entries = [entry async for entry in self._store.list(prefix)]
        if self._clock() - began > self._settings.renew_after:
            # Nobody could show a sign in a store that was away: silence counts from now on.
            for number, seen in self._seen.items():
                self._seen[number] = replace(seen, since=self._clock())
        for entry in entries:
            name = entry.key.removeprefix(prefix).removesuffix(".json")
            number = _NUMBERS[name] if name in _NUMBERS else int(name)
            known = self._seen.get(number)
            if number in self._mine or (known is not None and known.etag == entry.etag):
                continue
            blob = await self._store.get(entry.key)
            manifest = Manifest.model_validate_json(blob.data)
            inherited = self._is_first_look and _replaces(self._holder, manifest.holder)
            if known is not None and known.inherited and known.manifest.holder == manifest.holder:
                inherited = True  # the one we replace had one more write on its way
            self._seen[number] = _Seen(manifest, blob.etag, self._clock(), inherited)
        self._is_first_look = False

    @property
    def _numbers(self) -> range:
        return range(len(self._plan.ends))

    def _lines(self, number: int) -> Sequence[int]:
        return () if number < 0 else self._plan.shard(number)

    def _manifest(self, number: int) -> Manifest | None:
        if number in self._mine:
            return self._mine[number].manifest
        seen = self._seen.get(number)
        return seen.manifest if seen else None

    def _is_over(self, number: int) -> bool:
        manifest = self._manifest(number)
        return manifest is not None and manifest.is_over(len(self._lines(number)))

    def _may_take(self, number: int) -> bool:
        seen = self._seen.get(number)
        if seen is None or seen.manifest.holder is None or seen.inherited:
            return True
        return self._clock() - seen.since >= self._settings.stale_after

    async def _take(self, number: int) -> Shard | None:
        if not await self._put(number, {"holder": self._holder}):
            return None
        seen = self._seen[number]
        shard = Shard(
            self._store,
            self._folder,
            number,
            self._lines(number),
            seen.manifest,
            seen.etag,
            self._settings,
            self._clock,
        )
        self._mine[number] = shard
        return shard

    async def _put(self, number: int, update: dict[str, object]) -> bool:
        """Writes the shard's next epoch; False when somebody else wrote first."""
        key = _manifest_key(self._folder, number)
        seen = self._seen.get(number)
        before = seen.manifest if seen else Manifest()
        after = before.model_copy(update={**update, "epoch": before.epoch + 1})
        try:
            if seen is None:
                etag = await self._store.put_if_absent(key, _encode(after))
            else:
                etag = await self._store.put_if_match(key, _encode(after), seen.etag)
        except Changed:
            return False
        self._seen[number] = _Seen(after, etag, self._clock())
        return True


def _replaces(ours: Holder, theirs: Holder | None) -> bool:
    return theirs is not None and theirs.slot == ours.slot and theirs.worker != ours.worker


def _manifest_key(folder: str, number: int) -> str:
    return f"{folder}commit/{_NAMES.get(number, number)}.json"


def _encode(manifest: Manifest) -> bytes:
    return manifest.model_dump_json().encode()
