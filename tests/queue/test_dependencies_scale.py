"""Deep and wide graphs: no recursion, no limit of the database, one release, and a loop that is never held long."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from durable_queue import (
    DependencyFailurePolicy,
    DurableQueue,
    FakeQueueClock,
    QueueStorage,
    StoredTask,
    TaskCancelled,
    TaskGraph,
    TaskStarted,
    TaskStatus,
)
from durable_queue.testing import FlakyStorage, collect_events
from durable_queue_sqlite import SqliteQueueStorage
from tests.queue.conftest import MakeQueue
from tests.queue.graph_support import Script
from tests.support import Work

RUN = DependencyFailurePolicy.RUN
MANY = 3000


class Turns:
    """Counts the turns of the event loop."""

    def __init__(self) -> None:
        self.count = 0

    async def run(self) -> None:
        """Count for ever."""
        while True:
            self.count += 1
            await asyncio.sleep(0)


@asynccontextmanager
async def counted_turns() -> AsyncIterator[Turns]:
    """Count the turns that others could have during a block."""
    turns = Turns()
    counting = asyncio.create_task(turns.run())
    try:
        yield turns
    finally:
        counting.cancel()


def make(make_queue: MakeQueue, script: Script, **options: Any) -> DurableQueue:
    queue = make_queue(max_concurrent_tasks=64, **options)
    queue.register(Work, script)
    return queue


def fan(width: int) -> TaskGraph:
    graph = TaskGraph()
    graph.add(Work(0), name="root")
    for n in range(1, width + 1):
        graph.add(Work(n), depends_on=["root"])
    return graph


@pytest.mark.asyncio
async def test_a_chain_of_thousands_falls_without_recursion(make_queue: MakeQueue) -> None:
    """S4.6, S13.21: 3,000 dependents one behind the other end in one cascade; the loop has a turn at every level."""
    queue = make(make_queue, Script([0]))
    ids = await queue.enqueue_chain([Work(n) for n in range(MANY + 1)])
    with collect_events(queue, TaskCancelled) as events:
        async with counted_turns() as turns:
            await queue.start()
            await queue.drain()
    assert [event.task_id for event in events] == ids[1:]
    assert turns.count >= MANY
    last = await queue.get_task(ids[-1])
    assert last is not None
    assert last.last_failure is not None
    assert last.last_failure.cause_task_id == ids[0]


@pytest.mark.asyncio
async def test_a_chain_of_thousands_comes_back_without_recursion(
    make_queue: MakeQueue, storage: QueueStorage
) -> None:
    """S6.3, S13.21: retry with dependents walks the same depth; the loop has a turn at every level."""
    # Thirteen methods have no way to find the dependents of a task but to look through all.
    depth = MANY if storage.atomic else 100
    queue = make(make_queue, Script([0]))
    ids = await queue.enqueue_chain([Work(n) for n in range(depth)])
    await queue.start()
    await queue.drain()
    await queue.pause()
    async with counted_turns() as turns:
        await queue.retry(ids[0], dependents=True)
    counts = await queue.counts()
    assert (counts[TaskStatus.PENDING], counts[TaskStatus.WAITING]) == (1, depth - 1)
    assert turns.count >= depth


@pytest.mark.asyncio
@pytest.mark.parametrize("behind", [False, True], ids=["beside each other", "one behind the other"])
async def test_a_join_of_many_branches_is_read_once_when_they_come_back(
    make_queue: MakeQueue, storage: QueueStorage, behind: bool
) -> None:
    """S6.3, S13.21: what retry reads grows with the edges, not with those of the join times its branches."""
    width = 300 if storage.atomic else 40
    graph = TaskGraph()
    graph.add(Work(0), name="root")
    branches = [f"b{n}" for n in range(width)]
    for n, name in enumerate(branches, 1):
        graph.add(Work(n), name=name, depends_on=[f"b{n - 2}" if behind and n > 1 else "root"])
    graph.add(Work(width + 1), name="join", depends_on=branches)
    flaky = FlakyStorage(storage)
    queue = make(make_queue, Script([0]), storage=flaky)
    ids = await queue.enqueue_graph(graph)
    await queue.start()
    await queue.drain()
    await queue.pause()
    read: Counter[str] = Counter()
    get_many = storage.get_many

    async def counting(wanted: Collection[str]) -> dict[str, StoredTask]:
        read.update(wanted)
        return await get_many(wanted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "get_many", counting)
        flaky.calls.clear()
        await queue.retry(ids["root"], dependents=True)
    assert (await queue.counts())[TaskStatus.WAITING] == width + 1
    assert read[ids["join"]] == 1
    assert flaky.calls["get_dependents"] == 0
    assert flaky.calls["get_dependent_ids"] <= (width + 2 if behind else width // 64 + 3)


@pytest.mark.asyncio
async def test_thousands_of_dependents_end_with_their_dependency(make_queue: MakeQueue) -> None:
    """S4.6, S13.21, DEP-04: 3,000 dependents are cancelled in one cascade; the loop has turns in between."""
    queue = make(make_queue, Script([0]))
    ids = await queue.enqueue_graph(fan(MANY))
    await queue.start(paused=True)
    async with counted_turns() as turns:
        await queue.resume()
        await queue.wait(ids["root"])
    counts = await queue.counts()
    assert (counts[TaskStatus.FAILED], counts[TaskStatus.CANCELLED]) == (1, MANY)
    assert turns.count >= MANY / 64


@pytest.mark.asyncio
async def test_thousands_of_dependents_are_released_by_their_dependency(make_queue: MakeQueue) -> None:
    """S4.2, S13.21: 3,000 dependents become pending in the step that completes their dependency."""
    script = Script()
    script.hold(0)
    queue = make(make_queue, script)
    ids = await queue.enqueue_graph(fan(MANY))
    await queue.start()
    await script.reached(0)
    await queue.pause()
    async with counted_turns() as turns:
        script.let_go(0)
        await queue.wait(ids["root"])
    counts = await queue.counts()
    assert (counts[TaskStatus.PENDING], counts[TaskStatus.WAITING]) == (MANY, 0)
    assert turns.count >= MANY / 64


@pytest.mark.asyncio
@pytest.mark.parametrize("policy", [DependencyFailurePolicy.CANCEL, RUN])
async def test_dep_04_a_join_of_thousands_starts_once_after_the_last(
    make_queue: MakeQueue, storage: QueueStorage, policy: DependencyFailurePolicy
) -> None:
    """S4.2, S4.6, S13.21, DEP-04: the child of very many parents starts once, after all of them."""
    # Thirteen methods look at every parent each time one ends.
    width = MANY if storage.atomic else 300
    script = Script([7] if policy is RUN else [])
    queue = make(make_queue, script)
    parents = await queue.enqueue_all([Work(n) for n in range(width)])
    join = await queue.enqueue(Work(width), depends_on=parents, on_dependency_failure=policy)
    with collect_events(queue, TaskStarted) as events:
        await queue.start()
        await queue.drain()
    assert len(events) == width + 1
    assert events[-1].task_id == join  # type: ignore[attr-defined]  # all of them are starts
    assert len(script.results[width]) == width - (policy is RUN)


@pytest.mark.asyncio
async def test_dep_04_wide_graphs_pass_a_sqlite_that_allows_few_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4.6, DEP-04: no statement has one variable per task, so a build that allows 999 of them does as well."""
    connect = sqlite3.connect
    limited = []

    def connect_limited(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*args, **options)
        connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 999)
        limited.append(connection)
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_limited)
    script = Script([0])
    async with SqliteQueueStorage(tmp_path / "queue.db") as storage:
        queue = DurableQueue(storage, clock=FakeQueueClock(), max_concurrent_tasks=64)
        queue.register(Work, script)
        graph = fan(1200)
        graph.add(
            Work(-1), name="join", depends_on=[f"#{n}" for n in range(2, 1201)], on_dependency_failure=RUN
        )
        ids = await queue.enqueue_graph(graph)
        async with queue:
            await queue.wait(ids["join"])
            assert (await queue.counts())[TaskStatus.CANCELLED] == 1200
            assert await queue.retry(ids["root"], dependents=True)
            await queue.drain()
            assert (await queue.counts())[TaskStatus.COMPLETED] == 1202
    assert limited
