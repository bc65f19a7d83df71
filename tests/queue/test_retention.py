"""Completed tasks are purged on their own once they are old enough (S6.5)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from durable_queue import FakeQueueClock, RunState, TaskStatus
from durable_queue.testing import advance, run_until_idle
from tests.queue.conftest import MakeQueue
from tests.support import Other, Work

DAY = timedelta(days=1)


async def fail(task: Other, context: object) -> None:
    raise ValueError


@pytest.mark.asyncio
async def test_completed_tasks_go_when_they_are_old(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S6.5: with retention a completed task is purged once it is older, while the queue is idle; others stay."""
    queue = make_queue(retention=DAY)
    queue.register(Work, lambda task, context: None)
    queue.register(Other, fail)
    await queue.start()
    old, failed = await queue.enqueue(Work()), await queue.enqueue(Other())
    await run_until_idle(queue)
    await advance(queue, clock, DAY / 2)
    young = await queue.enqueue(Work())
    await run_until_idle(queue)
    assert await queue.get_task(old) is not None

    clock.advance(DAY / 2 + timedelta(hours=3))
    await purged(queue, old)

    assert await queue.get_task(young) is not None
    assert await queue.get_task(failed) is not None


@pytest.mark.asyncio
async def test_without_retention_everything_stays(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S6.5: nothing is purged unless somebody asks for it."""
    queue = make_queue()
    queue.register(Work, lambda task, context: None)
    await queue.start()
    task_id = await queue.enqueue(Work())
    await run_until_idle(queue)

    await advance(queue, clock, 300 * DAY)

    assert (await queue.counts())[TaskStatus.COMPLETED] == 1
    assert await queue.get_task(task_id) is not None


@pytest.mark.asyncio
async def test_what_is_needed_is_kept(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S6.5: a completed task that an active one depends on is kept, however old it is."""
    queue = make_queue(retention=DAY)
    queue.register(Work, lambda task, context: None)
    await queue.start()
    first = await queue.enqueue(Work())
    await queue.enqueue(Work(), depends_on=[first], delay=3 * DAY)
    alone = await queue.enqueue(Work())
    await run_until_idle(queue)

    clock.advance(2 * DAY)
    await purged(queue, alone)

    assert await queue.get_task(first) is not None


async def purged(queue: object, task_id: str) -> None:
    """Return once a task is gone."""
    while await queue.get_task(task_id) is not None:  # type: ignore[attr-defined]  # a DurableQueue
        await queue.get_tasks()  # type: ignore[attr-defined]  # goes through a step, so that the purge gets its turn


@pytest.mark.asyncio
async def test_a_stop_during_start_leaves_no_timer(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S6.5, S7.5: a queue that was stopped before its start had returned purges nothing any more."""
    queue = make_queue(retention=DAY)
    starting = asyncio.create_task(queue.start())
    await asyncio.sleep(0)
    await queue.stop()
    await starting

    assert queue.run_state is RunState.IDLE
    assert queue.background_timers == []
