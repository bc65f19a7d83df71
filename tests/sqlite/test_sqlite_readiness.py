"""Who is ready, as time moves in either direction and whatever else is stored."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import attrs
import pytest

from durable_queue import Save, TaskStatus, Update
from durable_queue_sqlite import SqliteQueueStorage, _reading
from tests.sqlite.support import HOUR, SECOND, T0, execute, ids, on_connection, task


async def stages(storage: SqliteQueueStorage) -> dict[int | None, int]:
    """Return how many rows there are of each stage."""
    return dict(
        await on_connection(
            storage,
            lambda database: database.execute("SELECT stage, count(*) FROM tasks GROUP BY stage").fetchall(),
        )
    )


@pytest.mark.asyncio
async def test_more_due_than_a_batch_is_answered_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3.1: however many come due at once, the highest priority among all of them is first."""
    monkeypatch.setattr(_reading, "STAGING_BATCH", 10)
    async with SqliteQueueStorage(tmp_path / "queue.db") as storage:
        records = [
            task(f"t{number:02}", priority=number, sequence=number, next_attempt_at=T0 + number * SECOND)
            for number in range(35)
        ]
        await storage.apply([Save(record) for record in records])

        assert await storage.get_next_ready(T0 - SECOND) is None
        assert ids(await storage.get_ready(T0 + 30 * SECOND, 2)) == ["t30", "t29"]
        assert await stages(storage) == {1: 31, 2: 4}
        assert ids(await storage.get_ready(T0 + HOUR, 3)) == ["t34", "t33", "t32"]


@pytest.mark.asyncio
async def test_a_clock_that_goes_back_takes_readiness_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S12.2: what was due is not due any more when the clock is corrected, exactly to the microsecond."""
    monkeypatch.setattr(_reading, "STAGING_BATCH", 10)
    micro = timedelta(microseconds=1)
    async with SqliteQueueStorage(tmp_path / "queue.db") as storage:
        records = [task(f"t{number:02}", next_attempt_at=T0 + number * SECOND) for number in range(35)]
        await storage.apply([Save(record) for record in records])
        assert len(await storage.get_ready(T0 + HOUR, 100)) == 35

        assert ids(await storage.get_ready(T0 + SECOND - micro, 100)) == ["t00"]
        assert ids(await storage.get_ready(T0 + SECOND, 100)) == ["t00", "t01"]
        assert await storage.get_next_ready(T0 - micro) is None
        assert await storage.get_next_wake_at() == T0


@pytest.mark.asyncio
async def test_another_storage_with_another_clock_changes_no_answer(tmp_path: Path) -> None:
    """S3.1: what one process has found due is not due for one whose clock is behind."""
    path = tmp_path / "queue.db"
    async with SqliteQueueStorage(path) as ahead, SqliteQueueStorage(path) as behind:
        await ahead.apply([Save(task("a", next_attempt_at=T0 + HOUR)), Save(task("b", sequence=1))])

        for _ in range(2):
            assert ids(await ahead.get_ready(T0 + HOUR, 5)) == ["a", "b"]
            assert ids(await behind.get_ready(T0, 5)) == ["b"]


@pytest.mark.asyncio
async def test_a_past_time_needs_no_promotion(tmp_path: Path) -> None:
    """S2.5: a task whose time is over already when it is stored is ready at once."""
    async with SqliteQueueStorage(tmp_path / "queue.db") as storage:
        assert await storage.get_ready(T0, 1) == []
        await storage.apply(
            [Save(task("a", next_attempt_at=T0)), Save(task("b", next_attempt_at=T0 + SECOND))]
        )

        assert await stages(storage) == {1: 1, 2: 1}
        assert ids(await storage.get_ready(T0, 2)) == ["a"]


@pytest.mark.asyncio
async def test_a_wave_of_due_tasks_lets_others_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3.3: while many come due, other calls get their turn after every batch."""
    monkeypatch.setattr(_reading, "STAGING_BATCH", 10)
    async with SqliteQueueStorage(tmp_path / "queue.db") as storage:
        records = [task(f"t{number:03}", next_attempt_at=T0) for number in range(200)]
        await storage.apply([Save(record) for record in records])
        order: list[str] = []

        async def note(name: str) -> None:
            await (storage.get_ready(T0, 1) if name == "wave" else storage.get("t000"))
            order.append(name)

        await asyncio.gather(note("wave"), note("other"))

        assert order == ["other", "wave"]


@pytest.mark.asyncio
async def test_types_are_merged_in_ready_order(tmp_path: Path) -> None:
    """S3.5: the best of the allowed types, whichever type they are of, each name counted once."""
    async with SqliteQueueStorage(tmp_path / "queue.db") as storage:
        await storage.apply(
            [
                Save(task(f"{kind}{number}", type=kind, priority=number % 3, sequence=number))
                for number in range(6)
                for kind in ("x", "y", "z")
            ]
        )

        assert ids(await storage.get_ready(T0, 3, types=["x", "z", "x"])) == ["x2", "z2", "x5"]
        assert ids(await storage.get_ready(T0, 100, types=["y"])) == ["y2", "y5", "y1", "y4", "y0", "y3"]
        assert await storage.get_ready(T0, 3, types=[]) == []
        assert await storage.get_ready(T0, 3, types=["it's", '"'] * 3) == []


@pytest.mark.asyncio
async def test_held_and_claimed_tasks_are_not_ready(tmp_path: Path) -> None:
    """S3.1: a held task counts neither as ready nor for the next wake-up, whatever its status was."""
    async with SqliteQueueStorage(tmp_path / "queue.db") as storage:
        scheduled = task("a", status=TaskStatus.RETRY_SCHEDULED, next_attempt_at=T0, attempts=1)
        await storage.save(scheduled)
        assert ids(await storage.get_ready(T0, 5)) == ["a"]

        await storage.update(attrs.evolve(scheduled, held=True))
        assert await storage.get_ready(T0 + HOUR, 5) == []
        assert await storage.get_next_wake_at() is None
        assert await storage.count_held() == 1

        await storage.apply([Update(scheduled)])
        assert ids(await storage.get_ready(T0, 5)) == ["a"]
        assert await storage.get_next_wake_at() == T0
        await storage.update(attrs.evolve(scheduled, status=TaskStatus.RUNNING))
        assert await storage.get_ready(T0 + HOUR, 5) == []
        assert await storage.get_next_wake_at() is None


@pytest.mark.asyncio
async def test_nothing_is_walked_that_is_not_ready(tmp_path: Path) -> None:
    """S3.5: neither high priorities that are not due, nor another type, nor finished tasks cost a claim anything."""
    path = tmp_path / "queue.db"
    many = 3000
    async with SqliteQueueStorage(path) as storage:
        await storage.apply([Save(task("wanted", type="wanted", sequence=9))])
        cheap = await steps(storage)
        await storage.apply(
            [
                Save(task(f"{kind}{number}", sequence=number, **fields))
                for number in range(many)
                for kind, fields in (
                    ("later", {"priority": 9, "next_attempt_at": T0 + HOUR}),
                    ("other", {"type": "other", "priority": 9}),
                    ("done", {"type": "wanted", "status": TaskStatus.COMPLETED, "attempts": 1}),
                    ("held", {"type": "wanted", "priority": 9, "held": True}),
                )
            ]
        )

        assert ids(await storage.get_ready(T0, 1, types=["wanted"])) == ["wanted"]
        assert await steps(storage) <= cheap + 10
    assert execute(path, "SELECT count(*) FROM tasks") == [(4 * many + 1,)]


async def steps(storage: SqliteQueueStorage) -> int:
    """Return how many tens of steps of SQLite's machine it takes to find the next task."""
    count = 0

    def tick() -> int:
        nonlocal count
        count += 1
        return 0

    await on_connection(storage, lambda database: database.set_progress_handler(tick, 10))
    await storage.get_ready(T0, 1, types=["wanted"])
    await on_connection(storage, lambda database: database.set_progress_handler(None, 10))
    return count
