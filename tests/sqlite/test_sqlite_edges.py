"""Edges between tasks: kept by every write, never counted, and cheap for a join of many parents."""

from __future__ import annotations

from pathlib import Path
from random import Random

import attrs
import pytest

from durable_queue import (
    Delete,
    DependencyFailurePolicy,
    MemoryQueueStorage,
    Save,
    StoredTask,
    TaskStatus,
    Update,
)
from durable_queue.storage import Change
from durable_queue_sqlite import SqliteQueueStorage
from tests.sqlite.support import execute, ids, on_connection, task


def waiting(task_id: str, *parents: str, **fields: object) -> StoredTask:
    """Return a waiting record with these dependencies."""
    return task(task_id, status=TaskStatus.WAITING, depends_on=parents, **fields)


async def open_edges(storage: SqliteQueueStorage) -> list[tuple[str, str]]:
    """Return the edges that are open, as (dependency, dependent)."""
    return await on_connection(
        storage,
        lambda database: database.execute(
            'SELECT dependency_id, id FROM edges JOIN tasks ON "row" = task WHERE open = 1 ORDER BY 1, 2'
        ).fetchall(),
    )


@pytest.mark.asyncio
async def test_an_edge_is_open_while_its_dependency_is_active(tmp_path: Path) -> None:
    """S4.1: storing, finishing, reopening and deleting a dependency say whether its edges are open."""
    async with SqliteQueueStorage(tmp_path / "queue.db") as storage:
        await storage.save(waiting("child", "a"))
        assert await open_edges(storage) == []

        await storage.save(task("a"))
        assert await open_edges(storage) == [("a", "child")]
        for status in TaskStatus:
            for _ in range(2):
                await storage.update(task("a", status=status))
                expected = [] if status.is_terminal else [("a", "child")]
                assert await open_edges(storage) == expected
        await storage.update(task("a"))
        await storage.delete("a")
        assert await open_edges(storage) == []
        await storage.apply([Save(task("a")), Delete("child")])
        assert await open_edges(storage) == []


@pytest.mark.asyncio
async def test_edges_follow_changed_dependencies(tmp_path: Path) -> None:
    """S4.1: an update with other dependencies leaves no edge of the old ones."""
    async with SqliteQueueStorage(tmp_path / "queue.db") as storage:
        await storage.apply([Save(task("a")), Save(task("b")), Save(waiting("child", "a", "gone"))])

        await storage.apply([Update(waiting("child", "b"))])

        assert await open_edges(storage) == [("b", "child")]
        assert await storage.get_dependents("a") == []
        assert await storage.get_dependents("gone") == []
        assert ids(await storage.get_dependents("b")) == ["child"]


@pytest.mark.asyncio
async def test_a_graph_may_be_stored_in_any_order(tmp_path: Path) -> None:
    """S2.6: in one list a dependent may come before what it depends on."""
    async with SqliteQueueStorage(tmp_path / "queue.db") as storage:
        await storage.apply([Save(waiting("child", "a", "b")), Save(task("a")), Save(task("b"))])

        assert await open_edges(storage) == [("a", "child"), ("b", "child")]
        assert await storage.get_judgeable(["a"]) == []
        assert ids(await storage.get_judgeable(["b", "a"])) == ["child"]


@pytest.mark.asyncio
async def test_a_row_number_is_never_given_out_twice(tmp_path: Path) -> None:
    """S4.1: a new task has nothing of a deleted one's, not even after the file was opened again."""
    path = tmp_path / "queue.db"
    async with SqliteQueueStorage(path) as storage:
        await storage.apply([Save(waiting("old", "a", result=1))])
        await storage.delete("old")
    async with SqliteQueueStorage(path) as storage:
        await storage.save(task("new"))

        assert await storage.get("new") == task("new")
        assert await storage.get_dependents("a") == []
    assert execute(path, 'SELECT "row" FROM tasks') == [(2,)]
    assert execute(path, "SELECT (SELECT count(*) FROM results), (SELECT count(*) FROM edges)") == [(0, 0)]


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", range(6))
async def test_judgeable_is_what_the_reference_says(tmp_path: Path, seed: int) -> None:
    """S13.21: after any writes, the answers about dependents are those of the memory storage."""
    random = Random(seed)
    names = [f"t{number}" for number in range(8)]
    memory = MemoryQueueStorage()
    async with SqliteQueueStorage(tmp_path / "queue.db") as storage:
        for _ in range(60):
            changes: list[Change] = []
            for name in random.sample(names, random.randint(1, 4)):
                record = task(
                    name,
                    status=random.choice(list(TaskStatus)),
                    depends_on=random.sample(
                        [other for other in names if other != name], random.randint(0, 3)
                    ),
                    on_dependency_failure=random.choice(list(DependencyFailurePolicy)),
                )
                stored = await memory.get(name)
                if stored is None:
                    changes.append(Save(record))
                elif random.random() < 0.15:
                    changes.append(Delete(name))
                elif random.random() < 0.6:
                    changes.append(Update(attrs.evolve(stored, status=record.status)))
                else:
                    changes.append(Update(record))
            await memory.apply(changes)
            await storage.apply(changes)
            asked = random.sample(names, random.randint(1, 3))

            assert await storage.get_judgeable(asked) == await memory.get_judgeable(asked)
            assert await storage.get_waiting_dependents(asked[0]) == await memory.get_waiting_dependents(
                asked[0]
            )
            assert await storage.get_waiting_dependents_of(asked) == await memory.get_waiting_dependents_of(
                asked
            )
            assert await storage.get_dependents(asked[0]) == await memory.get_dependents(asked[0])


@pytest.mark.asyncio
async def test_a_wide_join_costs_a_few_steps_per_question(tmp_path: Path) -> None:
    """S13.21: a parent of a join with thousands of open parents is answered for without walking over them."""
    async with SqliteQueueStorage(tmp_path / "queue.db") as storage:
        parents = [task(f"t{number:05}", sequence=number) for number in range(4000)]
        await storage.apply([Save(record) for record in parents])
        await storage.save(waiting("join", *[record.id for record in parents]))
        count = 0

        def tick() -> int:
            nonlocal count
            count += 1
            return 0

        await on_connection(storage, lambda database: database.set_progress_handler(tick, 100))
        for parent in parents[:50]:
            assert await storage.get_judgeable([parent.id]) == []

        assert count < 50 * 5
