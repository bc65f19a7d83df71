"""Start and what it does with tasks whose process has ended (S7.1, S7.2, S7.3, S13.1, S13.12)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import attrs
import pytest

from durable_queue import (
    DependencyFailurePolicy,
    DurableQueue,
    FakeQueueClock,
    QueueInUseError,
    QueueStateError,
    QueueStorage,
    RetryPolicy,
    RunState,
    StorageError,
    StoredTask,
    TaskCancelled,
    TaskContext,
    TaskFailed,
    TaskRetryScheduled,
    TaskStarted,
    TaskStatus,
)
from durable_queue.testing import WRITES, FlakyStorage, collect_events
from tests.queue.conftest import MakeQueue
from tests.queue.handler_support import NOW, SECOND, Handler, settle, succeed
from tests.support import Other, ThirteenMethodStorage, Work

TWICE = RetryPolicy.fixed(max_attempts=2, delay=SECOND)
OFTEN = RetryPolicy.fixed(max_attempts=99, delay=NOW)


async def interrupted(
    queue: DurableQueue, storage: QueueStorage, task: object | None = None, **options: Any
) -> str:
    """Leave a task as a process that ends during its first attempt does; return its id."""
    fields = {name: options.pop(name) for name in ("interruptions", "cancel_requested") if name in options}
    task_id = await queue.enqueue(task or Work(), **options)
    record = await storage.get(task_id)
    await storage.update(attrs.evolve(record, status=TaskStatus.RUNNING, attempts=1, **fields))
    return task_id


def registered(queue: DurableQueue, **options: Any) -> DurableQueue:
    """Register both types with handlers that succeed."""
    queue.register(Work, succeed, **options)
    queue.register(Other, succeed)
    return queue


@pytest.mark.asyncio
async def test_rec_01_an_interrupted_task_is_retried_by_its_policy(
    make_queue: MakeQueue, storage: QueueStorage, clock: FakeQueueClock
) -> None:
    """S7.2: it counts as a failed attempt; the next one comes after the policy's delay."""
    queue = registered(make_queue())
    task_id = await interrupted(queue, storage, retry_policy=TWICE)
    with collect_events(queue) as events:
        await queue.start()
        record = await queue.get_task(task_id)
        assert (record.status, record.attempts, record.interruptions) == (TaskStatus.RETRY_SCHEDULED, 1, 1)
        assert record.next_attempt_at == clock.now() + SECOND
        assert record.last_failure.error_type == "TaskInterruptedError"
        assert "interrupted" in record.last_failure.error
        assert [(type(event), event.task_id, event.attempt) for event in events] == [
            (TaskRetryScheduled, task_id, 1)
        ]
    clock.advance(SECOND)

    record = await queue.wait(task_id)
    assert (record.status, record.attempts) == (TaskStatus.COMPLETED, 2)


@pytest.mark.asyncio
async def test_rec_01_an_interrupted_task_fails_when_its_attempts_are_spent(
    make_queue: MakeQueue, storage: QueueStorage, clock: FakeQueueClock
) -> None:
    """S7.2: failed with an error that says so, when start returns; dependents settle by their policy."""
    queue = registered(make_queue())
    clock.advance(SECOND)
    task_id = await interrupted(queue, storage)
    cancelled = await queue.enqueue(Work(), depends_on=[task_id])
    failed = await queue.enqueue(
        Work(), depends_on=[cancelled], on_dependency_failure=DependencyFailurePolicy.FAIL
    )
    runs = await queue.enqueue(
        Work(), depends_on=[task_id], on_dependency_failure=DependencyFailurePolicy.RUN
    )
    clock.advance(SECOND)
    with collect_events(queue, TaskFailed, TaskCancelled) as events:
        await queue.start(paused=True)
    records = [await queue.get_task(i) for i in (task_id, cancelled, failed, runs)]

    assert [record.status for record in records] == [
        TaskStatus.FAILED,
        TaskStatus.CANCELLED,
        TaskStatus.FAILED,
        TaskStatus.PENDING,
    ]
    assert records[0].last_failure.error_type == "TaskInterruptedError"
    assert records[0].updated_at == clock.now()
    assert records[2].last_failure.cause_task_id == task_id
    assert [event.task_id for event in events] == [task_id, cancelled, failed]


@pytest.mark.asyncio
async def test_retry_if_is_not_asked_about_an_interruption(
    make_queue: MakeQueue, storage: QueueStorage
) -> None:
    """S7.2: neither retry_if nor retry_delay sees it, because no error of the handler is known."""
    queue, asked = make_queue(), []
    registered(queue, retry_if=asked.append, retry_delay=asked.append)
    task_id = await interrupted(queue, storage, retry_policy=TWICE)
    await queue.start(paused=True)

    assert (await queue.get_task(task_id)).status is TaskStatus.RETRY_SCHEDULED
    assert asked == []


@pytest.mark.asyncio
async def test_a_requested_cancellation_survives_the_crash(
    make_queue: MakeQueue, storage: QueueStorage
) -> None:
    """S7.2: a task whose cancellation was requested is cancelled at recovery, its dependents with it."""
    queue = registered(make_queue())
    task_id = await interrupted(queue, storage, cancel_requested=True, retry_policy=OFTEN)
    child = await queue.enqueue(Work(), depends_on=[task_id])
    await queue.start(paused=True)

    assert (await queue.get_task(task_id)).status is TaskStatus.CANCELLED
    assert (await queue.get_task(child)).status is TaskStatus.CANCELLED


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("most", "before", "status"),
    [
        (3, 2, TaskStatus.RETRY_SCHEDULED),
        (3, 3, TaskStatus.FAILED),
        (0, 0, TaskStatus.FAILED),
        (None, 1000, TaskStatus.RETRY_SCHEDULED),
    ],
)
async def test_interruptions_are_bounded(
    make_queue: MakeQueue, storage: QueueStorage, most: int | None, before: int, status: TaskStatus
) -> None:
    """S7.2: above max_interruptions, by default 3, a task fails however many attempts its policy has left."""
    queue = registered(make_queue(**({} if most == 3 else {"max_interruptions": most})))
    task_id = await interrupted(queue, storage, interruptions=before, retry_policy=OFTEN)
    await queue.start(paused=True)
    record = await queue.get_task(task_id)

    assert (record.status, record.interruptions) == (status, before + 1)


@pytest.mark.asyncio
@pytest.mark.parametrize(("before", "status"), [(2, TaskStatus.COMPLETED), (3, TaskStatus.FAILED)])
async def test_rerun_interrupted_uses_up_no_attempt(
    make_queue: MakeQueue, storage: QueueStorage, before: int, status: TaskStatus
) -> None:
    """S13.1: with rerun_interrupted only max_interruptions bounds it; the attempt is given back."""
    queue = registered(make_queue(), rerun_interrupted=True)
    task_id = await interrupted(queue, storage, interruptions=before, expires_in=timedelta(hours=1))
    await queue.start()
    record = await queue.wait(task_id)

    assert (record.status, record.attempts, record.interruptions) == (status, 1, before + 1)
    assert record.last_failure.error_type == "TaskInterruptedError"


@pytest.mark.asyncio
async def test_recovery_goes_in_batches_of_a_hundred_by_key(
    make_queue: MakeQueue, storage: QueueStorage
) -> None:
    """S7.1: each batch has left running before the next is read, which begins behind it; hand-offs stay."""
    flaky = RecordingStorage(storage)
    queue = registered(make_queue(storage=flaky, max_concurrent_tasks=8))
    ids = await queue.enqueue_all([Work(n) for n in range(250)], retry_policy=OFTEN)
    for number, task_id in enumerate(ids):
        record = await storage.get(task_id)
        reference = f"r{number}" if number % 5 == 0 else None
        await storage.update(
            attrs.evolve(record, status=TaskStatus.RUNNING, attempts=1, hand_off_reference=reference)
        )
    await queue.start(paused=True)

    pages = [page for page in flaky.pages if page[0] is TaskStatus.RUNNING]
    assert [limit for _, limit, _, _ in pages] == [100] * len(pages)
    assert [count for _, _, _, count in pages] == [100, 100, 50, 0]
    assert flaky.running_before == [0, 20, 40, 50]
    assert len(await queue.hand_offs()) == 50
    counts = await queue.counts()
    assert (counts[TaskStatus.RUNNING], counts[TaskStatus.RETRY_SCHEDULED]) == (50, 200)


class RecordingStorage(ThirteenMethodStorage):
    """Notes which pages of running tasks are read, and how many before each are still running."""

    def __init__(self, inner: QueueStorage) -> None:
        super().__init__()
        self.inner = inner  # type: ignore[assignment]  # any storage does
        self.pages: list[tuple[TaskStatus, int | None, str | None, int]] = []
        self.running_before: list[int] = []

    async def get_by_status(
        self, status: TaskStatus, *, limit: int | None = None, after: StoredTask | None = None
    ) -> list[StoredTask]:
        page = await self.inner.get_by_status(status, limit=limit, after=after)
        if limit is not None and status is TaskStatus.RUNNING and len(self.pages) < 4:
            running = await self.inner.get_by_status(status)
            before = [task for task in running if after is not None and task.sequence <= after.sequence]
            self.running_before.append(len(before))
            self.pages.append((status, limit, None if after is None else after.id, len(page)))
        return page


@pytest.mark.asyncio
async def test_nothing_is_claimed_before_everything_is_recovered(
    make_queue: MakeQueue, storage: QueueStorage
) -> None:
    """S7.1: start recovers, then claims."""
    queue = registered(make_queue(max_concurrent_tasks=4))
    ids = await queue.enqueue_all([Work(n) for n in range(150)], retry_policy=OFTEN)
    for task_id in ids:
        record = await storage.get(task_id)
        await storage.update(attrs.evolve(record, status=TaskStatus.RUNNING, attempts=1))
    with collect_events(queue, TaskRetryScheduled, TaskStarted) as events:
        await queue.start()
        await queue.drain()

    kinds = [type(event) for event in events]
    assert kinds == [TaskRetryScheduled] * 150 + [TaskStarted] * 150


@pytest.mark.asyncio
@pytest.mark.parametrize("operation", ["acquire_consumer", "get_by_status", "apply", "take_unreadable"])
async def test_a_storage_error_in_recovery_goes_to_the_caller_of_start(
    make_queue: MakeQueue, storage: QueueStorage, operation: str
) -> None:
    """S7.3: the queue stays idle and holds no claim, nothing runs; start can be called again and recovers."""
    flaky = FlakyStorage(storage)
    queue, other = registered(make_queue(storage=flaky)), make_queue(storage=flaky)
    task_id = await interrupted(queue, storage, retry_policy=OFTEN)
    flaky.fail(operation, error=OSError("no disk"))
    with pytest.raises(OSError, match="no disk"):
        await queue.start()

    assert queue.run_state is RunState.IDLE
    await settle()
    assert (await queue.get_task(task_id)).attempts == 1
    await other.start(paused=True)
    await other.stop()
    await queue.start()
    assert (await queue.wait(task_id)).attempts == 2


@pytest.mark.asyncio
async def test_what_was_recovered_before_an_error_stays(make_queue: MakeQueue, storage: QueueStorage) -> None:
    """S7.3: an error in the second batch leaves the first one recovered, once."""
    flaky = FlakyStorage(storage)
    queue = registered(make_queue(storage=flaky))
    ids = await queue.enqueue_all([Work(n) for n in range(120)], retry_policy=OFTEN)
    for task_id in ids:
        record = await storage.get(task_id)
        await storage.update(attrs.evolve(record, status=TaskStatus.RUNNING, attempts=1))
    flaky.fail("get_by_status", nth=2)
    with pytest.raises(StorageError):
        await queue.start()
    counts = await queue.counts()
    assert (counts[TaskStatus.RUNNING], counts[TaskStatus.RETRY_SCHEDULED]) == (20, 100)
    await queue.start(paused=True)

    tasks = await queue.get_tasks()
    assert {(task.status, task.interruptions) for task in tasks} == {(TaskStatus.RETRY_SCHEDULED, 1)}


@pytest.mark.asyncio
async def test_an_answer_that_was_lost_does_not_count_twice(
    make_queue: MakeQueue, storage: QueueStorage
) -> None:
    """S7.3: a batch that was written although its answer was an error is not interrupted again."""
    flaky = FlakyStorage(storage)
    queue = registered(make_queue(storage=flaky))
    task_id = await interrupted(queue, storage, retry_policy=OFTEN)
    flaky.fail(WRITES, after_commit=True)
    try:
        await queue.start()
    except StorageError:
        await queue.start()

    record = await queue.wait(task_id)
    assert (record.attempts, record.interruptions) == (2, 1)


@pytest.mark.asyncio
async def test_start_is_from_idle_only(make_queue: MakeQueue) -> None:
    """S7.1: a second start is refused and changes nothing."""
    queue = make_queue()
    await queue.start()
    with pytest.raises(QueueStateError, match="running"):
        await queue.start()
    starts = [asyncio.create_task(make_queue().start()) for _ in range(2)]
    for start in starts:
        with pytest.raises(QueueInUseError):
            await start

    assert queue.run_state is RunState.RUNNING


@pytest.mark.asyncio
async def test_a_second_queue_touches_nothing(make_queue: MakeQueue, storage: QueueStorage) -> None:
    """S7.9: its start raises QueueInUseError and leaves the running task of the first one alone."""
    queue, other, handler = make_queue(), make_queue(), Handler()
    queue.register(Work, handler)
    task_id = await queue.enqueue(Work())
    await queue.start()
    await handler.began.wait()
    before = await storage.get(task_id)
    with pytest.raises(QueueInUseError):
        await other.start()

    assert await storage.get(task_id) == before
    assert other.run_state is RunState.IDLE
    handler.released.set()
    await queue.wait(task_id)
    await queue.stop()
    await other.start()


@pytest.mark.asyncio
async def test_handed_off_tasks_are_left_alone(make_queue: MakeQueue, storage: QueueStorage) -> None:
    """S7.1: a hand-off survives the end of its process untouched and can be reported afterwards."""
    queue = registered(make_queue())
    task_id = await interrupted(queue, storage)
    record = attrs.evolve(await storage.get(task_id), hand_off_reference="outside")
    await storage.update(record)
    await queue.start()
    assert await storage.get(task_id) == record
    assert await queue.complete_hand_off(task_id, reference="outside", result=3)

    assert (await queue.wait(task_id)).result == 3


@pytest.mark.asyncio
async def test_shu_07_start_paused_recovers_and_starts_nothing(
    make_queue: MakeQueue, storage: QueueStorage
) -> None:
    """S7.4: tasks found running are recovered at once and run after resume."""
    queue = registered(make_queue())
    ids = [await interrupted(queue, storage, retry_policy=OFTEN) for _ in range(2)]
    await queue.start(paused=True)
    await settle()
    for task_id in ids:
        assert (await queue.get_task(task_id)).status is TaskStatus.RETRY_SCHEDULED
    await queue.resume()

    assert [(await queue.wait(task_id)).attempts for task_id in ids] == [2, 2]


@pytest.mark.asyncio
async def test_an_interrupted_task_without_a_handler_is_recovered_too(
    make_queue: MakeQueue, storage: QueueStorage
) -> None:
    """S7.2: recovery knows only the record; a type that is not registered any more changes nothing."""
    old = registered(make_queue())
    task_id = await interrupted(old, storage, retry_policy=OFTEN)
    await old.close()
    queue = make_queue()
    await queue.start(paused=True)

    assert (await queue.get_task(task_id)).status is TaskStatus.RETRY_SCHEDULED


@pytest.mark.asyncio
async def test_a_handler_of_a_recovered_task_is_told_its_attempt(
    make_queue: MakeQueue, storage: QueueStorage
) -> None:
    """S7.2: after an interruption the attempt number goes on, the idempotency key stays."""
    queue, seen = make_queue(), []

    async def work(task: Work, context: TaskContext) -> None:
        seen.append((context.attempt, context.idempotency_key, context.cancellation_requested))

    queue.register(Work, work)
    task_id = await interrupted(queue, storage, retry_policy=OFTEN, idempotency_key="same")
    await queue.start()
    await queue.wait(task_id)

    assert seen == [(2, "same", False)]
