"""`python -m skirret_batch.worker`: one worker of one batch, in a Kubernetes Job.

Exit status: 0 when the batch has ended, 143 after SIGTERM with work left, 1 when a person must
mend something; the last line then says what.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

from skirret_api import internal
from skirret_api.tenants import FolderStore, S3Store, read_store_settings
from skirret_batch.completions import HttpCompletions
from skirret_batch.store import Retries, StoreError, open_store
from skirret_batch.worker import Worker, WorkerSettings
from skirret_batch.worker.notify import Target, notify, read_key

_STOPPED = 128 + signal.SIGTERM
_TELLER = "0"  # the slot that tells the end
_PATIENT = Retries(seconds=300.0, longest_pause=10.0)  # nobody waits for the answer

log = logging.getLogger("skirret_batch.worker")


def main() -> int:
    arguments = _parser().parse_args()
    logging.basicConfig(
        level=arguments.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    try:
        setup = _setup(arguments)
    except (OSError, ValueError) as error:
        return _give_up("BadSettings", str(error))
    try:
        return asyncio.run(_work(arguments, setup))
    except StoreError as error:
        return _give_up(type(error).__name__, str(error))
    except OSError as error:
        place = f"{gettempdir()}, where the input and the results are kept"
        return _give_up("NoDisk", f"{place}: {error.strerror}; give this worker more of it")


@dataclass(frozen=True, slots=True)
class _Setup:
    settings: WorkerSettings
    target: Target | None
    store: S3Store | FolderStore
    uris: S3Store | None
    token: str


def _setup(arguments: argparse.Namespace) -> _Setup:
    """Raises OSError and ValueError."""
    limits = WorkerSettings(
        max_lines=arguments.max_lines,
        max_bytes=arguments.max_bytes,
        max_enqueued_tokens=arguments.max_enqueued_tokens,
    )
    return _Setup(
        limits.but(arguments.set),
        _target(arguments),
        read_store_settings(arguments.store_file),
        _uris(arguments),
        arguments.token_file.read_text().strip(),
    )


async def _work(arguments: argparse.Namespace, setup: _Setup) -> int:
    store = open_store(setup.store, _PATIENT)
    uris = open_store(setup.uris, _PATIENT) if setup.uris else None
    settings, token, target = setup.settings, setup.token, setup.target
    completions = HttpCompletions(arguments.gateway, token, settings.answer_timeout)
    worker = Worker(store, arguments.batch, completions, settings, slot=arguments.slot, uris=uris)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    try:
        await store.probe()
        record = await worker.live()
    finally:
        await completions.close()
        await store.close()
        if uris is not None:
            await uris.close()
    log.info("batch %s is %s", record.id, record.batch.status)
    # One of several workers, and in a Job the one that is started again until it comes to here.
    if record.is_terminal and target is not None and arguments.slot == _TELLER:
        await notify(record, target)
    return 0 if record.is_terminal else _STOPPED


def _uris(arguments: argparse.Namespace) -> S3Store | None:
    """Another store that the batch's URIs are in. Raises OSError and ValueError."""
    if arguments.uris_store_file is None:
        return None
    settings = read_store_settings(arguments.uris_store_file)
    if not isinstance(settings, S3Store):
        # A folder would be one of this pod, where the namespace's secrets are.
        raise ValueError("storeSecretRef: store.json must be of kind s3")
    return settings


def _target(arguments: argparse.Namespace) -> Target | None:
    """Raises OSError and ValueError."""
    if arguments.notify is None:
        return None
    key_file = arguments.notify_key_file
    return Target(arguments.notify, read_key(key_file) if key_file else None)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m skirret_batch.worker", description=__doc__)
    parser.add_argument("--batch", required=True, help="id of the batch")
    parser.add_argument(
        "--store-file",
        type=Path,
        default=Path(internal.TENANT_DIR, "store.json"),
        help="the namespace's store (%(default)s)",
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        default=Path(internal.TENANT_DIR, "token"),
        help="the namespace's internal token (%(default)s)",
    )
    parser.add_argument(
        "--uris-store-file", type=Path, help="another store, for the URIs of a BatchJob"
    )
    parser.add_argument("--gateway", required=True, help="URL of the gateway")
    parser.add_argument(
        "--slot",
        default=os.environ.get("JOB_COMPLETION_INDEX", "0"),
        help="whose place this worker takes; the completion index in a Job (%(default)s)",
    )
    parser.add_argument("--notify", metavar="URL", help="is told the batch's end by POST")
    parser.add_argument("--notify-key-file", type=Path, help="the key that signs the call")
    defaults = WorkerSettings()
    parser.add_argument("--max-lines", type=int, default=defaults.max_lines)
    parser.add_argument("--max-bytes", type=int, default=defaults.max_bytes)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another limit or wait of the worker, such as flush_after=2",
    )
    parser.add_argument(
        "--max-enqueued-tokens",
        type=int,
        help="of prompts of the namespace's live batches; no limit by default",
    )
    parser.add_argument(
        "--log-level", default="info", choices=("debug", "info", "warning", "error")
    )
    return parser


def _give_up(reason: str, message: str) -> int:
    print(internal.fatal(reason, message), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
