"""One sequence on its way through the engine, and the step that moves it."""

from __future__ import annotations

from array import array
from copy import copy
from dataclasses import dataclass

from skirret_server.cache.prefix import Holding
from skirret_server.core import GenerateRequest, Lane, Logprob, TokenId

LANES: tuple[Lane, ...] = ("interactive", "batch")


class Sequence:
    """What is known of one request's tokens.

    [0, cached)        KV found in the tree when it was first admitted
    [0, computed)      KV is in the pages of `holding`
    [computed, length) to be computed: the rest of the prompt, or the token drawn last
    """

    __slots__ = (
        "arrival",
        "cached",
        "computed",
        "grammar",
        "guess",
        "holding",
        "number",
        "prompt_length",
        "request",
        "seed",
        "tokens",
    )

    def __init__(self, request: GenerateRequest, number: int, arrival: float, seed: int) -> None:
        self.request = request
        self.number = number  # in order of arrival
        self.arrival = arrival
        self.seed = seed
        self.grammar = request.grammar
        self.guess: tuple[TokenId, ...] = ()  # what its grammar expects after the last token
        self.tokens = array("i", request.prompt)
        self.prompt_length = len(request.prompt)
        self.computed = 0
        self.cached: int | None = None  # None until first admitted
        self.holding: Holding | None = None  # None while waiting

    def after(self, guessed: tuple[TokenId, ...]) -> Sequence:
        """As it would be had these been drawn: for the sampler alone."""
        assert self.grammar is not None, "only grammars guess"
        made = copy(self)
        made.tokens = self.tokens + array("i", guessed)
        made.grammar = self.grammar.copy()
        for token in guessed:
            made.grammar.accept(token)
        return made

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def remaining(self) -> int:
        return len(self.tokens) - self.computed

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def is_decoding(self) -> bool:
        computed = self.computed
        return computed > 0 and len(self.tokens) - computed == 1

    @property
    def capacity(self) -> int:
        """The most tokens it can ever have."""
        return self.prompt_length + self.request.sampling.max_tokens

    @property
    def reusable(self) -> int:
        """Leading tokens whose KV may come from the cache.

        The last token's never does: its logits are wanted. With `prompt_logprobs`, all are.
        """
        return 0 if self.request.sampling.prompt_logprobs is not None else self.length - 1

    @property
    def rank(self) -> tuple[int, int, int, int]:
        """Its claim to go on: the highest rank is retracted first."""
        request = self.request
        lane = LANES.index(request.lane)
        # Within the lane only: no batch is as urgent as a person.
        return (lane, -request.batch_priority, -request.priority, self.number)


@dataclass(slots=True, eq=False)  # not frozen, as `core.Update`
class Row:
    """Tokens [start, start + count) of one sequence, computed in one step; the last are guessed."""

    sequence: Sequence
    start: int
    count: int
    samples: bool  # they reach the end, so the next token is drawn
    guess: tuple[TokenId, ...] = ()

    @property
    def tokens(self) -> array[TokenId]:
        own = self.sequence.tokens[self.start : self.start + self.count]
        return own + array("i", self.guess) if self.guess else own


@dataclass(frozen=True, slots=True)
class Step:
    """What the model computes at once: next tokens of some, pieces of the prompts of others."""

    rows: tuple[Row, ...]

    @property
    def tokens(self) -> int:
        return sum(row.count for row in self.rows)


@dataclass(slots=True)  # not frozen, as `core.Update`
class Outcome:
    """What a step gave one row."""

    token: TokenId | None = None  # when the row samples
    logprob: Logprob | None = None  # of `token`, when asked for
    prompt_logprobs: tuple[Logprob, ...] = ()  # when asked for: of the prompt's tokens after each
    error: str | None = None  # this sequence alone can't go on
    then: tuple[Outcome, ...] = ()  # drawn after `token`, as far as the row's guess was right
