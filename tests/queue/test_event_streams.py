"""Streams of events under load: slow readers, readers that leave, readers that act (S11.1, EVT-02, EVT-03)."""

from __future__ import annotations

import asyncio

import pytest

from durable_queue import (
    DurableQueue,
    EventsMissed,
    FakeQueueClock,
    QueueEvent,
    QueueStorage,
    QueueStorageFailure,
    RunState,
    TaskCompleted,
    TaskEnqueued,
    TaskStarted,
    TaskStatus,
)
from durable_queue.testing import FlakyStorage, collect_events, run_until_idle
from tests.queue.conftest import MakeQueue
from tests.queue.handler_support import SECOND, settle, succeed
from tests.support import Work


async def read_all(queue: DurableQueue, into: list[QueueEvent], **options: int) -> None:
    with queue.subscribe(**options) as events:
        async for event in events:
            into += [event]


@pytest.mark.asyncio
async def test_evt_02_two_thousand_tasks_with_readers_of_every_kind(make_queue: MakeQueue) -> None:
    """S11.1: a quick reader gets all in order, one that never reads gets the mark and the newest, stop is not held."""
    queue = make_queue(max_concurrent_tasks=16)
    queue.register(Work, succeed)
    quick: list[QueueEvent] = []
    reading = asyncio.create_task(read_all(queue, quick, buffer=10_000))
    await asyncio.sleep(0)
    with queue.subscribe(buffer=10) as never, queue.subscribe() as leaves, collect_events(queue) as events:
        ids = await queue.enqueue_all([Work(n) for n in range(1000)])
        leaves.end()
        await queue.start()
        ids += await queue.enqueue_all([Work(n) for n in range(1000)])
        await run_until_idle(queue)
        await queue.stop()
        await settle()
        assert quick == list(events)
        assert len(quick) == 6000
        missed, *newest = never.take()
        assert isinstance(missed, EventsMissed)
        assert missed.count == 6000 - 10
        assert newest == quick[-10:]
    completed = [event.task_id for event in quick if isinstance(event, TaskCompleted)]
    assert sorted(completed) == sorted(ids)
    reading.cancel()


@pytest.mark.asyncio
async def test_evt_02_a_slow_reader_sees_where_events_are_missing(make_queue: MakeQueue) -> None:
    """S11.1: the mark stands where the lost ones stood, and its counts add up."""
    queue = make_queue()
    queue.register(Work, succeed)
    got: list[QueueEvent] = []
    with queue.subscribe(TaskEnqueued, buffer=2) as events:
        for n in range(9):
            await queue.enqueue(Work(n))
            if n % 4 == 3:
                got.append(await anext(events))
        got += events.take()
    ids = [task.id for task in await queue.get_tasks()]
    lost = 0
    seen: list[str] = []
    for event in got:
        if isinstance(event, EventsMissed):
            lost += event.count
        else:
            assert isinstance(event, TaskEnqueued)
            seen.append(event.task_id)
    assert lost + len(seen) == len(ids)
    assert seen == sorted(seen, key=ids.index)
    assert seen[-1] == ids[-1]


@pytest.mark.asyncio
async def test_a_reader_that_is_cancelled_while_it_waits_loses_nothing(make_queue: MakeQueue) -> None:
    """S11.1: an event that comes in the same turn as the cancellation is there for the next reader."""
    queue = make_queue()
    queue.register(Work, succeed)
    with queue.subscribe(TaskEnqueued) as events:
        for n in range(5):
            taking = asyncio.create_task(anext(events))
            await asyncio.sleep(0)
            task_id = await queue.enqueue(Work(n))
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
            event = taking.result() if not taking.cancelled() else await anext(events)
            assert event.task_id == task_id


@pytest.mark.asyncio
async def test_evt_03_a_reader_that_stops_the_queue(make_queue: MakeQueue) -> None:
    """S11.1: stop from a subscriber works like from anywhere else outside of handlers."""
    queue = make_queue()
    queue.register(Work, succeed)

    async def stop_at_the_third() -> list[str]:
        with queue.subscribe(TaskCompleted) as events:
            for _ in range(3):
                await anext(events)
            return await queue.stop()

    stopping = asyncio.create_task(stop_at_the_third())
    await asyncio.sleep(0)
    await queue.enqueue_all([Work(n) for n in range(20)])
    await queue.start()
    assert await stopping == []
    assert queue.run_state is RunState.IDLE
    counts = await queue.counts()
    assert counts[TaskStatus.COMPLETED] >= 3
    assert counts[TaskStatus.RUNNING] == 0


@pytest.mark.asyncio
async def test_a_write_is_announced_only_when_it_is_stored(
    make_queue: MakeQueue, storage: QueueStorage
) -> None:
    """S10.4: whatever an event reports can be read from the storage when it comes."""
    flaky = FlakyStorage(storage)
    queue = make_queue(storage=flaky)
    queue.register(Work, succeed)
    with collect_events(queue) as events:
        enqueued = flaky.gate("apply")
        calling = asyncio.create_task(queue.enqueue(Work()))
        await enqueued.reached()
        assert events == []
        enqueued.release()
        task_id = await calling
        assert [type(event) for event in events] == [TaskEnqueued]

        claimed = flaky.gate("apply")
        await queue.start()
        await claimed.reached()
        assert len(events) == 1
        ended = flaky.gate("apply")
        claimed.release()
        await ended.reached()
        assert [type(event) for event in events] == [TaskEnqueued, TaskStarted]
        ended.release()
        await queue.wait(task_id)
        assert [type(event) for event in events] == [TaskEnqueued, TaskStarted, TaskCompleted]


@pytest.mark.asyncio
async def test_a_storage_failure_is_an_event_like_any_other(
    make_queue: MakeQueue, storage: QueueStorage, clock: FakeQueueClock
) -> None:
    """S11.2, S10.2: it comes to whoever wants it or everything, in the one order."""
    flaky = FlakyStorage(storage)
    queue = make_queue(storage=flaky)
    queue.register(Work, succeed)
    await queue.start()
    flaky.fail("apply", nth=2)
    with collect_events(queue) as everything, queue.subscribe(QueueStorageFailure) as failures:
        task_id = await queue.enqueue(Work())
        failure = await anext(failures)
        clock.advance(SECOND)
        await queue.wait(task_id)
        assert everything[1] is failure
        assert [type(event) for event in everything] == [
            TaskEnqueued,
            QueueStorageFailure,
            TaskStarted,
            TaskCompleted,
        ]
