"""The local Kubernetes by hand: python -m skirret_local COMMAND."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from skirret_local import cluster
from skirret_local.errors import LocalError
from skirret_local.progress import fail


def main(arguments: list[str]) -> int:
    given = _parser().parse_args(arguments)
    match given.command:
        case "prepare":
            cluster.prepare()
        case "up":
            cluster.up(nodes=given.nodes, gpus=given.gpus)
        case "down":
            cluster.down()
        case "status":
            found = cluster.status()
            width = max(map(len, found), default=0)
            print("\n".join(f"{name:{width}}  {state}" for name, state in found.items()) or "down")
            return 0 if found and all(x.startswith("up") for x in found.values()) else 1
        case "info":
            print(json.dumps(dataclasses.asdict(cluster.info()), default=str, indent=1))
        case "kubeconfig":
            print(cluster.info().kubeconfig)
        case "images":
            print(cluster.build_images())
        case "namespace":
            cluster.namespace(given.name)
        case "volumes":
            cluster.volumes(given.name)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m skirret_local", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("prepare", help="install and build what a cluster needs")
    up = commands.add_parser("up", help="have the cluster run; again after a crash, too")
    up.add_argument("--nodes", type=int, help="how many; as before, or 1")
    up.add_argument("--gpus", type=int, help="pretend GPUs on each node; as before, or 0")
    commands.add_parser("down", help="end it and leave nothing behind")
    commands.add_parser("status", help="how each component is; exit code 1 unless all are up")
    commands.add_parser("info", help="how to reach it, as JSON, with the store's keys")
    commands.add_parser("kubeconfig", help="the path of its kubeconfig")
    commands.add_parser("images", help="build the image of the present code and load it")
    for name, text in (
        ("namespace", "make a namespace that enforces Pod Security restricted"),
        ("volumes", "make the claims site-packages and models in a namespace"),
    ):
        commands.add_parser(name, help=text).add_argument("name", metavar="NAMESPACE")
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except LocalError as error:
        fail(str(error))
    except KeyboardInterrupt:
        fail("stopped; the same command goes on from here, `down` removes what there is")
