"""Faults of the storage: nothing acknowledged is lost, nothing runs twice, the queue goes on (S10)."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest

from durable_queue import (
    EventsMissed,
    FakeQueueClock,
    QueueStorage,
    QueueStorageFailure,
    RunState,
    StorageError,
    TaskCompleted,
    TaskGraph,
    TaskStatus,
)
from durable_queue.testing import OPERATIONS, WRITES, FlakyStorage, collect_events, run_until_idle
from tests.queue.conftest import MakeQueue
from tests.queue.fault_support import SECOND, Counting, status_of, time_goes_on
from tests.queue.handler_support import Handler, settle
from tests.support import Work

HOUR = timedelta(hours=1)
in_process = pytest.mark.parametrize("storage", ["memory", "thirteen"], indirect=True)
"""Where a test has many variants, the storages that take no time."""


@pytest.mark.asyncio
async def test_calls_wait_behind_a_write_that_hangs(make_queue: MakeQueue, storage: QueueStorage) -> None:
    """S10.3: nothing overtakes an uncertain write of the worker; what queued up behind it then succeeds in order."""
    flaky = FlakyStorage(storage)
    queue, handler = make_queue(storage=flaky), Handler()
    queue.register(Work, handler)
    first = await queue.enqueue(Work(1))
    other = await queue.enqueue(Work(2), delay=HOUR)
    await queue.start()
    await handler.began.wait()
    gate = flaky.gate("apply")
    with collect_events(queue) as events:
        handler.released.set()
        await gate.reached()
        calls = [
            asyncio.create_task(queue.cancel(other)),
            asyncio.create_task(queue.enqueue(Work(3), delay=HOUR)),
            asyncio.create_task(queue.enqueue(Work(4), depends_on=[first], delay=HOUR)),
            asyncio.create_task(queue.get_tasks()),
        ]
        await settle()
        assert events == []
        assert not any(call.done() for call in calls)
        gate.release()
        _, third, fourth, listed = await asyncio.gather(*calls)
        assert [type(event).__name__ for event in events][:4] == [
            "TaskCompleted",
            "TaskCancelled",
            "TaskEnqueued",
            "TaskEnqueued",
        ]
    assert {task.id for task in listed} >= {first, other}
    assert await status_of(queue, other) is TaskStatus.CANCELLED
    assert await status_of(queue, third) is TaskStatus.PENDING
    assert await status_of(queue, fourth) is TaskStatus.PENDING


@pytest.mark.asyncio
async def test_the_outcome_is_kept_and_the_handler_not_run_again(
    make_queue: MakeQueue, storage: QueueStorage, clock: FakeQueueClock
) -> None:
    """S10.1: the write is tried again once per delay on the injected clock, not earlier, and attempts do not move."""
    flaky = FlakyStorage(storage)
    queue, handler = make_queue(storage=flaky, storage_retry_delay=5 * SECOND), Handler()
    queue.register(Work, handler)
    task_id = await queue.enqueue(Work(1))
    await queue.start()
    await handler.began.wait()
    flaky.fail("apply", times=2)
    calls = flaky.calls["apply"]
    with queue.subscribe(QueueStorageFailure, TaskCompleted) as events:
        handler.released.set()
        await anext(events)
        clock.advance(5 * SECOND - timedelta(microseconds=1))
        await settle()
        assert flaky.calls["apply"] == calls + 1
        clock.advance(timedelta(microseconds=1))
        await anext(events)
        assert flaky.calls["apply"] == calls + 2
        clock.advance(5 * SECOND)
        assert isinstance(await anext(events), TaskCompleted)
    task = await queue.get_task(task_id)
    assert task is not None
    assert (task.status, task.attempts, task.result, handler.starts) == (TaskStatus.COMPLETED, 1, "done", 1)


@pytest.mark.asyncio
async def test_each_failure_is_reported_as_a_value(
    make_queue: MakeQueue, storage: QueueStorage, clock: FakeQueueClock
) -> None:
    """S10.2: a failure says what was done, what was raised, where, when, and how many in a row it is."""
    flaky = FlakyStorage(storage)
    queue = make_queue(storage=flaky)
    queue.register(Work, Counting())
    await queue.start()
    error = OSError("disk")
    flaky.fail("apply", nth=2, times=3, error=error)
    with queue.subscribe(QueueStorageFailure) as events:
        task_id = await queue.enqueue(Work(1))
        for count in (1, 2, 3):
            failure = await anext(events)
            assert isinstance(failure, QueueStorageFailure)
            assert (failure.operation, failure.error, failure.at) == ("apply", error, clock.now())
            assert failure.consecutive == count
            assert "OSError: disk" in failure.traceback
            assert "_flaky_storage.py" in failure.traceback
            assert failure.error.__traceback__ is None
            clock.advance(SECOND)
        await queue.wait(task_id)
        flaky.fail("get_ready")
        await queue.enqueue(Work(2))
        again = await anext(events)
        assert isinstance(again, QueueStorageFailure)
        assert (again.operation, again.consecutive) == ("get_ready", 1)


@pytest.mark.asyncio
@pytest.mark.parametrize("operations", [WRITES, OPERATIONS - {"close", "release_consumer"}])
async def test_sto_02_an_outage_of_ten_seconds(
    make_queue: MakeQueue,
    storage: QueueStorage,
    clock: FakeQueueClock,
    caplog: pytest.LogCaptureFixture,
    operations: frozenset[str],
) -> None:
    """S10.2: 20 tasks pending and 2 running: few log lines, each call told, and 22 completed with one start each."""
    caplog.set_level(logging.DEBUG, "durable_queue")
    flaky = FlakyStorage(storage)
    queue, handler = make_queue(storage=flaky, max_concurrent_tasks=2), Handler()
    queue.register(Work, handler)
    ids = await queue.enqueue_all([Work(n) for n in range(22)])
    with queue.subscribe(QueueStorageFailure, buffer=1000) as failures:
        await queue.start()
        await handler.began.wait()
        await queue.get_tasks()
        assert handler.starts == 2
        flaky.fail_until_cleared(operations)
        handler.released.set()
        await anext(failures)
        calls = [asyncio.create_task(queue.enqueue(Work(100 + n))) for n in range(5)]
        for _ in range(10):
            clock.advance(SECOND)
            await anext(failures)
            await settle()
        assert len(caplog.records) < 20
        assert sum(flaky.calls.values()) < 200
        flaky.clear()
        async with time_goes_on(queue, clock):
            clock.advance(SECOND)
            for task_id in ids:
                assert (await queue.wait(task_id)).status is TaskStatus.COMPLETED
            answers = await asyncio.gather(*calls, return_exceptions=True)
            await run_until_idle(queue)
    stored = [task for task in await queue.get_tasks() if task.id not in ids]
    # Each of the five has raised and left no row, or has succeeded after the outage.
    accepted = {answer for answer in answers if isinstance(answer, str)}
    assert {task.id for task in stored} == accepted
    assert all(isinstance(answer, (str, StorageError)) for answer in answers)
    assert handler.starts == 22 + len(accepted)
    assert queue.run_state is RunState.RUNNING


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "verb", ["enqueue", "enqueue_all", "enqueue_graph", "cancel", "retry", "delete", "purge"]
)
async def test_a_public_call_that_reaches_the_failing_storage_raises(
    make_queue: MakeQueue, storage: QueueStorage, verb: str
) -> None:
    """S10.3: the error of the storage goes to the caller, nothing has changed, and no event tells of it."""
    flaky = FlakyStorage(storage)
    queue = make_queue(storage=flaky)
    queue.register(Work, Counting({1: 1}))
    await queue.start()
    failed = await queue.enqueue(Work(1))
    await queue.wait(failed)
    await run_until_idle(queue)
    waiting = await queue.enqueue(Work(2), delay=HOUR)
    await run_until_idle(queue)
    graph = TaskGraph()
    graph.add(Work(4), depends_on=[graph.add(Work(3), delay=HOUR)])
    verbs = {
        "enqueue": lambda: queue.enqueue(Work(5)),
        "enqueue_all": lambda: queue.enqueue_all([Work(5), Work(6)]),
        "enqueue_graph": lambda: queue.enqueue_graph(graph),
        "cancel": lambda: queue.cancel(waiting),
        "retry": lambda: queue.retry(failed),
        "delete": lambda: queue.delete(failed),
        "purge": lambda: queue.purge(statuses={TaskStatus.FAILED}),
    }
    before = await queue.get_tasks()
    flaky.fail("apply")
    with collect_events(queue) as events:
        with pytest.raises(StorageError, match="told to fail"):
            await verbs[verb]()
        await run_until_idle(queue)
        assert events == []
    assert await queue.get_tasks() == before
    await verbs[verb]()
    assert await queue.get_tasks() != before


@pytest.mark.asyncio
@pytest.mark.parametrize("verb", ["enqueue", "cancel", "cancel_running"])
async def test_a_call_whose_answer_was_lost_is_told_the_error_and_has_its_effect(
    make_queue: MakeQueue, storage: QueueStorage, verb: str
) -> None:
    """S10.4: a write that was carried out although the storage raised is announced, observed and acted upon."""
    flaky = FlakyStorage(storage)
    queue, handler = make_queue(storage=flaky), Handler()
    queue.register(Work, handler)
    await queue.start()
    running = await queue.enqueue(Work(1))
    await handler.began.wait()
    later = await queue.enqueue(Work(2), delay=HOUR)
    waiting = asyncio.create_task(queue.wait(later))
    await queue.get_tasks()
    flaky.fail("apply", after_commit=True)
    verbs = {
        "enqueue": lambda: queue.enqueue(Work(3)),
        "cancel": lambda: queue.cancel(later),
        "cancel_running": lambda: queue.cancel(running),
    }
    with collect_events(queue) as events, pytest.raises(StorageError):
        await verbs[verb]()
    await settle()
    await queue.get_tasks()
    if verb == "cancel":
        assert (await waiting).status is TaskStatus.CANCELLED
        assert [type(event).__name__ for event in events] == ["TaskCancelled"]
    elif verb == "cancel_running":
        assert handler.contexts[0].cancellation_requested
    else:
        assert [type(event).__name__ for event in events] == ["TaskEnqueued"]
        handler.released.set()
        await run_until_idle(queue)
        assert handler.starts == 2
    waiting.cancel()
    handler.released.set()
    await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.asyncio
@pytest.mark.parametrize("operation", ["acquire_consumer", "release_consumer"])
async def test_an_idle_queue_survives_a_failing_claim_of_the_storage(
    make_queue: MakeQueue, storage: QueueStorage, operation: str
) -> None:
    """S10.3: an error around the consumer claim goes to one caller at most, and later calls are answered."""
    flaky = FlakyStorage(storage)
    queue = make_queue(storage=flaky)
    queue.register(Work, Counting())
    task_id = await queue.enqueue(Work(1))
    flaky.fail(operation, after_commit=operation == "release_consumer")
    if operation == "acquire_consumer":
        with pytest.raises(StorageError):
            await queue.cancel(task_id)
    answers = await asyncio.gather(queue.cancel(task_id), queue.enqueue(Work(2)))
    assert await status_of(queue, task_id) is TaskStatus.CANCELLED
    await queue.start()
    assert (await queue.wait(answers[1])).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
async def test_a_failing_recovery_leaves_the_queue_idle_and_startable(
    make_queue: MakeQueue, storage: QueueStorage
) -> None:
    """S10.3, S7.3: recovery tells the caller of start, who can try again."""
    flaky = FlakyStorage(storage)
    queue = make_queue(storage=flaky)
    queue.register(Work, Counting())
    task_id = await queue.enqueue(Work(1))
    for operation in ("get_by_status", "acquire_consumer"):
        flaky.fail(operation)
        with pytest.raises(StorageError):
            await queue.start()
        assert queue.run_state is RunState.IDLE
    await queue.start()
    assert (await queue.wait(task_id)).status is TaskStatus.COMPLETED


@in_process
@pytest.mark.asyncio
async def test_an_outage_of_an_hour_neither_floods_the_log_nor_the_storage(
    make_queue: MakeQueue, storage: QueueStorage, clock: FakeQueueClock, caplog: pytest.LogCaptureFixture
) -> None:
    """S10.2: thousands of failures in a row leave a dozen lines, and about one attempt a second."""
    caplog.set_level(logging.DEBUG, "durable_queue")
    flaky = FlakyStorage(storage)
    queue, handler = make_queue(storage=flaky, max_concurrent_tasks=4), Handler()
    queue.register(Work, handler)
    ids = await queue.enqueue_all([Work(n) for n in range(8)])
    await queue.start()
    await handler.began.wait()
    await queue.get_tasks()
    flaky.fail_until_cleared(WRITES)
    calls = sum(flaky.calls.values())
    with queue.subscribe(QueueStorageFailure, EventsMissed, buffer=10_000) as failures:
        handler.released.set()
        for _ in range(3600):
            await anext(failures)
            clock.advance(SECOND)
    assert len(caplog.records) < 20
    assert sum(flaky.calls.values()) - calls < 12 * 3600
    flaky.clear()
    async with time_goes_on(queue, clock):
        clock.advance(SECOND)
        for task_id in ids:
            assert (await queue.wait(task_id)).status is TaskStatus.COMPLETED
    assert handler.starts == 8
