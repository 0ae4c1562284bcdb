"""A GPU that is the CPU: what a real one does late or not at all is checked or done as it would be.

Copies are pending until somebody waits for an event recorded after them. A captured graph is the
list of the operations that ran, each with the memory it ran on; a replay runs them again and calls
nothing else. What a capture can't hold, such as waiting for a value, is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

_STAGED, _PUT = "staged on the host", "put on the device"

# Each waits for the device, or makes a size from what is computed there.
_WAITS = (
    "_local_scalar_dense",
    "item",
    "is_nonzero",
    "equal",
    "nonzero",
    "masked_select",
    "unique_dim",
    "_unique2",
    "_pin_memory",
    "lift_fresh",  # of torch.tensor(…): a copy from the host
)


class FakeGpu:
    """A `Device`."""

    place = torch.device("cpu")
    captures = True

    def __init__(self) -> None:
        self.capturing: FakeGraph | None = None
        self.launched = 0  # copies, by number
        self.done = 0  # of those, the last that is known to be done
        self.replays = 0
        self.kernels = 0  # of FlashInfer, launched or recorded
        self.waits = 0  # for what is computed

    def put(self, array: npt.NDArray[Any]) -> Tensor:
        return self._marked(array, _PUT)

    def staged(self, array: npt.NDArray[Any]) -> Tensor:
        return self._marked(array, _STAGED)

    def fetch(self, tensor: Tensor) -> FakeFetched:
        self._refuse_capture("a copy to the host")
        return FakeFetched(self, tensor.clone())

    def event(self) -> FakeEvent:
        return FakeEvent(self)

    def graph(self) -> FakeGraph:
        return FakeGraph(self)

    def launch_copy(self) -> int:
        """A copy that is done when somebody has waited for it."""
        self._refuse_capture("a copy from the host")
        self.launched += 1
        return self.launched

    def opaque(self, compute: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Runs one kernel; captured, all of it is one operation."""
        self.kernels += 1
        if self.capturing is None:
            return compute()
        return self.capturing.add(compute)

    def _marked(self, array: npt.NDArray[Any], where: str) -> Tensor:
        self._refuse_capture("a copy from the host")
        tensor = torch.from_numpy(array.copy())
        tensor.where_it_is = where  # type: ignore[attr-defined]
        return tensor

    def _refuse_capture(self, what: str) -> None:
        assert self.capturing is None, f"{what} can't be captured"


def is_staged(tensor: Tensor) -> bool:
    return getattr(tensor, "where_it_is", None) == _STAGED


def is_put(tensor: Tensor) -> bool:
    return getattr(tensor, "where_it_is", None) == _PUT


class FakeEvent:
    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu
        self._after = 0

    def record(self) -> None:
        self._gpu._refuse_capture("recording an event")
        self._after = self._gpu.launched

    def synchronize(self) -> None:
        self._gpu._refuse_capture("waiting for an event")
        self._gpu.done = max(self._gpu.done, self._after)


class FakeFetched:
    def __init__(self, gpu: FakeGpu, tensor: Tensor) -> None:
        self._gpu = gpu
        self._tensor = tensor

    def get(self) -> Tensor:
        self._gpu._refuse_capture("waiting for a copy")
        self._gpu.waits += 1
        return self._tensor


@dataclass(frozen=True, slots=True)
class _Operation:
    again: Callable[[], Any]
    made: tuple[Tensor, ...]  # memory that was new, and is to be filled again


class FakeGraph:
    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu
        self._operations: list[_Operation] = []

    @contextmanager
    def capture(self) -> Iterator[None]:
        assert self._gpu.capturing is None, "a capture within a capture"
        self._gpu.capturing = self
        try:
            with _Recorder(self._operations):
                yield
        finally:
            self._gpu.capturing = None
        for operation in self._operations:  # recorded, not done
            for tensor in operation.made:
                if tensor.is_floating_point():
                    tensor.fill_(torch.nan)

    def add(self, compute: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        with _disable_current_modes():
            made = compute()
        self._operations.append(_Operation(compute, made))
        return made

    def replay(self) -> None:
        assert self._operations, "replayed before it was captured"
        self._gpu.replays += 1
        for operation in self._operations:
            result = operation.again()
            for old, new in zip(operation.made, _tensors(result), strict=False):
                old.copy_(new)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, operations: list[_Operation]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operations = operations

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        more = kwargs or {}
        name = function.__name__.split(".")[0]
        is_masked = name == "index" and any(x.dtype == torch.bool for x in _tensors(args[1]))
        assert name not in _WAITS, f"aten::{name} can't be captured"
        assert not is_masked, "aten::index by a mask can't be captured"
        result = _done(function, args, more)
        taken = {
            each.untyped_storage().data_ptr()
            for each in _tensors((args, more))
            if not each.is_mkldnn  # packed weights, which nothing is a view of
        }  # in place, or a view: nothing new
        made = _tensors(result)
        is_new = all(each.untyped_storage().data_ptr() not in taken for each in made)
        again = partial(_done, function, args, more)
        self._operations.append(_Operation(again, made if is_new else ()))
        return result


def _done(function: Any, args: Any, kwargs: Any) -> Any:
    """What several devices do together, the CPU does meanwhile: a GPU, in its turn."""
    result = function(*args, **kwargs)
    for each in tree_leaves(result):
        if isinstance(each, torch.ScriptObject):
            each.wait()  # type: ignore[attr-defined]
    return result


def _tensors(values: Any) -> tuple[Tensor, ...]:
    return tuple(each for each in tree_leaves(values) if isinstance(each, Tensor))
