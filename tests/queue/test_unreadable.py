"""Records that cannot be read, in a real file: they stop nothing and are left as they are (S7.3, S13.12)."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest
import pytest_asyncio

from durable_queue import (
    CorruptRecordError,
    DependencyFailurePolicy,
    DurableQueue,
    QueueStorage,
    QueueStorageFailure,
    RetryPolicy,
    StoredTask,
    TaskContext,
    TaskStatus,
)
from durable_queue.testing import FakeQueueClock, collect_events
from durable_queue_sqlite import SqliteQueueStorage
from tests.queue.conftest import MakeQueue
from tests.queue.handler_support import NOW, SECOND, settle, succeed
from tests.support import Other, ThirteenMethodStorage, Work

OFTEN = RetryPolicy.fixed(max_attempts=9, delay=NOW)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


@pytest_asyncio.fixture
async def storage(path: Path) -> AsyncIterator[QueueStorage]:
    """An empty file; a record in the memory of the process cannot become unreadable."""
    async with SqliteQueueStorage(path) as opened:
        yield opened


def execute(path: Path, statement: str, *parameters: Any) -> list[Any]:
    """Change or read the file behind the back of the queue."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        return connection.execute(statement, parameters).fetchall()
    finally:
        connection.close()


def break_record(path: Path, *ids: str) -> None:
    for task_id in ids:
        execute(path, "UPDATE tasks SET details = '{' WHERE id = ?", task_id)


def row(path: Path, task_id: str) -> Any:
    return execute(path, "SELECT * FROM tasks WHERE id = ?", task_id)[0]


def registered(queue: DurableQueue) -> DurableQueue:
    queue.register(Work, succeed)
    queue.register(Other, succeed)
    return queue


async def make_running(storage: QueueStorage, *ids: str) -> None:
    for task_id in ids:
        record = await storage.get(task_id)
        await storage.update(attrs.evolve(record, status=TaskStatus.RUNNING, attempts=1))


@pytest.mark.asyncio
async def test_rec_03_unreadable_pending_records_are_passed_over(make_queue: MakeQueue, path: Path) -> None:
    """S7.3: the neighbours run, each broken record is reported once and untouched, over a restart as well."""
    queue = registered(make_queue())
    ids = await queue.enqueue_all([Work(n) for n in range(5)])
    broken = [ids[0], ids[2]]
    break_record(path, *broken)
    before = [row(path, task_id) for task_id in broken]
    with collect_events(queue, QueueStorageFailure) as failures:
        await queue.start()
        await queue.drain()
        await queue.stop()
        await queue.start()
        later = await queue.enqueue(Work(9))
        assert (await queue.wait(later)).status is TaskStatus.COMPLETED
        await queue.drain()

        assert sorted(event.error.task_id for event in failures) == sorted(broken)
        assert {type(event.error) for event in failures} == {CorruptRecordError}
    assert [row(path, task_id) for task_id in broken] == before
    for task_id in (ids[1], ids[3], ids[4]):
        assert (await queue.get_task(task_id)).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
async def test_rec_03_more_unreadable_running_records_than_a_batch(
    make_queue: MakeQueue, path: Path, storage: QueueStorage
) -> None:
    """S7.1: a whole batch that cannot be read does not end recovery before the readable ones behind it."""
    queue = registered(make_queue())
    ids = await queue.enqueue_all([Work(n) for n in range(130)], retry_policy=OFTEN)
    await make_running(storage, *ids)
    break_record(path, *ids[:120])
    await queue.start()
    await queue.drain()

    for task_id in ids[120:]:
        record = await queue.get_task(task_id)
        assert (record.status, record.attempts) == (TaskStatus.COMPLETED, 2)


@pytest.mark.asyncio
async def test_a_record_that_breaks_while_its_task_runs_is_written_whole(
    make_queue: MakeQueue, path: Path, storage: QueueStorage
) -> None:
    """S10.1: the outcome of a running task needs no read-back."""
    queue = make_queue()

    async def work(task: Work, context: TaskContext) -> str:
        break_record(path, context.task_id)
        return "kept"

    queue.register(Work, work)
    task_id = await queue.enqueue(Work())
    await queue.start()
    await queue.drain()

    assert (await queue.get_task(task_id)).result == "kept"


@pytest.mark.asyncio
async def test_an_unreadable_dependency_keeps_its_dependent_waiting(
    make_queue: MakeQueue, path: Path, storage: QueueStorage
) -> None:
    """S7.3: nobody can say how it ended; others go on, and deleting the broken record settles the dependent."""
    queue = registered(make_queue())
    await queue.start()
    done = await queue.enqueue(Work())
    await queue.wait(done)
    await queue.pause()
    last = await queue.enqueue(Work())
    child = await queue.enqueue(Work(), depends_on=[done, last])
    break_record(path, done)
    await queue.resume()
    assert (await queue.wait(last)).status is TaskStatus.COMPLETED
    assert (await queue.wait(await queue.enqueue(Other()))).status is TaskStatus.COMPLETED
    assert (await queue.get_task(child)).status is TaskStatus.WAITING
    await queue.delete(done)

    assert (await queue.wait(child)).status is TaskStatus.CANCELLED


@pytest.mark.asyncio
async def test_an_unreadable_hand_off_past_its_deadline_stops_nothing(
    make_queue: MakeQueue, path: Path, clock: FakeQueueClock
) -> None:
    """S7.3: the worker goes on when the record of a hand-off that is over cannot be read."""
    queue = make_queue()

    async def hand_off(task: Work, context: TaskContext) -> None:
        context.hand_off("r", deadline=clock.now() + SECOND)

    queue.register(Work, hand_off)
    queue.register(Other, succeed)
    await queue.start()
    task_id = await queue.enqueue(Work())
    await queue.drain()
    break_record(path, task_id)
    before = row(path, task_id)
    clock.advance(SECOND)
    await settle()

    assert (await queue.wait(await queue.enqueue(Other()))).status is TaskStatus.COMPLETED
    assert row(path, task_id) == before


@pytest.mark.asyncio
async def test_an_unreadable_waiting_record_of_another_process_stops_nothing(
    make_queue: MakeQueue, path: Path, storage: QueueStorage, clock: FakeQueueClock
) -> None:
    """S7.3: the consumer looks at what others have inserted, and passes over what it cannot read."""
    queue = registered(make_queue())
    await queue.start()
    parent = await queue.enqueue(Work(), delay=timedelta(hours=1))
    await queue.drain()
    async with SqliteQueueStorage(path) as elsewhere:
        foreign = DurableQueue(elsewhere, clock=clock)
        registered(foreign)
        child = await foreign.enqueue(Work(), depends_on=[parent])
        await foreign.close()
    break_record(path, child)
    clock.advance(SECOND)
    await queue.drain()

    assert (await queue.wait(await queue.enqueue(Other()))).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
async def test_rec_03_a_broken_payload_fails_its_task_once(
    make_queue: MakeQueue, path: Path, storage: QueueStorage
) -> None:
    """S7.3: the record can be read, so the task fails at its attempt, with few writes and no handler."""
    queue, calls = make_queue(), []

    async def work(task: Work, context: TaskContext) -> None:
        calls.append(task.n)

    queue.register(Work, work)
    ids = await queue.enqueue_all([Work(n) for n in range(3)], retry_policy=OFTEN)
    execute(
        path,
        """UPDATE payloads SET text = '{' WHERE "row" = (SELECT "row" FROM tasks WHERE id = ?)""",
        ids[1],
    )
    execute(path, "CREATE TABLE writes (id TEXT)")
    execute(path, "CREATE TRIGGER count AFTER UPDATE ON tasks BEGIN INSERT INTO writes VALUES (new.id); END")
    for _ in range(2):
        await queue.start()
        await queue.drain()
        await queue.stop()

    record = await queue.get_task(ids[1])
    assert (record.status, record.attempts) == (TaskStatus.FAILED, 1)
    assert record.last_failure.error_type == "PayloadError"
    assert calls == [0, 2]
    assert execute(path, "SELECT count(*) FROM writes WHERE id = ?", ids[1])[0][0] < 10


@pytest.mark.asyncio
async def test_the_public_reads_raise_and_delete_removes(make_queue: MakeQueue, path: Path) -> None:
    """S13.12: get and lists raise CorruptRecordError with the id and field, counts do not; delete removes it."""
    queue = registered(make_queue())
    good, bad = await queue.enqueue(Work()), await queue.enqueue(Work(), deduplication_key="k", group="g")
    break_record(path, bad)

    for read in (
        lambda: queue.get_task(bad),
        queue.get_tasks,
        lambda: queue.get_tasks(status=TaskStatus.PENDING),
        lambda: queue.get_tasks(group="g"),
    ):
        with pytest.raises(CorruptRecordError) as caught:
            await read()
        assert (caught.value.task_id, caught.value.field) == (bad, "details")
    assert (await queue.get_task(good)).id == good
    assert (await queue.counts())[TaskStatus.PENDING] == 2
    assert await queue.enqueue(Work(), deduplication_key="k") not in (good, bad)
    await queue.delete(bad)

    assert len(await queue.get_tasks()) == 2


class BrokenGetStorage(ThirteenMethodStorage):
    """An adapter whose `get` cannot read one record."""

    broken = ""

    async def get(self, task_id: str) -> StoredTask | None:
        if task_id == self.broken:
            raise CorruptRecordError("is not JSON", task_id=task_id, field="payload")
        return await super().get(task_id)


@pytest.mark.asyncio
async def test_an_unreadable_dependency_in_a_minimal_storage(make_queue: MakeQueue) -> None:
    """S7.3: also where many are read one by one, the others go on and a readable end is judged."""
    minimal = BrokenGetStorage()
    queue = registered(make_queue(storage=minimal))
    parents = await queue.enqueue_all([Work(n) for n in range(2)])
    child = await queue.enqueue(Work(), depends_on=parents, on_dependency_failure=DependencyFailurePolicy.RUN)
    await queue.start()
    await queue.wait(parents[0])
    minimal.broken = parents[0]
    await queue.wait(parents[1])
    assert (await queue.wait(await queue.enqueue(Other()))).status is TaskStatus.COMPLETED
    assert (await queue.get_task(child)).status is TaskStatus.WAITING
    await queue.delete(parents[0])

    assert (await queue.wait(child)).status is TaskStatus.COMPLETED
