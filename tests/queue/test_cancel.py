"""Cancellation of one task, wherever it is in its life (S6.1)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from durable_queue import (
    DependencyFailurePolicy,
    DurableQueue,
    FakeQueueClock,
    QueueStorage,
    RetryPolicy,
    StoredTask,
    TaskCancelled,
    TaskCompleted,
    TaskContext,
    TaskFailed,
    TaskNotFoundError,
    TaskRetryScheduled,
    TaskStarted,
    TaskStatus,
)
from durable_queue.testing import FlakyStorage, collect_events
from tests.queue.conftest import MakeQueue
from tests.queue.handler_support import Handler, succeed
from tests.support import Other, Work

HOUR = timedelta(hours=1)


async def get(queue: DurableQueue, task_id: str) -> StoredTask:
    """Return a task that is there."""
    task = await queue.get_task(task_id)
    assert task is not None
    return task


@pytest.mark.asyncio
@pytest.mark.parametrize("state", ["idle", "running", "paused"])
@pytest.mark.parametrize("where", ["pending", "scheduled", "waiting", "back-off", "handed off"])
async def test_can_02_a_task_without_a_handler_is_cancelled_at_once(
    make_queue: MakeQueue, clock: FakeQueueClock, where: str, state: str
) -> None:
    """S6.1: what has no running handler ends at once, frees its key, and settles its dependents."""

    async def run(task: Other, context: TaskContext) -> None:
        if where == "back-off":
            raise RuntimeError
        context.hand_off("r")

    starts: list[int] = []

    async def note(task: Work, context: TaskContext) -> None:
        starts.append(task.n)

    queue = make_queue()
    queue.register(Work, note)
    queue.register(Other, run, retry_policy=RetryPolicy.fixed(max_attempts=2, delay=HOUR))
    later = await queue.enqueue(Work(0), delay=2 * HOUR)
    if where in ("back-off", "handed off"):
        await queue.start()
        target = await queue.enqueue(Other(), deduplication_key="k")
        await queue.drain()
        await (queue.pause() if state == "paused" else queue.stop())
        if state == "running":
            await queue.start()
    else:
        target = await queue.enqueue(
            Work(1),
            deduplication_key="k",
            delay=HOUR if where == "scheduled" or state == "running" else None,
            depends_on=[later] if where == "waiting" else [],
        )
        if state != "idle":
            await queue.start(paused=state == "paused")
    attempts = (await get(queue, target)).attempts
    cancelled = await queue.enqueue(Work(2), depends_on=[target])
    runs = await queue.enqueue(
        Work(3), depends_on=[target], on_dependency_failure=DependencyFailurePolicy.RUN
    )
    with collect_events(queue, TaskCancelled) as events:
        await queue.cancel(target)
        task = await get(queue, target)
        await queue.cancel(target)
        assert [event.task_id for event in events] == [target, cancelled]
    assert (task.status, task.attempts) == (TaskStatus.CANCELLED, attempts)
    assert task.last_failure is not None
    assert task.last_failure.error_type == "TaskCancelledError"
    assert (await get(queue, cancelled)).status is TaskStatus.CANCELLED
    assert await get(queue, target) == task
    assert await queue.enqueue(Work(4), deduplication_key="k", delay=HOUR) != target
    if state == "idle":
        await queue.start()
    elif state == "paused":
        await queue.resume()
    await queue.wait(runs)
    clock.advance(HOUR)
    await queue.drain()
    assert starts == [3, 4]
    assert await get(queue, target) == task


@pytest.mark.asyncio
async def test_can_02_an_unknown_id_is_an_error_and_is_not_remembered(make_queue: MakeQueue) -> None:
    """S6.1: cancelling an id that is not stored raises, and a later task of that id runs."""
    queue = make_queue(id_generator=lambda: "later")
    queue.register(Work, succeed)
    await queue.start()
    for force in (False, True):
        with pytest.raises(TaskNotFoundError, match="later"):
            await queue.cancel("later", force=force)
    assert await queue.get_tasks() == []
    assert (await queue.wait(await queue.enqueue(Work()))).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
@pytest.mark.parametrize("force", [True, False])
async def test_can_02_a_terminal_task_is_left_alone(make_queue: MakeQueue, *, force: bool) -> None:
    """S6.1: cancelling a task that has ended changes and announces nothing."""

    async def fail(task: Other, context: object) -> None:
        raise RuntimeError

    queue = make_queue()
    queue.register(Work, succeed)
    queue.register(Other, fail)
    await queue.start()
    ids = [await queue.enqueue(Work()), await queue.enqueue(Other()), await queue.enqueue(Work(), delay=HOUR)]
    await queue.cancel(ids[2])
    await queue.drain()
    before = await queue.get_tasks()
    assert [task.status for task in before] == [TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED]
    with collect_events(queue) as events:
        for task_id in ids:
            await queue.cancel(task_id, force=force)
        assert list(events) == []
    assert await queue.get_tasks() == before


@pytest.mark.asyncio
async def test_a_running_task_is_asked_and_may_complete(make_queue: MakeQueue, storage: QueueStorage) -> None:
    """S6.1: a running handler sees the request, also one that waits for it; a value it returns completes the task."""
    seen: list[bool] = []
    began = asyncio.Event()

    async def run(task: Work, context: TaskContext) -> int:
        seen.append(context.cancellation_requested)
        began.set()
        await context.wait_cancelled()
        seen.append(context.cancellation_requested)
        return 7

    queue = make_queue()
    queue.register(Work, run)
    queue.register(Other, succeed)
    await queue.start()
    task_id = await queue.enqueue(Work())
    dependent = await queue.enqueue(Other(), depends_on=[task_id])
    await began.wait()
    with collect_events(queue) as events:
        await queue.cancel(task_id)
        stored = await storage.get(task_id)
        assert stored is not None
        assert stored.cancel_requested
        assert (await queue.wait(task_id)).result == 7
        assert (await queue.wait(dependent)).status is TaskStatus.COMPLETED
    assert seen == [False, True]
    assert not [event for event in events if isinstance(event, TaskCancelled)]


@pytest.mark.asyncio
async def test_a_running_task_that_raises_after_the_request_is_cancelled(make_queue: MakeQueue) -> None:
    """S6.1: an exception after the request cancels the task with that error, and it is not retried."""
    began = asyncio.Event()

    async def run(task: Work, context: TaskContext) -> None:
        began.set()
        await context.wait_cancelled()
        raise LookupError("half done")

    queue = make_queue()
    queue.register(Work, run, retry_policy=RetryPolicy.fixed(max_attempts=3, delay=timedelta(0)))
    await queue.start()
    task_id = await queue.enqueue(Work())
    dependent = await queue.enqueue(Work(), depends_on=[task_id])
    await began.wait()
    with collect_events(queue, TaskCancelled, TaskFailed, TaskRetryScheduled) as events:
        await queue.cancel(task_id)
        task = await queue.wait(task_id)
        assert [(type(event), event.task_id) for event in events] == [
            (TaskCancelled, task_id),
            (TaskCancelled, dependent),
        ]
    assert (task.status, task.attempts) == (TaskStatus.CANCELLED, 1)
    assert task.last_failure is not None
    assert task.last_failure.error_type == "LookupError"


@pytest.mark.asyncio
async def test_a_plain_function_sees_the_request(make_queue: MakeQueue) -> None:
    """S6.1: a handler in a thread sees the request, also a forced one, and its value completes the task."""
    began = asyncio.Event()

    def run(task: Work, context: TaskContext) -> str:
        context.call(_set(began))
        context.call(context.wait_cancelled())
        return f"asked: {context.cancellation_requested}"

    queue = make_queue()
    queue.register(Work, run)
    await queue.start()
    for force in (False, True):
        began.clear()
        task_id = await queue.enqueue(Work())
        await began.wait()
        await queue.cancel(task_id, force=force)
        assert (await queue.wait(task_id)).result == "asked: True"


async def _set(event: asyncio.Event) -> None:
    event.set()


@pytest.mark.asyncio
async def test_can_02_a_second_request_changes_nothing(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S6.1: a running task that was asked already keeps its record as it is."""
    handler = Handler()
    queue = make_queue()
    queue.register(Work, handler)
    await queue.start()
    task_id = await queue.enqueue(Work())
    await handler.began.wait()
    await queue.cancel(task_id)
    before = await get(queue, task_id)
    clock.advance(HOUR)
    await queue.cancel(task_id)
    assert await get(queue, task_id) == before
    handler.released.set()
    assert (await queue.wait(task_id)).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
async def test_force_cancels_the_coroutine(make_queue: MakeQueue) -> None:
    """S6.1: `force` cancels the handler's coroutine, and the task is cancelled, not retried."""
    handler = Handler()
    queue = make_queue()
    queue.register(Work, handler, retry_policy=RetryPolicy.fixed(max_attempts=3, delay=timedelta(0)))
    await queue.start()
    task_id = await queue.enqueue(Work())
    await handler.began.wait()
    await queue.cancel(task_id)
    await queue.cancel(task_id, force=True)
    task = await queue.wait(task_id)
    assert handler.cancelled.is_set()
    assert (task.status, task.attempts) == (TaskStatus.CANCELLED, 1)


@pytest.mark.asyncio
async def test_can_01_a_value_returned_in_spite_of_force_completes(make_queue: MakeQueue) -> None:
    """S6.1: a handler that catches the forced cancellation and returns completes its task; it may be forced again."""
    handler = Handler(swallows=1)
    queue = make_queue()
    queue.register(Work, handler)
    queue.register(Other, succeed)
    await queue.start()
    task_id = await queue.enqueue(Work())
    dependent = await queue.enqueue(Other(), depends_on=[task_id])
    await handler.began.wait()
    await queue.cancel(task_id, force=True)
    await handler.cancelled.wait()
    assert (await get(queue, task_id)).status is TaskStatus.RUNNING
    handler.released.set()
    assert (await queue.wait(task_id)).status is TaskStatus.COMPLETED
    assert (await queue.wait(dependent)).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
async def test_a_handler_can_be_forced_again(make_queue: MakeQueue) -> None:
    """S6.1: a handler that has ignored one forced cancellation gets the next."""
    handler = Handler(swallows=1)
    queue = make_queue()
    queue.register(Work, handler)
    await queue.start()
    task_id = await queue.enqueue(Work())
    await handler.began.wait()
    await queue.cancel(task_id, force=True)
    await handler.cancelled.wait()
    await queue.cancel(task_id, force=True)
    assert (await queue.wait(task_id)).status is TaskStatus.CANCELLED


@pytest.mark.asyncio
async def test_can_01_force_before_the_first_line(make_queue: MakeQueue, storage: QueueStorage) -> None:
    """S6.1: a task that is forced between its claim and the first line of its handler ends without a start."""
    handler = Handler()
    queue = make_queue()
    queue.register(Work, handler)
    await queue.start(paused=True)
    task_id = await queue.enqueue(Work())
    with collect_events(queue) as events:
        await asyncio.gather(queue.resume(), queue.cancel(task_id, force=True))
        task = await queue.wait(task_id)
        assert [type(event) for event in events] == [TaskStarted, TaskCancelled]
    assert (task.status, task.attempts) == (TaskStatus.CANCELLED, 1)
    # A storage that takes one piece at a time reads for the call after the claim, and the handler begins meanwhile.
    assert handler.starts == (0 if storage.atomic else 1)


@pytest.mark.asyncio
async def test_can_01_cancel_against_completion(make_queue: MakeQueue) -> None:
    """S6.1: whenever the cancel comes, a task has one end and one terminal event, and its dependent agrees with it."""
    go = asyncio.Event()

    async def run(task: Work, context: TaskContext) -> int:
        await go.wait()
        return task.n

    queue = make_queue(max_concurrent_tasks=2)
    queue.register(Work, run)
    queue.register(Other, succeed)
    await queue.start()
    endings = set()
    for turns in range(80):
        go.clear()
        with collect_events(queue, TaskStarted, TaskCompleted, TaskCancelled, TaskFailed) as events:
            task_id = await queue.enqueue(Work(turns))
            dependent = await queue.enqueue(Other(), depends_on=[task_id])
            if turns % 4 < 2:
                go.set()
            for _ in range(turns // 4):
                await asyncio.sleep(0)
            call = asyncio.ensure_future(queue.cancel(task_id, force=turns % 2 == 0))
            if turns == 2:
                await call
            for _ in range(turns // 4):
                await asyncio.sleep(0)
            go.set()
            await call
            task = await queue.wait(task_id)
            after = await queue.wait(dependent)
            ends = [event for event in events if not isinstance(event, TaskStarted)]
        endings.add(task.status)
        assert task.status is after.status
        assert [event.task_id for event in ends] == [task_id, dependent]
        wanted = TaskCompleted if task.status is TaskStatus.COMPLETED else TaskCancelled
        assert [type(event) for event in ends] == [wanted, wanted]
        assert task.result == (turns if task.status is TaskStatus.COMPLETED else None)
    assert endings == {TaskStatus.COMPLETED, TaskStatus.CANCELLED}


@pytest.mark.asyncio
async def test_the_request_survives_a_restart(make_queue: MakeQueue, storage: QueueStorage) -> None:
    """S6.1, S7.2: a task that was asked to stop and then interrupted is cancelled at the next start, not retried."""
    await storage.save(
        StoredTask(
            id="left",
            type="work",
            status=TaskStatus.RUNNING,
            attempts=1,
            retry_policy=RetryPolicy.fixed(max_attempts=9, delay=timedelta(0)),
            created_at=FakeQueueClock().now(),
        )
    )
    queue = make_queue()
    queue.register(Work, succeed)
    await queue.cancel("left")
    assert (await get(queue, "left")).status is TaskStatus.RUNNING
    again = make_queue()
    again.register(Work, succeed)
    await again.start()
    task = await get(again, "left")
    assert (task.status, task.attempts) == (TaskStatus.CANCELLED, 1)


@pytest.mark.asyncio
async def test_slots_are_all_there_afterwards(make_queue: MakeQueue) -> None:
    """S6.1: cancelled tasks of every kind leave no slot behind."""
    handler = Handler()
    queue = make_queue(max_concurrent_tasks=3)
    queue.register(Work, handler)
    both = asyncio.Barrier(3)

    async def meet(task: Other, context: object) -> None:
        await both.wait()

    queue.register(Other, meet)
    await queue.start()
    ids = await queue.enqueue_all([Work(n) for n in range(9)])
    await handler.began.wait()
    for task_id in ids:
        await queue.cancel(task_id, force=True)
    for task_id in ids:
        assert (await queue.wait(task_id)).status is TaskStatus.CANCELLED
    for task_id in await queue.enqueue_all([Other(), Other(), Other()]):
        assert (await queue.wait(task_id)).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
async def test_a_caller_that_leaves_still_tells_the_handler(
    make_queue: MakeQueue, storage: QueueStorage
) -> None:
    """S2.7, S6.1: a cancel whose caller is cancelled during its write reaches the handler all the same."""
    flaky = FlakyStorage(storage)
    handler = Handler()
    queue = make_queue(storage=flaky)
    queue.register(Work, handler)
    await queue.start()
    task_id = await queue.enqueue(Work())
    await handler.began.wait()
    gate = flaky.gate("apply")
    call = asyncio.ensure_future(queue.cancel(task_id, force=True))
    await gate.reached()
    call.cancel()
    assert not handler.contexts[0].cancellation_requested
    gate.release()
    assert (await queue.wait(task_id)).status is TaskStatus.CANCELLED
    assert handler.cancelled.is_set()
