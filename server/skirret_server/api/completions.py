"""/v1/chat/completions, /v1/responses and /v1/completions: one pipeline, three shapes of answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from skirret_api import internal
from skirret_api.errors import NotFound, Overloaded
from skirret_server.api import wire
from skirret_server.api.answer import EventStream, Reply
from skirret_server.api.asks import (
    DEFAULT_COMPLETION_TOKENS,
    Ask,
    ChatAsk,
    CompletionAsk,
    chat_ask,
    completion_ask,
)
from skirret_server.api.calling import Tools
from skirret_server.api.chat_wire import ChatWire
from skirret_server.api.checking import AnswerCheck
from skirret_server.api.chunks import Frame, Head
from skirret_server.api.exchange import Caller, Request
from skirret_server.api.generation import Choice, Generation, Step, Task, Usage, Work
from skirret_server.api.lifecycle import Lifecycle
from skirret_server.api.metrics import Metrics
from skirret_server.api.prompts import (
    Prompt,
    chat_prompt,
    check_mentions_json,
    check_work,
    ignored_variables,
    text_prompt,
    token_budget,
)
from skirret_server.api.responses import ResponseAsk, renamed, response_ask, response_name
from skirret_server.api.responses_wire import ResponsesWire
from skirret_server.api.served import Served
from skirret_server.api.structured import compiled, compiled_stops
from skirret_server.api.text_wire import TextWire
from skirret_server.api.tools import ToolUse, shown_tokens, tool_structure
from skirret_server.text.reasoning import reasoning_of
from skirret_server.text.tool_calls import ToolFormat, format_of

if TYPE_CHECKING:  # numpy takes long to import, and the socket must answer first
    from skirret_server.grammar.compiler import Ready

_T = TypeVar("_T")
_LARGE = 4 * 1024  # bytes: milliseconds of tokenising


class Wire(Protocol):
    def opening(self) -> bytes: ...

    def chunks(self, step: Step) -> bytes: ...

    def last(self) -> bytes: ...

    def whole(self, choices: Sequence[Choice], usage: Usage) -> Mapping[str, object]: ...


@dataclass(frozen=True, slots=True)
class _Talk:
    """A chat that may begin."""

    common: Ask
    head: Head
    generation: Generation
    tools: Tools | None
    ready: Ready | None


class Completions:
    def __init__(
        self,
        lifecycle: Lifecycle,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._lifecycle = lifecycle
        self._metrics = metrics
        self._clock = clock
        self._now = now

    async def chat(self, request: Request) -> Reply | EventStream:
        served = self._lifecycle.admit()
        ask, prompt = await aside(request, lambda: _chat(request, request.json(), served))
        talk = await self._talk(request, served, ask, prompt, wire.new_id("chatcmpl"))
        common = talk.common
        shape = ChatWire(
            talk.head,
            _frame(talk.head, "chat.completion.chunk", talk.generation, common),
            served.tokenizer,
            n=common.n,
            has_logprobs=common.sampling.logprobs is not None,
            tools=talk.tools,
        )
        ignored = (*common.ignored, *ignored_variables(ask, served))
        return await self._answer(request, common, talk.generation, shape, ignored, talk.ready)

    async def responses(self, request: Request) -> Reply | EventStream:
        served = self._lifecycle.admit()
        wanted, ask, prompt = await aside(request, lambda: _response(request, served))
        with renamed():
            talk = await self._talk(request, served, ask, prompt, wire.new_id("resp", "_"))
        shape = ResponsesWire(
            talk.head,
            wanted.echo,
            talk.generation.usage,
            served.tokenizer,
            has_logprobs=wanted.has_logprobs,
            tools=talk.tools,
        )
        ignored = (*wanted.ignored, *map(response_name, ignored_variables(ask, served)))
        return await self._answer(request, talk.common, talk.generation, shape, ignored, talk.ready)

    async def _talk(
        self, request: Request, served: Served, ask: ChatAsk, prompt: Prompt, work_id: str
    ) -> _Talk:
        """Raises ApiError for what a chat may not ask."""
        common = ask.common
        model = served_name(common.model, served, request.caller)
        head = Head(work_id, int(self._now()), model, _tier(common))
        budget = token_budget(len(prompt.ids), common.max_tokens, served.limit, kind="messages")
        if common.max_tokens is None:
            budget = min(budget, max(served.max_answer_tokens // common.n, 1))
        form = None
        if ask.tools and served.template:
            form = format_of(served.template.source, served.tool_call_parser)
        if ask.tools and form:
            common = _with_tools(common, ask.tools, form, served)
        if common.structure is None and ask.separates_reasoning and served.separates_reasoning:
            common = _with_reasoning(common, prompt, served)
        common = await _with_stop_patterns(common, served)
        ready = await _ready(common, served)
        tasks = [_task(prompt, budget, common, ready)]
        generation = _generation(request, served, common, head.id, tasks, common.n)
        tools = None
        if ask.tools and form:
            tools = Tools(form, ask.tools.is_single, ask.tools.mode == "named")
        return _Talk(common, head, generation, tools, ready)

    async def text(self, request: Request) -> Reply | EventStream:
        served = self._lifecycle.admit()
        ask, prompts = await aside(request, lambda: _text(request, served))
        common = ask.common
        model = served_name(common.model, served, request.caller)
        head = Head(wire.new_id("cmpl"), int(self._now()), model, _tier(common))
        budgets = [_text_budget(prompt, common.max_tokens, served) for prompt in prompts]
        common = await _with_stop_patterns(common, served)
        ready = await _ready(common, served)
        tasks = [
            _task(prompt, budget, common, ready)
            for prompt, budget in zip(prompts, budgets, strict=True)
        ]
        generation = _generation(request, served, common, head.id, tasks, ask.best_of)
        shape = TextWire(
            head,
            _frame(head, "text_completion", generation, common),
            served.tokenizer,
            prompts=prompts,
            n=common.n,
            echo=ask.echo,
            logprobs=ask.logprobs,
        )
        return await self._answer(request, common, generation, shape, common.ignored, ready, ask)

    async def _answer(
        self,
        request: Request,
        common: Ask,
        generation: Generation,
        shape: Wire,
        ignored: Sequence[str],
        ready: Ready | None,
        ask: CompletionAsk | None = None,
    ) -> Reply | EventStream:
        headers = {"x-ignored-params": ", ".join(ignored)} if ignored else {}
        if ready is not None and ready.unenforced:
            headers["x-unenforced"] = ", ".join(sorted(ready.unenforced))
        steps = self.steps(request, common.rid, generation)
        if common.stream:
            is_internal = request.caller.is_internal
            if is_internal:
                headers[internal.LOAD] = load_header(generation)
            return EventStream(_events(steps, generation.usage, shape, is_internal), headers)
        choices = await folded(steps, generation.work)
        if ask is not None and ask.best_of > common.n:
            choices = _best(choices, ask.best_of, common.n)
        if request.caller.is_internal:
            headers[internal.LOAD] = load_header(generation)  # as it is now, not when it was asked
            headers[internal.USAGE] = usage_header(generation.usage)
        return Reply.of(shape.whole(choices, generation.usage), headers)

    async def steps(
        self, request: Request, rid: str | None, generation: Generation
    ) -> AsyncGenerator[list[Step]]:
        """The steps, counted and timed, from a request that can be aborted."""
        self._lifecycle.enter(request.running, rid)
        generation.texts = self._lifecycle.texts
        last: float | None = None
        check = self._check(generation)
        try:
            async with aclosing(generation.steps()) as batches:
                async for steps in batches:
                    now = self._clock()
                    if last is None:
                        self._metrics.time_to_first_token.observe(now - request.started)
                    else:
                        self._metrics.inter_token_latency.observe(now - last)
                    last = now
                    if check is not None:
                        check.add(steps)
                    yield steps
            if check is not None:
                await check.finish()
            self._metrics.e2e_latency.observe(self._clock() - request.started)
        except Overloaded as error:
            raise self._lifecycle.refuse(error) from error
        finally:
            self._lifecycle.leave(request.running)
            request.facts |= asdict(generation.usage)

    def _check(self, generation: Generation) -> AnswerCheck | None:
        served, work = self._lifecycle.served, generation.work
        if served is None or not served.checks_structured:
            return None
        if all(task.grammar is None for task in work.tasks):
            return None
        ends = frozenset(generation.engine.info.eos_token_ids)
        checked, violations = self._metrics.structured_checks, self._metrics.structured_violations
        return AnswerCheck(work, generation.tokenizer, ends, checked, violations)


def served_name(asked: str, served: Served, caller: Caller) -> str:
    """The model's name as the answer gives it. Raises NotFound."""
    if caller.served_name is not None:
        return caller.served_name
    if served.answers_to(asked):
        return asked
    raise unknown_model(asked)


def unknown_model(name: str) -> NotFound:
    return NotFound(
        f"The model `{name[:200]}` does not exist or you do not have access to it.",
        code="model_not_found",
    )


def load_header(generation: Generation) -> str:
    load = generation.engine.load()
    return f"{load.running},{load.waiting},{load.kv_usage:.3f}"


def usage_header(usage: Usage) -> str:
    return f"{usage.prompt_tokens},{usage.cached_tokens},{usage.completion_tokens}"


async def aside(request: Request, prepare: Callable[[], _T]) -> _T:
    """Large bodies are parsed and tokenised in a thread: the streams of others go on."""
    if len(request.body) < _LARGE:
        return prepare()
    return await asyncio.to_thread(prepare)


async def _events(
    steps: AsyncGenerator[list[Step]], usage: Usage, shape: Wire, is_internal: bool
) -> AsyncGenerator[bytes]:
    opening = shape.opening()
    async with aclosing(steps):
        async for batch in steps:
            data = opening + b"".join(map(shape.chunks, batch))
            opening = b""
            if data:
                yield data
    note = f": {internal.USAGE} {usage_header(usage)}\n\n".encode() if is_internal else b""
    yield shape.last() + note + wire.DONE


async def folded(steps: AsyncGenerator[list[Step]], work: Work) -> list[Choice]:
    choices = [Choice() for _ in range(work.n * len(work.tasks))]
    async with aclosing(steps):
        async for batch in steps:
            for step in batch:
                choices[step.index].add(step)
    return choices


def _best(choices: Sequence[Choice], best_of: int, n: int) -> list[Choice]:
    """Of each prompt's choices, the n with the likeliest tokens."""

    def likelihood(choice: Choice) -> float:
        if not choice.entries:
            return 0.0
        return sum(entry.logprob.logprob for entry in choice.entries) / len(choice.entries)

    best: list[Choice] = []
    for start in range(0, len(choices), best_of):
        best += sorted(choices[start : start + best_of], key=likelihood, reverse=True)[:n]
    return best


def _response(request: Request, served: Served) -> tuple[ResponseAsk, ChatAsk, Prompt]:
    wanted = response_ask(request.json())
    with renamed():
        return wanted, *_chat(request, wanted.chat, served)


def _chat(request: Request, body: Mapping[str, Any], served: Served) -> tuple[ChatAsk, Prompt]:
    ask = chat_ask(body, served.engine.info.vocab_size)
    served_name(ask.common.model, served, request.caller)
    check_work(ask.common.n, ask.common.max_tokens, served.max_answer_tokens)
    if served.is_strict:
        check_mentions_json(ask)
    return ask, chat_prompt(ask, served)


def _text(request: Request, served: Served) -> tuple[CompletionAsk, list[Prompt]]:
    ask = completion_ask(request.json(), served.engine.info.vocab_size)
    served_name(ask.common.model, served, request.caller)
    count = ask.best_of * len(ask.prompts)
    asked = ask.common.max_tokens
    check_work(
        count, DEFAULT_COMPLETION_TOKENS if asked is None else asked, served.max_answer_tokens
    )
    return ask, [text_prompt(prompt, served) for prompt in ask.prompts]


def _with_tools(common: Ask, use: ToolUse, form: ToolFormat, served: Served) -> Ask:
    return replace(
        common,
        structure=tool_structure(use, form, common.structure),
        rules=replace(common.rules, shown_tokens=shown_tokens(form, served.tokenizer)),
    )


def _with_reasoning(common: Ask, prompt: Prompt, served: Served) -> Ask:
    reasoning = reasoning_of(served.tokenizer, prompt.ids)
    return replace(common, rules=replace(common.rules, reasoning=reasoning))


async def _with_stop_patterns(common: Ask, served: Served) -> Ask:
    if not common.stop_patterns:
        return common
    patterns = await compiled_stops(common.stop_patterns, served.grammars)
    return replace(common, rules=replace(common.rules, patterns=patterns))


async def _ready(common: Ask, served: Served) -> Ready | None:
    if common.structure is None:
        return None
    return await compiled(common.structure, served.grammars)


def _task(prompt: Prompt, budget: int, common: Ask, ready: Ready | None) -> Task:
    sampling = replace(common.sampling, max_tokens=budget)
    return Task(prompt, sampling, common.rules, ready.grammar if ready else None)


def _generation(
    request: Request, served: Served, common: Ask, work_id: str, tasks: Sequence[Task], n: int
) -> Generation:
    caller = request.caller
    work = Work(
        id=work_id,
        request_id=request.id,
        tasks=tasks,
        n=n,
        # Nothing raises a lane.
        lane="batch" if common.service_tier == "flex" else caller.lane,
        priority=common.priority,
        batch_priority=caller.priority,
        deadline=caller.deadline,
        tenant=caller.owner,
        blocks=caller.blocks,
        body_bytes=len(request.body),
    )
    return Generation(served.engine, served.tokenizer, work)


def _frame(head: Head, kind: str, generation: Generation, common: Ask) -> Frame:
    return Frame(
        head,
        kind,
        generation.usage,
        wanted=common.include_usage,
        always=common.continuous_usage,
    )


def _tier(common: Ask) -> str | None:
    if common.service_tier is None:
        return None
    return "flex" if common.service_tier == "flex" else "default"


def _text_budget(prompt: Prompt, asked: int | None, served: Served) -> int:
    return token_budget(
        len(prompt.ids), asked, served.limit, kind="prompt", default=DEFAULT_COMPLETION_TOKENS
    )
