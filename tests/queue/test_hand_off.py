"""Hand-off: outside work takes a task over and reports how it ended (S9)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from durable_queue import (
    DependencyFailurePolicy,
    FakeQueueClock,
    HandOffError,
    PayloadError,
    QueueInUseError,
    RetryPolicy,
    TaskCancelled,
    TaskCancelledError,
    TaskCompleted,
    TaskContext,
    TaskFailed,
    TaskHandedOff,
    TaskNotFoundError,
    TaskRetryScheduled,
    TaskStarted,
    TaskStatus,
)
from durable_queue.testing import collect_events, crash, run_until_idle
from tests.queue.conftest import MakeQueue
from tests.queue.hand_off_support import HandsOff, handed_off, stored
from tests.queue.handler_support import SECOND, settle
from tests.support import Other, Work

HOUR = timedelta(hours=1)
TWICE = RetryPolicy.fixed(max_attempts=2, delay=SECOND)


@pytest.mark.asyncio
async def test_a_handed_off_task_stays_running_and_holds_no_slot(make_queue: MakeQueue) -> None:
    """S9.1: after the handler's return the task is running with its reference, and the slot takes the next."""
    queue, handler, seen = make_queue(), HandsOff("job-7"), []
    queue.register(Other, lambda task, context: seen.append(task.n))
    with collect_events(queue) as events:
        task_id = await handed_off(queue, handler)
        await queue.wait(await queue.enqueue(Other(5)))
        handed = [event for event in events if isinstance(event, TaskHandedOff)]
        assert [(event.task_id, event.attempt, event.reference) for event in handed] == [
            (task_id, 1, "job-7")
        ]
    task = await stored(queue, task_id)
    assert (task.status, task.hand_off_reference, task.attempts) == (TaskStatus.RUNNING, "job-7", 1)
    assert (task.result, seen, handler.references) == (None, [5], ["job-7"])
    drained = await queue.drain()
    assert drained.handed_off == 1


@pytest.mark.asyncio
async def test_a_completion_stores_the_result_and_settles_dependents(make_queue: MakeQueue) -> None:
    """S9.2: complete_hand_off completes the task with its result, and a dependent can read it."""
    queue, handler = make_queue(), HandsOff()
    results: list[dict[str, Any]] = []

    async def look(task: Other, context: TaskContext) -> None:
        results.append(await context.dependency_results())

    queue.register(Other, look)
    task_id = await handed_off(queue, handler)
    child = await queue.enqueue(Other(), depends_on=[task_id])
    with collect_events(queue, TaskCompleted) as events:
        assert await queue.complete_hand_off(task_id, reference=f"{task_id}:1", result={"n": [5]}) is True
        assert [event.task_id for event in events] == [task_id]
        await queue.wait(child)
    task = await stored(queue, task_id)
    assert (task.status, task.result) == (TaskStatus.COMPLETED, {"n": [5]})
    assert results == [{task_id: {"n": [5]}}]


@pytest.mark.asyncio
async def test_a_failure_follows_the_retry_rules(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S9.2: a reported failure is retried after the back-off with a new reference, then the task fails."""
    queue, handler, seen = make_queue(), HandsOff(), []
    queue.register(Other, lambda task, context: seen.append(task.n))
    task_id = await handed_off(queue, handler, retry_policy=TWICE)
    child = await queue.enqueue(Other(1), depends_on=[task_id])
    runs = await queue.enqueue(
        Other(2), depends_on=[task_id], on_dependency_failure=DependencyFailurePolicy.RUN
    )
    with collect_events(queue, TaskRetryScheduled, TaskStarted, TaskFailed, TaskCancelled) as events:
        assert await queue.fail_hand_off(task_id, ValueError("first"), reference=f"{task_id}:1") is True
        task = await stored(queue, task_id)
        assert (task.status, task.next_attempt_at) == (TaskStatus.RETRY_SCHEDULED, clock.now() + SECOND)
        assert (task.last_failure.error_type, task.last_failure.error) == ("ValueError", "first")
        clock.advance(SECOND)
        await run_until_idle(queue)
        assert handler.references == [f"{task_id}:1", f"{task_id}:2"]
        assert await queue.fail_hand_off(task_id, "second", reference=f"{task_id}:2") is True
        await queue.wait(runs)
        names = [(type(event).__name__, event.task_id) for event in events]
    assert names == [
        ("TaskRetryScheduled", task_id),
        ("TaskStarted", task_id),
        ("TaskFailed", task_id),
        ("TaskCancelled", child),
        ("TaskStarted", runs),
    ]
    task = await stored(queue, task_id)
    assert (task.status, task.attempts) == (TaskStatus.FAILED, 2)
    assert (task.last_failure.error_type, task.last_failure.error) == ("HandOffError", "second")
    assert seen == [2]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("error", "kept"), [("a text", HandOffError), (KeyError("x"), KeyError), (asyncio.CancelledError(), None)]
)
async def test_retry_if_sees_the_reported_error(
    make_queue: MakeQueue, error: Any, kept: type[BaseException] | None
) -> None:
    """S13.10: a text reaches retry_if as a HandOffError of that text, an exception as itself."""
    queue, seen = make_queue(), []

    def never(reported: BaseException) -> bool:
        seen.append(reported)
        return False

    task_id = await handed_off(queue, HandsOff(), retry_policy=TWICE, retry_if=never)
    assert await queue.fail_hand_off(task_id, error, reference=f"{task_id}:1") is True
    assert (await stored(queue, task_id)).status is TaskStatus.FAILED
    assert len(seen) == 1
    assert type(seen[0]) is (kept or asyncio.CancelledError)
    if isinstance(error, str):
        assert str(seen[0]) == "a text"


@pytest.mark.asyncio
async def test_a_reported_cancellation_cancels(make_queue: MakeQueue) -> None:
    """S9.2, S5.2: TaskCancelledError is never retried; the task is cancelled."""
    queue = make_queue()
    task_id = await handed_off(queue, HandsOff(), retry_policy=TWICE)
    assert await queue.fail_hand_off(task_id, TaskCancelledError("no"), reference=f"{task_id}:1") is True
    assert (await stored(queue, task_id)).status is TaskStatus.CANCELLED


@pytest.mark.asyncio
@pytest.mark.parametrize("stop", ["stop", "crash"])
async def test_hof_01_a_hand_off_survives_a_restart(
    make_queue: MakeQueue, clock: FakeQueueClock, stop: str
) -> None:
    """S9.1: recovery leaves a handed-off task as it is; the report afterwards completes it, without a new start."""
    queue, handler = make_queue(), HandsOff()
    task_id = await handed_off(queue, handler, retry_policy=TWICE)
    before = await stored(queue, task_id)
    if stop == "stop":
        await queue.close()
    else:
        await crash(queue)
    clock.advance(HOUR)
    again = make_queue()
    again.register(Work, handler, retry_policy=TWICE)
    await again.start()
    await run_until_idle(again)
    assert await stored(again, task_id) == before
    assert [task.id for task in await again.hand_offs()] == [task_id]
    assert await again.complete_hand_off(task_id, reference=f"{task_id}:1") is True
    assert (await stored(again, task_id)).status is TaskStatus.COMPLETED
    assert handler.references == [f"{task_id}:1"]


@pytest.mark.asyncio
async def test_hof_01_a_report_through_an_idle_queue(make_queue: MakeQueue) -> None:
    """S9.2, S13.6: an idle queue takes the consumer claim for the report; a second consumer is refused."""
    queue, handler = make_queue(), HandsOff()
    task_id = await handed_off(queue, handler)
    idle = make_queue()
    with pytest.raises(QueueInUseError):
        await idle.complete_hand_off(task_id, reference=f"{task_id}:1")
    await queue.stop()
    assert await idle.complete_hand_off(task_id, reference=f"{task_id}:1", result=5) is True
    assert (await stored(queue, task_id)).result == 5
    await queue.start()


@pytest.mark.asyncio
async def test_hof_01_a_second_report_changes_nothing(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S9.3: until a new attempt has begun a further report with the reference returns False; then it is refused."""
    queue, handler = make_queue(), HandsOff()
    first = await handed_off(queue, handler, retry_policy=TWICE)
    reference = f"{first}:1"
    assert await queue.complete_hand_off(first, reference=reference, result=1) is True
    done = await stored(queue, first)
    assert await queue.complete_hand_off(first, reference=reference, result=2) is False
    assert await queue.fail_hand_off(first, "late", reference=reference) is False
    assert await stored(queue, first) == done

    second = await queue.enqueue(Work(2))
    await run_until_idle(queue)
    assert await queue.fail_hand_off(second, "broken", reference=f"{second}:1") is True
    assert await queue.fail_hand_off(second, "broken", reference=f"{second}:1") is False
    assert await queue.complete_hand_off(second, reference=f"{second}:1") is False
    assert (await stored(queue, second)).status is TaskStatus.RETRY_SCHEDULED
    clock.advance(SECOND)
    await run_until_idle(queue)
    with pytest.raises(HandOffError, match="another reference"):
        await queue.complete_hand_off(second, reference=f"{second}:1")
    assert await queue.complete_hand_off(second, reference=f"{second}:2") is True


@pytest.mark.asyncio
async def test_a_report_after_cancel_returns_false(make_queue: MakeQueue) -> None:
    """S13.10: a cancelled hand-off is cancelled at once, and the late report changes nothing."""
    queue = make_queue()
    task_id = await handed_off(queue, HandsOff())
    await queue.cancel(task_id)
    assert (await stored(queue, task_id)).status is TaskStatus.CANCELLED
    assert await queue.complete_hand_off(task_id, reference=f"{task_id}:1", result=1) is False
    assert (await stored(queue, task_id)).status is TaskStatus.CANCELLED


@pytest.mark.asyncio
async def test_a_late_report_after_retry_is_refused_once_it_has_started(make_queue: MakeQueue) -> None:
    """S9.3: the reference of an earlier attempt ends with the next claim, also after retry."""
    queue, handler = make_queue(), HandsOff()
    task_id = await handed_off(queue, handler)
    await queue.cancel(task_id)
    await queue.pause()
    await queue.retry(task_id)
    assert await queue.complete_hand_off(task_id, reference=f"{task_id}:1") is False
    await queue.resume()
    await run_until_idle(queue)
    assert handler.references == [f"{task_id}:1"] * 2


@pytest.mark.asyncio
async def test_reports_that_do_not_fit_are_refused(make_queue: MakeQueue) -> None:
    """S9.3: an unknown id, a task that is not handed off and a wrong reference each have their error."""
    queue, handler = make_queue(), HandsOff("right")
    queue.register(Other, lambda task, context: None)
    plain = await queue.enqueue(Other(), delay=HOUR)
    ended = await queue.enqueue(Other())
    task_id = await handed_off(queue, handler)
    before = await queue.get_tasks()
    for report in (
        lambda i, r: queue.complete_hand_off(i, reference=r),
        lambda i, r: queue.fail_hand_off(i, "x", reference=r),
    ):
        with pytest.raises(TaskNotFoundError):
            await report("unknown", "right")
        for other in (plain, ended):
            with pytest.raises(HandOffError, match="not handed off"):
                await report(other, "right")
        with pytest.raises(HandOffError, match="another reference") as caught:
            await report(task_id, "wr0ng")
        assert "right" not in str(caught.value)
        assert "wr0ng" not in str(caught.value)
        for bad in ("", " ", "a\0b", "\ud800"):
            with pytest.raises(ValueError, match="reference"):
                await report(task_id, bad)
    with pytest.raises(TypeError, match="error must be"):
        await queue.fail_hand_off(task_id, 5, reference="right")  # type: ignore[arg-type]  # what is refused
    with pytest.raises(PayloadError):
        await queue.complete_hand_off(task_id, reference="right", result=object())
    assert await queue.get_tasks() == before


@pytest.mark.asyncio
async def test_a_handler_that_raises_voids_its_hand_off(make_queue: MakeQueue) -> None:
    """S9.1: the attempt has failed, no reference is stored and a report is refused."""
    queue = make_queue()

    async def break_off(task: Work, context: TaskContext) -> None:
        context.hand_off("ref")
        raise OSError

    queue.register(Work, break_off)
    task_id = await queue.enqueue(Work())
    await queue.start()
    task = await queue.wait(task_id)
    assert (task.status, task.hand_off_reference) == (TaskStatus.FAILED, None)
    with pytest.raises(HandOffError, match="not handed off"):
        await queue.complete_hand_off(task_id, reference="ref")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "call",
    [
        lambda context: [context.hand_off("a"), context.hand_off("b")],
        lambda context: context.hand_off(""),
        lambda context: context.hand_off("a\0"),
        lambda context: context.hand_off("a", deadline=context.naive),
        lambda context: context.hand_off(5),
    ],
)
async def test_a_hand_off_that_cannot_be_is_refused_in_the_handler(
    make_queue: MakeQueue, clock: FakeQueueClock, call: Any
) -> None:
    """S9.1: a second hand-off, an unusable reference or a naive deadline fails the attempt with the error."""
    queue = make_queue()

    async def try_it(task: Work, context: Any) -> None:
        context.naive = clock.now().replace(tzinfo=None)
        call(context)

    queue.register(Work, try_it)
    task_id = await queue.enqueue(Work())
    await queue.start()
    assert (await queue.wait(task_id)).status is TaskStatus.FAILED


@pytest.mark.asyncio
async def test_an_attempt_that_has_ended_cannot_be_handed_off(make_queue: MakeQueue) -> None:
    """S9.1: a context kept beyond its handler refuses."""
    queue, contexts = make_queue(), []

    async def keep(task: Work, context: TaskContext) -> None:
        contexts.append(context)

    queue.register(Work, keep)
    task_id = await queue.enqueue(Work())
    await queue.start()
    await queue.wait(task_id)
    with pytest.raises(HandOffError, match="has ended"):
        contexts[0].hand_off()


@pytest.mark.asyncio
async def test_a_plain_function_hands_off(make_queue: MakeQueue) -> None:
    """S9.1: a handler in a thread hands off like a coroutine."""
    queue = make_queue()
    queue.register(Work, lambda task, context: context.hand_off("t"))
    task_id = await queue.enqueue(Work())
    await queue.start()
    await run_until_idle(queue)
    assert await queue.complete_hand_off(task_id, reference="t", result=3) is True
    assert (await stored(queue, task_id)).result == 3


@pytest.mark.asyncio
async def test_hand_offs_lists_the_open_ones(make_queue: MakeQueue) -> None:
    """S9.4: oldest first; what is reported, runs in a slot or was cancelled is not among them."""
    queue, handler = make_queue(max_concurrent_tasks=3), HandsOff()
    gate = asyncio.Event()

    async def wait(task: Other, context: TaskContext) -> None:
        context.hand_off("soon")
        await gate.wait()

    queue.register(Other, wait)
    first = await handed_off(queue, handler)
    ids = [await queue.enqueue(Work(n)) for n in range(3)]
    await run_until_idle(queue)
    with queue.subscribe(TaskStarted) as starts:
        soon = await queue.enqueue(Other())
        await anext(starts)
    assert [task.id for task in await queue.hand_offs()] == [first, *ids]
    await queue.complete_hand_off(ids[0], reference=f"{ids[0]}:1")
    await queue.cancel(ids[1])
    assert [task.id for task in await queue.hand_offs()] == [first, ids[2]]
    gate.set()
    await run_until_idle(queue)
    assert [task.id for task in await queue.hand_offs()] == [first, ids[2], soon]


@pytest.mark.asyncio
async def test_hof_01_a_hand_off_does_not_expire(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S8.1: expires_at passes while the task is handed off: it has started, and stays."""
    queue, handler = make_queue(), HandsOff("r")
    queue.register(Work, handler)
    task_id = await queue.enqueue(Work(), expires_in=SECOND)
    await queue.start()
    await run_until_idle(queue)
    clock.advance(HOUR)
    await run_until_idle(queue)
    assert await queue.complete_hand_off(task_id, reference="r") is True


@pytest.mark.asyncio
async def test_hof_01_a_crash_before_the_hand_off_is_stored(make_queue: MakeQueue) -> None:
    """S9.3: the task is recovered as interrupted; a report of the lost attempt is refused once a new one runs."""
    queue, gate = make_queue(), asyncio.Event()

    async def work(task: Work, context: TaskContext) -> None:
        context.hand_off()
        if context.attempt == 1:
            await gate.wait()

    retries = RetryPolicy.fixed(max_attempts=2, delay=timedelta(0))
    queue.register(Work, work, retry_policy=retries)
    task_id = await queue.enqueue(Work())
    with queue.subscribe(TaskStarted) as starts:
        await queue.start()
        await anext(starts)
    await settle()
    await crash(queue)
    again = make_queue()
    again.register(Work, work, retry_policy=retries)
    await again.start()
    await run_until_idle(again)
    with pytest.raises(HandOffError, match="another reference"):
        await again.complete_hand_off(task_id, reference=f"{task_id}:1")
    assert await again.complete_hand_off(task_id, reference=f"{task_id}:2") is True
