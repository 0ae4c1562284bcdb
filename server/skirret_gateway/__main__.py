"""`python -m skirret_gateway`: the front door, before a cluster or before any servers of a file."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import uvloop

from skirret_api.meta import RoutingStrategy
from skirret_batch.receive import Limits
from skirret_gateway.downstream import DoorLimits
from skirret_gateway.forward import ForwardSettings
from skirret_gateway.gateway import Gateway, Settings
from skirret_gateway.hold import HoldLimits
from skirret_gateway.upstream import PoolSettings

if TYPE_CHECKING:
    from skirret_gateway.kube import Access

_DEFAULT = Settings()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = _parser()
    flags = parser.parse_args(arguments)
    if flags.namespaces is not None and not all(flags.namespaces.split(",")):
        parser.error("--namespaces: give at least one name, separated by commas: a,b")
    logging.basicConfig(
        level=flags.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        settings = _settings(flags)
    except LookupError:
        parser.error(
            "no Kubernetes here: give --endpoints FILE, or --kubernetes URL (as of kubectl proxy)"
        )
    _take_all_files()
    try:
        uvloop.run(_serve(settings))
    except (OSError, ValueError) as error:
        sys.exit(f"skirret_gateway: {error}")


async def _serve(settings: Settings) -> None:
    end = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.set)
    await Gateway(settings).run(end)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m skirret_gateway",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--host", default=_DEFAULT.host, help="address to listen on")
    add("--port", type=int, default=_DEFAULT.port, help="port to listen on")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--endpoints", type=Path, help="JSON or YAML file: model name to list of base URLs"
    )
    source.add_argument("--namespaces", help="namespaces of models in this cluster: a,b")
    add("--release-namespace", default="", help="namespace of requests without a key")
    add("--tenants", type=Path, help="folder with the tenants' stores and tokens")
    add(
        "--keys",
        type=Path,
        help="folder with API keys, one a file; with it nobody is answered without one",
    )
    add(
        "--unit",
        default=os.environ.get("HOSTNAME") or socket.gethostname(),
        help="this gateway's name among those that share the limits of keys: its pod's",
    )
    add("--kubernetes", metavar="URL", help="API server; that of the pod's cluster by default")
    add(
        "--routing",
        choices=get_args(RoutingStrategy),
        default=_DEFAULT.strategy,
        help="how a server is chosen for a model that doesn't say",
    )
    add("--max-body-bytes", type=int, default=_DEFAULT.forward.body_bytes, help="of a request")
    add(
        "--max-batch-file-bytes",
        type=int,
        default=_DEFAULT.files.batch_file,
        help="of an uploaded file with the lines of a batch",
    )
    add(
        "--max-file-bytes",
        type=int,
        default=_DEFAULT.files.file,
        help="of any other uploaded file",
    )
    add("--max-batch-lines", type=int, default=_DEFAULT.files.lines, help="of a dry run")
    add(
        "--max-enqueued-tokens",
        type=int,
        help="of prompts of a namespace's live batches; no limit without it",
    )
    add("--max-connections", type=int, default=_DEFAULT.door.connections, help="of clients")
    add(
        "--hold-requests",
        type=int,
        default=_DEFAULT.hold.requests,
        help="that may wait for servers",
    )
    add("--hold-bytes", type=int, default=_DEFAULT.hold.bytes, help="that those may have together")
    add("--hold-per-model", type=int, default=_DEFAULT.hold.per_model, help="that may wait for one")
    add("--hold-timeout", type=float, default=_DEFAULT.hold_timeout, help="seconds they may wait")
    add(
        "--heartbeat-after",
        type=float,
        default=_DEFAULT.forward.heartbeat_after,
        help="seconds until a waiting stream is kept awake with comments",
    )
    add(
        "--connect-timeout",
        type=float,
        default=_DEFAULT.pool.connect_timeout,
        help="seconds until a server that doesn't answer is given up",
    )
    add(
        "--idle-timeout",
        type=float,
        default=_DEFAULT.pool.idle_timeout,
        help="seconds a server may send nothing at all",
    )
    add(
        "--drain-timeout",
        type=float,
        default=_DEFAULT.drain_timeout,
        help="seconds that answers may go on after SIGTERM",
    )
    add(
        "--access-log",
        choices=("on", "off"),
        default="on",
        help="one line of JSON on standard output for each request",
    )
    add(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="how much the log tells",
    )
    return parser


def _settings(flags: argparse.Namespace) -> Settings:
    """Raises LookupError where a cluster is asked for and there is none."""
    return Settings(
        host=flags.host,
        port=flags.port,
        endpoints=flags.endpoints,
        kubernetes=_access(flags),
        namespaces=tuple(flags.namespaces.split(",")) if flags.namespaces else (),
        release_namespace=flags.release_namespace,
        tenants=flags.tenants,
        keys=flags.keys,
        unit=flags.unit,
        access=sys.stdout if flags.access_log == "on" else None,
        files=Limits(
            batch_file=flags.max_batch_file_bytes,
            file=flags.max_file_bytes,
            lines=flags.max_batch_lines,
            enqueued_tokens=flags.max_enqueued_tokens,
        ),
        strategy=flags.routing,
        drain_timeout=flags.drain_timeout,
        hold_timeout=flags.hold_timeout,
        hold=HoldLimits(flags.hold_requests, flags.hold_bytes, flags.hold_per_model),
        pool=PoolSettings(flags.connect_timeout, flags.idle_timeout),
        forward=ForwardSettings(
            flags.max_body_bytes,
            flags.heartbeat_after,
            keeps_authorization=flags.endpoints is not None and flags.keys is None,
        ),
        door=DoorLimits(connections=flags.max_connections),
    )


def _access(flags: argparse.Namespace) -> Access | None:
    if flags.endpoints is not None:
        return None
    from skirret_gateway import kube

    return kube.Access(flags.kubernetes) if flags.kubernetes else kube.in_cluster(os.environ)


def _take_all_files() -> None:
    """Each connection is one: take as many as the system allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    main()
