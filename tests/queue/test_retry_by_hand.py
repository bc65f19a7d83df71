"""Retry by hand: a fresh start under the same id, and the dependents that fell with the task (S6.3, S13.9, S13.14)."""

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
    StorageError,
    StoredTask,
    TaskContext,
    TaskGraph,
    TaskNotFoundError,
    TaskStateError,
    TaskStatus,
)
from durable_queue.testing import FAKE_START, FlakyStorage
from tests.queue.conftest import MakeQueue
from tests.queue.handler_support import Handler, succeed
from tests.support import Other, Work

HOUR = timedelta(hours=1)
TWICE = RetryPolicy.fixed(max_attempts=2, delay=timedelta(0))


async def get(queue: DurableQueue, task_id: str) -> StoredTask:
    """Return a task that is there."""
    task = await queue.get_task(task_id)
    assert task is not None
    return task


async def statuses(queue: DurableQueue, ids: dict[str, str]) -> dict[str, str]:
    """Return the status of each of some tasks by its name."""
    return {name: (await get(queue, task_id)).status.value for name, task_id in ids.items()}


class Failing:
    """A handler of `Other` that fails so many times, then succeeds."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.starts = 0

    async def __call__(self, task: Other, context: TaskContext) -> None:
        self.starts += 1
        if self.left:
            self.left -= 1
            raise RuntimeError


@pytest.mark.asyncio
async def test_a_retry_is_a_fresh_start(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S6.3, S13.9: id, order and keys stay; attempts, requests, times and the result are those of a new task."""
    handler = Failing(2)
    queue = make_queue()
    queue.register(Other, handler)
    await queue.start()
    task_id = await queue.enqueue(
        Other(5),
        retry_policy=TWICE,
        deduplication_key="k",
        idempotency_key="i",
        group="g",
        priority=3,
        delay=HOUR,
        expires_in=2 * HOUR,
    )
    clock.advance(HOUR)
    await queue.drain()
    failed = await get(queue, task_id)
    assert (failed.status, failed.attempts) == (TaskStatus.FAILED, 2)
    await queue.pause()
    clock.advance(5 * HOUR)
    assert await queue.retry(task_id) == task_id
    task = await get(queue, task_id)
    assert (task.status, task.attempts, task.interruptions) == (TaskStatus.PENDING, 0, 0)
    assert (task.next_attempt_at, task.expires_at, task.result) == (None, None, None)
    assert not task.cancel_requested
    for name in ("id", "type", "payload", "created_at", "sequence", "deduplication_key", "idempotency_key"):
        assert getattr(task, name) == getattr(failed, name)
    for name in ("group", "priority", "retry_policy", "depends_on"):
        assert getattr(task, name) == getattr(failed, name)
    assert task.updated_at == FAKE_START + 6 * HOUR
    await queue.resume()
    await queue.drain()
    task = await get(queue, task_id)
    assert (task.status, task.attempts) == (TaskStatus.COMPLETED, 1)


@pytest.mark.asyncio
async def test_a_retry_keeps_its_place_in_the_order(make_queue: MakeQueue) -> None:
    """S6.3: a retried task starts before those that were enqueued after it."""
    order: list[int] = []

    async def run(task: Work, context: TaskContext) -> None:
        order.append(task.n)
        if task.n == 0 and order.count(0) == 1:
            raise RuntimeError

    queue = make_queue()
    queue.register(Work, run)
    await queue.start()
    first = await queue.enqueue(Work(0))
    await queue.drain()
    await queue.pause()
    await queue.enqueue(Work(1))
    await queue.retry(first)
    await queue.resume()
    await queue.drain()
    assert order == [0, 0, 1]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "status", ["pending", "waiting", "running", "retryScheduled", "completed", "unknown"]
)
async def test_only_failed_and_cancelled_tasks(make_queue: MakeQueue, status: str) -> None:
    """S6.3: any other task is refused with its status and left as it is; an id that is not stored is not found."""
    handler = Handler()
    queue = make_queue()
    queue.register(Work, handler)
    queue.register(Other, Failing(1))
    await queue.start()
    if status == "unknown":
        with pytest.raises(TaskNotFoundError, match="no-such-task"):
            await queue.retry("no-such-task")
        return
    later = await queue.enqueue(Work(), delay=HOUR)
    target = later
    if status == "waiting":
        target = await queue.enqueue(Work(), depends_on=[later])
    elif status == "retryScheduled":
        target = await queue.enqueue(Other(), retry_policy=RetryPolicy.fixed(max_attempts=2, delay=HOUR))
        await queue.drain()
    elif status in ("running", "completed"):
        target = await queue.enqueue(Work())
        await handler.began.wait()
        if status == "completed":
            handler.released.set()
            await queue.wait(target)
    before = await get(queue, target)
    assert before.status.value == status
    for dependents in (False, True):
        with pytest.raises(TaskStateError, match=f"{target}.*{status}; only failed or cancelled"):
            await queue.retry(target, dependents=dependents)
    assert await get(queue, target) == before
    handler.released.set()


@pytest.mark.asyncio
async def test_a_cancelled_and_an_expired_task_can_be_retried(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S6.3: a task that was cancelled, also by force or by expiry, runs after a retry and is not asked to stop."""
    handler = Handler()
    queue = make_queue()
    queue.register(Work, handler)
    queue.register(Other, succeed)
    await queue.start()
    expired = await queue.enqueue(Other(), delay=HOUR, expires_in=HOUR / 2)
    clock.advance(HOUR)
    forced = await queue.enqueue(Work())
    await handler.began.wait()
    await queue.cancel(forced, force=True)
    await queue.wait(forced)
    handler.began.clear()
    for task_id in (expired, forced):
        await queue.drain()
        assert (await get(queue, task_id)).status is TaskStatus.CANCELLED
        await queue.retry(task_id)
        if task_id == forced:
            await handler.began.wait()
            assert not handler.contexts[-1].cancellation_requested
            handler.released.set()
        assert (await queue.wait(task_id)).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
async def test_a_new_policy(make_queue: MakeQueue) -> None:
    """S6.3: a retry may bring its own policy, and nothing but a policy is taken for one."""
    handler = Failing(3)
    queue = make_queue()
    queue.register(Other, handler)
    await queue.start()
    task_id = await queue.enqueue(Other())
    assert (await queue.wait(task_id)).attempts == 1
    with pytest.raises(TypeError, match="retry_policy"):
        await queue.retry(task_id, retry_policy="none")  # type: ignore[arg-type]  # what is tested
    await queue.retry(task_id, retry_policy=RetryPolicy.fixed(max_attempts=3, delay=timedelta(0)))
    task = await queue.wait(task_id)
    assert (task.status, task.attempts, handler.starts) == (TaskStatus.COMPLETED, 3, 4)


@pytest.mark.asyncio
@pytest.mark.parametrize("policy", [DependencyFailurePolicy.CANCEL, DependencyFailurePolicy.FAIL])
async def test_a_dependency_that_did_not_complete_is_named(
    make_queue: MakeQueue, policy: DependencyFailurePolicy
) -> None:
    """S6.3: a retry is refused while a dependency did not complete; once that is retried the task waits for it."""
    queue = make_queue()
    queue.register(Other, Failing(1))
    queue.register(Work, succeed)
    await queue.start()
    parent = await queue.enqueue(Other())
    child = await queue.enqueue(Work(), depends_on=[parent], on_dependency_failure=policy)
    await queue.drain()
    with pytest.raises(TaskStateError, match=f"{parent}.*failed"):
        await queue.retry(child)
    await queue.pause()
    await queue.retry(parent)
    await queue.retry(child)
    task = await get(queue, child)
    assert (task.status, task.attempts) == (TaskStatus.WAITING, 0)
    await queue.resume()
    assert (await queue.wait(child)).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
async def test_the_policy_run_is_not_refused(make_queue: MakeQueue) -> None:
    """S6.3: a dependent with the policy `run` may be retried although its dependency did not complete, or is gone."""
    starts = 0

    async def twice(task: Work, context: TaskContext) -> None:
        nonlocal starts
        starts += 1
        if starts < 3:
            raise RuntimeError

    queue = make_queue()
    queue.register(Other, Failing(9))
    queue.register(Work, twice)
    await queue.start()
    parent = await queue.enqueue(Other())
    child = await queue.enqueue(
        Work(), depends_on=[parent], on_dependency_failure=DependencyFailurePolicy.RUN
    )
    assert (await queue.wait(child)).status is TaskStatus.FAILED
    await queue.retry(child)
    assert (await queue.wait(child)).status is TaskStatus.FAILED
    await queue.delete(parent)
    await queue.retry(child)
    assert (await queue.wait(child)).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
@pytest.mark.parametrize("had_started", [True, False])
async def test_a_dependency_that_is_gone(make_queue: MakeQueue, *, had_started: bool) -> None:
    """S13.14: for a task that had started a missing dependency counts as completed, for another it does not."""
    queue = make_queue()
    queue.register(Work, succeed)
    queue.register(Other, Failing(1))
    await queue.start()
    parent = await queue.enqueue(Work())
    child = await queue.enqueue(Other(), depends_on=[parent], delay=None if had_started else HOUR)
    await queue.wait(parent)
    if not had_started:
        await queue.cancel(child)
    await queue.wait(child)
    await queue.delete(parent)
    if had_started:
        await queue.retry(child)
        assert (await queue.wait(child)).status is TaskStatus.COMPLETED
    else:
        with pytest.raises(TaskStateError, match=f"{parent}.*missing"):
            await queue.retry(child)
        assert (await get(queue, child)).status is TaskStatus.CANCELLED


@pytest.mark.asyncio
@pytest.mark.parametrize("dependents", [True, False])
async def test_dep_08_retrying_a_parent_whose_dependents_were_cancelled(
    make_queue: MakeQueue, *, dependents: bool
) -> None:
    """S6.3: with `dependents` all that fell with the task come back, at any depth, and nothing else does."""
    handler = Failing(3)
    queue = make_queue()
    queue.register(Other, handler)
    queue.register(Work, succeed)
    await queue.start(paused=True)
    ids = {"P": await queue.enqueue(Other(), retry_policy=TWICE)}
    ids["C"] = await queue.enqueue(Work(), depends_on=[ids["P"]], retry_policy=TWICE)
    ids["G"] = await queue.enqueue(
        Work(), depends_on=[ids["C"]], on_dependency_failure=DependencyFailurePolicy.FAIL
    )
    ids["X"] = await queue.enqueue(Work(), depends_on=[ids["P"]])
    ids["Y"] = await queue.enqueue(Work(), depends_on=[ids["X"]])
    await queue.cancel(ids["X"])
    await queue.resume()
    await queue.drain()
    assert handler.starts == 2
    ended = {"P": "failed", "C": "cancelled", "G": "failed", "X": "cancelled", "Y": "cancelled"}
    assert await statuses(queue, ids) == ended
    await queue.retry(ids["P"], dependents=dependents)
    await queue.drain()
    assert handler.starts == 4
    if dependents:
        wanted = {"P": "completed", "C": "completed", "G": "completed", "X": "cancelled", "Y": "cancelled"}
        assert await statuses(queue, ids) == wanted
        return
    assert await statuses(queue, ids) == ended | {"P": "completed"}
    await queue.retry(ids["C"])
    assert (await queue.wait(ids["C"])).status is TaskStatus.COMPLETED
    await queue.retry(ids["X"], dependents=True)
    await queue.drain()
    assert (await get(queue, ids["Y"])).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
async def test_a_diamond_comes_back_whole(make_queue: MakeQueue) -> None:
    """S13.9: the join of a diamond is reopened once its last branch is, and runs after both."""
    handler = Failing(1)
    order: list[int] = []

    async def note(task: Work, context: TaskContext) -> None:
        order.append(task.n)

    queue = make_queue()
    queue.register(Other, handler)
    queue.register(Work, note)
    await queue.start()
    graph = TaskGraph()
    graph.add(Work(3), name="join", depends_on=["left", "right"])
    graph.add(Work(1), name="left", depends_on=["top"])
    graph.add(Work(2), name="right", depends_on=["top"])
    graph.add(Other(), name="top")
    ids = await queue.enqueue_graph(graph)
    await queue.drain()
    assert set((await statuses(queue, ids)).values()) == {"failed", "cancelled"}
    await queue.retry(ids["top"], dependents=True)
    await queue.drain()
    assert order == [1, 2, 3]


@pytest.mark.asyncio
async def test_a_dependent_that_something_else_blocks_stays(make_queue: MakeQueue) -> None:
    """S13.9: a dependent of two failed tasks comes back with the second of them, not with the first."""
    queue = make_queue()
    queue.register(Other, Failing(2))
    queue.register(Work, succeed)
    await queue.start()
    first, second = await queue.enqueue_all([Other(1), Other(2)])
    both = await queue.enqueue(Work(), depends_on=[first, second])
    behind = await queue.enqueue(Work(), depends_on=[both])
    await queue.drain()
    await queue.retry(first, dependents=True)
    await queue.drain()
    assert (await get(queue, both)).status is TaskStatus.CANCELLED
    await queue.retry(second, dependents=True)
    await queue.drain()
    assert (await get(queue, both)).status is TaskStatus.COMPLETED
    assert (await get(queue, behind)).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
@pytest.mark.parametrize("where", ["active", "twice"])
async def test_a_held_key_refuses_the_whole_call(make_queue: MakeQueue, where: str) -> None:
    """S13.9: when one dependent's key is taken, by an active task or by another of them, nothing is reopened."""
    queue = make_queue()
    queue.register(Other, Failing(1))
    queue.register(Work, succeed)
    await queue.start()
    parent = await queue.enqueue(Other())
    first = await queue.enqueue(Work(1), depends_on=[parent])
    held = await queue.enqueue(Work(2), depends_on=[first], deduplication_key="secret-key")
    await queue.drain()
    if where == "active":
        holder = await queue.enqueue(Work(3), deduplication_key="secret-key", delay=HOUR)
    else:
        holder = held
        held = await queue.enqueue(Work(3), depends_on=[first], deduplication_key="secret-key")
    before = await queue.get_tasks()
    with pytest.raises(TaskStateError, match=holder) as caught:
        await queue.retry(parent, dependents=True)
    assert "secret-key" not in str(caught.value)
    assert await queue.get_tasks() == before
    await queue.retry(parent)
    assert (await get(queue, held)).status is TaskStatus.CANCELLED


@pytest.mark.asyncio
async def test_an_overdue_holder_does_not_refuse(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S13.13: a holder of the key that is past its expires_at is settled in the same step and refuses no retry."""
    queue = make_queue()
    queue.register(Work, succeed)
    target = await queue.enqueue(Work(), deduplication_key="k")
    await queue.cancel(target)
    holder = await queue.enqueue(Work(), deduplication_key="k", expires_in=HOUR)
    clock.advance(HOUR)
    await queue.retry(target)
    assert (await get(queue, holder)).status is TaskStatus.CANCELLED
    assert (await get(queue, target)).status is TaskStatus.PENDING


@pytest.mark.asyncio
async def test_of_two_retries_at_once_one_counts(make_queue: MakeQueue) -> None:
    """S6.3: a second retry finds the task pending and is refused; the task runs once."""
    handler = Failing(1)
    queue = make_queue()
    queue.register(Other, handler)
    await queue.start()
    task_id = await queue.enqueue(Other())
    await queue.drain()
    answers = await asyncio.gather(queue.retry(task_id), queue.retry(task_id), return_exceptions=True)
    assert answers[0] == task_id
    assert isinstance(answers[1], TaskStateError)
    await queue.drain()
    assert handler.starts == 2


@pytest.mark.asyncio
async def test_a_retry_that_is_not_written_changes_nothing(
    make_queue: MakeQueue, storage: QueueStorage
) -> None:
    """S6.3: when the storage fails, the call raises; where it is atomic, no dependent has come back either."""
    flaky = FlakyStorage(storage)
    queue = make_queue(storage=flaky)
    queue.register(Other, Failing(1))
    queue.register(Work, succeed)
    await queue.start()
    chain = await queue.enqueue_chain([Other(), Work(), Work()])
    await queue.drain()
    before = await queue.get_tasks()
    flaky.fail("apply")
    with pytest.raises(StorageError):
        await queue.retry(chain[0], dependents=True)
    assert await queue.get_tasks() == before
    await queue.retry(chain[0], dependents=True)
    assert (await queue.wait(chain[2])).status is TaskStatus.COMPLETED
