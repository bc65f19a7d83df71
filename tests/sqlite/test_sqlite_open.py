"""Opening a file that cannot be used: a clear error, and everything as it was."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import threading
from contextlib import closing
from pathlib import Path

import pytest

from durable_queue import SchemaTooNewError, StorageError
from durable_queue_sqlite import SqliteQueueStorage, _opening, _schema
from durable_queue_sqlite._schema import APPLICATION_ID, MIGRATIONS
from tests.sqlite.support import descriptors, execute, listing, run_python, task


async def refuse(path: Path, match: str) -> StorageError:
    """Open a path, see it refused, and see that nothing has changed and no thread is left."""
    folder = path.parent
    before = listing(folder) if folder.is_dir() else None

    with pytest.raises(StorageError, match=match) as refused:
        await SqliteQueueStorage.open(path)

    assert str(path) in str(refused.value)
    assert (listing(folder) if folder.is_dir() else None) == before
    assert [thread for thread in threading.enumerate() if "_connection_worker" in thread.name] == []
    return refused.value


async def fill(path: Path, count: int) -> None:
    """Make a queue file with tasks in it."""
    async with SqliteQueueStorage(path) as storage:
        for number in range(count):
            await storage.save(task(f"t{number}", payload={"text": "x" * 1000}))
    path.with_name(path.name + ".lock").unlink(missing_ok=True)


@pytest.mark.asyncio
async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """S13.22: a file in a folder that does not exist is refused, and the folder is not made."""
    await refuse(tmp_path / "none" / "queue.db", "there is no folder")

    assert not (tmp_path / "none").exists()


@pytest.mark.asyncio
async def test_a_folder_is_no_file(tmp_path: Path) -> None:
    """S13.22: a folder in the place of the file is refused."""
    (tmp_path / "queue.db").mkdir()

    await refuse(tmp_path / "queue.db", "this is a folder")


@pytest.mark.asyncio
async def test_a_text_file_is_left_alone(tmp_path: Path) -> None:
    """S13.22: a file that is no database is refused with its bytes as they were."""
    (tmp_path / "queue.db").write_text("dear diary\n" * 1000)

    await refuse(tmp_path / "queue.db", "file is not a database")


@pytest.mark.asyncio
async def test_a_truncated_database_is_left_alone(tmp_path: Path) -> None:
    """S13.22: a database cut in half is refused with its bytes as they were."""
    path = tmp_path / "queue.db"
    await fill(path, 50)
    os.truncate(path, path.stat().st_size // 2)

    await refuse(path, "malformed|damaged")


@pytest.mark.asyncio
async def test_a_damaged_page_is_found_in_a_small_file(tmp_path: Path) -> None:
    """S13.22: an inner page full of 0xFF is found at open, with the bytes as they were."""
    path = tmp_path / "queue.db"
    await fill(path, 50)
    with path.open("r+b") as file:
        file.seek(2 * 4096)
        file.write(b"\xff" * 4096)

    await refuse(path, "malformed|damaged")


@pytest.mark.asyncio
async def test_damage_met_later_is_an_error_of_that_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7.3: damage in a file too large to be looked through at open is an error of the call that meets it."""
    monkeypatch.setattr(_opening, "_CHECKED_WHOLE", 0)
    path = tmp_path / "queue.db"
    await fill(path, 50)
    page = execute(path, "SELECT rootpage FROM sqlite_master WHERE name = 'payloads'")[0][0]
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)

    async with SqliteQueueStorage(path) as storage:
        with pytest.raises(StorageError, match="get failed: database disk image is malformed"):
            await storage.get("t1")


@pytest.mark.asyncio
async def test_the_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    """S13.22: a database with foreign tables is refused."""
    path = tmp_path / "queue.db"
    execute(path, "CREATE TABLE customers (name TEXT)")

    await refuse(path, "database of another program")


@pytest.mark.asyncio
async def test_a_foreign_application_id_is_refused(tmp_path: Path) -> None:
    """S13.22: a database that another program has marked as its own is refused even when it is empty."""
    path = tmp_path / "queue.db"
    execute(path, "PRAGMA application_id = 77")

    await refuse(path, "database of another program")


@pytest.mark.asyncio
async def test_a_newer_schema_is_left_alone(tmp_path: Path) -> None:
    """S13.22: a file of a newer version is refused, and the error tells both versions."""
    path = tmp_path / "queue.db"
    await fill(path, 1)
    newest = len(MIGRATIONS)
    execute(path, f"PRAGMA user_version = {newest + 1}")

    refused = await refuse(path, f"schema version {newest + 1} is newer than {newest}")

    assert isinstance(refused, SchemaTooNewError)
    assert (refused.found, refused.supported) == (newest + 1, newest)


@pytest.mark.asyncio
async def test_a_newer_schema_still_in_the_journal_is_seen(tmp_path: Path) -> None:
    """S13.22: what the last program left in the write-ahead log counts as much as what is in the file."""
    path = tmp_path / "queue.db"
    await fill(path, 1)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}").fetchall()
        with pytest.raises(SchemaTooNewError):
            await SqliteQueueStorage.open(path)


@pytest.mark.asyncio
async def test_a_newer_file_left_by_a_crash_is_left_alone(tmp_path: Path) -> None:
    """S13.22: a log that nobody has brought into the file yet is read and not written back."""
    path = tmp_path / "queue.db"
    crashed = tmp_path / "crashed" / "queue.db"
    crashed.parent.mkdir()
    await fill(path, 1)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}").fetchall()
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{crashed}{suffix}")
    before = listing(crashed.parent)

    with pytest.raises(SchemaTooNewError):
        await SqliteQueueStorage.open(crashed)

    after = listing(crashed.parent)
    after.pop("queue.db-shm", None)
    assert after == before


@pytest.mark.asyncio
async def test_a_failure_after_the_file_was_opened_closes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S13.22: no descriptor is left while somebody still looks at the error."""

    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("injected")

    monkeypatch.setattr(_opening, "migrate", fail)
    with pytest.raises(StorageError, match="open failed: injected") as failed:
        await SqliteQueueStorage.open(tmp_path / "queue.db")

    assert failed.value.__cause__ is not None
    assert [name for name in descriptors() if name.startswith(str(tmp_path))] == []


@pytest.mark.asyncio
async def test_a_writer_delays_the_change_of_the_journal_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7.9: SQLite does not wait where it changes the mode of a file that somebody writes, so the storage does."""
    path = tmp_path / "queue.db"
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as writer:
        _schema.migrate(writer, str(path))
        writer.execute("BEGIN IMMEDIATE")
        waits: list[float] = []

        def wait(seconds: float) -> None:
            waits.append(seconds)
            writer.execute("COMMIT")

        monkeypatch.setattr(_opening.time, "sleep", wait)
        async with SqliteQueueStorage(path) as storage:
            await storage.save(task("a"))

    assert len(waits) == 1
    assert execute(path, "PRAGMA journal_mode") == [("wal",)]


@pytest.mark.asyncio
async def test_an_empty_file_is_a_new_queue(tmp_path: Path) -> None:
    """S13.22: a file of no bytes is opened as new."""
    path = tmp_path / "queue.db"
    path.touch()

    async with SqliteQueueStorage(path) as storage:
        await storage.save(task("a"))

        assert await storage.get("a") == task("a")
    assert execute(path, "PRAGMA application_id") == [(APPLICATION_ID,)]


@pytest.mark.asyncio
async def test_an_old_sqlite_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S13.22: a SQLite without STRICT tables is refused before a file is made."""
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 0))

    await refuse(tmp_path / "queue.db", "too old")


@pytest.mark.asyncio
@pytest.mark.parametrize(("path", "kind"), [("", ValueError), ("a\0b", ValueError), (b"queue.db", TypeError)])
async def test_what_is_no_path_is_refused(path: str, kind: type[Exception]) -> None:
    """S13.22: an empty path would be a temporary database, lost at close."""
    with pytest.raises(kind, match="path must"):
        SqliteQueueStorage(path)


def test_synchronous_is_one_of_two() -> None:
    """S2.1: a mode that does not keep what was acknowledged cannot be asked for."""
    with pytest.raises(ValueError, match="'FULL' or 'NORMAL'"):
        SqliteQueueStorage("queue.db", synchronous="OFF")  # type: ignore[arg-type]  # what the test is about


@pytest.mark.skipif(os.name != "posix", reason="Windows has no modes of this kind")
@pytest.mark.parametrize("what", ["file", "folder"])
def test_without_the_right_to_write_it_is_refused_at_open(what: str) -> None:
    """S13.22: a read-only file or folder is refused at open, not at the first task, and nothing is created."""
    # Not in pytest's folder, which other users cannot enter; root ignores modes and becomes somebody else.
    user = 65534 if os.geteuid() == 0 else os.geteuid()
    with tempfile.TemporaryDirectory() as outside:
        folder = Path(outside)
        path = folder / "queue.db"
        run_python(_OPEN, path, os.geteuid())
        path.chmod(0o444 if what == "file" else 0o666)
        folder.chmod(0o777 if what == "file" else 0o555)
        before = listing(folder)

        said = run_python(_OPEN, path, user)

        assert f"StorageError: {path}: the {what} cannot be" in said
        assert listing(folder) == before
        folder.chmod(0o700)


_OPEN = """
    import asyncio, os, sys
    from durable_queue_sqlite import SqliteQueueStorage

    os.setuid(int(sys.argv[2]))

    async def main():
        try:
            async with SqliteQueueStorage(sys.argv[1]):
                pass
        except Exception as error:
            print(f"{type(error).__name__}: {error}")

    asyncio.run(main())
"""
