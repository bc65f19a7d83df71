"""Expiry: what has not started in time is cancelled (S8)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import attrs
import pytest

from durable_queue import (
    DependencyFailurePolicy,
    DurableQueue,
    FakeQueueClock,
    QueueStorage,
    RetryPolicy,
    StoredTask,
    TaskCancelled,
    TaskCompleted,
    TaskContext,
    TaskEnqueued,
    TaskStarted,
    TaskStatus,
)
from durable_queue.testing import collect_events, run_until_idle
from tests.queue.conftest import MakeQueue
from tests.queue.handler_support import SECOND, Handler, settle
from tests.support import Other, Work

HOUR = timedelta(hours=1)
TICK = timedelta(microseconds=1)
RUN = DependencyFailurePolicy.RUN

answering = pytest.mark.parametrize("storage", ["memory", "sqlite"], indirect=True)
"""The storages that can say when the next task expires."""


async def no_op(task: object, context: TaskContext) -> None:
    """Complete."""


async def status_of(queue: DurableQueue, task_id: str) -> TaskStatus:
    task = await queue.get_task(task_id)
    assert task is not None
    return task.status


def assert_expired(task: StoredTask | None) -> None:
    assert task is not None
    assert (task.status, task.attempts) == (TaskStatus.CANCELLED, 0)
    assert task.last_failure is not None
    assert task.last_failure.error_type == "TaskExpiredError"
    assert task.last_failure.cause_task_id is None


@answering
@pytest.mark.asyncio
@pytest.mark.parametrize("paused", [False, True])
async def test_a_waiting_and_a_scheduled_task_expire_on_time(
    make_queue: MakeQueue, clock: FakeQueueClock, paused: bool
) -> None:
    """S8.2: at its expires_at, and not a microsecond before, a task is cancelled, the queue paused or not."""
    queue, handler = make_queue(), Handler()
    queue.register(Work, handler)
    queue.register(Other, no_op)
    blocker = await queue.enqueue(Work())
    waiting = await queue.enqueue(Other(), depends_on=[blocker], expires_in=2 * SECOND)
    scheduled = await queue.enqueue(Other(), delay=HOUR, expires_in=SECOND)
    await queue.start()
    await handler.began.wait()
    if paused:
        await queue.pause()
    with collect_events(queue) as events:
        clock.advance(SECOND - TICK)
        await settle()
        await queue.get_tasks()
        assert events == []
        clock.advance(TICK)
        assert_expired(await queue.wait(scheduled))
        assert await status_of(queue, waiting) is TaskStatus.WAITING
        clock.advance(SECOND)
        assert_expired(await queue.wait(waiting))
        assert [type(event) for event in events] == [TaskCancelled, TaskCancelled]
        assert [event.failure.error_type for event in events] == ["TaskExpiredError"] * 2
    assert handler.starts == 1
    handler.released.set()


@answering
@pytest.mark.asyncio
async def test_a_pending_task_that_finds_no_slot_expires_on_time(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S8.1: a ready task behind a long one is cancelled at its time, not when a slot is free."""
    queue, handler = make_queue(), Handler()
    queue.register(Work, handler)
    await queue.enqueue(Work(1), priority=1)
    pending = await queue.enqueue(Work(2), expires_in=SECOND)
    await queue.start()
    await handler.began.wait()
    clock.advance(SECOND)

    assert_expired(await queue.wait(pending))
    assert handler.starts == 1
    handler.released.set()


@pytest.mark.asyncio
@pytest.mark.parametrize("first_paused", [False, True])
async def test_tim_09_expiry_passes_while_the_process_is_down(
    make_queue: MakeQueue, clock: FakeQueueClock, first_paused: bool
) -> None:
    """S8.1: what expired while nobody consumed never starts, and its dependents settle by their policy."""
    queue, seen = make_queue(), []
    queue.register(Work, lambda task, context: seen.append(task.n))
    expired = await queue.enqueue(Work(1), expires_in=SECOND)
    runs = await queue.enqueue(Work(2), depends_on=[expired], on_dependency_failure=RUN)
    cancelled = await queue.enqueue(Work(3), depends_on=[expired])
    if first_paused:
        await queue.start(paused=True)
    await queue.close()
    clock.advance(2 * SECOND)

    again = make_queue()
    again.register(Work, lambda task, context: seen.append(task.n))
    await again.start()
    assert_expired(await again.wait(expired))
    assert (await again.wait(runs)).status is TaskStatus.COMPLETED
    record = await again.wait(cancelled)
    assert (record.status, record.last_failure.cause_task_id) == (TaskStatus.CANCELLED, expired)
    assert record.last_failure.error_type == "DependencyFailedError"
    assert seen == [2]


@answering
@pytest.mark.asyncio
async def test_tim_09_expiry_while_waiting_leaves_the_dependency_alone(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S8.1: C waits on P and expires first: G, which depends on C with `run`, runs once and P is undisturbed."""
    queue, handler, seen = make_queue(max_concurrent_tasks=2), Handler(), []
    queue.register(Work, handler)
    queue.register(Other, lambda task, context: seen.append(task.n))
    parent = await queue.enqueue(Work())
    child = await queue.enqueue(Other(1), depends_on=[parent], expires_in=SECOND)
    grandchild = await queue.enqueue(Other(2), depends_on=[child], on_dependency_failure=RUN)
    await queue.start()
    await handler.began.wait()
    clock.advance(SECOND)

    assert_expired(await queue.wait(child))
    assert (await queue.wait(grandchild)).status is TaskStatus.COMPLETED
    assert await status_of(queue, parent) is TaskStatus.RUNNING
    handler.released.set()
    assert (await queue.wait(parent)).status is TaskStatus.COMPLETED
    await run_until_idle(queue)
    assert seen == [2]


@answering
@pytest.mark.asyncio
async def test_tim_09_paused_until_after_the_expiry(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S8.1: a ready task of a paused queue is cancelled meanwhile and does not start at resume."""
    queue, seen = make_queue(), []
    queue.register(Work, lambda task, context: seen.append(task.n))
    await queue.start(paused=True)
    task_id = await queue.enqueue(Work(1), expires_in=SECOND)
    clock.advance(SECOND)
    assert_expired(await queue.wait(task_id))
    await queue.resume()
    await run_until_idle(queue)
    assert seen == []


@pytest.mark.asyncio
async def test_tim_09_a_task_that_has_started_does_not_expire(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S8.1: expiry is about the first start: a running task completes after it, and a retry starts after it."""
    queue, handler = make_queue(), Handler()
    attempts: list[int] = []

    def flaky(task: Other, context: TaskContext) -> None:
        attempts.append(context.attempt)
        if context.attempt == 1:
            raise OSError

    queue.register(Work, handler)
    queue.register(Other, flaky, retry_policy=RetryPolicy.fixed(max_attempts=2, delay=2 * SECOND))
    retried = await queue.enqueue(Other(), expires_in=SECOND)
    await queue.start()
    await run_until_idle(queue)
    clock.advance(2 * SECOND)
    record = await queue.wait(retried)
    assert (record.status, record.attempts, attempts) == (TaskStatus.COMPLETED, 2, [1, 2])

    running = await queue.enqueue(Work(), expires_in=SECOND)
    await handler.began.wait()
    clock.advance(2 * SECOND)
    await settle()
    handler.released.set()
    assert (await queue.wait(running)).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
async def test_the_last_microsecond(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S8.1: a task starts one microsecond before its expires_at and is cancelled at it."""
    queue, seen = make_queue(), []
    queue.register(Work, lambda task, context: seen.append(task.n))
    at_it = await queue.enqueue(Work(1), expires_in=SECOND)
    before = await queue.enqueue(Work(2), expires_in=SECOND + TICK)
    clock.advance(SECOND)
    await queue.start()
    assert_expired(await queue.wait(at_it))
    assert (await queue.wait(before)).status is TaskStatus.COMPLETED
    assert seen == [2]


@pytest.mark.asyncio
async def test_an_expired_head_does_not_hide_what_is_behind_it(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S8.2: tasks behind expired ones of higher priority start at once, whatever the storage can answer."""
    queue, seen = make_queue(), []
    queue.register(Work, lambda task, context: seen.append(task.n))
    expired = [await queue.enqueue(Work(n), priority=9, expires_in=SECOND) for n in range(3)]
    last = await queue.enqueue(Work(7))
    clock.advance(SECOND)
    await queue.start()
    assert (await queue.wait(last)).status is TaskStatus.COMPLETED
    for task_id in expired:
        assert_expired(await queue.wait(task_id))
    assert seen == [7]


@pytest.mark.asyncio
async def test_an_expired_task_is_not_released_by_its_dependency(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S8.2: at the latest when it is judged a waiting task is found expired."""
    queue, handler = make_queue(), Handler()
    queue.register(Work, handler)
    parent = await queue.enqueue(Work())
    child = await queue.enqueue(Work(), depends_on=[parent], expires_in=SECOND)
    await queue.start()
    await handler.began.wait()
    clock.advance(SECOND)
    handler.released.set()

    assert_expired(await queue.wait(child))
    assert handler.starts == 1


@pytest.mark.asyncio
async def test_what_is_enqueued_after_its_expiry_never_starts(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S8.1: an expires_at that has passed already is no error; the task is announced, then cancelled."""
    queue, seen = make_queue(), []
    queue.register(Work, lambda task, context: seen.append(task.n))
    await queue.start()
    with collect_events(queue) as events:
        late = await queue.enqueue(Work(1), expires_at=clock.now() - SECOND)
        assert_expired(await queue.wait(late))
        assert [type(event) for event in events] == [TaskEnqueued, TaskCancelled]
    assert seen == []


@answering
@pytest.mark.asyncio
async def test_more_expire_at_once_than_fit_one_step(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S8.1: 250 tasks that expire at the same instant, and dependents of some of them, all settle."""
    queue = make_queue()
    queue.register(Work, no_op)
    await queue.start(paused=True)
    expired = await queue.enqueue_all([Work(n) for n in range(250)], expires_in=SECOND)
    dependents = [await queue.enqueue(Work(), depends_on=[task_id]) for task_id in expired[:3]]
    clock.advance(SECOND)
    for task_id in expired:
        assert_expired(await queue.wait(task_id))
    for task_id in dependents:
        assert (await queue.wait(task_id)).status is TaskStatus.CANCELLED


@answering
@pytest.mark.asyncio
async def test_an_earlier_expiry_moves_the_timer_forward(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S8.2: a task that expires before the one known so far is noticed at its own time."""
    queue = make_queue()
    queue.register(Work, no_op)
    await queue.start(paused=True)
    late = await queue.enqueue(Work(), expires_in=HOUR)
    early = await queue.enqueue(Work(), expires_in=SECOND)
    clock.advance(SECOND)
    assert_expired(await queue.wait(early))
    assert await status_of(queue, late) is TaskStatus.PENDING
    clock.advance(HOUR)
    assert_expired(await queue.wait(late))


@answering
@pytest.mark.asyncio
async def test_a_held_task_expires(
    make_queue: MakeQueue, storage: QueueStorage, clock: FakeQueueClock
) -> None:
    """S8.1: a held task is cancelled at its time like any other."""
    queue = make_queue()
    queue.register(Work, no_op)
    task_id = await queue.enqueue(Work(), expires_in=SECOND)
    stored = await storage.get(task_id)
    assert stored is not None
    await storage.update(attrs.evolve(stored, held=True, payload=stored.payload, result=None))
    await queue.start()
    clock.advance(SECOND)
    assert_expired(await queue.wait(task_id))


@answering
@pytest.mark.asyncio
async def test_expiry_follows_the_clock_back_and_forth(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S8.1: a clock that is set back postpones an expiry, one that is set forth brings it on."""
    queue, begin = make_queue(), clock.now()
    queue.register(Work, no_op)
    await queue.start(paused=True)
    task_id = await queue.enqueue(Work(), expires_in=10 * SECOND)
    clock.advance(9 * SECOND)
    clock.set(begin - HOUR)
    clock.advance(59 * 60 * SECOND)
    await settle()
    assert await status_of(queue, task_id) is TaskStatus.PENDING
    clock.set(begin + 10 * SECOND)
    assert_expired(await queue.wait(task_id))


@answering
@pytest.mark.asyncio
async def test_expiry_is_noticed_while_the_queue_never_becomes_idle(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S8.2: a stream of short tasks that keeps every step busy does not put an expiry off."""
    queue = make_queue(max_concurrent_tasks=8)
    over = False

    async def again(task: Work, context: TaskContext) -> None:
        if not over:
            await queue.enqueue(Work(task.n + 1))

    queue.register(Work, again)
    queue.register(Other, no_op)
    await queue.start()
    for _ in range(16):
        await queue.enqueue(Work())
    later = await queue.enqueue(Other(), delay=HOUR, expires_in=SECOND)
    with queue.subscribe(TaskCompleted, TaskCancelled) as events:
        clock.advance(SECOND)
        for _ in range(2000):
            if isinstance(await anext(events), TaskCancelled):
                break
        over = True
    assert_expired(await queue.get_task(later))


@pytest.mark.asyncio
async def test_an_expired_task_holds_its_key_no_longer(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S13.13: a holder past its expires_at is settled in the step that asks for its key, and the new task is stored."""
    queue = make_queue()
    queue.register(Work, no_op)
    first = await queue.enqueue(Work(1), deduplication_key="k", expires_in=SECOND)
    child = await queue.enqueue(Work(), depends_on=[first])
    clock.advance(SECOND)
    with collect_events(queue) as events:
        second = await queue.enqueue(Work(2), deduplication_key="k")
        assert [(type(event), event.task_id) for event in events] == [
            (TaskCancelled, first),
            (TaskCancelled, child),
            (TaskEnqueued, second),
        ]
    assert second != first
    assert_expired(await queue.get_task(first))


@pytest.mark.asyncio
async def test_retry_of_an_expired_task_starts_it(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S13.9: retry clears expires_at, so that the task has its time again."""
    queue = make_queue()
    queue.register(Work, no_op)
    task_id = await queue.enqueue(Work(), expires_in=SECOND)
    clock.advance(2 * SECOND)
    await queue.start()
    assert_expired(await queue.wait(task_id))
    with collect_events(queue, TaskStarted) as starts:
        await queue.retry(task_id)
        record = await queue.wait(task_id)
        assert (record.status, record.expires_at, len(starts)) == (TaskStatus.COMPLETED, None, 1)


@answering
@pytest.mark.asyncio
@pytest.mark.parametrize("end", ["cancel", "complete", "delete"])
async def test_an_expiry_that_has_become_moot_disturbs_nothing(
    make_queue: MakeQueue, clock: FakeQueueClock, end: str
) -> None:
    """S8.1: a task that ended before its expires_at is not touched at it."""
    queue = make_queue()
    queue.register(Work, no_op)
    await queue.start()
    task_id = await queue.enqueue(Work(), expires_in=SECOND, delay=HOUR if end != "complete" else None)
    verb: dict[str, Callable[[str], Any]] = {
        "cancel": queue.cancel,
        "delete": queue.cancel,
        "complete": queue.wait,
    }
    await verb[end](task_id)
    if end == "delete":
        await queue.delete(task_id)
    before = await queue.get_task(task_id)
    with collect_events(queue) as events:
        clock.advance(HOUR)
        await run_until_idle(queue)
        assert events == []
    assert await queue.get_task(task_id) == before
