"""Stop: what it waits for, what a grace does, and who may go on afterwards (S7.5, S13.4)."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

from durable_queue import (
    FakeQueueClock,
    QueueInUseError,
    QueueStateError,
    QueueStorage,
    RetryPolicy,
    RunState,
    TaskCompleted,
    TaskContext,
    TaskStatus,
)
from durable_queue.testing import collect_events
from tests.queue.conftest import MakeQueue
from tests.queue.handler_support import GRACE, SECOND, Handler, begin_stop, settle, started
from tests.support import Work


@pytest.mark.asyncio
async def test_stop_waits_for_running_handlers_and_starts_nothing_more(make_queue: MakeQueue) -> None:
    """S7.5: stop returns once the running handlers have ended; what is pending stays pending."""
    queue, handler = make_queue(), Handler()
    first = await started(queue, handler)
    second = await queue.enqueue(Work(2))

    stopping = await begin_stop(queue)
    third = await queue.enqueue(Work(3))
    assert not stopping.done()
    handler.released.set()

    assert await stopping == []
    assert queue.run_state is RunState.IDLE
    assert handler.starts == 1
    assert [(await queue.get_task(i)).status for i in (first, second, third)] == [
        TaskStatus.COMPLETED,
        TaskStatus.PENDING,
        TaskStatus.PENDING,
    ]


@pytest.mark.asyncio
async def test_stop_is_idempotent_in_every_state(make_queue: MakeQueue) -> None:
    """S7.5: stop before start, twice, while paused and after close answers with nothing interrupted."""
    queue = make_queue()

    assert await queue.stop() == []
    await queue.start()
    assert await queue.stop() == []
    assert await queue.stop(grace=SECOND) == []
    await queue.start(paused=True)
    assert await queue.stop() == []
    await queue.close()
    await queue.close()
    assert await queue.stop() == []
    assert queue.run_state is RunState.IDLE


@pytest.mark.asyncio
async def test_a_grace_cancels_and_puts_back_without_counting(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S7.5: when the grace is over the handler is cancelled and its task is ready again, its attempt uncounted."""
    queue, handler = make_queue(), Handler()
    queue.register(Work, handler)
    task_id = await queue.enqueue(Work(1), expires_in=timedelta(hours=1))
    await queue.start()
    await handler.began.wait()

    stopping = await begin_stop(queue, GRACE)
    clock.advance(GRACE - timedelta(microseconds=1))
    await asyncio.sleep(0)
    assert not handler.contexts[0].cancellation_requested
    clock.advance(timedelta(microseconds=1))

    assert await stopping == [task_id]
    assert handler.contexts[0].cancellation_requested
    record = await queue.get_task(task_id)
    assert (record.status, record.attempts, record.interruptions) == (TaskStatus.PENDING, 0, 0)
    assert (record.last_failure, record.next_attempt_at, record.expires_at) == (None, None, None)
    assert not record.cancel_requested

    handler.released.set()
    await queue.start()
    ended = await queue.wait(task_id)
    assert (ended.status, ended.attempts) == (TaskStatus.COMPLETED, 1)


@pytest.mark.asyncio
async def test_a_handler_that_returns_in_the_last_second_completes(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S13.4: a normal return after the cancellation completes the task, which was not interrupted then."""
    queue, handler = make_queue(), Handler(swallows=1)
    task_id = await started(queue, handler)

    stopping = await begin_stop(queue, GRACE)
    clock.advance(GRACE)
    await handler.cancelled.wait()
    handler.released.set()

    assert await stopping == []
    record = await queue.get_task(task_id)
    assert (record.status, record.result, record.attempts) == (TaskStatus.COMPLETED, "done", 1)


@pytest.mark.asyncio
async def test_whatever_is_raised_after_the_grace_puts_back(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S13.4: an error of the cancelled handler's clean-up is no failed attempt."""
    queue, handler = make_queue(), Handler(ends=OSError("while cleaning up"))
    task_id = await started(queue, handler)

    stopping = await begin_stop(queue, GRACE)
    clock.advance(GRACE)

    assert await stopping == [task_id]
    record = await queue.get_task(task_id)
    assert (record.status, record.attempts, record.last_failure) == (TaskStatus.PENDING, 0, None)


@pytest.mark.asyncio
async def test_a_stop_within_a_retry_gives_back_that_attempt_only(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S7.5: the attempts that have failed before stay counted."""
    queue, handler = make_queue(), Handler()
    calls = 0

    async def fail_once(task: Work, context: TaskContext) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise OSError("first")
        await handler(task, context)

    queue.register(Work, fail_once, retry_policy=RetryPolicy.fixed(max_attempts=2, delay=timedelta(0)))
    task_id = await queue.enqueue(Work())
    await queue.start()
    await handler.began.wait()
    stopping = await begin_stop(queue, timedelta(0))

    assert await stopping == [task_id]
    record = await queue.get_task(task_id)
    assert (record.status, record.attempts, record.last_failure.error) == (TaskStatus.PENDING, 1, "first")


@pytest.mark.asyncio
async def test_a_stop_puts_back_what_has_ignored_its_timeout(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S13.4: an attempt that is interrupted by stop is not counted although its time was over before."""
    queue, handler = make_queue(), Handler(swallows=1)
    task_id = await started(queue, handler, timeout=SECOND)
    clock.advance(SECOND)
    await handler.cancelled.wait()
    stopping = await begin_stop(queue, timedelta(0))

    assert await stopping == [task_id]
    record = await queue.get_task(task_id)
    assert (record.status, record.attempts, record.last_failure) == (TaskStatus.PENDING, 0, None)


@pytest.mark.asyncio
async def test_a_requested_cancellation_wins_over_putting_back(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S13.4: a task whose cancellation was requested is cancelled instead of put back, with its dependents."""
    queue, handler = make_queue(), Handler()
    task_id = await started(queue, handler)
    dependent = await queue.enqueue(Work(2), depends_on=[task_id])
    await queue.cancel(task_id)

    stopping = await begin_stop(queue, timedelta(0))

    assert await stopping == [task_id]
    assert (await queue.get_task(task_id)).status is TaskStatus.CANCELLED
    assert (await queue.get_task(dependent)).status is TaskStatus.CANCELLED


@pytest.mark.asyncio
async def test_shu_03_a_handler_that_ignores_cancellation_cannot_hold_stop(
    make_queue: MakeQueue, clock: FakeQueueClock, storage: QueueStorage
) -> None:
    """S13.4: it is named and left running; its late outcome is dropped, start raises until it has ended."""
    queue, handler = make_queue(), Handler(swallows=9)
    task_id = await started(queue, handler, retry_policy=RetryPolicy.fixed(max_attempts=2, delay=SECOND))
    other = make_queue(storage=storage)
    stopping = await begin_stop(queue, GRACE)
    clock.advance(GRACE)
    await handler.cancelled.wait()
    assert not stopping.done()
    clock.advance(SECOND)

    assert await stopping == [task_id]
    assert (await queue.get_task(task_id)).status is TaskStatus.RUNNING
    with pytest.raises(QueueStateError, match=task_id):
        await queue.start()
    with pytest.raises(QueueInUseError):
        await other.start()

    with collect_events(queue) as events:
        handler.released.set()
        while True:
            # It has ended once start is possible again; nothing else tells.
            try:
                await queue.start(paused=True)
            except QueueStateError:
                await asyncio.sleep(0)
            else:
                break
        assert not [event for event in events if isinstance(event, TaskCompleted)]
    record = await queue.get_task(task_id)
    assert (record.status, record.attempts, record.interruptions) == (TaskStatus.RETRY_SCHEDULED, 1, 1)
    assert record.last_failure.error_type == "TaskInterruptedError"
    assert record.result is None

    clock.advance(SECOND)
    await queue.resume()
    assert (await queue.wait(task_id)).attempts == 2


@pytest.mark.asyncio
async def test_shu_03_the_claim_ends_with_the_handler_that_ignored_stop(
    make_queue: MakeQueue, clock: FakeQueueClock, storage: QueueStorage
) -> None:
    """S13.4: another queue takes the storage over as soon as the stubborn handler has ended, also after close."""
    queue, handler, other = make_queue(), Handler(swallows=9), make_queue(storage=storage)
    task_id = await started(queue, handler)
    stopping = await begin_stop(queue, timedelta(0))
    await handler.cancelled.wait()
    clock.advance(SECOND)
    assert await stopping == [task_id]
    await queue.close()

    handler.released.set()
    while True:
        try:
            await other.start()
        except QueueInUseError:
            await asyncio.sleep(0)
        else:
            break

    record = await other.get_task(task_id)
    assert (record.status, record.last_failure.error_type) == (TaskStatus.FAILED, "TaskInterruptedError")


@pytest.mark.asyncio
async def test_a_start_at_the_moment_the_stubborn_handler_ends_keeps_the_claim(
    make_queue: MakeQueue, clock: FakeQueueClock, storage: QueueStorage
) -> None:
    """S7.9: giving the claim up late does not take it from a start that has followed at once."""
    for turns in range(8):
        queue, handler, other = make_queue(), Handler(swallows=9), make_queue(storage=storage)
        await started(queue, handler)
        stopping = await begin_stop(queue, timedelta(0))
        await handler.cancelled.wait()
        clock.advance(SECOND)
        await stopping

        handler.released.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        while queue.run_state is RunState.IDLE:
            try:
                await queue.start(paused=True)
            except QueueStateError:
                await asyncio.sleep(0)
        for _ in range(8):
            await queue.counts()
            with pytest.raises(QueueInUseError):
                await other.start()
        await queue.stop()


@pytest.mark.asyncio
async def test_shu_03_a_thread_that_ignores_the_flag_cannot_hold_stop(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S13.4: a plain function that goes on is named and left running; what it returns late is dropped."""
    queue, began, release = make_queue(), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    contexts = []

    def work(task: Work, context: TaskContext) -> str:
        contexts.append(context)
        loop.call_soon_threadsafe(began.set)
        release.wait(10)
        return "late"

    queue.register(Work, work)
    task_id = await queue.enqueue(Work())
    await queue.start()
    await began.wait()
    stopping = await begin_stop(queue, GRACE)
    clock.advance(GRACE)
    await contexts[0].wait_cancelled()
    clock.advance(SECOND)

    assert await stopping == [task_id]
    with pytest.raises(QueueStateError, match=task_id):
        await queue.start()
    release.set()
    while queue.run_state is RunState.IDLE:
        try:
            await queue.start()
        except QueueStateError:
            await asyncio.sleep(0)
    record = await queue.get_task(task_id)
    assert (record.status, record.result) == (TaskStatus.FAILED, None)
    assert record.last_failure.error_type == "TaskInterruptedError"


@pytest.mark.asyncio
async def test_a_thread_that_sees_the_flag_is_put_back(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S13.4: a plain function that raises within the last second is put back like a coroutine."""
    queue, began = make_queue(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def work(task: Work, context: TaskContext) -> None:
        loop.call_soon_threadsafe(began.set)
        context.call(context.wait_cancelled())
        raise RuntimeError("asked to stop")

    queue.register(Work, work)
    task_id = await queue.enqueue(Work())
    await queue.start()
    await began.wait()
    stopping = await begin_stop(queue, GRACE)
    clock.advance(GRACE)

    assert await stopping == [task_id]
    record = await queue.get_task(task_id)
    assert (record.status, record.attempts) == (TaskStatus.PENDING, 0)


@pytest.mark.asyncio
async def test_a_step_of_the_wall_clock_ends_no_grace(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S13.7: a grace is measured on the monotonic clock."""
    queue, handler = make_queue(), Handler()
    await started(queue, handler)
    stopping = await begin_stop(queue, GRACE)
    clock.set(clock.now() + timedelta(days=1))
    await settle()
    assert not handler.contexts[0].cancellation_requested
    handler.released.set()

    assert await stopping == []


@pytest.mark.asyncio
async def test_a_second_stop_joins_and_may_shorten_the_grace(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S13.4: the earliest end of all graces holds; everyone gets the same answer."""
    queue, handler = make_queue(), Handler()
    task_id = await started(queue, handler)
    endless = await begin_stop(queue)
    long = await begin_stop(queue, timedelta(hours=1))
    short = await begin_stop(queue, GRACE)
    longer = await begin_stop(queue, timedelta(hours=2))

    clock.advance(GRACE)

    assert [await stop for stop in (endless, long, short, longer)] == [[task_id]] * 4


@pytest.mark.asyncio
async def test_shu_03_a_cancelled_caller_leaves_the_stop_going_on(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S13.4: a stop whose caller gives up goes on; a second one joins it and works."""
    queue, handler = make_queue(), Handler()
    task_id = await started(queue, handler)
    stopping = await begin_stop(queue, timedelta(seconds=30))
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping

    assert queue.run_state is RunState.STOPPING
    second = await begin_stop(queue, SECOND)
    clock.advance(SECOND)
    assert await second == [task_id]
    assert queue.run_state is RunState.IDLE


@pytest.mark.asyncio
async def test_stop_does_not_wait_for_outside_work(make_queue: MakeQueue) -> None:
    """S7.5: a task that is handed off does not hold stop and is no interruption."""
    queue = make_queue()

    async def hand_off(task: Work, context: TaskContext) -> None:
        context.hand_off("outside")

    queue.register(Work, hand_off)
    task_id = await queue.enqueue(Work())
    await queue.start()
    await queue.drain()

    assert await queue.stop() == []
    assert [task.id for task in await queue.hand_offs()] == [task_id]


@pytest.mark.asyncio
async def test_a_stopped_queue_starts_again(make_queue: MakeQueue) -> None:
    """S7.5: after stop the same object can be started, any number of times."""
    queue, handler = make_queue(), Handler()
    handler.released.set()
    queue.register(Work, handler)
    for n in range(3):
        task_id = await queue.enqueue(Work(n))
        await queue.start()
        assert (await queue.wait(task_id)).status is TaskStatus.COMPLETED
        assert await queue.stop() == []
