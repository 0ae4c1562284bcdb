"""The documents say of every parameter what the parser does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from skirret_server.api.parameters import CHAT, COMPLETION, DETOKENIZE, GENERATE, TOKENIZE
from skirret_server.api.reference import PAGES, fresh

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("page", PAGES)
def test_the_tables_of_a_document_are_the_parsers(page: str) -> None:
    text = (ROOT / page).read_text()
    assert "<!-- parser: " in text
    assert fresh(text) == text, "run `make generate`"


def test_the_page_has_every_parameter_of_every_route() -> None:
    text = (ROOT / "docs/openai-compatibility.md").read_text()
    shown = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    for table in (CHAT, COMPLETION, GENERATE, TOKENIZE, DETOKENIZE):
        assert set(table) <= shown
