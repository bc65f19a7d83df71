"""Loads of every kind while a write or a read fails somewhere: nothing is lost, nothing runs twice (S10, S13.3)."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

from durable_queue import (
    DurableQueue,
    FakeQueueClock,
    QueueStorage,
    RetryPolicy,
    StorageError,
    TaskGraph,
    TaskStatus,
)
from durable_queue.testing import OPERATIONS, WRITES, FlakyStorage, collect_events, run_until_idle
from tests.queue.conftest import MakeQueue
from tests.queue.fault_support import Counting, time_goes_on
from tests.support import Work

HOUR = timedelta(hours=1)
READS = OPERATIONS - WRITES - {"acquire_consumer", "release_consumer", "close"}
ENDS = {
    TaskStatus.COMPLETED: "TaskCompleted",
    TaskStatus.FAILED: "TaskFailed",
    TaskStatus.CANCELLED: "TaskCancelled",
}

in_process = pytest.mark.parametrize("storage", ["memory", "thirteen"], indirect=True)
"""Where a test has many variants, the storages that take no time."""


def kinds(events: object) -> Counter[tuple[str, str]]:
    return Counter((type(event).__name__, getattr(event, "task_id", "")) for event in events)  # type: ignore[attr-defined]  # any sequence of events


async def mixed_load(queue: DurableQueue, told: dict[str, TaskStatus], failed: list[BaseException]) -> None:
    """Enqueue, cancel and submit while tasks run, complete, fail and are retried; note what was acknowledged."""

    async def enqueue(n: int, ends: TaskStatus = TaskStatus.COMPLETED, **options: object) -> str | None:
        try:
            task_id = await queue.enqueue(Work(n), **options)  # type: ignore[arg-type]  # options of enqueue
        except StorageError as error:
            failed.append(error)
            return None
        told[task_id] = ends
        return task_id

    async def cancel(task_id: str | None) -> None:
        if task_id is None:
            return
        told[task_id] = None  # type: ignore[assignment]  # not known while the call is under way
        try:
            await queue.cancel(task_id)
        except StorageError as error:
            failed.append(error)
            del told[task_id]
        else:
            told[task_id] = TaskStatus.CANCELLED

    async def graph() -> None:
        nodes = TaskGraph()
        first = nodes.add(Work(20))
        second = nodes.add(Work(21), depends_on=[first])
        nodes.add(Work(22), depends_on=[first, second])
        try:
            ids = await queue.enqueue_graph(nodes)
        except StorageError as error:
            failed.append(error)
        else:
            told.update(dict.fromkeys(ids.values(), TaskStatus.COMPLETED))

    later = await enqueue(1, delay=HOUR)
    parent = await enqueue(2, retry_policy=RetryPolicy.fixed(max_attempts=2, delay=timedelta(0)))
    await enqueue(3, depends_on=[parent] if parent else [])
    await asyncio.gather(cancel(later), graph(), enqueue(4), enqueue(5), enqueue(9, TaskStatus.FAILED))


async def check_load(queue: DurableQueue, clock: FakeQueueClock) -> None:
    handler = Counting({2: 1, 9: 1})
    queue.register(Work, handler)
    told: dict[str, TaskStatus] = {}
    failed: list[BaseException] = []
    with collect_events(queue) as events:
        async with time_goes_on(queue, clock):
            await mixed_load(queue, told, failed)
            for task_id, status in told.items():
                assert (await queue.wait(task_id)).status is status
            await run_until_idle(queue)
            stored = {task.id: task for task in await queue.get_tasks()}
        seen = kinds(events)
    assert told.keys() <= stored.keys()
    for task_id, task in stored.items():
        assert task.status.is_terminal or (task_id not in told and task.next_attempt_at is not None)
        # Every record has its events, once: one that a caller was given an error for as well.
        assert seen[("TaskEnqueued", task_id)] == 1
        assert seen[("TaskStarted", task_id)] == task.attempts
        if task.status.is_terminal:
            assert seen[(ENDS[task.status], task_id)] == 1
    starts = Counter(handler.starts)
    assert starts == Counter(task.payload["n"] for task in stored.values() for _ in range(task.attempts))
    assert all(starts[n] <= (2 if n == 2 else 1) for n in starts)
    assert starts[1] == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("after_commit", [False, True])
@pytest.mark.parametrize("nth", range(1, 14))
async def test_a_write_that_fails_at_any_point_of_a_mixed_load(
    make_queue: MakeQueue, storage: QueueStorage, clock: FakeQueueClock, nth: int, after_commit: bool
) -> None:
    """S10.1: whatever write fails, before or after its commit, every acknowledged task ends as it would have ended."""
    flaky = FlakyStorage(storage)
    queue = make_queue(storage=flaky, max_concurrent_tasks=2)
    await queue.start()
    flaky.fail("apply", nth=nth, after_commit=after_commit)
    await check_load(queue, clock)


@pytest.mark.asyncio
@in_process
@pytest.mark.parametrize("after_commit", [False, True])
@pytest.mark.parametrize("times", [2, 3, 4, 7])
@pytest.mark.parametrize("nth", [2, 4, 5, 6, 8])
async def test_writes_that_fail_in_a_row(
    make_queue: MakeQueue,
    storage: QueueStorage,
    clock: FakeQueueClock,
    nth: int,
    times: int,
    after_commit: bool,
) -> None:
    """S10.1, S13.3: an outage of any length that begins anywhere loses nothing and runs nothing twice."""
    flaky = FlakyStorage(storage)
    queue = make_queue(storage=flaky, max_concurrent_tasks=3)
    await queue.start()
    flaky.fail("apply", nth=nth, times=times, after_commit=after_commit)
    await check_load(queue, clock)


@pytest.mark.asyncio
@in_process
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("nth", range(1, 28))
async def test_a_read_that_fails_at_any_point(
    make_queue: MakeQueue, storage: QueueStorage, clock: FakeQueueClock, nth: int, times: int
) -> None:
    """S10.1: a failed read of the worker is tried again after the delay; one of a call is told to its caller."""
    flaky = FlakyStorage(storage)
    queue = make_queue(storage=flaky, max_concurrent_tasks=2)
    handler = Counting({2: 1, 9: 1})
    queue.register(Work, handler)
    told: dict[str, TaskStatus] = {}
    failed: list[BaseException] = []
    async with time_goes_on(queue, clock):
        await queue.start()
        # What the test itself reads is left alone.
        flaky.fail(READS - {"get", "get_all", "count_by_status", "count_held"}, nth=nth, times=times)
        await mixed_load(queue, told, failed)
        for task_id, status in told.items():
            assert (await queue.wait(task_id)).status is status
        await run_until_idle(queue)
    stored = await flaky.inner.get_all()
    assert {task.id for task in stored if task.status.is_terminal} >= told.keys()
    assert len(handler.starts) == sum(task.attempts for task in stored)
