"""Work that shares a write, and the record that cannot be written (S13.3)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from durable_queue import (
    DependencyFailurePolicy,
    FakeQueueClock,
    HandOffError,
    QueueStorageFailure,
    RetryPolicy,
    StorageError,
    TaskCancelled,
    TaskCompleted,
    TaskContext,
    TaskEnqueued,
    TaskStarted,
    TaskStatus,
)
from durable_queue.testing import FlakyStorage, collect_events, run_until_idle
from tests.queue.conftest import MakeQueue
from tests.queue.fault_support import (
    REFUSING,
    SECOND,
    Counting,
    DefaultHead,
    OneHead,
    RefusingMemory,
    RefusingThirteen,
    ends_of,
    starts_of,
    status_of,
    time_goes_on,
)
from tests.queue.handler_support import Handler
from tests.support import Other, Work

HOUR = timedelta(hours=1)
Refusing = RefusingMemory | RefusingThirteen

once = pytest.mark.parametrize("storage", ["memory"], indirect=True)
"""For tests that bring their storage along."""

kinds = pytest.mark.parametrize("kind", REFUSING)


async def fail_often(failures: object, clock: FakeQueueClock, times: int) -> None:
    """Let the next failures come, a second apart."""
    for _ in range(times):
        await anext(failures)  # type: ignore[call-overload]  # a subscription
        clock.advance(SECOND)


@once
@kinds
@pytest.mark.asyncio
@pytest.mark.parametrize("slots", [1, 2, 3])
async def test_an_outcome_that_is_refused_holds_only_its_own_slot(
    make_queue: MakeQueue, clock: FakeQueueClock, kind: type[Refusing], slots: int
) -> None:
    """S13.3: the others are written, claimed and enqueued; the refused one is kept, and its handler not run again."""
    stubborn = kind()
    queue, handler, counting = make_queue(storage=stubborn, max_concurrent_tasks=slots), Handler(), Counting()
    queue.register(Other, handler)
    queue.register(Work, counting)
    refused = await queue.enqueue(Other(), priority=1)
    dependent = await queue.enqueue(Work(50), depends_on=[refused])
    stubborn.refuses = ends_of(refused)
    others = [await queue.enqueue(Work(n)) for n in range(5)]
    async with time_goes_on(queue, clock) as failures:
        await queue.start()
        await handler.began.wait()
        handler.released.set()
        with queue.subscribe(QueueStorageFailure) as coming:
            for _ in range(12):
                await anext(coming)
        later = await queue.enqueue(Work(6))
        cancelled = await queue.enqueue(Work(7), delay=HOUR)
        await queue.cancel(cancelled)
        if slots > 1:
            for task_id in (*others, later):
                assert (await queue.wait(task_id)).status is TaskStatus.COMPLETED
        assert await status_of(queue, refused) is TaskStatus.RUNNING
        assert 50 not in counting.starts or not stubborn.atomic
        if slots == 1:
            assert [n for n in counting.starts if n != 50] == []
        stubborn.refuses = None
        assert (await queue.wait(refused)).result == "done"
        assert (await queue.wait(dependent)).status is TaskStatus.COMPLETED
        for task_id in (*others, later):
            assert (await queue.wait(task_id)).status is TaskStatus.COMPLETED
        await run_until_idle(queue)
    assert handler.starts == 1
    assert sorted(counting.starts) == [0, 1, 2, 3, 4, 6, 50]
    counts = [failure.consecutive for failure in failures]
    assert counts == list(range(1, len(counts) + 1))


@once
@kinds
@pytest.mark.asyncio
async def test_several_that_end_together_are_written_task_by_task(
    make_queue: MakeQueue, clock: FakeQueueClock, kind: type[Refusing]
) -> None:
    """S13.3: after three failures the one that is refused is left, those that were in the same write go on."""
    stubborn = kind()
    queue, handler = make_queue(storage=stubborn, max_concurrent_tasks=4), Handler()
    queue.register(Work, handler)
    ids = [await queue.enqueue(Work(n)) for n in range(4)]
    more = [await queue.enqueue(Work(n)) for n in range(4, 8)]
    stubborn.refuses = ends_of(ids[1])
    async with time_goes_on(queue, clock):
        with queue.subscribe(TaskStarted) as starts:
            await queue.start()
            for _ in range(4):
                await anext(starts)
        handler.released.set()
        for task_id in (ids[0], ids[2], ids[3], *more):
            assert (await queue.wait(task_id)).status is TaskStatus.COMPLETED
        assert await status_of(queue, ids[1]) is TaskStatus.RUNNING
        stubborn.refuses = None
        assert (await queue.wait(ids[1])).attempts == 1
    assert handler.starts == 8


@once
@kinds
@pytest.mark.asyncio
async def test_a_claim_that_is_refused_holds_only_its_own_slot(
    make_queue: MakeQueue, clock: FakeQueueClock, kind: type[Refusing]
) -> None:
    """S13.3: tasks behind the one whose claim is refused start, in order, and it starts once it can be written."""
    stubborn = kind()
    queue, counting = make_queue(storage=stubborn, max_concurrent_tasks=2), Counting()
    queue.register(Work, counting)
    refused = await queue.enqueue(Work(9), priority=9)
    others = [await queue.enqueue(Work(n), priority=-n) for n in range(5)]
    stubborn.refuses = starts_of(refused)
    async with time_goes_on(queue, clock):
        await queue.start()
        for task_id in others:
            assert (await queue.wait(task_id)).status is TaskStatus.COMPLETED
        assert counting.starts == [0, 1, 2, 3, 4]
        assert await status_of(queue, refused) is TaskStatus.PENDING
        stubborn.refuses = None
        assert (await queue.wait(refused)).attempts == 1
    assert counting.starts == [0, 1, 2, 3, 4, 9]


@once
@kinds
@pytest.mark.asyncio
@pytest.mark.parametrize("end", ["cancel", "expire", "pause"])
async def test_a_refused_claim_is_looked_at_again(
    make_queue: MakeQueue, clock: FakeQueueClock, kind: type[Refusing], end: str
) -> None:
    """S13.3: a task that was cancelled, has expired or is not to start while its claim was set aside does not start."""
    stubborn = kind()
    queue, counting = make_queue(storage=stubborn, max_concurrent_tasks=2), Counting()
    queue.register(Work, counting)
    refused = await queue.enqueue(Work(9), expires_in=HOUR)
    stubborn.refuses = starts_of(refused)
    async with time_goes_on(queue, clock):
        await queue.start()
        assert (await queue.wait(await queue.enqueue(Work(1)))).status is TaskStatus.COMPLETED
    for _ in range(2):
        # A list comes between two steps: the try that may have been under way is over, and no time passes.
        await queue.get_tasks()
    if end == "cancel":
        await queue.cancel(refused)
    elif end == "pause":
        await queue.pause()
    else:
        clock.advance(HOUR)
    stubborn.refuses = None
    clock.advance(SECOND)
    if end == "pause":
        await queue.get_tasks()
        assert await status_of(queue, refused) is TaskStatus.PENDING
        await queue.resume()
        assert (await queue.wait(refused)).status is TaskStatus.COMPLETED
    else:
        assert (await queue.wait(refused)).status is TaskStatus.CANCELLED
    await run_until_idle(queue)
    assert counting.starts == ([1, 9] if end == "pause" else [1])


@once
@pytest.mark.asyncio
async def test_a_dependent_does_not_start_before_the_outcome_is_stored(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S13.2, S4.2: a claim that rests on an outcome is not written when the outcome is refused."""
    stubborn = RefusingMemory()
    queue, handler, counting = make_queue(storage=stubborn, max_concurrent_tasks=2), Handler(), Counting()
    queue.register(Other, handler)
    queue.register(Work, counting)
    parent = await queue.enqueue(Other())
    child = await queue.enqueue(Work(1), depends_on=[parent])
    stubborn.refuses = ends_of(parent)
    await queue.start()
    await handler.began.wait()
    with queue.subscribe(QueueStorageFailure) as failures:
        handler.released.set()
        await fail_often(failures, clock, 8)
    assert await status_of(queue, child) is TaskStatus.WAITING
    assert counting.starts == []
    async with time_goes_on(queue, clock):
        stubborn.refuses = None
        clock.advance(SECOND)
        assert (await queue.wait(child)).status is TaskStatus.COMPLETED


@once
@pytest.mark.asyncio
async def test_a_permanent_refusal_does_not_flood_the_log(
    make_queue: MakeQueue, clock: FakeQueueClock, caplog: pytest.LogCaptureFixture
) -> None:
    """S10.2: one record that is refused for ever, with others succeeding in between, leaves a few lines."""
    caplog.set_level("DEBUG", "durable_queue")
    stubborn = RefusingMemory()
    queue, handler = make_queue(storage=stubborn, max_concurrent_tasks=2), Handler()
    queue.register(Other, handler)
    queue.register(Work, Counting())
    refused = await queue.enqueue(Other())
    stubborn.refuses = ends_of(refused)
    await queue.start()
    await handler.began.wait()
    with queue.subscribe(QueueStorageFailure) as failures:
        handler.released.set()
        for n in range(200):
            await anext(failures)
            clock.advance(SECOND)
            if n > 5:
                await queue.wait(await queue.enqueue(Work(n)))
    assert len(caplog.records) < 12
    stubborn.refuses = None
    clock.advance(SECOND)
    assert (await queue.wait(refused)).status is TaskStatus.COMPLETED


@once
@kinds
@pytest.mark.asyncio
async def test_a_hand_off_that_is_refused_takes_a_report_that_comes_meanwhile(
    make_queue: MakeQueue, clock: FakeQueueClock, kind: type[Refusing]
) -> None:
    """S9.2, S13.3: a report about a hand-off that could not be written yet is early, and kept."""
    stubborn = kind()
    queue = make_queue(storage=stubborn, max_concurrent_tasks=2)

    async def hand_off(task: Other, context: TaskContext) -> None:
        context.hand_off("ref")

    queue.register(Other, hand_off)
    task_id = await queue.enqueue(Other())
    stubborn.refuses = lambda task: task.id == task_id and task.hand_off_reference is not None
    async with time_goes_on(queue, clock):
        with queue.subscribe(QueueStorageFailure) as failures:
            await queue.start()
            for _ in range(2):
                await anext(failures)
            during = asyncio.create_task(queue.complete_hand_off(task_id, reference="ref", result=5))
            for _ in range(6):
                await anext(failures)
            with pytest.raises(HandOffError, match="another reference"):
                await queue.complete_hand_off(task_id, reference="other")
        assert not during.done()
        stubborn.refuses = None
        assert await during is True
        assert (await queue.get_task(task_id)).result == 5
        assert await queue.complete_hand_off(task_id, reference="ref") is False


@once
@pytest.mark.asyncio
@pytest.mark.parametrize("kind", [OneHead, DefaultHead])
@pytest.mark.parametrize("expires", [False, True])
async def test_an_atomic_storage_of_one_head_at_a_time_keeps_the_order(
    make_queue: MakeQueue, clock: FakeQueueClock, kind: type[RefusingMemory], expires: bool
) -> None:
    """S13.2: what a step makes ready does not overtake better tasks that the storage has not told of yet."""
    queue, handler = make_queue(storage=kind(), max_concurrent_tasks=3), Handler()
    order: list[int] = []

    async def note(task: Work, context: TaskContext) -> None:
        order.append(task.n)

    queue.register(Other, handler)
    queue.register(Work, note)
    parents = [await queue.enqueue(Other(n), priority=20) for n in range(3)]
    with queue.subscribe(TaskStarted) as starts:
        await queue.start()
        for _ in parents:
            await anext(starts)
    await queue.enqueue(Work(5), depends_on=parents[:1], priority=5)
    await queue.enqueue(Work(1), depends_on=parents[1:2], priority=1)
    for n in (2, 8, 3, 7, 4, 6):
        await queue.enqueue(Work(n), priority=n)
    for n in (10, 11):
        await queue.enqueue(Work(n), priority=n, expires_in=SECOND)
    if expires:
        clock.advance(SECOND)
    handler.released.set()
    await run_until_idle(queue)
    assert order == [*([] if expires else [11, 10]), 8, 7, 6, 5, 4, 3, 2, 1]


@once
@pytest.mark.asyncio
@pytest.mark.parametrize("after_commit", [False, True])
async def test_calls_of_one_write_have_each_their_own_answer(
    make_queue: MakeQueue, clock: FakeQueueClock, after_commit: bool
) -> None:
    """S13.3: when a joint write fails each call is decided anew; what is stored already counts as done."""
    flaky = FlakyStorage(RefusingMemory())
    queue = make_queue(storage=flaky)
    queue.register(Work, Counting())
    first = await queue.enqueue(Work(0), delay=HOUR)
    flaky.fail("apply", after_commit=after_commit)
    with collect_events(queue) as events:
        answers = await asyncio.gather(
            queue.enqueue(Work(1), deduplication_key="k"),
            queue.cancel(first),
            queue.enqueue(Work(2), deduplication_key="k"),
            queue.enqueue(Work(3), depends_on=[first], on_dependency_failure=DependencyFailurePolicy.RUN),
        )
        assert answers[0] == answers[2]
        assert [(type(event), event.task_id) for event in events] == [
            (TaskEnqueued, answers[0]),
            (TaskCancelled, first),
            (TaskEnqueued, answers[3]),
        ]
    assert flaky.calls["apply"] == (2 if after_commit else 5)
    assert [task.status for task in await queue.get_tasks()] == [
        TaskStatus.CANCELLED,
        TaskStatus.PENDING,
        TaskStatus.PENDING,
    ]


@once
@pytest.mark.asyncio
async def test_one_call_that_is_refused_does_not_fail_the_others(make_queue: MakeQueue) -> None:
    """S13.3: only the caller whose own write is refused is told; one that was folded onto it stores its own task."""
    stubborn = RefusingMemory()
    queue = make_queue(storage=stubborn)
    queue.register(Work, Counting())
    stubborn.refuses = lambda task: task.payload["n"] == 1
    answers = await asyncio.gather(
        queue.enqueue(Work(0)),
        queue.enqueue(Work(1), deduplication_key="k"),
        queue.enqueue(Work(2), deduplication_key="k"),
        queue.enqueue(Work(3)),
        return_exceptions=True,
    )
    assert isinstance(answers[1], StorageError)
    assert [task.id for task in await queue.get_tasks()] == [answers[0], answers[2], answers[3]]


@once
@pytest.mark.asyncio
@pytest.mark.parametrize("after_commit", [False, True])
async def test_a_call_may_delete_what_the_worker_ends_in_the_same_step(
    make_queue: MakeQueue, clock: FakeQueueClock, after_commit: bool
) -> None:
    """S13.3: an uncertain joint write of an outcome and of the deletion of that task is brought to its end."""
    flaky = FlakyStorage(RefusingMemory())
    queue, handler = make_queue(storage=flaky), Handler()
    queue.register(Work, handler)
    task_id = await queue.enqueue(Work(1))
    await queue.start()
    await handler.began.wait()
    await queue.get_tasks()
    flaky.fail("apply", after_commit=after_commit)
    async with time_goes_on(queue, clock):
        with collect_events(queue, TaskCompleted) as events:
            handler.released.set()
            await asyncio.sleep(0)
            await queue.delete(task_id)
            assert len(events) == 1
        assert await queue.get_task(task_id) is None
        await queue.wait(await queue.enqueue(Work(2)))


@once
@pytest.mark.asyncio
async def test_a_failed_outcome_that_is_refused_keeps_its_retry(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S10.1: the retry is due from when the attempt ended, and the attempts count the handler's starts."""
    stubborn = RefusingMemory()
    queue, counting = make_queue(storage=stubborn), Counting({1: 1})
    queue.register(Work, counting, retry_policy=RetryPolicy.fixed(max_attempts=2, delay=HOUR))
    task_id = await queue.enqueue(Work(1))
    stubborn.refuses = lambda task: task.status is TaskStatus.RETRY_SCHEDULED
    began = clock.now()
    async with time_goes_on(queue, clock):
        with queue.subscribe(QueueStorageFailure) as failures:
            await queue.start()
            for _ in range(10):
                await anext(failures)
        stubborn.refuses = None
        await run_until_idle(queue)
    task = await queue.get_task(task_id)
    assert task is not None
    assert (task.status, task.attempts, task.next_attempt_at) == (TaskStatus.RETRY_SCHEDULED, 1, began + HOUR)
