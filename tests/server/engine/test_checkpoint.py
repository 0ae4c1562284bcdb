"""Reading checkpoints: what is whole is read, what is not is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from skirret_api.launch import ServerSettings
from skirret_server import engine, model
from skirret_server.engine.machine import Memory
from skirret_server.load import folder as files
from skirret_server.load.checkpoint import read_into
from skirret_server.load.errors import (
    BrokenCheckpoint,
    DoesNotFit,
    SourceNotFound,
    UnsupportedModel,
)
from skirret_server.load.fit import fit
from skirret_server.load.progress import Progress
from skirret_server.model.shard import Shard
from skirret_server.model.weights import Weights

Copy = Callable[..., Path]


def loaded(folder: Path, progress: Progress | None = None) -> Weights:
    weights = Weights(model.describe(files.config(folder)), torch.float32)
    read_into(weights.parameters(), folder, progress or Progress())
    return weights


def test_every_tensor_finds_its_place(tiny: Path) -> None:
    stored = load_file(tiny / "model.safetensors")
    places = dict(loaded(tiny).parameters())
    assert places.keys() == stored.keys()
    assert all(torch.equal(places[name], stored[name]) for name in stored)


def test_shards_are_one_checkpoint(copy_of_tiny: Copy, tiny: Path) -> None:
    whole, sharded = loaded(tiny), loaded(copy_of_tiny(shards=3))
    assert torch.equal(whole.layers[1].qkv, sharded.layers[1].qkv)


def test_progress_counts_every_byte(tiny: Path) -> None:
    progress = Progress()
    loaded(tiny, progress)
    assert progress.status().phase == "loading weights"
    assert progress.status().percent == 100


def test_other_number_formats_are_converted(copy_of_tiny: Copy) -> None:
    folder = copy_of_tiny()
    stored = load_file(folder / "model.safetensors")
    save_file(
        {name: tensor.bfloat16() for name, tensor in stored.items()}, folder / "model.safetensors"
    )
    expected = stored["model.norm.weight"].bfloat16().float()
    assert torch.equal(loaded(folder).norm, expected)


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    stored = load_file(folder / "model.safetensors")
    change(stored)
    save_file(stored, folder / "model.safetensors")


def test_a_tied_model_needs_no_head_and_bears_one(copy_of_tiny: Copy) -> None:
    folder = copy_of_tiny()
    config = {**files.config(folder), "tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    weights = loaded(folder)
    assert weights.head is weights.embedding
    rewrite(folder, lambda stored: stored.pop("lm_head.weight"))
    loaded(folder)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda s: s.pop("model.layers.1.mlp.up_proj.weight"), "layers.1.mlp.up_proj.weight is mi"),
        (
            lambda s: s.update({"model.norm.weight": torch.ones(95)}),
            r"model.norm.weight is \[95\] where config.json wants \[96\]",
        ),
        (
            lambda s: s.update({"model.layers.2.mlp.up_proj.weight": torch.ones(1)}),
            "layers.2.mlp.up_proj.weight belongs to no part",
        ),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_by_tensor(
    copy_of_tiny: Copy, change: Callable[[dict[str, torch.Tensor]], object], complaint: str
) -> None:
    folder = copy_of_tiny()
    rewrite(folder, change)
    with pytest.raises(BrokenCheckpoint, match=complaint):
        loaded(folder)


def test_packed_weights_are_called_quantised_also_where_the_config_is_silent(
    copy_of_tiny: Copy,
) -> None:
    folder = copy_of_tiny()
    packed = {"model.layers.0.mlp.up_proj.qweight": torch.ones(1, dtype=torch.int32)}
    rewrite(folder, lambda stored: stored.update(packed))
    with pytest.raises(UnsupportedModel, match=r"quantised: it has model.layers.0.mlp.up_proj.qw"):
        loaded(folder)


@pytest.mark.parametrize("size", [2, 6])
def test_the_parts_of_a_split_model_are_the_whole(tiny: Path, size: int) -> None:
    """It has two key-value heads: of six devices, three have the same."""
    stored = load_file(tiny / "model.safetensors")
    description = model.describe(files.config(tiny))
    parts = []
    for rank in range(size):
        weights = Weights(description, torch.float32, Shard(rank, size))
        read_into(weights.parameters(), tiny, Progress(), weights.cuts())
        parts.append(weights)
    for name, tensor in stored.items():
        places = [dict(each.parameters())[name] for each in parts]
        cut = parts[0].cuts().get(name)
        whole = places[0] if cut is None else torch.cat(places, cut.axis)
        if size == 6 and ("k_proj" in name or "v_proj" in name):
            whole = torch.cat([places[0], places[3]])
            assert torch.equal(places[2], places[0])
        assert torch.equal(whole, tensor), name


def test_a_model_that_does_not_split_evenly_is_refused(tiny: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"--tensor-parallel-size=4: 6 query heads, 2 key"):
        Weights(model.describe(files.config(tiny)), torch.float32, Shard(0, 4))


def test_a_checkpoint_that_is_cut_off_is_refused_by_tensor(copy_of_tiny: Copy) -> None:
    folder = copy_of_tiny()
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(BrokenCheckpoint, match=r"model\S+ is cut off: model.safetensors has"):
        loaded(folder)


def test_a_file_that_is_no_checkpoint_is_refused(copy_of_tiny: Copy) -> None:
    folder = copy_of_tiny()
    (folder / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(BrokenCheckpoint, match="is not a safetensors file"):
        loaded(folder)


def test_a_missing_shard_is_refused_by_name(copy_of_tiny: Copy) -> None:
    folder = copy_of_tiny(shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(BrokenCheckpoint, match="names model-00002-of-00003.safetensors"):
        loaded(folder)


def test_pickles_are_not_read(copy_of_tiny: Copy) -> None:
    folder = copy_of_tiny()
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(BrokenCheckpoint, match=r"only pytorch_model.bin; weights must be \*.safe"):
        loaded(folder)


def test_a_folder_without_a_model_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound, match="no config.json"):
        engine.check(ServerSettings(), tmp_path)
    with pytest.raises(SourceNotFound, match="is not a folder"):
        engine.check(ServerSettings(), tmp_path / "nowhere")


def test_all_end_tokens_are_known(tiny: Path) -> None:
    assert files.end_tokens(tiny) == {269, 271}


def sized(tiny: Path, available: int, **settings: object) -> tuple[int, int]:
    description = model.describe(files.config(tiny))
    asked = ServerSettings.model_validate(settings)
    size = fit(description, asked, "float32", Memory(available, available))
    return size.pages * asked.page_size, size.context


GIB = 1 << 30


def test_the_cache_takes_its_share_of_the_memory_and_no_more_than_can_be_used(tiny: Path) -> None:
    token = 2 * 2 * 2 * 16 * 4  # layers, keys and values, heads, size, bytes
    tokens, context = sized(tiny, GIB, mem_fraction_static=0.01)
    assert tokens == pytest.approx(0.01 * GIB / token, rel=0.2)
    assert context == 2048
    assert sized(tiny, GIB)[0] == 64 * 2048


def test_a_context_that_was_asked_for_must_fit(tiny: Path) -> None:
    with pytest.raises(DoesNotFit, match="for 2000000 tokens need"):
        sized(tiny, GIB, context_length=2_000_000)


def test_a_context_that_was_not_asked_for_is_cut_to_what_fits(tiny: Path) -> None:
    assert sized(tiny, GIB, max_total_tokens=1000)[1] == 992  # 62 pages of 16


def test_a_model_larger_than_the_memory_does_not_fit(tiny: Path) -> None:
    with pytest.raises(DoesNotFit, match="Give more memory"):
        sized(tiny, 100 << 20)


def test_on_several_devices_each_needs_room_for_its_part(tiny: Path) -> None:
    memory = Memory(GIB, GIB, logit=24)
    description = model.describe(files.config(tiny))
    asked = [ServerSettings(tensor_parallel_size=size, max_total_tokens=2048) for size in (1, 2)]
    one, two = (fit(description, each, "float32", memory) for each in asked)
    assert one == two
    little = Memory(GIB, (400 << 20) + 1_200_000)
    with pytest.raises(DoesNotFit):
        fit(description, asked[0], "float32", little)
    assert fit(description, asked[1], "float32", little) == two
