"""Two queues of one program over one storage: one runs tasks, the other only brings them in (S13.6)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from durable_queue import DurableQueue, FakeQueueClock, QueueInUseError, QueueStorage, TaskGraph, TaskStatus
from durable_queue.testing import FlakyStorage
from tests.queue.conftest import MakeQueue
from tests.queue.handler_support import Handler, succeed
from tests.support import Other, Work

HOUR = timedelta(hours=1)


def producer_of(make_queue: MakeQueue, **options: object) -> DurableQueue:
    """A queue that can only enqueue."""
    queue = make_queue(**options)
    queue.register(Work)
    return queue


@pytest.mark.asyncio
async def test_an_idle_consumer_starts_what_another_queue_enqueues(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S13.6: a task that another queue object over the same storage enqueues starts at once, scheduled ones on time."""
    consumer = make_queue()
    consumer.register(Work, succeed)
    await consumer.start()
    await consumer.drain()
    producer = producer_of(make_queue)
    task = await consumer.wait(await producer.enqueue(Work(1)))
    assert task.status is TaskStatus.COMPLETED
    later = await producer.enqueue(Work(2), delay=HOUR)
    await consumer.drain()
    clock.advance(HOUR)
    assert (await consumer.wait(later)).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
async def test_a_dependent_enqueued_while_its_dependency_ends(
    make_queue: MakeQueue, storage: QueueStorage
) -> None:
    """S13.6: a dependent whose insert crosses the end of its dependency is judged when the consumer hears of it."""
    flaky = FlakyStorage(storage)
    handler = Handler()
    consumer = make_queue(storage=flaky)
    consumer.register(Work, succeed)
    consumer.register(Other, handler)
    await consumer.start()
    parent = await consumer.enqueue(Other())
    await handler.began.wait()
    producer = producer_of(make_queue, storage=flaky)
    graph = TaskGraph()
    graph.add(Work(1), name="a", depends_on=[parent])
    graph.add(Work(2), name="b", depends_on=["a"])
    gate = flaky.gate("apply")
    call = asyncio.ensure_future(producer.enqueue_graph(graph))
    await gate.reached()
    handler.released.set()
    assert (await consumer.wait(parent)).status is TaskStatus.COMPLETED
    gate.release()
    ids = await call
    assert (await consumer.wait(ids["b"])).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
async def test_a_paused_and_a_stopped_consumer_start_nothing(make_queue: MakeQueue) -> None:
    """S7.4: word of new tasks wakes no queue that is paused or stopped; they start when it goes on."""
    consumer = make_queue()
    consumer.register(Work, succeed)
    producer = producer_of(make_queue)
    await consumer.start(paused=True)
    first = await producer.enqueue(Work(1))
    await consumer.stop()
    second = await producer.enqueue(Work(2))
    for _ in range(5):
        await asyncio.sleep(0)
    for task_id in (first, second):
        task = await producer.get_task(task_id)
        assert task is not None
        assert task.status is TaskStatus.PENDING
    await consumer.start()
    for task_id in (first, second):
        assert (await consumer.wait(task_id)).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
async def test_only_the_consumer_changes_tasks(make_queue: MakeQueue) -> None:
    """S13.6: beside a running consumer another queue may read and enqueue; every other verb is refused."""
    consumer = make_queue()
    consumer.register(Work, succeed)
    await consumer.start()
    producer = producer_of(make_queue)
    task_id = await producer.enqueue(Work(), delay=HOUR, group="g")
    for call in (
        producer.cancel(task_id),
        producer.cancel_group("g"),
        producer.retry(task_id),
        producer.delete(task_id),
        producer.purge(),
        producer.start(),
    ):
        with pytest.raises(QueueInUseError):
            await call
    assert (await producer.counts())[TaskStatus.PENDING] == 1
    assert [task.id for task in await producer.get_tasks(group="g")] == [task_id]
