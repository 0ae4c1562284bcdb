"""Reads safetensors files straight into a model's weights."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from skirret_server.load.errors import BrokenCheckpoint, UnsupportedModel
from skirret_server.load.progress import Progress
from skirret_server.model.shard import Cut

_PIECE = 16 << 20  # bytes read at once
_HEADER_LIMIT = 100 << 20  # bytes; as the format says
_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
# Tables that old checkpoints carry and every loader computes itself.
_IGNORED = ("rotary_emb.inv_freq", "attn.masked_bias", "attn.bias")
# What GPTQ and AWQ write in place of a weight, also where config.json is silent of it.
_QUANTISED = (".qweight", ".qzeros", ".weight_packed", ".weight_scale", ".weight_scale_inv", ".SCB")
_UNCUT: Mapping[str, Cut] = {}


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor in a file."""

    file: Path
    start: int
    end: int
    dtype: str
    shape: tuple[int, ...]


def read_into(
    places: Iterable[tuple[str, Tensor]],
    folder: Path,
    progress: Progress,
    cuts: Mapping[str, Cut] = _UNCUT,
) -> None:
    """Fills every place from the checkpoint in `folder`, some from a part of a tensor.

    Raises BrokenCheckpoint or UnsupportedModel before anything is read, where it can be known.
    """
    wanted = dict(places)
    stored = index(folder)
    check({name: _whole(place, cuts.get(name)) for name, place in wanted.items()}, stored)
    parts = {name: _part(stored[name], cuts.get(name), place) for name, place in wanted.items()}
    in_order = sorted(wanted, key=lambda name: (parts[name].file, parts[name].start))
    progress.begin("loading weights", sum(parts[n].end - parts[n].start for n in in_order))
    for name in in_order:
        tensor = _read(parts[name], name, progress)
        cut = cuts.get(name)
        if cut is not None and cut.axis:
            tensor = tensor.narrow(cut.axis, cut.start, wanted[name].shape[cut.axis])
        wanted[name].copy_(tensor)


def index(folder: Path) -> dict[str, Stored]:
    """Every tensor of the checkpoint, by name."""
    stored: dict[str, Stored] = {}
    for file in files(folder):
        for name, tensor in _header(file).items():
            if name in stored:
                raise BrokenCheckpoint(f"{name} is in {stored[name].file.name} and in {file.name}")
            stored[name] = tensor
    return stored


def files(folder: Path) -> list[Path]:
    """The checkpoint's files: those its index names, or the only one."""
    listing = folder / "model.safetensors.index.json"
    if listing.exists():
        try:
            names = set(json.loads(listing.read_text("utf-8"))["weight_map"].values())
        except (ValueError, KeyError, AttributeError) as error:
            raise BrokenCheckpoint(f"{listing.name} is not a safetensors index") from error
        paths = [folder / name for name in sorted(names)]
        missing = [path.name for path in paths if not path.exists()]
        if missing:
            raise BrokenCheckpoint(f"{listing.name} names {missing[0]}, which is not in {folder}")
        return paths
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        pickled = [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")]
        other = f"only {pickled[0].name}" if pickled else "none"
        raise BrokenCheckpoint(f"{folder} has {other}; weights must be *.safetensors files")
    return found


def check(wanted: Mapping[str, tuple[int, ...]], stored: Mapping[str, Stored]) -> None:
    """Refuses a checkpoint that has not exactly the model's tensors, in these shapes."""
    _refuse_quantised(stored.keys())
    for name, shape in wanted.items():
        tensor = stored.get(name)
        if tensor is None:
            raise BrokenCheckpoint(f"{name} is missing")
        if tensor.shape != shape:
            raise BrokenCheckpoint(
                f"{name} is {list(tensor.shape)} where config.json wants {list(shape)}"
            )
        if tensor.dtype not in _DTYPES:
            raise UnsupportedModel(f"{name} is {tensor.dtype}; known are {', '.join(_DTYPES)}")
    is_tied = "lm_head.weight" not in wanted
    for name in stored.keys() - wanted.keys():
        if not name.endswith(_IGNORED) and not (is_tied and name == "lm_head.weight"):
            raise BrokenCheckpoint(f"{name} belongs to no part of this model")


def _refuse_quantised(names: Set[str]) -> None:
    for name in sorted(names):
        if name.endswith(_QUANTISED):
            raise UnsupportedModel(
                f"the checkpoint is quantised: it has {name}; give the bf16 or fp32 one instead"
            )


def _whole(place: Tensor, cut: Cut | None) -> tuple[int, ...]:
    """The shape of the tensor of which `place` takes a part."""
    shape = list(place.shape)
    if cut is not None:
        shape[cut.axis] = cut.whole
    return tuple(shape)


def _part(stored: Stored, cut: Cut | None, place: Tensor) -> Stored:
    """Rows are read alone; of columns, all are read and the others dropped."""
    if cut is None or cut.axis:
        return stored
    row = (stored.end - stored.start) // cut.whole
    start = stored.start + cut.start * row
    shape = (place.shape[0], *stored.shape[1:])
    return Stored(stored.file, start, start + place.shape[0] * row, stored.dtype, shape)


def _header(file: Path) -> dict[str, Stored]:
    """The tensors of one file; each is known to lie within it."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 0 < length <= min(_HEADER_LIMIT, size - 8):
            raise BrokenCheckpoint(f"{file.name} is not a safetensors file, or ends in its header")
        try:
            entries: dict[str, Any] = json.loads(stream.read(length))
            entries.pop("__metadata__", None)
            return {
                name: _stored(file, 8 + length, size, name, entry)
                for name, entry in entries.items()
            }
        except (ValueError, KeyError, TypeError) as error:
            raise BrokenCheckpoint(f"{file.name} has a broken header") from error


def _stored(file: Path, base: int, size: int, name: str, entry: dict[str, Any]) -> Stored:
    start, end = entry["data_offsets"]
    dtype, shape = entry["dtype"], tuple(entry["shape"])
    if not 0 <= start <= end:
        raise BrokenCheckpoint(f"{name} lies at {start} to {end}, which is nowhere")
    if base + end > size:
        raise BrokenCheckpoint(
            f"{name} is cut off: {file.name} has {size} bytes, and it ends at {base + end}"
        )
    if dtype in _DTYPES and end - start != math.prod(shape) * _DTYPES[dtype].itemsize:
        raise BrokenCheckpoint(
            f"{name} has {end - start} bytes, which is not {dtype} {list(shape)}"
        )
    return Stored(file, base + start, base + end, dtype, shape)


def _read(stored: Stored, name: str, progress: Progress) -> Tensor:
    tensor = torch.empty(stored.shape, dtype=_DTYPES[stored.dtype])
    raw = tensor.view(-1).view(torch.uint8).numpy().data
    with stored.file.open("rb", buffering=0) as stream:
        stream.seek(stored.start)
        at = 0
        while at < len(raw):
            count = stream.readinto(raw[at : at + _PIECE])
            if not count:
                raise BrokenCheckpoint(f"{name} is cut off: {stored.file.name} became shorter")
            at += count
            progress.moved(count)
    return tensor
