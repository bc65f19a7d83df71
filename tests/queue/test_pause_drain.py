"""Pause, resume and drain (S7.4, S7.8, S13.4, S13.16)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from durable_queue import (
    DurableQueue,
    FakeQueueClock,
    QueueStateError,
    QueueStorage,
    RetryPolicy,
    RunState,
    TaskContext,
    TaskStarted,
    TaskStatus,
)
from durable_queue.testing import FlakyStorage, collect_events
from tests.queue.conftest import MakeQueue
from tests.queue.handler_support import SECOND, Handler, after_the_storage, settle, started, succeed
from tests.support import Work

DAY = timedelta(days=1)


@pytest.mark.asyncio
async def test_shu_07_pause_lets_run_and_starts_nothing(make_queue: MakeQueue) -> None:
    """S7.4: the running handler ends, what is enqueued meanwhile starts after resume."""
    queue, handler = make_queue(), Handler()
    long = await started(queue, handler)
    await queue.pause()
    later = await queue.enqueue(Work(2))
    handler.released.set()
    assert (await queue.wait(long)).status is TaskStatus.COMPLETED
    await settle()
    assert queue.run_state is RunState.PAUSED
    assert (await queue.get_task(later)).status is TaskStatus.PENDING
    await queue.resume()

    assert (await queue.wait(later)).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
async def test_no_claim_follows_once_pause_has_returned(make_queue: MakeQueue, storage: QueueStorage) -> None:
    """S13.4: a claim that is under way when pause is called comes before its return, and none after."""
    flaky = FlakyStorage(storage)
    queue, handler = make_queue(storage=flaky, max_concurrent_tasks=2), Handler()
    queue.register(Work, handler)
    await queue.enqueue_all([Work(n) for n in range(5)])
    with collect_events(queue, TaskStarted) as events:
        claim = flaky.gate("apply")
        await queue.start()
        await claim.reached()
        pausing = asyncio.create_task(queue.pause())
        await settle()
        assert not pausing.done()
        claim.release()
        await pausing
        count = len(events)
        assert count in (1, 2)
        handler.released.set()
        await queue.enqueue(Work(9))
        await after_the_storage(queue)
        assert len(events) == count
    await queue.resume()
    assert (await queue.drain()).scheduled == 0


@pytest.mark.asyncio
async def test_shu_07_the_last_of_pause_and_resume_wins(make_queue: MakeQueue) -> None:
    """S7.4: pause, resume, pause in one turn of the loop is paused; the other way round it runs."""
    queue = make_queue()
    queue.register(Work, succeed)
    await queue.start()
    await asyncio.gather(queue.pause(), queue.resume(), queue.pause())
    assert queue.run_state is RunState.PAUSED
    task_id = await queue.enqueue(Work())
    await settle()
    assert (await queue.get_task(task_id)).status is TaskStatus.PENDING
    await asyncio.gather(queue.resume(), queue.pause(), queue.resume())

    assert queue.run_state is RunState.RUNNING
    assert (await queue.wait(task_id)).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
async def test_pause_and_resume_twice_are_no_error(make_queue: MakeQueue) -> None:
    """S7.4: pausing a paused queue and resuming a running one change nothing; an idle queue refuses both."""
    queue = make_queue()
    for verb in (queue.pause, queue.resume):
        with pytest.raises(QueueStateError, match="idle"):
            await verb()
    await queue.start()
    await queue.resume()
    await queue.pause()
    await queue.pause()
    assert queue.run_state is RunState.PAUSED
    with pytest.raises(QueueStateError, match="paused"):
        await queue.start()


@pytest.mark.asyncio
async def test_shu_07_start_paused_waits_and_a_pause_is_not_remembered(
    make_queue: MakeQueue, storage: QueueStorage
) -> None:
    """S7.4: nothing starts before resume; a queue that was paused when it was stopped starts running."""
    queue = make_queue()
    queue.register(Work, succeed)
    task_id = await queue.enqueue(Work())
    await queue.start(paused=True)
    await settle()
    assert queue.run_state is RunState.PAUSED
    assert (await queue.get_task(task_id)).status is TaskStatus.PENDING
    await queue.close()

    reopened = make_queue(storage=storage)
    reopened.register(Work, succeed)
    await reopened.start()
    assert reopened.run_state is RunState.RUNNING
    assert (await reopened.wait(task_id)).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
async def test_what_became_due_during_a_pause_starts_after_it(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S7.4: a time that passes while paused is not missed by resume."""
    queue = make_queue()
    queue.register(Work, succeed)
    await queue.start()
    task_id = await queue.enqueue(Work(), delay=SECOND)
    await queue.pause()
    clock.advance(DAY)
    await settle()
    assert (await queue.get_task(task_id)).status is TaskStatus.PENDING
    await queue.resume()

    assert (await queue.wait(task_id)).status is TaskStatus.COMPLETED


async def shu_05(queue: DurableQueue) -> dict[str, str]:
    """Enqueue what drain has to wait for, and what it has not; return the ids by letter."""
    ids: dict[str, str] = {}

    async def work(task: Work, context: TaskContext) -> None:
        if task.n == ord("a"):
            ids["b"] = await queue.enqueue(Work(ord("b")))
        if task.n == ord("r") and context.attempt == 1:
            raise OSError
        if task.n == ord("h"):
            context.hand_off("outside")

    queue.register(Work, work)
    ids["a"] = await queue.enqueue(Work(ord("a")))
    policy = RetryPolicy.fixed(max_attempts=2, delay=timedelta(seconds=0.3))
    ids["r"] = await queue.enqueue(Work(ord("r")), retry_policy=policy)
    ids["f"] = await queue.enqueue(Work(ord("f")), delay=DAY)
    ids["h"] = await queue.enqueue(Work(ord("h")))
    ids["p"] = await queue.enqueue(Work(ord("p")), depends_on=[ids["h"]])
    await queue.start()
    return ids


@pytest.mark.asyncio
async def test_shu_05_drain_waits_for_what_becomes_ready_within_its_time(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S7.8: the child of the last handler and a near retry are waited for, later and outside work is counted."""
    queue = make_queue()
    ids = await shu_05(queue)
    draining = asyncio.create_task(queue.drain(within=timedelta(seconds=5), timeout=timedelta(seconds=5)))
    with queue.subscribe() as events:
        async for event in events:
            if type(event).__name__ == "TaskRetryScheduled":
                break
    for _ in range(5):
        await after_the_storage(queue)
    assert not draining.done()
    clock.advance(timedelta(seconds=0.3))
    result = await draining

    assert (result.scheduled, result.waiting, result.handed_off, result.held) == (1, 1, 1, 0)
    records = {letter: await queue.get_task(task_id) for letter, task_id in ids.items()}
    assert {letter: (record.status, record.attempts) for letter, record in records.items()} == {
        "a": (TaskStatus.COMPLETED, 1),
        "b": (TaskStatus.COMPLETED, 1),
        "r": (TaskStatus.COMPLETED, 2),
        "f": (TaskStatus.PENDING, 0),
        "h": (TaskStatus.RUNNING, 1),
        "p": (TaskStatus.WAITING, 0),
    }


@pytest.mark.asyncio
async def test_drain_without_a_time_leaves_the_retry(make_queue: MakeQueue) -> None:
    """S7.8: without `within` only what is ready now is waited for; a retry that is due later is scheduled."""
    queue = make_queue()
    await shu_05(queue)
    result = await queue.drain()

    assert (result.scheduled, result.waiting, result.handed_off) == (2, 1, 1)


@pytest.mark.asyncio
async def test_drain_of_an_empty_queue_returns(make_queue: MakeQueue) -> None:
    """S7.8: nothing to wait for, nothing left."""
    queue = make_queue()
    await queue.start()
    result = await queue.drain(within=timedelta(days=300))

    assert (result.scheduled, result.waiting, result.handed_off, result.held) == (0, 0, 0, 0)


@pytest.mark.asyncio
async def test_the_time_of_drain_counts_from_its_call(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S7.8: a task that repeats itself within the time, for ever, cannot hold drain for ever."""
    queue = make_queue()

    async def again(task: Work, context: TaskContext) -> None:
        await queue.enqueue(Work(task.n + 1), delay=4 * SECOND)

    queue.register(Work, again)
    await queue.enqueue(Work(0))
    await queue.start()
    draining = asyncio.create_task(queue.drain(within=10 * SECOND))
    starts = 0
    with queue.subscribe(TaskStarted) as events:
        for _ in range(2):
            await queue.drain()
            clock.advance(4 * SECOND)
            await anext(events)
            starts += 1

        assert (await draining).scheduled == 1
    assert starts == 2


@pytest.mark.asyncio
async def test_drain_gives_up_at_its_timeout(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S13.16: a running handler holds drain until the timeout, which raises TimeoutError and stops nothing."""
    queue, handler = make_queue(), Handler()
    task_id = await started(queue, handler)
    draining = asyncio.create_task(queue.drain(timeout=SECOND))
    await settle()
    clock.advance(SECOND)
    with pytest.raises(TimeoutError, match="0:00:01"):
        await draining
    handler.released.set()

    assert (await queue.wait(task_id)).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
@pytest.mark.parametrize("end", ["pause", "stop"])
async def test_drain_needs_a_running_queue(make_queue: MakeQueue, end: str) -> None:
    """S13.16: an idle or paused queue refuses; pause and stop end a drain with QueueStateError."""
    queue, handler = make_queue(), Handler()
    with pytest.raises(QueueStateError, match="idle"):
        await queue.drain()
    await started(queue, handler)
    draining = asyncio.create_task(queue.drain())
    await settle()
    ending = asyncio.create_task(queue.pause() if end == "pause" else queue.stop())
    with pytest.raises(QueueStateError):
        await draining
    handler.released.set()
    await ending

    with pytest.raises(QueueStateError, match="paused" if end == "pause" else "idle"):
        await queue.drain()


@pytest.mark.asyncio
async def test_drain_checks_its_arguments(make_queue: MakeQueue) -> None:
    """S7.8: the times are durations, not negative."""
    queue = make_queue()
    await queue.start()
    for options in ({"within": 5}, {"timeout": 5}, {"within": None}):
        with pytest.raises(TypeError):
            await queue.drain(**options)
    for options in ({"within": -SECOND}, {"timeout": -SECOND}):
        with pytest.raises(ValueError, match=r"within|timeout"):
            await queue.drain(**options)
