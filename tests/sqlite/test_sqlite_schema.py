"""Migrations: one transaction each, whoever opens the file at the same time, wherever the process dies."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from durable_queue import StorageError
from durable_queue_sqlite import SqliteQueueStorage, _schema
from tests.sqlite.support import execute, ids, start_python, task

_NEXT = (
    "ALTER TABLE tasks ADD COLUMN extra INTEGER",
    "CREATE INDEX by_extra ON tasks (extra) WHERE extra = 1",
)
_AFTER = ("UPDATE tasks SET extra = sequence", "CREATE TABLE more (text TEXT) STRICT")


def structure(path: Path) -> list[tuple[str, str]]:
    """Return what the file is made of."""
    return execute(path, "SELECT name, sql FROM sqlite_master ORDER BY name")


@pytest.fixture(name="old")
def _old(tmp_path: Path) -> Path:
    """Return a file of the first version with one task in it."""
    path = tmp_path / "queue.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        _schema.migrate(database, str(path))
        database.execute(
            """INSERT INTO tasks ("row", id, type, rank, created_at, sequence, on_dependency_failure, status,
            updated_at, attempts, held, writer) VALUES (1, 'a', 'work', 0, 0, 7, 0, 0, 0, 0, 0, 0)"""
        )
    return path


def test_an_old_file_is_brought_up_step_by_step(old: Path) -> None:
    """S13.22: each migration runs once, in order, and the tasks stay."""
    with closing(sqlite3.connect(old, isolation_level=None)) as database:
        for _ in range(2):
            _schema.migrate(database, str(old), (*_schema.MIGRATIONS, _NEXT, _AFTER))

    assert execute(old, "PRAGMA user_version") == [(len(_schema.MIGRATIONS) + 2,)]
    assert execute(old, "SELECT id, extra FROM tasks") == [("a", 7)]
    assert execute(old, "PRAGMA integrity_check") == [("ok",)]


def test_a_migration_that_fails_changes_nothing(old: Path) -> None:
    """S13.22: an error in the middle of a step takes the whole step back, its number too."""
    before = structure(old)
    with closing(sqlite3.connect(old, isolation_level=None)) as database:
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            _schema.migrate(database, str(old), (*_schema.MIGRATIONS, (*_NEXT, "DELETE FROM nowhere")))

        assert not database.in_transaction
    assert structure(old) == before
    assert execute(old, "PRAGMA user_version") == [(len(_schema.MIGRATIONS),)]


_KILLED = """
    import os, sqlite3, sys
    from durable_queue_sqlite import _schema

    class Mortal(sqlite3.Connection):
        left = int(sys.argv[2])

        def execute(self, statement, *parameters):
            if not statement.startswith("SELECT") and not statement.endswith(("_id", "_version")):
                if Mortal.left == 0:
                    os.kill(os.getpid(), 9)
                Mortal.left -= 1
            return super().execute(statement, *parameters)

    database = sqlite3.connect(sys.argv[1], isolation_level=None, factory=Mortal)
    _schema.migrate(database, sys.argv[1], eval(sys.argv[3]))
"""


@pytest.mark.parametrize("left", range(11))
def test_a_process_killed_before_any_statement_leaves_a_file_that_opens(old: Path, left: int) -> None:
    """S13.22: the next start finds either the old version or the new one, whole, and goes on from there."""
    migrations = (*_schema.MIGRATIONS, _NEXT)
    with start_python(_KILLED, old, left, repr(migrations)) as child:
        assert child.wait(20) == (-9 if left < 10 else 0)

    with closing(sqlite3.connect(old, isolation_level=None)) as database:
        _schema.migrate(database, str(old), migrations)

    assert execute(old, "SELECT id, extra FROM tasks") == [("a", None)]
    assert execute(old, "PRAGMA user_version") == [(len(migrations),)]
    assert execute(old, "PRAGMA integrity_check") == [("ok",)]


_OPEN = """
    import asyncio, sys
    from durable_queue_sqlite import SqliteQueueStorage
    from tests.sqlite.support import task

    async def main():
        print("ready", flush=True)
        sys.stdin.readline()
        async with SqliteQueueStorage(sys.argv[1]) as storage:
            await storage.save(task(sys.argv[2]))

    asyncio.run(main())
"""


@pytest.mark.asyncio
@pytest.mark.parametrize("attempt", range(3))
async def test_many_processes_may_make_a_file_at_once(tmp_path: Path, attempt: int) -> None:
    """S7.9: one makes the tables, the others wait or find them made; none is refused."""
    path = tmp_path / f"queue{attempt}.db"
    children = [start_python(_OPEN, path, f"t{number}") for number in range(4)]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    ended = [child.communicate(timeout=20) for child in children]

    assert [(child.returncode, said[1]) for child, said in zip(children, ended, strict=True)] == [(0, "")] * 4
    async with SqliteQueueStorage(path) as storage:
        assert ids(await storage.get_all()) == ["t0", "t1", "t2", "t3"]
    assert execute(path, "PRAGMA integrity_check") == [("ok",)]


def test_a_file_that_another_program_took_meanwhile_is_refused(tmp_path: Path) -> None:
    """S13.22: whose file it is is asked again under the lock, before anything is written."""
    path = tmp_path / "queue.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        execute(path, "CREATE TABLE customers (name TEXT)")
        with pytest.raises(StorageError, match="another program"):
            _schema.migrate(database, str(path))

    assert [name for name, _ in structure(path)] == ["customers"]


@pytest.mark.asyncio
async def test_the_tables_are_strict(tmp_path: Path) -> None:
    """S13.11: SQLite itself refuses a value of the wrong type in any column."""
    path = tmp_path / "queue.db"
    async with SqliteQueueStorage(path) as storage:
        await storage.save(task("a"))

    with pytest.raises(sqlite3.IntegrityError, match="cannot store"):
        execute(path, "UPDATE tasks SET attempts = 'many'")
    tables = [
        sql for name, sql in structure(path) if sql and "CREATE TABLE" in sql and name != "sqlite_sequence"
    ]
    assert all("STRICT" in sql for sql in tables)
    assert len(tables) == 4


@pytest.mark.asyncio
@pytest.mark.parametrize(("synchronous", "level"), [("FULL", 2), ("NORMAL", 1)])
async def test_the_connection_is_set_up(tmp_path: Path, synchronous: str, level: int) -> None:
    """S2.1: acknowledged is on the disk by default; the log does not grow without end."""
    async with SqliteQueueStorage(tmp_path / "queue.db", synchronous=synchronous) as storage:  # type: ignore[arg-type]
        link = storage._link
        assert link is not None
        for pragma, expected in (
            ("synchronous", level),
            ("journal_mode", "wal"),
            ("busy_timeout", 5000),
            ("journal_size_limit", 64 * 1024 * 1024),
            ("temp_store", 2),
        ):
            found = await link.run("test", lambda session, name=pragma: session.fetch(f"PRAGMA {name}"))
            assert (pragma, found) == (pragma, [(expected,)])
