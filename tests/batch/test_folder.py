"""What only a store of files has to take care of."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from skirret_api.tenants import FolderStore
from skirret_batch.folder import Folder
from skirret_batch.store import Changed, StoreRefused

_INCREMENT = """
import asyncio, sys
from skirret_api.tenants import FolderStore
from skirret_batch.folder import Folder
from skirret_batch.store import Changed

async def main():
    store = Folder(FolderStore(path=sys.argv[1]))
    for _ in range(10):
        while True:
            blob = await store.get("counter")
            try:
                await store.put_if_match("counter", b"%d" % (int(blob.data) + 1), blob.etag)
                break
            except Changed:
                pass

asyncio.run(main())
"""


async def test_processes_exclude_each_other(tmp_path: Path) -> None:
    store = Folder(FolderStore(path=str(tmp_path)))
    await store.put("counter", b"0")
    command = [sys.executable, "-c", _INCREMENT, str(tmp_path)]
    processes = [subprocess.Popen(command) for _ in range(3)]
    for process in processes:
        assert await asyncio.to_thread(process.wait, 30) == 0
    assert (await store.get("counter")).data == b"30"


@pytest.mark.parametrize(
    "key", ["../x", "a/../../x", "/etc/x", "a//b", "", ".skirret/tmp/x", "a\0"]
)
async def test_a_key_can_not_leave_the_folder(folder: Folder, key: str) -> None:
    for use in (folder.get(key), folder.put(key, b""), folder.head(key), folder.delete(key)):
        with pytest.raises(StoreRefused):
            await use


async def test_deletes_and_writes_in_one_folder_do_not_disturb_each_other(folder: Folder) -> None:
    async def churn(name: str) -> None:
        for _ in range(30):
            await folder.put(f"a/b/{name}", b"x")
            await folder.delete(f"a/b/{name}")

    await asyncio.gather(*(churn(str(n)) for n in range(6)))
    assert [entry async for entry in folder.list("a/")] == []


async def test_a_reader_keeps_the_object_it_began_with(folder: Folder) -> None:
    await folder.put("a", b"x" * (3 << 20))
    reader = folder.stream("a")
    first = await anext(reader)
    await folder.put("a", b"y")
    rest = [piece async for piece in reader]
    assert first + b"".join(rest) == b"x" * (3 << 20)


async def test_writes_leave_no_temporary_files(folder: Folder, tmp_path: Path) -> None:
    await folder.put("a", b"1")
    with pytest.raises(Changed):
        await folder.put_if_absent("a", b"2")
    assert list((tmp_path / "store/.skirret/tmp").iterdir()) == []


async def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreRefused, match="file is no folder"):
        await Folder(FolderStore(path=str(tmp_path / "file"))).probe()


async def test_a_file_uri_inside_names_its_key(tmp_path: Path) -> None:
    store = Folder(FolderStore(path=str(tmp_path)))
    assert store.key_of(f"file://{tmp_path}/in/a%20b.jsonl") == "in/a b.jsonl"
    assert store.key_of(f"file://{tmp_path}/in/") == "in/"
    with pytest.raises(StoreRefused):
        store.key_of(f"file://{tmp_path}/../x")


async def test_a_probe_and_a_list_of_uploads_stand_the_writes_of_others(folder: Folder) -> None:
    await folder.probe()

    async def write(name: str) -> None:
        for _ in range(40):
            await folder.put(name, b"x")
            await folder.abort(name, await folder.begin(name))

    async def look() -> None:
        for _ in range(60):
            await folder.probe()
            assert all([pending.key in "abc" async for pending in folder.uploads("")])

    await asyncio.gather(*map(write, "abc"), look(), look())
