"""`python -m skirret_batch.testing.sweeper STORE_FILE`: sweeps without a pause, to be killed."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from skirret_api.tenants import read_store_settings
from skirret_batch.store import open_store
from skirret_batch.sweep import sweep


async def main(settings: Path) -> None:
    store = open_store(read_store_settings(settings))
    while True:
        await sweep(store, time.time())
        await asyncio.sleep(0.1)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
