"""A layout in a folder of the test's own, with the certificates a cluster would have."""

from __future__ import annotations

from pathlib import Path

import pytest

from skirret_local import certificates
from skirret_local.layout import Layout
from skirret_local.network import first_nodes


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


@pytest.fixture
def certified(layout: Layout) -> Layout:
    certificates.make(layout.certificates, certificates.certificates(first_nodes(2)))
    return layout
