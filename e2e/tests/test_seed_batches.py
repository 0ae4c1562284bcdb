"""The documents' batch scripts, unchanged but for URL and model name, against the gateway."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skirret_local.installation import Site

SNIPPETS = Path(__file__).parents[2] / "tests/seeds/snippets"
THEIR_URL = "http://127.0.0.1:30000/v1"
THEIR_MODEL = "meta-llama/Meta-Llama-3.1-8B-Instruct"


class Page:
    """Runs scripts in one namespace, as a notebook's cells do."""

    def __init__(self, url: str, model: str) -> None:
        self._replaced = {THEIR_URL: f"{url}/v1", THEIR_MODEL: model}
        self.said: list[str] = []
        self.names: dict[str, Any] = {
            "__name__": "__main__",
            "print_highlight": lambda text: self.said.append(str(text)),
        }

    def run(self, snippet: str) -> None:
        text = (SNIPPETS / f"{snippet}.snippet").read_text()
        for theirs, ours in self._replaced.items():
            text = text.replace(theirs, ours)
        exec(compile(text, snippet, "exec"), self.names)


@pytest.fixture
def page(site: Site, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    monkeypatch.chdir(tmp_path)
    page = Page(site.gateway(), model)
    yield page
    page.names["client"].close()


def test_a_batch_is_created_awaited_and_read(
    page: Page, capsys: pytest.CaptureFixture[str]
) -> None:
    page.run("batch_create")
    page.run("batch_wait")
    assert "Batch job completed successfully!" in capsys.readouterr().out
    assert {"Request request-1:", "Request request-2:"} <= set(page.said)


def test_a_batch_is_cancelled_and_its_input_deleted(page: Page) -> None:
    """The small model on a few cores takes far longer than the script waits before it cancels."""
    page.run("batch_cancel")
    assert "Batch job successfully cancelled" in page.said
    assert "Successfully cleaned up input file" in page.said


@pytest.mark.full
def test_the_status_of_a_batch_is_looked_at_five_times(page: Page) -> None:
    page.run("batch_status")
    assert sum("Total: 100" in line for line in page.said) == 5
    page.names["client"].batches.cancel(page.names["batch_job"].id)
