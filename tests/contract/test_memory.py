"""The reference storage keeps the contract, and what it promises beyond: precision, lean indexes, no walks."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import attrs
import pytest

from contract_tests import OpenStorage, QueueStorageContract, make_task
from durable_queue import (
    DependencyFailurePolicy,
    MemoryQueueStorage,
    Save,
    StoredTask,
    TaskNotFoundError,
    TaskStatus,
    Update,
)

T0 = datetime(2026, 3, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


class TestMemoryQueueStorage(QueueStorageContract):
    answers_expiry = True

    @pytest.fixture
    def open_storage(self) -> OpenStorage:
        return MemoryQueueStorage


def can_be_judged(task: StoredTask, finished: Sequence[str], stored: dict[str, StoredTask]) -> bool:
    """Say what `QueueStorage.get_judgeable` says, in as many words and without an index."""
    if task.status is not TaskStatus.WAITING or not set(finished) & set(task.depends_on):
        return False
    others = [stored[other] for other in task.depends_on if other not in finished and other in stored]
    if all(other.status.is_terminal for other in others):
        return True
    if task.on_dependency_failure is DependencyFailurePolicy.RUN:
        return False
    for ended in set(finished) & set(task.depends_on):
        if ended not in stored or stored[ended].status in (TaskStatus.FAILED, TaskStatus.CANCELLED):
            return True
    return False


@pytest.mark.asyncio
async def test_judgeable_is_exact():
    """C7.7, S13.21: the reference returns those whose verdict can fall, and nobody else, as records change."""
    draw = random.Random(4)
    names = [f"t{number}" for number in range(8)]
    storage = MemoryQueueStorage()
    for _ in range(3_000):
        name = draw.choice(names)
        await storage.delete(name)
        if draw.random() < 0.9:
            others = [other for other in names if other != name]
            await storage.save(
                make_task(
                    name,
                    status=draw.choice([TaskStatus.WAITING, TaskStatus.WAITING, *TaskStatus]),
                    depends_on=draw.sample(others, draw.randrange(4)),
                    on_dependency_failure=draw.choice(list(DependencyFailurePolicy)),
                )
            )
        finished = draw.sample(names, draw.randrange(1, 4))
        tasks = await storage.get_all()
        stored = {task.id: task for task in tasks}
        assert await storage.get_judgeable(finished) == [
            t for t in tasks if can_be_judged(t, finished, stored)
        ]


@pytest.mark.asyncio
@pytest.mark.parametrize("order", ["as listed", "backwards", "at random"])
async def test_a_wide_join_costs_each_parent_the_same(order: str):
    """S13.21: the ten thousand dependencies of a join end one after the other, each for the price of one look."""
    parents = [f"p{number}" for number in range(10_000)]
    storage = MemoryQueueStorage()
    await storage.apply([Save(make_task(parent)) for parent in parents])
    await storage.save(make_task("join", status=TaskStatus.WAITING, depends_on=parents))
    ending = {
        "as listed": parents,
        "backwards": parents[::-1],
        "at random": random.Random(1).sample(parents, 10_000),
    }
    started = time.perf_counter()
    for parent in ending[order][:-1]:
        assert await storage.get_judgeable([parent]) == []
        await storage.update(make_task(parent, status=TaskStatus.COMPLETED))
    found = await storage.get_judgeable([ending[order][-1]])
    took = time.perf_counter() - started

    assert [task.id for task in found] == ["join"]
    # A search from the front each time takes 50 million looks, which are many seconds on any machine.
    assert took < 3


@pytest.mark.asyncio
async def test_claims_walk_no_backlog():
    """S3.5: claims beside a large backlog of another type, of later times and of held tasks cost what others do."""
    storage = MemoryQueueStorage()
    await storage.apply(
        [
            Save(
                make_task(
                    f"{kind}{number}",
                    type=kind,
                    priority=priority,
                    sequence=number,
                    next_attempt_at=T0 + SECOND if kind == "later" else None,
                    held=kind == "held",
                )
            )
            for kind, priority, count in (
                ("busy", 3, 20_000),
                ("later", 9, 5_000),
                ("held", 9, 5_000),
                ("free", 1, 2_000),
            )
            for number in range(count)
        ]
    )
    started = time.perf_counter()
    for number in range(2_000):
        (task,) = await storage.get_ready(T0, 1, types=["free"])
        assert task.id == f"free{number}"
        await storage.update(attrs.evolve(task, status=TaskStatus.RUNNING))
        head = await storage.get_next_ready(T0)
        assert head is not None
        assert head.id == "busy0"
    took = time.perf_counter() - started

    # Walking over the backlog at each claim takes forty million steps.
    assert took < 1


@pytest.mark.asyncio
async def test_time_moves_only_what_crosses_the_line():
    """S12.3: steps of time in either direction cost what crosses the boundary, not what is stored."""
    storage = MemoryQueueStorage()
    await storage.apply(
        [Save(make_task(f"t{n:05}", sequence=n, next_attempt_at=T0 + n * SECOND)) for n in range(25_000)]
    )
    await storage.get_next_ready(T0 + 20_000 * SECOND)
    started = time.perf_counter()
    for step in range(4_000):
        second = 20_000 + step % 3
        assert len(await storage.get_ready(T0 + second * SECOND, 1)) == 1
    took = time.perf_counter() - started

    # Building the eligible order anew at each step takes eighty million moves.
    assert took < 1


@pytest.mark.asyncio
async def test_a_task_takes_little_memory():
    """With a key, a group, a time and an expiry, a task and its places in all indexes take less than 1.5 kB."""
    count = 5_000
    tracemalloc.start()
    try:
        storage = MemoryQueueStorage()
        for number in range(count):
            await storage.save(
                make_task(
                    f"{number:032x}",
                    payload={"number": number, "text": "x" * 40},
                    created_at=T0 + number * SECOND,
                    sequence=number,
                    deduplication_key=f"key-{number}",
                    group=f"group-{number % 100}",
                    next_attempt_at=T0 + number * SECOND,
                    expires_at=T0 + number * 2 * SECOND,
                )
            )
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert taken / count < 1_500


@pytest.mark.asyncio
async def test_deleted_tasks_leave_nothing_behind():
    """Every index is empty again when every record is gone, whatever the records went through."""
    storage = MemoryQueueStorage()
    for name in ("x", "y", "z"):
        await storage.save(make_task(name))
    draw = random.Random(2)
    for number in range(500):
        task = make_task(
            f"t{number % 20}",
            status=draw.choice([*TaskStatus, *[TaskStatus.WAITING] * 5]),
            type=draw.choice("ab"),
            held=draw.random() < 0.3,
            next_attempt_at=draw.choice([None, T0, T0 + SECOND]),
            expires_at=draw.choice([None, T0]),
            group=draw.choice([None, "g"]),
            deduplication_key=draw.choice([None, "k"]),
            depends_on=draw.sample(["x", "y", "z"], draw.randrange(3)),
        )
        await storage.apply([Update(task) if await storage.get(task.id) else Save(task)])
        await storage.get_next_ready(draw.choice([T0 - SECOND, T0, T0 + SECOND]))
        await storage.get_judgeable(["x", "y"])
    for task in await storage.get_all():
        if task.status is TaskStatus.WAITING and draw.random() < 0.5:
            await storage.update(attrs.evolve(task, status=TaskStatus.RUNNING))
    assert set(storage._obstacles) <= {task.id for task in await storage.get_by_status(TaskStatus.WAITING)}
    for task in await storage.get_all():
        await storage.delete(task.id)

    indexes = [part for part in vars(storage).values() if hasattr(part, "rows")]
    readiness = vars(storage._readiness)
    assert [len(index.rows) for index in indexes] == [0] * 6
    for name in ("_eligible", "_eligible_by_type", "_due", "_scheduled"):
        assert len(readiness[name]) == 0
    assert (storage._tasks, storage._obstacles, storage._held) == ({}, {}, 0)


@pytest.mark.asyncio
async def test_a_list_is_checked_before_anything_changes():
    """C9.7: the reference looks through the whole list first, in its order."""
    storage = MemoryQueueStorage()
    with pytest.raises(TaskNotFoundError) as caught:
        await storage.apply([Save(make_task("a")), Update(make_task("b")), Update(make_task("c"))])

    assert caught.value.task_id == "b"
    assert await storage.get_all() == []


@pytest.mark.asyncio
async def test_a_naive_now_is_refused():
    """S1.7: a naive instant is a ValueError that says so."""
    storage = MemoryQueueStorage()
    with pytest.raises(ValueError, match="naive"):
        await storage.get_next_ready(datetime(2026, 1, 1))  # noqa: DTZ001 - that is the point
    with pytest.raises(ValueError, match="naive"):
        await storage.get_expired(datetime(2026, 1, 1), 1)  # noqa: DTZ001 - that is the point
