"""The routing table from a file, for servers that no Kubernetes knows: model name → base URLs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from skirret_api.meta import RoutingStrategy
from skirret_gateway.table import Model, ModelId, Replica, Slice, Table, build

_PORTS = {"http": 80, "https": 443}


class BadFile(ValueError):
    """The file says nonsense; the message names what and where."""


def read(path: Path, strategy: RoutingStrategy) -> Table:
    """Raises OSError or BadFile."""
    text = path.read_text()
    created = int(path.stat().st_mtime)
    try:
        content = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        raise BadFile(f"{path}: {error}") from error
    if not isinstance(content, dict):
        raise BadFile(f"{path}: must be a mapping of model names to lists of base URLs")
    servers = {
        ModelId("", str(name)): _replicas(path, name, urls) for name, urls in content.items()
    }
    models = [Model(model, created, (model.name,), strategy) for model in servers]
    return build(models, [Slice(model, replicas) for model, replicas in servers.items()])


def _replicas(path: Path, name: object, urls: Any) -> tuple[Replica, ...]:
    if not isinstance(urls, list):
        raise BadFile(
            f"{path}: {name}: must be a list of base URLs; an empty one for no server yet"
        )
    return tuple(_replica(path, name, url) for url in urls)


def _replica(path: Path, name: object, url: Any) -> Replica:
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
        if not parts.hostname or parts.query or parts.username:
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadFile(f"{path}: {name}: {url!r} is no base URL like http://host:port") from None
    prefix = parts.path.rstrip("/").removesuffix("/v1")  # requests bring it
    return Replica(parts.hostname, port, tls=parts.scheme == "https", path=prefix)
