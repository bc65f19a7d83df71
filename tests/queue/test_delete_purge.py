"""Deleting tasks, one or many, and never one that is still needed (S6.4, S13.14)."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timedelta

import pytest

from durable_queue import (
    DependencyFailurePolicy,
    DurableQueue,
    FakeQueueClock,
    HandOffError,
    MemoryQueueStorage,
    QueueStorage,
    RetryPolicy,
    StorageError,
    TaskContext,
    TaskNotFoundError,
    TaskStateError,
    TaskStatus,
)
from durable_queue.testing import FAKE_START, FlakyStorage
from durable_queue_sqlite import SqliteQueueStorage
from tests.queue.conftest import MakeQueue
from tests.queue.handler_support import Handler, succeed
from tests.support import Other, Work

HOUR = timedelta(hours=1)
ALL_ENDED = {TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED}


async def fail(task: object, context: object) -> None:
    raise RuntimeError("no")


async def ended(queue: DurableQueue) -> dict[TaskStatus, str]:
    """Bring one task into each terminal status, on a running queue with `Work` and a failing `Other`."""
    ids = {
        TaskStatus.COMPLETED: await queue.enqueue(Work()),
        TaskStatus.FAILED: await queue.enqueue(Other()),
        TaskStatus.CANCELLED: await queue.enqueue(Work(), delay=HOUR),
    }
    await queue.cancel(ids[TaskStatus.CANCELLED])
    await queue.drain()
    return ids


@pytest.mark.asyncio
async def test_terminal_tasks_are_deleted(make_queue: MakeQueue) -> None:
    """S6.4: a task of each terminal status is deleted, once; then it is not found."""
    queue = make_queue()
    queue.register(Work, succeed)
    queue.register(Other, fail)
    await queue.start()
    for task_id in (await ended(queue)).values():
        await queue.delete(task_id)
        assert await queue.get_task(task_id) is None
        with pytest.raises(TaskNotFoundError, match=task_id):
            await queue.delete(task_id)
    assert await queue.get_tasks() == []


@pytest.mark.asyncio
@pytest.mark.parametrize("status", ["pending", "waiting", "retryScheduled", "handed off"])
async def test_active_tasks_are_not_deleted(make_queue: MakeQueue, status: str) -> None:
    """S6.4: a task that is not terminal is refused, with its status, and left as it is."""

    async def run(task: Other, context: TaskContext) -> None:
        if status == "handed off":
            context.hand_off("r")
        else:
            raise RuntimeError

    queue = make_queue()
    queue.register(Work, succeed)
    queue.register(Other, run)
    await queue.start()
    target = await queue.enqueue(Work(), delay=HOUR)
    if status == "waiting":
        target = await queue.enqueue(Work(), depends_on=[target])
    elif status != "pending":
        target = await queue.enqueue(Other(), retry_policy=RetryPolicy.fixed(max_attempts=2, delay=HOUR))
        await queue.drain()
    before = await queue.get_tasks()
    with pytest.raises(TaskStateError, match="running" if status == "handed off" else status):
        await queue.delete(target)
    assert await queue.get_tasks() == before


@pytest.mark.asyncio
async def test_dep_10_what_others_wait_for_is_not_deleted(make_queue: MakeQueue) -> None:
    """S6.4: a task that a waiting one depends on is refused, also when it has ended itself; afterwards it goes."""
    queue = make_queue()
    queue.register(Work, succeed)
    queue.register(Other, succeed)
    first = await queue.enqueue(Work())
    second = await queue.enqueue(Other(), delay=HOUR)
    waiting = await queue.enqueue(
        Work(), depends_on=[first, second], on_dependency_failure=DependencyFailurePolicy.RUN
    )
    with pytest.raises(TaskStateError, match="pending"):
        await queue.delete(first)
    await queue.start()
    await queue.wait(first)
    with pytest.raises(TaskStateError, match=waiting):
        await queue.delete(first)
    assert await queue.get_task(first) is not None
    await queue.cancel(second)
    assert (await queue.wait(waiting)).status is TaskStatus.COMPLETED
    await queue.delete(first)
    await queue.delete(second)


@pytest.mark.asyncio
async def test_dep_10_deleting_a_dependent_does_not_disturb_its_parent(
    make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """S6.4: a waiting dependent is cancelled before it can be deleted; the parent then ends as ever."""
    handler = Handler()
    queue = make_queue()
    queue.register(Work, handler)
    queue.register(Other, succeed)
    await queue.start()
    parent = await queue.enqueue(Work())
    gone = await queue.enqueue(Other(), depends_on=[parent])
    kept = await queue.enqueue(Other(), depends_on=[parent])
    await handler.began.wait()
    with pytest.raises(TaskStateError, match="waiting"):
        await queue.delete(gone)
    await queue.cancel(gone)
    await queue.delete(gone)
    with caplog.at_level(logging.WARNING):
        handler.released.set()
        assert (await queue.wait(parent)).status is TaskStatus.COMPLETED
        assert (await queue.wait(kept)).status is TaskStatus.COMPLETED
    assert caplog.records == []


@pytest.mark.asyncio
async def test_dep_10_a_running_task_is_not_deleted(make_queue: MakeQueue) -> None:
    """S6.4: deleting a running task is refused; its outcome is stored and it has started once."""
    handler = Handler()
    queue = make_queue()
    queue.register(Work, handler)
    await queue.start()
    task_id = await queue.enqueue(Work())
    await handler.began.wait()
    with pytest.raises(TaskStateError, match="running"):
        await queue.delete(task_id)
    handler.released.set()
    assert (await queue.wait(task_id)).status is TaskStatus.COMPLETED
    assert handler.starts == 1


@pytest.mark.asyncio
async def test_dep_10_the_last_of_a_group(make_queue: MakeQueue) -> None:
    """S6.4: a group whose last member was deleted is an empty list, and can be cancelled and filled again."""
    queue = make_queue()
    queue.register(Work, succeed)
    task_id = await queue.enqueue(Work(), group="g")
    await queue.cancel(task_id)
    await queue.delete(task_id)
    assert await queue.get_tasks(group="g") == []
    assert await queue.cancel_group("g") == 0
    task_id = await queue.enqueue(Work(), group="g")
    assert [task.id for task in await queue.get_tasks(group="g")] == [task_id]


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["delete", "purge"])
async def test_sql_08_an_id_does_not_come_back(
    make_queue: MakeQueue, storage: QueueStorage, how: str
) -> None:
    """S6.4: after a deletion, also of everything and over a restart, every call with an old id finds nothing."""

    async def hand_off(task: Other, context: TaskContext) -> None:
        context.hand_off("r")

    queue = make_queue()
    queue.register(Work, succeed)
    queue.register(Other, hand_off)
    await queue.start()
    old = [await queue.enqueue(Work()), await queue.enqueue(Work()), await queue.enqueue(Other())]
    await queue.drain()
    await queue.complete_hand_off(old[2], reference="r")
    if how == "delete":
        await queue.delete(old[2])
    else:
        assert await queue.purge() == 3
    await queue.close()
    if isinstance(storage, SqliteQueueStorage):
        await storage.close()
        await storage.__aenter__()
    queue = make_queue()
    queue.register(Work, succeed)
    queue.register(Other, hand_off)
    await queue.start()
    new = await queue.enqueue(Other())
    await queue.drain()
    assert new not in old
    before = await queue.get_task(new)
    assert await queue.get_task(old[2]) is None
    for call in (
        queue.cancel(old[2]),
        queue.retry(old[2]),
        queue.delete(old[2]),
        queue.wait(old[2]),
        queue.complete_hand_off(old[2], reference="r"),
        queue.fail_hand_off(old[2], "no", reference="r"),
        queue.enqueue(Work(), depends_on=[old[2]]),
    ):
        with pytest.raises(TaskNotFoundError, match=old[2]):
            await call
    with pytest.raises(HandOffError):
        await queue.complete_hand_off(new, reference="another")
    assert await queue.get_task(new) == before


@pytest.mark.asyncio
async def test_purge_takes_completed_tasks_unless_told_otherwise(make_queue: MakeQueue) -> None:
    """S6.4: completed tasks by default, any terminal statuses on demand, and it says how many."""
    queue = make_queue()
    queue.register(Work, succeed)
    queue.register(Other, fail)
    await queue.start()
    ids = await ended(queue)
    active = await queue.enqueue(Work(), delay=HOUR)
    assert await queue.purge() == 1
    assert await queue.get_task(ids[TaskStatus.COMPLETED]) is None
    assert await queue.purge(statuses=set()) == 0
    assert await queue.purge(statuses=[TaskStatus.FAILED, TaskStatus.CANCELLED]) == 2
    assert [task.id for task in await queue.get_tasks()] == [active]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "status", [status for status in TaskStatus if not status.is_terminal] + ["completed"]
)
async def test_purge_refuses_statuses_that_are_not_terminal(
    make_queue: MakeQueue, status: TaskStatus
) -> None:
    """S6.4: only terminal statuses can be purged; nothing is deleted when one of them is not."""
    queue = make_queue()
    queue.register(Work, succeed)
    await queue.start()
    await queue.wait(await queue.enqueue(Work()))
    with pytest.raises(ValueError, match="terminal"):
        await queue.purge(statuses=[TaskStatus.COMPLETED, status])
    assert len(await queue.get_tasks()) == 1


@pytest.mark.asyncio
async def test_purge_by_age(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S6.4: `older_than` counts from the end of a task, as a span or as an instant."""
    queue = make_queue()
    queue.register(Work, succeed)
    await queue.start()
    for _ in range(4):
        # Each is created an hour before it ends.
        await queue.enqueue(Work(), delay=HOUR)
        clock.advance(HOUR)
        await queue.drain()
    assert await queue.purge(older_than=4 * HOUR) == 0
    assert await queue.purge(older_than=2.5 * HOUR) == 1
    assert await queue.purge(older_than=FAKE_START + 2.5 * HOUR) == 1
    assert await queue.purge(older_than=timedelta(0)) == 2
    for wrong in (-HOUR, timedelta(days=366), datetime(2030, 1, 1), 3600):  # noqa: DTZ001 - a naive one is refused
        with pytest.raises((ValueError, TypeError), match="older_than"):
            await queue.purge(older_than=wrong)  # type: ignore[arg-type]  # what is tested


@pytest.mark.asyncio
@pytest.mark.parametrize("state", ["waiting", "pending", "running", "handed off"])
async def test_purge_keeps_what_active_tasks_depend_on(make_queue: MakeQueue, state: str) -> None:
    """S13.14: a dependency of any active task is needed; with that task's end it no longer is."""
    go = asyncio.Event()
    began = asyncio.Event()

    async def run(task: Other, context: TaskContext) -> None:
        if state == "handed off":
            context.hand_off("r")
            return
        began.set()
        await go.wait()

    queue = make_queue()
    queue.register(Work, succeed)
    queue.register(Other, run)
    await queue.start()
    first, second, free = await queue.enqueue_all([Work(), Work(), Work()])
    last = await queue.enqueue(Work(), depends_on=[second])
    await queue.drain()
    needs = [first]
    if state == "waiting":
        needs.append(await queue.enqueue(Work(), delay=HOUR))
    target = await queue.enqueue(Other(), depends_on=needs, delay=HOUR if state == "pending" else None)
    if state == "running":
        await began.wait()
    else:
        await queue.drain()
    assert await queue.purge(statuses=ALL_ENDED) == 3
    assert await queue.get_task(first) is not None
    for task_id in (second, free, last):
        assert await queue.get_task(task_id) is None
    if state in ("running", "handed off"):
        go.set()
        if state == "handed off":
            await queue.complete_hand_off(target, reference="r")
        await queue.wait(target)
    else:
        await queue.cancel(target)
    assert await queue.purge(statuses=ALL_ENDED) == 2
    assert await queue.get_task(first) is None


@pytest.mark.asyncio
async def test_purge_works_in_bounded_batches(make_queue: MakeQueue) -> None:
    """S6.4: many tasks go in several writes, and other calls come in between."""
    flaky = FlakyStorage(MemoryQueueStorage())
    queue = make_queue(storage=flaky, max_concurrent_tasks=64)
    queue.register(Work, succeed)
    await queue.start()
    ids = await queue.enqueue_all([Work(n) for n in range(350)])
    await queue.drain()
    before = flaky.calls["apply"]
    gate = flaky.gate("apply", nth=2)
    purge = asyncio.ensure_future(queue.purge())
    await gate.reached()
    # It is decided after the batch that is being written, and before the last ones.
    late = asyncio.ensure_future(queue.enqueue(Work(), depends_on=[ids[-1]], delay=HOUR))
    for _ in range(5):
        await asyncio.sleep(0)
    gate.release()
    assert await purge == 349
    assert flaky.calls["apply"] - before >= 4
    assert {task.id for task in await queue.get_tasks()} == {ids[-1], await late}


@pytest.mark.asyncio
async def test_purges_at_once_do_not_hinder_each_other(make_queue: MakeQueue) -> None:
    """S6.4: of two purges at once each goes to the end, and every task is counted once."""
    queue = make_queue(max_concurrent_tasks=64)
    queue.register(Work, succeed)
    await queue.start()
    await queue.enqueue_all([Work(n) for n in range(120)])
    await queue.drain()
    counts = await asyncio.gather(queue.purge(), queue.purge(), queue.purge(older_than=HOUR))
    assert sum(counts) == 120
    assert await queue.get_tasks() == []


@pytest.mark.asyncio
async def test_an_idle_queue_deletes_and_purges(make_queue: MakeQueue) -> None:
    """S13.6: an idle queue takes the claim of the consumer for the call and gives it back."""
    queue = make_queue()
    queue.register(Work, succeed)
    first, second = await queue.enqueue_all([Work(), Work()])
    await queue.cancel(first)
    await queue.cancel(second)
    await queue.delete(first)
    assert await queue.purge(statuses={TaskStatus.CANCELLED}) == 1
    other = make_queue()
    await other.start()


@pytest.mark.asyncio
async def test_a_deletion_that_is_not_written_deletes_nothing(
    make_queue: MakeQueue, storage: QueueStorage
) -> None:
    """S6.4: when the storage fails, delete and purge raise, and what they were about is still there."""
    flaky = FlakyStorage(storage)
    queue = make_queue(storage=flaky)
    queue.register(Work, succeed)
    await queue.start()
    task_id = await queue.enqueue(Work())
    await queue.drain()
    for call in (queue.delete(task_id), queue.purge()):
        flaky.fail("apply")
        with pytest.raises(StorageError):
            await call
        assert await queue.get_task(task_id) is not None
    assert await queue.purge() == 1
