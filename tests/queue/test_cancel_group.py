"""Cancelling a whole group in one step (S6.2, S13.17)."""

from __future__ import annotations

import pytest

from durable_queue import DependencyFailurePolicy, TaskCancelled, TaskCompleted, TaskStatus
from durable_queue.testing import collect_events, run_until_idle
from tests.queue.conftest import MakeQueue
from tests.queue.handler_support import Handler, succeed
from tests.support import Other, Work


@pytest.mark.asyncio
async def test_every_active_member_is_cancelled_and_counted(make_queue: MakeQueue) -> None:
    """S6.2: pending, waiting and running members count, terminal ones and other groups are left alone."""
    queue, handler = make_queue(), Handler()
    queue.register(Work, handler)
    queue.register(Other, succeed)
    done = await queue.enqueue(Other(), group="g", priority=2)
    running = await queue.enqueue(Work(1), group="g", priority=1)
    pending = await queue.enqueue(Work(2), group="g")
    waiting = await queue.enqueue(Work(3), group="g", depends_on=[pending])
    stranger = await queue.enqueue(Work(4), group="G")
    await queue.start()
    await handler.began.wait()

    assert await queue.cancel_group("g") == 3

    assert handler.contexts[0].cancellation_requested
    status = {task.id: task.status for task in await queue.get_tasks()}
    assert status == {
        done: TaskStatus.COMPLETED,
        running: TaskStatus.RUNNING,
        pending: TaskStatus.CANCELLED,
        waiting: TaskStatus.CANCELLED,
        stranger: TaskStatus.PENDING,
    }
    handler.released.set()
    assert (await queue.wait(running)).status is TaskStatus.COMPLETED
    assert await queue.cancel_group("g") == 0


@pytest.mark.asyncio
async def test_members_go_first_then_the_dependents_outside(make_queue: MakeQueue) -> None:
    """S13.17: one step: members as by the user, even where a member depends on another; then dependents, by policy."""
    queue = make_queue()
    queue.register(Work, succeed)
    first = await queue.enqueue(Work(1), group="g")
    second = await queue.enqueue(
        Work(2), group="g", depends_on=[first], on_dependency_failure=DependencyFailurePolicy.RUN
    )
    outside = await queue.enqueue(Work(3), depends_on=[first])
    anyway = await queue.enqueue(
        Work(4), depends_on=[second], on_dependency_failure=DependencyFailurePolicy.RUN
    )
    with collect_events(queue, TaskCancelled, TaskCompleted) as events:
        assert await queue.cancel_group("g") == 2
        await queue.start()
        await run_until_idle(queue)

        assert [(event.task_id, type(event)) for event in events] == [
            (first, TaskCancelled),
            (second, TaskCancelled),
            (outside, TaskCancelled),
            (anyway, TaskCompleted),
        ]
        assert [event.failure.error_type for event in events[:3]] == [
            "TaskCancelledError",
            "TaskCancelledError",
            "DependencyFailedError",
        ]


@pytest.mark.asyncio
async def test_an_unknown_group_has_no_members(make_queue: MakeQueue) -> None:
    """S6.2: nothing is cancelled and the answer is 0."""
    queue = make_queue()
    queue.register(Work, succeed)
    task_id = await queue.enqueue(Work(), group="g%")

    assert await queue.cancel_group("g_") == 0
    task = await queue.get_task(task_id)
    assert task is not None
    assert task.status is TaskStatus.PENDING
