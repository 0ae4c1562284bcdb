"""The nouns of the server, and the door between the API and whatever generates tokens.

The API knows an `Engine` only by this Protocol. The real one (`engine.engine`) and the scripted one
(`testing`) both implement it, and the same tests run against both.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

TokenId = int
Lane = Literal["interactive", "batch"]
FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. Ranges are checked by the API; the engine trusts them."""

    max_tokens: int
    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0
    top_k: int = -1  # -1: all
    min_p: float = 0.0
    seed: int | None = None
    frequency_penalty: float = 0.0  # penalties count generated tokens alone
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[TokenId, float] = field(default_factory=dict)
    stop_token_ids: frozenset[TokenId] = frozenset()  # beside the model's own end tokens
    min_tokens: int = 0  # until then neither end nor stop tokens are chosen
    ignore_eos: bool = False
    logprobs: int | None = None  # None: none; k: of the chosen token and the k likeliest
    prompt_logprobs: int | None = None  # the same for the prompt's tokens


@dataclass(frozen=True, slots=True)
class TokenSet:
    """Some tokens of the vocabulary: `ids`, or all but those, whichever are fewer."""

    ids: npt.NDArray[np.int64]
    are_excluded: bool = False


class Grammar(Protocol):
    """What may come next, for one sequence; the engine asks it before each token.

    It wins over every bias. When `is_complete` and nothing else is allowed but an end token,
    the sequence finishes with "stop".
    """

    def allowed(self) -> TokenSet:
        """The tokens that may follow; end tokens are among them where the text may end."""

    def accept(self, token: TokenId) -> None:
        """Takes a token that `allowed` held; never an end token."""

    def is_complete(self) -> bool: ...

    def guess(self, last: TokenId) -> tuple[TokenId, ...]:
        """Tokens that probably follow `last`, since the text has hardly another way to go on.

        They are computed before they are drawn. A wrong guess costs time and changes nothing.
        """

    def copy(self) -> Grammar: ...


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One sequence to generate. A request with n choices is n of these with one prompt."""

    id: str
    prompt: Sequence[TokenId]
    sampling: Sampling
    lane: Lane = "interactive"
    namespace: str = ""  # prefixes are shared within one alone (tenant, salt, LoRA)
    priority: int = 0  # within the lane; higher first
    batch_priority: int = 0  # of the batch it is a line of; before its deadline, and its priority
    deadline: float | None = None  # seconds since the epoch; orders the batch lane
    tenant: str = ""  # the batch lane is fair between these
    grammar: Grammar | None = None  # the engine's from now on: it moves with the answer
    blocks: Sequence[tuple[str, int]] = ()  # names of the prompt's beginnings, and their tokens


@dataclass(frozen=True, slots=True)
class Logprob:
    """Log-softmax of the raw logits: before temperature, penalties, bias and mask."""

    token: TokenId
    logprob: float
    top: tuple[tuple[TokenId, float], ...] = ()  # likeliest first


@dataclass(frozen=True, slots=True)
class Finish:
    reason: FinishReason
    stop_token: TokenId | None = None  # the end or stop token that was drawn, if one was


@dataclass(slots=True)
class Update:
    """What one engine step gave one sequence; or several, when the reader is slower than they.

    Not frozen, like all that is made for every token: a frozen one takes four times as long to
    make. Nobody changes it.
    """

    tokens: tuple[TokenId, ...]  # new ones, an end token included (it counts in usage)
    logprobs: tuple[Logprob, ...] = ()  # one for each of `tokens` when asked for
    cached_tokens: int = 0  # of the prompt, found in the cache; on the first update
    prompt_logprobs: tuple[Logprob | None, ...] | None = None  # on the first update when asked for
    finish: Finish | None = None


@dataclass(frozen=True, slots=True)
class Load:
    running: int
    waiting: int
    kv_usage: float  # 0..1: pages that running sequences hold


@dataclass(frozen=True, slots=True)
class Stats:
    """What /metrics and /status tell. Counts are totals since the start."""

    running: Mapping[Lane, int]
    waiting: Mapping[Lane, int]
    kv_usage: float  # 0..1: pages that running sequences hold
    held_pages: int = 0  # by running sequences
    grammars: int = 0  # of sequences, running and waiting
    cached_usage: float = 0.0  # 0..1: pages that hold reusable prefixes and may be evicted
    prompt_tokens: int = 0
    generation_tokens: int = 0
    cache_query_tokens: int = 0  # of prompts, looked up in the prefix cache
    cache_hit_tokens: int = 0
    evicted_tokens: int = 0
    retractions: int = 0  # running sequences put back to wait, for lack of pages or for the lane
    finished: Mapping[FinishReason, int] = field(default_factory=dict)
    aborted: int = 0
    jumped_tokens: int = 0  # of the generated, right guesses of grammars: they took no step
    failed: int = 0  # EngineError after the first update or in its place
    steps: int = 0
    step_seconds: float = 0.0
    step_running_seconds: float = 0.0  # of the step under way; 0 between steps


@dataclass(frozen=True, slots=True)
class CacheNews:
    """Which named beginnings of prompts the cache has come to have, and which it lost."""

    sequence: int  # of the last change that this tells of
    is_full: bool  # `stored` is all there is, whatever was told before
    stored: Sequence[str] = ()
    removed: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ModelInfo:
    vocab_size: int
    context_length: int  # tokens, prompt and answer together
    eos_token_ids: frozenset[TokenId]
    max_total_tokens: int  # of the KV cache: no sequence can be longer


class EngineError(Exception):
    """The engine can't go on with this request; the caller sees a 500 or an error event."""


class Refused(EngineError):
    """This can never be answered (too long, unknown token ids); the caller sees 400."""


class QueueFull(EngineError):
    """No room in the waiting queue; the caller sees 429."""


class Draining(EngineError):
    """The engine takes no new work; the caller sees 503."""


class Engine(Protocol):
    """Generates tokens for many requests at once."""

    @property
    def info(self) -> ModelInfo: ...

    def load(self) -> Load: ...

    def stats(self) -> Stats: ...

    def generate(self, request: GenerateRequest) -> AsyncIterator[Update]:
        """Updates until one carries `finish`. Closing the iterator early aborts the sequence.

        Raises Refused, QueueFull or Draining before the first update, EngineError after it.
        With `max_tokens` 0 the only update has no tokens and finish "length".
        """

    def cache_news(self, after: int) -> CacheNews:
        """What became of `GenerateRequest.blocks` since the change of that number."""

    async def flush_cache(self) -> bool:
        """Forgets every cached prefix; False, and nothing done, while sequences run or wait."""

    async def drain(self) -> None:
        """Takes no new work from now on; returns when the last sequence has ended."""

    async def close(self) -> None:
        """Ends every sequence with an error and stops. Safe to call twice."""
