"""Stand-ins for tests: an engine that follows a script, and a tiny random model on disk."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from skirret_server.cache.journal import Journal
from skirret_server.core import (
    CacheNews,
    Draining,
    EngineError,
    Finish,
    FinishReason,
    GenerateRequest,
    Load,
    Logprob,
    ModelInfo,
    Stats,
    TokenId,
    Update,
)
from skirret_server.scheduler.ending import finish_of

# Of the tiny model's tokenizer, ids 0 to 255 are the bytes of that value, so `b"text"` is both a
# text and its tokens; then come its merges, then these.
TINY_MERGES = ("he", "in", "er", "on", "an", " t", " a", "re", "is", " the", "and", "ing", "ion")
TINY_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
END_OF_TEXT, IM_START, IM_END, THINK, END_THINK = (
    256 + len(TINY_MERGES) + index for index in range(len(TINY_SPECIALS))
)
TINY_VOCABULARY = 256 + len(TINY_MERGES) + len(TINY_SPECIALS)
TINY_CONTEXT = 2048


@dataclass(frozen=True, slots=True)
class Script:
    """What a ScriptedEngine answers to one request."""

    tokens: Sequence[TokenId] = b"ok"  # bytes are tokens of the tiny model
    ends: TokenId | None = IM_END  # drawn after the last of `tokens`; None: go on with zeros
    per_update: int = 1  # tokens in one update
    cached_tokens: int = 0
    fails_after: int | None = None  # tokens; then an EngineError
    waits_after: int | None = None  # tokens; then until `gate` is set
    gate: asyncio.Event | None = None


class ScriptedEngine:
    """An Engine without a model. `answer` is a script, or chooses one for each request.

    Limits, end and stop tokens are honoured; logprobs are made up but shaped as asked.
    """

    def __init__(
        self,
        answer: Script | Callable[[GenerateRequest], Script] | None = None,
        info: ModelInfo | None = None,
    ) -> None:
        self.answer = answer or Script()
        self.refusal: EngineError | None = None  # raised before the first update of new requests
        self.requests: list[GenerateRequest] = []  # every request that was let in, oldest first
        self.aborted = 0
        self.failed = 0
        self.finished: Counter[FinishReason] = Counter()
        self.running: set[str] = set()
        self.closed = False
        self.journal = Journal()
        self._info = info or ModelInfo(
            vocab_size=TINY_VOCABULARY,
            context_length=TINY_CONTEXT,
            eos_token_ids=frozenset({END_OF_TEXT, IM_END}),
            max_total_tokens=4 * TINY_CONTEXT,
        )
        self._idle = asyncio.Event()
        self._idle.set()
        self._prompt_tokens = 0
        self._generation_tokens = 0

    @property
    def info(self) -> ModelInfo:
        return self._info

    def load(self) -> Load:
        return Load(running=len(self.running), waiting=0, kv_usage=0.0)

    def stats(self) -> Stats:
        return Stats(
            running={"interactive": len(self.running), "batch": 0},
            waiting={"interactive": 0, "batch": 0},
            kv_usage=0.0,
            grammars=sum(r.grammar is not None for r in self.requests if r.id in self.running),
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            finished=dict(self.finished),
            aborted=self.aborted,
            failed=self.failed,
        )

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Update]:
        if self.refusal is not None:
            raise self.refusal
        self.requests.append(request)
        self.running.add(request.id)
        self._idle.clear()
        self._prompt_tokens += len(request.prompt)
        script = self.answer if isinstance(self.answer, Script) else self.answer(request)
        ended = False
        try:
            async for update in self._updates(request, script):
                ended = update.finish is not None
                if update.finish is not None:
                    self.finished[update.finish.reason] += 1
                self._generation_tokens += len(update.tokens)
                yield update
        except EngineError:
            ended = True
            self.failed += 1
            raise
        finally:
            self.aborted += not ended
            self.running.discard(request.id)
            if not self.running:
                self._idle.set()

    def cache_news(self, after: int) -> CacheNews:
        return self.journal.since(after)

    async def flush_cache(self) -> bool:
        return not self.running

    async def drain(self) -> None:
        self.refusal = Draining("the engine is draining")
        await self._idle.wait()

    async def close(self) -> None:
        self.refusal = EngineError("the engine is closed")
        self.closed = True

    async def _updates(self, request: GenerateRequest, script: Script) -> AsyncIterator[Update]:
        sampling, sent, finish = request.sampling, 0, None
        while finish is None:
            await asyncio.sleep(0)
            if self.closed or sent == script.fails_after:
                raise EngineError("the script says so" if not self.closed else "closed")
            if sent == script.waits_after and script.gate is not None:
                await script.gate.wait()
            tokens: list[TokenId] = []
            if sampling.max_tokens == 0:
                finish = Finish("length")
            while finish is None and len(tokens) < script.per_update:
                token = self._token(script, sent)
                sent += 1
                tokens.append(token)
                finish = finish_of(token, sent, sampling, self._info.eos_token_ids)
                if sent in (script.fails_after, script.waits_after):
                    break
            is_first = sent == len(tokens)
            yield Update(
                tokens=tuple(tokens),
                logprobs=_made_up(tokens, sampling.logprobs),
                cached_tokens=script.cached_tokens if is_first else 0,
                prompt_logprobs=(
                    (None, *_made_up(request.prompt[1:], sampling.prompt_logprobs))
                    if is_first and sampling.prompt_logprobs is not None
                    else None
                ),
                finish=finish,
            )

    def _token(self, script: Script, index: int) -> TokenId:
        if index < len(script.tokens):
            return script.tokens[index]
        return 0 if script.ends is None else script.ends


def tiny_model(folder: Path, *, shards: int = 1, seed: int = 0) -> Path:
    """Writes a two-layer random Llama with a byte-level tokenizer and a chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", _TINY_CONFIG)
    _write_json(
        folder / "generation_config.json",
        {"bos_token_id": IM_START, "eos_token_id": [IM_END, END_OF_TEXT]},
    )
    _write_json(folder / "tokenizer_config.json", _TINY_TOKENIZER_CONFIG)
    _write_tokenizer(folder / "tokenizer.json")
    _write_weights(folder, shards, seed)
    return folder


CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_TINY_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": TINY_VOCABULARY,
    "hidden_size": 96,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "max_position_embeddings": TINY_CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": IM_START,
    "eos_token_id": IM_END,
    "dtype": "float32",
}

_TINY_TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<|im_start|>",
    "eos_token": "<|im_end|>",
    "unk_token": "<|endoftext|>",
    "model_max_length": TINY_CONTEXT,
    "clean_up_tokenization_spaces": False,
    "chat_template": CHAT_TEMPLATE,
}


def _made_up(tokens: Sequence[TokenId], top: int | None) -> tuple[Logprob, ...]:
    if top is None:
        return ()
    return tuple(
        Logprob(token, -0.5, tuple(((token + k) % TINY_VOCABULARY, -0.5 - k) for k in range(top)))
        for token in tokens
    )


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")


def _write_tokenizer(path: Path) -> None:
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.decoders import ByteLevel as ByteLevelDecoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    letters = _byte_letters()
    spelled = ["".join(letters[byte] for byte in merge.encode()) for merge in TINY_MERGES]
    vocabulary = {token: index for index, token in enumerate([*letters, *spelled])}
    merges = [_halves(token, vocabulary) for token in spelled]
    tokenizer = Tokenizer(BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in TINY_SPECIALS])
    tokenizer.save(str(path))


def _halves(token: str, vocabulary: dict[str, int]) -> tuple[str, str]:
    """The pair of earlier tokens that makes `token`."""
    return next(
        (token[:cut], token[cut:])
        for cut in range(len(token) - 1, 0, -1)
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    )


def _byte_letters() -> list[str]:
    """The letter that byte-level BPE writes for each byte: itself where it can be printed."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _write_weights(folder: Path, shards: int, seed: int) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    random = np.random.default_rng(seed)
    weights = {
        name: random.normal(1.0 if len(shape) == 1 else 0.0, 0.1, shape).astype(np.float32)
        for name, shape in _tiny_shapes().items()
    }
    if shards == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        names = list(weights)[shard::shards]
        save_file({n: weights[n] for n in names}, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
    _write_json(folder / "model.safetensors.index.json", {"weight_map": weight_map})


def _tiny_shapes() -> dict[str, tuple[int, ...]]:
    hidden, mlp, kv = 96, 192, 2 * 16
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (TINY_VOCABULARY, hidden)}
    for layer in (f"model.layers.{index}." for index in range(2)):
        shapes |= {
            layer + "input_layernorm.weight": (hidden,),
            layer + "self_attn.q_proj.weight": (hidden, hidden),
            layer + "self_attn.k_proj.weight": (kv, hidden),
            layer + "self_attn.v_proj.weight": (kv, hidden),
            layer + "self_attn.o_proj.weight": (hidden, hidden),
            layer + "post_attention_layernorm.weight": (hidden,),
            layer + "mlp.gate_proj.weight": (mlp, hidden),
            layer + "mlp.up_proj.weight": (mlp, hidden),
            layer + "mlp.down_proj.weight": (hidden, mlp),
        }
    return shapes | {"model.norm.weight": (hidden,), "lm_head.weight": (TINY_VOCABULARY, hidden)}
