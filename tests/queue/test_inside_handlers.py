"""Calls that would wait for the handler that makes them are refused at once (S7.7, S13.15)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from durable_queue import (
    DurableQueue,
    MemoryQueueStorage,
    QueueStateError,
    RunState,
    TaskContext,
    TaskStatus,
)
from tests.queue.conftest import MakeQueue
from tests.queue.handler_support import NOW, Handler, begin_stop, run, succeed
from tests.support import Other, Work

Verb = Callable[[DurableQueue, str], Awaitable[Any]]

VERBS: dict[str, Verb] = {
    "stop": lambda queue, task_id: queue.stop(),
    "stop at once": lambda queue, task_id: queue.stop(grace=NOW),
    "close": lambda queue, task_id: queue.close(),
    "drain": lambda queue, task_id: queue.drain(),
    "wait": lambda queue, task_id: queue.wait(task_id),
    "wait with a limit": lambda queue, task_id: queue.wait(task_id, timeout=timedelta(hours=1)),
}


async def refusal_of(call: Awaitable[Any]) -> str:
    """Return the message that a call is refused with."""
    try:
        await call
    except QueueStateError as error:
        return str(error)
    return "not refused"


@pytest.mark.asyncio
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("way", ["directly", "in a task", "in a thread", "in to_thread"])
async def test_con_03_waiting_verbs_are_refused_inside_a_handler(
    make_queue: MakeQueue, verb: str, way: str
) -> None:
    """S7.7: also in tasks and threads that the handler has started; the message says the verb and a way out."""
    queue = make_queue()

    async def call(task_id: str) -> str:
        return await refusal_of(VERBS[verb](queue, task_id))

    async def work(task: Work, context: TaskContext) -> str:
        if way == "in a task":
            return await asyncio.create_task(call(context.task_id))
        if way == "in to_thread":
            return await asyncio.to_thread(lambda: context.call(call(context.task_id)))
        return await call(context.task_id)

    def threaded(task: Work, context: TaskContext) -> str:
        return context.call(call(context.task_id))

    record = await run(queue, threaded if way == "in a thread" else work)

    assert record.status is TaskStatus.COMPLETED
    assert record.result.startswith(verb.split(maxsplit=1)[0] + " was called from inside a handler")
    assert "enqueue" in record.result
    assert queue.run_state is RunState.RUNNING
    assert not queue.is_closed


@pytest.mark.asyncio
async def test_con_03_children_run_and_parents_that_wait_for_them_are_told(make_queue: MakeQueue) -> None:
    """S7.7: with every slot held by a parent that wants to wait, each is refused and all children run."""
    queue = make_queue(max_concurrent_tasks=4)
    children: list[str] = []

    async def parent(task: Work, context: TaskContext) -> None:
        children.append(await queue.enqueue(Other(task.n)))
        await queue.wait(children[-1])

    queue.register(Work, parent)
    queue.register(Other, succeed)
    parents = await queue.enqueue_all([Work(n) for n in range(8)])
    await queue.start()
    await queue.drain()

    for task_id in parents:
        record = await queue.get_task(task_id)
        assert (record.status, record.last_failure.error_type) == (TaskStatus.FAILED, "QueueStateError")
    assert len(children) == 8
    assert [(await queue.get_task(task_id)).status for task_id in children] == [TaskStatus.COMPLETED] * 8


@pytest.mark.asyncio
async def test_con_03_a_cancelled_parent_frees_its_slot_for_the_child(make_queue: MakeQueue) -> None:
    """S3.2: a parent that waits for its child by other means holds its slot only until it is cancelled."""
    queue, children = make_queue(), []
    queued = asyncio.Event()

    async def parent(task: Work, context: TaskContext) -> None:
        children.append(await queue.enqueue(Other()))
        queued.set()
        await context.wait_cancelled()
        await asyncio.Event().wait()

    queue.register(Work, parent)
    queue.register(Other, succeed)
    task_id = await queue.enqueue(Work())
    await queue.start()
    await queued.wait()
    await queue.cancel(task_id, force=True)

    assert (await queue.wait(task_id)).status is TaskStatus.CANCELLED
    assert (await queue.wait(children[0])).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
async def test_inside_ends_when_the_handler_returns(make_queue: MakeQueue) -> None:
    """S13.15: a task that a handler has left behind may wait for the queue, and even stop it."""
    queue, go = make_queue(), asyncio.Event()
    left: list[asyncio.Task[Any]] = []

    async def later() -> list[str]:
        await go.wait()
        await queue.drain()
        return await queue.stop()

    async def work(task: Work, context: TaskContext) -> None:
        left.append(asyncio.create_task(later()))

    await run(queue, work)
    go.set()

    assert await left[0] == []
    assert queue.run_state is RunState.IDLE


@pytest.mark.asyncio
async def test_another_queue_may_be_waited_for(make_queue: MakeQueue) -> None:
    """S7.7: the rule is about the queue whose handler it is."""
    queue, other = make_queue(), make_queue(storage=MemoryQueueStorage())
    other.register(Other, succeed)

    async def work(task: Work, context: TaskContext) -> str:
        async with other:
            record = await other.wait(await other.enqueue(Other()))
            await other.drain()
        return record.status.value

    assert (await run(queue, work)).result == "completed"


@pytest.mark.asyncio
async def test_a_queue_that_was_started_inside_a_task_is_not_inside_a_handler(make_queue: MakeQueue) -> None:
    """S13.15: whoever enqueues, starts or stops from a task of its own is outside, whatever runs meanwhile."""
    queue, handler = make_queue(), Handler()
    queue.register(Work, handler)
    await asyncio.create_task(queue.start())
    task_id = await asyncio.create_task(queue.enqueue(Work()))
    await handler.began.wait()
    stopping = await begin_stop(queue)
    handler.released.set()

    assert await stopping == []
    assert (await queue.get_task(task_id)).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
async def test_other_verbs_work_inside_a_handler(make_queue: MakeQueue) -> None:
    """S7.7: enqueueing, looking, cancelling, pausing and resuming do not wait for the handler."""
    queue = make_queue()

    async def work(task: Work, context: TaskContext) -> list[str]:
        await queue.pause()
        child = await queue.enqueue(Other(), delay=timedelta(hours=1))
        await queue.cancel(child)
        await queue.delete(child)
        await queue.resume()
        await queue.cancel(context.task_id)
        own = await queue.get_task(context.task_id)
        return [own.status.value, str(context.cancellation_requested), str(await queue.get_task(child))]

    assert (await run(queue, work)).result == ["running", "True", "None"]
