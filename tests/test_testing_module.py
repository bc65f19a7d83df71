"""The helpers that drive a queue in users' tests, and events as a list."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from durable_queue import (
    DurableQueue,
    FakeQueueClock,
    MemoryQueueStorage,
    QueueStorageFailure,
    RetryPolicy,
    StoredTask,
    TaskCompleted,
    TaskEnqueued,
    TaskRetryScheduled,
    TaskStarted,
    TaskStatus,
    testing,
)
from durable_queue.testing import (
    FAKE_START,
    WRITES,
    FlakyStorage,
    advance,
    collect_events,
    crash,
    run_until_idle,
)
from tests.support import Work

HOUR = timedelta(hours=1)


def record(task_id: str = "t", **fields: Any) -> StoredTask:
    return StoredTask(id=task_id, type="work", created_at=FAKE_START, **fields)


@pytest.fixture(name="inner")
def _inner() -> MemoryQueueStorage:
    return MemoryQueueStorage()


@pytest.fixture(name="storage")
def _storage(inner: MemoryQueueStorage) -> FlakyStorage:
    return FlakyStorage(inner)


@pytest.fixture(name="clock")
def _clock() -> FakeQueueClock:
    return FakeQueueClock()


@pytest_asyncio.fixture(name="queue")
async def _queue(storage: FlakyStorage, clock: FakeQueueClock) -> AsyncIterator[DurableQueue]:
    async with DurableQueue(storage, clock=clock) as queue:
        yield queue


@pytest.mark.asyncio
async def test_a_queue_survives_the_faults_of_its_storage(
    storage: FlakyStorage, clock: FakeQueueClock, queue: DurableQueue
) -> None:
    """S10.1, S10.2: an outcome whose write fails is written again after the delay; the handler ran once."""
    runs = []
    queue.register(Work, lambda task, _: runs.append(task.n))
    with (
        collect_events(queue, QueueStorageFailure, TaskCompleted) as events,
        queue.subscribe(QueueStorageFailure) as failures,
    ):
        # The first write is the insert, the second the claim, the third the outcome.
        storage.fail(WRITES, nth=3, after_commit=True)
        await queue.enqueue(Work(1))
        await anext(failures)
        clock.advance(timedelta(seconds=1))
        await run_until_idle(queue)

    assert [type(event) for event in events] == [QueueStorageFailure, TaskCompleted]
    assert runs == [1]


@pytest.mark.asyncio
async def test_collected_events_read_like_a_list(queue: DurableQueue) -> None:
    """S11.1: what was delivered so far, in order; only the wanted types."""
    queue.register(Work, lambda _, __: None)
    with collect_events(queue) as everything, collect_events(queue, TaskStarted, TaskCompleted) as some:
        assert list(everything) == []
        assert everything == []
        assert not everything
        task_id = await queue.enqueue(Work())
        assert [type(event) for event in everything[:1]] == [TaskEnqueued]
        await run_until_idle(queue)

        assert [type(event) for event in everything] == [TaskEnqueued, TaskStarted, TaskCompleted]
        assert [type(event) for event in some] == [TaskStarted, TaskCompleted]
        assert everything[0].task_id == task_id  # type: ignore[attr-defined]  # an event about a task
        assert everything[1:] == some
        assert some == list(some)
        assert len(some) == 2
        assert repr(some) == repr(list(some))


@pytest.mark.asyncio
async def test_collected_events_outlive_their_block(queue: DurableQueue) -> None:
    """S11.1: the events stay readable after the block, and nothing later is added."""
    queue.register(Work, lambda _, __: None)
    with contextlib.suppress(KeyError), collect_events(queue, TaskEnqueued) as events:
        await queue.enqueue(Work(1))
        raise KeyError
    await queue.enqueue(Work(2))

    assert len(events) == 1


@pytest.mark.asyncio
async def test_run_until_idle_works_off_what_is_ready_and_moves_no_clock(
    queue: DurableQueue, clock: FakeQueueClock
) -> None:
    """S7.8: it returns when nothing runs and nothing is ready, and says what remains."""
    runs = []
    queue.register(Work, lambda task, _: runs.append(task.n))
    await queue.enqueue(Work(1))
    await queue.enqueue(Work(2), delay=HOUR)
    remaining = await run_until_idle(queue)

    assert runs == [1]
    assert remaining.scheduled == 1
    assert clock.now() == FAKE_START


@pytest.mark.asyncio
async def test_advance_goes_from_timer_to_timer(queue: DurableQueue, clock: FakeQueueClock) -> None:
    """S12.3, S5.3: each attempt is made at its own time, within one call."""
    attempts = []

    async def handler(_: Work, __: Any) -> None:
        attempts.append(clock.now() - FAKE_START)
        if len(attempts) < 4:
            raise ConnectionError

    queue.register(Work, handler, retry_policy=RetryPolicy.exponential(max_attempts=9, initial_delay=HOUR))
    with collect_events(queue, TaskRetryScheduled, TaskCompleted) as events:
        await queue.enqueue(Work())
        await advance(queue, clock, 10 * HOUR)

    assert attempts == [0 * HOUR, 1 * HOUR, 3 * HOUR, 7 * HOUR]
    assert [type(event) for event in events] == [TaskRetryScheduled] * 3 + [TaskCompleted]
    assert clock.now() == FAKE_START + 10 * HOUR


@pytest.mark.asyncio
async def test_advance_goes_no_further_than_it_is_told(queue: DurableQueue, clock: FakeQueueClock) -> None:
    """S12.3: what is due at the end of the span runs, what is due later does not."""
    runs = []
    queue.register(Work, lambda task, _: runs.append(task.n))
    await queue.enqueue(Work(1), delay=HOUR)
    await queue.enqueue(Work(2), delay=HOUR + timedelta(microseconds=1))
    await advance(queue, clock, HOUR)
    assert runs == [1]
    await advance(queue, clock, timedelta(microseconds=1))

    assert runs == [1, 2]
    with pytest.raises(ValueError, match="cannot be advanced by a negative delta"):
        await advance(queue, clock, -HOUR)


@pytest.mark.asyncio
async def test_a_crash_leaves_what_ran_to_the_next_queue(
    storage: FlakyStorage, inner: MemoryQueueStorage, clock: FakeQueueClock
) -> None:
    """S7.2: after a crash the task is still running in the storage, and the next queue recovers it."""
    begun = asyncio.Event()

    async def handler(_: Work, __: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    queue = DurableQueue(storage, clock=clock)
    queue.register(Work, handler)
    task_id = await queue.enqueue(Work())
    await queue.start()
    await begun.wait()
    await crash(queue)
    stored = await inner.get(task_id)
    assert stored is not None
    assert stored.status is TaskStatus.RUNNING

    async with DurableQueue(storage, clock=clock) as following:
        following.register(Work, handler)
        await following.drain()
        failed = await following.get_task(task_id)

    assert failed is not None
    assert failed.last_failure is not None
    assert failed.last_failure.error_type == "TaskInterruptedError"


def test_the_tools_need_no_test_framework() -> None:
    """S12.3: the tools and everything they load work where neither pytest nor hypothesis is installed."""
    program = (
        "import sys\n"
        "sys.modules['pytest'] = sys.modules['hypothesis'] = sys.modules['aiosqlite'] = None\n"
        "import durable_queue.testing\n"
        "print(*sorted(durable_queue.testing.__all__))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        check=True,
        text=True,
    )

    assert result.stdout.split() == sorted(testing.__all__)
    assert "crash" in testing.__all__
