"""The table of request parameters: what each endpoint takes, and what becomes of it.

The parser reads it, and so does the page that documents the API.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from skirret_server.api.items import ITEM
from skirret_server.api.messages import MESSAGE
from skirret_server.api.shapes import (
    Anything,
    Array,
    Boolean,
    Decimal,
    Either,
    Enum,
    Field,
    Integer,
    Map,
    Object,
    OnlyFalse,
    Shape,
    String,
    Tagged,
    TokenIds,
    Unsupported,
    missing,
    refuse_unknown,
)

Effect = Literal["honoured", "ignored"]
INT32 = 2**31 - 1
INT64 = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Parameter:
    shape: Shape
    default: Any = None
    note: str = ""
    effect: Effect = "honoured"
    required: bool = False


@dataclass(frozen=True, slots=True)
class Checked:
    """A body whose every value has the right shape; nulls are gone."""

    values: Mapping[str, Any]
    ignored: tuple[str, ...]  # given, accepted, and without effect

    def get(self, name: str, default: Any = None) -> Any:
        return self.values.get(name, default)


def check(body: Mapping[str, Any], table: Mapping[str, Parameter]) -> Checked:
    """Raises InvalidRequest for the first parameter that is unknown, missing or wrong."""
    refuse_unknown(body, table)
    values, ignored = {}, []
    for name, value in body.items():
        if value is None:
            continue
        parameter = table[name]
        values[name] = parameter.shape.check(value, name)
        if parameter.effect == "ignored":
            ignored.append(name)
    for name, parameter in table.items():
        if parameter.required and name not in values:
            raise missing(name)
    return Checked(values, tuple(ignored))


def _refused(reason: str) -> Parameter:
    return Parameter(Unsupported(reason, "unsupported_parameter"), note=reason)


def _ignored(shape: Shape, note: str = "accepted, without effect") -> Parameter:
    return Parameter(shape, note=note, effect="ignored")


def _stop(most: int) -> Shape:
    return Either((String(1, 256), Array(String(1, 256), max=most)))


_EBNF = String(1, 100_000)
_REGEX = String(1, 100_000)
_SCHEMA = Either((Map(Anything()), Boolean(), String(1), Array(Anything())))
_TAGS = Either((Map(Anything()), String(1)))
_CHOICE = Array(String(1), min=1, max=10_000)
_NAME = "[A-Za-z0-9_-]{1,64}"
_TOKEN_ID = Integer(0, INT32)

SAMPLING: dict[str, Parameter] = {
    "temperature": Parameter(Decimal(0, 2), 1.0, "below 1e-6: greedy"),
    "top_p": Parameter(Decimal(0, 1), 1.0, "0: the likeliest token alone"),
    "top_k": Parameter(Integer(-1, INT32), -1, "-1: all; 0 is refused"),
    "min_p": Parameter(Decimal(0, 1), 0.0),
    "frequency_penalty": Parameter(Decimal(-2, 2), 0.0, "over generated tokens alone"),
    "presence_penalty": Parameter(Decimal(-2, 2), 0.0, "over generated tokens alone"),
    "repetition_penalty": Parameter(Decimal(0, 2, excludes_min=True), 1.0),
    "logit_bias": Parameter(
        Map(Decimal(-100, 100), max=1024, names_items=False), note="token id to bias"
    ),
    "seed": Parameter(Integer(-INT64 - 1, INT64), note="choice i draws from (seed, i)"),
    "n": Parameter(Integer(1, 128), 1),
    "stop": Parameter(_stop(4), note="searched in the generated text, per character"),
    "stop_token_ids": Parameter(Array(_TOKEN_ID, max=1024)),
    "stop_regex": Parameter(_stop(4), note="SGLang's: searched as `stop` is; no anchors"),
    "min_tokens": Parameter(Integer(0, INT32), 0, "no end, stop token or stop string before"),
    "ignore_eos": Parameter(Boolean(), False),
    "no_stop_trim": Parameter(Boolean(), False, "the stop stays in the text"),
    "skip_special_tokens": Parameter(Boolean(), True),
    "spaces_between_special_tokens": _ignored(Boolean(), "no spaces are ever put between"),
    "regex": Parameter(_REGEX, note="the whole text matches"),
    "json_schema": Parameter(_SCHEMA, note="as an object, or as JSON in a string"),
    "ebnf": Parameter(_EBNF, note="recursion to a stated depth"),
    "structural_tag": Parameter(
        _TAGS, note="free text with grammars in it; as an object, or as JSON in a string"
    ),
    "guided_regex": Parameter(_REGEX, note="vLLM's name for regex"),
    "guided_json": Parameter(_SCHEMA, note="vLLM's name for json_schema"),
    "guided_choice": Parameter(_CHOICE, note="one of these texts"),
    "guided_grammar": Parameter(_EBNF, note="vLLM's name for ebnf"),
    "structured_outputs": Parameter(
        Object(
            {
                "json": Field(_SCHEMA),
                "regex": Field(_REGEX),
                "choice": Field(_CHOICE),
                "grammar": Field(_EBNF),
                "structural_tag": Field(_TAGS),
            }
        ),
        note="vLLM's; one of its fields",
    ),
}

COMMON: dict[str, Parameter] = {
    "model": Parameter(String(), required=True),
    **SAMPLING,
    "stream": Parameter(Boolean(), False),
    "stream_options": Parameter(
        Object(
            {
                "include_usage": Field(Boolean()),
                "include_obfuscation": Field(Boolean()),
                "continuous_usage_stats": Field(Boolean()),
            }
        ),
        note="only with stream; include_obfuscation has no effect",
    ),
    "user": _ignored(String()),
    "service_tier": Parameter(
        Enum(("auto", "default", "flex", "priority", "scale")), "auto", "flex: the batch lane"
    ),
    "metadata": _ignored(Map(String(max=512), max=16, key_max=64)),
    "priority": Parameter(Integer(-INT32, INT32), 0, "within the lane; higher first"),
    "rid": Parameter(String(1, 128), note="for /abort_request"),
    "return_hidden_states": _refused("hidden states are not returned"),
    "custom_params": _refused("there are no custom logit processors"),
    "lora_path": _refused("LoRA adapters are not built yet"),
}

_RESPONSE_FORMAT = Tagged(
    "type",
    {
        "text": Object({"type": Field(String(), True)}),
        "json_object": Object({"type": Field(String(), True)}),
        "json_schema": Object(
            {
                "type": Field(String(), True),
                "json_schema": Field(
                    Object(
                        {
                            "name": Field(String(pattern=_NAME), True),
                            "description": Field(String()),
                            "schema": Field(Anything()),
                            "strict": Field(Boolean()),
                        }
                    ),
                    True,
                ),
            }
        ),
        "structural_tag": Object(
            {
                "type": Field(String(), True),
                "structures": Field(Array(Anything())),
                "triggers": Field(Array(String())),
                "format": Field(Anything()),
            }
        ),
    },
)

_TOOL = Tagged(
    "type",
    {
        "function": Object(
            {
                "type": Field(String(), True),
                "function": Field(
                    Object(
                        {
                            "name": Field(String(pattern=_NAME), True),
                            "description": Field(String()),
                            "parameters": Field(Map(Anything())),
                            "strict": Field(Boolean()),
                        }
                    ),
                    True,
                ),
            }
        ),
        "custom": Unsupported("custom tools are not supported"),
    },
)
_NAMED_TOOL = Object(
    {
        "type": Field(Enum(("function",)), True),
        "function": Field(Object({"name": Field(String(1), True)}), True),
    }
)
_TOOL_CHOICE = Either(
    (
        Enum(("none", "auto", "required")),
        Tagged(
            "type",
            {
                "function": _NAMED_TOOL,
                "allowed_tools": Object(
                    {
                        "type": Field(String(), True),
                        "allowed_tools": Field(
                            Object(
                                {
                                    "mode": Field(Enum(("auto", "required")), True),
                                    "tools": Field(Array(_NAMED_TOOL, min=1, max=128), True),
                                }
                            ),
                            True,
                        ),
                    }
                ),
                "custom": Unsupported("custom tools are not supported"),
            },
        ),
    )
)

_EFFORT = Enum(("none", "minimal", "low", "medium", "high", "xhigh", "max"))

CHAT: dict[str, Parameter] = {
    "messages": Parameter(Array(MESSAGE, min=1, max=10_000), required=True),
    **COMMON,
    "max_tokens": Parameter(Integer(1, INT32), note="default: what the context leaves"),
    "max_completion_tokens": Parameter(Integer(1, INT32), note="the same as max_tokens"),
    "logprobs": Parameter(Boolean(), False, "of the raw logits"),
    "top_logprobs": Parameter(Integer(0, 20), note="needs logprobs"),
    "response_format": Parameter(_RESPONSE_FORMAT, {"type": "text"}, "enforced, strict or not"),
    "tools": Parameter(Array(_TOOL, min=1, max=128), note="parameters are always enforced"),
    "tool_choice": Parameter(_TOOL_CHOICE, note="required and named: by grammar"),
    "parallel_tool_calls": Parameter(Boolean(), True, "false: one call at most"),
    "functions": _refused("deprecated; use tools"),
    "function_call": _refused("deprecated; use tool_choice"),
    "continue_final_message": Parameter(Boolean(), False, "go on writing the last message"),
    "chat_template_kwargs": Parameter(
        Map(Anything(), max=64, key_max=64), note="to the chat template"
    ),
    "reasoning_effort": Parameter(
        _EFFORT,
        note="to the chat template, when it knows it",
    ),
    "separate_reasoning": Parameter(
        Boolean(), True, "what comes between <think> tags is reasoning_content"
    ),
    "verbosity": _ignored(Enum(("low", "medium", "high"))),
    "store": _ignored(Boolean()),
    "safety_identifier": _ignored(String()),
    "prompt_cache_key": _ignored(String(), "prefixes are always cached"),
    "prompt_cache_retention": _ignored(Enum(("in-memory", "in_memory", "24h"))),
    "modalities": Parameter(Array(Enum(("text",)), min=1), note="text alone"),
    "audio": _refused("this model writes text alone, no audio"),
    "prediction": _refused("predicted outputs are not supported"),
    "web_search_options": _refused("there is no web search"),
}

_TEXT_FORMAT = Tagged(
    "type",
    {
        "text": Object({"type": Field(String(), True)}),
        "json_object": Object({"type": Field(String(), True)}),
        "json_schema": Object(
            {
                "type": Field(String(), True),
                "name": Field(String(pattern=_NAME), True),
                "schema": Field(Anything(), True),
                "description": Field(String()),
                "strict": Field(Boolean()),
            }
        ),
    },
)
_FLAT_NAMED = Object({"type": Field(Enum(("function",)), True), "name": Field(String(1), True)})

RESPONSES: dict[str, Parameter] = {
    "model": Parameter(String(), required=True),
    "input": Parameter(
        Either((String(), Array(ITEM, min=1, max=10_000))),
        note="a text, or messages, calls and their outputs",
        required=True,
    ),
    "instructions": Parameter(String(), note="a system message before the input"),
    "max_output_tokens": Parameter(Integer(1, INT32), note="default: what the context leaves"),
    "temperature": SAMPLING["temperature"],
    "top_p": SAMPLING["top_p"],
    "top_logprobs": Parameter(Integer(0, 20), 0, "not beside tools"),
    "include": Parameter(
        Array(Enum(("message.output_text.logprobs", "reasoning.encrypted_content"))),
        note="reasoning is never encrypted",
    ),
    "text": Parameter(
        Object(
            {
                "format": Field(_TEXT_FORMAT),
                "verbosity": Field(Enum(("low", "medium", "high"))),
            }
        ),
        note="format is enforced, strict or not; verbosity has no effect",
    ),
    "tools": Parameter(
        Array(
            Tagged(
                "type",
                {
                    "function": Object(
                        {
                            "type": Field(String(), True),
                            "name": Field(String(pattern=_NAME), True),
                            "description": Field(String()),
                            "parameters": Field(Map(Anything())),
                            "strict": Field(Boolean()),
                        }
                    ),
                    **{
                        kind: Unsupported("functions are the only tools here")
                        for kind in (
                            *("custom", "web_search", "web_search_preview", "file_search"),
                            *("code_interpreter", "computer_use_preview", "image_generation"),
                            *("mcp", "local_shell", "shell", "apply_patch"),
                        )
                    },
                },
            ),
            max=128,
        ),
        note="functions",
    ),
    "tool_choice": Parameter(
        Either(
            (
                Enum(("none", "auto", "required")),
                Tagged(
                    "type",
                    {
                        "function": _FLAT_NAMED,
                        "allowed_tools": Object(
                            {
                                "type": Field(String(), True),
                                "mode": Field(Enum(("auto", "required")), True),
                                "tools": Field(Array(_FLAT_NAMED, min=1, max=128), True),
                            }
                        ),
                    },
                ),
            )
        ),
        note="required and named: by grammar",
    ),
    "parallel_tool_calls": Parameter(Boolean(), True, "false: one call at most"),
    "reasoning": Parameter(
        Object(
            {
                "effort": Field(_EFFORT),
                "summary": Field(Enum(("auto", "concise", "detailed"))),
                "generate_summary": Field(Enum(("auto", "concise", "detailed"))),
            }
        ),
        note="effort: to the chat template, when it knows it; nothing is summarised",
    ),
    "stream": Parameter(Boolean(), False),
    "stream_options": Parameter(
        Object({"include_obfuscation": Field(Boolean())}), note="only with stream; no effect"
    ),
    "service_tier": COMMON["service_tier"],
    "truncation": Parameter(Enum(("disabled",)), "disabled"),
    "background": Parameter(OnlyFalse("responses are made while you wait"), False),
    "store": Parameter(OnlyFalse("responses are not stored; leave it out, or false"), False),
    "previous_response_id": _refused("responses are not stored; send the whole input"),
    "conversation": _refused("conversations are not stored; send the whole input"),
    "prompt": _refused("there are no stored prompts"),
    "max_tool_calls": _refused("there are no built-in tools"),
    "metadata": _ignored(Map(String(max=512), max=16, key_max=64), "given back in the answer"),
    "user": _ignored(String(), "given back in the answer"),
    "safety_identifier": _ignored(String()),
    "prompt_cache_key": _ignored(String(), "prefixes are always cached"),
    "prompt_cache_retention": _ignored(Enum(("in-memory", "in_memory", "24h"))),
}

_PROMPT = Either(
    (
        String(),
        TokenIds(INT32),
        Array(Either((String(), TokenIds(INT32), Array(_TOKEN_ID, min=1))), min=1, max=2048),
    )
)

COMPLETION: dict[str, Parameter] = {
    "prompt": Parameter(
        _PROMPT, note="a string, strings, token ids, or arrays of token ids", required=True
    ),
    **COMMON,
    "max_tokens": Parameter(Integer(0, INT32), 16, "0 with echo: scores the prompt"),
    "logprobs": Parameter(Integer(0, 5), note="of the raw logits; 0: of the drawn token alone"),
    "echo": Parameter(Boolean(), False, "with logprobs: the prompt's too"),
    "best_of": Parameter(Integer(0, 20), note="at least n; 0 is absent; not with stream"),
    "suffix": _refused("this model does not fill in the middle"),
}

GENERATE_SAMPLING: dict[str, Parameter] = {
    **{name: one for name, one in SAMPLING.items() if name not in ("seed", "min_tokens")},
    "top_p": Parameter(Decimal(0, 1, excludes_min=True), 1.0),
    "stop": Parameter(_stop(32)),
    "max_new_tokens": Parameter(Integer(0, INT32), 128),
    "min_new_tokens": Parameter(Integer(0, INT32), 0),
    "sampling_seed": Parameter(Integer(-INT64 - 1, INT64)),
}

_OPTIONS = Object({name: Field(one.shape) for name, one in GENERATE_SAMPLING.items()})

GENERATE: dict[str, Parameter] = {
    "text": Parameter(Either((String(), Array(String(), min=1, max=2048)))),
    "input_ids": Parameter(
        Either((TokenIds(INT32), Array(Array(_TOKEN_ID, min=1), min=1, max=2048)))
    ),
    "sampling_params": Parameter(Either((_OPTIONS, Array(_OPTIONS, min=1)))),
    "stream": Parameter(Boolean(), False, "each event holds the whole text so far"),
    "rid": Parameter(String(1, 128)),
    "return_logprob": Parameter(Boolean(), False),
    "logprob_start_len": Parameter(Integer(-1, INT32), -1, "-1: of the output alone"),
    "top_logprobs_num": Parameter(Integer(0, 20), 0),
    "return_text_in_logprobs": Parameter(Boolean(), False),
    "priority": Parameter(Integer(-INT32, INT32), 0),
    "token_ids_logprob": _refused("logprobs of chosen ids are not returned"),
    "image_data": _refused("this model reads text alone, no images"),
    "lora_path": _refused("LoRA adapters are not built yet"),
    "return_hidden_states": _refused("hidden states are not returned"),
}

TOKENIZE: dict[str, Parameter] = {
    "model": Parameter(String()),
    "prompt": Parameter(Either((String(), Array(String(), max=2048))), required=True),
    "add_special_tokens": Parameter(Boolean(), True),
}

DETOKENIZE: dict[str, Parameter] = {
    "model": Parameter(String()),
    "tokens": Parameter(Either((TokenIds(INT32), Array(_TOKEN_ID))), required=True),
    "skip_special_tokens": Parameter(Boolean(), False),
}

ABORT: dict[str, Parameter] = {
    "rid": Parameter(String(max=128), note="of the request that is to end"),
    "abort_all": Parameter(Boolean(), False, "every request, instead of one"),
}
