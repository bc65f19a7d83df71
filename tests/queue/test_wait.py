"""Waiting for the end of a task (S13.6, S13.16)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from durable_queue import (
    FakeQueueClock,
    QueueClosedError,
    QueueStateError,
    RetryPolicy,
    TaskContext,
    TaskNotFoundError,
    TaskStatus,
)
from tests.queue.conftest import MakeQueue
from tests.queue.handler_support import (
    SECOND,
    Handler,
    after_the_storage,
    begin_stop,
    settle,
    started,
    succeed,
)
from tests.support import Other, Work

DAY = timedelta(days=1)


@pytest.mark.asyncio
async def test_wait_answers_with_the_record_of_the_ending_step(make_queue: MakeQueue) -> None:
    """S13.16: what happens to the task right afterwards does not show in the answer."""
    queue, handler = make_queue(), Handler()
    task_id = await started(queue, handler)
    waits = [asyncio.create_task(queue.wait(task_id)) for _ in range(3)]
    await settle()
    handler.released.set()
    with queue.subscribe() as events:
        await anext(events)
        await queue.delete(task_id)
    records = [await wait for wait in waits]

    assert [(record.status, record.result) for record in records] == [(TaskStatus.COMPLETED, "done")] * 3
    with pytest.raises(TaskNotFoundError, match=task_id):
        await queue.wait(task_id)


@pytest.mark.asyncio
async def test_wait_for_a_task_that_has_ended_answers_at_once(make_queue: MakeQueue) -> None:
    """S13.16: terminal is terminal, also for a queue that does not run."""
    queue = make_queue()
    queue.register(Work, succeed)
    task_id = await queue.enqueue(Work())
    await queue.start()
    await queue.wait(task_id)
    await queue.stop()

    assert (await queue.wait(task_id)).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
async def test_wait_ends_for_every_end_of_a_task(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S13.16: by cancellation, by a dependency, by a retry that succeeds."""
    queue = make_queue()

    async def work(task: Work, context: TaskContext) -> None:
        if context.attempt == 1:
            raise OSError

    queue.register(Work, work, retry_policy=RetryPolicy.fixed(max_attempts=2, delay=SECOND))
    queue.register(Other, succeed)
    await queue.start()
    retried = await queue.enqueue(Work())
    parent = await queue.enqueue(Other(), delay=DAY)
    child = await queue.enqueue(Other(), depends_on=[parent])
    waits = [asyncio.create_task(queue.wait(task_id)) for task_id in (retried, parent, child)]
    await queue.drain()
    assert not any(wait.done() for wait in waits)
    await queue.cancel(parent)
    clock.advance(SECOND)

    assert [(await wait).status for wait in waits] == [
        TaskStatus.COMPLETED,
        TaskStatus.CANCELLED,
        TaskStatus.CANCELLED,
    ]


@pytest.mark.asyncio
async def test_wait_gives_up_at_its_timeout(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S13.16: TimeoutError at its time; the task goes on and another wait gets its end."""
    queue, handler = make_queue(), Handler()
    task_id = await started(queue, handler)
    short = asyncio.create_task(queue.wait(task_id, timeout=SECOND))
    long = asyncio.create_task(queue.wait(task_id, timeout=DAY))
    await after_the_storage(queue)
    clock.advance(SECOND)
    with pytest.raises(TimeoutError):
        await short
    handler.released.set()

    assert (await long).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
async def test_wait_is_refused_where_nobody_would_end_it(make_queue: MakeQueue) -> None:
    """S13.6: an idle queue refuses to wait for an active task; an unknown id is TaskNotFoundError."""
    queue = make_queue()
    queue.register(Work, succeed)
    task_id = await queue.enqueue(Work())
    with pytest.raises(QueueStateError, match="start"):
        await queue.wait(task_id)
    with pytest.raises(TaskNotFoundError, match="nobody"):
        await queue.wait("nobody")
    for timeout, kind in ((5, TypeError), (-SECOND, ValueError)):
        with pytest.raises(kind, match="timeout"):
            await queue.wait(task_id, timeout=timeout)


@pytest.mark.asyncio
async def test_close_ends_every_wait_and_stop_does_not(make_queue: MakeQueue) -> None:
    """S13.16: a wait outlives stop and start; close ends it with QueueClosedError."""
    queue = make_queue()
    queue.register(Work, succeed)
    first = await queue.enqueue(Work(), delay=DAY)
    second = await queue.enqueue(Work(), delay=DAY)
    await queue.start()
    waits = [asyncio.create_task(queue.wait(task_id)) for task_id in (first, second)]
    await after_the_storage(queue)
    await queue.stop()
    await queue.start()
    await queue.cancel(first)
    assert (await waits[0]).status is TaskStatus.CANCELLED
    await queue.close()

    with pytest.raises(QueueClosedError):
        await waits[1]


@pytest.mark.asyncio
async def test_a_cancelled_wait_harms_nobody(make_queue: MakeQueue) -> None:
    """S13.16: the caller of wait, drain, pause or stop may give up; the queue goes on."""
    queue, handler = make_queue(), Handler()
    task_id = await started(queue, handler)
    calls: list[asyncio.Task[Any]] = [
        asyncio.create_task(queue.wait(task_id)),
        asyncio.create_task(queue.drain()),
    ]
    await settle()
    calls.append(await begin_stop(queue))
    for call in calls:
        call.cancel()
        with pytest.raises((asyncio.CancelledError, QueueStateError)):
            await call
    handler.released.set()
    await queue.stop()

    assert (await queue.get_task(task_id)).status is TaskStatus.COMPLETED
