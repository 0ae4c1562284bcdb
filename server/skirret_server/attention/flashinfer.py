"""Attention by FlashInfer's kernels: planned once a step on the host, run in every layer.

Rows of one token go to its decode wrapper, rows of several to its prefill wrapper. Where many of
the former begin with the same pages, those are attended to once for all of them, and the results
merged with what each sees alone. FlashInfer's own wrapper for that can't be told which kernels to
use, so it is two prefill wrappers here.

For what can go wrong without an error, each rule is asserted by the stand-in that the tests run
(`skirret_server.testing.flashinfer`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from skirret_server.attention.interface import Int32s, Layout
from skirret_server.attention.library import Library
from skirret_server.engine.device import Device
from skirret_server.engine.pool import KvPool
from skirret_server.load.errors import UnsupportedModel
from skirret_server.model.decoder import Attend
from skirret_server.model.description import Description

# T tokens of the step, B rows, N query heads, K key-value heads, H head size, P pages, S page size

_WORKSPACE = 128 << 20  # bytes, as FlashInfer recommends; what split rows leave to be merged

# Below, reading a prefix once for all saves less than the second kernel and the merge cost. From
# the figures of others, to be measured.
_SHARERS = 8  # rows
_SHARED = 1024  # tokens
# Tokens whose reading it must save for a step to be launched kernel by kernel, not as a graph.
_WORTH_NO_GRAPH = 32_768

_KV = tuple[Tensor, Tensor]
_Part = Callable[[Tensor, _KV, Tensor], None]  # (q_TNH, k_PSKH and v_PSKH, out_TNH)


@dataclass(frozen=True, slots=True)
class _Layer:
    paged: _KV  # k_PSKH, v_PSKH
    keys: Tensor  # by slot
    values: Tensor


@dataclass(frozen=True, slots=True)
class _Table:
    """The pages of some rows, as FlashInfer wants them."""

    indptr: Int32s
    pages: Int32s
    last: Int32s  # tokens in each row's last page: 1 to the page size


@dataclass(frozen=True, slots=True)
class _Sharing:
    """Rows of one token each whose first pages are the same."""

    rows: npt.NDArray[np.intp]
    pages: int

    def saves(self, page_size: int) -> int:
        """Tokens that need not be read."""
        return (len(self.rows) - 1) * self.pages * page_size


class _Fenced:
    """A wrapper, planned no sooner than the device has copied what the last plan staged.

    Every wrapper writes its plan to pinned memory of its own, and lets the device copy it later.
    """

    def __init__(self, wrapper: Any, device: Device) -> None:
        self.run = wrapper.run
        self._wrapper = wrapper
        self._copied = device.event()

    def plan(self, *arguments: Any, **more: Any) -> None:
        self._copied.synchronize()
        self._wrapper.plan(*arguments, **more)
        self._copied.record()


class _Kind:
    """The layers that see equally far, and their wrappers."""

    def __init__(self, window: int, make: Callable[[], _Fenced], make_decode: Any) -> None:
        # FlashInfer counts the tokens left of the one that looks.
        self.window_left = window - 1 if window else -1
        self.prefill = make()
        self.decode: _Fenced = make_decode()
        self.shares = not window  # a window may begin within the shared pages
        if self.shares:
            self.prefix, self.rest = make(), make()


class FlashInfer:
    """Implements `Attention`, and for graphs `static`. Raises UnsupportedModel."""

    def __init__(
        self, pool: KvPool, description: Description, device: Device, library: Library
    ) -> None:
        _check(pool, description, library)
        self._description = description
        self._device = device
        self._library = library
        self.page_size = pool.page_size
        self._dtype = pool.kv_L2PSKH.dtype
        self._layers = [
            _Layer((k, v), k.flatten(0, 1), v.flatten(0, 1))
            for k, v in map(pool.layer, range(len(pool.kv_L2PSKH)))
        ]
        # Shared, since all kernels run one after the other. FlashInfer wants it to begin as zeros.
        self._workspace = torch.zeros(_WORKSPACE, dtype=torch.uint8, device=device.place)
        windows = sorted({description.window(layer) for layer in range(description.layers)})
        self.kinds = {
            window: _Kind(window, self._prefill_wrapper, self._decode_wrapper) for window in windows
        }

    def warm(self) -> None:
        """Compiles what steps that share a prefix call; a step compiles the rest."""
        heads, size = self._description.query_heads, self._description.head_size
        place = self._device.place
        out_BNH = torch.zeros(1, heads, size, dtype=self._dtype, device=place)
        lse_BN = torch.zeros(1, heads, dtype=torch.float32, device=place)
        self._library.merge_state_in_place(out_BNH, lse_BN, out_BNH.clone(), lse_BN.clone())

    def plan(self, layout: Layout) -> Attend:
        slots_T = self._device.put(layout.slots)
        parts = {window: self._parts(kind, layout) for window, kind in self.kinds.items()}
        return partial(self._attend, slots_T, parts)

    def window(self, layer: int) -> int:
        return self._description.window(layer)

    def static(self, rows: int, memory: StaticMemory) -> Static:
        """Attention of that many rows of one token, in memory that stays where it is."""
        return Static(self, rows, memory)

    def is_better_alone(self, layout: Layout) -> bool:
        """Whether so much is shared that a graph, which can't share, would be slower."""
        sharing = self._sharing(layout)
        return sharing is not None and sharing.saves(self.page_size) >= _WORTH_NO_GRAPH

    def _attend(
        self,
        slots_T: Tensor,
        parts: dict[int, list[_Part]],
        layer: int,
        q_TNH: Tensor,
        k_TKH: Tensor,
        v_TKH: Tensor,
    ) -> Tensor:
        kv = self.write(layer, slots_T, k_TKH, v_TKH)
        out_TNH = torch.empty(q_TNH.shape, dtype=q_TNH.dtype, device=q_TNH.device)
        for part in parts[self.window(layer)]:
            part(q_TNH, kv, out_TNH)
        return out_TNH

    def write(self, layer: int, slots_T: Tensor, k_TKH: Tensor, v_TKH: Tensor) -> _KV:
        """Keys and values into their slots; the layer's pages."""
        cache = self._layers[layer]
        cache.keys.index_copy_(0, slots_T, k_TKH)
        cache.values.index_copy_(0, slots_T, v_TKH)
        return cache.paged

    def _parts(self, kind: _Kind, layout: Layout) -> list[_Part]:
        single = layout.counts == 1
        parts: list[_Part] = []
        sharing = self._sharing(layout) if kind.shares else None
        if sharing is not None:
            parts.append(self._shared(kind, layout, sharing))
            single[sharing.rows] = False
        decodes = np.flatnonzero(single)
        if len(decodes):
            self.plan_decode(kind.decode, kind.window_left, _table(layout, decodes, self.page_size))
            parts.append(self._part(layout.starts[decodes], kind.decode))
        prompts = np.flatnonzero(layout.counts != 1)
        if len(prompts):
            table = _table(layout, prompts, self.page_size)
            counts = layout.counts[prompts]
            self._plan_prefill(kind.prefill, kind.window_left, _indptr(counts), table, causal=True)
            firsts = np.repeat(layout.starts[prompts] - _indptr(counts)[:-1], counts)
            parts.append(self._part(firsts + np.arange(counts.sum()), kind.prefill))
        return parts

    def _part(self, tokens: npt.NDArray[Any], wrapper: _Fenced) -> _Part:
        """A kernel over some tokens; when they lie side by side, without copying."""
        start, end = int(tokens[0]), int(tokens[-1]) + 1
        if end - start == len(tokens):
            return partial(_run_span, wrapper, slice(start, end))
        return partial(_run_some, wrapper.run, self._device.put(tokens.astype(np.int64)))

    def _shared(self, kind: _Kind, layout: Layout, sharing: _Sharing) -> _Part:
        rows = sharing.rows
        prefix = _Table(
            np.array([0, sharing.pages], np.int32),
            layout.pages[rows[0], : sharing.pages],
            np.array([self.page_size], np.int32),
        )
        together = np.array([0, len(rows)], np.int32)
        self._plan_prefill(kind.prefix, -1, together, prefix, causal=False)
        rest = _table(layout, rows, self.page_size, skip=sharing.pages)
        apart = np.arange(len(rows) + 1, dtype=np.int32)
        self._plan_prefill(kind.rest, -1, apart, rest, causal=True)
        tokens_B = self._device.put(layout.starts[rows].astype(np.int64))
        return partial(_run_some, partial(self._run_shared, kind), tokens_B)

    def _run_shared(self, kind: _Kind, q_BNH: Tensor, kv: _KV) -> Tensor:
        out_BNH, lse_BN = kind.rest.run(q_BNH, kv, return_lse=True)
        before_BNH, before_lse_BN = kind.prefix.run(q_BNH, kv, return_lse=True)
        self._library.merge_state_in_place(out_BNH, lse_BN, before_BNH, before_lse_BN)
        merged: Tensor = out_BNH
        return merged

    def _sharing(self, layout: Layout) -> _Sharing | None:
        """The largest, where it is worth it. Pages of one number hold one text."""
        if not any(kind.shares for kind in self.kinds.values()):
            return None
        single = np.flatnonzero(layout.counts == 1)
        if len(single) < _SHARERS:
            return None
        firsts, group_of, sizes = np.unique(
            layout.pages[single, 0], return_inverse=True, return_counts=True
        )
        rows = single[group_of == sizes.argmax()]
        if len(rows) < _SHARERS:
            return None
        # Every row keeps its last page to itself: the token that looks must see itself.
        most = int(layout.lengths[rows].min() - 1) // self.page_size
        same = (layout.pages[rows, :most] == layout.pages[rows[0], :most]).all(0)
        pages = most if same.all() else int(same.argmin())
        return _Sharing(rows, pages) if pages * self.page_size >= _SHARED else None

    def plan_decode(self, wrapper: _Fenced, window_left: int, table: _Table) -> None:
        description = self._description
        wrapper.plan(
            self._device.staged(table.indptr),
            self._device.put(table.pages),
            self._device.staged(table.last),
            description.query_heads,
            description.kv_heads,
            description.head_size,
            self.page_size,
            **self._options(window_left),
        )

    def _plan_prefill(
        self, wrapper: _Fenced, window_left: int, tokens: Int32s, table: _Table, *, causal: bool
    ) -> None:
        description = self._description
        wrapper.plan(
            self._device.staged(tokens),
            self._device.staged(table.indptr),
            self._device.put(table.pages),
            self._device.staged(table.last),
            description.query_heads,
            description.kv_heads,
            description.head_size,
            self.page_size,
            causal=causal,
            **self._options(window_left),
        )

    def _options(self, window_left: int) -> dict[str, Any]:
        """Left out, both data types would not be the same: q's default is float16."""
        return {
            "window_left": window_left,
            "logits_soft_cap": self._description.score_cap,
            "sm_scale": self._description.scale,
            "q_data_type": self._dtype,
            "kv_data_type": self._dtype,
        }

    def _prefill_wrapper(self) -> _Fenced:
        return _Fenced(self._library.prefill(self._workspace, "NHD", backend="fa2"), self._device)

    def _decode_wrapper(self) -> _Fenced:
        return _Fenced(
            self._library.decode(
                self._workspace, "NHD", use_tensor_cores=self._tensor_cores, backend="fa2"
            ),
            self._device,
        )

    def static_wrapper(self, rows: int, memory: StaticMemory) -> _Fenced:
        wrapper = self._library.decode(
            self._workspace,
            "NHD",
            use_cuda_graph=True,
            use_tensor_cores=self._tensor_cores,
            paged_kv_indptr_buffer=memory.indptr[: rows + 1],
            paged_kv_indices_buffer=memory.pages,
            paged_kv_last_page_len_buffer=memory.last[:rows],
            backend="fa2",
        )
        return _Fenced(wrapper, self._device)

    @property
    def _tensor_cores(self) -> bool:
        """The kernels without them exist for few sizes of groups, and gain nothing beyond two."""
        return self._description.query_heads // self._description.kv_heads > 2


class StaticMemory:
    """What all graphs read: where it lies is part of them, so it is made once."""

    def __init__(self, rows: int, pages: int, place: torch.device) -> None:
        def zeros(count: int) -> Tensor:
            return torch.zeros(count, dtype=torch.int32, device=place)

        self.indptr = zeros(rows + 1)
        self.pages = zeros(pages)
        self.last = zeros(rows)
        self.slots = torch.zeros(rows, dtype=torch.int64, device=place)


class Static:
    """Attention of a fixed number of rows of one token each."""

    def __init__(self, attention: FlashInfer, rows: int, memory: StaticMemory) -> None:
        self._attention = attention
        self._slots = memory.slots[:rows]
        self._wrappers = {
            window: attention.static_wrapper(rows, memory) for window in attention.kinds
        }
        self._rows = np.arange(rows)

    def plan(self, layout: Layout) -> None:
        """Before each replay; `layout` has exactly as many rows, their slots are copied before."""
        attention = self._attention
        table = _table(layout, self._rows, attention.page_size)
        for window, wrapper in self._wrappers.items():
            attention.plan_decode(wrapper, attention.kinds[window].window_left, table)

    def attend(self, layer: int, q_BNH: Tensor, k_BKH: Tensor, v_BKH: Tensor) -> Tensor:
        kv = self._attention.write(layer, self._slots, k_BKH, v_BKH)
        wrapper = self._wrappers[self._attention.window(layer)]
        out_BNH: Tensor = wrapper.run(q_BNH.contiguous(), kv)
        return out_BNH


def _run_span(wrapper: _Fenced, span: slice, q_TNH: Tensor, kv: _KV, out_TNH: Tensor) -> None:
    wrapper.run(q_TNH[span].contiguous(), kv, out=out_TNH[span])


def _run_some(
    run: Callable[[Tensor, _KV], Tensor],
    tokens: Tensor,
    q_TNH: Tensor,
    kv: _KV,
    out_TNH: Tensor,
) -> None:
    out_TNH.index_copy_(0, tokens, run(q_TNH.index_select(0, tokens), kv))


def _table(layout: Layout, rows: npt.NDArray[Any], size: int, skip: int = 0) -> _Table:
    """Of these rows, without their first `skip` pages."""
    lengths = layout.lengths[rows]
    used = -(-lengths // size) - skip
    pages = layout.pages[rows, skip : skip + int(used.max())]
    is_used = np.arange(pages.shape[1])[None, :] < used[:, None]
    return _Table(_indptr(used), pages[is_used], (lengths - 1) % size + 1)


def _indptr(counts: npt.NDArray[Any]) -> Int32s:
    indptr = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=indptr[1:])
    return indptr


def _check(pool: KvPool, description: Description, library: Library) -> None:
    dtype, size = pool.kv_L2PSKH.dtype, description.head_size
    if dtype not in library.dtypes:
        known = " or ".join(sorted(str(each).removeprefix("torch.") for each in library.dtypes))
        raise UnsupportedModel(
            f"FlashInfer has no kernels for {str(dtype).removeprefix('torch.')}: "
            f"give --dtype={known}, or --attention-backend=reference"
        )
    if size not in library.head_sizes:
        known = ", ".join(map(str, sorted(library.head_sizes)))
        raise UnsupportedModel(
            f"heads of {size} numbers; FlashInfer's prebuilt kernels have {known}: "
            "give --attention-backend=reference"
        )
