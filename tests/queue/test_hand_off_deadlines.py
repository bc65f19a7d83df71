"""Deadlines of hand-offs (S9.4)."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from durable_queue import FakeQueueClock, RetryPolicy, TaskFailed, TaskRetryScheduled, TaskStatus
from durable_queue.testing import run_until_idle
from tests.queue.conftest import MakeQueue
from tests.queue.hand_off_support import HandsOff, handed_off, stored
from tests.queue.handler_support import SECOND, settle
from tests.support import Other, Work

TICK = timedelta(microseconds=1)
TWICE = RetryPolicy.fixed(max_attempts=2, delay=SECOND)


@pytest.mark.asyncio
@pytest.mark.parametrize("restart", [False, True])
async def test_a_deadline_that_passes_fails_the_attempt(
    make_queue: MakeQueue, clock: FakeQueueClock, restart: bool
) -> None:
    """S9.4: at the deadline, and not before, the attempt fails with HandOffExpiredError and is retried."""
    queue, handler = make_queue(), HandsOff(deadline=lambda: clock.now() + 10 * SECOND)
    task_id = await handed_off(queue, handler, retry_policy=TWICE)
    if restart:
        await queue.close()
        queue = make_queue()
        queue.register(Work, handler, retry_policy=TWICE)
        await queue.start(paused=True)
    with queue.subscribe(TaskRetryScheduled, TaskFailed) as events:
        clock.advance(10 * SECOND - timedelta(microseconds=1))
        await settle()
        assert (await stored(queue, task_id)).status is TaskStatus.RUNNING
        clock.advance(timedelta(microseconds=1))
        event = await anext(events)
        assert isinstance(event, TaskRetryScheduled)
        assert event.failure.error_type == "HandOffExpiredError"
        assert event.next_attempt_at == clock.now() + SECOND
        assert await queue.complete_hand_off(task_id, reference=f"{task_id}:1") is False
        if restart:
            await queue.resume()
        clock.advance(SECOND)
        await run_until_idle(queue)
        clock.advance(10 * SECOND)
        last = await anext(events)
        assert isinstance(last, TaskFailed)
        assert (last.attempt, last.failure.error_type) == (2, "HandOffExpiredError")


class GoesOn(FakeQueueClock):
    """A clock that is a little later each time it is looked at, as a real one is."""

    step = timedelta(0)
    ahead = timedelta(0)

    def now(self) -> datetime:
        self.ahead += self.step
        return super().now() + self.ahead

    def stand(self) -> None:
        self.step = self.ahead = timedelta(0)


@pytest.mark.asyncio
async def test_a_deadline_is_not_lost_to_a_step_that_began_before_it(make_queue: MakeQueue) -> None:
    """S9.4: a step that is decided just before a deadline, while the clock goes on, leaves it to the next."""
    clock = GoesOn()
    queue = make_queue(clock=clock)
    queue.register(Work, HandsOff(deadline=lambda: clock.now() + SECOND))
    queue.register(Other, lambda task, context: None)
    await queue.start()
    with queue.subscribe(TaskFailed) as events:
        for before in range(1, 60, 4):
            task_id = await queue.enqueue(Work())
            await run_until_idle(queue)
            clock.advance(SECOND - before * TICK)
            clock.step = 2 * TICK
            await queue.enqueue(Other())
            await settle()
            clock.stand()
            clock.advance(SECOND)
            assert (await anext(events)).task_id == task_id


@pytest.mark.asyncio
async def test_a_deadline_that_passed_while_nobody_was_there(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S9.4: the next start notices it."""
    queue, handler = make_queue(), HandsOff(deadline=clock.now() + SECOND)
    task_id = await handed_off(queue, handler)
    await queue.close()
    clock.advance(2 * SECOND)
    again = make_queue()
    again.register(Work, handler)
    await again.start()
    task = await again.wait(task_id)
    assert task.last_failure is not None
    assert (task.status, task.last_failure.error_type) == (TaskStatus.FAILED, "HandOffExpiredError")
