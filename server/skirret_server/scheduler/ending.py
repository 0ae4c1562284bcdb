"""When a sequence ends: the rule that every engine shares."""

from __future__ import annotations

from collections.abc import Set

from skirret_server.core import Finish, Sampling, TokenId


def finish_of(
    token: TokenId, generated: int, sampling: Sampling, end_tokens: Set[TokenId]
) -> Finish | None:
    """How `token`, the last of `generated` tokens, ends its sequence, if it does."""
    if generated >= sampling.min_tokens:
        if token in sampling.stop_token_ids:
            return Finish("stop", token)
        if token in end_tokens and not sampling.ignore_eos:
            return Finish("stop", token)
    if generated >= sampling.max_tokens:
        return Finish("length")
    return None
