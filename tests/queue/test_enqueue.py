"""Enqueue: what is stored, when, and what a caller that leaves early leaves behind (S2.1, S2.4-S2.7)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from durable_queue import (
    DependencyFailurePolicy,
    FakeQueueClock,
    QueueClosedError,
    QueueStorage,
    RetryPolicy,
    TaskCancelled,
    TaskCompleted,
    TaskEnqueued,
    TaskFailed,
    TaskNotFoundError,
    TaskStatus,
)
from durable_queue.testing import FAKE_START, FlakyStorage, collect_events
from tests.queue.conftest import MakeQueue
from tests.support import Other, Work

HOUR = timedelta(hours=1)


async def succeed(task: object, context: object) -> None:
    """A handler."""


async def fail(task: object, context: object) -> None:
    raise RuntimeError("no")


@pytest.mark.asyncio
async def test_the_record_is_stored_when_enqueue_returns(
    make_queue: MakeQueue, storage: QueueStorage
) -> None:
    """S2.1: the returned id is that of a stored record with everything that was given."""
    queue = make_queue()
    queue.register(Work, succeed)
    before = await queue.enqueue(Work(0))
    task_id = await queue.enqueue(
        Work(7),
        retry_policy=RetryPolicy.fixed(max_attempts=3, delay=HOUR),
        deduplication_key="key",
        idempotency_key="once",
        priority=-5,
        depends_on=[before],
        on_dependency_failure=DependencyFailurePolicy.RUN,
        group="g",
        run_at=FAKE_START + HOUR,
        expires_at=FAKE_START + 2 * HOUR,
    )
    task = await storage.get(task_id)
    assert task is not None
    assert task.payload == {"n": 7}
    assert (task.type, task.status, task.attempts) == ("work", TaskStatus.WAITING, 0)
    assert task.retry_policy == RetryPolicy.fixed(max_attempts=3, delay=HOUR)
    assert (task.deduplication_key, task.idempotency_key, task.group) == ("key", "once", "g")
    assert (task.priority, task.depends_on) == (-5, (before,))
    assert task.on_dependency_failure is DependencyFailurePolicy.RUN
    assert task.next_attempt_at == FAKE_START + HOUR
    assert task.expires_at == FAKE_START + 2 * HOUR
    assert task.created_at == task.updated_at == FAKE_START


@pytest.mark.asyncio
async def test_nothing_starts_before_start(make_queue: MakeQueue) -> None:
    """S2.1: a task is stored and stays pending until `start`, however long that takes."""
    started = []
    queue = make_queue()
    queue.register(Work, lambda task, context: started.append(task.n))
    task_id = await queue.enqueue(Work(1))
    for _ in range(20):
        await asyncio.sleep(0)
    task = await queue.get_task(task_id)
    assert task is not None
    assert task.status is TaskStatus.PENDING
    assert started == []
    await queue.start()
    await queue.drain()
    assert started == [1]


@pytest.mark.asyncio
async def test_the_policy_of_the_type_is_stored(make_queue: MakeQueue) -> None:
    """S2.1: without a policy of its own a task takes that of its type, and none without that."""
    queue = make_queue()
    policy = RetryPolicy.fixed(max_attempts=4, delay=HOUR)
    queue.register(Work, succeed, retry_policy=policy)
    queue.register(Other, succeed)
    first = await queue.get_task(await queue.enqueue(Work()))
    second = await queue.get_task(await queue.enqueue(Other()))
    assert first is not None
    assert second is not None
    assert first.retry_policy == policy
    assert second.retry_policy == RetryPolicy.none()


@pytest.mark.asyncio
async def test_created_at_does_not_go_back(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S1.9, S13.20: after the clock was set back only created_at keeps the newest value; the rest is the clock's."""
    queue = make_queue()
    queue.register(Work, succeed)
    await queue.enqueue(Work(1))
    clock.set(FAKE_START - HOUR)
    task = await queue.get_task(await queue.enqueue(Work(2), delay=timedelta(minutes=1)))
    assert task is not None
    assert task.created_at == FAKE_START
    assert task.updated_at == FAKE_START - HOUR
    assert task.next_attempt_at == FAKE_START - HOUR + timedelta(minutes=1)


@pytest.mark.asyncio
async def test_an_unknown_dependency_is_named(make_queue: MakeQueue) -> None:
    """S2.4: a dependency that is not stored is named, and nothing is stored."""
    queue = make_queue()
    queue.register(Work, succeed)
    known = await queue.enqueue(Work())
    with pytest.raises(TaskNotFoundError, match="no-such-id") as caught:
        await queue.enqueue(Work(), depends_on=[known, "no-such-id"])
    assert caught.value.task_id == "no-such-id"
    assert len(await queue.get_tasks()) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("make", [list, tuple, set, iter, lambda ids: (one for one in ids)])
async def test_dependencies_may_come_from_any_iterable(make_queue: MakeQueue, make) -> None:
    """S2.4: an iterable that can be walked only once loses no dependency, neither alone nor shared by several tasks."""
    queue = make_queue()
    queue.register(Work, succeed)
    first = await queue.enqueue(Work())
    ids = [await queue.enqueue(Work(), depends_on=make([first]))]
    ids += await queue.enqueue_all([Work(), Work()], depends_on=make([first]))
    ids += (await queue.enqueue_chain([Work(), Work()], depends_on=make([first])))[:1]
    for task_id in ids:
        task = await queue.get_task(task_id)
        assert task is not None
        assert task.depends_on == (first,)
        assert task.status is TaskStatus.WAITING


@pytest.mark.asyncio
async def test_a_dependency_given_twice_is_kept_once(make_queue: MakeQueue) -> None:
    """S1.5: duplicate dependencies are folded and their order is kept."""
    queue = make_queue()
    queue.register(Work, succeed)
    a, b = await queue.enqueue_all([Work(), Work()])
    task = await queue.get_task(await queue.enqueue(Work(), depends_on=[b, a, b, a]))
    assert task is not None
    assert task.depends_on == (b, a)


@pytest.mark.asyncio
@pytest.mark.parametrize("policy", DependencyFailurePolicy)
@pytest.mark.parametrize("ending", ["completed", "failed", "cancelled", "expired", "deleted"])
async def test_dep_02_depending_on_something_that_has_ended(
    make_queue: MakeQueue, clock: FakeQueueClock, policy: DependencyFailurePolicy, ending: str
) -> None:
    """S2.4: a dependency that has ended is judged in the step of the insert, and what hangs behind follows."""
    queue = make_queue()
    queue.register(Work, succeed)
    queue.register(Other, fail)
    await queue.start()
    parent = await queue.enqueue(
        Other() if ending == "failed" else Work(),
        delay=HOUR if ending in ("cancelled", "expired") else None,
        expires_in=HOUR / 2 if ending == "expired" else None,
    )
    if ending == "cancelled":
        await queue.cancel(parent)
    elif ending == "expired":
        clock.advance(HOUR)
    await queue.drain()
    if ending == "deleted":
        await queue.delete(parent)
        with pytest.raises(TaskNotFoundError, match=parent):
            await queue.enqueue(Work(), depends_on=[parent], on_dependency_failure=policy)
        assert await queue.get_tasks() == []
        return

    with collect_events(queue) as events:
        child = await queue.enqueue(Work(), depends_on=[parent], on_dependency_failure=policy)
        grandchild = await queue.enqueue(Work(), depends_on=[child])
        await queue.drain()
    ended = [
        event
        for event in events
        if isinstance(event, TaskEnqueued | TaskCompleted | TaskFailed | TaskCancelled)
    ]
    task = await queue.get_task(child)
    last = await queue.get_task(grandchild)
    assert task is not None
    assert last is not None
    if ending == "completed" or policy is DependencyFailurePolicy.RUN:
        assert (task.status, task.attempts) == (TaskStatus.COMPLETED, 1)
        assert last.status is TaskStatus.COMPLETED
        return
    wanted = TaskStatus.FAILED if policy is DependencyFailurePolicy.FAIL else TaskStatus.CANCELLED
    assert (task.status, task.attempts) == (wanted, 0)
    assert task.last_failure is not None
    assert task.last_failure.error_type == "DependencyFailedError"
    assert parent in task.last_failure.error
    assert task.last_failure.cause_task_id == parent
    assert last.status is TaskStatus.CANCELLED
    assert last.last_failure is not None
    assert last.last_failure.cause_task_id == parent
    kind = TaskFailed if policy is DependencyFailurePolicy.FAIL else TaskCancelled
    assert [(type(event), event.task_id) for event in ended] == [
        (TaskEnqueued, child),
        (kind, child),
        (TaskEnqueued, grandchild),
        (TaskCancelled, grandchild),
    ]


@pytest.mark.asyncio
async def test_the_earliest_start_is_kept(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S2.5: `run_at` and `delay` are the earliest start; a time that is past means now."""
    order: list[int] = []

    async def record(task: Work, context: object) -> None:
        order.append(task.n)

    queue = make_queue()
    queue.register(Work, record)
    await queue.start()
    await queue.enqueue(Work(2), run_at=FAKE_START + 2 * HOUR)
    await queue.enqueue(Work(1), delay=HOUR)
    past = await queue.enqueue(Work(0), run_at=FAKE_START - HOUR)
    await queue.drain()
    assert order == [0]
    task = await queue.get_task(past)
    assert task is not None
    assert task.next_attempt_at is None
    clock.advance(HOUR - timedelta(microseconds=1))
    await queue.drain()
    assert order == [0]
    clock.advance(timedelta(microseconds=1))
    await queue.drain()
    assert order == [0, 1]
    clock.advance(HOUR)
    await queue.drain()
    assert order == [0, 1, 2]


@pytest.mark.asyncio
@pytest.mark.parametrize("time_first", [True, False])
async def test_the_later_of_time_and_dependency_decides(
    make_queue: MakeQueue, clock: FakeQueueClock, *, time_first: bool
) -> None:
    """S2.5: with dependencies a task starts when both its time and they have come."""
    go = asyncio.Event()

    async def wait(task: Other, context: object) -> None:
        await go.wait()

    queue = make_queue()
    queue.register(Work, succeed)
    queue.register(Other, wait)
    await queue.start()
    parent = await queue.enqueue(Other())
    child = await queue.enqueue(Work(), depends_on=[parent], delay=HOUR)

    async def status() -> TaskStatus:
        task = await queue.get_task(child)
        assert task is not None
        return task.status

    if time_first:
        clock.advance(HOUR)
        assert await status() is TaskStatus.WAITING
        go.set()
    else:
        go.set()
        await queue.drain()
        assert await status() is TaskStatus.PENDING
        clock.advance(HOUR)
    await queue.drain()
    assert await status() is TaskStatus.COMPLETED


@pytest.mark.asyncio
@pytest.mark.parametrize("turns", range(8))
async def test_a_cancelled_caller_leaves_no_half(
    make_queue: MakeQueue, storage: QueueStorage, turns: int
) -> None:
    """S2.7: wherever the caller of an enqueue is cancelled, its tasks are all stored or none is."""
    flaky = FlakyStorage(storage)
    queue = make_queue(storage=flaky)
    queue.register(Work, succeed)
    call = asyncio.ensure_future(queue.enqueue_chain([Work(n) for n in range(5)]))
    for _ in range(turns):
        await asyncio.sleep(0)
    call.cancel()
    (outcome,) = await asyncio.gather(call, return_exceptions=True)
    await queue.enqueue(Work(99))
    tasks = await queue.get_tasks()
    assert len(tasks) in (1, 6)
    assert isinstance(outcome, asyncio.CancelledError) or len(tasks) == 6


@pytest.mark.asyncio
@pytest.mark.parametrize("after_commit", [True, False])
async def test_a_caller_cancelled_during_the_write_leaves_all(
    make_queue: MakeQueue, storage: QueueStorage, *, after_commit: bool
) -> None:
    """S2.7: a caller that is cancelled during the write stops waiting; its tasks are stored, announced and run."""
    flaky = FlakyStorage(storage)
    queue = make_queue(storage=flaky)
    queue.register(Work, succeed)
    await queue.start()
    gate = flaky.gate("apply", after_commit=after_commit)
    with collect_events(queue, TaskEnqueued) as events:
        call = asyncio.ensure_future(queue.enqueue_chain([Work(n) for n in range(5)]))
        await gate.reached()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        gate.release()
        await queue.drain()
    assert len(events) == 5
    assert [task.status for task in await queue.get_tasks()] == [TaskStatus.COMPLETED] * 5


@pytest.mark.asyncio
async def test_a_caller_cancelled_before_its_turn_leaves_nothing(
    make_queue: MakeQueue, storage: QueueStorage
) -> None:
    """S2.7: a call that was still in line when its caller left stores nothing."""
    flaky = FlakyStorage(storage)
    queue = make_queue(storage=flaky)
    queue.register(Work, succeed)
    gate = flaky.gate("apply")
    first = asyncio.ensure_future(queue.enqueue(Work(1)))
    await gate.reached()
    second = asyncio.ensure_future(queue.enqueue_all([Work(2), Work(3)]))
    for _ in range(3):
        await asyncio.sleep(0)
    second.cancel()
    gate.release()
    await first
    await asyncio.gather(second, return_exceptions=True)
    await queue.enqueue(Work(4))
    assert [task.payload["n"] for task in await queue.get_tasks()] == [1, 4]


@pytest.mark.asyncio
async def test_ids_that_repeat_are_refused(make_queue: MakeQueue) -> None:
    """S2.6: an id generator that repeats itself costs the call, never a task that is stored or on its way."""
    ids = iter(["a", "a", "b", "b", "a", "c"])
    queue = make_queue(id_generator=lambda: next(ids))
    queue.register(Work, succeed)
    assert await queue.enqueue(Work(1)) == "a"
    with pytest.raises(ValueError, match="'a' is already stored"):
        await queue.enqueue(Work(2))
    with pytest.raises(ValueError, match="'b'"):
        await queue.enqueue_all([Work(3), Work(4)])
    both = await asyncio.gather(queue.enqueue(Work(5)), queue.enqueue(Work(6)), return_exceptions=True)
    assert isinstance(both[0], ValueError)
    assert both[1] == "c"
    assert [(task.id, task.payload["n"]) for task in await queue.get_tasks()] == [("a", 1), ("c", 6)]


@pytest.mark.asyncio
async def test_two_new_tasks_with_one_id_do_not_melt(make_queue: MakeQueue) -> None:
    """S2.6: two calls that travel together under one id: one is stored, the other raises."""
    queue = make_queue(id_generator=lambda: "same")
    queue.register(Work, succeed)
    both = await asyncio.gather(queue.enqueue(Work(1)), queue.enqueue(Work(2)), return_exceptions=True)
    assert both[0] == "same"
    assert isinstance(both[1], ValueError)
    assert [task.payload["n"] for task in await queue.get_tasks()] == [1]


@pytest.mark.asyncio
async def test_a_large_batch_lets_others_go_on(make_queue: MakeQueue) -> None:
    """S13.21: while thousands of tasks are checked and decided the event loop has many turns for others."""
    queue = make_queue()
    queue.register(Work, succeed)
    turns = 0
    call = asyncio.ensure_future(queue.enqueue_all([Work(n) for n in range(3000)]))
    while not call.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 2 * 3000 / 64
    assert len(await call) == 3000


@pytest.mark.asyncio
async def test_a_large_batch_is_refused_by_a_queue_that_closes_meanwhile(
    make_queue: MakeQueue, storage: QueueStorage
) -> None:
    """S7.6: a queue that is closed while a batch is being checked stores nothing of it."""
    queue = make_queue()
    queue.register(Work, succeed)
    call = asyncio.ensure_future(queue.enqueue_all([Work(n) for n in range(300)]))
    await asyncio.sleep(0)
    await queue.close()
    with pytest.raises(QueueClosedError):
        await call
    assert await storage.get_all() == []
