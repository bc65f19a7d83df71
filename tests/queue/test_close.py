"""Close and the end of async with (S7.6, S13.4)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from durable_queue import (
    FakeQueueClock,
    QueueClosedError,
    QueueStorage,
    RunState,
    TaskContext,
    TaskStatus,
)
from tests.queue.conftest import MakeQueue
from tests.queue.handler_support import Handler
from tests.support import Other, Work


@pytest.mark.asyncio
async def test_a_grace_is_a_duration(make_queue: MakeQueue) -> None:
    """S13.4: a grace that is none is refused before anything stops."""
    queue = make_queue(stop_grace=None)
    await queue.start()
    with pytest.raises(TypeError, match="grace"):
        await queue.stop(grace=5)
    with pytest.raises(ValueError, match="grace"):
        await queue.stop(grace=timedelta(seconds=-1))
    with pytest.raises(TypeError, match="grace"):
        await queue.close(grace="1")

    assert queue.run_state is RunState.RUNNING
    assert not queue.is_closed


@pytest.mark.asyncio
async def test_leaving_async_with_uses_the_stop_grace(
    make_queue: MakeQueue, clock: FakeQueueClock, storage: QueueStorage
) -> None:
    """S13.4: `stop_grace` bounds the stop at the end of async with; None waits."""
    queue, handler = make_queue(stop_grace=timedelta(0)), Handler()
    queue.register(Work, handler)
    async with queue:
        task_id = await queue.enqueue(Work())
        await handler.began.wait()

    assert handler.cancelled.is_set()
    assert queue.is_closed
    assert (await queue.get_task(task_id)).status is TaskStatus.PENDING


@pytest.mark.asyncio
async def test_close_ends_streams_and_leaves_the_reads(make_queue: MakeQueue, storage: QueueStorage) -> None:
    """S7.6: after close only the reads, stop and close work, and the storage is still open."""
    queue = make_queue()
    queue.register(Work, Handler())
    task_id = await queue.enqueue(Work())
    await queue.start(paused=True)
    waiting = asyncio.create_task(queue.wait(task_id))
    await asyncio.sleep(0)
    with queue.subscribe() as events:
        await queue.close()
        assert [event async for event in events] == []

    with pytest.raises(QueueClosedError):
        await waiting
    assert queue.is_closed
    assert (await queue.get_task(task_id)).id == task_id
    assert [task.id for task in await queue.get_tasks()] == [task_id]
    assert (await queue.counts())[TaskStatus.PENDING] == 1
    assert await queue.hand_offs() == []
    for call in (
        queue.start(),
        queue.pause(),
        queue.resume(),
        queue.drain(),
        queue.wait(task_id),
        queue.enqueue(Work()),
        queue.cancel(task_id),
        queue.cancel_group("g"),
        queue.retry(task_id),
        queue.delete(task_id),
        queue.purge(),
        queue.complete_hand_off(task_id, reference="r"),
        queue.fail_hand_off(task_id, "no", reference="r"),
    ):
        with pytest.raises(QueueClosedError):
            await call
    with pytest.raises(QueueClosedError):
        queue.register(Other, Handler())
    with pytest.raises(QueueClosedError):
        queue.subscribe()
    assert (await storage.get(task_id)).status is TaskStatus.PENDING


@pytest.mark.asyncio
async def test_a_handler_that_ends_during_close_can_still_use_the_queue(make_queue: MakeQueue) -> None:
    """S7.6: close is a stop first; a running handler that enqueues its follow-up completes."""
    queue, handler = make_queue(), Handler()

    async def enqueue_last(task: Work, context: TaskContext) -> str:
        await handler(task, context)
        return await queue.enqueue(Other())

    queue.register(Work, enqueue_last)
    queue.register(Other, handler)
    task_id = await queue.enqueue(Work())
    await queue.start()
    await handler.began.wait()
    closing = asyncio.create_task(queue.close())
    await asyncio.sleep(0)
    with pytest.raises(QueueClosedError):
        await queue.start()
    handler.released.set()
    await closing

    record = await queue.get_task(task_id)
    assert record.status is TaskStatus.COMPLETED
    assert (await queue.get_task(record.result)).status is TaskStatus.PENDING
