"""The reference storage brings its indexes up to date once a list: what a list leaves is what its changes leave."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pytest

from contract_tests import make_task
from durable_queue import (
    Delete,
    DependencyFailurePolicy,
    MemoryQueueStorage,
    Save,
    StoredTask,
    TaskStatus,
    Update,
)
from durable_queue.changes import Change

T0 = datetime(2026, 3, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
NAMES = [f"t{number}" for number in range(24)]
"""So many that an id has few dependents at one time and many at another."""


def drawn_task(draw: random.Random, name: str) -> StoredTask:
    others = [other for other in NAMES if other != name]
    return make_task(
        name,
        status=draw.choice([*TaskStatus, TaskStatus.WAITING, TaskStatus.PENDING]),
        type=draw.choice("ab"),
        priority=draw.randrange(2),
        held=draw.random() < 0.2,
        attempts=draw.randrange(2),
        created_at=T0 + draw.randrange(2) * SECOND,
        sequence=draw.randrange(4),
        next_attempt_at=draw.choice([None, None, T0, T0 + SECOND]),
        expires_at=draw.choice([None, T0, T0 + SECOND]),
        group=draw.choice([None, "g"]),
        deduplication_key=draw.choice([None, "k"]),
        depends_on=draw.sample(others, draw.choice([0, 1, 2, 12])),
        on_dependency_failure=draw.choice(list(DependencyFailurePolicy)),
    )


def drawn_list(draw: random.Random, stored: set[str]) -> list[Change]:
    """Make changes that can be carried out, often several of one id; keep account of what is stored."""
    changes: list[Change] = []
    for _ in range(draw.choice([1, 4, 40])):
        name = draw.choice(NAMES)
        if draw.random() < 0.2:
            stored.discard(name)
            changes.append(Delete(name))
        else:
            kind = Update if name in stored else Save
            stored.add(name)
            changes.append(kind(drawn_task(draw, name)))
    return changes


async def answers(storage: MemoryQueueStorage, now: datetime, ids: list[str]) -> list[Any]:
    """Ask everything that is answered from an index."""
    return [
        await storage.get_all(),
        [await storage.get_by_status(status) for status in TaskStatus],
        await storage.read_ahead(now, 50),
        await storage.get_ready(now, 50, types=["b"]),
        await storage.get_next_wake_at(),
        await storage.get_max_sequence(),
        await storage.find_active_by_deduplication_key("k"),
        [await storage.get_by_group("g", status=status) for status in (None, *TaskStatus)],
        await storage.get_waiting_dependents_of(ids),
        await storage.get_judgeable(ids),
        [await storage.get_dependents(name) for name in ids],
        await storage.get_expired(now, 50),
        await storage.get_next_expiry_at(),
        await storage.count_by_status(),
        await storage.count_held(),
    ]


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", range(8))
async def test_a_list_leaves_what_its_changes_leave_one_by_one(seed: int):
    """C9.1: after each list every query answers as if its changes had been carried out one after the other."""
    draw = random.Random(seed)
    at_once, one_by_one = MemoryQueueStorage(), MemoryQueueStorage()
    stored: set[str] = set()
    for _ in range(60):
        changes = drawn_list(draw, stored)
        await at_once.apply(changes)
        for change in changes:
            if isinstance(change, Delete):
                await one_by_one.delete(change.task_id)
            elif isinstance(change, Save):
                await one_by_one.save(change.task)
            else:
                await one_by_one.update(change.task)
        now, ids = T0 + draw.randrange(-1, 2) * SECOND, draw.sample(NAMES, 3)
        assert await answers(at_once, now, ids) == await answers(one_by_one, now, ids)


@pytest.mark.asyncio
async def test_a_change_of_status_leaves_the_dependencies_alone():
    """S13.21: who depends on whom is entered once; a join of thousands that changes costs what any task costs."""
    parents = [f"p{number}" for number in range(3_000)]
    join = make_task("join", status=TaskStatus.WAITING, depends_on=parents)
    others = [make_task(f"w{n}", status=TaskStatus.WAITING, depends_on=["p0"]) for n in range(20)]
    storage = MemoryQueueStorage()
    await storage.apply([Save(task) for task in (join, *others)])
    before = dict(storage._by_dependency.rows)
    # Many ids in a tuple would be copied for each that comes or goes.
    assert (type(before["p0"]), type(before["p1"])) == (set, tuple)

    await storage.apply([Update(attrs.evolve(task, status=TaskStatus.CANCELLED)) for task in (join, *others)])

    after = storage._by_dependency.rows
    assert after.keys() == before.keys()
    assert all(after[parent] is before[parent] for parent in parents)
    assert await storage.get_waiting_dependents("p0") == []
    assert len(await storage.get_dependents("p0")) == 21
