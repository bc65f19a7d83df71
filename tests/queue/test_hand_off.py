"""Hand-off: work that goes on outside, and the reports about it (S9)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from durable_queue import (
    DurableQueue,
    FakeQueueClock,
    HandOffError,
    RetryPolicy,
    StoredTask,
    TaskCompleted,
    TaskContext,
    TaskHandedOff,
    TaskNotFoundError,
    TaskStatus,
)
from durable_queue.testing import collect_events, crash, run_until_idle
from tests.queue.conftest import MakeQueue
from tests.queue.handler_support import after_the_storage, succeed
from tests.support import Other, Work

SECOND = timedelta(seconds=1)
TWICE = RetryPolicy.fixed(max_attempts=2, delay=SECOND)


async def hand_off(task: Work, context: TaskContext) -> None:
    """Leave the task outside, under the reference that an attempt gets on its own."""
    context.hand_off()


async def handed_off(queue: DurableQueue, **options: object) -> str:
    """Return the id of a task that is handed off."""
    queue.register(Work, hand_off)
    task_id = await queue.enqueue(Work(1), **options)  # type: ignore[arg-type]  # as given by the test
    await queue.start()
    await run_until_idle(queue)
    return task_id


async def record(queue: DurableQueue, task_id: str) -> StoredTask:
    """Return a task that is stored."""
    task = await queue.get_task(task_id)
    assert task is not None
    return task


@pytest.mark.asyncio
async def test_a_handed_off_task_runs_on_without_a_slot(make_queue: MakeQueue) -> None:
    """S9.1, S3.3: it stays running with its reference, and the only slot is free for others."""
    queue = make_queue(max_concurrent_tasks=1)
    with collect_events(queue, TaskHandedOff) as events:
        task_id = await handed_off(queue)
        queue.register(Other, succeed)
        other = await queue.enqueue(Other())

        assert (await queue.wait(other)).status is TaskStatus.COMPLETED
        task = await record(queue, task_id)
        assert task.status is TaskStatus.RUNNING
        assert task.hand_off_reference == f"{task_id}:1"
        assert [(event.task_id, event.attempt, event.reference) for event in events] == [
            (task_id, 1, f"{task_id}:1")
        ]


@pytest.mark.asyncio
async def test_a_report_completes_it_with_its_result(make_queue: MakeQueue) -> None:
    """S9.2: the result is stored, dependents read it, and the call returns True once it is on disk."""
    queue = make_queue()
    task_id = await handed_off(queue)
    read: list[dict[str, object]] = []

    async def dependent(task: Other, context: TaskContext) -> None:
        read.append(await context.dependency_results())

    queue.register(Other, dependent)
    child = await queue.enqueue(Other(), depends_on=[task_id])

    assert await queue.complete_hand_off(task_id, reference=f"{task_id}:1", result={"n": 5}) is True
    assert (await record(queue, task_id)).result == {"n": 5}
    assert (await queue.wait(child)).status is TaskStatus.COMPLETED
    assert read == [{task_id: {"n": 5}}]


@pytest.mark.asyncio
async def test_a_reported_failure_follows_the_rules_of_retry(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S9.2: another attempt while there are some, then failed; the old reference is late in a new attempt (S9.3)."""
    queue = make_queue()
    task_id = await handed_off(queue, retry_policy=TWICE)

    assert await queue.fail_hand_off(task_id, "printer on fire", reference=f"{task_id}:1")
    first = await record(queue, task_id)
    assert first.status is TaskStatus.RETRY_SCHEDULED
    assert first.last_failure is not None
    assert (first.last_failure.error_type, first.last_failure.error) == ("HandOffError", "printer on fire")
    clock.advance(SECOND)
    await run_until_idle(queue)
    with pytest.raises(HandOffError):
        await queue.complete_hand_off(task_id, reference=f"{task_id}:1")
    assert await queue.fail_hand_off(task_id, OSError("still"), reference=f"{task_id}:2")

    last = await record(queue, task_id)
    assert last.status is TaskStatus.FAILED
    assert last.attempts == 2
    assert last.last_failure is not None
    assert last.last_failure.error_type == "OSError"


@pytest.mark.asyncio
async def test_retry_if_sees_a_text_as_a_hand_off_error(make_queue: MakeQueue) -> None:
    """S13.10: the predicate of the type is asked about HandOffError(text), and may refuse."""
    queue = make_queue()
    seen: list[BaseException] = []

    def retry_if(error: BaseException) -> bool:
        seen.append(error)
        return False

    queue.register(Work, hand_off, retry_policy=TWICE, retry_if=retry_if)
    task_id = await queue.enqueue(Work())
    await queue.start()
    await run_until_idle(queue)

    await queue.fail_hand_off(task_id, "no paper", reference=f"{task_id}:1")

    assert [(type(error), str(error)) for error in seen] == [(HandOffError, "no paper")]
    assert (await record(queue, task_id)).status is TaskStatus.FAILED


@pytest.mark.asyncio
async def test_hof_01_the_same_report_twice_changes_nothing(make_queue: MakeQueue) -> None:
    """S9.3: the second one, whatever it says, returns False; the record stays as it is."""
    queue = make_queue()
    task_id = await handed_off(queue)
    reference = f"{task_id}:1"
    await queue.complete_hand_off(task_id, reference=reference, result=1)
    ended = await record(queue, task_id)

    assert await queue.complete_hand_off(task_id, reference=reference, result=2) is False
    assert await queue.fail_hand_off(task_id, "late", reference=reference) is False
    assert await record(queue, task_id) == ended


@pytest.mark.asyncio
async def test_a_report_that_does_not_fit_is_refused(make_queue: MakeQueue) -> None:
    """S9.3: unknown ids, other references and tasks that are not handed off are errors, and nothing changes."""
    queue = make_queue()
    task_id = await handed_off(queue)
    queue.register(Other, succeed)
    plain = await queue.enqueue(Other())
    await queue.wait(plain)

    with pytest.raises(TaskNotFoundError):
        await queue.complete_hand_off("nobody", reference="r")
    with pytest.raises(HandOffError):
        await queue.complete_hand_off(task_id, reference="another")
    with pytest.raises(HandOffError):
        await queue.fail_hand_off(plain, "x", reference="r")
    assert (await record(queue, task_id)).status is TaskStatus.RUNNING


@pytest.mark.asyncio
async def test_hof_01_a_hand_off_survives_a_crash(make_queue: MakeQueue) -> None:
    """S9.1, S7.1: recovery leaves it alone; the report after the restart completes it without another start."""
    first = make_queue()
    task_id = await handed_off(first)
    before = await record(first, task_id)
    await crash(first)

    second = make_queue()
    starts: list[int] = []
    second.register(Work, lambda task, context: starts.append(context.attempt))
    await second.start()
    await run_until_idle(second)

    assert await record(second, task_id) == before
    assert [task.id for task in await second.hand_offs()] == [task_id]
    assert await second.complete_hand_off(task_id, reference=f"{task_id}:1", result=5)
    assert (await record(second, task_id)).result == 5
    assert starts == []


@pytest.mark.asyncio
async def test_open_hand_offs_are_listed(make_queue: MakeQueue) -> None:
    """S9.4: hand_offs lists those without a report, oldest first; running handlers are not among them."""
    queue = make_queue(max_concurrent_tasks=3)
    queue.register(Work, hand_off)
    held = asyncio.Event()

    async def busy(task: Other, context: TaskContext) -> None:
        await held.wait()

    queue.register(Other, busy)
    ids = await queue.enqueue_all([Work(1), Work(2), Work(3)])
    running = await queue.enqueue(Other())
    with collect_events(queue, TaskHandedOff) as events:
        await queue.start()
        while len(events) < len(ids):
            await after_the_storage(queue)
    await queue.complete_hand_off(ids[1], reference=f"{ids[1]}:1")

    assert [task.id for task in await queue.hand_offs()] == [ids[0], ids[2]]
    held.set()
    await queue.wait(running)


@pytest.mark.asyncio
async def test_a_deadline_fails_the_attempt(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S9.4: at the deadline the attempt fails with HandOffExpiredError and is retried; a report in time is in time."""
    queue = make_queue()

    async def handler(task: Work, context: TaskContext) -> None:
        context.hand_off(deadline=clock.now() + SECOND)

    queue.register(Work, handler)
    late = await queue.enqueue(Work(1), retry_policy=TWICE)
    punctual = await queue.enqueue(Work(2))
    await queue.start()
    await run_until_idle(queue)
    assert await queue.complete_hand_off(punctual, reference=f"{punctual}:1")

    clock.advance(SECOND - timedelta(microseconds=1))
    await run_until_idle(queue)
    assert (await record(queue, late)).status is TaskStatus.RUNNING
    clock.advance(timedelta(microseconds=1))
    await run_until_idle(queue)

    task = await record(queue, late)
    assert task.status is TaskStatus.RETRY_SCHEDULED
    assert task.last_failure is not None
    assert task.last_failure.error_type == "HandOffExpiredError"
    assert (await record(queue, punctual)).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
async def test_a_deadline_outlives_a_crash(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S9.4: a deadline that passed while nobody was there is noticed by the next start."""
    first = make_queue()

    async def handler(task: Work, context: TaskContext) -> None:
        context.hand_off("ticket", deadline=clock.now() + SECOND)

    first.register(Work, handler)
    task_id = await first.enqueue(Work(1))
    await first.start()
    await run_until_idle(first)
    await crash(first)
    clock.advance(2 * SECOND)

    second = make_queue()
    second.register(Work, handler)
    await second.start()

    assert (await second.wait(task_id)).status is TaskStatus.FAILED


@pytest.mark.asyncio
async def test_a_handler_that_raises_voids_its_hand_off(make_queue: MakeQueue) -> None:
    """S9.1: the task fails like any other, and has no reference."""
    queue = make_queue()

    async def handler(task: Work, context: TaskContext) -> None:
        context.hand_off("ticket")
        raise ValueError("after all")

    queue.register(Work, handler)
    task_id = await queue.enqueue(Work())
    await queue.start()

    ended = await queue.wait(task_id)
    assert ended.status is TaskStatus.FAILED
    assert ended.hand_off_reference is None


@pytest.mark.asyncio
async def test_cancelling_ends_a_hand_off_at_once(make_queue: MakeQueue) -> None:
    """S6.1, S13.10: it is cancelled with its dependents, and a later report returns False."""
    queue = make_queue()
    task_id = await handed_off(queue)
    child = await queue.enqueue(Work(2), depends_on=[task_id])

    await queue.cancel(task_id)

    assert (await record(queue, task_id)).status is TaskStatus.CANCELLED
    assert (await record(queue, child)).status is TaskStatus.CANCELLED
    assert await queue.complete_hand_off(task_id, reference=f"{task_id}:1") is False


@pytest.mark.asyncio
async def test_hof_01_an_early_report_waits_for_the_handler(make_queue: MakeQueue) -> None:
    """S9.2, S13.10: it returns when the handler has returned, completes the task once, and is not lost."""
    queue = make_queue()
    referred, released = asyncio.Event(), asyncio.Event()

    async def handler(task: Work, context: TaskContext) -> None:
        context.hand_off("ticket")
        referred.set()
        await released.wait()

    queue.register(Work, handler)
    with collect_events(queue, TaskCompleted, TaskHandedOff) as events:
        task_id = await queue.enqueue(Work())
        await queue.start()
        await referred.wait()
        report = asyncio.create_task(queue.complete_hand_off(task_id, reference="ticket", result=5))
        await after_the_storage(queue)
        assert not report.done()
        assert await queue.complete_hand_off(task_id, reference="ticket", result=6) is False
        released.set()

        assert await report is True
        assert (await record(queue, task_id)).result == 5
        assert [type(event) for event in events] == [TaskCompleted]


@pytest.mark.asyncio
async def test_an_early_report_of_a_handler_that_raises_is_refused(make_queue: MakeQueue) -> None:
    """S13.10: the waiting report gets HandOffError, and the attempt fails by what the handler raised."""
    queue = make_queue()
    referred, released = asyncio.Event(), asyncio.Event()

    async def handler(task: Work, context: TaskContext) -> None:
        context.hand_off("ticket")
        referred.set()
        await released.wait()
        raise ValueError("after all")

    queue.register(Work, handler)
    task_id = await queue.enqueue(Work())
    await queue.start()
    await referred.wait()
    report = asyncio.create_task(queue.complete_hand_off(task_id, reference="ticket"))
    await after_the_storage(queue)
    released.set()

    with pytest.raises(HandOffError):
        await report
    assert (await queue.wait(task_id)).status is TaskStatus.FAILED


@pytest.mark.asyncio
async def test_a_report_from_inside_the_handler_returns_at_once(make_queue: MakeQueue) -> None:
    """S13.10: it returns True and counts when the handler returns."""
    queue = make_queue()
    answers: list[bool] = []

    async def handler(task: Work, context: TaskContext) -> None:
        reference = context.hand_off()
        answers.append(await queue.complete_hand_off(context.task_id, reference=reference, result="inside"))

    queue.register(Work, handler)
    task_id = await queue.enqueue(Work())
    await queue.start()

    assert (await queue.wait(task_id)).result == "inside"
    assert answers == [True]


@pytest.mark.asyncio
async def test_a_hand_off_with_a_cancel_request_pending_is_cancelled(make_queue: MakeQueue) -> None:
    """S13.10: nobody would stop the outside work any more."""
    queue = make_queue()
    began, released = asyncio.Event(), asyncio.Event()

    async def handler(task: Work, context: TaskContext) -> None:
        began.set()
        await released.wait()
        context.hand_off("ticket")

    queue.register(Work, handler)
    task_id = await queue.enqueue(Work())
    await queue.start()
    await began.wait()
    await queue.cancel(task_id)
    released.set()

    assert (await queue.wait(task_id)).status is TaskStatus.CANCELLED


@pytest.mark.asyncio
async def test_an_idle_queue_can_report(make_queue: MakeQueue) -> None:
    """S13.6: a queue that is not started takes the consumer claim for the call."""
    first = make_queue()
    task_id = await handed_off(first)
    await first.stop()

    assert await make_queue().complete_hand_off(task_id, reference=f"{task_id}:1", result=1)
    assert (await record(first, task_id)).status is TaskStatus.COMPLETED
