"""Plain functions as handlers: threads of the queue's own (S5.6, S5.7, S13.15)."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from durable_queue import (
    FakeQueueClock,
    QueueStorage,
    SystemQueueClock,
    TaskCompleted,
    TaskContext,
    TaskStarted,
    TaskStatus,
)
from durable_queue.testing import collect_events
from tests.queue.conftest import MakeQueue
from tests.queue.handler_support import SECOND, run, settle
from tests.support import Other, Work

request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="none")


@pytest.mark.asyncio
async def test_con_06_a_plain_function_runs_in_a_daemon_thread(make_queue: MakeQueue) -> None:
    """S5.6: not in the loop's thread, in one that does not keep the program alive; its value is the result."""
    seen: list[threading.Thread] = []

    def work(task: Work, context: TaskContext) -> int:
        seen.append(threading.current_thread())
        return task.n + 1

    record = await run(make_queue(), work)

    assert (record.status, record.result) == (TaskStatus.COMPLETED, 2)
    assert seen[0] is not threading.current_thread()
    assert seen[0].daemon


@pytest.mark.asyncio
async def test_con_06_the_loop_goes_on_while_a_plain_function_blocks(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S5.6: other tasks start and end, and what expires is cancelled, while a thread blocks; nothing runs twice."""
    queue, release, began = make_queue(max_concurrent_tasks=2), threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    starts = 0

    def block(task: Work, context: TaskContext) -> str:
        nonlocal starts
        starts += 1
        loop.call_soon_threadsafe(began.set)
        release.wait(10)
        return "blocked"

    async def work(task: Other, context: TaskContext) -> None:
        await asyncio.sleep(0)

    queue.register(Work, block)
    queue.register(Other, work)
    with collect_events(queue, TaskStarted, TaskCompleted) as events:
        blocked = await queue.enqueue(Work())
        await queue.start()
        await began.wait()
        others = [await queue.enqueue(Other(n)) for n in range(3)]
        for task_id in others:
            assert (await queue.wait(task_id)).status is TaskStatus.COMPLETED
        release.set()
        assert (await queue.wait(blocked)).result == "blocked"

    expected = [(TaskStarted, blocked)]
    for task_id in others:
        expected += [(TaskStarted, task_id), (TaskCompleted, task_id)]
    assert [(type(event), event.task_id) for event in events] == [*expected, (TaskCompleted, blocked)]
    assert starts == 1


@pytest.mark.asyncio
async def test_the_slot_is_held_until_the_thread_returns(make_queue: MakeQueue) -> None:
    """S5.6: never more threads at work than slots, whatever is asked of the tasks meanwhile."""
    queue = make_queue(max_concurrent_tasks=2)
    lock, most, now = threading.Lock(), 0, 0
    barrier, release, began = threading.Barrier(2), threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def work(task: Work, context: TaskContext) -> None:
        nonlocal most, now
        with lock:
            now += 1
            most = max(most, now)
        barrier.wait(10)
        loop.call_soon_threadsafe(began.set)
        release.wait(10)
        with lock:
            now -= 1

    queue.register(Work, work)
    ids = await queue.enqueue_all([Work(n) for n in range(10)])
    await queue.start()
    await began.wait()
    for task_id in ids[:2]:
        await queue.cancel(task_id, force=True)
    await settle()
    assert most == 2
    release.set()
    for task_id in ids:
        await queue.wait(task_id)

    assert most == 2


@pytest.mark.asyncio
async def test_the_time_of_a_thread_counts_from_its_first_line(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S13.15: time that passes before the function is called is not counted."""
    queue, contexts, release = make_queue(), [], threading.Event()
    began = asyncio.Event()
    loop = asyncio.get_running_loop()

    def work(task: Work, context: TaskContext) -> str:
        contexts.append(context)
        loop.call_soon_threadsafe(began.set)
        release.wait(10)
        return "in time"

    queue.register(Work, work, timeout=SECOND)
    task_id = await queue.enqueue(Work())
    with queue.subscribe(TaskStarted) as events:
        await queue.start()
        await anext(events)
        clock.advance(timedelta(hours=1))
        await began.wait()
    clock.advance(SECOND - timedelta(microseconds=1))
    await settle()
    assert not contexts[0].cancellation_requested
    release.set()

    assert (await queue.wait(task_id)).result == "in time"


@pytest.mark.asyncio
async def test_the_time_of_a_thread_is_measured_in_the_loop(make_queue: MakeQueue) -> None:
    """S13.15: the timer of a plain function is armed where timers are, on the computer's clock too."""
    queue = make_queue(clock=SystemQueueClock())
    record = await run(queue, lambda task, context: "in time", timeout=timedelta(hours=1))

    assert (record.status, record.result) == (TaskStatus.COMPLETED, "in time")


@pytest.mark.asyncio
async def test_a_thread_can_use_the_queue_through_its_context(make_queue: MakeQueue) -> None:
    """S5.6: context.call runs a coroutine in the queue's loop; its result and its error come back."""
    queue = make_queue()

    def work(task: Work, context: TaskContext) -> Any:
        child = context.call(queue.enqueue(Other(7)))
        try:
            context.call(queue.enqueue(object()))
        except Exception as error:  # noqa: BLE001 - the kind is the point
            return [child, type(error).__name__]
        return None

    record = await run(queue, work)
    child, error = record.result

    assert (await queue.wait(child)).status is TaskStatus.COMPLETED
    assert error == "UnknownTaskTypeError"


@pytest.mark.asyncio
async def test_context_call_is_refused_in_the_loop(make_queue: MakeQueue) -> None:
    """S5.6: a coroutine handler would wait for itself; it is told to await."""
    queue = make_queue()

    async def work(task: Work, context: TaskContext) -> None:
        context.call(queue.counts())

    record = await run(queue, work)

    assert record.last_failure.error_type == "QueueStateError"
    assert "await" in record.last_failure.error


@pytest.mark.asyncio
async def test_a_thread_sees_a_cancellation_request(make_queue: MakeQueue) -> None:
    """S6.1: the flag can be read from the thread; a value returned after it completes the task."""
    queue, began = make_queue(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def work(task: Work, context: TaskContext) -> bool:
        loop.call_soon_threadsafe(began.set)
        context.call(context.wait_cancelled())
        return context.cancellation_requested

    queue.register(Work, work)
    task_id = await queue.enqueue(Work())
    await queue.start()
    await began.wait()
    await queue.cancel(task_id)
    record = await queue.wait(task_id)

    assert (record.status, record.result, record.cancel_requested) == (TaskStatus.COMPLETED, True, True)


@pytest.mark.asyncio
async def test_the_context_variables_of_start_reach_handlers_and_not_those_of_callers(
    make_queue: MakeQueue,
) -> None:
    """S5.6: handlers, in the loop and in threads, see the variables as they were at start, and keep their own."""
    queue, seen = make_queue(), []

    def plain(task: Work, context: TaskContext) -> None:
        seen.append(request_id.get())
        request_id.set("left by a thread")

    async def coroutine(task: Other, context: TaskContext) -> None:
        seen.append(request_id.get())
        request_id.set("left by a handler")

    queue.register(Work, plain)
    queue.register(Other, coroutine)
    request_id.set("starter")
    await queue.start()
    request_id.set("caller")
    for task in (Work(1), Other(1), Work(2), Other(2)):
        await queue.wait(await queue.enqueue(task))

    assert seen == ["starter"] * 4


class CallableObject:
    def __call__(self, task: Work, context: TaskContext) -> str:
        return threading.current_thread().name


class AsyncCallableObject:
    async def __call__(self, task: Work, context: TaskContext) -> str:
        return threading.current_thread().name


def with_prefix(prefix: str, task: Work, context: TaskContext) -> str:
    return threading.current_thread().name


async def with_prefix_async(prefix: str, task: Work, context: TaskContext) -> str:
    return threading.current_thread().name


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("handler", "in_thread"),
    [
        (CallableObject(), True),
        (AsyncCallableObject(), False),
        (AsyncCallableObject().__call__, False),
        (functools.partial(with_prefix, "p"), True),
        (functools.partial(with_prefix_async, "p"), False),
    ],
    ids=["object", "async object", "bound method", "partial", "async partial"],
)
async def test_what_counts_as_a_plain_function(
    make_queue: MakeQueue, handler: Callable[..., Any], in_thread: bool
) -> None:
    """S5.6: callable objects, methods and partials are told apart as functions are."""
    record = await run(make_queue(), handler)

    assert (record.result != threading.current_thread().name) is in_thread


@pytest.mark.asyncio
async def test_a_coroutine_returned_by_a_plain_function_is_no_result(make_queue: MakeQueue) -> None:
    """S5.1: a plain function that returns a coroutine fails with a message about it, and no warning is left."""

    async def inner() -> None:
        """Never awaited."""

    record = await run(make_queue(), lambda task, context: inner())

    assert record.status is TaskStatus.FAILED
    assert "coroutine" in record.last_failure.error


@pytest.mark.asyncio
async def test_threads_are_used_again(make_queue: MakeQueue) -> None:
    """S13.15: no more threads than slots are made for many short tasks one after the other."""
    queue, names = make_queue(max_concurrent_tasks=2), set()

    def work(task: Work, context: TaskContext) -> None:
        names.add(threading.get_ident())

    queue.register(Work, work)
    await queue.start()
    for n in range(50):
        await queue.wait(await queue.enqueue(Work(n)))

    assert len(names) <= 3


@pytest.mark.asyncio
async def test_con_06_a_coroutine_that_blocks_the_loop_delays_and_loses_nothing(
    make_queue: MakeQueue, clock: FakeQueueClock, storage: QueueStorage
) -> None:
    """S5.6: after the block what is due starts, what has expired is cancelled, and nobody is run twice."""
    queue, starts = make_queue(max_concurrent_tasks=2), []
    running, release = asyncio.Event(), asyncio.Event()

    async def block(task: Work, context: TaskContext) -> None:
        starts.append(task.n)
        if task.n == 0:
            await running.wait()
            time.sleep(0.01)  # noqa: ASYNC251 - a handler that blocks is the point
            clock.advance(timedelta(seconds=3))
        if task.n == 1:
            running.set()
            await release.wait()

    queue.register(Work, block)
    ids = [await queue.enqueue(Work(0)), await queue.enqueue(Work(1))]
    ids.append(await queue.enqueue(Work(2), delay=2 * SECOND))
    expiring = await queue.enqueue(Work(3), delay=timedelta(hours=1), expires_in=SECOND)
    await queue.start()
    assert (await queue.wait(ids[2])).status is TaskStatus.COMPLETED
    release.set()

    assert [(await queue.wait(task_id)).status for task_id in ids] == [TaskStatus.COMPLETED] * 3
    await queue.stop()
    await queue.start()
    await queue.drain()
    assert starts == [0, 1, 2]
    if storage.atomic:
        # A minimal storage cannot say what expires next; the task is then cancelled when it would start.
        assert (await queue.get_task(expiring)).status is TaskStatus.CANCELLED
