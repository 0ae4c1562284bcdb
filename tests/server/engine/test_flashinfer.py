"""Attention by FlashInfer: its rules are asserted by the stand-in, its answers by the reference."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skirret_api.launch import ServerSettings
from skirret_server import engine as engines
from skirret_server.attention.flashinfer import FlashInfer, StaticMemory
from skirret_server.attention.library import VERSION, Library
from skirret_server.attention.reference import Reference
from skirret_server.core import GenerateRequest, Sampling, TokenId
from skirret_server.engine.engine import SteppingEngine
from skirret_server.engine.hardware import hardware
from skirret_server.engine.pool import KvPool
from skirret_server.load.errors import UnsupportedModel
from skirret_server.load.progress import Progress
from skirret_server.model.description import Description
from skirret_server.testing import flashinfer as fake
from skirret_server.testing.flashinfer import fake_hardware, fake_library
from skirret_server.testing.gpu import FakeGpu
from skirret_server.testing.layouts import RandomStep, random_step

ROOT = Path(__file__).parents[3]
PLAIN = Description(8, 8, 8, 1, 6, 2, 16, 99, 1e-6, (None,), tied=True)
NAN = float("nan")

pytestmark = pytest.mark.usefixtures("workspace")

row = st.tuples(st.integers(0, 40), st.integers(1, 9) | st.just(1))


def both(
    step: RandomStep, page_size: int, description: Description = PLAIN
) -> tuple[torch.Tensor, torch.Tensor, FakeGpu]:
    """What the reference gives, and FlashInfer where unused slots hold NaN."""
    gpu = FakeGpu()
    attention = FlashInfer(step.pool(page_size), description, gpu, fake_library(gpu))
    found = attention.plan(step.layout)(0, step.q_TNH, step.k_TKH, step.v_TKH)
    clean = KvPool(step.pool(page_size).kv_L2PSKH.nan_to_num(), page_size)
    attend = Reference(clean, description).plan(step.layout)
    return attend(0, step.q_TNH, step.k_TKH, step.v_TKH), found, gpu


@given(
    rows=st.lists(row, min_size=1, max_size=6),
    page_size=st.sampled_from([1, 4, 16]),
    group=st.sampled_from([1, 2, 3, 4, 7]),
    window=st.sampled_from([0, 1, 7]),
    cap=st.sampled_from([0.0, 2.0]),
    seed=st.integers(0, 100),
)
@settings(max_examples=30, deadline=None)
def test_it_attends_as_the_reference_does_and_reads_no_unused_slot(
    rows: list[tuple[int, int]], page_size: int, group: int, window: int, cap: float, seed: int
) -> None:
    description = replace(PLAIN, query_heads=2 * group, windows=(window,), score_cap=cap)
    step = random_step(rows, page_size, query_heads=2 * group, unused=NAN, seed=seed)
    expected, found, _ = both(step, page_size, description)
    assert (found - expected).abs().max() < 1e-5


@pytest.mark.parametrize("page_size", [16, 1])
def test_a_long_prefix_of_many_is_attended_to_once(page_size: int) -> None:
    pages = 1024 // page_size
    rows = [(1024 + 3 * index, 1) for index in range(9)] + [(1024, 4)]
    step = random_step(rows, page_size, shared=pages, unused=NAN)
    expected, found, gpu = both(step, page_size)
    assert (found - expected).abs().max() < 1e-5
    assert gpu.kernels == 3  # the prefix, the rests, and the prompt


@pytest.mark.parametrize(("sharers", "tokens"), [(7, 1024), (9, 512)])
def test_a_short_prefix_or_one_of_few_is_not(sharers: int, tokens: int) -> None:
    rows = [(tokens + index, 1) for index in range(sharers)]
    step = random_step(rows, 64, shared=tokens // 64, unused=NAN)
    expected, found, gpu = both(step, 64)
    assert (found - expected).abs().max() < 1e-5
    assert gpu.kernels == 1


def test_layers_with_a_window_share_no_prefix() -> None:
    step = random_step([(1024, 1)] * 9, 64, shared=16, unused=NAN)
    expected, found, gpu = both(step, 64, replace(PLAIN, windows=(100,)))
    assert (found - expected).abs().max() < 1e-5
    assert gpu.kernels == 1


def test_a_type_or_size_without_kernels_is_refused_by_name() -> None:
    gpu = FakeGpu()
    step = random_step([(3, 1)], 4)
    known = fake_library(gpu, dtypes=frozenset({torch.bfloat16}))
    with pytest.raises(UnsupportedModel, match="no kernels for float32: give --dtype=bfloat16"):
        FlashInfer(step.pool(4), PLAIN, gpu, known)
    known = fake_library(gpu, head_sizes=frozenset({64, 128}))
    with pytest.raises(UnsupportedModel, match="heads of 16 numbers; .* have 64, 128"):
        FlashInfer(step.pool(4), PLAIN, gpu, known)


def test_without_flashinfer_the_message_says_what_to_install() -> None:
    settings = ServerSettings(device="cpu", attention_backend="flashinfer")
    with pytest.raises(UnsupportedModel, match="runs on a GPU alone"):
        hardware(settings).library()


# The rules, by number; the stand-in has to notice


def plan_of(gpu: FakeGpu, **changes: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    arrays = {
        "indptr": gpu.staged(np.array([0, 1, 3], np.int32)),
        "indices": gpu.put(np.array([1, 2, 3], np.int32)),
        "last": gpu.staged(np.array([2, 4], np.int32)),
    }
    sizes = {"query_heads": 6, "kv_heads": 2, "size": 16, "page_size": 4}
    more = {"q_data_type": torch.float32, "kv_data_type": torch.float32}
    for name, value in changes.items():
        (arrays if name in arrays else sizes if name in sizes else more)[name] = value
    return (*arrays.values(), *sizes.values()), {k: v for k, v in more.items() if v is not None}


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"q_data_type": None}, "q_data_type is left"),
        ({"kv_data_type": None}, "kv_data_type is left"),
        ({"kv_data_type": torch.float64}, "9"),
        ({"indptr": torch.tensor([0, 1, 3], dtype=torch.int32)}, "indptr is not on the host"),
        ({"indptr": FakeGpu().staged(np.array([0, 1, 3]))}, "indptr is torch.int64"),
        ({"indptr": FakeGpu().staged(np.array([1, 2, 4], np.int32))}, "begin at 0"),
        ({"indptr": FakeGpu().staged(np.array([0, 0, 3], np.int32))}, "a row has no pages"),
        ({"indices": FakeGpu().staged(np.array([1, 2, 3], np.int32))}, "not on the device"),
        ({"indices": FakeGpu().put(np.array([1, 2], np.int32))}, "more or fewer pages"),
        ({"last": FakeGpu().staged(np.array([0, 4], np.int32))}, "last page"),
        ({"last": FakeGpu().staged(np.array([5, 4], np.int32))}, "last page"),
        ({"kv_heads": 4}, "tensor cores|divide"),
        ({"size": 80}, "9"),
        ({"fixed_split_size": 4}, "fixed_split_size is nothing"),
    ],
)
def test_a_broken_rule_is_noticed(
    changes: dict[str, Any], rule: str, workspace: torch.Tensor
) -> None:
    gpu = FakeGpu()
    decode = fake_library(gpu).decode(workspace, use_tensor_cores=True, backend="fa2")
    arguments, more = plan_of(gpu, **changes)
    with pytest.raises(AssertionError, match=rule):
        decode.plan(*arguments, **more)


def test_odd_groups_need_tensor_cores(workspace: torch.Tensor) -> None:
    gpu = FakeGpu()
    decode = fake_library(gpu).decode(workspace, backend="fa2")
    arguments, more = plan_of(gpu)
    with pytest.raises(AssertionError, match="no kernel without tensor cores"):
        decode.plan(*arguments, **more)


def test_causal_has_to_be_said(workspace: torch.Tensor) -> None:
    gpu = FakeGpu()
    prefill = fake_library(gpu).prefill(workspace, backend="fa2")
    arguments, more = plan_of(gpu)
    tokens = gpu.staged(np.array([0, 2, 3], np.int32))
    with pytest.raises(AssertionError, match="causal is left to its default"):
        prefill.plan(tokens, *arguments, **more)
    prefill.plan(tokens, *arguments, causal=True, **more)


def test_kernels_have_to_be_named(workspace: torch.Tensor) -> None:
    with pytest.raises(AssertionError, match="backend 'auto'"):
        fake_library(FakeGpu()).decode(workspace)


def test_what_a_plan_staged_must_be_copied_before_the_next(workspace: torch.Tensor) -> None:
    gpu = FakeGpu()
    decode = fake_library(gpu).decode(workspace, use_tensor_cores=True, backend="fa2")
    arguments, more = plan_of(gpu)
    decode.plan(*arguments, **more)
    with pytest.raises(AssertionError, match="may still be being copied"):
        decode.plan(*arguments, **more)
    copied = gpu.event()
    copied.record()
    copied.synchronize()
    decode.plan(*arguments, **more)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda q, kv: (q[:1], kv), "not what was planned"),
        (lambda q, kv: (q.half(), kv), "types are not those"),
        (lambda q, kv: (q.mT.contiguous().mT, kv), "not contiguous"),
        (lambda q, kv: (q, (kv[0], kv[1].mT.contiguous().mT)), "keys and values differ"),
        (lambda q, kv: (q, (kv[0][:2], kv[1][:2])), "outside of the pool"),
    ],
)
def test_so_is_a_run_that_is_not_what_was_planned(
    change: Callable[..., Any], rule: str, workspace: torch.Tensor
) -> None:
    gpu = FakeGpu()
    decode = fake_library(gpu).decode(workspace, use_tensor_cores=True, backend="fa2")
    kv = (torch.zeros(4, 4, 2, 16), torch.zeros(4, 4, 2, 16))
    with pytest.raises(AssertionError, match="before it was planned"):
        decode.run(torch.zeros(2, 6, 16), kv)
    arguments, more = plan_of(gpu)
    decode.plan(*arguments, **more)
    decode.run(torch.zeros(2, 6, 16), kv)
    with pytest.raises(AssertionError, match=rule):
        decode.run(*change(torch.zeros(2, 6, 16), kv))


# Graphs


def test_a_graph_reads_where_it_was_recorded(workspace: torch.Tensor) -> None:
    """Three steps of two rows in one graph: the last must not see the first's pages."""
    gpu = FakeGpu()
    steps = [random_step([(5 + at, 1), (9, 1)], 4, unused=NAN, seed=at) for at in range(3)]
    pool = steps[0].pool(4)
    attention = FlashInfer(pool, PLAIN, gpu, fake_library(gpu))
    memory = StaticMemory(2, 16, gpu.place)
    static = attention.static(2, memory)
    q, k, v, out = (torch.empty(2, heads, 16) for heads in (6, 2, 2, 6))
    graph = gpu.graph()
    static.plan(steps[0].layout)
    with graph.capture():
        out.copy_(static.attend(0, q, k, v))
    for step in steps:
        pool.kv_L2PSKH.copy_(step.pool(4).kv_L2PSKH)
        for place, value in ((q, step.q_TNH), (k, step.k_TKH), (v, step.v_TKH)):
            place.copy_(value)
        memory.slots.copy_(torch.from_numpy(step.layout.slots))
        static.plan(step.layout)
        graph.replay()
        assert (out - both(step, 4)[0]).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("work", "complaint"),
    [
        (lambda gpu, x: x.sum().item(), "item can't be captured"),
        (lambda gpu, x: x.add_(torch.tensor([1.0])), "lift_fresh can't be captured"),
        (lambda gpu, x: x[x > 0], "by a mask can't be captured"),
        (lambda gpu, x: gpu.put(np.zeros(1)), "a copy from the host can't be captured"),
        (lambda gpu, x: gpu.fetch(x), "a copy to the host can't be captured"),
        (lambda gpu, x: gpu.event().synchronize(), "waiting for an event can't be captured"),
    ],
)
def test_what_waits_for_a_device_or_its_host_is_not_captured(
    work: Callable[[FakeGpu, torch.Tensor], object], complaint: str
) -> None:
    gpu = FakeGpu()
    with torch.inference_mode():
        x = torch.ones(2)
    with (
        torch.inference_mode(),
        pytest.raises(AssertionError, match=complaint),
        gpu.graph().capture(),
    ):
        work(gpu, x)


def test_a_replay_calls_nothing_but_what_was_recorded() -> None:
    """Numbers of Python are frozen; what was made within is made anew, on the same memory."""
    gpu, x, factor = FakeGpu(), torch.ones(2), 2.0
    graph = gpu.graph()
    with graph.capture():
        y = x * factor
    assert y.isnan().all()
    factor = 3.0
    x.fill_(5.0)
    graph.replay()
    assert y.tolist() == [10.0, 10.0]


# The engine


@pytest.fixture
async def open_on(tiny: Path) -> AsyncIterator[Callable[..., SteppingEngine]]:
    opened: list[SteppingEngine] = []

    def open_(gpu: FakeGpu | None, **options: object) -> SteppingEngine:
        settings = ServerSettings.model_validate(
            {"max_total_tokens": 1024, "dtype": "float32", "max_running_requests": 8, **options}
        )
        make = hardware if gpu is None else (lambda _: fake_hardware(gpu))
        opened.append(engines.open(settings, tiny, Progress(), unexpected, make))
        return opened[-1]

    yield open_
    for each in opened:
        await each.close()


def unexpected(reason: str, message: str) -> None:
    raise AssertionError(f"{reason}: {message}")


PROMPTS = [b"hello there", b"hello there you", b"a", b"the quick brown fox " * 3]


async def answers(engine: SteppingEngine, rounds: int = 2) -> list[list[TokenId]]:
    """The second round finds its prompts in the cache."""

    async def answer(prompt: bytes, count: int) -> list[TokenId]:
        sampling = Sampling(max_tokens=count, temperature=0.0, ignore_eos=True, logprobs=1)
        request = GenerateRequest("", list(prompt), sampling)
        return [token async for update in engine.generate(request) for token in update.tokens]

    given = []
    for _ in range(rounds):
        asked = (answer(prompt, 6 + 3 * at) for at, prompt in enumerate(PROMPTS))
        given += await asyncio.gather(*asked)
    return given


def poison(engine: SteppingEngine) -> None:
    """NaN into every page that is given back."""
    pages = engine._stepper._scheduler.cache.pool
    kv = engine._stepper._runner._forward.pool.kv_L2PSKH  # type: ignore[attr-defined]
    give = pages.give

    def give_poisoned(pages: Iterable[int]) -> None:
        given = list(pages)
        kv[:, :, given] = torch.nan
        give(given)

    pages.give = give_poisoned  # type: ignore[method-assign]
    kv[:, :, 1:] = torch.nan


@pytest.mark.parametrize(
    "options",
    [
        {"page_size": 1},
        {"page_size": 16, "chunked_prefill_size": 16},
        {"page_size": 4, "disable_cuda_graph": True},
        {"page_size": 4, "max_total_tokens": 96, "disable_radix_cache": True},
    ],
)
async def test_the_engine_answers_as_on_the_reference_whatever_freed_pages_hold(
    open_on: Callable[..., SteppingEngine], options: dict[str, Any]
) -> None:
    expected = await answers(open_on(None, max_total_tokens=2048), rounds=1)
    gpu = FakeGpu()
    engine = open_on(gpu, **options)
    poison(engine)
    assert await answers(engine) == expected * 2
    assert (gpu.replays > 10) is not options.get("disable_cuda_graph", False)


# Against the wheel itself


@cache
def source(module: str) -> ast.Module:
    folder = Path(os.environ.get("SKIRRET_CACHE", ROOT / ".cache"))
    file = folder / f"flashinfer/{VERSION}/{module}.py"
    assert file.exists(), f"{file} is missing: make setup fetches FlashInfer's source"
    return ast.parse(file.read_text("utf-8"))


def signature_in(module: str, name: str, method: str = "") -> list[tuple[str, str | None]]:
    """Names and defaults; of overloads, the last is the one that is called."""
    nodes: list[Any] = source(module).body
    if method:
        nodes = next(x for x in nodes if isinstance(x, ast.ClassDef) and x.name == name).body
    called = [x for x in nodes if isinstance(x, ast.FunctionDef) and x.name == (method or name)][
        -1
    ].args
    plain = called.posonlyargs + called.args
    defaults: list[Any] = [None] * (len(plain) - len(called.defaults)) + called.defaults
    pairs = [*zip(plain, defaults, strict=True)]
    pairs += [*zip(called.kwonlyargs, called.kw_defaults, strict=True)]
    return [(arg.arg, None if default is None else ast.unparse(default)) for arg, default in pairs]


def signature_of(function: Any) -> list[tuple[str, str | None]]:
    return [
        (each.name, None if each.default is each.empty else repr(each.default))
        for each in inspect.signature(function).parameters.values()
        if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]


DECODE, PREFILL = "BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper"


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (fake.FakeDecode.__init__, ("decode", DECODE, "__init__")),
        (fake.FakeDecode.plan, ("decode", DECODE, "_plan_impl")),
        (fake.FakeDecode.run, ("decode", DECODE, "run")),
        (fake.FakePrefill.__init__, ("prefill", PREFILL, "__init__")),
        (fake.FakePrefill.plan, ("prefill", PREFILL, "plan")),
        (fake.FakePrefill.run, ("prefill", PREFILL, "run")),
        (fake.merge_state_in_place, ("cascade", "merge_state_in_place")),
        (fake.top_k_mask_logits, ("sampling", "top_k_mask_logits")),
        (fake.top_p_renorm_probs, ("sampling", "top_p_renorm_probs")),
        (fake.sampling_from_probs, ("sampling", "sampling_from_probs")),
        (fake.top_p_sampling_from_probs, ("sampling", "top_p_sampling_from_probs")),
        (fake.min_p_sampling_from_probs, ("sampling", "min_p_sampling_from_probs")),
    ],
)
def test_the_stand_in_is_called_as_flashinfer_is(ours: Any, theirs: tuple[str, ...]) -> None:
    assert signature_of(ours) == signature_in(*theirs)


def test_every_name_that_we_call_is_compared() -> None:
    functions = {
        name for name, field in Library.__dataclass_fields__.items() if "Callable" in field.type
    }
    assert functions - {"prefill", "decode"} == {
        name for name in functions if callable(getattr(fake, name, None))
    }


def test_the_version_that_is_pinned_is_the_one_that_is_compared() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"flashinfer-python=={VERSION}" in project["optional-dependencies"]["cuda"]
