"""A cascade is whole or recoverable: failing writes on atomic storages, a crash after each write on the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from durable_queue import (
    DependencyFailurePolicy,
    DurableQueue,
    FakeQueueClock,
    QueueStorage,
    QueueStorageFailure,
    RetryPolicy,
    StorageError,
    StoredTask,
    TaskGraph,
    TaskStatus,
)
from durable_queue.testing import FlakyStorage, collect_events
from tests.core.world import stranded
from tests.queue.conftest import MakeQueue
from tests.queue.graph_support import Script, everything, told
from tests.support import ThirteenMethodStorage, Work

FAIL, RUN = DependencyFailurePolicy.FAIL, DependencyFailurePolicy.RUN
Act = Callable[[DurableQueue, dict[str, str]], Awaitable[object]]


class Recorder(ThirteenMethodStorage):
    """Thirteen methods that remember their writes, and fail one when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[tuple[str, StoredTask | str]] = []
        self.fails_in = 0

    async def save(self, task: StoredTask) -> None:
        self._count("save", task)
        await super().save(task)

    async def update(self, task: StoredTask) -> None:
        self._count("update", task)
        await super().update(task)

    async def delete(self, task_id: str) -> None:
        self._count("delete", task_id)
        await super().delete(task_id)

    def _count(self, operation: str, what: StoredTask | str) -> None:
        self.fails_in -= 1
        if self.fails_in == 0:
            raise StorageError("told to fail")
        self.writes.append((operation, what))


async def as_of(writes: list[tuple[str, StoredTask | str]]) -> ThirteenMethodStorage:
    """Return what a crash right after these writes leaves."""
    storage = ThirteenMethodStorage()
    for operation, what in writes:
        await getattr(storage, operation)(what)
    return storage


def tangle() -> TaskGraph:
    """A root with branches of different lengths that meet, all policies, and a node added before its dependency."""
    graph = TaskGraph()
    graph.add(Work(7), name="early", depends_on=["late", "a"], group="g")
    graph.add(Work(8), name="late", group="g")
    graph.add(Work(1), name="a", group="g")
    graph.add(Work(2), name="b", depends_on=["a"])
    graph.add(Work(3), name="c", depends_on=["b"], on_dependency_failure=FAIL)
    graph.add(Work(4), name="d", depends_on=["a", "c"])
    graph.add(Work(5), name="e", depends_on=["d", "a"], on_dependency_failure=RUN)
    graph.add(Work(6), name="f", depends_on=["a", "d", "b"])
    graph.add(Work(9), name="g", depends_on=["early", "f"])
    return graph


async def run_it(queue: DurableQueue, ids: dict[str, str]) -> None:
    await queue.start()
    await queue.drain()


async def cancel_root(queue: DurableQueue, ids: dict[str, str]) -> None:
    await queue.cancel(ids["a"])


async def cancel_members(queue: DurableQueue, ids: dict[str, str]) -> None:
    await queue.cancel_group("g")


async def fail_and_retry(queue: DurableQueue, ids: dict[str, str]) -> None:
    await queue.start()
    await queue.drain()
    await queue.retry(ids["a"], dependents=True)
    await queue.drain()


async def cancel_and_retry_while_paused(queue: DurableQueue, ids: dict[str, str]) -> None:
    await queue.start(paused=True)
    await queue.cancel(ids["a"])
    await queue.retry(ids["a"], dependents=True)


WAYS: list[tuple[Act, list[int]]] = [
    *((run_it, fails) for fails in ([], [1], [2], [1, 8], [3, 4])),
    *((fail_and_retry, fails) for fails in ([1], [1, 8], [1, 2])),
    (cancel_root, []),
    (cancel_members, []),
    (cancel_and_retry_while_paused, []),
]


@pytest.mark.asyncio
@pytest.mark.parametrize(("act", "fails"), WAYS)
async def test_a_crash_after_any_write_strands_no_task(
    clock: FakeQueueClock, act: Act, fails: list[int]
) -> None:
    """S4.7, S13.8: on thirteen methods, after each single write no verdict is overdue, and a new queue ends it all."""
    recorder, script = Recorder(), Script(fails)
    queue = DurableQueue(recorder, clock=clock, max_concurrent_tasks=2)
    queue.register(Work, script)
    await act(queue, await queue.enqueue_graph(tangle()))
    await queue.close()
    assert len(recorder.writes) >= 9
    for count in range(len(recorder.writes) + 1):
        left = await as_of(recorder.writes[:count])
        stored = {task.id: task for task in await left.get_all()}
        assert not list(stranded(stored)), count
        for task in stored.values():
            assert all(dependency in stored for dependency in task.depends_on)
        again = DurableQueue(left, clock=clock, max_concurrent_tasks=2)
        again.register(Work, Script())
        async with again:
            remains = await again.drain()
        assert (remains.waiting, remains.scheduled) == (0, 0)
        assert all(task.status.is_terminal for task in await left.get_all())


@pytest.mark.asyncio
async def test_dependents_are_written_deepest_first_and_the_finished_task_last(
    clock: FakeQueueClock,
) -> None:
    """S4.7: on thirteen methods each task is written before the one that it was settled by, the root at the end."""
    recorder = Recorder()
    queue = DurableQueue(recorder, clock=clock)
    queue.register(Work, Script([1]))
    graph = TaskGraph()
    graph.add(Work(1), name="a")
    graph.add(Work(2), name="b", depends_on=["a"])
    graph.add(Work(3), name="c", depends_on=["b"])
    graph.add(Work(4), name="d", depends_on=["a", "c"])
    names = {task_id: name for name, task_id in (await queue.enqueue_graph(graph)).items()}
    await queue.start()
    await queue.drain()
    await queue.close()
    ended = [
        names[task.id]
        for operation, task in recorder.writes
        if operation == "update" and isinstance(task, StoredTask) and task.status.is_terminal
    ]
    assert ended == ["d", "c", "b", "a"]


@pytest.mark.asyncio
async def test_a_crash_during_recovery_strands_no_task(clock: FakeQueueClock) -> None:
    """S4.7, S7.1: interrupted tasks that fail at start with their dependents can be interrupted again anywhere."""
    recorder = Recorder()
    for n in range(3):
        await recorder.save(record_of(f"r{n}", TaskStatus.RUNNING, n, attempts=1))
    edges = {"x": ("r0", "r1"), "y": ("x", "r2"), "z": ("r2",), "all": ("r0", "r1", "r2", "y")}
    for n, (task_id, depends_on) in enumerate(edges.items(), 3):
        policy = RUN if task_id in ("all", "z") else FAIL
        await recorder.save(
            record_of(task_id, TaskStatus.WAITING, n, depends_on=depends_on, on_dependency_failure=policy)
        )
    first = len(recorder.writes)
    queue = DurableQueue(recorder, clock=clock)
    queue.register(Work, Script())
    await queue.start(paused=True)
    await queue.close()
    statuses = {task.id: task.status.value for task in await recorder.get_all()}
    assert statuses == dict.fromkeys(["r0", "r1", "r2", "x", "y"], "failed") | {
        "z": "pending",
        "all": "pending",
    }
    for count in range(first, len(recorder.writes) + 1):
        left = await as_of(recorder.writes[:count])
        assert not list(stranded({task.id: task for task in await left.get_all()}))
        async with DurableQueue(left, clock=clock) as again:
            again.register(Work, Script())
            await again.drain()
        assert all(task.status.is_terminal for task in await left.get_all())


def record_of(task_id: str, status: TaskStatus, sequence: int, **fields: object) -> StoredTask:
    created_at = FakeQueueClock().now()
    return StoredTask(
        id=task_id,
        type="work",
        payload={"n": sequence},
        status=status,
        created_at=created_at,
        sequence=sequence,
        **fields,  # type: ignore[arg-type]  # as the test gives them
    )


@pytest.mark.asyncio
async def test_a_graph_whose_save_fails_is_taken_back(clock: FakeQueueClock) -> None:
    """S13.8, S2.6: on thirteen methods the nodes saved before the failure are deleted again."""
    for failing in range(1, 10):
        recorder = Recorder()
        queue = DurableQueue(recorder, clock=clock)
        queue.register(Work, Script())
        recorder.fails_in = failing
        with pytest.raises(StorageError):
            await queue.enqueue_graph(tangle())
        assert await recorder.get_all() == []
        ids = await queue.enqueue_graph(tangle())
        assert len(await recorder.get_all()) == len(ids) == 9
        await queue.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("after_commit", [False, True])
@pytest.mark.parametrize("times", [1, 2])
async def test_a_failing_write_never_leaves_half_a_cascade(
    make_queue: MakeQueue,
    storage: QueueStorage,
    clock: FakeQueueClock,
    *,
    after_commit: bool,
    times: int,
) -> None:
    """S4.7, S10.1: the finished task and all its dependents change in one transaction, however often it is tried."""
    flaky, script = FlakyStorage(storage), Script([1])
    queue = make_queue(storage=flaky, storage_retry_delay=timedelta(seconds=1))
    queue.register(Work, script)
    ids = await queue.enqueue_graph(tangle())
    script.hold(1)
    await queue.start()
    await script.reached(1)
    before = await snapshot(storage, ids)
    gates = [flaky.gate("apply", nth=n) for n in range(1, times + 2)]
    flaky.fail("apply", times=times, after_commit=after_commit)
    seen = []
    with collect_events(queue) as events, queue.subscribe(QueueStorageFailure) as failures:
        script.let_go(1)
        for gate in gates:
            await gate.reached()
            seen.append(await snapshot(storage, ids))
            # An event is sent after the write that it reports.
            assert {name for name, _ in told(events)} <= {"QueueStorageFailure"}
            gate.release()
            if len(seen) <= times:
                await anext(failures)
                clock.advance(timedelta(seconds=1))
        await queue.drain()
    settled = {"a": "failed", "b": "cancelled", "c": "failed", "d": "cancelled", "f": "cancelled"}
    if storage.atomic:
        for state in seen:
            assert {name: state[name] for name in settled} in (
                {name: before[name] for name in settled},
                settled,
            )
    assert await snapshot(storage, ids) == {
        **settled,
        "early": "cancelled",
        "late": "completed",
        "e": "completed",
        "g": "cancelled",
    }
    ends = [task_id for name, task_id in told(events) if name in ("TaskFailed", "TaskCancelled")]
    assert sorted(ends) == sorted(ids[name] for name in (*settled, "early", "g"))
    assert script.started.count(1) == 1


async def snapshot(storage: QueueStorage, ids: dict[str, str]) -> dict[str, str]:
    """Return the stored status of each node."""
    found = await storage.get_many(list(ids.values()))
    return {name: found[task_id].status.value for name, task_id in ids.items()}


@pytest.mark.asyncio
async def test_a_cancellation_that_cannot_be_written_changes_nothing(
    make_queue: MakeQueue, storage: QueueStorage
) -> None:
    """S4.7, S10.3: the caller is told, and neither the task nor a dependent has changed."""
    flaky, script = FlakyStorage(storage), Script()
    queue = make_queue(storage=flaky)
    queue.register(Work, script)
    ids = await queue.enqueue_graph(tangle())
    await queue.start(paused=True)
    before = await everything(queue)
    flaky.fail("apply")
    with pytest.raises(StorageError):
        await queue.cancel(ids["a"])
    assert await everything(queue) == before
    await queue.cancel(ids["a"])
    after = await everything(queue)
    assert {name for name, task_id in ids.items() if after[task_id] is TaskStatus.CANCELLED} == {
        "a",
        "b",
        "d",
        "f",
        "early",
        "g",
    }


@pytest.mark.asyncio
async def test_a_cancellation_whose_answer_was_lost_still_lets_the_released_dependent_run(
    make_queue: MakeQueue, storage: QueueStorage
) -> None:
    """S4.3, S3.4: a write that was committed although it raised has made a task ready, and it starts."""
    flaky, script = FlakyStorage(storage), Script()
    queue = make_queue(storage=flaky)
    queue.register(Work, script)
    script.hold(5)
    a = await queue.enqueue(Work(1), delay=timedelta(hours=1))
    await queue.enqueue(Work(5), depends_on=[a], on_dependency_failure=RUN)
    await queue.start()
    await queue.drain()
    flaky.fail("apply", after_commit=True)
    with pytest.raises(StorageError):
        await queue.cancel(a)
    await script.reached(5)
    script.let_go(5)


@pytest.mark.asyncio
async def test_a_failed_attempt_with_attempts_left_writes_no_dependent(
    make_queue: MakeQueue, storage: QueueStorage, clock: FakeQueueClock
) -> None:
    """S4.1, DEP-06: there is no moment, not even in the storage, at which the dependency looks failed."""
    recorder = Recorder() if not storage.atomic else FlakyStorage(storage)
    queue = make_queue(storage=recorder)
    script = Script()
    script.fails = {1: 2}
    queue.register(Work, script)
    a = await queue.enqueue(
        Work(1), retry_policy=RetryPolicy.fixed(max_attempts=3, delay=timedelta(seconds=1))
    )
    b = await queue.enqueue(Work(2), depends_on=[a])
    waiting = await queue.get_task(b)
    await queue.start()
    for _ in range(2):
        await queue.drain()
        assert await queue.get_task(b) == waiting
        clock.advance(timedelta(seconds=1))
    await queue.wait(b)
    assert script.started == [1, 1, 1, 2]
