"""`python -m skirret_operator run --config FILE --tenants DIR`, or `… crds`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError
from yaml import YAMLError

from skirret_api import internal
from skirret_api.config import CONFIG_FILE, read_config
from skirret_api.tenants import read_tenants
from skirret_operator.definitions import NotEstablished, apply_definitions
from skirret_operator.kube import KubeError
from skirret_operator.logs import log_to_stderr
from skirret_operator.process import run

_log = logging.getLogger("skirret_operator")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    log_to_stderr(options.log_level)
    try:
        if options.command == "crds":
            asyncio.run(apply_definitions())
        else:
            config, tenants = read_config(options.config), read_tenants(options.tenants)
            asyncio.run(run(config, tenants, options.port))
    except (OSError, YAMLError) as error:
        _log.error("the configuration can't be read: %s", error)
        return 2
    except ValidationError as error:
        # Without the inputs: there may be keys among them.
        for fault in error.errors(include_input=False, include_url=False):
            where = ".".join(str(part) for part in fault["loc"])
            _log.error("the configuration is wrong: %s: %s", where, fault["msg"])
        return 2
    except (KubeError, NotEstablished) as error:
        _log.error("%s", error)
        return 1
    except ExceptionGroup as group:
        for each in group.exceptions:
            _log.error("must end: %s", each, exc_info=each)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m skirret_operator", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    operate = commands.add_parser("run", help="operate InferenceModels and BatchJobs")
    operate.add_argument("--config", type=Path, default=Path(CONFIG_FILE), help="(%(default)s)")
    operate.add_argument(
        "--tenants",
        type=Path,
        default=Path(internal.TENANTS_DIR),
        help="folder with the tenants' stores and tokens (%(default)s)",
    )
    operate.add_argument(
        "--port",
        type=int,
        default=internal.OPERATOR_PORT,
        help="of /healthz and /metrics (%(default)s)",
    )
    definitions = commands.add_parser("crds", help="apply the custom resource definitions")
    for command in (operate, definitions):
        command.add_argument(
            "--log-level",
            default="info",
            choices=("debug", "info", "warning", "error"),
            help="(%(default)s)",
        )
    return parser


if __name__ == "__main__":
    sys.exit(main())
