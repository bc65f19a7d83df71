"""Events: what subscribers see, in which order, and what a slow one misses (S11)."""

from __future__ import annotations

import asyncio
import gc
import weakref
from datetime import timedelta

import attrs
import pytest

from durable_queue import (
    DependencyFailurePolicy,
    EventsMissed,
    FakeQueueClock,
    QueueClosedError,
    QueueEvent,
    RetryPolicy,
    TaskCancelled,
    TaskCompleted,
    TaskContext,
    TaskEnqueued,
    TaskFailed,
    TaskRetryScheduled,
    TaskStarted,
)
from durable_queue.testing import collect_events, run_until_idle
from tests.queue.conftest import MakeQueue
from tests.queue.handler_support import succeed
from tests.support import Other, Work

SECOND = timedelta(seconds=1)


async def fail(task: object, context: TaskContext) -> None:
    """Fail every time."""
    raise ValueError("no")


@pytest.mark.asyncio
async def test_a_life_in_events(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S11.1, S11.2, S13.18: each write is announced once, in one order, with its attempt, failure and times."""
    queue = make_queue()
    queue.register(Work, fail, retry_policy=RetryPolicy.fixed(max_attempts=2, delay=SECOND))
    with collect_events(queue) as events:
        task_id = await queue.enqueue(Work())
        assert [type(event) for event in events] == [TaskEnqueued]
        await queue.start()
        await run_until_idle(queue)
        clock.advance(SECOND)
        await run_until_idle(queue)

        assert [type(event) for event in events] == [
            TaskEnqueued,
            TaskStarted,
            TaskRetryScheduled,
            TaskStarted,
            TaskFailed,
        ]
        enqueued, first, retry, second, failed = events
        assert {event.task_id for event in events} == {task_id}
        assert {event.task_type for event in events} == {"work"}
        assert (first.attempt, retry.attempt, second.attempt, failed.attempt) == (1, 1, 2, 2)
        assert retry.failure.error == failed.failure.error == "no"
        assert retry.next_attempt_at == enqueued.at + SECOND
        assert [event.at - enqueued.at for event in events] == [0 * SECOND] * 3 + [SECOND] * 2


@pytest.mark.asyncio
async def test_events_are_frozen_attrs_classes(make_queue: MakeQueue) -> None:
    """S11.2: an event cannot be changed, and equal ones are equal."""
    queue = make_queue()
    queue.register(Work, succeed)
    with collect_events(queue) as events:
        await queue.enqueue(Work())
        (event,) = events

    assert attrs.evolve(event) == event
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        event.at = None


@pytest.mark.asyncio
async def test_a_subscriber_gets_what_it_asked_for(make_queue: MakeQueue) -> None:
    """S11.1: by class, base classes included; everybody gets the same order, and nothing from before."""
    queue = make_queue()
    queue.register(Work, succeed)
    await queue.enqueue(Work(0))
    with (
        collect_events(queue) as everything,
        collect_events(queue, QueueEvent) as base,
        collect_events(queue, TaskCompleted, TaskEnqueued) as some,
    ):
        await queue.enqueue(Work(1))
        await queue.start()
        await run_until_idle(queue)

        assert list(base) == list(everything)
        assert list(some) == [
            event for event in everything if isinstance(event, (TaskCompleted, TaskEnqueued))
        ]
        assert [type(event) for event in some] == [TaskEnqueued, TaskCompleted, TaskCompleted]


@pytest.mark.asyncio
async def test_causal_order_across_a_cascade(make_queue: MakeQueue) -> None:
    """S4.8, S11.1: the failed task, then its dependent, then that one's."""
    queue = make_queue()
    queue.register(Work, fail)
    with collect_events(queue, TaskFailed, TaskCancelled) as events:
        first = await queue.enqueue(Work())
        second = await queue.enqueue(
            Work(), depends_on=[first], on_dependency_failure=DependencyFailurePolicy.FAIL
        )
        third = await queue.enqueue(Work(), depends_on=[second])
        await queue.start()
        await queue.wait(third)

        assert [event.task_id for event in events] == [first, second, third]
        assert events[2].failure.cause_task_id == first


@pytest.mark.asyncio
async def test_evt_02_a_full_buffer_drops_the_oldest(make_queue: MakeQueue) -> None:
    """S11.1, S13.18: EventsMissed takes the place of the dropped, counts only wanted events, passes every filter."""
    queue = make_queue()
    queue.register(Work, succeed)
    with queue.subscribe(TaskEnqueued, buffer=3) as events:
        ids = [await queue.enqueue(Work(n)) for n in range(10)]
        await queue.start()
        await run_until_idle(queue)
        missed, *kept = events.take()

    assert isinstance(missed, EventsMissed)
    assert missed.count == 7
    assert [event.task_id for event in kept] == ids[7:]


@pytest.mark.asyncio
async def test_evt_02_a_subscriber_that_left_can_be_collected(make_queue: MakeQueue) -> None:
    """S11.1: neither the subscription nor its buffer outlives its block, also when the block was never left."""
    queue = make_queue()
    queue.register(Work, succeed)
    left = queue.subscribe()
    forgotten = queue.subscribe()
    references = [weakref.ref(left), weakref.ref(forgotten)]
    with left:
        pass
    await queue.enqueue(Work())
    del left, forgotten
    gc.collect()

    assert [reference() for reference in references] == [None, None]


@pytest.mark.asyncio
async def test_evt_03_a_subscriber_that_raises_hurts_itself(make_queue: MakeQueue) -> None:
    """S11.1: tasks and other subscribers go on."""
    queue = make_queue()
    queue.register(Work, succeed)

    async def faulty() -> None:
        with queue.subscribe() as events:
            async for _ in events:
                raise ValueError("mine")

    broken = asyncio.create_task(faulty())
    await asyncio.sleep(0)
    with collect_events(queue, TaskCompleted) as completed:
        await queue.start()
        await queue.enqueue_all([Work(n) for n in range(20)])
        with pytest.raises(ValueError, match="mine"):
            await broken
        await run_until_idle(queue)

        assert len(completed) == 20


@pytest.mark.asyncio
async def test_evt_03_a_subscriber_can_enqueue(make_queue: MakeQueue) -> None:
    """S11.1: what a subscriber enqueues runs."""
    queue = make_queue()
    queue.register(Work, succeed)
    queue.register(Other, succeed)
    with queue.subscribe(TaskCompleted) as events:
        await queue.start()
        first = await queue.enqueue(Work())
        event = await anext(events)
        assert event.task_id == first
        second = await queue.enqueue(Other())
        assert (await anext(events)).task_id == second


@pytest.mark.asyncio
async def test_close_ends_the_streams(make_queue: MakeQueue) -> None:
    """S7.6, S11.1: iteration ends after what was delivered, and nobody can subscribe any more."""
    queue = make_queue()
    queue.register(Work, succeed)
    seen: list[type[QueueEvent]] = []

    async def read() -> None:
        with queue.subscribe() as events:
            seen.extend([type(event) async for event in events])

    reader = asyncio.create_task(read())
    await asyncio.sleep(0)
    await queue.start()
    await queue.enqueue(Work())
    await run_until_idle(queue)
    await queue.close()
    await reader

    assert seen == [TaskEnqueued, TaskStarted, TaskCompleted]
    with pytest.raises(QueueClosedError):
        queue.subscribe()


@pytest.mark.asyncio
async def test_a_subscription_checks_what_it_is_asked_for(make_queue: MakeQueue) -> None:
    """S11.1: only event classes, and room for at least one event."""
    queue = make_queue()
    with pytest.raises(TypeError):
        queue.subscribe("TaskCompleted")  # type: ignore[arg-type]  # that is what is tested
    with pytest.raises(ValueError, match="buffer"):
        queue.subscribe(buffer=0)


@pytest.mark.asyncio
async def test_an_event_is_there_before_its_call_returns(make_queue: MakeQueue) -> None:
    """S13.18, S10.4: after cancel has returned, its event is in the buffers."""
    queue = make_queue()
    queue.register(Work, succeed)
    task_id = await queue.enqueue(Work())
    with queue.subscribe(TaskCancelled) as events:
        await queue.cancel(task_id)

        assert [event.task_id for event in events.take()] == [task_id]
