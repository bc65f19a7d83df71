"""Names of files: exactly that file, wherever the program goes afterwards."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from durable_queue import StorageError
from durable_queue_sqlite import SqliteQueueStorage
from tests.sqlite.support import names, run_python, task

NAMES = (
    "a#b.db",
    "a?mode=memory.db",
    "a%20b.db",
    "quo'te.db",
    "ünï 日本.db",
    "with space.db",
    "file:x.db",
    "trailing.dot.",
    ":memory:.db",
    "~",
    "x" * 240,
    os.fsdecode(b"no utf-8 \xff.db"),
)


@pytest.mark.asyncio
@pytest.mark.parametrize("name", NAMES, ids=ascii)
@pytest.mark.parametrize("kind", [str, Path])
async def test_each_name_is_exactly_that_file(tmp_path: Path, name: str, kind: type) -> None:
    """S13.22: no character of a file name means anything to SQLite, and the file is found again."""
    path = kind(tmp_path / name)
    async with SqliteQueueStorage(path) as storage:
        await storage.save(task("a"))

        assert set(names(tmp_path)) == {name, name + "-wal", name + "-shm"}

    assert names(tmp_path) == [name]
    async with SqliteQueueStorage(path) as storage:
        assert await storage.get("a") == task("a")


@pytest.mark.asyncio
async def test_a_name_that_leaves_no_room_is_refused(tmp_path: Path) -> None:
    """S13.22: SQLite's own files would have names that are too long, so that is said at once."""
    with pytest.raises(StorageError, match="longer than 240 bytes"):
        await SqliteQueueStorage.open(tmp_path / ("x" * 241))

    assert names(tmp_path) == []


@pytest.mark.asyncio
async def test_a_relative_path_is_resolved_when_the_storage_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S13.6: a later change of the working directory changes nothing."""
    monkeypatch.chdir(tmp_path)
    storage = SqliteQueueStorage("queue.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    async with storage:
        await storage.save(task("a"))
    async with storage:
        assert await storage.get("a") == task("a")

    assert (tmp_path / "queue.db").exists()
    assert names(tmp_path / "elsewhere") == []


@pytest.mark.asyncio
async def test_a_symlink_stands_for_its_file(tmp_path: Path) -> None:
    """S13.6: SQLite's own files lie beside the real one, even when that does not exist yet."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "real" / "queue.db")

    async with SqliteQueueStorage(tmp_path / "link.db") as storage:
        await storage.save(task("a"))

        assert names(tmp_path) == ["link.db", "real"]
    async with SqliteQueueStorage(tmp_path / "real" / "queue.db") as storage:
        assert await storage.get("a") == task("a")


@pytest.mark.asyncio
async def test_a_database_in_memory_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S13.22: ":memory:" is a database that is gone with the object."""
    monkeypatch.chdir(tmp_path)
    async with SqliteQueueStorage(":memory:") as storage, SqliteQueueStorage(":memory:") as other:
        await storage.save(task("a"))

        assert await storage.get("a") == task("a")
        assert await other.get("a") is None
    assert names(tmp_path) == []


@pytest.mark.skipif(os.name != "posix", reason="Windows has no modes of this kind")
def test_a_new_file_is_for_its_owner_only(tmp_path: Path) -> None:
    """S1.1: payloads may be confidential, so neither the file nor SQLite's own files can be read by others."""
    said = run_python(_MODES, tmp_path / "queue.db")

    assert said.split() == ["0o600"] * 4


_MODES = """
    import asyncio, os, sys
    from durable_queue import QueueStorage
    from durable_queue_sqlite import SqliteQueueStorage

    os.umask(0)

    async def main():
        async with SqliteQueueStorage(sys.argv[1]) as storage:
            await storage.acquire_consumer()
            for suffix in ("", "-wal", "-shm", ".lock"):
                print(oct(os.stat(sys.argv[1] + suffix).st_mode & 0o777))

    asyncio.run(main())
"""


@pytest.mark.asyncio
@pytest.mark.skipif(os.name != "posix", reason="Windows has no modes of this kind")
async def test_the_mode_of_an_existing_file_is_left(tmp_path: Path) -> None:
    """S1.1: a file that its owner has shared stays shared."""
    path = tmp_path / "queue.db"
    path.touch()
    path.chmod(0o660)

    async with SqliteQueueStorage(path) as storage:
        await storage.save(task("a"))

    assert stat.S_IMODE(path.stat().st_mode) == 0o660
