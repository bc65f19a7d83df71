"""The clock seen from the queue: steps in both directions, order of creation, idleness (S1.9, S3.4, S12)."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from freezegun import freeze_time

from durable_queue import (
    DurableQueue,
    FakeQueueClock,
    QueueStorage,
    RetryPolicy,
    StoredTask,
    SystemQueueClock,
    TaskCompleted,
    TaskContext,
    TaskRetryScheduled,
    TaskStatus,
)
from durable_queue.testing import FlakyStorage, collect_events, run_until_idle
from tests.queue.conftest import MakeQueue
from tests.queue.handler_support import SECOND, Handler, settle
from tests.support import Other, Work

HOUR = timedelta(hours=1)
TICK = timedelta(microseconds=1)


async def no_op(task: object, context: TaskContext) -> None:
    """Complete."""


async def stored(queue: DurableQueue, task_id: str) -> StoredTask:
    task = await queue.get_task(task_id)
    assert task is not None
    return task


@pytest.mark.asyncio
async def test_created_at_never_goes_backwards(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S1.9: tasks that are enqueued after the clock was set back run after those before, whatever verb brought them."""
    queue, order = make_queue(), []

    async def note(task: Work, context: TaskContext) -> None:
        order.append(task.n)

    queue.register(Work, note)
    begin = clock.now()
    first = await queue.enqueue(Work(1))
    clock.set(begin - HOUR)
    second = await queue.enqueue(Work(2))
    [third] = await queue.enqueue_all([Work(3)])
    clock.set(begin - 2 * HOUR)
    fourth = await queue.enqueue(Work(4))
    clock.set(begin + HOUR)
    fifth = await queue.enqueue(Work(5))
    tasks = [await stored(queue, task_id) for task_id in (first, second, third, fourth, fifth)]
    assert [task.created_at for task in tasks] == [begin] * 4 + [begin + HOUR]
    await queue.start()
    await run_until_idle(queue)
    assert order == [1, 2, 3, 4, 5]


@pytest.mark.asyncio
async def test_the_clamp_touches_nothing_else(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S13.20: updated_at, due times and expiry follow the clock; across restarts the clock decides."""
    queue, begin = make_queue(), clock.now()
    queue.register(Work, no_op)
    await queue.enqueue(Work())
    clock.set(begin - HOUR)
    task = await stored(queue, await queue.enqueue(Work(), delay=SECOND, expires_in=2 * SECOND))
    assert (task.created_at, task.updated_at) == (begin, begin - HOUR)
    assert task.next_attempt_at == begin - HOUR + SECOND
    assert task.expires_at == begin - HOUR + 2 * SECOND
    await queue.close()
    again = make_queue()
    again.register(Work, no_op)
    assert (await stored(again, await again.enqueue(Work()))).created_at == begin - HOUR


@pytest.mark.asyncio
async def test_a_refused_enqueue_does_not_move_created_at(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S1.9: what was never enqueued has no created_at that later tasks would have to keep."""
    queue, begin = make_queue(), clock.now()
    queue.register(Work, no_op)
    clock.set(begin + HOUR)
    with pytest.raises(ValueError, match="priority"):
        await queue.enqueue(Work(), priority=2**40)
    clock.set(begin)
    assert (await stored(queue, await queue.enqueue(Work()))).created_at == begin


@pytest.mark.asyncio
async def test_a_clock_that_is_set_back_and_forth_loses_and_doubles_no_start(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S12.2: each task starts once, never before its time, however the clock moves between the steps."""
    queue, begin = make_queue(max_concurrent_tasks=3), clock.now()
    starts: list[tuple[int, datetime]] = []

    async def note(task: Work, context: TaskContext) -> None:
        starts.append((task.n, clock.now()))

    queue.register(Work, note)
    await queue.start()
    for n in range(1, 11):
        await queue.enqueue(Work(n), run_at=begin + n * HOUR)
        clock.set(begin + (n * 7 % 5 - 2) * HOUR)
        await run_until_idle(queue)
        clock.set(begin - n * HOUR)
        await run_until_idle(queue)
    for n, at in starts:
        assert at >= begin + n * HOUR
    clock.set(begin + 20 * HOUR)
    await run_until_idle(queue)
    assert sorted(n for n, _ in starts) == list(range(1, 11))


@pytest.mark.asyncio
async def test_a_task_due_behind_an_earlier_look_is_on_time(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S12.2: after the clock was set back, what has become due meanwhile starts at once when it leaps forward."""
    queue, begin = make_queue(), clock.now()
    queue.register(Work, no_op)
    await queue.start()
    clock.advance(10 * SECOND)
    await queue.wait(await queue.enqueue(Work(0)))
    await run_until_idle(queue)
    clock.set(begin)
    task_id = await queue.enqueue(Work(1), run_at=begin + 5 * SECOND)
    await settle()
    clock.set(begin + 20 * SECOND)
    await run_until_idle(queue)
    assert (await queue.wait(task_id)).status is TaskStatus.COMPLETED
    assert clock.now() == begin + 20 * SECOND


@pytest.mark.asyncio
async def test_tim_02_the_wall_clock_leaps(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S12.2: a leap starts what is due, expires what is late, leaves what runs, and a return holds nothing up."""
    queue, handler, seen, begin = make_queue(max_concurrent_tasks=2), Handler(), [], clock.now()
    fails = [True]

    async def note(task: Work, context: TaskContext) -> None:
        seen.append(task.n)
        if task.n == 5 and fails.pop():
            raise OSError

    queue.register(Other, handler)
    queue.register(Work, note, retry_policy=RetryPolicy.fixed(max_attempts=2, delay=SECOND))
    running = await queue.enqueue(Other())
    due = await queue.enqueue(Work(1), delay=HOUR)
    late = await queue.enqueue(Work(2), delay=HOUR, expires_in=HOUR / 2)
    await queue.start()
    await handler.began.wait()
    clock.set(begin + 8 * HOUR)
    assert (await queue.wait(due)).attempts == 1
    assert (await queue.wait(late)).status is TaskStatus.CANCELLED
    assert (await stored(queue, running)).status is TaskStatus.RUNNING

    clock.set(begin + timedelta(days=400))
    with queue.subscribe(TaskRetryScheduled) as retries:
        retried = await queue.enqueue(Work(5))
        await anext(retries)
    clock.set(begin)
    assert (await queue.wait(await queue.enqueue(Work(6)))).status is TaskStatus.COMPLETED
    assert [task.id for task in await queue.get_tasks(status=TaskStatus.RETRY_SCHEDULED)] == [retried]
    await queue.cancel(retried)
    assert (await stored(queue, retried)).status is TaskStatus.CANCELLED
    handler.released.set()
    assert (await queue.wait(running)).status is TaskStatus.COMPLETED
    assert (seen, handler.starts) == ([1, 5, 6], 1)


@pytest.mark.asyncio
async def test_durations_never_become_negative(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S12.4: an attempt during which the clock is set back took as long as it took."""
    queue, handler = make_queue(), Handler()
    queue.register(Work, handler)
    with collect_events(queue, TaskCompleted) as events:
        task_id = await queue.enqueue(Work())
        await queue.start()
        await handler.began.wait()
        clock.advance(3 * SECOND)
        clock.set(clock.now() - HOUR)
        handler.released.set()
        await queue.wait(task_id)
        assert [event.duration for event in events] == [3 * SECOND]


@pytest.mark.asyncio
async def test_a_retry_delay_counts_on_the_wall_clock(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S5.3, S12.2: the due time of a retry is an instant, so that it holds across a restart."""
    queue, attempts = make_queue(), []

    async def fail(task: Work, context: TaskContext) -> None:
        attempts.append(context.attempt)
        if context.attempt < 3:
            raise OSError

    queue.register(Work, fail, retry_policy=RetryPolicy.fixed(max_attempts=3, delay=HOUR))
    task_id = await queue.enqueue(Work())
    await queue.start()
    await run_until_idle(queue)
    clock.set(clock.now() + HOUR - TICK)
    await run_until_idle(queue)
    assert attempts == [1]
    clock.set(clock.now() + TICK)
    await run_until_idle(queue)
    assert attempts == [1, 2]
    clock.advance(HOUR)
    assert (await queue.wait(task_id)).attempts == 3


@pytest.mark.asyncio
@pytest.mark.parametrize("zone", ["America/Chicago", "Asia/Tokyo"])
async def test_tim_03_naive_datetimes_are_refused(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    """S1.7: whatever the zone of the computer, a naive datetime is an error that says so, and nothing is stored."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        queue = make_queue()
        queue.register(Work, no_op)
        naive = datetime(2030, 1, 1, 12, 0)  # noqa: DTZ001  # what is refused
        for options in ({"run_at": naive}, {"expires_at": naive}):
            with pytest.raises(ValueError, match=r"naive datetime.*time zone"):
                await queue.enqueue(Work(), **options)
        with pytest.raises(ValueError, match="naive datetime"):
            await queue.purge(older_than=naive)
        assert await queue.get_tasks() == []
        await queue.start()
        assert (await queue.wait(await queue.enqueue(Work()))).status is TaskStatus.COMPLETED
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.asyncio
async def test_instants_of_any_zone_are_stored_in_utc(make_queue: MakeQueue) -> None:
    """S1.7: an aware instant is the same instant in UTC, to the microsecond."""
    queue = make_queue()
    queue.register(Work, no_op)
    zone = timezone(timedelta(hours=-6))
    at = datetime(2031, 1, 1, 12, 0, 0, 7, tzinfo=zone)
    task = await stored(queue, await queue.enqueue(Work(), run_at=at, expires_at=at))
    assert task.next_attempt_at == task.expires_at == datetime(2031, 1, 1, 18, 0, 0, 7, tzinfo=UTC)
    assert task.next_attempt_at.tzinfo is UTC


@pytest.mark.asyncio
async def test_tim_07_delays_below_a_millisecond(make_queue: MakeQueue) -> None:
    """S5.3: fifty retries with a back-off of 0.1 ms on the real clock are fifty-one starts, none early."""
    queue, due = make_queue(clock=SystemQueueClock()), []
    early: list[int] = []

    async def fail(task: Work, context: TaskContext) -> None:
        if due and datetime.now(UTC) < due[-1]:
            early.append(context.attempt)
        if context.attempt <= 50:
            raise OSError

    policy = RetryPolicy.fixed(max_attempts=60, delay=timedelta(microseconds=100))
    queue.register(Work, fail, retry_policy=policy)
    with queue.subscribe(TaskRetryScheduled) as retries:
        await queue.start()
        task_id = await queue.enqueue(Work())
        waiting = asyncio.create_task(queue.wait(task_id))
        while not waiting.done():
            taking = asyncio.ensure_future(anext(retries))
            await asyncio.wait({waiting, taking}, return_when=asyncio.FIRST_COMPLETED)
            if taking.done():
                due.append(taking.result().next_attempt_at)
            else:
                taking.cancel()
        task = await waiting
    assert (task.status, task.attempts, early) == (TaskStatus.COMPLETED, 51, [])


@pytest.mark.asyncio
async def test_tim_07_short_delays_are_never_early(make_queue: MakeQueue) -> None:
    """S3.1: 300 tasks with delays of 1 to 20 ms on the real clock start at their time or later."""
    queue, starts = make_queue(clock=SystemQueueClock(), max_concurrent_tasks=10), {}

    async def note(task: Work, context: TaskContext) -> None:
        starts[context.task_id] = datetime.now(UTC)

    queue.register(Work, note)
    await queue.start()
    ids = [await queue.enqueue(Work(n), delay=timedelta(milliseconds=1 + n % 20)) for n in range(300)]
    tasks = {task.id: task for task in await queue.get_tasks()}
    for task_id in ids:
        await queue.wait(task_id)
    first = {task_id: task.next_attempt_at for task_id, task in tasks.items() if task.next_attempt_at}
    assert all(starts[task_id] >= due for task_id, due in first.items())
    assert len(starts) == 300


@pytest.mark.asyncio
async def test_tim_07_an_idle_queue_with_a_task_due_later_asks_little(
    make_queue: MakeQueue, storage: QueueStorage
) -> None:
    """S3.4: one task due later, nothing else: a handful of calls to the storage and no processor time."""
    flaky = FlakyStorage(storage)
    queue = make_queue(storage=flaky, clock=SystemQueueClock())
    queue.register(Work, no_op)
    await queue.start()
    task_id = await queue.enqueue(Work(), delay=SECOND / 4)
    await run_until_idle(queue)
    calls, used = sum(flaky.calls.values()), time.process_time()
    await queue.wait(task_id)
    assert sum(flaky.calls.values()) - calls < 15
    assert time.process_time() - used < 0.1


@pytest.mark.asyncio
async def test_freezegun(make_queue: MakeQueue) -> None:
    """S12.2: under freezegun a task an hour away starts when the frozen time has moved on."""
    with freeze_time("2031-05-01", real_asyncio=True) as frozen:
        queue = make_queue(clock=SystemQueueClock(recheck=timedelta(milliseconds=5)))
        queue.register(Work, no_op)
        await queue.start()
        task_id = await queue.enqueue(Work(), delay=HOUR)
        await run_until_idle(queue)
        assert (await stored(queue, task_id)).status is TaskStatus.PENDING
        frozen.tick(HOUR)
        task = await queue.wait(task_id)
        assert task.updated_at == datetime(2031, 5, 1, 1, tzinfo=UTC)
        await queue.close()
