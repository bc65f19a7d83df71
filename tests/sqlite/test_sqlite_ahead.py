"""The head of the ready order in a file: bounded by its size, exact as time moves, with nothing hidden by bad rows."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from durable_queue import PayloadError, Save, StoredTask, TaskStatus
from durable_queue_sqlite import SqliteQueueStorage, _reading
from tests.sqlite.support import HOUR, SECOND, T0, execute, ids, on_connection, task

MEBIBYTE = 1024 * 1024


def sized(number: int, length: int) -> StoredTask:
    """Return a record with a payload of exactly this many characters."""
    frame = len('{"text":""}')
    return task(f"t{number}", sequence=number, payload={"text": "x" * (length - frame)})


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("lengths", "count", "is_all"),
    [
        # Read until the limit is passed: the row that passes it is there and has to be handed out.
        ([MEBIBYTE] * 8, 5, False),
        ([MEBIBYTE] * 4, 4, True),
        ([MEBIBYTE] * 4 + [12], 5, False),
        ([5 * MEBIBYTE, 12, 12], 1, False),
        ([12, 12, 5 * MEBIBYTE], 3, False),
        ([12] * 3, 3, True),
    ],
)
async def test_large_payloads_end_the_head(
    tmp_path: Path, lengths: list[int], count: int, is_all: bool
) -> None:
    """C5.10, C5.11: not more than about four million characters of payload are held ahead, and at least one task."""
    async with SqliteQueueStorage(tmp_path / "queue.db") as storage:
        records = [sized(number, length) for number, length in enumerate(lengths)]
        assert [len(record.payload_text) for record in records] == lengths
        await storage.apply([Save(record) for record in records])
        head = await storage.read_ahead(T0, 100)

    # Not in the assert itself: a failure would print the payloads.
    same = head.tasks == records[:count]
    assert ids(head.tasks) == ids(records[:count])
    assert same
    assert head.is_all is is_all


@pytest.mark.asyncio
async def test_a_head_after_many_have_come_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C5.10, C5.12: however many come due at once, or are due no more, the head and its end are exact."""
    monkeypatch.setattr(_reading, "STAGING_BATCH", 10)
    async with SqliteQueueStorage(tmp_path / "queue.db") as storage:
        records = [
            task(f"t{number:02}", priority=number, sequence=number, next_attempt_at=T0 + number * SECOND)
            for number in range(35)
        ]
        await storage.apply([Save(record) for record in records])

        for second in (30, -1, 34, 2):
            head = await storage.read_ahead(T0 + second * SECOND, 100)
            assert head.tasks == records[: second + 1][::-1]
            assert head.is_all
            assert head.until == (T0 + (second + 1) * SECOND if second < 34 else None)


@pytest.mark.asyncio
@pytest.mark.parametrize("limit", [1, 5, 100])
async def test_unreadable_rows_hide_nothing(tmp_path: Path, limit: int) -> None:
    """C12.3, S7.3: readable records behind more unreadable ones than a page has are found, with their dependents."""
    path = tmp_path / "queue.db"
    async with SqliteQueueStorage(path) as storage:
        records = [task(f"t{number:02}", sequence=number) for number in range(23)]
        child = task("child", status=TaskStatus.WAITING, depends_on=["t21"])
        await storage.apply([Save(record) for record in (*records, child)])
        execute(path, "UPDATE tasks SET details = '{' WHERE sequence < 20")
        head = await storage.read_ahead(T0, limit)

        assert head.tasks == records[20 : 20 + limit]
        assert head.is_all is (limit > 3)
        assert limit < 2 or "t21" in head.with_dependents
        assert len(await storage.take_unreadable()) == 20


@pytest.mark.asyncio
async def test_an_unreadable_row_is_not_known_by_heart(tmp_path: Path) -> None:
    """C12.5, S13.12: a row that could not be read ahead can be replaced and deleted as ever."""
    path = tmp_path / "queue.db"
    async with SqliteQueueStorage(path) as storage:
        await storage.apply([Save(task("a")), Save(task("b", sequence=1))])
        execute(path, "UPDATE tasks SET details = '{', rank = 7 WHERE id = 'a'")
        await storage.delete("nobody")
        assert ids((await storage.read_ahead(T0, 9)).tasks) == ["b"]
        await storage.update(task("a", attempts=1))
        assert await storage.get("a") == task("a", attempts=1)
        await storage.delete("a")

        assert ids((await storage.read_ahead(T0, 9)).tasks) == ["b"]


@pytest.mark.asyncio
async def test_bytes_that_are_no_text_are_left_as_they_are(tmp_path: Path) -> None:
    """S7.3: a payload that is no UTF-8 is read ahead with the others, and not written anew by a claim."""
    path = tmp_path / "queue.db"
    async with SqliteQueueStorage(path) as storage:
        await storage.apply([Save(task("a")), Save(task("b", sequence=1)), Save(task("c", sequence=2))])
        broken = "7B226B223A22FF227D"
        execute(
            path,
            f"""UPDATE payloads SET text = CAST(x'{broken}' AS TEXT)
            WHERE "row" = (SELECT "row" FROM tasks WHERE id = 'b')""",
        )
        await storage.delete("nobody")
        head = await storage.read_ahead(T0, 3)

        assert ids(head.tasks) == ["a", "b", "c"]
        with pytest.raises(PayloadError):
            _ = head.tasks[1].payload
        await storage.update(attrs.evolve(head.tasks[1], status=TaskStatus.RUNNING, attempts=1))
    assert execute(path, "SELECT count(*) FROM payloads WHERE hex(text) = ?", broken) == [(1,)]


@pytest.mark.asyncio
async def test_a_head_walks_over_nothing_else(tmp_path: Path) -> None:
    """S3.5: a head beside a large backlog that is held, later, waiting or behind it costs what is in it."""
    async with SqliteQueueStorage(tmp_path / "queue.db") as storage:
        kinds = (
            {"held": True, "priority": 9},
            {"next_attempt_at": T0 + HOUR, "priority": 9},
            {"status": TaskStatus.WAITING, "depends_on": ["x"], "priority": 9},
            {"priority": -9},
        )
        await storage.apply(
            [
                Save(task(f"t{n}-{m}", sequence=m, **kind))
                for n, kind in enumerate(kinds)
                for m in range(2_000)
            ]
        )
        await storage.apply([Save(task(f"head{n}", sequence=n)) for n in range(10)])
        count = 0

        def tick() -> int:
            nonlocal count
            count += 1
            return 0

        await on_connection(storage, lambda database: database.set_progress_handler(tick, 100))
        head = await storage.read_ahead(T0, 10)

        assert ids(head.tasks) == [f"head{n}" for n in range(10)]
        # About 90 instructions a task; a walk over one of the backlogs takes several thousand.
        assert count < 30
