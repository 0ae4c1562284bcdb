"""How many tokens of prompts a namespace's batches may have before they are answered.

What ends gives its tokens back, however it ends: only live batches count.
"""

from __future__ import annotations

from collections.abc import Iterable

from skirret_batch.plan import TOKENS_PER_BYTE
from skirret_batch.record import Record

_SURELY = 0.5  # of what a file's size suggests: the rest may be JSON


def surely_over(size: int, live: Iterable[Record], most: int) -> bool:
    """Before anybody has read an input of `size` bytes."""
    enqueued = sum(record.input_tokens for record in live)
    return enqueued + size * TOKENS_PER_BYTE * _SURELY > most


def is_over(record: Record, live: Iterable[Record], most: int) -> bool:
    """Whether a batch whose tokens are known must give way to others.

    Of those that are validated at once the older one stays, so not all of them may give way.
    """
    before = sum(
        other.input_tokens
        for other in live
        if other.id != record.id
        and (other.batch.status != "validating" or other.id > record.id)  # older ids are larger
    )
    return before + record.input_tokens > most


def message(most: int) -> str:
    return (
        f"Enqueued token limit reached. Limit: {most:,} enqueued tokens. Please try again once "
        "some in_progress batches have been completed."
    )
