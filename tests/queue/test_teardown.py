"""A program that is torn down: somebody cancels the tasks of the loop (S5.4, S13.5)."""

from __future__ import annotations

import asyncio
import threading

import pytest

from durable_queue import (
    FakeQueueClock,
    QueueStorage,
    RetryPolicy,
    RunState,
    TaskContext,
    TaskStarted,
    TaskStatus,
)
from durable_queue.testing import FlakyStorage, collect_events
from tests.queue.conftest import MakeQueue
from tests.queue.handler_support import NOW, SECOND, Handler, after_the_storage, settle, started
from tests.support import Work

TWICE = RetryPolicy.fixed(max_attempts=2, delay=NOW)


async def cancel_everything() -> None:
    """Cancel every other task of the loop and wait for them, as programs do at their end."""
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


@pytest.mark.asyncio
async def test_a_teardown_writes_nothing_and_begins_nothing(
    make_queue: MakeQueue, storage: QueueStorage
) -> None:
    """S13.5: what ran stays running in the storage, what was next is not claimed; the next start recovers."""
    queue, handler = make_queue(max_concurrent_tasks=2), Handler()
    task_id = await started(queue, handler, retry_policy=TWICE)
    others = await queue.enqueue_all([Work(n) for n in range(3)])
    while handler.starts < 2:
        await after_the_storage(queue)
    before = await storage.get_all()
    with collect_events(queue) as events:
        await cancel_everything()
        await after_the_storage(queue)
        assert list(events) == []
    assert await storage.get_all() == before
    assert handler.starts == 2

    assert await queue.stop() == []
    handler.released.set()
    await queue.start()
    records = [await queue.wait(one) for one in (task_id, *others)]
    assert [(record.status, record.attempts) for record in records] == [
        (TaskStatus.COMPLETED, 2),
        (TaskStatus.COMPLETED, 2),
        (TaskStatus.COMPLETED, 1),
        (TaskStatus.COMPLETED, 1),
    ]


@pytest.mark.asyncio
async def test_a_loop_that_lives_on_goes_on_after_a_second(
    make_queue: MakeQueue, clock: FakeQueueClock, storage: QueueStorage
) -> None:
    """S13.5: the queue of a program that was not at its end claims again; what was cut off waits for a start."""
    queue, handler = make_queue(), Handler()
    task_id = await started(queue, handler, retry_policy=TWICE)
    second = await queue.enqueue(Work(2))
    await cancel_everything()
    handler.released.set()
    assert queue.run_state is RunState.RUNNING
    clock.advance(SECOND)

    assert (await queue.wait(second)).status is TaskStatus.COMPLETED
    assert (await queue.get_task(task_id)).status is TaskStatus.RUNNING


@pytest.mark.asyncio
async def test_a_handler_that_returns_although_it_is_torn_down_completes(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S13.5: a normal return completes the task whoever has cancelled it."""
    queue, handler = make_queue(), Handler(swallows=1)
    task_id = await started(queue, handler)
    handler.released.set()
    await cancel_everything()
    clock.advance(SECOND)

    assert (await queue.wait(task_id)).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
async def test_a_plain_function_is_torn_down_too(make_queue: MakeQueue, storage: QueueStorage) -> None:
    """S13.5: the thread goes on until it ends, and nothing is written of it."""
    queue, began, ended = make_queue(), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def work(task: Work, context: TaskContext) -> None:
        loop.call_soon_threadsafe(began.set)
        ended.wait(10)

    queue.register(Work, work)
    task_id = await queue.enqueue(Work())
    await queue.start()
    await began.wait()
    before = await storage.get(task_id)
    await cancel_everything()
    ended.set()
    await settle()

    assert await storage.get(task_id) == before
    assert await queue.stop() == []


@pytest.mark.asyncio
@pytest.mark.parametrize("after_commit", [False, True])
async def test_a_write_that_is_torn_down_cannot_hold_stop(
    make_queue: MakeQueue, storage: QueueStorage, after_commit: bool
) -> None:
    """S13.5: the outcome that was being written is written by the stop that follows; callers are answered."""
    flaky = FlakyStorage(storage)
    queue, handler = make_queue(storage=flaky), Handler()
    task_id = await started(queue, handler)
    gate = flaky.gate("apply", after_commit=after_commit)
    handler.released.set()
    await gate.reached()
    await cancel_everything()
    with collect_events(queue, TaskStarted) as events:
        second = await queue.enqueue(Work(2))
        assert await queue.stop() == []
        assert len(events) <= 1

    assert (await queue.get_task(task_id)).status is TaskStatus.COMPLETED
    assert (await queue.get_task(second)).status in (TaskStatus.PENDING, TaskStatus.COMPLETED)


@pytest.mark.asyncio
async def test_a_stop_that_is_torn_down_leaves_an_idle_queue(make_queue: MakeQueue) -> None:
    """S13.5: the stop itself may be among the tasks that are cancelled; close afterwards does not hang."""
    queue, handler = make_queue(), Handler()
    task_id = await started(queue, handler)
    stopping = asyncio.create_task(queue.stop())
    await settle()
    await cancel_everything()
    assert stopping.cancelled()

    assert queue.run_state is RunState.IDLE
    await queue.close()
    assert (await queue.get_task(task_id)).status is TaskStatus.RUNNING
