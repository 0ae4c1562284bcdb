"""A model that computes nothing: every step takes a fixed time, and every token is a word.

What front, scheduler and cache can carry, without the model in the way. No server that is released
can run it: `python -m skirret_server serve` does not know the backend's name.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from skirret_api.launch import LaunchSettings
from skirret_server import engine, model
from skirret_server.core import ModelInfo, TokenId
from skirret_server.load import folder as files
from skirret_server.load.fit import Size
from skirret_server.load.progress import Progress
from skirret_server.scheduler.sequence import Outcome, Step
from skirret_server.serve import Loaded
from skirret_server.text.tokenizer import Tokenizer

_TOKENS = 1 << 18  # of the KV cache that isn't there, unless --max-total-tokens says otherwise
STEP_SECONDS = 0.005


class NullRunner:
    """Sleeps through its steps, as the host does while a GPU computes."""

    def __init__(self, words: Sequence[TokenId], seconds: float = STEP_SECONDS) -> None:
        self._words = words
        self._seconds = seconds

    def run(self, step: Step) -> list[Outcome]:
        began = time.monotonic()
        words = self._words
        outcomes = [
            Outcome(words[row.sequence.length % len(words)] if row.samples else None)
            for row in step.rows
        ]
        time.sleep(max(0.0, began + self._seconds - time.monotonic()))
        return outcomes

    def wipe(self, pages: list[int]) -> None:
        """There are none."""


def load(settings: LaunchSettings, progress: Progress) -> Loaded:
    """Reads tokenizer and config of a model's folder, and none of its weights."""
    progress.begin("checking")
    folder = Path(settings.model_path)
    description = model.describe(files.config(folder))
    pages = (settings.max_total_tokens or _TOKENS) // settings.page_size
    size = Size(pages, min(settings.context_length or description.context, _TOKENS))
    info = ModelInfo(
        vocab_size=description.vocabulary,
        context_length=size.context,
        eos_token_ids=files.end_tokens(folder),
        max_total_tokens=pages * settings.page_size,
    )
    runner = NullRunner(words(Tokenizer.load(folder)))
    return Loaded(folder, engine.assembled(settings, size, runner, info))


def words(tokenizer: Tokenizer) -> list[TokenId]:
    """Tokens that are a whole word each, so that every one of them is an event."""
    each = enumerate(tokenizer.all_bytes)
    found = [token for token, data in each if data[:1] == b" " and data[1:].isalpha()]
    return found[:1000] or list(range(ord("a"), ord("z") + 1))
