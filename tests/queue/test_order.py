"""Who starts next, and what takes a slot (S3.1-S3.4)."""

from __future__ import annotations

import asyncio
import random
import threading
from datetime import timedelta

import pytest

from durable_queue import (
    DurableQueue,
    FakeQueueClock,
    MemoryQueueStorage,
    QueueStorage,
    RetryPolicy,
    StoredTask,
    SystemQueueClock,
    TaskContext,
    TaskStarted,
    TaskStatus,
)
from durable_queue.testing import FAKE_START, FlakyStorage, collect_events
from durable_queue_sqlite import SqliteQueueStorage
from tests.queue.conftest import MakeQueue
from tests.support import Other, Work

HOUR = timedelta(hours=1)
MICROSECOND = timedelta(microseconds=1)


def recorded(queue: DurableQueue) -> list[int]:
    """Register `Work` with a handler that notes the number of each start."""
    order: list[int] = []

    async def run(task: Work, context: object) -> None:
        order.append(task.n)

    queue.register(Work, run)
    return order


async def reopened(
    queue: DurableQueue, make_queue: MakeQueue, storage: QueueStorage
) -> tuple[DurableQueue, list[int]]:
    """Close a queue, and its file if it has one, and open both again."""
    await queue.close()
    if isinstance(storage, SqliteQueueStorage):
        await storage.close()
        await storage.__aenter__()
    queue = make_queue()
    return queue, recorded(queue)


@pytest.mark.asyncio
@pytest.mark.parametrize("reopen", [True, False])
async def test_tim_05_ties_keep_the_order_of_enqueue(
    make_queue: MakeQueue, storage: QueueStorage, *, reopen: bool
) -> None:
    """S3.1: tasks of one priority and one instant start in the order of enqueue, also after a restart."""
    queue = make_queue()
    order = recorded(queue)
    await asyncio.gather(*(queue.enqueue(Work(n)) for n in range(100)))
    await queue.enqueue_all([Work(n) for n in range(100, 250)])
    for n in range(250, 300):
        await queue.enqueue(Work(n))
    if reopen:
        queue, order = await reopened(queue, make_queue, storage)
        await queue.enqueue(Work(300))
    await queue.start()
    await queue.drain()
    assert order == list(range(301 if reopen else 300))


@pytest.mark.asyncio
@pytest.mark.parametrize("reopen", [True, False])
async def test_tim_05_microseconds_count(
    make_queue: MakeQueue, storage: QueueStorage, clock: FakeQueueClock, *, reopen: bool
) -> None:
    """S3.1: instants are compared and stored to the microsecond, whatever zeros they end in."""
    queue = make_queue()
    order = recorded(queue)
    times = [FAKE_START + n * MICROSECOND for n in (0, 1, 500_000, 500_001, 1_000_000)]
    ids = []
    for n, at in enumerate(times):
        clock.set(at)
        ids.append(await queue.enqueue(Work(n)))
    if reopen:
        queue, order = await reopened(queue, make_queue, storage)
    tasks = [await queue.get_task(task_id) for task_id in ids]
    assert [task.created_at for task in tasks if task is not None] == times
    await queue.start()
    await queue.drain()
    assert order == [0, 1, 2, 3, 4]


@pytest.mark.asyncio
@pytest.mark.parametrize("reopen", [True, False])
async def test_tim_05_the_urgent_first(make_queue: MakeQueue, storage: QueueStorage, *, reopen: bool) -> None:
    """S3.1: the highest priority is claimed first and does not disturb the order of the rest."""
    queue = make_queue()
    order = recorded(queue)
    for n in range(5):
        await queue.enqueue(Work(n), priority=5)
    await queue.enqueue(Work(-1), priority=-1)
    await queue.enqueue(Work(9), priority=9)
    if reopen:
        queue, order = await reopened(queue, make_queue, storage)
    await queue.start()
    await queue.drain()
    assert order == [9, 0, 1, 2, 3, 4, -1]


@pytest.mark.asyncio
async def test_the_order_is_a_total_one(make_queue: MakeQueue, storage: QueueStorage) -> None:
    """S3.1: priority, then created_at, then sequence, then id decide, in this order."""
    queue = make_queue()
    order = recorded(queue)
    tasks = [
        StoredTask(
            id=name,
            type="work",
            payload={"n": n},
            priority=priority,
            created_at=FAKE_START + second * timedelta(seconds=1),
            sequence=sequence,
        )
        for n, (priority, second, sequence, name) in enumerate(
            [
                (1, 5, 9, "z"),
                (1, 6, 1, "a"),
                (0, 0, 2, "x"),
                (0, 0, 3, "b"),
                (0, 0, 3, "c"),
                (0, 1, 0, "d"),
                (-1, 0, 0, "e"),
            ]
        )
    ]
    random.Random(7).shuffle(tasks)
    for task in tasks:
        await storage.save(task)
    await queue.start()
    await queue.drain()
    assert order == list(range(7))


@pytest.mark.asyncio
async def test_a_due_retry_competes_by_the_same_key(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S3.1: a retry that is due comes before younger tasks of its priority and after more urgent ones."""
    order: list[tuple[int, int]] = []

    async def run(task: Work, context: TaskContext) -> None:
        order.append((task.n, context.attempt))
        if task.n == 0 and context.attempt == 1:
            raise RuntimeError

    queue = make_queue()
    queue.register(Work, run, retry_policy=RetryPolicy.fixed(max_attempts=2, delay=HOUR))
    await queue.enqueue(Work(0))
    await queue.start()
    await queue.drain()
    await queue.pause()
    await queue.enqueue(Work(1))
    await queue.enqueue(Work(2), priority=1)
    clock.advance(HOUR)
    await queue.resume()
    await queue.drain()
    assert order == [(0, 1), (2, 1), (0, 2), (1, 1)]


@pytest.mark.asyncio
async def test_a_task_that_becomes_due_keeps_its_place(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S3.1: of tasks that are due the older one goes first, however late its time came."""
    queue = make_queue()
    order = recorded(queue)
    await queue.enqueue(Work(0), delay=HOUR)
    await queue.enqueue(Work(1), delay=HOUR / 2)
    await queue.enqueue(Work(2), delay=HOUR / 4, priority=1)
    await queue.start(paused=True)
    clock.advance(HOUR)
    await queue.resume()
    await queue.drain()
    assert order == [2, 0, 1]


@pytest.mark.asyncio
async def test_a_clock_set_back_holds_scheduled_tasks_again(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S3.1: what was due is not, after the clock was set back, and what has no time starts as ever."""
    queue = make_queue()
    order = recorded(queue)
    await queue.start(paused=True)
    await queue.enqueue(Work(0), delay=HOUR)
    clock.advance(2 * HOUR)
    await queue.enqueue(Work(1))
    clock.set(FAKE_START)
    await queue.resume()
    await queue.drain()
    assert order == [1]
    clock.set(FAKE_START + HOUR)
    await queue.drain()
    assert order == [1, 0]


@pytest.mark.asyncio
async def test_a_held_task_is_not_ready(
    make_queue: MakeQueue, storage: QueueStorage, clock: FakeQueueClock
) -> None:
    """S3.1: a held task is not claimed, whatever its priority and time, and wakes nobody."""
    queue = make_queue()
    order = recorded(queue)
    for name, due in (("now", None), ("later", FAKE_START + HOUR)):
        await storage.save(
            StoredTask(
                id=name,
                type="work",
                payload={"n": 7},
                created_at=FAKE_START,
                held=True,
                priority=9,
                next_attempt_at=due,
            )
        )
    await queue.enqueue(Work(1))
    await queue.start()
    left = await queue.drain(within=2 * HOUR)
    assert order == [1]
    assert (left.held, left.scheduled) == (2, 0)
    clock.advance(2 * HOUR)
    await queue.drain()
    assert order == [1]


@pytest.mark.asyncio
@pytest.mark.parametrize("slots", [1, 3])
async def test_no_more_handlers_than_slots(make_queue: MakeQueue, slots: int) -> None:
    """S3.2: `max_concurrent_tasks` handlers run when there is work, and never more."""
    running = 0
    most = 0
    full = asyncio.Event()
    go = asyncio.Event()

    async def run(task: Work, context: object) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == slots:
            full.set()
        await go.wait()
        running -= 1

    queue = make_queue(max_concurrent_tasks=slots)
    queue.register(Work, run)
    await queue.start()
    ids = await queue.enqueue_all([Work(n) for n in range(20)])
    await full.wait()
    # Nothing that goes on meanwhile makes room.
    await queue.enqueue(Work(), priority=9)
    await queue.cancel(ids[-1])
    assert (await queue.counts())[TaskStatus.RUNNING] == slots
    go.set()
    await queue.drain()
    assert most == slots
    assert (await queue.counts())[TaskStatus.COMPLETED] == 20


@pytest.mark.asyncio
async def test_the_attempt_is_counted_before_the_handler_is_called(
    make_queue: MakeQueue, storage: QueueStorage
) -> None:
    """S3.2: when the first line of a handler runs, its attempt is stored, and no claim lets a handler run."""
    flaky = FlakyStorage(storage)
    queue = make_queue(storage=flaky)
    seen: list[StoredTask | None] = []

    async def run(task: Work, context: TaskContext) -> None:
        seen.append(await storage.get(context.task_id))

    queue.register(Work, run)
    task_id = await queue.enqueue(Work())
    gate = flaky.gate("apply")
    with collect_events(queue, TaskStarted) as events:
        await queue.start()
        await gate.reached()
        for _ in range(5):
            await asyncio.sleep(0)
        assert seen == []
        assert list(events) == []
        gate.release()
        await queue.drain()
    (record,) = seen
    assert record is not None
    assert (record.id, record.status, record.attempts) == (task_id, TaskStatus.RUNNING, 1)


@pytest.mark.asyncio
async def test_what_waits_holds_no_slot(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S3.3: tasks in back-off, behind dependencies, scheduled or handed off leave the only slot to others."""
    queue = make_queue()
    order = recorded(queue)

    async def run(task: Other, context: TaskContext) -> None:
        if task.n == 0:
            raise RuntimeError
        context.hand_off("outside")

    queue.register(Other, run, retry_policy=RetryPolicy.fixed(max_attempts=2, delay=HOUR))
    await queue.start()
    await queue.enqueue(Other(0), priority=9)
    handed_off = await queue.enqueue(Other(1), priority=9)
    await queue.enqueue(Work(8), priority=9, depends_on=[handed_off])
    await queue.enqueue(Work(9), priority=9, delay=HOUR)
    await queue.enqueue(Work(1))
    left = await queue.drain()
    assert order == [1]
    assert (left.scheduled, left.waiting, left.handed_off) == (2, 1, 1)


@pytest.mark.asyncio
async def test_everything_that_makes_work_wakes_an_idle_queue(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S3.4: an enqueue, a freed slot, a due time and resume each start what is ready, without a poll."""
    go = asyncio.Event()

    async def block(task: Other, context: object) -> None:
        await go.wait()

    queue = make_queue()
    order = recorded(queue)
    queue.register(Other, block)
    await queue.start()
    await queue.drain()
    await queue.wait(await queue.enqueue(Work(0)))
    later = await queue.enqueue(Work(1), delay=HOUR)
    await queue.drain()
    clock.advance(HOUR)
    await queue.wait(later)
    await queue.enqueue(Other())
    behind = await queue.enqueue(Work(2))
    go.set()
    await queue.wait(behind)
    await queue.pause()
    paused = await queue.enqueue(Work(3))
    await queue.resume()
    await queue.wait(paused)
    assert order == [0, 1, 2, 3]


@pytest.mark.asyncio
async def test_a_due_time_that_passes_while_every_slot_is_taken(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S3.4: a task whose time came while no slot was free starts when one is."""
    go = asyncio.Event()
    started = asyncio.Event()

    async def block(task: Other, context: object) -> None:
        started.set()
        await go.wait()

    queue = make_queue()
    order = recorded(queue)
    queue.register(Other, block)
    await queue.start()
    await queue.enqueue(Other())
    await started.wait()
    task_id = await queue.enqueue(Work(1), delay=HOUR)
    clock.advance(2 * HOUR)
    assert order == []
    go.set()
    await queue.wait(task_id)
    assert order == [1]


@pytest.mark.asyncio
async def test_an_idle_queue_asks_its_storage_nothing(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S3.4: between two due times, however far apart, nobody reads the tables."""
    flaky = FlakyStorage(MemoryQueueStorage())
    queue = make_queue(storage=flaky)
    recorded(queue)
    await queue.start()
    await queue.enqueue(Work(1), delay=24 * HOUR)
    await queue.drain()
    before = dict(flaky.calls)
    for _ in range(20):
        clock.advance(HOUR)
        for _ in range(10):
            await asyncio.sleep(0)
    assert dict(flaky.calls) == before


@pytest.mark.asyncio
async def test_a_call_from_another_thread_wakes_the_queue(make_queue: MakeQueue) -> None:
    """S2.8: `run_coroutine_threadsafe` with the queue's loop enqueues from a thread and wakes an idle queue at once."""
    queue = make_queue(clock=SystemQueueClock())
    order = recorded(queue)
    await queue.start()
    await queue.drain()
    loop = asyncio.get_running_loop()
    ids: list[str] = []

    def produce() -> None:
        ids.append(asyncio.run_coroutine_threadsafe(queue.enqueue(Work(1)), loop).result(5))

    with queue.subscribe(TaskStarted) as events:
        thread = threading.Thread(target=produce)
        thread.start()
        event = await anext(events)
        await asyncio.to_thread(thread.join)
    assert isinstance(event, TaskStarted)
    assert [event.task_id] == ids
    await queue.drain()
    assert order == [1]
