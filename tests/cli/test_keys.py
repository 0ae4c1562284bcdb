"""`skirret keys`: what it prints is what the gateway reads, and no key is seen twice."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from skirret_api.tenants import read_keys
from skirret_cli import keys
from skirret_cli.command import _parser, main

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


class OneSecret:
    """A Cluster with the Secret of the keys."""

    def __init__(self, **entries: Mapping[str, Any]) -> None:
        self.entries = {
            name: b64encode(json.dumps(entry).encode()).decode() for name, entry in entries.items()
        }
        self.patches: list[tuple[str, Mapping[str, Any]]] = []

    def get(self, target: str) -> dict[str, Any]:
        assert target == "secret/skirret-keys"
        return {"data": self.entries}

    def patch(self, target: str, patch: Mapping[str, Any]) -> None:
        self.patches.append((target, patch))


def run(cluster: OneSecret, *arguments: str) -> int:
    return keys.run(_parser().parse_args(["keys", *arguments]), cluster, NOW)


def test_what_is_created_is_what_the_gateway_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(
        OneSecret(), "create", "ann", "--for", "team", "--models", "a,team/b", "--expires", "90d",
        "--requests-per-minute", "60", "--tokens-per-day", "1000", "-n", "skirret",
    ) == 0  # fmt: skip
    printed = capsys.readouterr()
    secret = yaml.safe_load(printed.out)
    assert secret["metadata"] == {"name": "skirret-keys", "namespace": "skirret"}
    (tmp_path / "ann").write_text(secret["stringData"]["ann"])
    shown = printed.err.split()[-1]
    key = read_keys(tmp_path)[sha256(shown.encode()).digest()]
    assert (key.name, key.namespace, key.models) == ("ann", "team", ("a", "team/b"))
    assert key.expires == NOW + timedelta(days=90)
    assert (key.requests_per_minute, key.tokens_per_minute, key.tokens_per_day) == (60, None, 1000)


def test_the_key_itself_is_not_in_the_manifest(capsys: pytest.CaptureFixture[str]) -> None:
    run(OneSecret(), "create", "ann", "--for", "team")
    printed = capsys.readouterr()
    assert printed.err.split()[-1] not in printed.out


def test_no_two_keys_are_alike(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        run(OneSecret(), "create", "ann", "--for", "team")
    first, second = capsys.readouterr().err.splitlines()
    assert first != second


def test_keys_are_listed_with_their_limits(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = OneSecret(
        bob={"sha256": "0" * 64, "namespace": "team", "expires": "2026-01-01T00:00:00Z"},
        ann={"sha256": "1" * 64, "namespace": "team", "models": ["m"], "streams": 3},
    )
    assert run(cluster, "ls") == 0
    heading, ann, bob = capsys.readouterr().out.splitlines()
    assert heading.split()[:3] == ["NAME", "FOR", "MODELS"]
    assert ann.split() == ["ann", "team", "m", "-", "-", "-", "3", "-"]
    assert bob.endswith("2026-01-01 00:00 (expired)")
    assert "000" not in bob.replace("00:00", "")


def test_a_revoked_key_is_taken_out_of_the_secret() -> None:
    cluster = OneSecret(ann={"sha256": "1" * 64, "namespace": "team"})
    assert run(cluster, "revoke", "ann") == 0
    assert cluster.patches == [("secret/skirret-keys", {"data": {"ann": None}})]


def test_a_key_that_is_not_there_can_not_be_revoked(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(OneSecret(), "revoke", "ann") == 1
    assert "has no key ann" in capsys.readouterr().err


def test_an_entry_that_is_no_key_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(OneSecret(ann={"sha256": "1"}), "ls") == 1
    assert "ann is no API key" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [["--expires", "soon"], ["--requests-per-minute", "0"], ["--streams", "x"], []],
)
def test_what_makes_no_sense_is_refused(flags: list[str]) -> None:
    owner = ["--for", "team"] if flags else []
    with pytest.raises(SystemExit):
        main(["keys", "create", "ann", *owner, *flags])


def test_a_name_that_no_secret_can_have_is_refused() -> None:
    with pytest.raises(SystemExit):
        main(["keys", "create", "a/b", "--for", "team"])
