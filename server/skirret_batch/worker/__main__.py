"""`python -m skirret_batch.worker`: one worker of one batch, in a Kubernetes Job.

Exit status: 0 when the batch has ended, 143 after SIGTERM with work left, 1 when a person must
mend something; the last line then says what.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path

from skirret_api import internal
from skirret_api.tenants import read_store_settings
from skirret_batch.completions import HttpCompletions
from skirret_batch.store import Retries, StoreError, open_store
from skirret_batch.worker import Worker, WorkerSettings

_STOPPED = 128 + signal.SIGTERM
_PATIENT = Retries(seconds=300.0, longest_pause=10.0)  # nobody waits for the answer

log = logging.getLogger("skirret_batch.worker")


def main() -> int:
    arguments = _parser().parse_args()
    logging.basicConfig(
        level=arguments.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    try:
        return asyncio.run(_work(arguments))
    except StoreError as error:
        return _give_up(type(error).__name__, str(error))
    except (OSError, ValueError) as error:
        return _give_up("BadSettings", str(error))


async def _work(arguments: argparse.Namespace) -> int:
    settings = WorkerSettings(max_lines=arguments.max_lines, max_bytes=arguments.max_bytes)
    store = open_store(read_store_settings(arguments.store_file), _PATIENT)
    token = arguments.token_file.read_text().strip()
    completions = HttpCompletions(arguments.gateway, token, settings.answer_timeout)
    worker = Worker(store, arguments.batch, completions, settings, slot=arguments.slot)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    try:
        await store.probe()
        record = await worker.live()
    finally:
        await completions.close()
        await store.close()
    log.info("batch %s is %s", record.id, record.batch.status)
    return 0 if record.is_terminal else _STOPPED


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
    parser.add_argument("--gateway", required=True, help="URL of the gateway")
    parser.add_argument(
        "--slot",
        default=os.environ.get("JOB_COMPLETION_INDEX", "0"),
        help="whose place this worker takes; the completion index in a Job (%(default)s)",
    )
    defaults = WorkerSettings()
    parser.add_argument("--max-lines", type=int, default=defaults.max_lines)
    parser.add_argument("--max-bytes", type=int, default=defaults.max_bytes)
    parser.add_argument(
        "--log-level", default="info", choices=("debug", "info", "warning", "error")
    )
    return parser


def _give_up(reason: str, message: str) -> int:
    print(internal.FATAL + json.dumps({"reason": reason, "message": message}), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
