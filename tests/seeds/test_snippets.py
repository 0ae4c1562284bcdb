"""Every snippet of the documents this product is made from, unchanged but for URL and model name.

They run in the order of the page, in one namespace as a notebook's cells do, against the embedded
server with the small model.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from skirret_server import notebook

SNIPPETS = Path(__file__).parent / "snippets"
THEIR_MODEL = "meta-llama/Meta-Llama-3.1-8B-Instruct"
MODEL = Path(os.environ.get("SKIRRET_CACHE", ".cache")) / "models/smollm2"

pytestmark = pytest.mark.model


class Notebook:
    def __init__(self, port: int, model: str) -> None:
        self.port = port
        self.model = model
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.printed: list[str] = []

    def run(self, snippet: str) -> None:
        text = (SNIPPETS / f"{snippet}.snippet").read_text()
        text = text.replace("30000", str(self.port)).replace("0.0.0.0", "127.0.0.1")
        before = self.names.get("client")
        exec(compile(text.replace(THEIR_MODEL, self.model), snippet, "exec"), self.names)
        if before is not None and before is not self.names["client"]:
            before.close()

    def said(self) -> str:
        text, self.printed[:] = "\n".join(self.printed), []
        return text


def nap(seconds: float, sleep: Callable[[float], None] = time.sleep) -> None:
    """A small model has done more in less."""
    sleep(seconds / 5)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """The page's first cell has run: a server is up, started as the documents start theirs."""
    book = Notebook(notebook.free_port(), str(MODEL.resolve()))
    utils = ModuleType("sglang.utils")
    utils.__dict__.update(
        # Some snippets set no max_tokens, and a small model at temperature 1 may never stop.
        execute_shell_command=lambda command: notebook.execute_shell_command(
            f"{command} --context-length 640 --max-total-tokens 16384 --max-answer-tokens 48"
        ),
        wait_for_server=notebook.wait_for_server,
        terminate_process=notebook.terminate_process,
        print_highlight=lambda text: book.printed.append(str(text)),
    )
    sys.modules["sglang"] = ModuleType("sglang")
    sys.modules["sglang.utils"] = utils
    before = Path.cwd()
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(time, "sleep", nap)
    os.chdir(tmp_path_factory.mktemp("notebook"))
    try:
        book.run("launch")
        yield book
        book.run("terminate")
        book.names["client"].close()
    finally:
        monkeypatch.undo()
        os.chdir(before)
        del sys.modules["sglang.utils"], sys.modules["sglang"]


def test_chat(page: Notebook) -> None:
    page.run("chat")
    assert page.names["response"].choices[0].message.content
    assert "Response: ChatCompletion(" in page.said()


def test_detailed_chat(page: Notebook) -> None:
    page.run("chat_detailed")
    assert page.said()


def test_streamed_chat(page: Notebook, capsys: pytest.CaptureFixture[str]) -> None:
    page.run("chat_stream")
    assert capsys.readouterr().out


def test_completion(page: Notebook) -> None:
    page.run("completion")
    assert page.names["response"].choices[0].text


def test_detailed_completion(page: Notebook) -> None:
    page.run("completion_detailed")
    assert "\n\n" not in page.names["response"].choices[0].text


def test_json_by_schema(page: Notebook) -> None:
    page.said()
    page.run("json_schema")
    capital = json.loads(page.said())
    assert set(capital) == {"name", "population"}
    assert isinstance(capital["population"], int)


def test_regular_expression(page: Notebook) -> None:
    page.run("regex")
    assert page.said() in ("Paris", "London")


def test_batch_to_its_end(page: Notebook, capsys: pytest.CaptureFixture[str]) -> None:
    page.run("batch_create")
    page.run("batch_wait")
    assert "Batch job completed successfully!" in capsys.readouterr().out
    said = page.said()
    assert "Request request-1:" in said
    assert "Request request-2:" in said


def test_batch_status(page: Notebook) -> None:
    page.run("batch_status")
    assert "Request counts: Total: 100" in page.said()
    page.names["client"].batches.cancel(page.names["batch_job"].id)


def test_batch_cancel(page: Notebook) -> None:
    page.run("batch_cancel")
    said = page.said()
    assert "Batch job successfully cancelled" in said
    assert "Successfully cleaned up input file" in said
