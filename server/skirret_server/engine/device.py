"""What the engine asks of a device: to copy without waiting, to fence, to record and replay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy.typing as npt
import torch
from torch import Tensor


class Event(Protocol):
    """A point in a device's work. One that was never recorded has passed."""

    def record(self) -> None: ...

    def synchronize(self) -> None:
        """Waits until all work before it is done."""


class Graph(Protocol):
    """Work recorded once and launched again as a whole, on the very same memory."""

    def capture(self) -> AbstractContextManager[None]:
        """What is launched within is recorded, not done."""

    def replay(self) -> None: ...


class Fetched(Protocol):
    """A tensor on its way to the host."""

    def get(self) -> Tensor:
        """Waits for it."""


class Device(Protocol):
    """Its work is done in the order in which it was launched."""

    @property
    def place(self) -> torch.device: ...

    @property
    def captures(self) -> bool:
        """Whether it can record graphs."""

    def put(self, array: npt.NDArray[Any]) -> Tensor:
        """On the device. Doesn't wait; the array may be changed at once."""

    def staged(self, array: npt.NDArray[Any]) -> Tensor:
        """In memory of the host that the device can copy from by itself."""

    def fetch(self, tensor: Tensor) -> Fetched:
        """Begins to copy to the host."""

    def event(self) -> Event: ...

    def graph(self) -> Graph: ...


class Cpu:
    """The host itself: everything is done when a call returns."""

    place = torch.device("cpu")
    captures = False

    def put(self, array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(array)

    def staged(self, array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(array)

    def fetch(self, tensor: Tensor) -> Fetched:
        return _Here(tensor)

    def event(self) -> Event:
        return _Passed()

    def graph(self) -> Graph:
        raise NotImplementedError("the CPU records no graphs")


_DTYPES = {
    "int32": torch.int32,
    "int64": torch.int64,
    "float32": torch.float32,
    "float64": torch.float64,
}


class Cuda:
    """One GPU. Everything goes over the current stream, so device work needs no fences."""

    captures = True

    def __init__(self, index: int = 0) -> None:
        self.place = torch.device("cuda", index)
        torch.cuda.set_device(self.place)
        self._pool: Any = None  # memory that all graphs use, one at a time

    def put(self, array: npt.NDArray[Any]) -> Tensor:
        return self.staged(array).to(self.place, non_blocking=True)

    def staged(self, array: npt.NDArray[Any]) -> Tensor:
        # New memory each time: torch's allocator of pinned memory gives none of it out again
        # before the copies from it are done.
        memory = torch.empty(array.shape, dtype=_DTYPES[array.dtype.name], pin_memory=True)
        memory.numpy()[...] = array
        return memory

    def fetch(self, tensor: Tensor) -> Fetched:
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        done: Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        return _Coming(host, done)

    def event(self) -> Event:
        event: Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        return event

    def graph(self) -> Graph:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        return _CudaGraph(self._pool)


class _Here:
    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def get(self) -> Tensor:
        return self._tensor


class _Coming:
    def __init__(self, tensor: Tensor, done: Event) -> None:
        self._tensor = tensor
        self._done = done

    def get(self) -> Tensor:
        self._done.synchronize()
        return self._tensor


class _Passed:
    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


class _CudaGraph:
    def __init__(self, pool: Any) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._pool = pool

    @contextmanager
    def capture(self) -> Iterator[None]:
        # Other threads, such as NCCL's watchdog, may call CUDA meanwhile.
        with torch.cuda.graph(self._graph, pool=self._pool, capture_error_mode="thread_local"):
            yield

    def replay(self) -> None:
        self._graph.replay()
