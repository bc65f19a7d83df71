"""Several processes, or connections, over one file: who may do what, and when it is noticed (S7.9, S13.6)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import attrs
import pytest
import pytest_asyncio

from durable_queue import (
    DependencyFailurePolicy,
    DurableQueue,
    FakeQueueClock,
    QueueInUseError,
    QueueStateError,
    RunState,
    StoredTask,
    SystemQueueClock,
    TaskContext,
    TaskGraph,
    TaskHandedOff,
    TaskStarted,
    TaskStatus,
    UnknownTaskTypeError,
)
from durable_queue.testing import collect_events, run_until_idle
from durable_queue_sqlite import SqliteQueueStorage
from tests.processes.notes import Notes
from tests.sqlite.support import start_python
from tests.support import Other, Work

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)

ENQUEUE_ELSEWHERE = """
    import asyncio, sys
    import attrs
    from durable_queue import DurableQueue
    from durable_queue_sqlite import SqliteQueueStorage

    @attrs.frozen
    class Work:
        task_type = "work"
        n: int = 0

    async def main():
        async with SqliteQueueStorage(sys.argv[1]) as storage:
            queue = DurableQueue(storage)
            queue.register(Work)
            first = await queue.enqueue(Work(7))
            await queue.enqueue(Work(8), depends_on=[first])
            print(len(await queue.get_tasks()), flush=True)
            await queue.close()

    asyncio.run(main())
"""


@pytest_asyncio.fixture
async def elsewhere(file: Path, clock: FakeQueueClock, consumer: DurableQueue) -> AsyncIterator[DurableQueue]:
    """A queue that only enqueues, over a connection of its own, as in another process."""
    async with SqliteQueueStorage(file) as storage:
        queue = DurableQueue(storage, clock=clock)
        queue.register(Work)
        yield queue
        await queue.close()


@pytest.mark.asyncio
async def test_what_another_process_enqueues_starts_within_a_second(
    file: Path, clock: FakeQueueClock, consumer: DurableQueue, notes: Notes
) -> None:
    """S7.9: an idle consumer runs a foreign task and its dependent when a second has passed."""
    await run_until_idle(consumer)
    with start_python(ENQUEUE_ELSEWHERE, file) as child:
        output, complaints = await asyncio.to_thread(child.communicate)
    assert (output, complaints) == ("2\n", "")
    assert notes.seen == []
    with consumer.subscribe(TaskStarted) as starts:
        clock.advance(SECOND)
        await anext(starts)
        await anext(starts)
    assert notes.seen[0] == 7


@pytest.mark.asyncio
@pytest.mark.parametrize("delay", [None, HOUR])
async def test_a_foreign_task_is_noticed_by_its_own_time(
    clock: FakeQueueClock,
    consumer: DurableQueue,
    elsewhere: DurableQueue,
    notes: Notes,
    delay: timedelta | None,
) -> None:
    """S7.9: due at once or later, in the middle of a longer wait of the consumer."""
    await consumer.enqueue(Work(1), delay=10 * HOUR)
    await run_until_idle(consumer)
    task_id = await elsewhere.enqueue(Work(2), delay=delay)
    clock.advance(SECOND)
    if delay is not None:
        await run_until_idle(consumer)
        assert notes.seen == []
        clock.advance(delay)
    await consumer.wait(task_id)
    assert notes.seen == [2]


@pytest.mark.asyncio
async def test_a_foreign_expiry_is_noticed(
    clock: FakeQueueClock, consumer: DurableQueue, elsewhere: DurableQueue
) -> None:
    """S7.9, S8.2: also by a paused consumer, which starts nothing of it."""
    await consumer.pause()
    task_id = await elsewhere.enqueue(Work(2), expires_in=2 * SECOND)
    clock.advance(SECOND)
    waiting = asyncio.create_task(consumer.wait(task_id))
    await consumer.get_tasks()
    clock.advance(SECOND)
    clock.advance(SECOND)
    assert (await waiting).status is TaskStatus.CANCELLED


@pytest.mark.asyncio
@pytest.mark.parametrize("policy", list(DependencyFailurePolicy))
@pytest.mark.parametrize("ended", ["completed", "cancelled"])
async def test_waiting_tasks_of_others_are_judged(
    file: Path,
    clock: FakeQueueClock,
    consumer: DurableQueue,
    notes: Notes,
    policy: DependencyFailurePolicy,
    ended: str,
) -> None:
    """S13.6: a waiting task that was inserted just when its dependency ended is judged when it is noticed."""
    parent = await consumer.enqueue(Work(1), delay=None if ended == "completed" else HOUR)
    if ended == "cancelled":
        await consumer.cancel(parent)
    else:
        await consumer.wait(parent)
    record = StoredTask(
        id="foreign",
        type="work",
        payload={"n": 5},
        status=TaskStatus.WAITING,
        depends_on=[parent],
        on_dependency_failure=policy,
        created_at=clock.now(),
    )
    later = attrs.evolve(record, id="later", depends_on=["foreign"], payload={"n": 6}, result=None)
    async with SqliteQueueStorage(file) as other:
        await other.save(record)
        await other.save(later)
    clock.advance(SECOND)
    waiting = [asyncio.create_task(consumer.wait(task_id)) for task_id in ("foreign", "later")]
    first, second = await asyncio.gather(*waiting)
    runs = ended == "completed" or policy is DependencyFailurePolicy.RUN
    bad = TaskStatus.FAILED if policy is DependencyFailurePolicy.FAIL else TaskStatus.CANCELLED
    assert first.status is (TaskStatus.COMPLETED if runs else bad)
    assert second.status is (TaskStatus.COMPLETED if runs else bad)
    assert [n for n in notes.seen if n > 1] == ([5, 6] if runs else [])


@pytest.mark.asyncio
async def test_a_consumer_that_is_never_idle_notices_too(file: Path) -> None:
    """S7.9: a stream of tasks of its own does not keep a consumer from judging what others insert."""
    async with SqliteQueueStorage(file) as storage, SqliteQueueStorage(file) as other:
        queue, over = DurableQueue(storage, clock=SystemQueueClock(), max_concurrent_tasks=8), False

        async def again(task: Work, context: TaskContext) -> None:
            if not over:
                await queue.enqueue(Work(task.n + 1), priority=5)

        queue.register(Work, again)
        done = await queue.enqueue(Work())
        await queue.start()
        await queue.enqueue_all([Work() for _ in range(16)])
        record = await queue.wait(done)
        foreign = attrs.evolve(
            record,
            id="foreign",
            status=TaskStatus.WAITING,
            depends_on=[done],
            payload={"n": 0},
            result=None,
            priority=9,
        )
        await other.save(foreign)
        async with asyncio.timeout(3):
            task = await queue.wait("foreign")
        over = True
        assert task.status is TaskStatus.COMPLETED
        await queue.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "verb",
    ["cancel", "cancel_group", "retry", "delete", "purge", "complete_hand_off", "fail_hand_off", "start"],
)
async def test_other_verbs_need_the_consumer_claim(
    consumer: DurableQueue, elsewhere: DurableQueue, verb: str
) -> None:
    """S13.6: beside a live consumer they raise QueueInUseError and change nothing; after its stop they work."""

    async def hand_off(task: Other, context: TaskContext) -> None:
        context.hand_off("ref")

    consumer.register(Other, hand_off)
    waiting = await consumer.enqueue(Work(1), delay=HOUR, group="g")
    ended = await consumer.enqueue(Work(2), delay=HOUR)
    await consumer.cancel(ended)
    with consumer.subscribe(TaskHandedOff) as events:
        handed_off = await consumer.enqueue(Other())
        await anext(events)
    verbs: dict[str, Callable[[], Awaitable[object]]] = {
        "cancel": lambda: elsewhere.cancel(waiting),
        "cancel_group": lambda: elsewhere.cancel_group("g"),
        "retry": lambda: elsewhere.retry(ended),
        "delete": lambda: elsewhere.delete(ended),
        "purge": lambda: elsewhere.purge(statuses={TaskStatus.CANCELLED}),
        "complete_hand_off": lambda: elsewhere.complete_hand_off(handed_off, reference="ref"),
        "fail_hand_off": lambda: elsewhere.fail_hand_off(handed_off, "x", reference="ref"),
        "start": elsewhere.start,
    }
    before = await consumer.get_tasks()
    with pytest.raises(QueueInUseError):
        await verbs[verb]()
    assert await consumer.get_tasks() == before
    assert elsewhere.run_state is RunState.IDLE

    await consumer.stop()
    await verbs[verb]()
    if verb == "start":
        with pytest.raises(QueueInUseError):
            await consumer.start()
        await elsewhere.stop()
    else:
        assert await consumer.get_tasks() != before
    # The claim was taken for the call only.
    await consumer.start()


@pytest.mark.asyncio
async def test_enqueue_and_reads_are_open_to_all(
    clock: FakeQueueClock, consumer: DurableQueue, elsewhere: DurableQueue, notes: Notes
) -> None:
    """S13.6: every enqueue and every read works beside a live consumer, deduplication included."""
    held = await consumer.enqueue(Work(1), deduplication_key="k", delay=HOUR)
    assert await elsewhere.enqueue(Work(2), deduplication_key="k") == held
    ids = await elsewhere.enqueue_all([Work(3), Work(4)])
    chain = await elsewhere.enqueue_chain([Work(5), Work(6)])
    graph = TaskGraph()
    graph.add(Work(8), depends_on=[graph.add(Work(7)), held])
    nodes = await elsewhere.enqueue_graph(graph)
    assert len(await elsewhere.get_tasks()) == 7
    assert (await elsewhere.get_task(held)).status is TaskStatus.PENDING
    assert sum((await elsewhere.counts()).values()) == 7
    assert await elsewhere.hand_offs() == []
    clock.advance(SECOND)
    for task_id in (*ids, *chain, nodes["#1"]):
        assert (await consumer.wait(task_id)).status is TaskStatus.COMPLETED
    assert sorted(notes.seen) == [3, 4, 5, 6, 7]


@pytest.mark.asyncio
async def test_register_without_a_handler_is_for_enqueueing_only(file: Path, clock: FakeQueueClock) -> None:
    """S13.6: the class can be enqueued; a consumer without a handler fails its tasks, once."""
    async with SqliteQueueStorage(file) as storage:
        queue = DurableQueue(storage, clock=clock)
        queue.register(Work)
        with pytest.raises(UnknownTaskTypeError):
            await queue.enqueue(Other())
        task_id = await queue.enqueue(Work(1))
        await queue.start()
        task = await queue.wait(task_id)
        assert (task.status, task.last_failure.error_type) == (TaskStatus.FAILED, "UnknownTaskTypeError")
        await queue.close()


@pytest.mark.asyncio
async def test_wait_outside_the_consumer_is_refused(consumer: DurableQueue, elsewhere: DurableQueue) -> None:
    """S13.6: nobody here would end the wait; a task that has ended already is answered."""
    task_id = await consumer.enqueue(Work(1), delay=HOUR)
    done = await consumer.enqueue(Work(2))
    await consumer.wait(done)
    with pytest.raises(QueueStateError, match="start it first"):
        await elsewhere.wait(task_id)
    assert (await elsewhere.wait(done)).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
@pytest.mark.parametrize("spelling", ["symlink", "relative", "dots", "string"])
async def test_one_consumer_by_whatever_path(
    file: Path, consumer: DurableQueue, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    """S7.9: a second start over another spelling of the path raises QueueInUseError and touches nothing."""
    monkeypatch.chdir(file.parent)
    link = file.parent / "link.db"
    link.symlink_to(file)
    path = {
        "symlink": link,
        "relative": Path(file.name),
        "dots": file.parent / ".." / file.parent.name / file.name,
        "string": os.fspath(file),
    }[spelling]
    running = await consumer.enqueue(Work(1), delay=HOUR)
    before = await consumer.get_task(running)
    async with SqliteQueueStorage(path) as storage:
        second = DurableQueue(storage)
        second.register(Work)
        with collect_events(second) as events:
            with pytest.raises(QueueInUseError):
                await second.start()
            assert events == []
        assert second.run_state is RunState.IDLE
        assert await second.get_task(running) == before
        await second.close()
    assert await consumer.get_task(running) == before
