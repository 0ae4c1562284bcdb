"""The operator's configuration file."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from skirret_api.config import OperatorConfig, read_config
from skirret_api.parts import Object

LEAST: Object = {
    "namespaces": ["team-a"],
    "releaseNamespace": "skirret",
    "gatewayUrl": "http://skirret-gateway.skirret.svc:8080",
    "images": {"server": "skirret-server:1", "batch": "skirret:1"},
}


def test_a_short_file_is_enough(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "namespaces: [team-a]\nreleaseNamespace: skirret\ngatewayUrl: http://gateway:8080\n"
        "images: {server: a, batch: b}\n"
    )
    assert read_config(file).timings.resync_seconds == 60


def test_a_typo_is_refused_by_name() -> None:
    with pytest.raises(ValidationError, match="profles"):
        OperatorConfig.model_validate({**LEAST, "profles": {}})


def test_a_typo_in_a_profile_is_refused_by_name() -> None:
    profiles = {"cpu": {"server": {"contextLenght": 1}}}
    with pytest.raises(ValidationError, match="contextLenght"):
        OperatorConfig.model_validate({**LEAST, "profiles": profiles})


def test_the_default_profile_must_exist() -> None:
    with pytest.raises(ValidationError, match="no profile is named 'gpu'; there are: cpu"):
        OperatorConfig.model_validate({**LEAST, "profiles": {"cpu": {}}, "defaultProfile": "gpu"})
