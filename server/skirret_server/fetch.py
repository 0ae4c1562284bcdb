"""`python -m skirret_server fetch MODEL`: brings a model to this machine's cache, and ends.

A new revision of a model is prepared so, while the old one still serves: nothing is loaded, so it
needs no torch and no GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from skirret_api.internal import fatal
from skirret_server.load import folder as files
from skirret_server.load.errors import LoadError
from skirret_server.load.progress import Progress
from skirret_server.load.source import fetch, look
from skirret_server.model import describe


def main(arguments: Sequence[str]) -> int:
    """The exit code; what went wrong is the last line of stderr, as `serve` tells it."""
    parser = argparse.ArgumentParser(prog="python -m skirret_server fetch")
    parser.add_argument("model", help="a folder, file://, hf://org/name[@revision] or s3://bucket")
    parser.add_argument(
        "--look", action="store_true", help="only see that it is there and may be read"
    )
    given = parser.parse_args(arguments)
    try:
        if given.look:
            print(look(given.model, check))
        else:
            print(fetch(given.model, Progress(), check))
    except LoadError as error:
        print(fatal(error.reason, str(error)), file=sys.stderr, flush=True)
        return 1
    return 0


def check(folder: Path) -> None:
    """Raises LoadError when this server can't serve such a model, as far as its config tells."""
    describe(files.config(folder))
