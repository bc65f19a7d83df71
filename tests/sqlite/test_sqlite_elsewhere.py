"""What others have written to the file, noticed without looking into its tables."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from durable_queue import DependencyFailurePolicy, Save, StorageError, TaskStatus
from durable_queue_sqlite import SqliteQueueStorage
from tests.sqlite.support import execute, on_connection, task


def waiting(task_id: str) -> Save:
    """Return the insert of a waiting task."""
    return Save(task(task_id, status=TaskStatus.WAITING, depends_on=["a"]))


@pytest.mark.asyncio
async def test_own_writes_are_no_news(tmp_path: Path) -> None:
    """S7.9: what the storage itself has written is not reported, before and after a report."""
    async with SqliteQueueStorage(tmp_path / "queue.db") as storage:
        assert await storage.changes_elsewhere() is None
        await storage.apply([waiting("own")])

        assert await storage.changes_elsewhere() is None


@pytest.mark.asyncio
async def test_waiting_tasks_of_others_are_named_once(tmp_path: Path) -> None:
    """S13.6: the consumer learns of waiting tasks that others have inserted, in between its own."""
    path = tmp_path / "queue.db"
    async with SqliteQueueStorage(path) as storage, SqliteQueueStorage(path) as other:
        await storage.apply([waiting("own-1")])
        await other.apply([waiting("w1"), Save(task("pending"))])
        await storage.apply([waiting("own-2")])
        await other.apply([waiting("w2")])

        assert await storage.changes_elsewhere() == ["w1", "w2"]
        assert await storage.changes_elsewhere() is None
        await other.delete("pending")
        assert await storage.changes_elsewhere() == []
        await other.apply([waiting("w3")])
        assert await storage.changes_elsewhere() == ["w3"]
        assert await storage.changes_elsewhere() is None
        await other.apply([waiting("w4")])
        assert await storage.changes_elsewhere() == ["w4"]


@pytest.mark.asyncio
async def test_a_foreign_program_is_noticed(tmp_path: Path) -> None:
    """S7.9: any commit counts, whoever made it and to whatever table."""
    path = tmp_path / "queue.db"
    async with SqliteQueueStorage(path) as storage:
        execute(path, "CREATE TABLE notes (text TEXT)")

        assert await storage.changes_elsewhere() == []
        assert await storage.changes_elsewhere() is None


@pytest.mark.asyncio
async def test_the_question_touches_no_table(tmp_path: Path) -> None:
    """S3.4: as long as nothing has happened, no table and no index is read."""
    async with SqliteQueueStorage(tmp_path / "queue.db") as storage:
        await storage.apply([waiting("own")])
        read: list[str | None] = []

        def authorize(action: int, first: str | None, *_: object) -> int:
            if action == sqlite3.SQLITE_READ:
                read.append(first)
            return sqlite3.SQLITE_OK

        await on_connection(storage, lambda database: database.set_authorizer(authorize))
        await storage.changes_elsewhere()

        assert read == []


@pytest.mark.asyncio
async def test_own_rows_are_not_walked_over_again(tmp_path: Path) -> None:
    """S3.4: the first commit of another program after many own ones costs no walk over those."""
    path = tmp_path / "queue.db"
    async with SqliteQueueStorage(path) as storage, SqliteQueueStorage(path) as other:
        await other.apply([waiting("w0")])
        assert await storage.changes_elsewhere() == ["w0"]
        await storage.apply([Save(task(f"own-{number}")) for number in range(3000)])
        assert await storage.changes_elsewhere() is None
        await other.apply([waiting("w1")])
        count = 0

        def tick() -> int:
            nonlocal count
            count += 1
            return 0

        await on_connection(storage, lambda database: database.set_progress_handler(tick, 100))

        assert await storage.changes_elsewhere() == ["w1"]
        assert count < 10


@pytest.mark.asyncio
async def test_a_number_that_was_taken_back_hides_nobody(tmp_path: Path) -> None:
    """S13.6: rows of a failed own write do not count as told of when others get their numbers."""
    path = tmp_path / "queue.db"
    async with SqliteQueueStorage(path) as storage, SqliteQueueStorage(path) as other:
        execute(
            path,
            "CREATE TRIGGER fault BEFORE INSERT ON payloads WHEN new.text LIKE '%bad%' "
            "BEGIN SELECT RAISE(ABORT, 'no'); END",
        )
        await storage.changes_elsewhere()
        with pytest.raises(StorageError):
            await storage.apply([Save(task("bad"))])
        assert await storage.changes_elsewhere() is None
        await other.apply([waiting("w1")])

        assert await storage.changes_elsewhere() == ["w1"]


@pytest.mark.asyncio
async def test_a_new_consumer_looks_back(tmp_path: Path) -> None:
    """S13.6: after the claim the first answer names the waiting tasks whose verdict nobody was there to give."""
    path = tmp_path / "queue.db"
    async with SqliteQueueStorage(path) as storage:
        await storage.apply(
            [
                Save(task("done", status=TaskStatus.COMPLETED)),
                Save(task("bad", status=TaskStatus.FAILED)),
                Save(task("open")),
                Save(task("free", status=TaskStatus.WAITING, depends_on=["done"])),
                Save(task("blocked", status=TaskStatus.WAITING, depends_on=["bad", "open"])),
                Save(task("patient", status=TaskStatus.WAITING, depends_on=["done", "open"])),
                Save(task("gone", status=TaskStatus.WAITING, depends_on=["never", "open"])),
                Save(
                    task(
                        "run",
                        status=TaskStatus.WAITING,
                        depends_on=["bad", "open"],
                        on_dependency_failure=DependencyFailurePolicy.RUN,
                    )
                ),
            ]
        )
        await storage.acquire_consumer()

        assert sorted(await storage.changes_elsewhere() or []) == ["blocked", "free", "gone"]
        assert await storage.changes_elsewhere() is None
