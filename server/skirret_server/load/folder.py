"""A model's folder: its configuration files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from skirret_server.core import TokenId
from skirret_server.load.errors import BrokenCheckpoint, SourceNotFound


def config(folder: Path) -> dict[str, Any]:
    """`config.json`. Raises SourceNotFound or BrokenCheckpoint."""
    if not folder.is_dir():
        raise SourceNotFound(f"{folder} is not a folder")
    return _json(folder / "config.json") or _no_model(folder)


def end_tokens(folder: Path) -> frozenset[TokenId]:
    """Every token that ends an answer, as `generation_config.json` and `config.json` name them."""
    named: set[TokenId] = set()
    for name in ("generation_config.json", "config.json"):
        ids = (_json(folder / name) or {}).get("eos_token_id")
        if ids is not None:
            named.update(ids if isinstance(ids, list) else [ids])
    return frozenset(named)


def _json(path: Path) -> dict[str, Any] | None:
    """None where there is no such file."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise BrokenCheckpoint(f"{path.name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BrokenCheckpoint(f"{path.name} is not a JSON object")
    return value


def _no_model(folder: Path) -> dict[str, Any]:
    raise SourceNotFound(f"{folder} has no config.json; give the folder of a Hugging Face model")
