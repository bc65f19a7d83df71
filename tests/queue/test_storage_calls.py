"""What a task costs in calls, commits and statements: bounds that a change must not exceed unnoticed.

Counted and not timed, on a clock that stands still, so that the numbers are the same on every machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from math import ceil
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from durable_queue import (
    DurableQueue,
    FakeQueueClock,
    MemoryQueueStorage,
    QueueStorage,
    RetryPolicy,
    TaskContext,
)
from durable_queue.testing import FlakyStorage, run_until_idle
from durable_queue_sqlite import SqliteQueueStorage
from tests.queue.conftest import MakeQueue
from tests.queue.fault_support import Counting
from tests.queue.handler_support import NOW, settle
from tests.sqlite.support import on_connection
from tests.support import Work

BATCH = 64
"""How many tasks are read ahead at once, for up to 16 slots."""

AROUND = 12
"""How many calls a start and the way to idle may take, however many tasks there are."""


class CountingSqlite(SqliteQueueStorage):
    """Counts how often its thread is asked to do something."""

    hops = 0

    def _run(self, name: str, operation: Callable[[Any], Any]) -> Any:
        self.hops += 1
        return super()._run(name, operation)


@pytest_asyncio.fixture(params=["memory", "sqlite"])
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[QueueStorage]:
    """An empty storage of each kind that can be read ahead."""
    if request.param == "memory":
        yield MemoryQueueStorage()
    else:
        async with CountingSqlite(tmp_path / "queue.db") as opened:
            yield opened


in_a_file = pytest.mark.parametrize("storage", ["sqlite"], indirect=True)


async def coroutine(task: Work, context: TaskContext) -> int:
    """Return a result at once."""
    return task.n


async def slow_coroutine(task: Work, context: TaskContext) -> int:
    """Return a result after a while."""
    await settle()
    return task.n


def function(task: Work, context: TaskContext) -> int:
    """Return a result, in a thread."""
    return task.n


async def run_many(queue: DurableQueue, count: int) -> None:
    """Store so many tasks, run them all and stop."""
    await queue.enqueue_all([Work(n) for n in range(count)])
    await queue.start()
    await run_until_idle(queue)


def hops_of(calls: Counter[str]) -> int:
    """Return how many calls take a way into a thread and back; `take_unreadable` answers from memory."""
    return sum(calls.values()) - calls["take_unreadable"]


@pytest.mark.asyncio
@pytest.mark.parametrize("handler", [coroutine, slow_coroutine, function])
async def test_a_task_costs_one_write_and_hardly_a_read(
    make_queue: MakeQueue, storage: QueueStorage, handler: Callable[..., Any]
) -> None:
    """S13.2, S13.22: with one slot N tasks are N + 1 writes, each of an outcome and of the next claim."""
    count = 200
    flaky = FlakyStorage(storage)
    queue = make_queue(storage=flaky, max_concurrent_tasks=1)
    queue.register(Work, handler)
    await queue.enqueue_all([Work(n) for n in range(count)])
    flaky.calls.clear()
    await queue.start()
    await run_until_idle(queue)

    assert flaky.calls["apply"] == count + 1
    # Once for each lot, and once more before it is idle.
    assert flaky.calls["get_ready"] <= ceil(count / BATCH) + 1
    others = hops_of(flaky.calls) - flaky.calls["apply"] - flaky.calls["get_ready"]
    assert others <= AROUND
    assert hops_of(flaky.calls) <= 3 * count


@in_a_file
@pytest.mark.asyncio
async def test_a_call_is_one_hop(make_queue: MakeQueue, storage: CountingSqlite) -> None:
    """S13.21: each call of the storage is one way into its thread and back; a look for bad records is none."""
    flaky = FlakyStorage(storage)
    queue = make_queue(storage=flaky, max_concurrent_tasks=1)
    queue.register(Work, coroutine)
    before = storage.hops
    await run_many(queue, 100)

    assert flaky.calls["take_unreadable"] > 100
    assert storage.hops - before == hops_of(flaky.calls)


@pytest.mark.asyncio
async def test_an_attempt_that_is_retried_costs_one_write(
    make_queue: MakeQueue, storage: QueueStorage
) -> None:
    """S13.2: N attempts, those that fail and are repeated at once included, are N + 1 writes."""
    flaky = FlakyStorage(storage)
    queue, counting = make_queue(storage=flaky, max_concurrent_tasks=1), Counting(dict.fromkeys(range(50), 2))
    queue.register(Work, counting, retry_policy=RetryPolicy.fixed(max_attempts=3, delay=NOW))
    await queue.enqueue_all([Work(n) for n in range(50)])
    flaky.calls.clear()
    await queue.start()
    await run_until_idle(queue)

    assert len(counting.starts) == 150
    assert flaky.calls["apply"] == 151
    assert flaky.calls["get_ready"] <= 3


@pytest.mark.asyncio
async def test_a_lone_task_costs_three_writes(make_queue: MakeQueue, storage: QueueStorage) -> None:
    """S13.22: on an idle queue a task is stored, claimed and ended, each by one write, after one look."""
    flaky = FlakyStorage(storage)
    queue = make_queue(storage=flaky, max_concurrent_tasks=1)
    queue.register(Work, coroutine)
    await queue.start()
    await queue.wait(await queue.enqueue(Work()))
    await run_until_idle(queue)
    flaky.calls.clear()
    await queue.wait(await queue.enqueue(Work()))
    calls = Counter(flaky.calls)

    assert (calls["apply"], calls["get_ready"]) == (3, 1)
    # The other one is the caller's, who waits and asks for the record.
    assert hops_of(calls) <= 5


@pytest.mark.asyncio
async def test_tasks_that_end_together_share_a_commit(make_queue: MakeQueue, storage: QueueStorage) -> None:
    """S13.2: with 16 slots a thousand tasks are at most 125 writes; 64 when always 16 end together."""
    flaky = FlakyStorage(storage)
    queue = make_queue(storage=flaky, max_concurrent_tasks=16)
    queue.register(Work, coroutine)
    await queue.enqueue_all([Work(n) for n in range(1_000)])
    flaky.calls.clear()
    await queue.start()
    await run_until_idle(queue)

    assert flaky.calls["apply"] <= 125
    assert flaky.calls["get_ready"] <= ceil(1_000 / (BATCH - 16))
    assert hops_of(flaky.calls) <= 160


async def statements_of(
    make_queue: MakeQueue, storage: CountingSqlite, count: int, slots: int
) -> Counter[str]:
    """Run so many tasks that return a result, and count the statements by how they begin."""
    seen: Counter[str] = Counter()
    queue = make_queue(storage=storage, max_concurrent_tasks=slots)
    queue.register(Work, coroutine)
    await queue.enqueue_all([Work(n) for n in range(count)])
    await on_connection(
        storage,
        lambda database: database.set_trace_callback(lambda text: seen.update([" ".join(text.split()[:2])])),
    )
    await queue.start()
    await run_until_idle(queue)
    await on_connection(storage, lambda database: database.set_trace_callback(None))
    await queue.close()
    return seen


@in_a_file
@pytest.mark.asyncio
async def test_a_step_is_five_statements(make_queue: MakeQueue, storage: CountingSqlite) -> None:
    """S13.2: with one slot a step is BEGIN, the look at other programs, one UPDATE, the result, and COMMIT."""
    few = await statements_of(make_queue, storage, BATCH, 1)
    many = await statements_of(make_queue, storage, 5 * BATCH, 1)
    tasks = 4 * BATCH
    more = many - few

    # A look ahead is three: who comes due, who is ready, and until when.
    each = {"BEGIN IMMEDIATE", "PRAGMA data_version", "UPDATE tasks", "INSERT INTO", "COMMIT"}
    assert {name: more[name] for name in each} == dict.fromkeys(each, tasks)
    assert sum(more.values()) - 5 * tasks <= 3 * 4
    # A start, and the way to idle.
    assert sum(few.values()) <= 5 * (BATCH + 1) + 3 * 2 + AROUND


@in_a_file
@pytest.mark.asyncio
async def test_a_step_of_many_tasks_is_as_few_statements(
    make_queue: MakeQueue, storage: CountingSqlite
) -> None:
    """S13.2: 16 outcomes and 16 claims are no more than 6 statements: those that end alike share one."""
    few = await statements_of(make_queue, storage, 160, 16)
    many = await statements_of(make_queue, storage, 960, 16)
    more = many - few
    steps = more["COMMIT"]

    assert steps == 50
    assert sum(more.values()) <= 6 * steps + 3 * ceil(800 / (BATCH - 16))


@in_a_file
@pytest.mark.asyncio
async def test_an_enqueue_is_six_statements(
    make_queue: MakeQueue, storage: CountingSqlite, clock: FakeQueueClock
) -> None:
    """S13.22: BEGIN, the look at other programs, whether the id is known, task, payload, COMMIT; no other call."""
    flaky = FlakyStorage(storage)
    queue = make_queue(storage=flaky)
    queue.register(Work)
    await queue.enqueue(Work())
    flaky.calls.clear()
    seen: list[str] = []
    await on_connection(storage, lambda database: database.set_trace_callback(seen.append))
    await queue.enqueue(Work())
    await on_connection(storage, lambda database: database.set_trace_callback(None))

    assert [text.split()[0] for text in seen] == ["BEGIN", "PRAGMA", "SELECT", "INSERT", "INSERT", "COMMIT"]
    assert hops_of(flaky.calls) == flaky.calls["apply"] == 1
