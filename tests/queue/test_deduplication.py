"""Deduplication: one active task per key, across types, calls and the moments in between (S2.3)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from durable_queue import (
    DurableQueue,
    FakeQueueClock,
    MemoryQueueStorage,
    QueueStorage,
    RetryPolicy,
    StorageError,
    StoredTask,
    TaskCancelled,
    TaskEnqueued,
    TaskNotFoundError,
    TaskStarted,
    TaskStateError,
    TaskStatus,
)
from durable_queue.testing import FlakyStorage, collect_events
from tests.queue.conftest import MakeQueue
from tests.support import Other, Work

HOUR = timedelta(hours=1)


async def succeed(task: object, context: object) -> None:
    """A handler."""


async def fail(task: object, context: object) -> None:
    raise RuntimeError("no")


async def in_status(queue: DurableQueue, status: TaskStatus) -> str:
    """Bring a task with the key into a status, on a started queue with free slots."""
    if status is TaskStatus.PENDING:
        return await queue.enqueue(Work(), deduplication_key="k", delay=HOUR)
    if status is TaskStatus.WAITING:
        later = await queue.enqueue(Work(), delay=HOUR)
        return await queue.enqueue(Work(), deduplication_key="k", depends_on=[later])
    if status is TaskStatus.RETRY_SCHEDULED:
        policy = RetryPolicy.fixed(max_attempts=2, delay=HOUR)
        task_id = await queue.enqueue(Other(0), deduplication_key="k", retry_policy=policy)
        await queue.drain()
        return task_id
    if status is TaskStatus.RUNNING:
        with queue.subscribe(TaskStarted) as events:
            task_id = await queue.enqueue(Other(1), deduplication_key="k")
            await anext(events)
            return task_id
    raise AssertionError(status)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "status", [TaskStatus.PENDING, TaskStatus.WAITING, TaskStatus.RUNNING, TaskStatus.RETRY_SCHEDULED]
)
async def test_an_active_task_holds_its_key(make_queue: MakeQueue, status: TaskStatus) -> None:
    """S2.3: while a task with the key is pending, waiting, running or retryScheduled its id is returned, unchanged."""
    hold = asyncio.Event()

    async def run(task: Other, context: object) -> None:
        if task.n == 0:
            raise RuntimeError
        await hold.wait()

    queue = make_queue(max_concurrent_tasks=3)
    queue.register(Work, succeed)
    queue.register(Other, run)
    await queue.start()
    holder = await in_status(queue, status)
    before = await queue.get_tasks()
    with collect_events(queue) as events:
        again = await queue.enqueue(
            Work(99), deduplication_key="k", priority=9, group="g", delay=timedelta(0)
        )
    assert again == holder
    assert await queue.get_tasks() == before
    assert (await queue.get_task(holder)).status is status
    assert list(events) == []
    hold.set()


@pytest.mark.asyncio
@pytest.mark.parametrize("ending", ["completed", "failed", "cancelled", "expired", "deleted", "purged"])
async def test_con_05_a_key_is_free_when_its_task_has_ended(
    make_queue: MakeQueue, clock: FakeQueueClock, ending: str
) -> None:
    """S2.3: a task that has ended, however, or is gone does not hold its key."""
    queue = make_queue()
    queue.register(Work, succeed)
    queue.register(Other, fail)
    await queue.start()
    holder = await queue.enqueue(
        Other() if ending == "failed" else Work(),
        deduplication_key="k",
        delay=HOUR if ending in ("cancelled", "expired") else None,
        expires_in=HOUR / 2 if ending == "expired" else None,
    )
    if ending == "cancelled":
        await queue.cancel(holder)
    if ending == "expired":
        clock.advance(HOUR / 2)
    await queue.drain()
    if ending == "deleted":
        await queue.delete(holder)
    elif ending == "purged":
        assert await queue.purge() == 1
    elif ending != "expired":
        assert (await queue.get_task(holder)).status.value == ending
    again = await queue.enqueue(Work(), deduplication_key="k", delay=HOUR)
    assert again != holder
    assert (await queue.get_task(again)).status is TaskStatus.PENDING


@pytest.mark.asyncio
async def test_con_05_a_task_in_back_off_keeps_its_key_and_runs_again(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S2.3: a task does not collide with its own key when its retry is due."""
    attempts = []

    async def once(task: Work, context) -> None:
        attempts.append(context.attempt)
        if context.attempt == 1:
            raise RuntimeError

    queue = make_queue()
    queue.register(Work, once, retry_policy=RetryPolicy.fixed(max_attempts=2, delay=HOUR))
    await queue.start()
    holder = await queue.enqueue(Work(), deduplication_key="k")
    await queue.drain()
    assert await queue.enqueue(Work(), deduplication_key="k") == holder
    clock.advance(HOUR)
    await queue.drain()
    assert attempts == [1, 2]
    assert (await queue.get_task(holder)).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
async def test_con_05_retry_against_a_new_holder(make_queue: MakeQueue) -> None:
    """S6.3: a retry is refused while another active task holds the key, and what else is due goes on."""
    queue = make_queue()
    queue.register(Work, succeed)
    queue.register(Other, fail)
    await queue.start()
    failed = await queue.enqueue(Other(), deduplication_key="secret-key")
    await queue.drain()
    await queue.pause()
    holder = await queue.enqueue(Work(), deduplication_key="secret-key")
    others = await queue.enqueue_all([Work(n) for n in range(20)])
    before = await queue.get_task(failed)
    with pytest.raises(TaskStateError, match=holder) as caught:
        await queue.retry(failed)
    assert "secret-key" not in str(caught.value)
    assert await queue.get_task(failed) == before
    assert (await queue.get_task(holder)).status is TaskStatus.PENDING
    await queue.resume()
    await queue.drain()
    for task_id in others:
        assert (await queue.get_task(task_id)).status is TaskStatus.COMPLETED
    assert await queue.retry(failed) == failed


@pytest.mark.asyncio
async def test_con_04_many_calls_with_one_key(make_queue: MakeQueue) -> None:
    """S2.3: of 200 calls at once with one key one stores a task and all return its id."""
    queue = make_queue()
    queue.register(Work, succeed)
    ids = await asyncio.gather(*(queue.enqueue(Work(n), deduplication_key="k1") for n in range(200)))
    assert len(set(ids)) == 1
    tasks = await queue.get_tasks()
    assert [task.id for task in tasks] == ids[:1]
    assert tasks[0].payload == {"n": 0}


@pytest.mark.asyncio
async def test_con_04_calls_while_the_holder_ends(make_queue: MakeQueue, storage: QueueStorage) -> None:
    """S2.3: calls that come while the holder ends get its id or that of one new task; never are two active."""
    active: set[str] = set()

    async def run(task: Work, context) -> None:
        assert not active
        active.add(context.task_id)
        await asyncio.sleep(0)
        active.discard(context.task_id)

    queue = make_queue(max_concurrent_tasks=4)
    queue.register(Work, run)
    await queue.start()
    seen: set[str] = set()
    for turns in range(50):
        holder = await queue.enqueue(Work(), deduplication_key="k")
        for _ in range(turns % 10):
            await asyncio.sleep(0)
        ids = set(await asyncio.gather(*(queue.enqueue(Work(), deduplication_key="k") for _ in range(20))))
        assert len(ids - {holder}) <= 1
        seen |= ids | {holder}
        await queue.drain()
    assert {task.id for task in await queue.get_tasks(status=TaskStatus.COMPLETED)} == seen


@pytest.mark.asyncio
async def test_con_04_no_key_never_folds(make_queue: MakeQueue) -> None:
    """S2.3: without a key every call makes a task, and an idempotency key never deduplicates."""
    queue = make_queue()
    queue.register(Work, succeed)
    for _ in range(10):
        await queue.enqueue(Work(), deduplication_key=None)
        await queue.enqueue(Work(), idempotency_key="same")
    assert len(await queue.get_tasks()) == 20


@pytest.mark.asyncio
async def test_con_04_the_key_is_global_across_types(make_queue: MakeQueue) -> None:
    """S2.3: the key of a task of one type folds a task of another onto it."""
    queue = make_queue()
    queue.register(Work, succeed)
    queue.register(Other, succeed)
    holder = await queue.enqueue(Work(), deduplication_key="k")
    assert await queue.enqueue(Other(), deduplication_key="k") == holder
    assert await queue.enqueue(Other(), deduplication_key="K") != holder


@pytest.mark.asyncio
async def test_the_idempotency_key_reaches_the_handler(make_queue: MakeQueue) -> None:
    """S2.3: the handler gets the idempotency key, and the id of the task where none was given."""
    seen = {}

    async def run(task: Work, context) -> None:
        seen[task.n] = (context.idempotency_key, context.deduplication_key)

    queue = make_queue()
    queue.register(Work, run)
    await queue.enqueue(Work(1), idempotency_key="mine", deduplication_key="k")
    second = await queue.enqueue(Work(2))
    await queue.start()
    await queue.drain()
    assert seen == {1: ("mine", "k"), 2: (second, None)}


@pytest.mark.asyncio
async def test_an_overdue_holder_does_not_hold_its_key(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S13.13: a holder past its expires_at is cancelled, with its dependents, in the step of the new task."""
    queue = make_queue()
    queue.register(Work, succeed)
    holder = await queue.enqueue(Work(), deduplication_key="k", expires_in=HOUR)
    dependent = await queue.enqueue(Work(), depends_on=[holder])
    clock.advance(HOUR)
    with collect_events(queue) as events:
        again = await queue.enqueue(Work(), deduplication_key="k")
    assert again != holder
    assert (await queue.get_task(holder)).last_failure.error_type == "TaskExpiredError"
    assert (await queue.get_task(dependent)).status is TaskStatus.CANCELLED
    assert [(type(event), event.task_id) for event in events] == [
        (TaskCancelled, holder),
        (TaskCancelled, dependent),
        (TaskEnqueued, again),
    ]


@pytest.mark.asyncio
async def test_a_refused_call_leaves_an_overdue_holder_alone(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S2.2: a call that is refused changes nothing, the holder of its key included."""
    queue = make_queue()
    queue.register(Work, succeed)
    await queue.enqueue(Work(), deduplication_key="k", expires_in=HOUR)
    clock.advance(HOUR)
    before = await queue.get_tasks()
    with pytest.raises(TaskNotFoundError):
        await queue.enqueue(Work(), deduplication_key="k", depends_on=["missing"])
    assert await queue.get_tasks() == before


@pytest.mark.asyncio
@pytest.mark.parametrize("failures", [1, 2, 3])
async def test_a_call_folded_onto_one_that_failed_is_decided_anew(
    make_queue: MakeQueue, storage: QueueStorage, failures: int
) -> None:
    """S13.3: when calls that travel together fail to be written, none returns the id of a task that is not stored."""
    flaky = FlakyStorage(storage)
    queue = make_queue(storage=flaky)
    queue.register(Work, succeed)
    flaky.fail("apply", times=failures)
    answers = await asyncio.gather(
        *(queue.enqueue(Work(n), deduplication_key="k") for n in range(3)), return_exceptions=True
    )
    stored = {task.id for task in await queue.get_tasks()}
    assert all(isinstance(answer, StorageError) or answer in stored for answer in answers)
    assert len(stored) <= 1
    assert {answer for answer in answers if isinstance(answer, str)} == stored


@pytest.mark.asyncio
async def test_a_lost_answer_stores_a_joint_task_once(make_queue: MakeQueue) -> None:
    """S13.3: calls whose joint write was done although it failed return the ids that are stored, once each."""
    flaky = FlakyStorage(MemoryQueueStorage())
    queue = make_queue(storage=flaky)
    queue.register(Work, succeed)
    flaky.fail("apply", after_commit=True)
    with collect_events(queue, TaskEnqueued) as events:
        ids = await asyncio.gather(*(queue.enqueue(Work(n)) for n in range(3)))
    tasks: list[StoredTask] = await queue.get_tasks()
    assert [task.id for task in tasks] == ids
    assert [event.task_id for event in events] == ids
