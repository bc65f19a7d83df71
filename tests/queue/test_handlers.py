"""Retries of failed attempts, and what a handler is given (S5.2, S5.8, S13.5)."""

from __future__ import annotations

import asyncio
import gc
import weakref
from datetime import timedelta
from typing import Any

import attrs
import pytest

from durable_queue import (
    DependencyFailurePolicy,
    FakeQueueClock,
    QueueStorage,
    RetryPolicy,
    TaskCancelledError,
    TaskCompleted,
    TaskContext,
    TaskFailed,
    TaskRetryScheduled,
    TaskStatus,
)
from durable_queue.testing import collect_events
from tests.queue.conftest import MakeQueue
from tests.queue.handler_support import NOW, SECOND, run, succeed
from tests.support import Anything, Other, Work


@pytest.mark.asyncio
async def test_an_exception_is_retried_while_attempts_are_left(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S5.2: max_attempts starts in all, each after its delay, then failed; each event carries its attempt."""
    queue = make_queue()
    attempts: list[tuple[int, int]] = []

    async def work(task: Work, context: TaskContext) -> None:
        attempts.append((context.attempt, context.max_attempts))
        raise OSError(f"attempt {context.attempt}")

    policy = RetryPolicy.exponential(max_attempts=3, initial_delay=SECOND)
    queue.register(Work, work, retry_policy=policy)
    with collect_events(queue, TaskRetryScheduled, TaskFailed) as events:
        task_id = await queue.enqueue(Work())
        await queue.start()
        for delay in (SECOND, 2 * SECOND):
            await queue.drain()
            record = await queue.get_task(task_id)
            assert record.status is TaskStatus.RETRY_SCHEDULED
            assert record.next_attempt_at == clock.now() + delay
            clock.advance(delay)
        record = await queue.wait(task_id)

    assert attempts == [(1, 3), (2, 3), (3, 3)]
    assert (record.status, record.attempts, record.last_failure.error) == (TaskStatus.FAILED, 3, "attempt 3")
    assert [(type(event), event.attempt, event.failure.error) for event in events] == [
        (TaskRetryScheduled, 1, "attempt 1"),
        (TaskRetryScheduled, 2, "attempt 2"),
        (TaskFailed, 3, "attempt 3"),
    ]


@pytest.mark.asyncio
async def test_one_attempt_is_the_default(make_queue: MakeQueue) -> None:
    """S5.2: without a policy, and with max_attempts=1, the handler starts once."""
    calls = 0

    async def work(task: Work, context: TaskContext) -> None:
        nonlocal calls
        calls += 1
        raise OSError

    queue = make_queue()
    record = await run(queue, work)
    second = await queue.enqueue(Work(), retry_policy=RetryPolicy.fixed(max_attempts=1, delay=NOW))

    assert (await queue.wait(second)).status is record.status is TaskStatus.FAILED
    assert calls == 2


@pytest.mark.asyncio
@pytest.mark.parametrize("answer", [False, 0, None, ZeroDivisionError("in retry_if")])
async def test_retry_if_may_refuse(make_queue: MakeQueue, answer: Any) -> None:
    """S5.2: retry_if is asked with the error; false, or an error of its own, means no."""
    asked: list[BaseException] = []

    def retry_if(error: BaseException) -> bool:
        asked.append(error)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def work(task: Work, context: TaskContext) -> None:
        raise OSError("x")

    policy = RetryPolicy.fixed(max_attempts=3, delay=NOW)
    record = await run(make_queue(), work, retry_policy=policy, retry_if=retry_if)

    assert (record.status, record.attempts) == (TaskStatus.FAILED, 1)
    assert [type(error) for error in asked] == [OSError]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("answer", "delay"),
    [
        (timedelta(seconds=7), timedelta(seconds=7)),
        (timedelta(0), timedelta(0)),
        (timedelta(days=365), timedelta(days=365)),
        (None, SECOND),
        (timedelta(seconds=-1), SECOND),
        (timedelta(days=366), SECOND),
        (7, SECOND),
        (ZeroDivisionError("in retry_delay"), SECOND),
    ],
)
async def test_retry_delay_may_choose_the_wait(
    make_queue: MakeQueue, clock: FakeQueueClock, answer: Any, delay: timedelta
) -> None:
    """S5.2: retry_delay chooses the wait; None, an error or an invalid answer falls back to the policy."""
    queue = make_queue()

    def retry_delay(error: BaseException) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def work(task: Work, context: TaskContext) -> None:
        if context.attempt == 1:
            raise OSError("x")

    queue.register(
        Work, work, retry_policy=RetryPolicy.fixed(max_attempts=2, delay=SECOND), retry_delay=retry_delay
    )
    with collect_events(queue, TaskRetryScheduled) as events:
        task_id = await queue.enqueue(Work())
        await queue.start()
        await queue.drain()
        if delay:
            assert (await queue.get_task(task_id)).next_attempt_at == clock.now() + delay
        clock.advance(delay)

        assert (await queue.wait(task_id)).attempts == 2
    assert [event.next_attempt_at - event.at for event in events] == [delay]


@pytest.mark.asyncio
@pytest.mark.parametrize("plain", [False, True])
async def test_task_cancelled_error_cancels(make_queue: MakeQueue, plain: bool) -> None:
    """S13.5: TaskCancelledError raised by a handler cancels the task, without a retry; dependents follow."""
    queue = make_queue()

    async def work(task: Work, context: TaskContext) -> None:
        raise TaskCancelledError("not needed any more")

    def threaded(task: Work, context: TaskContext) -> None:
        raise TaskCancelledError("not needed any more")

    queue.register(
        Work, threaded if plain else work, retry_policy=RetryPolicy.fixed(max_attempts=3, delay=NOW)
    )
    queue.register(Other, succeed)
    task_id = await queue.enqueue(Work())
    dependent = await queue.enqueue(Other(), depends_on=[task_id])
    await queue.start()
    record = await queue.wait(task_id)

    assert (record.status, record.attempts) == (TaskStatus.CANCELLED, 1)
    assert record.last_failure.error == "not needed any more"
    assert (await queue.get_task(dependent)).status is TaskStatus.CANCELLED


@attrs.frozen
class Changed:
    """What a newer program has made of the task type "work"."""

    task_type = "work"
    text: str


@pytest.mark.asyncio
async def test_a_payload_that_does_not_decode_fails_once(
    make_queue: MakeQueue, storage: QueueStorage
) -> None:
    """S5.2: the handler is not called, the attempt is not repeated, the message names the path."""
    old = make_queue()
    old.register(Work, None)
    policy = RetryPolicy.fixed(max_attempts=3, delay=NOW)
    task_id = await old.enqueue(Work(5), retry_policy=policy)
    await old.close()
    queue, calls = make_queue(storage=storage), []
    queue.register(Changed, lambda task, context: calls.append(task))
    await queue.start()
    record = await queue.wait(task_id)

    assert (record.status, record.attempts, calls) == (TaskStatus.FAILED, 1, [])
    assert record.last_failure.error_type == "PayloadError"
    assert "text" in record.last_failure.error
    assert "5" not in record.last_failure.error.replace(task_id, "")


@pytest.mark.asyncio
@pytest.mark.parametrize("enqueue_only", [False, True])
async def test_rec_03_an_unregistered_type_fails_and_blocks_nothing(
    make_queue: MakeQueue, storage: QueueStorage, enqueue_only: bool
) -> None:
    """S5.2: a task whose type has no handler here fails with UnknownTaskTypeError; its neighbours run."""
    old = make_queue()
    old.register(Work, None)
    old.register(Other, None)
    policy = RetryPolicy.fixed(max_attempts=3, delay=NOW)
    ids = [await old.enqueue(task, retry_policy=policy) for task in (Work(1), Other(), Work(2))]
    await old.close()
    queue = make_queue(storage=storage)
    queue.register(Work, succeed)
    if enqueue_only:
        queue.register(Other, None)
    await queue.start()
    records = [await queue.wait(task_id) for task_id in ids]

    assert [record.status for record in records] == [
        TaskStatus.COMPLETED,
        TaskStatus.FAILED,
        TaskStatus.COMPLETED,
    ]
    assert (records[1].attempts, records[1].last_failure.error_type) == (1, "UnknownTaskTypeError")
    assert "'other'" in records[1].last_failure.error


@pytest.mark.asyncio
async def test_mem_02_running_handlers_cannot_be_collected(make_queue: MakeQueue) -> None:
    """S5.1: a handler that waits for something only it holds is not lost to the garbage collector."""
    queue = make_queue(max_concurrent_tasks=500)
    futures: list[weakref.ref[asyncio.Future[int]]] = []

    async def work(task: Work, context: TaskContext) -> int:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        futures.append(weakref.ref(future))
        return await future

    queue.register(Work, work)
    ids = await queue.enqueue_all([Work(n) for n in range(500)])
    with queue.subscribe(TaskCompleted) as events:
        await queue.start()
        while len(futures) < 500:
            gc.collect(0)
            await asyncio.sleep(0)
        for _ in range(3):
            gc.collect()
            await asyncio.sleep(0)
        for reference in futures:
            future = reference()
            assert future is not None
            future.set_result(7)
        assert {(await anext(events)).task_id for _ in ids} == set(ids)

    assert (await queue.get_task(ids[-1])).result == 7


@pytest.mark.asyncio
async def test_mem_02_finished_tasks_and_waits_leave_nothing_behind(make_queue: MakeQueue) -> None:
    """S5.1: rounds of finished tasks and of waits that timed out do not add up in the queue."""
    queue, release = make_queue(max_concurrent_tasks=8), asyncio.Event()
    queue.register(Work, succeed)

    async def wait(task: Other, context: TaskContext) -> None:
        await release.wait()

    queue.register(Other, wait)
    await queue.start()
    blocked = await queue.enqueue(Other())

    async def round_of_work() -> int:
        for task_id in await queue.enqueue_all([Work(n) for n in range(50)]):
            await queue.wait(task_id)
        for _ in range(50):
            with pytest.raises(TimeoutError):
                await queue.wait(blocked, timeout=NOW)
        gc.collect()
        return sum(
            type(thing).__module__.startswith("durable_queue._engine") or isinstance(thing, asyncio.Future)
            for thing in gc.get_objects()
        )

    await round_of_work()
    second = await round_of_work()
    later = [await round_of_work() for _ in range(3)]
    release.set()

    # Fewer when something of an earlier test has gone meanwhile.
    assert max(later) <= second
    await queue.wait(blocked)


@pytest.mark.asyncio
@pytest.mark.parametrize("plain", [False, True])
async def test_results_of_completed_dependencies_can_be_read(make_queue: MakeQueue, plain: bool) -> None:
    """S5.8: by id; one that failed, or is no longer stored, is absent."""
    queue = make_queue()
    seen: list[dict[str, Any]] = []

    async def first(task: Other, context: TaskContext) -> Any:
        if task.n == 2:
            raise OSError
        return {"n": task.n} if task.n else None

    async def join(task: Work, context: TaskContext) -> None:
        seen.append(await context.dependency_results())

    def join_in_thread(task: Work, context: TaskContext) -> None:
        seen.append(context.call(context.dependency_results()))

    queue.register(Other, first)
    queue.register(Work, join_in_thread if plain else join)
    nothing, one, failed = await queue.enqueue_all([Other(0), Other(1), Other(2)])
    joined = await queue.enqueue(
        Work(), depends_on=[one, nothing, failed], on_dependency_failure=DependencyFailurePolicy.RUN
    )
    await queue.start()
    await queue.wait(joined)

    assert seen == [{nothing: None, one: {"n": 1}}]


@pytest.mark.asyncio
async def test_the_context_tells_the_keys_and_the_attempt(make_queue: MakeQueue) -> None:
    """S2.3: the idempotency key defaults to the task's id and is the same in every attempt."""
    queue = make_queue()
    seen: list[tuple[Any, ...]] = []

    async def work(task: Work, context: TaskContext) -> None:
        seen.append((context.task_id, context.attempt, context.idempotency_key, context.deduplication_key))
        if context.attempt == 1:
            raise OSError

    queue.register(Work, work, retry_policy=RetryPolicy.fixed(max_attempts=2, delay=NOW))
    await queue.start()
    plain = await queue.enqueue(Work(1))
    await queue.wait(plain)
    keyed = await queue.enqueue(Work(2), idempotency_key="i", deduplication_key="d")
    await queue.wait(keyed)

    assert seen == [
        (plain, 1, plain, None),
        (plain, 2, plain, None),
        (keyed, 1, "i", "d"),
        (keyed, 2, "i", "d"),
    ]


@pytest.mark.asyncio
async def test_every_attempt_gets_a_task_of_its_own(make_queue: MakeQueue) -> None:
    """S1.6: what a handler does to its task is not seen by the next attempt."""
    queue = make_queue()
    seen: list[Any] = []

    async def work(task: Anything, context: TaskContext) -> None:
        seen.append(list(task.value))
        task.value.append(context.attempt)
        if context.attempt == 1:
            raise OSError

    queue.register(Anything, work, retry_policy=RetryPolicy.fixed(max_attempts=2, delay=NOW))
    given = ["a"]
    task_id = await queue.enqueue(Anything(given))
    given.append("b")
    await queue.start()
    record = await queue.wait(task_id)

    assert seen == [["a"], ["a"]]
    assert record.payload == {"value": ["a"]}
