"""What a caller asks for, checked across fields: from here on nobody checks again."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skirret_api.errors import InvalidRequest
from skirret_server.api.parameters import CHAT, COMPLETION, Checked, check
from skirret_server.api.structured import Structure, structure
from skirret_server.api.tools import ToolUse, tool_use
from skirret_server.core import Sampling, TokenId
from skirret_server.text.choice import TextRules
from skirret_server.text.stops import StopStrings

GREEDY_BELOW = 1e-6
DEFAULT_COMPLETION_TOKENS = 16

_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")

Prompt = str | Sequence[TokenId]


@dataclass(frozen=True, slots=True)
class Ask:
    """What chat and text completions have in common."""

    model: str
    n: int
    max_tokens: int | None  # None: what the context leaves
    sampling: Sampling  # its max_tokens is set when the prompt's length is known
    rules: TextRules
    stop_patterns: Sequence[str]  # not in the rules until they are compiled
    stream: bool
    include_usage: bool
    continuous_usage: bool
    service_tier: str | None
    priority: int
    rid: str | None
    structure: Structure | None
    ignored: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChatAsk:
    common: Ask
    messages: Sequence[Mapping[str, Any]]
    variables: Mapping[str, Any]  # for the chat template
    continue_final_message: bool
    tools: ToolUse | None
    separates_reasoning: bool


@dataclass(frozen=True, slots=True)
class CompletionAsk:
    common: Ask
    prompts: tuple[Prompt, ...]
    echo: bool
    best_of: int
    logprobs: int | None  # as asked; choosing the best needs them anyway


def chat_ask(body: Mapping[str, Any], vocabulary: int) -> ChatAsk:
    """Raises InvalidRequest."""
    checked = check(body, CHAT)
    top = checked.get("top_logprobs")
    wants_logprobs = checked.get("logprobs", False)
    if top is not None and not wants_logprobs:
        raise InvalidRequest(
            "The 'top_logprobs' parameter is only allowed when 'logprobs' is true.",
            param="top_logprobs",
        )
    messages = checked.get("messages")
    continues = checked.get("continue_final_message", False)
    if continues and not (
        messages[-1]["role"] == "assistant" and messages[-1].get("content") is not None
    ):
        raise InvalidRequest(
            "'continue_final_message' needs the last message to be the assistant's, with content.",
            param="continue_final_message",
            code="invalid_value",
        )
    variables = dict(checked.get("chat_template_kwargs", {}))
    if "reasoning_effort" in checked.values:
        variables.setdefault("reasoning_effort", checked.get("reasoning_effort"))
    common = _common(
        checked,
        vocabulary,
        max_tokens=_chat_max_tokens(checked),
        logprobs=(top or 0) if wants_logprobs else None,
    )
    return ChatAsk(
        common=common,
        messages=messages,
        variables=variables,
        continue_final_message=continues,
        tools=tool_use(checked.values, common.structure),
        separates_reasoning=checked.get("separate_reasoning", True),
    )


def completion_ask(body: Mapping[str, Any], vocabulary: int) -> CompletionAsk:
    """Raises InvalidRequest."""
    checked = check(body, COMPLETION)
    if "max_tokens" not in checked.values:
        check_min_tokens(checked.get("min_tokens", 0), DEFAULT_COMPLETION_TOKENS)
    logprobs = checked.get("logprobs")
    chooses = (checked.get("best_of") or 1) > checked.get("n", 1)
    common = _common(
        checked,
        vocabulary,
        max_tokens=checked.get("max_tokens"),
        logprobs=0 if logprobs is None and chooses else logprobs,
        prompt_logprobs=logprobs if checked.get("echo") else None,
    )
    return CompletionAsk(
        common=common,
        prompts=_prompts(checked.get("prompt"), vocabulary),
        echo=checked.get("echo", False),
        best_of=_best_of(checked.get("best_of") or common.n, common),
        logprobs=logprobs,
    )


def sampling_of(
    get: Callable[..., Any],
    vocabulary: int,
    *,
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
) -> Sampling:
    """Sampling parameters under the names that every endpoint shares."""
    temperature = get("temperature", 1.0)
    if get("top_k", -1) == 0:
        raise InvalidRequest(
            "Invalid 'top_k': expected -1 for all tokens or a value >= 1, but got 0 instead.",
            param="top_k",
            code="integer_below_min_value",
        )
    top_p = get("top_p", 1.0)
    return Sampling(
        max_tokens=0,
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_p=top_p or 1.0,
        top_k=1 if top_p == 0 else get("top_k", -1),
        min_p=get("min_p", 0.0),
        seed=get("seed"),
        frequency_penalty=get("frequency_penalty", 0.0),
        presence_penalty=get("presence_penalty", 0.0),
        repetition_penalty=get("repetition_penalty", 1.0),
        logit_bias=_logit_bias(get("logit_bias", {}), vocabulary),
        stop_token_ids=_stop_token_ids(get("stop_token_ids", []), vocabulary),
        min_tokens=get("min_tokens", 0),
        ignore_eos=get("ignore_eos", False),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def check_token_ids(ids: Sequence[TokenId], vocabulary: int, param: str) -> None:
    """Raises InvalidRequest."""
    largest = max(ids, default=0)
    if largest >= vocabulary:
        raise InvalidRequest(
            f"Invalid '{param}': token id {largest} is not in the vocabulary of {vocabulary}.",
            param=param,
            code="invalid_value",
        )


def check_min_tokens(least: int, most: int | None, param: str = "min_tokens") -> None:
    """Raises InvalidRequest."""
    if most is not None and least > most:
        raise InvalidRequest(
            f"Invalid '{param}': integer above maximum value. Expected a value <= {most} "
            f"({param.replace('min', 'max')}), but got {least} instead.",
            param=param,
            code="integer_above_max_value",
        )


def stop_patterns(get: Callable[..., Any]) -> Sequence[str]:
    return _listed(get("stop_regex", []))


def text_rules(get: Callable[..., Any]) -> TextRules:
    stops = _listed(get("stop", []))
    return TextRules(
        stops=StopStrings(stops) if stops else None,
        min_tokens=get("min_tokens", 0),
        skip_special_tokens=get("skip_special_tokens", True),
        keeps_stop=get("no_stop_trim", False),
    )


def _listed(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value


def _common(
    checked: Checked,
    vocabulary: int,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
) -> Ask:
    options = checked.get("stream_options", {})
    stream = checked.get("stream", False)
    if "stream_options" in checked.values and not stream:
        raise InvalidRequest(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
            param="stream_options",
        )
    check_min_tokens(checked.get("min_tokens", 0), max_tokens)
    ignored = checked.ignored
    if "include_obfuscation" in options:
        ignored += ("stream_options.include_obfuscation",)
    return Ask(
        model=checked.get("model"),
        n=checked.get("n", 1),
        max_tokens=max_tokens,
        sampling=sampling_of(
            checked.get, vocabulary, logprobs=logprobs, prompt_logprobs=prompt_logprobs
        ),
        rules=text_rules(checked.get),
        stop_patterns=stop_patterns(checked.get),
        stream=stream,
        include_usage=options.get("include_usage", False),
        continuous_usage=options.get("continuous_usage_stats", False),
        service_tier=checked.get("service_tier"),
        priority=checked.get("priority", 0),
        rid=checked.get("rid"),
        structure=structure(checked.values),
        ignored=ignored,
    )


def _chat_max_tokens(checked: Checked) -> int | None:
    old, new = checked.get("max_tokens"), checked.get("max_completion_tokens")
    if old is not None and new is not None and old != new:
        raise InvalidRequest(
            "'max_tokens' and 'max_completion_tokens' are both set, and differ. Use one of them.",
            param="max_tokens",
            code="invalid_value",
        )
    result: int | None = old if new is None else new
    return result


def _best_of(best_of: int, common: Ask) -> int:
    if best_of < common.n:
        raise InvalidRequest(
            f"Invalid 'best_of': expected a value >= n ({common.n}), but got {best_of} instead.",
            param="best_of",
            code="integer_below_min_value",
        )
    if best_of > common.n and common.stream:
        raise InvalidRequest(
            "'best_of' above 'n' is not allowed when 'stream' is enabled.",
            param="best_of",
            code="invalid_value",
        )
    return best_of


def _prompts(prompt: Any, vocabulary: int) -> tuple[Prompt, ...]:
    prompts = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
    kinds = {type(one) for one in prompts}
    if len(kinds) > 1:
        raise InvalidRequest(
            "Invalid 'prompt': expected an array of strings or an array of arrays of token ids, "
            "but got a mixture.",
            param="prompt",
            code="invalid_type",
        )
    for one in prompts:
        if not isinstance(one, str):
            check_token_ids(one, vocabulary, "prompt")
    return tuple(prompts)


def _logit_bias(bias: Mapping[str, float], vocabulary: int) -> dict[TokenId, float]:
    found = {}
    for key, value in bias.items():
        if not (_TOKEN_ID.fullmatch(key) and int(key) < vocabulary):
            raise InvalidRequest(
                f"Invalid key in 'logit_bias': '{key[:32]}'. You should only be submitting "
                f"non-negative integers below {vocabulary}.",
                param="logit_bias",
                code="invalid_value",
            )
        found[int(key)] = value
    return found


def _stop_token_ids(ids: Sequence[TokenId], vocabulary: int) -> frozenset[TokenId]:
    check_token_ids(ids, vocabulary, "stop_token_ids")
    return frozenset(ids)
