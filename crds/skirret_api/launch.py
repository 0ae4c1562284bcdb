"""The server's launch settings: one definition, rendered as flags, parsed from flags, documented.

The operator renders `InferenceModel.spec.server` with `to_flags`; the server parses the same text
with `from_flags`. Names follow SGLang's where the concept is the same.
"""

from __future__ import annotations

import argparse
import types
from collections.abc import Sequence
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo


class ServerSettings(BaseModel):
    """How one model is served. Every field is a flag of `python -m skirret_server serve`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    context_length: int | None = Field(
        default=None,
        ge=1,
        description="Longest prompt and answer, in tokens; the model's by default",
    )
    max_running_requests: int = Field(
        default=64, ge=1, le=4096, description="Sequences decoded together"
    )
    max_queued_requests: int = Field(
        default=512, ge=1, description="Requests that may wait; more are refused with 429"
    )
    chunked_prefill_size: int = Field(
        default=512, ge=16, description="Tokens of prompts and decodes in one step"
    )
    max_total_tokens: int | None = Field(
        default=None, ge=64, description="Size of the KV cache, in tokens; from memory by default"
    )
    mem_fraction_static: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="Share of the memory for weights and KV cache; 0.5, and 0.85 of a GPU's",
    )
    page_size: int = Field(default=16, ge=1, le=256, description="Tokens in a page of the KV cache")
    schedule_policy: Literal["lpm", "fcfs"] = Field(
        default="lpm", description="Longest prefix match first, or first come first served"
    )
    radix_eviction_policy: Literal["lru", "slru", "priority"] = Field(
        default="lru",
        description="Which cached prefix goes first: the one used longest ago; that, but those hit "
        "twice last; or those of low priority",
    )
    disable_radix_cache: bool = Field(default=False, description="Reuse no prefix")
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        default="auto", description="Of weights and cache; auto takes what this machine is fast at"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="Where the model runs; auto takes a GPU if there is one"
    )
    tensor_parallel_size: int = Field(
        default=1, ge=1, le=64, description="Devices to split the model over, each with a process"
    )
    disable_cuda_graph: bool = Field(
        default=False, description="Launch every kernel by itself on a GPU, for finding faults"
    )
    attention_backend: Literal["auto", "reference", "cpu", "flashinfer"] = Field(
        default="auto", description="Which attention to run"
    )
    chat_template: str | None = Field(
        default=None, description="A file with a Jinja chat template, instead of the model's own"
    )
    tool_call_parser: Literal["auto", "hermes", "llama", "mistral"] = Field(
        default="auto", description="How the model writes calls; auto asks its chat template"
    )
    reasoning_parser: Literal["auto", "off"] = Field(
        default="auto", description="Answer what comes between <think> tags as reasoning_content"
    )
    max_answer_tokens: int = Field(
        default=1_048_576,
        ge=1,
        description="Most that one request may ask for: prompts x choices x max_tokens",
    )
    strict_openai: bool = Field(
        default=False,
        description="Refuse json_object when no message mentions JSON, as OpenAI does",
    )
    grammar_cache_path: str | None = Field(
        default=None, description="Folder that keeps compiled grammars; none are kept without it"
    )
    validate_structured: bool = Field(
        default=False,
        description="Check every structured answer after it ends; count those that break its rules",
    )
    random_seed: int | None = Field(default=None, description="Seed of unseeded sampling")
    watchdog_timeout: float = Field(
        default=300.0, gt=0, description="Seconds a step may take before the server exits"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="How much the log tells"
    )
    log_requests: bool = Field(
        default=False,
        description="One line for every request: id, counts and times, never its text",
    )


class LaunchSettings(ServerSettings):
    """All of `serve`: the model's settings, and where this one process listens and stores."""

    model_path: str = Field(description="A folder, or hf:// s3:// pvc:// file:// URI, of the model")
    served_model_name: tuple[str, ...] = Field(
        default=(), description="Names it answers to; the folder's name by default"
    )
    host: str = Field(default="127.0.0.1", description="Address to listen on")
    port: int = Field(default=30000, ge=1, le=65535, description="Port to listen on")
    api_key: str | None = Field(default=None, repr=False, description="Key that clients must send")
    cors_origins: tuple[str, ...] = Field(
        default=(), description="Origins whose browsers may call it; * is every one"
    )
    debug: bool = Field(
        default=False, description="Answer /debug/accounting: what live requests hold"
    )
    internal_token_file: str | None = Field(
        default=None, description="File with the token of our own gateway"
    )
    files: Literal["on", "off"] = Field(
        default="on", description="Answer /v1/files and /v1/batches from a local folder"
    )
    file_storage_path: str = Field(
        default="skirret-storage", description="Folder of files and batches when --files is on"
    )
    drain_timeout: float = Field(
        default=30.0, ge=0, description="Seconds that streams may go on after SIGTERM"
    )


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def to_flags(settings: ServerSettings) -> list[str]:
    """Flags that say what differs from the defaults, in the order of the fields."""
    flags: list[str] = []
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if value == field.default or value is None:
            continue
        if value is True:
            flags.append(flag(name))
        elif isinstance(value, tuple):
            flags += [flag(name), *value]
        else:
            flags.append(f"{flag(name)}={value}")
    return flags


def add_flags(parser: argparse.ArgumentParser, settings: type[ServerSettings]) -> None:
    for name, field in settings.model_fields.items():
        parser.add_argument(flag(name), dest=name, **_argument(field))


def from_flags(arguments: Sequence[str]) -> LaunchSettings:
    """Settings of `serve [MODEL] FLAGS`; exits with a usage message on an unknown flag."""
    parser = argparse.ArgumentParser(
        prog="python -m skirret_server serve", argument_default=argparse.SUPPRESS
    )
    parser.add_argument("model", nargs="?", help="the model, as --model-path")
    add_flags(parser, LaunchSettings)
    given: dict[str, Any] = vars(parser.parse_args(arguments))
    positional = given.pop("model", None)
    if positional is not None:
        if "model_path" in given:
            parser.error("give the model once: as MODEL or as --model-path")
        given["model_path"] = positional
    if "model_path" not in given:
        parser.error("which model? Give a folder or URI as MODEL")
    if "served_model_name" in given:
        given["served_model_name"] = tuple(given["served_model_name"])
    if "cors_origins" in given:
        given["cors_origins"] = tuple(given["cors_origins"])
    return LaunchSettings(**given)


def _argument(field: FieldInfo) -> dict[str, Any]:
    help_text = (field.description or "").replace("%", "%%")
    if field.default not in (None, (), False) and not field.is_required():
        help_text += f" ({field.default})"
    kind = _plain(field.annotation)
    if kind is bool:
        return {"action": "store_true", "help": help_text}
    if get_origin(kind) is tuple:
        return {"nargs": "+", "help": help_text}
    if get_origin(kind) is Literal:
        return {"choices": get_args(kind), "help": help_text}
    return {"type": kind, "help": help_text}


def _plain(annotation: Any) -> Any:
    """The type behind `X | None`."""
    if get_origin(annotation) in (Union, types.UnionType):
        return next(x for x in get_args(annotation) if x is not type(None))
    return annotation
