"""Reports of outside work that come before the handler has returned (S9.2, S13.10)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from durable_queue import (
    DurableQueue,
    FakeQueueClock,
    HandOffError,
    QueueStateError,
    QueueStorage,
    QueueStorageFailure,
    RetryPolicy,
    TaskCompleted,
    TaskContext,
    TaskHandedOff,
    TaskStatus,
)
from durable_queue.testing import WRITES, FlakyStorage, collect_events, run_until_idle
from tests.queue.conftest import MakeQueue
from tests.queue.fault_support import time_goes_on
from tests.queue.hand_off_support import HandsOff, stored
from tests.queue.handler_support import SECOND, begin_stop, settle
from tests.support import Other, Work

NOW = timedelta(0)
TWICE = RetryPolicy.fixed(max_attempts=2, delay=SECOND)


class Slow:
    """A handler that hands off and then goes on until the test says how it ends."""

    def __init__(self) -> None:
        self.handed_off = asyncio.Event()
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.contexts: list[TaskContext] = []

    async def __call__(self, task: Work, context: TaskContext) -> None:
        self.contexts.append(context)
        context.hand_off("ref")
        self.handed_off.set()
        await self.end


async def slowly_handed_off(queue: DurableQueue, handler: Slow, **options: Any) -> str:
    queue.register(Work, handler, **options)
    task_id = await queue.enqueue(Work(1))
    await queue.start()
    await handler.handed_off.wait()
    return task_id


@pytest.mark.asyncio
async def test_hof_01_a_report_before_the_return_is_kept(make_queue: MakeQueue) -> None:
    """S9.2: the report waits, completes the task with its result once the handler returns, and answers True."""
    queue, handler, seen = make_queue(), Slow(), []
    queue.register(Other, lambda task, context: seen.append(task.n))
    task_id = await slowly_handed_off(queue, handler)
    child = await queue.enqueue(Other(1), depends_on=[task_id])
    with collect_events(queue, TaskCompleted, TaskHandedOff) as events:
        report = asyncio.create_task(queue.complete_hand_off(task_id, reference="ref", result=5))
        await settle()
        assert not report.done()
        assert (await stored(queue, task_id)).status is TaskStatus.RUNNING
        handler.end.set_result(None)
        assert await report is True
        task = await stored(queue, task_id)
        assert (task.status, task.result, task.attempts) == (TaskStatus.COMPLETED, 5, 1)
        await queue.wait(child)
        ends = [event for event in events if event.task_id == task_id]
        assert [type(event) for event in ends] == [TaskCompleted]
    assert seen == [1]


@pytest.mark.asyncio
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_second_report_beside_an_early_one_returns_false(make_queue: MakeQueue, when: str) -> None:
    """S9.3: the same report twice: the second returns False, whether the first still waits or is stored."""
    queue, handler = make_queue(), Slow()
    task_id = await slowly_handed_off(queue, handler)
    first = asyncio.create_task(queue.complete_hand_off(task_id, reference="ref", result=1))
    await settle()
    if when == "before":
        assert await queue.fail_hand_off(task_id, "x", reference="ref") is False
    handler.end.set_result(None)
    assert await first is True
    assert await queue.complete_hand_off(task_id, reference="ref", result=2) is False
    assert await queue.fail_hand_off(task_id, "x", reference="ref") is False
    assert (await stored(queue, task_id)).result == 1


@pytest.mark.asyncio
async def test_an_early_failure_is_retried(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S9.2: an early failure follows the retry rules, and its repetition is told apart until the next attempt."""
    queue, handler = make_queue(), Slow()
    task_id = await slowly_handed_off(queue, handler, retry_policy=TWICE)
    report = asyncio.create_task(queue.fail_hand_off(task_id, KeyError("k"), reference="ref"))
    await settle()
    handler.end.set_result(None)
    assert await report is True
    task = await stored(queue, task_id)
    assert (task.status, task.last_failure.error_type) == (TaskStatus.RETRY_SCHEDULED, "KeyError")
    assert await queue.fail_hand_off(task_id, "again", reference="ref") is False
    clock.advance(SECOND)
    await run_until_idle(queue)
    task = await stored(queue, task_id)
    assert (task.status, task.attempts, task.hand_off_reference) == (TaskStatus.RUNNING, 2, "ref")


@pytest.mark.asyncio
async def test_a_report_that_waits_is_refused_when_the_handler_raises(make_queue: MakeQueue) -> None:
    """S13.10: the hand-off is void, so the waiting report gets HandOffError, and the attempt has failed."""
    queue, handler = make_queue(), Slow()
    task_id = await slowly_handed_off(queue, handler)
    report = asyncio.create_task(queue.complete_hand_off(task_id, reference="ref", result=5))
    await settle()
    handler.end.set_exception(OSError("broken"))
    with pytest.raises(HandOffError, match="void"):
        await report
    task = await stored(queue, task_id)
    assert (task.status, task.last_failure.error_type, task.result) == (TaskStatus.FAILED, "OSError", None)
    with pytest.raises(HandOffError):
        await queue.complete_hand_off(task_id, reference="ref")


@pytest.mark.asyncio
async def test_a_report_that_is_given_up_by_its_caller_still_counts(make_queue: MakeQueue) -> None:
    """S9.2: cancelling who waits does not take the report back."""
    queue, handler = make_queue(), Slow()
    task_id = await slowly_handed_off(queue, handler)
    report = asyncio.create_task(queue.complete_hand_off(task_id, reference="ref", result=5))
    await settle()
    report.cancel()
    await settle()
    handler.end.set_result(None)
    assert (await queue.wait(task_id)).result == 5


@pytest.mark.asyncio
async def test_an_early_report_that_does_not_fit_is_refused(make_queue: MakeQueue) -> None:
    """S9.3: before the hand-off, and with another reference, a report is refused at once."""
    queue, handler, gate = make_queue(max_concurrent_tasks=2), Slow(), asyncio.Event()
    began = asyncio.Event()

    async def plain(task: Other, context: TaskContext) -> None:
        began.set()
        await gate.wait()

    queue.register(Other, plain)
    task_id = await slowly_handed_off(queue, handler)
    other = await queue.enqueue(Other())
    await began.wait()
    with pytest.raises(HandOffError, match="another reference"):
        await queue.complete_hand_off(task_id, reference="wrong")
    with pytest.raises(HandOffError, match="not handed off"):
        await queue.complete_hand_off(other, reference="ref")
    gate.set()
    handler.end.set_result(None)
    await run_until_idle(queue)
    assert (await stored(queue, task_id)).hand_off_reference == "ref"


@pytest.mark.asyncio
@pytest.mark.parametrize("raises", [False, True])
async def test_a_report_from_inside_its_handler(make_queue: MakeQueue, raises: bool) -> None:
    """S13.10: it returns True at once, counts when the handler returns, and is nothing when the handler raises."""
    queue, answers = make_queue(), []

    async def own(task: Work, context: TaskContext) -> None:
        context.hand_off("own")
        answers.append(await queue.complete_hand_off(context.task_id, reference="own", result=7))
        answers.append((await stored(queue, context.task_id)).status)
        answers.append(await queue.complete_hand_off(context.task_id, reference="own", result=8))
        if raises:
            raise OSError

    queue.register(Work, own)
    task_id = await queue.enqueue(Work())
    await queue.start()
    task = await queue.wait(task_id)
    assert answers == [True, TaskStatus.RUNNING, False]
    expected = (TaskStatus.FAILED, None) if raises else (TaskStatus.COMPLETED, 7)
    assert (task.status, task.result) == expected


@pytest.mark.asyncio
async def test_a_report_from_a_thread_handler(make_queue: MakeQueue) -> None:
    """S13.10: a plain function that reports about itself through context.call is not held up by that."""
    queue, answers = make_queue(), []

    def own(task: Work, context: TaskContext) -> None:
        context.hand_off("own")
        answers.append(context.call(queue.complete_hand_off(context.task_id, reference="own", result=7)))

    queue.register(Work, own)
    task_id = await queue.enqueue(Work())
    await queue.start()
    assert (await queue.wait(task_id)).result == 7
    assert answers == [True]


@pytest.mark.asyncio
@pytest.mark.parametrize("reported_first", [False, True])
async def test_a_cancel_request_before_the_return_wins(make_queue: MakeQueue, reported_first: bool) -> None:
    """S13.10: handed off with a cancel request pending is cancelled; the report that waited changed nothing."""
    queue, handler = make_queue(), Slow()
    task_id = await slowly_handed_off(queue, handler)
    report = asyncio.create_task(asyncio.sleep(0))
    if reported_first:
        report = asyncio.create_task(queue.complete_hand_off(task_id, reference="ref", result=1))  # type: ignore[arg-type]  # one variable
        await settle()
    await queue.cancel(task_id)
    handler.end.set_result(None)
    task = await queue.wait(task_id)
    assert (task.status, task.result) == (TaskStatus.CANCELLED, None)
    assert await report is (False if reported_first else None)
    assert await queue.complete_hand_off(task_id, reference="ref", result=1) is False


@pytest.mark.asyncio
@pytest.mark.parametrize("moment", ["unwritten", "writing", "read_fault", "write_fault"])
async def test_a_report_between_the_return_and_the_write(
    make_queue: MakeQueue, storage: QueueStorage, clock: FakeQueueClock, moment: str
) -> None:
    """S9.2: after the return, while the hand-off is not stored yet, whatever keeps it, a report is not lost."""
    flaky = FlakyStorage(storage)
    queue, handler = make_queue(storage=flaky, max_concurrent_tasks=2), Slow()
    queue.register(Other, lambda task, context: None)
    await queue.enqueue(Other(), delay=SECOND)
    task_id = await slowly_handed_off(queue, handler)
    await queue.get_tasks()
    with queue.subscribe(QueueStorageFailure) as failures:
        if moment == "writing":
            gate = flaky.gate("apply")
            handler.end.set_result(None)
            await gate.reached()
        elif moment == "write_fault":
            flaky.fail("apply", times=7)
            handler.end.set_result(None)
            await anext(failures)
        elif moment == "read_fault":
            # A task to claim makes the step of the outcome read what is ready.
            flaky.fail("get_ready", times=2)
            clock.advance(SECOND)
            await anext(failures)
            handler.end.set_result(None)
            await settle()
        else:
            handler.end.set_result(None)
        report = asyncio.create_task(queue.complete_hand_off(task_id, reference="ref", result=5))
        await settle()
        flaky.clear()
        clock.advance(SECOND)
        async with time_goes_on(queue, clock):
            assert await report is True
    task = await stored(queue, task_id)
    assert (task.status, task.result) == (TaskStatus.COMPLETED, 5)
    assert await queue.complete_hand_off(task_id, reference="ref", result=6) is False


@pytest.mark.asyncio
async def test_a_stop_that_gives_an_early_report_up_says_so(
    make_queue: MakeQueue, storage: QueueStorage, clock: FakeQueueClock
) -> None:
    """S9.2, S13.4: a report is never acknowledged that could not be stored; the task is recovered at the next start."""
    flaky = FlakyStorage(storage)
    queue, handler = make_queue(storage=flaky), Slow()
    task_id = await slowly_handed_off(queue, handler, retry_policy=TWICE)
    report = asyncio.create_task(queue.complete_hand_off(task_id, reference="ref", result=5))
    await settle()
    flaky.fail_until_cleared(WRITES)
    with queue.subscribe(QueueStorageFailure) as failures:
        handler.end.set_result(None)
        await anext(failures)
        stopping = await begin_stop(queue, NOW)
        await settle()
        clock.advance(SECOND)
        await settle()
        clock.advance(SECOND)
        assert await stopping == [task_id]
    with pytest.raises(QueueStateError, match="stopped before"):
        await report
    flaky.clear()
    await queue.start(paused=True)
    task = await stored(queue, task_id)
    assert (task.status, task.interruptions) == (TaskStatus.RETRY_SCHEDULED, 1)


@pytest.mark.asyncio
async def test_a_grace_that_puts_the_task_back_refuses_the_report(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S9.2, S13.4: a handler that stop has interrupted did not return; its hand-off and the report are void."""
    queue, handler = make_queue(), Slow()
    task_id = await slowly_handed_off(queue, handler)
    report = asyncio.create_task(queue.complete_hand_off(task_id, reference="ref", result=5))
    await settle()
    stopping = await begin_stop(queue, NOW)
    clock.advance(NOW)
    assert await stopping == [task_id]
    with pytest.raises(HandOffError, match="void"):
        await report
    assert (await stored(queue, task_id)).status is TaskStatus.PENDING


@pytest.mark.asyncio
async def test_two_tasks_under_one_reference_are_told_apart_by_id(make_queue: MakeQueue) -> None:
    """S9.3: a reference belongs to its task."""
    queue = make_queue(max_concurrent_tasks=2)
    queue.register(Work, HandsOff("same"))
    first, second = await queue.enqueue_all([Work(1), Work(2)])
    await queue.start()
    await run_until_idle(queue)
    assert await queue.complete_hand_off(first, reference="same", result=1) is True
    assert (await stored(queue, second)).status is TaskStatus.RUNNING
    assert await queue.complete_hand_off(second, reference="same", result=2) is True
