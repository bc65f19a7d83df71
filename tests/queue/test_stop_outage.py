"""Stop while the storage does not answer, or while a start or a claim is under way (S7.5, S10.3, S13.4)."""

from __future__ import annotations

import asyncio

import pytest

from durable_queue import (
    FakeQueueClock,
    QueueClosedError,
    QueueStateError,
    QueueStorage,
    QueueStorageFailure,
    RetryPolicy,
    RunState,
    StorageError,
    TaskCompleted,
    TaskContext,
    TaskStatus,
)
from durable_queue.testing import WRITES, FlakyStorage, collect_events
from tests.queue.conftest import MakeQueue
from tests.queue.handler_support import GRACE, NOW, SECOND, Handler, begin_stop, settle, started
from tests.support import Work


@pytest.fixture
def flaky(storage: QueueStorage) -> FlakyStorage:
    return FlakyStorage(storage)


@pytest.mark.asyncio
async def test_without_grace_stop_waits_out_an_outage(
    make_queue: MakeQueue, clock: FakeQueueClock, flaky: FlakyStorage
) -> None:
    """S13.4: the outcome is written once the storage works again, and only then stop returns."""
    queue, handler = make_queue(storage=flaky), Handler()
    task_id = await started(queue, handler)
    flaky.fail_until_cleared(WRITES)
    with queue.subscribe(QueueStorageFailure) as failures:
        stopping = await begin_stop(queue)
        handler.released.set()
        for _ in range(5):
            await anext(failures)
            clock.advance(SECOND)
        assert not stopping.done()
        await anext(failures)
        flaky.clear()
        clock.advance(SECOND)

        assert await stopping == []
    assert (await queue.get_task(task_id)).status is TaskStatus.COMPLETED
    assert handler.starts == 1


@pytest.mark.asyncio
async def test_with_grace_an_outage_cannot_hold_stop(
    make_queue: MakeQueue, clock: FakeQueueClock, flaky: FlakyStorage
) -> None:
    """S7.5: an outcome that could not be written is named, and its task recovered as interrupted at the next start."""
    queue, handler = make_queue(storage=flaky), Handler()
    task_id = await started(queue, handler, retry_policy=RetryPolicy.fixed(max_attempts=2, delay=NOW))
    flaky.fail_until_cleared(WRITES)
    with collect_events(queue) as events, queue.subscribe(QueueStorageFailure) as failures:
        handler.released.set()
        await anext(failures)
        stopping = await begin_stop(queue, GRACE)
        for _ in range(5):
            clock.advance(SECOND)
            await anext(failures)
        await settle()
        assert not stopping.done()
        clock.advance(SECOND)
        assert await stopping == [task_id]
        assert queue.run_state is RunState.IDLE
        assert not [event for event in events if isinstance(event, TaskCompleted)]

    flaky.clear()
    assert (await queue.get_task(task_id)).status is TaskStatus.RUNNING
    await queue.start()
    record = await queue.wait(task_id)
    assert (record.status, record.attempts, record.interruptions) == (TaskStatus.COMPLETED, 2, 1)


@pytest.mark.asyncio
@pytest.mark.parametrize("after_commit", [False, True])
async def test_with_grace_a_storage_that_hangs_cannot_hold_stop(
    make_queue: MakeQueue, clock: FakeQueueClock, flaky: FlakyStorage, after_commit: bool
) -> None:
    """S7.5: a write that never returns is given up after the last second; no event tells of it later."""
    queue, handler = make_queue(storage=flaky), Handler()
    task_id = await started(queue, handler)
    gate = flaky.gate({"apply", "update"}, after_commit=after_commit)
    handler.released.set()
    await gate.reached()
    with collect_events(queue) as events:
        stopping = await begin_stop(queue, NOW)
        await settle()
        clock.advance(SECOND)
        assert await stopping == [task_id]
        gate.release()
        await queue.counts()
        await queue.start(paused=True)
        assert not [event for event in events if isinstance(event, TaskCompleted)]


@pytest.mark.asyncio
async def test_calls_behind_a_write_that_is_given_up_are_answered(
    make_queue: MakeQueue, clock: FakeQueueClock, flaky: FlakyStorage
) -> None:
    """S7.5: a call that has waited behind the uncertain write does not wait for ever once stop has given that up."""
    queue, handler = make_queue(storage=flaky), Handler()
    await started(queue, handler)
    gate = flaky.gate({"apply", "update"})
    handler.released.set()
    await gate.reached()
    enqueuing = asyncio.create_task(queue.enqueue(Work(2)))
    pausing = asyncio.create_task(queue.pause())
    listing = asyncio.create_task(queue.get_tasks())
    await asyncio.sleep(0)
    stopping = await begin_stop(queue, NOW)
    await settle()
    clock.advance(SECOND)
    await stopping

    task_id = await enqueuing
    await pausing
    assert len(await listing) == 1
    assert (await queue.get_task(task_id)).status is TaskStatus.PENDING


@pytest.mark.asyncio
async def test_a_claim_that_is_given_up_is_named(
    make_queue: MakeQueue, clock: FakeQueueClock, flaky: FlakyStorage
) -> None:
    """S13.4: a claim whose write did not come through leaves its task perhaps running: the answer names it."""
    queue, handler = make_queue(storage=flaky), Handler()
    queue.register(Work, handler)
    task_id = await queue.enqueue(Work())
    gate = flaky.gate("apply", after_commit=True)
    await queue.start()
    await gate.reached()
    stopping = await begin_stop(queue, NOW)
    await settle()
    clock.advance(SECOND)

    assert await stopping == [task_id]
    assert handler.starts == 0
    await queue.start()
    record = await queue.wait(task_id)
    assert (record.status, record.last_failure.error_type) == (TaskStatus.FAILED, "TaskInterruptedError")


@pytest.mark.asyncio
@pytest.mark.parametrize("plain", [False, True])
async def test_a_claim_that_comes_through_in_the_last_second_is_put_back(
    make_queue: MakeQueue, clock: FakeQueueClock, flaky: FlakyStorage, plain: bool
) -> None:
    """S13.4: its handler is not called any more."""
    queue, calls = make_queue(storage=flaky), []

    async def work(task: Work, context: TaskContext) -> None:
        calls.append(task)

    queue.register(Work, (lambda task, context: calls.append(task)) if plain else work)
    task_id = await queue.enqueue(Work())
    gate = flaky.gate({"apply", "update"})
    await queue.start()
    await gate.reached()
    stopping = await begin_stop(queue, NOW)
    await settle()
    gate.release()

    assert await stopping == [task_id]
    record = await queue.get_task(task_id)
    assert (record.status, record.attempts) == (TaskStatus.PENDING, 0)
    assert calls == []


@pytest.mark.asyncio
async def test_stop_while_start_recovers_lets_it_finish_and_then_stops(
    make_queue: MakeQueue, flaky: FlakyStorage
) -> None:
    """S7.5: stop is fine in every state, that of a start which is still recovering included."""
    queue, handler = make_queue(storage=flaky), Handler()
    handler.released.set()
    queue.register(Work, handler)
    task_id = await queue.enqueue(Work())
    gate = flaky.gate("get_by_status")
    starting = asyncio.create_task(queue.start())
    await gate.reached()
    stopping = asyncio.create_task(queue.stop())
    with pytest.raises(QueueStateError, match="started already"):
        await queue.start()
    gate.release()

    await starting
    assert await stopping == []
    assert queue.run_state is RunState.IDLE
    assert (await queue.get_task(task_id)).status in (TaskStatus.PENDING, TaskStatus.COMPLETED)
    await queue.start()


@pytest.mark.asyncio
async def test_stop_while_a_start_fails_leaves_the_queue_idle(
    make_queue: MakeQueue, flaky: FlakyStorage
) -> None:
    """S7.3: the error of a failing recovery goes to the caller of start, stop has nothing to do."""
    queue = make_queue(storage=flaky)
    gate = flaky.gate("get_by_status")
    flaky.fail("get_by_status")
    starting = asyncio.create_task(queue.start())
    await gate.reached()
    stopping = asyncio.create_task(queue.stop())
    await asyncio.sleep(0)
    gate.release()

    with pytest.raises(StorageError):
        await starting
    assert await stopping == []
    await queue.start()


@pytest.mark.asyncio
async def test_shu_01_close_while_start_recovers(make_queue: MakeQueue, flaky: FlakyStorage) -> None:
    """S7.6: close during start ends in a closed, idle queue that holds no claim."""
    queue, other = make_queue(storage=flaky), make_queue(storage=flaky)
    gate = flaky.gate("get_by_status")
    starting = asyncio.create_task(queue.start())
    await gate.reached()
    closing = asyncio.create_task(queue.close())
    await asyncio.sleep(0)
    gate.release()
    await starting
    await closing

    assert (queue.is_closed, queue.run_state) == (True, RunState.IDLE)
    with pytest.raises(QueueClosedError):
        await queue.start()
    await other.start()


@pytest.mark.asyncio
async def test_a_cancelled_start_gives_the_claim_back(make_queue: MakeQueue, flaky: FlakyStorage) -> None:
    """S7.3: a start that its caller gives up leaves the queue idle, and another one can start."""
    queue, other = make_queue(storage=flaky), make_queue(storage=flaky)
    for operation in ("acquire_consumer", "get_by_status"):
        gate = flaky.gate(operation)
        starting = asyncio.create_task(queue.start())
        await gate.reached()
        starting.cancel()
        await asyncio.sleep(0)
        gate.release()
        with pytest.raises(asyncio.CancelledError):
            await starting

        assert queue.run_state is RunState.IDLE
        await other.start()
        await other.stop()
    await queue.start()
