"""The life of a server process: it listens at once, then loads, serves, and drains when told to."""

from __future__ import annotations

import asyncio
import gc
import logging
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import uvicorn

from skirret_api import internal
from skirret_api.launch import LaunchSettings
from skirret_batch.store import StoreError
from skirret_server.api.app import Access
from skirret_server.api.application import application
from skirret_server.api.cors import Cors
from skirret_server.api.lifecycle import Lifecycle
from skirret_server.api.probes import prove
from skirret_server.api.served import Served
from skirret_server.core import Engine, ModelInfo
from skirret_server.embedded import ELSEWHERE, FilesAndBatches
from skirret_server.load.bar import show
from skirret_server.load.errors import LoadError
from skirret_server.load.progress import Progress
from skirret_server.logs import log_to_stderr
from skirret_server.text.template import ChatTemplate, TemplateError, find_template
from skirret_server.text.token_bytes import UnsupportedTokenizer
from skirret_server.text.tokenizer import NoTokenizer, Tokenizer

if TYPE_CHECKING:  # numpy takes long to import, and the socket must answer first
    from skirret_server.grammar.masks import Vocabulary
    from skirret_server.grammar.store import GrammarStore

log = logging.getLogger("skirret.serve")

# Longer than our gateway keeps an idle connection, so that it is never the one left behind.
_KEEP_ALIVE = 120
_CLOSE_TIMEOUT = 5  # seconds for the last bytes of answers, after the drain

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Loaded:
    folder: Path
    engine: Engine


Loader = Callable[[LaunchSettings, Progress], Loaded]


def load_model(settings: LaunchSettings, progress: Progress) -> Loaded:
    """Fetches the model if need be, and starts its engine. Raises LoadError."""
    from skirret_server import engine
    from skirret_server.load.source import fetch

    def check(folder: Path) -> None:
        engine.check(settings, folder)

    folder = fetch(settings.model_path, progress, check)
    return Loaded(folder, engine.open(settings, folder, progress))


class CannotServe(Exception):
    """The process must give up; `reason` is a CamelCase word for the custom resource."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def serve(settings: LaunchSettings, load: Loader = load_model) -> int:
    """Runs until SIGTERM or SIGINT; the exit code."""
    log_to_stderr(settings.log_level)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_run(settings, load, started=time.monotonic()))
    except CannotServe as error:
        print(internal.fatal(error.reason, str(error)), file=sys.stderr, flush=True)
        return 1
    return 0


async def _run(settings: LaunchSettings, load: Loader, started: float) -> None:
    progress = Progress()
    lifecycle = Lifecycle(progress.status)
    access = _access(settings)
    mounts = list(ELSEWHERE)
    app = application(
        lifecycle,
        access,
        cors=Cors(settings.cors_origins),
        tells_accounting=settings.debug,
        mounts=lambda: mounts,
        settings=_told(settings),
        logs_requests=settings.log_requests,
        started=started,
    )
    batches = None
    if settings.files == "on":
        batches = FilesAndBatches(
            settings.file_storage_path, app, access.internal_token, lifecycle.loading
        )
        mounts[:] = batches.mounts
    stop = _stop_signal(lifecycle)
    async with listening(app, _socket(settings.host, settings.port)):
        loading = asyncio.ensure_future(_in_thread(lambda: _load(settings, load, progress)))
        stopping = asyncio.ensure_future(stop.wait())
        shown = asyncio.create_task(show(progress.status, sys.stderr))
        await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
        shown.cancel()
        await asyncio.wait({shown})
        if not loading.done():
            return
        served = loading.result()
        try:
            if batches is not None:
                batches.open(served)  # before /ready turns true
            await _open(lifecycle, served, started)
            async with _batches(batches, settings.file_storage_path, stopping):
                log.info("draining", extra={"requests": lifecycle.running})
            await lifecycle.drain(settings.drain_timeout)
        finally:
            await served.grammars.close()
            await served.engine.close()


@asynccontextmanager
async def _batches(
    batches: FilesAndBatches | None, folder: str, stopping: asyncio.Future[Any]
) -> AsyncIterator[None]:
    """Works on batches until it is time to stop. Raises CannotServe."""
    if batches is None:
        await stopping
        yield
        return
    try:
        working = await batches.start()
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        yield
    except (StoreError, OSError) as error:
        raise CannotServe("StoreFailed", f"--file-storage-path {folder}: {error}") from error
    finally:
        await batches.stop()


async def _open(lifecycle: Lifecycle, served: Served, started: float) -> None:
    lifecycle.serve(served)
    warming = asyncio.create_task(served.grammars.warm())
    await prove(lifecycle)
    await warming
    # What is here now stays: looking through it would stop every stream for tens of milliseconds.
    gc.collect()
    gc.freeze()
    seconds = round(time.monotonic() - started, 2)
    log.info("ready", extra={"models": served.names, "seconds": seconds})


def _load(settings: LaunchSettings, load: Loader, progress: Progress) -> Served:
    """Raises CannotServe."""
    try:
        loaded = load(settings, progress)
        return served_from(loaded, settings)
    except LoadError as error:
        raise CannotServe(error.reason, str(error)) from error
    except (NoTokenizer, UnsupportedTokenizer) as error:
        raise CannotServe(type(error).__name__, str(error)) from error
    except MemoryError as error:
        raise CannotServe("DoesNotFit", "The process ran out of memory while loading.") from error
    except CannotServe:
        raise
    except Exception as error:
        log.exception("loading failed")
        raise CannotServe("LoadFailed", f"{type(error).__name__}: {error}") from error


def served_from(loaded: Loaded, settings: LaunchSettings) -> Served:
    """Raises NoTokenizer, UnsupportedTokenizer or CannotServe."""
    from skirret_server.grammar.compiler import GrammarCompiler

    tokenizer = Tokenizer.load(loaded.folder)
    template, fault = _template(loaded.folder, settings.chat_template, tokenizer)
    return Served(
        names=settings.served_model_name or (default_name(settings.model_path),),
        path=settings.model_path,
        engine=loaded.engine,
        tokenizer=tokenizer,
        template=template,
        grammars=GrammarCompiler(
            lambda: vocabulary(tokenizer, loaded.engine.info),
            store=_grammar_store(settings.grammar_cache_path),
        ),
        template_fault=fault,
        created=int(time.time()),
        tool_call_parser=settings.tool_call_parser,
        separates_reasoning=settings.reasoning_parser == "auto",
        max_answer_tokens=settings.max_answer_tokens,
        checks_structured=settings.validate_structured,
        is_strict=settings.strict_openai,
    )


def _grammar_store(folder: str | None) -> GrammarStore | None:
    """Raises CannotServe."""
    from skirret_server.grammar.store import GrammarStore

    if folder is None:
        return None
    try:
        return GrammarStore(Path(folder))
    except OSError as error:
        raise CannotServe("StoreFailed", f"--grammar-cache-path {folder}: {error}") from error


def vocabulary(tokenizer: Tokenizer, info: ModelInfo) -> Vocabulary:
    from skirret_server.grammar.masks import Vocabulary

    return Vocabulary(
        tokenizer.all_bytes,
        tokenizer.special_ids,
        info.eos_token_ids,
        info.vocab_size,
        tokenizer.encode_inner,
    )


def default_name(model_path: str) -> str:
    """`org/name` of a hub's model, the last folder of anything else."""
    scheme, separator, rest = model_path.partition("://")
    if separator and scheme == "hf":
        return rest.partition("@")[0]
    return Path(rest if separator else model_path).resolve().name


def _template(
    folder: Path, override: str | None, tokenizer: Tokenizer
) -> tuple[ChatTemplate | None, str | None]:
    """The chat template; or none, and what is wrong with it. Raises CannotServe."""
    try:
        source = find_template(folder, Path(override) if override else None)
        found = None if source is None else ChatTemplate(source, tokenizer.named_tokens)
    except OSError as error:
        raise CannotServe("BadChatTemplate", f"--chat-template: {error}") from error
    except TemplateError as error:
        if override is not None:
            raise CannotServe("BadChatTemplate", f"{override}: {error}") from error
        log.warning("the model's chat template is broken", extra={"cause": str(error)})
        return None, f"the model's own is broken: {error}"
    return found, None


@asynccontextmanager
async def listening(app: Any, door: socket.socket) -> AsyncIterator[None]:
    """Answers on the socket for as long as the block lasts."""
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            proxy_headers=False,  # nothing asks whence a request came
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=_CLOSE_TIMEOUT,
        )
    )
    task = asyncio.ensure_future(server.serve([door]))
    try:
        yield
    finally:
        server.should_exit = True
        await task


class _Server(uvicorn.Server):
    """Leaves signals to us: a drain comes before the end."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        door = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise CannotServe("CannotListen", f"{host}:{port}: {error.strerror}") from error
    give_up_unread(door, milliseconds=60_000)
    return door


def give_up_unread(door: socket.socket, milliseconds: int) -> None:
    """Answers that a client leaves unread, or that find it gone without a word, are held no longer.

    Where the system has no such limit of its own, those of the connection apply.
    """
    if sys.platform == "linux":
        door.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


def _stop_signal(lifecycle: Lifecycle) -> asyncio.Event:
    """Set by the first SIGTERM or SIGINT; the second ends what still runs."""
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            lifecycle.end_all()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    return stop


def _access(settings: LaunchSettings) -> Access:
    """Raises CannotServe."""
    token = None
    if settings.internal_token_file is not None:
        try:
            token = Path(settings.internal_token_file).read_text().strip()
        except OSError as error:
            raise CannotServe("NoInternalToken", f"--internal-token-file: {error}") from error
    # Without a gateway the token is known to our own batch worker alone.
    return Access(api_key=settings.api_key, internal_token=token or secrets.token_hex(32))


def _told(settings: LaunchSettings) -> dict[str, Any]:
    """The settings as /get_server_info shows them: without secrets and where they are."""
    return settings.model_dump(mode="json", exclude={"api_key", "internal_token_file"})


async def _in_thread(work: Callable[[], _T]) -> _T:
    """Not in the loop's executor: that is waited for at exit, and a download takes long."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def deliver(setter: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            setter(value)

    def run() -> None:
        try:
            call, value = future.set_result, work()
        except BaseException as error:
            call, value = future.set_exception, error  # type: ignore[assignment]
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(deliver, call, value)

    threading.Thread(target=run, name="load", daemon=True).start()
    return await future


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
