"""A stand-in for FlashInfer that computes in float32 and asserts what the real one leaves to luck.

Signatures are those of flashinfer-python 0.7.4; a test compares them with its source. Numbers in
brackets are of the rules:

 1 both data types are given, since q's default is float16 whatever the cache's is
 2 `causal` is given, since its default is not
 3 row pointers and lengths of last pages lie on the host as int32, page numbers on the device; no
   row is without pages, and no last page empty
 4 as many queries as planned, contiguous; key-value heads divide query heads
 5 keys and values are laid out alike
 6 the workspace is bytes, large enough, aligned, and zeros at first; a wrapper is planned again
   only when what the last plan staged is copied
 7 in a graph: as many rows as the buffers have, never more pages; never planned within; window,
   heads and types stay the same
 8 without tensor cores, groups of one or two query heads
 9 head sizes and data types for which there are kernels
10 the kernels are named, since the choice of "auto" differs by GPU
11 log-sum-exp is to base 2
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from skirret_server.attention.library import Library
from skirret_server.engine import machine
from skirret_server.engine.hardware import Hardware
from skirret_server.testing.gpu import FakeGpu, is_put, is_staged

_LEAST_WORKSPACE = 128 << 20

# B rows, T tokens of a row, S tokens it sees, N query heads, K key-value heads, H head size


def fake_library(
    gpu: FakeGpu,
    *,
    dtypes: frozenset[torch.dtype] = frozenset({torch.float16, torch.bfloat16, torch.float32}),
    head_sizes: frozenset[int] = frozenset({16, 24, 64, 128, 256}),
) -> Library:
    """Knows more types and sizes than the real one, for tiny models and exact answers."""
    known = {"gpu": gpu, "dtypes": dtypes, "head_sizes": head_sizes}
    return Library(
        prefill=type("Prefill", (FakePrefill,), known),
        decode=type("Decode", (FakeDecode,), known),
        merge_state_in_place=merge_state_in_place,
        top_k_mask_logits=top_k_mask_logits,
        top_p_renorm_probs=top_p_renorm_probs,
        sampling_from_probs=sampling_from_probs,
        top_p_sampling_from_probs=top_p_sampling_from_probs,
        min_p_sampling_from_probs=min_p_sampling_from_probs,
        dtypes=dtypes,
        head_sizes=head_sizes,
    )


def _given(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Refuses calls that leave these to their defaults [1, 2]."""

    def decorate(plan: Callable[..., None]) -> Callable[..., None]:
        @wraps(plan)
        def checked(self: Any, *arguments: Any, **more: Any) -> None:
            for name in names:
                assert more.get(name) is not None, f"plan: {name} is left to its default"
            plan(self, *arguments, **more)

        return checked

    return decorate


class _Wrapper:
    """What both wrappers have in common."""

    gpu: FakeGpu
    dtypes: frozenset[torch.dtype]
    head_sizes: frozenset[int]

    def _construct(self, workspace: Tensor, kv_layout: str, backend: str, is_graph: bool) -> None:
        assert backend == "fa2", f"backend {backend!r} is not named [10]"
        assert kv_layout == "NHD", "our pages are tokens, heads, numbers"
        assert workspace.dtype == torch.uint8, "the workspace is no bytes [6]"
        assert workspace.numel() >= _LEAST_WORKSPACE, "the workspace is small [6]"
        assert workspace.data_ptr() % 16 == 0, "the workspace is not aligned [6]"
        assert not workspace[:4096].any(), "the workspace is no zeros [6]"
        assert self.gpu.capturing is None, "a wrapper is made within a graph [7]"
        self._is_graph = is_graph
        self._staged = 0  # number of the copy of what the last plan staged
        self._frozen: tuple[Any, ...] | None = None
        self._qo: list[int] | None = None  # None: not planned

    def _plan(
        self,
        qo_indptr: Tensor,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        heads: tuple[int, int, int],
        page_size: int,
        *,
        causal: bool,
        window_left: int,
        logits_soft_cap: float | None,
        sm_scale: float | None,
        dtypes: tuple[Any, Any],
        unused: dict[str, Any],
    ) -> None:
        assert self.gpu.capturing is None, "planned within a graph [7]"
        assert self.gpu.done >= self._staged, "the last plan may still be being copied [6]"
        for name, value in unused.items():
            assert not value, f"{name} is nothing that this stand-in knows"
        for name, array in (("indptr", indptr), ("last_page_len", last_page_len)):
            assert is_staged(array), f"{name} is not on the host [3]"
            assert array.dtype == torch.int32, f"{name} is {array.dtype} [3]"
        assert is_put(indices), "page numbers are not on the device [3]"
        assert indices.dtype == torch.int32, f"page numbers are {indices.dtype} [3]"
        rows = len(last_page_len)
        assert 1 < len(indptr) == rows + 1 == len(qo_indptr), "rows don't agree [3]"
        assert int(indptr[0]) == int(qo_indptr[0]) == 0, "pointers don't begin at 0 [3]"
        assert bool((indptr.diff() > 0).all()), "a row has no pages [3]"
        assert bool((qo_indptr.diff() > 0).all()), "a row has no tokens [3]"
        assert len(indices) == int(indptr[-1]), "more or fewer pages than pointers say [3]"
        assert bool(((last_page_len >= 1) & (last_page_len <= page_size)).all()), "last page [3]"
        query_heads, kv_heads, head_dim = heads
        assert query_heads % kv_heads == 0, "key-value heads don't divide query heads [4]"
        assert head_dim in self.head_sizes, f"no kernels for heads of {head_dim} [9]"
        assert set(dtypes) <= self.dtypes, f"no kernels for {dtypes} [9]"
        frozen = (heads, page_size, causal, window_left, logits_soft_cap, sm_scale, dtypes)
        if self._is_graph:
            assert self._frozen in (None, frozen), "a graph's shape changed [7]"
        self._frozen = frozen
        self._qo = qo_indptr.tolist()
        self._tables = self._stored(indptr, indices, last_page_len)
        self._staged = self.gpu.launch_copy()

    def _stored(self, indptr: Tensor, indices: Tensor, last: Tensor) -> tuple[Tensor, ...]:
        return indptr.clone(), indices.clone(), last.clone()

    def _run(
        self, q: Tensor, kv: Any, out: Tensor | None, return_lse: bool, unused: dict[str, Any]
    ) -> Any:
        for name, value in unused.items():
            assert not value, f"{name} is nothing that this stand-in knows"
        assert self._qo is not None, "run before it was planned"
        assert self._frozen is not None
        (query_heads, kv_heads, head_dim), page_size, *_, dtypes = self._frozen
        k, v = kv
        assert q.shape == (self._qo[-1], query_heads, head_dim), "not what was planned [4]"
        assert q.is_contiguous(), "queries are not contiguous [4]"
        assert (q.dtype, k.dtype) == tuple(dtypes), "types are not those of the plan [1]"
        assert (k.shape, k.stride()) == (v.shape, v.stride()), "keys and values differ [5]"
        assert k.shape[1:] == (page_size, kv_heads, head_dim), "not the pages that were planned"
        if out is not None:
            assert out.shape == q.shape
            assert out.dtype == q.dtype
            assert out.is_contiguous()

        def compute() -> tuple[Tensor, ...]:
            result, lse = self._attend(q, k, v)
            return (result, lse) if out is None else (out.copy_(result), lse)

        result, lse = self.gpu.opaque(compute)
        return (result, lse) if return_lse else result

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        assert self._qo is not None
        assert self._frozen is not None
        heads, page_size, causal, window_left, cap, scale, _ = self._frozen
        group = heads[0] // heads[1]
        indptr, indices, last = (each.tolist() for each in self._tables)
        assert max(indices[: indptr[-1]]) < len(k), "a page outside of the pool"
        out, lse = torch.empty_like(q), torch.empty(q.shape[:2])
        qo = self._qo
        for row in range(len(last)):
            pages = indices[indptr[row] : indptr[row + 1]]
            seen = (len(pages) - 1) * page_size + last[row]
            k_SNH, v_SNH = (
                each[pages].flatten(0, 1)[:seen].float().repeat_interleave(group, 1)
                for each in (k, v)
            )
            mine = slice(qo[row], qo[row + 1])
            scores_NTS = torch.einsum("tnh,snh->nts", q[mine].float(), k_SNH) * (
                scale or heads[2] ** -0.5
            )
            if cap:
                scores_NTS = torch.tanh(scores_NTS / cap) * cap
            tokens = qo[row + 1] - qo[row]
            # The last query is at the last key.
            distance = torch.arange(seen - tokens, seen)[:, None] - torch.arange(seen)[None, :]
            hidden = torch.zeros_like(distance, dtype=torch.bool)
            if causal:
                hidden |= distance < 0
            if window_left >= 0:
                hidden |= distance > window_left
            scores_NTS = scores_NTS.masked_fill(hidden, -torch.inf)
            out[mine] = torch.einsum("nts,snh->tnh", scores_NTS.softmax(-1), v_SNH).to(q.dtype)
            lse[mine] = scores_NTS.logsumexp(-1).T / math.log(2)  # [11]
        return out, lse


class FakeDecode(_Wrapper):
    """BatchDecodeWithPagedKVCacheWrapper."""

    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: Tensor | None = None,
        paged_kv_indices_buffer: Tensor | None = None,
        paged_kv_last_page_len_buffer: Tensor | None = None,
        backend: str = "auto",
        jit_args: Any = None,
        jit_kwargs: Any = None,
    ) -> None:
        assert not jit_args
        assert not jit_kwargs
        self._construct(float_workspace_buffer, kv_layout, backend, use_cuda_graph)
        self._use_tensor_cores = use_tensor_cores
        buffers = (paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer)
        assert all((each is not None) == use_cuda_graph for each in buffers), "buffers [7]"
        self._buffers: tuple[Any, ...] = buffers
        if use_cuda_graph:
            assert len(buffers[0]) == len(buffers[2]) + 1, "buffers don't agree [7]"  # type: ignore[arg-type]

    @_given("q_data_type", "kv_data_type")
    def plan(
        self,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        pos_encoding_mode: str = "NONE",
        window_left: int = -1,
        window_right: int = 0,
        logits_soft_cap: float | None = None,
        q_data_type: Any = "float16",
        kv_data_type: Any = None,
        o_data_type: Any = None,
        data_type: Any = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        non_blocking: bool = True,
        block_tables: Tensor | None = None,
        seq_lens: Tensor | None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
        q_len_per_req: int = 1,
        is_causal: bool | None = None,
        use_token_head_sf: bool = False,
    ) -> None:
        assert pos_encoding_mode == "NONE"
        assert q_len_per_req == 1
        assert non_blocking
        group = num_qo_heads // num_kv_heads
        assert self._use_tensor_cores or group in (1, 2), "no kernel without tensor cores [8]"
        if self._is_graph:
            assert len(last_page_len) == len(self._buffers[2]), "a graph's rows changed [7]"
            assert len(indices) <= len(self._buffers[1]), "more pages than the buffer holds [7]"
        self._plan(
            torch.arange(len(last_page_len) + 1, dtype=torch.int32),
            indptr,
            indices,
            last_page_len,
            (num_qo_heads, num_kv_heads, head_dim),
            page_size,
            causal=False,
            window_left=window_left,
            logits_soft_cap=logits_soft_cap,
            sm_scale=sm_scale,
            dtypes=(q_data_type, kv_data_type),
            unused={
                "window_right": window_right,
                "o_data_type": o_data_type,
                "data_type": data_type,
                "rope_scale": rope_scale,
                "rope_theta": rope_theta,
                "block_tables": block_tables,
                "seq_lens": seq_lens,
                "fixed_split_size": fixed_split_size,
                "disable_split_kv": disable_split_kv,
                "is_causal": is_causal,
                "use_token_head_sf": use_token_head_sf,
            },
        )

    def _stored(self, indptr: Tensor, indices: Tensor, last: Tensor) -> tuple[Tensor, ...]:
        if not self._is_graph:
            return super()._stored(indptr, indices, last)
        self._buffers[0].copy_(indptr)
        self._buffers[1][: len(indices)].copy_(indices)
        self._buffers[2].copy_(last)
        return self._buffers

    def run(
        self,
        q: Tensor,
        paged_kv_cache: Any,
        *args: Any,
        q_scale: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        return_lse: bool = False,
        enable_pdl: bool | None = None,
        window_left: int | None = None,
        sinks: Tensor | None = None,
        q_len_per_req: int | None = None,
        skip_softmax_threshold_scale_factor: float | None = None,
        kv_cache_sf: Any = None,
    ) -> Any:
        unused = {
            "args": args,
            "scales": q_scale or k_scale or v_scale,
            "lse": lse is not None,
            "enable_pdl": enable_pdl,
            "window_left": window_left,
            "sinks": sinks,
            "q_len_per_req": q_len_per_req,
            "skip_softmax_threshold_scale_factor": skip_softmax_threshold_scale_factor,
            "kv_cache_sf": kv_cache_sf,
        }
        return self._run(q, paged_kv_cache, out, return_lse, unused)


class FakePrefill(_Wrapper):
    """BatchPrefillWithPagedKVCacheWrapper."""

    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: Tensor | None = None,
        paged_kv_indptr_buf: Tensor | None = None,
        paged_kv_indices_buf: Tensor | None = None,
        paged_kv_last_page_len_buf: Tensor | None = None,
        custom_mask_buf: Tensor | None = None,
        mask_indptr_buf: Tensor | None = None,
        backend: str = "auto",
        jit_args: Any = None,
        jit_kwargs: Any = None,
        variant_owns_mask: bool = False,
        max_total_num_rows: int | None = None,
    ) -> None:
        buffers = (
            qo_indptr_buf,
            paged_kv_indptr_buf,
            paged_kv_indices_buf,
            paged_kv_last_page_len_buf,
            custom_mask_buf,
            mask_indptr_buf,
        )
        assert all(each is None for each in buffers)
        assert not use_cuda_graph
        assert not jit_args
        assert not jit_kwargs
        assert not variant_owns_mask
        assert max_total_num_rows is None
        self._construct(float_workspace_buffer, kv_layout, backend, use_cuda_graph)

    @_given("causal", "q_data_type", "kv_data_type")
    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,
        custom_mask: Tensor | None = None,
        packed_custom_mask: Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: Any = "float16",
        kv_data_type: Any = None,
        o_data_type: Any = None,
        non_blocking: bool = True,
        prefix_len_ptr: Tensor | None = None,
        token_pos_in_items_ptr: Tensor | None = None,
        token_pos_in_items_len: int = 0,
        max_item_len_ptr: Tensor | None = None,
        seq_lens: Tensor | None = None,
        seq_lens_q: Tensor | None = None,
        block_tables: Tensor | None = None,
        max_token_per_sequence: int | None = None,
        max_sequence_kv: int | None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
        uniform_q_len: int | None = None,
        use_token_head_sf: bool = False,
    ) -> None:
        assert pos_encoding_mode == "NONE"
        assert non_blocking
        assert is_staged(qo_indptr), "qo_indptr is not on the host [3]"
        assert qo_indptr.dtype == torch.int32, f"qo_indptr is {qo_indptr.dtype} [3]"
        self._plan(
            qo_indptr,
            paged_kv_indptr,
            paged_kv_indices,
            paged_kv_last_page_len,
            (num_qo_heads, num_kv_heads, head_dim_qk),
            page_size,
            causal=causal,
            window_left=window_left,
            logits_soft_cap=logits_soft_cap,
            sm_scale=sm_scale,
            dtypes=(q_data_type, kv_data_type),
            unused={
                "head_dim_vo": head_dim_vo,
                "custom_mask": custom_mask,
                "packed_custom_mask": packed_custom_mask,
                "use_fp16_qk_reduction": use_fp16_qk_reduction,
                "rope_scale": rope_scale,
                "rope_theta": rope_theta,
                "o_data_type": o_data_type,
                "prefix_len_ptr": prefix_len_ptr,
                "token_pos_in_items_ptr": token_pos_in_items_ptr,
                "token_pos_in_items_len": token_pos_in_items_len,
                "max_item_len_ptr": max_item_len_ptr,
                "seq_lens": seq_lens,
                "seq_lens_q": seq_lens_q,
                "block_tables": block_tables,
                "max_token_per_sequence": max_token_per_sequence,
                "max_sequence_kv": max_sequence_kv,
                "fixed_split_size": fixed_split_size,
                "disable_split_kv": disable_split_kv,
                "uniform_q_len": uniform_q_len,
                "use_token_head_sf": use_token_head_sf,
            },
        )

    def run(
        self,
        q: Tensor,
        paged_kv_cache: Any,
        *args: Any,
        q_scale: Any = None,
        k_scale: Any = None,
        v_scale: Any = None,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        return_lse: bool = False,
        lse_base: str = "log2",
        lse_layout: str = "NH",
        enable_pdl: bool | None = None,
        window_left: int | None = None,
        sinks: Tensor | None = None,
        kv_cache_sf: Any = None,
        skip_softmax_threshold_scale_factor: float | None = None,
        use_fp16_softmax: bool | None = None,
        uses_spcompress: bool | None = None,
    ) -> Any:
        assert lse_base == "log2"
        assert lse_layout == "NH"
        unused = {
            "args": args,
            "scales": q_scale or k_scale or v_scale,
            "lse": lse is not None,
            "enable_pdl": enable_pdl,
            "window_left": window_left,
            "sinks": sinks,
            "kv_cache_sf": kv_cache_sf,
            "skip_softmax_threshold_scale_factor": skip_softmax_threshold_scale_factor,
            "use_fp16_softmax": use_fp16_softmax,
            "uses_spcompress": uses_spcompress,
        }
        return self._run(q, paged_kv_cache, out, return_lse, unused)


def merge_state_in_place(
    v: Tensor, s: Tensor, v_other: Tensor, s_other: Tensor, mask: Tensor | None = None
) -> None:
    assert mask is None
    assert s.dtype == s_other.dtype == torch.float32
    total = torch.logaddexp2(s, s_other)
    mine, theirs = (torch.exp2(each - total).unsqueeze(-1) for each in (s, s_other))
    v.copy_((v.float() * mine + v_other.float() * theirs).to(v.dtype))
    s.copy_(total)


def top_k_mask_logits(logits: Tensor, top_k: Any) -> Tensor:
    assert logits.dtype == torch.float32
    assert is_put(top_k)
    assert top_k.dtype == torch.int32
    floor = logits.sort(-1, descending=True).values.gather(1, top_k.long().unsqueeze(1) - 1)
    return logits.masked_fill(logits < floor, -torch.inf)


def top_p_renorm_probs(probs: Tensor, top_p: Any, is_deterministic: bool = False) -> Tensor:
    _check_probabilities(probs, top_p)
    values, ids = probs.sort(-1, descending=True)
    kept = values.masked_fill(values.cumsum(-1) - values >= top_p.unsqueeze(1), 0.0)
    kept = torch.zeros_like(probs).scatter_(1, ids, kept)
    return kept / kept.sum(-1, keepdim=True)


def sampling_from_probs(
    probs: Tensor,
    indices: Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: Any = None,
    offset: Any = None,
    return_valid: bool = False,
) -> Any:
    assert indices is None
    assert seed is None
    assert offset is None
    assert not return_valid
    assert not check_nan, "to look for NaN is to wait for the device"
    assert generator is not None, "the default generator is everybody's"
    assert probs.dtype == torch.float32
    return torch.multinomial(probs, 1, generator=generator).squeeze(1).int()


def top_p_sampling_from_probs(
    probs: Tensor,
    top_p: Any,
    indices: Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: Any = None,
    offset: Any = None,
    return_valid: bool = False,
) -> Any:
    kept = top_p_renorm_probs(probs, top_p)
    return sampling_from_probs(
        kept, indices, deterministic, generator, check_nan, seed, offset, return_valid
    )


def min_p_sampling_from_probs(
    probs: Tensor,
    min_p: Any,
    indices: Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: Any = None,
    offset: Any = None,
    return_valid: bool = False,
) -> Any:
    _check_probabilities(probs, min_p)
    floor = min_p.unsqueeze(1) * probs.amax(-1, keepdim=True)
    return sampling_from_probs(
        probs.masked_fill(probs < floor, 0.0),
        indices,
        deterministic,
        generator,
        check_nan,
        seed,
        offset,
        return_valid,
    )


def _check_probabilities(probs: Tensor, bound: Any) -> None:
    assert probs.dtype == torch.float32
    assert is_put(bound)
    assert bound.dtype == torch.float32
    assert (probs.sum(-1) - 1).abs().max() < 1e-3, "probabilities don't add up to one"


def fake_hardware(gpu: FakeGpu | None = None) -> Hardware:
    """The CPU in the place of a GPU, with the stand-in for FlashInfer."""
    gpu = gpu or FakeGpu()
    return Hardware(
        "cuda",
        lambda index: gpu,
        lambda: fake_library(gpu),
        machine.memory,
        machine.native_dtype,
        "gloo",
    )
