"""The command line: which command, on what, with which of kubectl's flags."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from skirret_api.meta import GROUP
from skirret_cli import edits, keys
from skirret_cli.batches import command as batches
from skirret_cli.cluster import Cluster, ClusterError, Kubectl
from skirret_cli.why import explain

_KUBECTL_FLAGS = ("namespace", "context", "kubeconfig")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command of this process; returns its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["serve"]:
        # Replaces this process, so that signals reach the server itself.
        os.execv(sys.executable, [sys.executable, "-m", "skirret_server", *given])
    options = _parser().parse_args(given)
    if options.command == "batch":
        return batches.run(options)
    flags = [f"--{name}={value}" for name in _KUBECTL_FLAGS if (value := getattr(options, name))]
    if options.command == "keys":
        return keys.run(options, Kubectl(flags), datetime.now(UTC))
    return carry_out(options.command, options.name, Kubectl(flags), lambda: datetime.now(UTC))


def carry_out(command: str, name: str, cluster: Cluster, clock: Callable[[], datetime]) -> int:
    try:
        print(_COMMANDS[command](name, cluster, clock()))
    except ClusterError as error:
        print(f"skirret: {error}", file=sys.stderr)
        return 1
    return 0


def _restart(name: str, cluster: Cluster, now: datetime) -> str:
    """roll out new pods of model NAME, without another edit"""
    cluster.patch(_model(name), edits.restart(now))
    return f"{name}: asked for new pods"


def _upgrade(name: str, cluster: Cluster, now: datetime) -> str:
    """roll out model NAME with this release's images and profiles"""
    patch = edits.upgrade(cluster.get(_model(name)))
    cluster.patch(_model(name), patch)
    return f"{name}: asked for template revision {patch['spec']['templateRevision']}"


def _why(name: str, cluster: Cluster, now: datetime) -> str:
    """say what model NAME, or batchjob/NAME, waits for"""
    kind, slash, rest = name.rpartition("/")
    return explain(cluster.get(f"{kind}.{GROUP}/{rest}" if slash else _model(name)), now)


def _model(name: str) -> str:
    return f"inferencemodels.{GROUP}/{name}"


_COMMANDS: dict[str, Callable[[str, Cluster, datetime], str]] = {
    "restart": _restart,
    "upgrade": _upgrade,
    "why": _why,
}


def _parser() -> argparse.ArgumentParser:
    program = "kubectl skirret" if Path(sys.argv[0]).name == "kubectl-skirret" else "skirret"
    parser = argparse.ArgumentParser(
        prog=program, description="Skirret from the command line, beside kubectl."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("serve", help="serve a model in this process (skirret serve --help)")
    batches.add_to(commands)
    keys.add_to(commands, _kubectl_flags)
    for name, command in _COMMANDS.items():
        subparser = commands.add_parser(name, help=command.__doc__, description=command.__doc__)
        subparser.add_argument("name", metavar="NAME")
        _kubectl_flags(subparser)
    return parser


def _kubectl_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--namespace", help="the context's own by default")
    parser.add_argument("--context", help="of the kubeconfig; the current one by default")
    parser.add_argument("--kubeconfig", help="a kubeconfig file; kubectl's own by default")
