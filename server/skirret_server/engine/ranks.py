"""One model on several devices: a process for each, which computes what the first one tells it.

The first, rank 0, schedules and samples. It sends every other one message a step over a pipe; ids
follow over the devices' own network, since some of them only the first device knows. All compute
the same operations in the same order, and meet in the sums. Where one ends, none can go on.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from skirret_api.launch import ServerSettings
from skirret_server.engine.build import Plan, build
from skirret_server.engine.device import Device
from skirret_server.engine.forward import Batch, Forward
from skirret_server.engine.hardware import Hardware
from skirret_server.load.errors import LoadError
from skirret_server.load.progress import Progress
from skirret_server.logs import log_to_stderr
from skirret_server.model.shard import Shard

_log = logging.getLogger(__name__)

_CLOSE = 10.0  # seconds for a process to end by itself

MakeHardware = Callable[[ServerSettings], Hardware]
Fatal = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class Wipe:
    pages: list[int]


class Distributed:
    """Implements `decoder.Group` by torch.distributed."""

    def __init__(self, size: int) -> None:
        self._size = size

    def sum(self, x: Tensor) -> None:
        distributed.all_reduce(x)

    def side_by_side(self, x_RV: Tensor) -> Tensor:
        rows, columns = x_RV.shape
        all_SRV = torch.empty(self._size * rows, columns, dtype=x_RV.dtype, device=x_RV.device)
        distributed.all_gather_into_tensor(all_SRV, x_RV.contiguous())
        return all_SRV.view(self._size, rows, columns).transpose(0, 1).reshape(rows, -1)


class Ranks:
    """The other processes, from start to end. Implements `runner.Computes` with them."""

    def __init__(self, plan: Plan, make: MakeHardware, fatal: Fatal) -> None:
        """Starts them; they load while this one does."""
        self._size = plan.settings.tensor_parallel_size
        self._fatal = fatal
        self._closing = False
        self._forward: Forward | None = None
        self._store = TCPStore("127.0.0.1", 0, self._size, is_master=True, wait_for_workers=False)
        context = multiprocessing.get_context("spawn")
        self._connections: list[Connection] = []
        self._processes: list[Any] = []
        for rank in range(1, self._size):
            mine, theirs = context.Pipe()
            process = context.Process(
                target=_follow,
                args=(rank, self._store.port, plan, make, theirs),
                name=f"rank-{rank}",
                daemon=True,
            )
            process.start()
            theirs.close()
            self._connections.append(mine)
            self._processes.append(process)
        threading.Thread(target=self._watch, name="ranks", daemon=True).start()

    def join(self, hardware: Hardware, plan: Plan, device: Device, progress: Progress) -> None:
        """Builds this process's part, together with the others. Raises LoadError."""
        group = _meet(hardware, device, self._store, 0, self._size)
        self._forward = build(plan, hardware, device, progress, Shard(0, self._size), group)
        distributed.barrier()

    @property
    def forward(self) -> Forward:
        assert self._forward is not None, "not joined"
        return self._forward

    def logits(self, batch: Batch, ids_T: Tensor) -> Generator[Tensor, None, None]:
        try:
            self._tell(batch)
            distributed.broadcast(ids_T, 0)
            pieces = self.forward.logits(batch, ids_T)
        except Exception as error:
            self._out_of_step(error)
            raise
        return to_the_end(pieces, self._out_of_step)

    def wipe(self, pages: list[int]) -> None:
        self._tell(Wipe(pages))
        self.forward.wipe(pages)

    def close(self) -> None:
        self._closing = True
        for connection in self._connections:
            try:
                connection.send(None)
            except OSError:
                _log.info("a rank was gone before it was told to go")
        for process in self._processes:
            process.join(_CLOSE)
            if process.is_alive():
                process.kill()
                process.join()
        if distributed.is_initialized():
            distributed.destroy_process_group()

    def _tell(self, message: Batch | Wipe) -> None:
        for connection in self._connections:
            connection.send(message)

    def _out_of_step(self, error: Exception) -> None:
        self._fatal(
            "RankFailed",
            f"rank 0 of {self._size} failed within a step that the others go on with: {error}",
        )

    def _watch(self) -> None:
        by_sentinel = {each.sentinel: at for at, each in enumerate(self._processes)}
        ended = wait(list(by_sentinel))
        if self._closing:
            return
        at = by_sentinel[ended[0]]
        self._processes[at].join()
        self._fatal(
            "RankDied",
            f"rank {at + 1} of {self._size} ended with exit code "
            f"{self._processes[at].exitcode}{self._last_words(at)}; without it nothing can be "
            "computed",
        )

    def _last_words(self, at: int) -> str:
        try:
            if self._connections[at].poll():
                return f": {self._connections[at].recv()}"
        except (EOFError, OSError):
            pass  # it died without any
        return ""


def to_the_end(
    pieces: Generator[Tensor, None, None], failed: Callable[[Exception], None]
) -> Generator[Tensor, None, None]:
    """All pieces, also those that the reader leaves: the others compute them, and wait for us."""
    try:
        for piece in pieces:  # noqa: UP028 - `yield from` would close `pieces` with this
            yield piece
    except GeneratorExit:
        for _ in pieces:
            pass
    except Exception as error:
        failed(error)
        raise


def _follow(rank: int, port: int, plan: Plan, make: MakeHardware, connection: Connection) -> None:
    """The life of another rank's process: until it is told to end, or rank 0 has ended."""
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for rank 0, which tells us
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    log_to_stderr(plan.settings.log_level)
    try:
        _compute(rank, port, plan, make, connection)
    except EOFError:
        sys.exit(1)  # rank 0 is gone
    except Exception as error:
        _log.exception("rank %d ends", rank)
        reason = error.reason if isinstance(error, LoadError) else type(error).__name__
        connection.send(f"{reason}: {error}")
        sys.exit(1)
    distributed.destroy_process_group()


def _compute(rank: int, port: int, plan: Plan, make: MakeHardware, connection: Connection) -> None:
    size = plan.settings.tensor_parallel_size
    hardware = make(plan.settings)
    if hardware.name == "cpu":
        torch.set_num_threads(max(1, torch.get_num_threads() // size))
    device = hardware.device(rank)
    store = TCPStore("127.0.0.1", port, size, is_master=False)
    group = _meet(hardware, device, store, rank, size)
    forward = build(plan, hardware, device, Progress(), Shard(rank, size), group)
    distributed.barrier()
    while (message := connection.recv()) is not None:
        if isinstance(message, Wipe):
            forward.wipe(message.pages)
            continue
        with torch.inference_mode():
            ids_T = torch.empty(len(message.positions), dtype=torch.int64, device=device.place)
            distributed.broadcast(ids_T, 0)
            for _ in forward.logits(message, ids_T):
                pass


def _meet(hardware: Hardware, device: Device, store: Any, rank: int, size: int) -> Distributed:
    is_gpu = device.place.type == "cuda"
    distributed.init_process_group(
        hardware.collectives,
        store=store,
        rank=rank,
        world_size=size,
        device_id=device.place if is_gpu else None,
    )
    return Distributed(size)


def _end_with_parent() -> None:
    """Also from within a sum that nobody will ever finish."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
