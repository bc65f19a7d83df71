"""Locks and other writers of the file, and a file that takes no more (S7.9, S10.1)."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from durable_queue import (
    DurableQueue,
    FakeQueueClock,
    StorageError,
    StoredTask,
    TaskContext,
    TaskStarted,
    TaskStatus,
)
from durable_queue_sqlite import SqliteQueueStorage
from tests.processes.notes import Notes
from tests.sqlite.support import on_connection
from tests.support import Anything, Work

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


def lock(file: Path) -> sqlite3.Connection:
    """Take the write lock of the file, as another program would."""
    other = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    return other


@pytest.mark.asyncio
async def test_sql_01_a_lock_of_another_program_is_waited_out(
    file: Path, clock: FakeQueueClock, consumer: DurableQueue, notes: Notes
) -> None:
    """S7.9: enqueue, claims, outcomes, cancel and purge succeed after the lock has gone, each handler started once."""
    gone = await consumer.enqueue(Work(0))
    await consumer.wait(gone)
    later = await consumer.enqueue(Work(1), delay=HOUR)
    with closing(lock(file)) as other:
        calls = [
            asyncio.create_task(consumer.cancel(later)),
            asyncio.create_task(consumer.purge()),
            *(asyncio.create_task(consumer.enqueue(Work(n))) for n in range(2, 12)),
        ]
        done, _ = await asyncio.wait(calls, timeout=0.2)
        assert not done
        other.execute("COMMIT")
        _, purged, *ids = await asyncio.gather(*calls)
    assert purged == 1
    for task_id in ids:
        assert (await consumer.wait(str(task_id))).status is TaskStatus.COMPLETED
    assert sorted(notes.seen) == [0, *range(2, 12)]


@pytest.mark.asyncio
async def test_sql_01_another_program_writes_and_reads_all_the_time(
    file: Path, consumer: DurableQueue, notes: Notes
) -> None:
    """S7.9: rows of a foreign table and an open snapshot of a reader get in nobody's way."""
    with closing(sqlite3.connect(file, isolation_level=None, timeout=10)) as other:
        other.execute("CREATE TABLE foreign_rows (n)")
        with closing(sqlite3.connect(file, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            assert reader.execute("SELECT count(*) FROM foreign_rows").fetchone() == (0,)
            ids = []
            for n in range(100):
                ids.append(await consumer.enqueue(Work(n)))
                await asyncio.to_thread(_insert, file, n)
            for task_id in ids:
                assert (await consumer.wait(task_id)).attempts == 1
            assert reader.execute("SELECT count(*) FROM foreign_rows").fetchone() == (0,)
        assert other.execute("SELECT count(*) FROM foreign_rows").fetchone() == (100,)
    assert sorted(notes.seen) == list(range(100))


def _insert(file: Path, n: int) -> None:
    with closing(sqlite3.connect(file, isolation_level=None, timeout=10)) as other:
        other.execute("INSERT INTO foreign_rows VALUES (?)", (n,))


@pytest.mark.asyncio
@pytest.mark.parametrize("injector", ["locked", "full"])
async def test_sto_02_a_real_fault_of_the_file(file: Path, clock: FakeQueueClock, injector: str) -> None:
    """S10.1: locked for good or full: calls raise and leave no row, outcomes are kept, and all goes on afterwards."""
    async with SqliteQueueStorage(file) as storage:
        queue, starts = DurableQueue(storage, clock=clock, max_concurrent_tasks=2), []
        gate = asyncio.Event()

        async def large(task: Work, context: TaskContext) -> str:
            starts.append(task.n)
            await gate.wait()
            return "x" * 50_000

        queue.register(Work, large)
        queue.register(Anything)
        ids = await queue.enqueue_all([Work(n) for n in range(12)])
        with queue.subscribe(TaskStarted) as began:
            await queue.start()
            await anext(began)
            await anext(began)
        other = None
        if injector == "locked":
            await on_connection(
                storage, lambda database: database.execute("PRAGMA busy_timeout = 1").fetchall()
            )
            other = lock(file)
        else:
            await on_connection(storage, _allow_no_more_pages)
        gate.set()
        for _ in range(3):
            with pytest.raises(StorageError):
                await _until_answered(queue.enqueue(Anything("y" * 50_000)), clock)
        assert starts == [0, 1]
        if other is not None:
            other.execute("COMMIT")
            other.close()
        else:
            await on_connection(
                storage, lambda database: database.execute("PRAGMA max_page_count = 100000").fetchall()
            )
        for task_id in ids:
            assert (await _until_answered(queue.wait(task_id), clock)).status is TaskStatus.COMPLETED
        assert sorted(starts) == list(range(12))
        assert len(await queue.get_tasks()) == 12
        checked = await on_connection(
            storage, lambda database: database.execute("PRAGMA integrity_check").fetchall()
        )
        assert checked == [("ok",)]
        await queue.close()


def _allow_no_more_pages(database: sqlite3.Connection) -> None:
    [(pages,)] = database.execute("PRAGMA page_count").fetchall()
    database.execute(f"PRAGMA max_page_count = {pages}").fetchall()


async def _until_answered(call: Awaitable[StoredTask | str], clock: FakeQueueClock) -> StoredTask:
    """Await a call while seconds pass on the clock."""
    answering = asyncio.ensure_future(call)
    while not answering.done():
        clock.advance(SECOND)
        await asyncio.wait({answering}, timeout=0.01)
    return await answering  # type: ignore[return-value]  # the test knows what it has asked
