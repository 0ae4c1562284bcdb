"""Compiles grammars in worker processes, each one once, within a budget of time and memory."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass

from skirret_server.grammar.errors import GrammarError, TooComplex, TooSlow
from skirret_server.grammar.making import Made
from skirret_server.grammar.masks import CompiledGrammar, MaskCache, Vocabulary
from skirret_server.grammar.packing import Corrupt, unpacked
from skirret_server.grammar.spec import Spec
from skirret_server.grammar.store import GrammarStore

log = logging.getLogger("skirret.grammar")

_SMALLEST = Spec.of("choice", ["a"])
# A worker counts its own time. By the clock it may take so many times as long, and so many seconds
# to start.
_PATIENCE = 3
_GRACE = 5.0


@dataclass(frozen=True, slots=True)
class CompileBudget:
    seconds: float = 10.0  # of a processor
    memory: int = 2 << 30  # bytes of address space of one worker
    workers: int = 2
    cache: int = 128 << 20  # bytes of automata that are kept


@dataclass(frozen=True, slots=True)
class Ready:
    grammar: CompiledGrammar
    unenforced: frozenset[str]


class GrammarCompiler:
    def __init__(
        self,
        vocabulary: Callable[[], Vocabulary],
        budget: CompileBudget | None = None,
        store: GrammarStore | None = None,
    ) -> None:
        """`vocabulary` is called once, by `warm` or when the first grammar is asked for."""
        self._store = store
        self._vocabulary = vocabulary
        self._budget = budget or CompileBudget()
        self._masks: asyncio.Task[MaskCache] | None = None
        self._cache: OrderedDict[Spec, Ready | GrammarError] = OrderedDict()
        self._cached_bytes = 0
        self._under_way: dict[Spec, asyncio.Task[Ready]] = {}
        self._idle: list[_Worker] = []
        self._slots = asyncio.Semaphore(self._budget.workers)

    async def warm(self) -> None:
        """Gets ready for the first grammar, which else waits for a process to start."""
        await self._ready_masks()
        try:
            async with self._slots:
                await self._made(_SMALLEST)
        except (GrammarError, OSError) as error:
            log.warning("no grammar can be compiled yet", extra={"cause": str(error)})

    async def compile(self, spec: Spec) -> Ready:
        """Raises GrammarError. Cancelling one caller leaves the others their result."""
        known = self._cache.get(spec)
        if known is not None:
            self._cache.move_to_end(spec)
            if isinstance(known, GrammarError):
                raise known
            return known
        if spec not in self._under_way:
            task = asyncio.create_task(self._compile(spec))
            self._under_way[spec] = task
            task.add_done_callback(lambda done: self._landed(spec, done))
        return await asyncio.shield(self._under_way[spec])

    async def close(self) -> None:
        for task in list(self._under_way.values()):
            task.cancel()
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)
        for worker in self._idle:
            await worker.end()
        self._idle.clear()

    async def _compile(self, spec: Spec) -> Ready:
        made = await asyncio.to_thread(self._store.get, spec) if self._store else None
        if made is None:
            async with self._slots:
                made = await self._made(spec)
        masks = await self._ready_masks()
        return Ready(CompiledGrammar(made.automaton, made.likely, masks, spec), made.unenforced)

    async def _ready_masks(self) -> MaskCache:
        if self._masks is None:
            self._masks = asyncio.create_task(asyncio.to_thread(self._make_masks))
        return await asyncio.shield(self._masks)

    def _make_masks(self) -> MaskCache:
        return MaskCache(self._vocabulary())

    async def _made(self, spec: Spec) -> Made:
        worker = self._idle.pop() if self._idle else await _Worker.start(self._budget)
        try:
            async with asyncio.timeout(_PATIENCE * self._budget.seconds + _GRACE):
                data = await worker.ask(spec)
                answer = await asyncio.to_thread(unpacked, data)
        except BaseException as error:
            await worker.end()
            if isinstance(error, TimeoutError):
                raise TooSlow("the grammar takes too long to compile") from None
            if isinstance(error, (EOFError, ConnectionError, Corrupt)):
                log.warning("a grammar worker died", extra={"kind": spec.kind})
                raise TooComplex("the grammar needs too much memory to compile") from None
            raise
        self._idle.append(worker)
        if isinstance(answer, GrammarError):
            raise answer
        if self._store is not None:
            await asyncio.to_thread(self._store.put, spec, data)
        return answer

    def _landed(self, spec: Spec, task: asyncio.Task[Ready]) -> None:
        del self._under_way[spec]
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._keep(spec, task.result())
        elif isinstance(error, GrammarError) and not isinstance(error, TooSlow):
            self._keep(spec, error)

    def _keep(self, spec: Spec, result: Ready | GrammarError) -> None:
        self._cache[spec] = result
        self._cached_bytes += _bytes(spec, result)
        while self._cached_bytes > self._budget.cache:
            self._cached_bytes -= _bytes(*self._cache.popitem(last=False))


class _Worker:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, budget: CompileBudget) -> _Worker:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "skirret_server.grammar.worker",
            str(budget.seconds),
            str(budget.memory),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return cls(process)

    async def ask(self, spec: Spec) -> bytes:
        """Raises EOFError or ConnectionError when it dies."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(asdict(spec)).encode() + b"\n")
        await stdin.drain()
        length = int.from_bytes(await stdout.readexactly(8), "big")
        return await stdout.readexactly(length)

    async def end(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


def _bytes(spec: Spec, result: Ready | GrammarError) -> int:
    grammar = result.grammar if isinstance(result, Ready) else None
    made = grammar.automaton.size + grammar.likely.nbytes if grammar else 0
    return len(spec.source) + made + 1000
