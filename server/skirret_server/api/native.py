"""SGLang's own routes: /generate, /tokenize and their companions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

from skirret_api import __version__
from skirret_api.errors import InvalidRequest
from skirret_server.api import wire
from skirret_server.api.answer import EventStream, Reply
from skirret_server.api.asks import (
    chat_ask,
    check_min_tokens,
    check_token_ids,
    sampling_of,
    stop_patterns,
    text_rules,
)
from skirret_server.api.completions import Completions, aside, folded, served_name
from skirret_server.api.exchange import Request
from skirret_server.api.generation import Choice, Generation, Step, Task, Work
from skirret_server.api.lifecycle import Lifecycle
from skirret_server.api.parameters import (
    ABORT,
    DETOKENIZE,
    GENERATE,
    GENERATE_SAMPLING,
    TOKENIZE,
    check,
)
from skirret_server.api.prompts import chat_prompt, check_work, text_prompt, token_budget
from skirret_server.api.served import Served
from skirret_server.api.shapes import missing
from skirret_server.api.structured import compiled, compiled_stops, structure
from skirret_server.core import Logprob, Sampling
from skirret_server.text.tokenizer import Tokenizer

DEFAULT_NEW_TOKENS = 128

# SGLang's names, where they differ from the OpenAI ones.
_RENAMED = {"min_new_tokens": "min_tokens", "sampling_seed": "seed"}

# What a tokenizer is asked about to tell how many tokens a byte of ordinary text makes.
_SAMPLE = (
    "The roots of the skirret grow in clusters; they were eaten in winter, boiled or fried. "
    'def area(width: float, height: float) -> float:\n    return width * height\n{"name": '
    '"Ada", "born": 1815, "tags": ["engine", "notes"]}\nWas kostet die Welt? 1,234.56 EUR.\n'
)


class Native:
    def __init__(
        self, lifecycle: Lifecycle, completions: Completions, settings: Mapping[str, Any]
    ) -> None:
        """`settings`: what /get_server_info tells of how the server was started."""
        self._lifecycle = lifecycle
        self._completions = completions
        self._settings = settings

    async def generate(self, request: Request) -> Reply | EventStream:
        served = self._lifecycle.admit()
        ask = await aside(request, lambda: _NativeAsk(request, served))
        work = await ask.work(served)
        generation = Generation(served.engine, served.tokenizer, work)
        steps = self._completions.steps(request, ask.rid, generation)
        headers = {"x-ignored-params": ", ".join(ask.ignored)} if ask.ignored else {}
        if ask.stream:
            return EventStream(_events(steps, ask, served.tokenizer), headers)
        choices = await folded(steps, work)
        answers = [ask.answer(index, c, served.tokenizer) for index, c in enumerate(choices)]
        return Reply.of(answers if ask.is_list else answers[0], headers)

    async def tokenize(self, request: Request) -> Reply:
        served = self._lifecycle.admit()
        return await aside(request, lambda: _tokenized(request, served))

    async def detokenize(self, request: Request) -> Reply:
        served = self._lifecycle.admit()
        checked = check(request.json(), DETOKENIZE)
        _check_model(checked.get("model"), served, request)
        check_token_ids(checked.get("tokens"), served.engine.info.vocab_size, "tokens")
        text = served.tokenizer.decode(
            checked.get("tokens"), skip_special_tokens=checked.get("skip_special_tokens", False)
        )
        return Reply.of({"text": text})

    async def model_info(self, request: Request) -> Reply:
        served = self._lifecycle.admit()
        template = served.template
        return Reply.of(
            {
                "model_path": served.path,
                "tokenizer_path": served.path,
                "is_generation": True,
                "served_model_names": list(served.names),
                "max_model_len": served.limit,
                "vocab_size": served.engine.info.vocab_size,
                "chat_template": template.source if template else None,
                "special_tokens": served.tokenizer.named_tokens,
                "tokens_per_byte": tokens_per_byte(served.tokenizer),
            }
        )

    async def server_info(self, request: Request) -> Reply:
        served = self._lifecycle.admit()
        load = served.engine.load()
        return Reply.of(
            {
                **self._settings,
                "version": __version__,
                "logprobs_mode": "raw",
                "max_total_num_tokens": served.engine.info.max_total_tokens,
                "running": load.running,
                "waiting": load.waiting,
                "kv_usage": load.kv_usage,
            }
        )

    async def flush(self, request: Request) -> Reply:
        """Forgets every cached prefix; refused while requests run, as by SGLang."""
        if not await self._lifecycle.admit().engine.flush_cache():
            raise InvalidRequest(
                "The cache is in use: requests are running or waiting. Try again when none is.",
                code="cache_in_use",
            )
        return Reply(b"Cache flushed.\n", content_type="text/plain; charset=utf-8")

    async def abort(self, request: Request) -> Reply:
        checked = check(request.json(), ABORT)
        rid, every = checked.get("rid", ""), checked.get("abort_all", False)
        if not rid and not every:
            raise missing("rid")
        count = self._lifecycle.abort(lambda one: every or one == rid)
        return Reply.of({"aborted": count})


class _NativeAsk:
    """A checked /generate body. Making it raises InvalidRequest."""

    def __init__(self, request: Request, served: Served) -> None:
        checked = check(_without_empty_grammars(request.json()), GENERATE)
        prompts = _native_prompts(checked.get("text"), checked.get("input_ids"))
        self._kind = "input_ids" if checked.get("text") is None else "text"
        given = checked.get("sampling_params", {})
        options = given if isinstance(given, list) else [given] * len(prompts)
        self._paths = [
            f"sampling_params[{index}]" if isinstance(given, list) else "sampling_params"
            for index in range(len(prompts))
        ]
        if len(options) != len(prompts):
            raise InvalidRequest(
                f"Invalid 'sampling_params': expected one for each of {len(prompts)} prompts, "
                f"but got {len(options)}.",
                param="sampling_params",
                code="invalid_value",
            )
        counts = {option.get("n", 1) for option in options}
        if len(counts) > 1:
            raise InvalidRequest(
                "Invalid 'sampling_params': every item must have the same 'n'.",
                param="sampling_params",
                code="invalid_value",
            )
        n = counts.pop()
        for option in options:
            most = option.get("max_new_tokens", DEFAULT_NEW_TOKENS)
            check_work(n * len(prompts), most, served.max_answer_tokens)
        self.returns_logprobs = checked.get("return_logprob", False)
        self.names_tokens = checked.get("return_text_in_logprobs", False)
        self.top = checked.get("top_logprobs_num", 0)
        self.start = checked.get("logprob_start_len", -1)
        self.ignored = _ignored(checked.values, options)
        self.stream = checked.get("stream", False)
        self.rid = checked.get("rid")
        self.id = self.rid or wire.new_id("gen")
        is_many = isinstance(checked.get("text"), list) or isinstance(
            (checked.get("input_ids") or [0])[0], list
        )
        self.is_list = is_many or n > 1
        self._structures = []
        for option, path in zip(options, self._paths, strict=True):
            with _within(path):
                self._structures.append(structure(option))
        self._stop_patterns = [stop_patterns(option.get) for option in options]
        self._work = Work(
            id=wire.new_id("gen"),
            request_id=request.id,
            tasks=[
                self._task(prompt, option, path, served)
                for prompt, option, path in zip(prompts, options, self._paths, strict=True)
            ],
            n=n,
            lane=request.caller.lane,
            priority=checked.get("priority", 0),
            batch_priority=request.caller.priority,
            deadline=request.caller.deadline,
            tenant=request.caller.owner,
        )

    async def work(self, served: Served) -> Work:
        """With its grammars and stop patterns. Raises InvalidRequest."""
        tasks = []
        for task, wanted, patterns, path in zip(
            self._work.tasks, self._structures, self._stop_patterns, self._paths, strict=True
        ):
            with _within(path):
                stops = await compiled_stops(patterns, served.grammars)
                ready = await compiled(wanted, served.grammars) if wanted else None
            tasks.append(
                replace(
                    task,
                    grammar=ready.grammar if ready else None,
                    rules=replace(task.rules, patterns=stops),
                )
            )
        return replace(self._work, tasks=tasks)

    def answer(self, index: int, choice: Choice, tokenizer: Tokenizer) -> dict[str, Any]:
        task = self._work.task(index)
        meta: dict[str, Any] = {
            "id": self.id,
            "finish_reason": _finish_reason(choice),
            "prompt_tokens": len(task.prompt.ids),
            "completion_tokens": len(choice.tokens),
            "cached_tokens": choice.cached_tokens,
        }
        if self.returns_logprobs:
            meta |= self._logprobs(choice, tokenizer)
        return {"text": choice.text, "output_ids": choice.tokens, "meta_info": meta}

    def _task(self, prompt: Any, option: Mapping[str, Any], path: str, served: Served) -> Task:
        if not isinstance(prompt, str):
            check_token_ids(prompt, served.engine.info.vocab_size, self._kind)
        found = text_prompt(prompt, served, self._kind)
        named = {_RENAMED.get(name, name): value for name, value in option.items()}
        with _within(path):
            sampling = self._sampling(named, served)
        budget = token_budget(
            len(found.ids),
            named.get("max_new_tokens"),
            served.limit,
            kind=self._kind,
            default=DEFAULT_NEW_TOKENS,
        )
        return Task(found, replace(sampling, max_tokens=budget), text_rules(named.get))

    def _sampling(self, option: Mapping[str, Any], served: Served) -> Sampling:
        most = option.get("max_new_tokens", DEFAULT_NEW_TOKENS)
        check_min_tokens(option.get("min_tokens", 0), most, "min_new_tokens")
        return sampling_of(
            option.get,
            served.engine.info.vocab_size,
            logprobs=self.top if self.returns_logprobs else None,
            prompt_logprobs=self.top if self.returns_logprobs and self.start >= 0 else None,
        )

    def _logprobs(self, choice: Choice, tokenizer: Tokenizer) -> dict[str, Any]:
        of_prompt = list(choice.prompt_logprobs or ())[max(self.start, 0) :]
        found = {
            "input_token_logprobs": [self._triple(one, tokenizer) for one in of_prompt],
            "output_token_logprobs": [self._triple(one, tokenizer) for one in choice.logprobs],
        }
        if self.top:
            found["input_top_logprobs"] = [self._tops(one, tokenizer) for one in of_prompt]
            found["output_top_logprobs"] = [self._tops(one, tokenizer) for one in choice.logprobs]
        return found

    def _triple(self, one: Logprob | None, tokenizer: Tokenizer) -> list[Any] | None:
        return None if one is None else self._row(one.token, one.logprob, tokenizer)

    def _tops(self, one: Logprob | None, tokenizer: Tokenizer) -> list[list[Any]] | None:
        return None if one is None else [self._row(t, value, tokenizer) for t, value in one.top]

    def _row(self, token: int, value: float, tokenizer: Tokenizer) -> list[Any]:
        name = tokenizer.bytes_of(token).decode(errors="replace") if self.names_tokens else None
        return [wire.finite(value), token, name]


async def _events(
    steps: AsyncGenerator[list[Step]], ask: _NativeAsk, tokenizer: Tokenizer
) -> AsyncGenerator[bytes]:
    """Each event holds the whole text so far, as SGLang's clients expect."""
    choices: dict[int, Choice] = {}
    async with aclosing(steps):
        async for batch in steps:
            out = b""
            for step in batch:
                choice = choices.setdefault(step.index, Choice())
                choice.add(step)
                answer = ask.answer(step.index, choice, tokenizer)
                out += wire.event({**answer, "index": step.index} if ask.is_list else answer)
            yield out
    yield wire.DONE


@lru_cache(maxsize=1)
def tokens_per_byte(tokenizer: Tokenizer) -> float:
    return round(len(tokenizer.encode(_SAMPLE)) / len(_SAMPLE.encode()), 4)


@contextmanager
def _within(path: str) -> Iterator[None]:
    """Names what is refused by where it stands in the request."""
    try:
        yield
    except InvalidRequest as error:
        error.param = f"{path}.{error.param}"
        raise


def _ignored(values: Mapping[str, Any], options: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was given and has no effect."""
    of_logprobs = ("top_logprobs_num", "logprob_start_len", "return_text_in_logprobs")
    ignored = [name for name in of_logprobs if name in values and not values.get("return_logprob")]
    return ignored + [
        f"sampling_params.{name}"
        for name, one in GENERATE_SAMPLING.items()
        if one.effect == "ignored" and any(name in option for option in options)
    ]


def _check_model(name: str | None, served: Served, request: Request) -> None:
    """Raises NotFound."""
    if name is not None:
        served_name(name, served, request.caller)


def _finish_reason(choice: Choice) -> dict[str, Any] | None:
    if choice.ending is None:
        return None
    if choice.ending.reason == "length":
        return {"type": "length", "length": len(choice.tokens)}
    return {"type": "stop", "matched": choice.ending.matched}


def _without_empty_grammars(body: dict[str, Any]) -> dict[str, Any]:
    """SGLang's clients send "" for a grammar they don't want."""
    options = body.get("sampling_params")
    if isinstance(options, list):
        return {**body, "sampling_params": [_without_empty(option) for option in options]}
    return {**body, "sampling_params": _without_empty(options)}


def _without_empty(options: Any) -> Any:
    if not isinstance(options, dict):
        return options
    unset = {name for name in ("regex", "ebnf", "json_schema", "structural_tag")
             if options.get(name) == ""}  # fmt: skip
    return {name: value for name, value in options.items() if name not in unset}


def _native_prompts(text: Any, ids: Any) -> Sequence[Any]:
    if (text is None) == (ids is None):
        raise InvalidRequest(
            "Give exactly one of 'text' and 'input_ids'.",
            param="text",
            code="missing_required_parameter" if text is None else "invalid_value",
        )
    if text is not None:
        return [text] if isinstance(text, str) else list(text)
    return list(ids) if isinstance(ids[0], list) else [ids]


def _tokenized(request: Request, served: Served) -> Reply:
    body = request.json()
    if body.get("messages") is not None:
        ask = chat_ask(body, served.engine.info.vocab_size)
        served_name(ask.common.model, served, request.caller)
        ids: Any = list(chat_prompt(ask, served).ids)
        count: Any = len(ids)
    else:
        body.pop("messages", None)
        checked = check(body, TOKENIZE)
        _check_model(checked.get("model"), served, request)
        prompt = checked.get("prompt")
        adds = checked.get("add_special_tokens", True)
        encode = served.tokenizer.encode if adds else served.tokenizer.encode_chat
        ids = encode(prompt) if isinstance(prompt, str) else [encode(one) for one in prompt]
        count = len(ids) if isinstance(prompt, str) else [len(one) for one in ids]
    return Reply.of({"tokens": ids, "count": count, "max_model_len": served.limit})
