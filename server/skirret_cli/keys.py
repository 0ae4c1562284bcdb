"""`skirret keys`: API keys as entries of the Secret that the gateway reads."""

from __future__ import annotations

import argparse
import json
import re
import sys
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from secrets import token_urlsafe
from typing import Any

import yaml

from skirret_api.tenants import ApiKey, parse_key
from skirret_cli.batches.words import columns
from skirret_cli.cluster import Cluster, ClusterError

SECRET = "skirret-keys"
_NAME = re.compile(r"[A-Za-z0-9][-._A-Za-z0-9]{0,62}")
_SPANS = {"h": 3600, "d": 86_400, "w": 604_800}


def add_to(commands: Any, kubectl_flags: Callable[[argparse.ArgumentParser], None]) -> None:
    about = "make, list and revoke API keys"
    keys = commands.add_parser("keys", help=about, description=about)
    verbs = keys.add_subparsers(dest="verb", required=True, metavar="VERB")
    about = "print a new key, once, and the Secret with its hash, for kubectl apply"
    create = verbs.add_parser("create", help=about, description=about)
    create.add_argument("name", metavar="NAME", type=_name)
    create.add_argument("--for", dest="owner", required=True, metavar="NAMESPACE")
    create.add_argument("--models", metavar="A,B", default="", help="all by default")
    create.add_argument(
        "--expires", metavar="90d", type=_span, help="hours, days or weeks: h, d, w"
    )
    for flag, about in (
        ("requests-per-minute", "that are answered"),
        ("tokens-per-minute", "of prompts and answers"),
        ("tokens-per-day", "of a day in UTC"),
        ("streams", "at once"),
    ):
        create.add_argument(f"--{flag}", type=_count, help=about)
    about = "list the keys there are; none is shown"
    listing = verbs.add_parser("ls", help=about, description=about)
    about = "take a key away; within a minute or two nobody is answered with it"
    revoke = verbs.add_parser("revoke", help=about, description=about)
    revoke.add_argument("name", metavar="NAME")
    for verb in (create, listing, revoke):
        verb.add_argument("--secret", default=SECRET, help="the chart's gateway.keysSecret")
        kubectl_flags(verb)


def run(options: argparse.Namespace, cluster: Cluster, now: datetime) -> int:
    try:
        _VERBS[options.verb](options, cluster, now)
    except ClusterError as error:
        print(f"skirret: {error}", file=sys.stderr)
        return 1
    return 0


def _create(options: argparse.Namespace, cluster: Cluster, now: datetime) -> None:
    """The key goes to standard error, so that the manifest can be piped on."""
    secret = f"sk-{token_urlsafe(32)}"
    key = ApiKey(
        sha256=sha256(secret.encode()).hexdigest(),
        namespace=options.owner,
        models=tuple(name for name in options.models.split(",") if name),
        expires=now + options.expires if options.expires else None,
        requests_per_minute=options.requests_per_minute,
        tokens_per_minute=options.tokens_per_minute,
        tokens_per_day=options.tokens_per_day,
        streams=options.streams,
    )
    print(yaml.safe_dump(manifest(options.name, key, options), sort_keys=False), end="")
    print(f"The key of {options.name}, shown this once: {secret}", file=sys.stderr)


def manifest(name: str, key: ApiKey, options: argparse.Namespace) -> dict[str, Any]:
    """Applied to a Secret with other keys, it leaves those as they are."""
    entry = key.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    place = {"namespace": options.namespace} if options.namespace else {}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": options.secret, **place},
        "type": "Opaque",
        "stringData": {name: json.dumps(entry)},
    }


def _ls(options: argparse.Namespace, cluster: Cluster, now: datetime) -> None:
    rows: list[Sequence[str]] = [
        ("NAME", "FOR", "MODELS", "REQ/MIN", "TOK/MIN", "TOK/DAY", "STREAMS", "EXPIRES")
    ]
    for name, data in sorted(_entries(cluster, options.secret).items()):
        try:
            rows.append(_row(name, parse_key(name, b64decode(data)), now))
        except ValueError as error:
            raise ClusterError(f"secret/{options.secret}: {error}") from error
    print(columns(rows))


def _row(name: str, key: ApiKey, now: datetime) -> tuple[str, ...]:
    limits = (key.requests_per_minute, key.tokens_per_minute, key.tokens_per_day, key.streams)
    expires = key.expires.astimezone(UTC).strftime("%Y-%m-%d %H:%M") if key.expires else "-"
    if key.expires and key.expires <= now:
        expires += " (expired)"
    told = ("-" if limit is None else str(limit) for limit in limits)
    return (name, key.namespace, ",".join(key.models) or "all", *told, expires)


def _revoke(options: argparse.Namespace, cluster: Cluster, now: datetime) -> None:
    if options.name not in _entries(cluster, options.secret):
        raise ClusterError(f"secret/{options.secret} has no key {options.name}")
    cluster.patch(f"secret/{options.secret}", {"data": {options.name: None}})
    print(f"{options.name}: revoked")


def _entries(cluster: Cluster, secret: str) -> Mapping[str, str]:
    found: Mapping[str, str] = cluster.get(f"secret/{secret}").get("data") or {}
    return found


_VERBS = {"create": _create, "ls": _ls, "revoke": _revoke}


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError("letters, digits, -, _ and . only, 63 at most")
    return text


def _count(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def _span(text: str) -> timedelta:
    if not re.fullmatch(r"[1-9]\d{0,5}[hdw]", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no time like 12h, 90d or 8w")
    return timedelta(seconds=int(text[:-1]) * _SPANS[text[-1]])
