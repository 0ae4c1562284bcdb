"""The layout that keeps `operator/` harmless and the map honest."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {"crds", "operator", "server"}


def test_an_interpreter_started_at_the_root_finds_the_standard_operator() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import collections, operator; print(operator.__file__)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert not done.stdout.startswith(str(ROOT / "operator"))


@pytest.mark.parametrize("folder", sorted(PACKAGES))
def test_top_level_folders_hold_packages_never_modules(folder: str) -> None:
    assert list((ROOT / folder).glob("*.py")) == []


def test_test_folders_are_no_packages() -> None:
    assert [
        *(ROOT / "tests").rglob("__init__.py"),
        *(ROOT / "e2e/tests").rglob("__init__.py"),
    ] == []


def test_every_path_named_by_the_architecture_page_exists() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    named = re.findall(
        r"`((?:crds|operator|server|charts|docker|tests|e2e|docs|benchmarks)/[^`*{}]+)`", page
    )
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_relative_link_of_a_document_leads_somewhere() -> None:
    broken = []
    for page in [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "charts").rglob("*.md"),
    ]:
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", page.read_text()):
            if not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)} -> {target}")
    assert broken == []
