"""Writes: whole or not at all, whatever fails, whoever is cancelled, whatever another program does to the file."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import attrs
import pytest

from durable_queue import (
    Delete,
    Save,
    StorageError,
    TaskAlreadyExistsError,
    TaskNotFoundError,
    TaskStatus,
    Update,
)
from durable_queue_sqlite import SqliteQueueStorage
from tests.sqlite.support import T0, execute, ids, on_connection, task


def integrity(path: Path) -> list[tuple[str]]:
    """Return what SQLite says about the whole file."""
    return execute(path, "PRAGMA integrity_check")


async def in_transaction(storage: SqliteQueueStorage) -> bool:
    """Return whether the storage's connection has a transaction open."""
    return await on_connection(storage, lambda database: database.in_transaction)


@pytest.mark.asyncio
@pytest.mark.parametrize("steps", range(8))
async def test_a_cancelled_caller_leaves_all_or_nothing(tmp_path: Path, steps: int) -> None:
    """S2.7: wherever a caller is cancelled, its list is written whole or not at all, and others can go on."""
    path = tmp_path / "queue.db"
    async with SqliteQueueStorage(path) as storage:
        call = asyncio.create_task(storage.apply([Save(task(f"t{number}")) for number in range(50)]))
        for _ in range(steps):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])

        assert len(await storage.get_all()) in (0, 50)
        assert not await in_transaction(storage)
        await storage.save(task("next"))


@pytest.mark.asyncio
async def test_a_cancelled_call_has_ended_when_it_says_so(tmp_path: Path) -> None:
    """S2.7: when a cancelled caller is told, nothing of its call goes on behind its back."""
    path = tmp_path / "queue.db"
    async with SqliteQueueStorage(path) as storage:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            call = asyncio.create_task(storage.save(task("a")))
            for _ in range(3):
                await asyncio.sleep(0)
                call.cancel()
            assert not call.done()
            other.execute("COMMIT")
        await asyncio.wait([call])

        assert call.cancelled()
        assert ids(await storage.get_all()) == ["a"]


@pytest.mark.asyncio
async def test_an_open_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    """S2.7: a cancelled open closes what it had opened, wherever it was cancelled."""
    path = tmp_path / "queue.db"
    for steps in range(8):
        storage = SqliteQueueStorage(path)
        opening = asyncio.create_task(storage.__aenter__())
        for _ in range(steps):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait([opening])
        if not opening.cancelled():
            await storage.close()

        assert not path.with_name("queue.db-wal").exists()


@pytest.mark.asyncio
async def test_a_full_disk_leaves_nothing_half_done(tmp_path: Path) -> None:
    """S10.3: a write that does not fit raises and leaves no row; with room again the same call succeeds."""
    path = tmp_path / "queue.db"
    large = [Save(task(f"t{number}", payload={"text": "x" * 5000})) for number in range(100)]
    async with SqliteQueueStorage(path) as storage:
        pages = await on_connection(
            storage, lambda database: database.execute("PRAGMA page_count").fetchone()[0]
        )
        await on_connection(
            storage, lambda database: database.execute(f"PRAGMA max_page_count = {pages + 20}").fetchall()
        )
        for _ in range(3):
            with pytest.raises(StorageError, match="apply failed: database or disk is full") as failed:
                await storage.apply(large)
            assert isinstance(failed.value.__cause__, sqlite3.OperationalError)
            assert str(path) in str(failed.value)
        assert not await in_transaction(storage)
        assert await storage.get_all() == []

        await on_connection(
            storage, lambda database: database.execute("PRAGMA max_page_count = 1000000").fetchall()
        )
        await storage.apply(large)

        assert len(await storage.get_all()) == 100
    assert integrity(path) == [("ok",)]


@pytest.mark.asyncio
async def test_a_file_locked_by_another_program_is_waited_for(tmp_path: Path) -> None:
    """S7.9: a write waits for the lock of another program instead of failing at once."""
    path = tmp_path / "queue.db"
    async with SqliteQueueStorage(path) as storage:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            call = asyncio.create_task(storage.save(task("a")))
            await asyncio.sleep(0)
            assert not call.done()
            other.execute("ROLLBACK")
            await call

        assert ids(await storage.get_all()) == ["a"]


@pytest.mark.asyncio
async def test_a_lock_that_stays_is_an_error_and_no_more(tmp_path: Path) -> None:
    """S10.3: when the lock does not go the call fails; nothing is written and the connection is as before."""
    path = tmp_path / "queue.db"
    async with SqliteQueueStorage(path) as storage:
        await on_connection(storage, lambda database: database.execute("PRAGMA busy_timeout = 1").fetchall())
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StorageError, match="save failed: database is locked"):
                await storage.save(task("a"))
            assert ids(await storage.get_all()) == []
            other.execute("ROLLBACK")
        await storage.save(task("a"))

        assert not await in_transaction(storage)


@pytest.mark.asyncio
async def test_a_reader_elsewhere_stops_no_write(tmp_path: Path) -> None:
    """S7.9: other programs may read the file for as long as they like."""
    path = tmp_path / "queue.db"
    async with SqliteQueueStorage(path) as storage:
        await storage.save(task("a"))
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            assert reader.execute("SELECT count(*) FROM tasks").fetchone() == (1,)
            await storage.save(task("b"))
            await storage.update(task("a", attempts=1))

            assert reader.execute("SELECT count(*) FROM tasks").fetchone() == (1,)
            assert len(await storage.get_all()) == 2


@pytest.mark.asyncio
async def test_a_failure_in_the_middle_undoes_what_came_before(tmp_path: Path) -> None:
    """S4.7: an error of the database in any statement undoes the whole list; its text is told, no data."""
    path = tmp_path / "queue.db"
    async with SqliteQueueStorage(path) as storage:
        await storage.save(task("a"))
        execute(
            path,
            "CREATE TRIGGER fault BEFORE INSERT ON payloads WHEN new.text LIKE '%sesame%' "
            "BEGIN SELECT RAISE(ABORT, 'injected'); END",
        )

        with pytest.raises(StorageError, match="apply failed: injected") as failed:
            await storage.apply(
                [Update(task("a", attempts=1)), Save(task("b")), Save(task("c", payload={"p": "sesame"}))]
            )

        assert "sesame" not in str(failed.value)
        assert await storage.get_all() == [task("a")]
        assert not await in_transaction(storage)


@pytest.mark.asyncio
async def test_what_sqlite_cannot_hold_is_a_storage_error(tmp_path: Path) -> None:
    """S1.8: a text or number that does not fit is refused without being repeated."""
    async with SqliteQueueStorage(tmp_path / "queue.db") as storage:
        for wrong in (
            task("a", group="sesame\ud800"),
            task("sesame\ud800", payload={}),
            task("b", sequence=2**63),
        ):
            with pytest.raises(StorageError, match="save failed") as failed:
                await storage.save(wrong)
            assert "sesame" not in str(failed.value)

        assert await storage.get_all() == []


@pytest.mark.asyncio
async def test_a_list_is_carried_out_in_its_order(tmp_path: Path) -> None:
    """S2.6: a list may name an id many times; what it ends as is what counts."""
    async with SqliteQueueStorage(tmp_path / "queue.db") as storage:
        await storage.save(task("old"))
        done = task("old", status=TaskStatus.COMPLETED, attempts=1, result=1)

        await storage.apply(
            [
                Save(task("new")),
                Update(task("new", attempts=1)),
                Delete("gone"),
                Save(task("gone")),
                Delete("gone"),
                Delete("old"),
                Save(task("old", type="other", priority=7, group="g", depends_on=["new"], result=2)),
                Update(done),
                Save(done),
            ]
        )

        assert await storage.get_all() == [task("new", attempts=1), done]
        assert await storage.get_dependents("new") == []


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ([Save(task("b")), Save(task("a", attempts=1))], TaskAlreadyExistsError),
        ([Save(task("b")), Save(task("b", attempts=1))], TaskAlreadyExistsError),
        ([Save(task("b")), Update(task("c"))], TaskNotFoundError),
        ([Delete("a"), Update(task("a"))], TaskNotFoundError),
        ([Update(task("a", attempts=1)), Save(task("a"))], TaskAlreadyExistsError),
    ],
)
async def test_a_list_that_cannot_be_carried_out_changes_nothing(
    tmp_path: Path, changes: list[Save | Update | Delete], error: type[Exception]
) -> None:
    """S13.3: another record under a new id, or none under an old one, refuses the whole list."""
    async with SqliteQueueStorage(tmp_path / "queue.db") as storage:
        await storage.save(task("a"))

        with pytest.raises(error):
            await storage.apply(changes)

        assert await storage.get_all() == [task("a")]


@pytest.mark.asyncio
async def test_a_list_may_be_changed_by_its_owner_afterwards(tmp_path: Path) -> None:
    """S1.6: the list is taken over when the call is made."""
    async with SqliteQueueStorage(tmp_path / "queue.db") as storage:
        changes = [Save(task("a"))]
        call = asyncio.create_task(storage.apply(changes))
        await asyncio.sleep(0)
        changes.append(Save(task("b")))
        await call

        assert ids(await storage.get_all()) == ["a"]


@pytest.mark.asyncio
async def test_ten_thousand_ids_fit_any_build_of_sqlite(tmp_path: Path) -> None:
    """S13.21: a list of ids is one parameter, so a build that takes few of them does as well."""
    async with SqliteQueueStorage(tmp_path / "queue.db") as storage:
        await on_connection(
            storage, lambda database: database.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 999)
        )
        many = [task(f"t{number:05}", sequence=number) for number in range(10_000)]
        join = task("join", status=TaskStatus.WAITING, depends_on=[parent.id for parent in many])
        await storage.apply([Save(record) for record in [*many, join]])
        names = [parent.id for parent in many]

        assert len(await storage.get_many(names)) == 10_000
        assert ids(await storage.get_judgeable(names)) == ["join"]
        assert ids(await storage.get_waiting_dependents_of(names)) == ["join"]
        assert ids(await storage.get_ready(T0, 1, types=names)) == []
        await storage.apply([Delete(name) for name in names])
        assert ids(await storage.get_all()) == ["join"]


@pytest.mark.asyncio
async def test_an_update_does_not_write_an_equal_payload(tmp_path: Path) -> None:
    """S1.6: a claim or an outcome leaves a large payload where it is."""
    path = tmp_path / "queue.db"
    async with SqliteQueueStorage(path) as storage:
        first = task("a", payload={"text": "x" * 10_000})
        await storage.save(first)
        execute(
            path, "CREATE TRIGGER touched BEFORE UPDATE ON payloads BEGIN SELECT RAISE(ABORT, 'written'); END"
        )

        await storage.update(attrs.evolve(first, status=TaskStatus.RUNNING, attempts=1))
        await storage.update(attrs.evolve(first, status=TaskStatus.COMPLETED, attempts=1, result="y" * 5_000))
        with pytest.raises(StorageError, match="written"):
            await storage.update(attrs.evolve(first, payload={}))


@pytest.mark.asyncio
async def test_calls_at_once_are_all_carried_out(tmp_path: Path) -> None:
    """S2.7: callers share the connection without getting into each other's transactions."""
    async with (
        SqliteQueueStorage(tmp_path / "queue.db") as storage,
        SqliteQueueStorage(tmp_path / "queue.db") as other,
    ):
        await asyncio.gather(
            *(storage.apply([Save(task(f"a{number}")), Save(task(f"b{number}"))]) for number in range(40)),
            *(other.save(task(f"c{number}")) for number in range(40)),
            *(storage.get_ready(T0, 3) for _ in range(40)),
        )

        assert len(await storage.get_all()) == 120
        assert len(await other.get_all()) == 120
