"""Callers that are cancelled at each await of each verb: the verb is done whole or not at all (S2.7, S13.4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import attrs
import pytest

from durable_queue import (
    DependencyFailurePolicy,
    DurableQueue,
    FakeQueueClock,
    MemoryQueueStorage,
    QueueStorage,
    RetryPolicy,
    RunState,
    StoredTask,
    TaskEnqueued,
    TaskFailure,
    TaskGraph,
    TaskStatus,
)
from durable_queue.testing import FAKE_START, collect_events
from durable_queue_sqlite import SqliteQueueStorage
from tests.queue.handler_support import NOW, Handler, succeed
from tests.support import Other, ThirteenMethodStorage, Work, YieldingStorage

Open = Callable[[], AbstractAsyncContextManager[QueueStorage]]
State = dict[str, StoredTask]

HOUR = timedelta(hours=1)
TWICE = RetryPolicy.fixed(max_attempts=2, delay=HOUR)
FALLEN = TaskFailure(
    error="failed",
    error_type="DependencyFailedError",
    stack_trace=None,
    failed_at=FAKE_START,
    attempt=0,
    cause_task_id="failed",
)


def record(sequence: int, task_id: str, status: TaskStatus, **fields: Any) -> StoredTask:
    """Return a record as an earlier run left it."""
    return StoredTask(
        **{
            "id": task_id,
            "type": "work",
            "payload": {"n": sequence},
            "status": status,
            "created_at": FAKE_START,
            "sequence": sequence,
            "group": "g",
            "retry_policy": TWICE,
            **fields,
        }
    )


# One task in every state, and dependents of those that a verb can end or bring back.
STORED = [
    record(1, "pending", TaskStatus.PENDING),
    record(2, "waiting", TaskStatus.WAITING, depends_on=("pending",)),
    record(3, "outside", TaskStatus.RUNNING, attempts=1, hand_off_reference="r"),
    record(4, "behind", TaskStatus.WAITING, depends_on=("outside",)),
    record(5, "later", TaskStatus.RETRY_SCHEDULED, attempts=1, next_attempt_at=FAKE_START + HOUR),
    record(6, "done", TaskStatus.COMPLETED, attempts=1),
    record(7, "failed", TaskStatus.FAILED, attempts=2),
    record(8, "fallen", TaskStatus.CANCELLED, depends_on=("failed",), last_failure=FALLEN),
    record(9, "cancelled", TaskStatus.CANCELLED),
]


def diamond() -> TaskGraph:
    """Return a graph with a join and with edges to stored tasks, one of which did not complete."""
    graph = TaskGraph()
    top = graph.add(Work(20), depends_on=["done"])
    sides = [
        graph.add(Work(21), depends_on=[top]),
        graph.add(Work(22), depends_on=[top, "failed"], on_dependency_failure=DependencyFailurePolicy.FAIL),
    ]
    graph.add(Work(23), depends_on=sides)
    return graph


VERBS: dict[str, Callable[[DurableQueue], Awaitable[object]]] = {
    "enqueue": lambda queue: queue.enqueue(Work(20), depends_on=["failed"], deduplication_key="k"),
    "enqueue_all": lambda queue: queue.enqueue_all([Work(n) for n in range(20, 24)]),
    "enqueue_chain": lambda queue: queue.enqueue_chain([Work(n) for n in range(20, 24)]),
    "enqueue_graph": lambda queue: queue.enqueue_graph(diamond()),
    "cancel": lambda queue: queue.cancel("pending"),
    "cancel of outside work": lambda queue: queue.cancel("outside", force=True),
    "cancel_group": lambda queue: queue.cancel_group("g"),
    "retry": lambda queue: queue.retry("cancelled"),
    "retry with dependents": lambda queue: queue.retry("failed", dependents=True),
    "delete": lambda queue: queue.delete("fallen"),
    "purge": lambda queue: queue.purge(statuses={TaskStatus.CANCELLED}),
    "complete_hand_off": lambda queue: queue.complete_hand_off("outside", reference="r", result=[1]),
    "fail_hand_off": lambda queue: queue.fail_hand_off("outside", "no", reference="r"),
    "get_task": lambda queue: queue.get_task("later"),
    "get_tasks": lambda queue: queue.get_tasks(group="g"),
    "counts": lambda queue: queue.counts(),
    "hand_offs": lambda queue: queue.hand_offs(),
}
READS = {"get_task", "get_tasks", "counts", "hand_offs"}


@pytest.fixture(params=["memory", "sqlite", "thirteen"])
def kind(request: pytest.FixtureRequest) -> str:
    """The name of a kind of storage."""
    return str(request.param)


@pytest.fixture
def open_storage(kind: str, tmp_path: Path) -> Open:
    """Opens a new storage of the kind each time, one that lets others have a turn at every call."""
    numbers = count()

    @asynccontextmanager
    async def opening() -> AsyncIterator[QueueStorage]:
        if kind == "memory":
            yield YieldingStorage(MemoryQueueStorage())
        elif kind == "thirteen":
            yield ThirteenMethodStorage()
        else:
            async with SqliteQueueStorage(tmp_path / f"{next(numbers)}.db", synchronous="NORMAL") as storage:
                yield storage

    return opening


@pytest.fixture
def turns(kind: str) -> Iterable[int]:
    """After how many turns of the loop the callers are cancelled: each, until a caller is done before."""
    # With a thread, how many turns a call takes is chance; the gaps make the later ones likely to be hit.
    return [0, 1, 2, 3, 5, 8, 20, 50, 200, 1000] if kind == "sqlite" else range(500)


async def cancelled_after(turns: int, call: Awaitable[object]) -> bool:
    """Cancel a call after so many turns of the loop, and return whether it had its answer by then."""
    caller = asyncio.ensure_future(call)
    for _ in range(turns):
        if caller.done():
            break
        await asyncio.sleep(0)
    finished = caller.done()
    caller.cancel()
    (outcome,) = await asyncio.gather(caller, return_exceptions=True)
    assert not isinstance(outcome, Exception), outcome
    return finished


def new_queue(storage: QueueStorage) -> DurableQueue:
    """Return a queue whose times and ids are the same each time."""
    ids = count(1)
    queue = DurableQueue(storage, clock=FakeQueueClock(), id_generator=lambda: f"new-{next(ids)}")
    queue.register(Work, succeed)
    queue.register(Other, succeed)
    return queue


async def state_of(queue: DurableQueue) -> State:
    """Return the records that are not those of the control task."""
    return {task.id: task for task in await queue.get_tasks() if task.type == "work"}


async def state_after(
    open_storage: Open, verb: Callable[[DurableQueue], Awaitable[object]], turns: int
) -> tuple[bool, State]:
    """Cancel a verb after some turns; return whether it was done, and what is stored when all is quiet."""
    async with open_storage() as storage:
        for task in STORED:
            await storage.save(task)
        queue = new_queue(storage)
        await queue.start(paused=True)
        with collect_events(queue, TaskEnqueued) as events:
            finished = await cancelled_after(turns, verb(queue))
            # The steps of a queue come one after the other: whatever the verb has set going is over when this is.
            control = await queue.enqueue(Other())
            state = await state_of(queue)
            announced = {event.task_id for event in events} - {control}
        assert announced == state.keys() - {task.id for task in STORED}
        await queue.resume()
        assert (await queue.wait(control)).status is TaskStatus.COMPLETED
        await queue.drain()
        left = {task.status for task in await queue.get_tasks(status=TaskStatus.PENDING)}
        assert not left
        await queue.close()
    return finished, state


@pytest.mark.asyncio
@pytest.mark.parametrize("verb", VERBS)
async def test_a_cancelled_caller_leaves_all_or_nothing(
    open_storage: Open, turns: Iterable[int], kind: str, verb: str
) -> None:
    """S2.7: wherever its caller is cancelled, a verb is done whole or not at all, is announced so, and work goes on."""
    before = {task.id: task for task in STORED}
    finished, whole = await state_after(open_storage, VERBS[verb], 10**9)
    assert finished
    assert (whole == before) == (verb in READS)
    seen = set()
    for number in turns:
        finished, state = await state_after(open_storage, VERBS[verb], number)
        assert state in (before, whole), f"after {number} turns"
        seen.add(state == whole)
        if finished:
            break
    else:
        assert kind == "sqlite"
    assert True in seen
    assert (False in seen) == (verb not in READS)


@attrs.frozen
class Started:
    """A started queue with one task in the hands of its handler, and one behind it."""

    queue: DurableQueue
    handler: Handler
    running: str
    next: str

    async def ends_well(self, *, starts: int = 1) -> None:
        """Say that both tasks are done after one counted attempt, and that the queue can be started again."""
        self.handler.released.set()
        if self.queue.run_state is not RunState.IDLE:
            await self.queue.stop()
        assert self.queue.run_state is RunState.IDLE
        await self.queue.start()
        await self.queue.drain()
        for task_id in (self.running, self.next):
            task = await self.queue.get_task(task_id)
            assert task is not None
            assert (task.status, task.attempts) == (TaskStatus.COMPLETED, 1)
        assert self.handler.starts == starts
        await self.queue.close()


async def started(storage: QueueStorage) -> Started:
    """Return a queue at work."""
    queue = DurableQueue(storage, clock=FakeQueueClock())
    handler = Handler()
    queue.register(Work, handler)
    queue.register(Other, succeed)
    running = await queue.enqueue(Work(1))
    behind = await queue.enqueue(Other())
    await queue.start()
    await handler.began.wait()
    return Started(queue, handler, running, behind)


async def cancel_at_each_turn(turns: Iterable[int], cancel_after: Callable[[int], Awaitable[bool]]) -> None:
    """Cancel after each number of turns, until the call is done before it is cancelled."""
    for number in turns:
        if await cancel_after(number):
            break


@pytest.mark.asyncio
async def test_a_cancelled_start_can_be_repeated(open_storage: Open, turns: Iterable[int]) -> None:
    """S7.1: wherever a start is cancelled, the claim is given up, nothing is recovered twice, and a start works."""

    async def cancel_after(number: int) -> bool:
        async with open_storage() as storage:
            await storage.save(record(1, "interrupted", TaskStatus.RUNNING, attempts=1))
            await storage.save(record(2, "pending", TaskStatus.PENDING))
            queue = new_queue(storage)
            finished = await cancelled_after(number, queue.start(paused=True))
            if queue.run_state is RunState.IDLE:
                # Another consumer can have the storage now.
                await storage.acquire_consumer()
                await storage.release_consumer()
                await queue.start(paused=True)
            state = await state_of(queue)
            assert state["interrupted"].status is TaskStatus.RETRY_SCHEDULED
            assert (state["interrupted"].attempts, state["interrupted"].interruptions) == (1, 1)
            assert state["pending"].attempts == 0
            await queue.resume()
            await queue.drain()
            assert (await state_of(queue))["pending"].status is TaskStatus.COMPLETED
            await queue.close()
        return finished

    await cancel_at_each_turn(turns, cancel_after)


@pytest.mark.asyncio
@pytest.mark.parametrize("grace", [None, NOW], ids=["patient", "at-once"])
async def test_a_cancelled_stop_goes_on(
    open_storage: Open, turns: Iterable[int], grace: timedelta | None
) -> None:
    """S7.5: who is cancelled while it waits for a stop stops nobody else: the stop is done, and work is whole."""

    async def cancel_after(number: int) -> bool:
        async with open_storage() as storage:
            work = await started(storage)
            stopping = cancelled_after(number, work.queue.stop(grace=grace))
            if grace is None:
                work.handler.released.set()
            finished = await stopping
            begun = number > 0
            if begun:
                await work.queue.stop()
            task = await work.queue.get_task(work.running)
            assert task is not None
            put_back = begun and grace is not None
            if put_back:
                assert (task.status, task.attempts) == (TaskStatus.PENDING, 0)
            await work.ends_well(starts=2 if put_back else 1)
        return finished

    await cancel_at_each_turn(turns, cancel_after)


@pytest.mark.asyncio
async def test_a_cancelled_close_can_be_awaited_again(open_storage: Open, turns: Iterable[int]) -> None:
    """S7.6: a close goes on when its caller is cancelled, and who closes again waits for the same close."""

    async def cancel_after(number: int) -> bool:
        async with open_storage() as storage:
            work = await started(storage)
            work.handler.released.set()
            finished = await cancelled_after(number, work.queue.close())
            await work.queue.close()
            assert work.queue.is_closed
            assert work.queue.run_state is RunState.IDLE
            task = await work.queue.get_task(work.running)
            assert task is not None
            assert task.status is TaskStatus.COMPLETED
        return finished

    await cancel_at_each_turn(turns, cancel_after)


@pytest.mark.asyncio
@pytest.mark.parametrize("verb", ["pause", "drain", "wait"])
async def test_a_cancelled_wait_changes_nothing(open_storage: Open, turns: Iterable[int], verb: str) -> None:
    """S7.4, S7.8: who no longer waits for a pause, a drain or an end leaves a queue that goes on."""

    async def cancel_after(number: int) -> bool:
        async with open_storage() as storage:
            work = await started(storage)
            calls: dict[str, Callable[[], Awaitable[object]]] = {
                "pause": work.queue.pause,
                "drain": work.queue.drain,
                "wait": lambda: work.queue.wait(work.running),
            }
            # Those that wait for the handler never come to an end by themselves here.
            finished = await cancelled_after(min(number, 20), calls[verb]())
            assert work.queue.run_state in (RunState.RUNNING, RunState.PAUSED)
            await work.queue.resume()
            work.handler.released.set()
            await work.queue.drain()
            await work.ends_well()
        return finished or number >= 20

    await cancel_at_each_turn(turns, cancel_after)
