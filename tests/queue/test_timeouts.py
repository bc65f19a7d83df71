"""Time-outs and forced cancellation of running handlers (S5.7, S6.1, S13.5, S13.15)."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from durable_queue import (
    DurableQueue,
    FakeQueueClock,
    QueueStorage,
    RetryPolicy,
    StoredTask,
    TaskCancelledError,
    TaskContext,
    TaskRetryScheduled,
    TaskStarted,
    TaskStatus,
    TaskTimeoutError,
)
from durable_queue.testing import FlakyStorage, collect_events
from tests.queue.conftest import MakeQueue
from tests.queue.handler_support import NOW, SECOND, Handler, settle, started
from tests.support import Work

LIMIT = timedelta(seconds=10)


@pytest.mark.asyncio
async def test_a_coroutine_is_cancelled_when_its_time_is_over(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S5.7: not a moment before its time; the attempt fails with TaskTimeoutError, which says the limit."""
    queue, handler = make_queue(), Handler()
    task_id = await started(queue, handler, timeout=LIMIT)
    clock.advance(LIMIT - timedelta(microseconds=1))
    await settle()
    assert not handler.cancelled.is_set()
    clock.advance(timedelta(microseconds=1))
    record = await queue.wait(task_id)

    assert (record.status, record.attempts) == (TaskStatus.FAILED, 1)
    assert record.last_failure.error_type == "TaskTimeoutError"
    assert "0:00:10" in record.last_failure.error
    assert handler.contexts[0].cancellation_requested
    assert not record.cancel_requested


@pytest.mark.asyncio
async def test_a_timeout_is_retried_like_any_error(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S5.7: retry_if sees a TaskTimeoutError, and the next attempt has its whole time and no request to stop."""
    queue, handler, asked = make_queue(), Handler(), []

    def retry_if(error: BaseException) -> bool:
        asked.append(error)
        return True

    task_id = await started(
        queue,
        handler,
        timeout=LIMIT,
        retry_policy=RetryPolicy.fixed(max_attempts=2, delay=NOW),
        retry_if=retry_if,
    )
    handler.began.clear()
    clock.advance(LIMIT)
    await handler.began.wait()
    assert [type(error) for error in asked] == [TaskTimeoutError]
    clock.advance(LIMIT - SECOND)
    await settle()
    assert not handler.contexts[1].cancellation_requested
    handler.released.set()
    record = await queue.wait(task_id)

    assert (record.status, record.attempts) == (TaskStatus.COMPLETED, 2)


@pytest.mark.asyncio
async def test_a_step_of_the_wall_clock_is_no_timeout(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S12.4: the time of an attempt is measured on the monotonic clock."""
    queue, handler = make_queue(), Handler()
    task_id = await started(queue, handler, timeout=LIMIT)
    clock.set(clock.now() + timedelta(days=1))
    await settle()
    assert not handler.cancelled.is_set()
    handler.released.set()

    assert (await queue.wait(task_id)).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
async def test_a_handler_that_swallows_its_timeout_keeps_its_slot_and_completes(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S13.5: nothing else starts in its slot until it ends, and a normal return completes the task."""
    queue, handler = make_queue(), Handler(swallows=1)
    task_id = await started(queue, handler, timeout=LIMIT)
    second = await queue.enqueue(Work(2))
    clock.advance(LIMIT)
    await handler.cancelled.wait()
    await settle()
    assert handler.starts == 1
    assert (await queue.get_task(second)).status is TaskStatus.PENDING
    clock.advance(LIMIT)
    await settle()
    handler.released.set()

    record = await queue.wait(task_id)
    assert (record.status, record.result) == (TaskStatus.COMPLETED, "done")
    assert (await queue.wait(second)).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
async def test_an_error_after_the_timeout_is_the_timeout(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S5.7: what the clean-up of a timed-out handler raises does not hide the time-out."""
    queue, handler = make_queue(), Handler(ends=OSError("while cleaning up"))
    task_id = await started(queue, handler, timeout=LIMIT)
    clock.advance(LIMIT)

    record = await queue.wait(task_id)
    assert (record.status, record.last_failure.error_type) == (TaskStatus.FAILED, "TaskTimeoutError")
    assert "OSError: while cleaning up" in record.last_failure.stack_trace


@pytest.mark.asyncio
async def test_a_handler_that_ends_in_time_leaves_no_timer(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S5.7: the time-out of an attempt that has ended does not reach the next one."""
    queue, first, second = make_queue(), Handler(), Handler()
    handlers = [first, second]

    async def work(task: Work, context: TaskContext) -> Any:
        return await handlers[task.n](task, context)

    queue.register(Work, work, timeout=LIMIT)
    ids = await queue.enqueue_all([Work(0), Work(1)])
    await queue.start()
    await first.began.wait()
    clock.advance(LIMIT - SECOND)
    first.released.set()
    await second.began.wait()
    clock.advance(LIMIT - SECOND)
    await settle()
    assert not second.cancelled.is_set()
    second.released.set()

    assert [(await queue.wait(task_id)).status for task_id in ids] == [TaskStatus.COMPLETED] * 2
    await queue.drain()
    # A storage that is asked about other processes has a timer for that, twice a second.
    assert (clock.next_timer_at() or clock.now()) < clock.now() + SECOND


class Threaded:
    """A plain function that runs until it is released, and says when it begins."""

    def __init__(self, end: Any = "done") -> None:
        self._loop = asyncio.get_running_loop()
        self.began = asyncio.Event()
        self.released = threading.Event()
        self.starts = 0
        self.contexts: list[TaskContext] = []
        self._end = end

    def __call__(self, task: object, context: TaskContext) -> Any:
        self.starts += 1
        self.contexts.append(context)
        self._loop.call_soon_threadsafe(self.began.set)
        assert self.released.wait(10)
        if isinstance(self._end, BaseException):
            raise self._end
        return self._end


async def timed_out_thread(
    queue: DurableQueue, clock: FakeQueueClock, handler: Threaded, **options: Any
) -> StoredTask:
    """Run a plain function past its time, let it go, and return the record."""
    queue.register(Work, handler, timeout=LIMIT, **options)
    task_id = await queue.enqueue(Work())
    await queue.start()
    await handler.began.wait()
    clock.advance(LIMIT)
    await handler.contexts[0].wait_cancelled()
    await settle()
    assert handler.starts == 1
    assert (await queue.get_task(task_id)).status is TaskStatus.RUNNING
    handler.released.set()
    return await queue.wait(task_id)


@pytest.mark.asyncio
async def test_a_thread_past_its_time_completes_when_it_returns(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S5.7: a plain function only sees the flag; a normal return still completes the task."""
    record = await timed_out_thread(make_queue(), clock, Threaded())

    assert (record.status, record.result, record.attempts) == (TaskStatus.COMPLETED, "done", 1)


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [OSError("x"), TaskCancelledError("saw the flag")])
async def test_a_thread_that_raises_past_its_time_has_timed_out(
    make_queue: MakeQueue, clock: FakeQueueClock, error: Exception
) -> None:
    """S5.7: whatever it raises then is the time-out; the retry begins only after the thread has returned."""
    queue, handler = make_queue(), Threaded(error)
    with collect_events(queue, TaskRetryScheduled) as events:
        policy = RetryPolicy.fixed(max_attempts=2, delay=NOW)
        record = await timed_out_thread(queue, clock, handler, retry_policy=policy)

    assert [event.failure.error_type for event in events] == ["TaskTimeoutError"]
    assert (record.attempts, handler.starts) == (2, 2)


@pytest.mark.asyncio
async def test_force_cancels_the_coroutine(make_queue: MakeQueue) -> None:
    """S6.1: cancel(force=True) cancels a running coroutine; the task is cancelled and not retried."""
    queue, handler = make_queue(), Handler()
    task_id = await started(queue, handler, retry_policy=RetryPolicy.fixed(max_attempts=3, delay=NOW))
    await queue.cancel(task_id, force=True)

    record = await queue.wait(task_id)
    assert (record.status, record.attempts, record.cancel_requested) == (TaskStatus.CANCELLED, 1, True)


@pytest.mark.asyncio
async def test_a_handler_that_swallows_a_forced_cancellation_completes(make_queue: MakeQueue) -> None:
    """S13.5: it keeps its slot until it ends, and a normal return completes the task."""
    queue, handler = make_queue(), Handler(swallows=2)
    task_id = await started(queue, handler)
    second = await queue.enqueue(Work(2))
    await queue.cancel(task_id, force=True)
    await handler.cancelled.wait()
    await queue.cancel(task_id, force=True)
    await settle()
    assert handler.starts == 1
    handler.released.set()

    assert (await queue.wait(task_id)).status is TaskStatus.COMPLETED
    assert (await queue.wait(second)).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
async def test_an_error_after_a_forced_cancellation_is_cancelled(make_queue: MakeQueue) -> None:
    """S6.1: an exception of the clean-up leaves the task cancelled."""
    queue, handler = make_queue(), Handler(ends=OSError("while cleaning up"))
    task_id = await started(queue, handler, retry_policy=RetryPolicy.fixed(max_attempts=3, delay=NOW))
    await queue.cancel(task_id, force=True)

    assert (await queue.wait(task_id)).status is TaskStatus.CANCELLED


@pytest.mark.asyncio
@pytest.mark.parametrize("plain", [False, True])
async def test_force_before_the_first_line_of_the_handler(
    make_queue: MakeQueue, storage: QueueStorage, plain: bool
) -> None:
    """S6.1: a task that is cancelled by force between its claim and its handler never calls it."""
    flaky, calls = FlakyStorage(storage), []
    queue = make_queue(storage=flaky)

    async def work(task: Work, context: TaskContext) -> None:
        calls.append(context.cancellation_requested)

    def threaded(task: Work, context: TaskContext) -> None:
        calls.append(context.cancellation_requested)

    queue.register(Work, threaded if plain else work)
    task_id = await queue.enqueue(Work())
    claim = flaky.gate("apply", after_commit=True)
    await queue.start()
    await claim.reached()
    with collect_events(queue, TaskStarted) as events:
        cancelling = asyncio.create_task(queue.cancel(task_id, force=True))
        await asyncio.sleep(0)
        claim.release()
        record = await queue.wait(task_id)
        await cancelling
        assert [event.task_id for event in events] == [task_id]

    # A storage with a thread of its own lets the handler begin before the request is written.
    assert record.status in (TaskStatus.CANCELLED, TaskStatus.COMPLETED)
    assert record.cancel_requested or record.status is TaskStatus.COMPLETED
    if not calls:
        assert (record.status, record.attempts) == (TaskStatus.CANCELLED, 1)
    elif not plain:
        assert calls == [False]


@pytest.mark.asyncio
async def test_a_timeout_is_a_duration_above_zero(make_queue: MakeQueue) -> None:
    """S5.7: anything else is refused when the type is registered."""
    queue = make_queue()
    for bad, kind in ((5, TypeError), (timedelta(0), ValueError), (timedelta(seconds=-1), ValueError)):
        with pytest.raises(kind, match="timeout"):
            queue.register(Work, Handler(), timeout=bad)
    queue.register(Work, Handler(), timeout=LIMIT)
