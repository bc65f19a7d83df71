"""The tables, as numbered migrations.

``user_version`` of a file says how many of them it has had. Each runs in one transaction together with the number, so
that a crash leaves either the old version whole or the new one whole.

A task's row number, not its id, ties the tables together: it is short, it is given out in ascending order and never
again (AUTOINCREMENT), so that "what has been inserted since" is a range of it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from durable_queue.errors import SchemaTooNewError, StorageError

APPLICATION_ID: Final = 0x64517565
"""What ``PRAGMA application_id`` says of a file of this adapter."""

_FIRST: Final = (
    # status: 0 pending, 1 waiting, 2 running, 3 retryScheduled, 4 completed, 5 failed, 6 cancelled.
    # stage: NULL cannot be claimed, 1 can be claimed once it is due, as of the last instant asked about it was,
    #     2 waits for its next_attempt_at.
    # rank: the priority with its sign turned, so that the ready order ascends in every column.
    # on_dependency_failure: 0 cancel, 1 fail, 2 run.
    """
    CREATE TABLE tasks (
        "row" INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        type TEXT NOT NULL,
        rank INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        sequence INTEGER NOT NULL,
        deduplication_key TEXT,
        group_name TEXT,
        on_dependency_failure INTEGER NOT NULL,
        depends_on TEXT,
        status INTEGER NOT NULL,
        stage INTEGER,
        updated_at INTEGER NOT NULL,
        attempts INTEGER NOT NULL,
        next_attempt_at INTEGER,
        expires_at INTEGER,
        held INTEGER NOT NULL,
        retry_policy TEXT,
        details TEXT,
        writer INTEGER NOT NULL
    ) STRICT
    """,
    'CREATE TABLE payloads ("row" INTEGER PRIMARY KEY, text TEXT NOT NULL) STRICT',
    'CREATE TABLE results ("row" INTEGER PRIMARY KEY, text TEXT NOT NULL) STRICT',
    # open: whether the dependency is stored and active.
    """
    CREATE TABLE edges (
        dependency_id TEXT NOT NULL,
        task INTEGER NOT NULL,
        open INTEGER NOT NULL,
        PRIMARY KEY (dependency_id, task)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX by_status ON tasks (status, created_at, sequence, id)",
    "CREATE INDEX by_readiness ON tasks (rank, created_at, sequence, id) WHERE stage = 1",
    "CREATE INDEX by_type_and_readiness ON tasks (type, rank, created_at, sequence, id) WHERE stage = 1",
    """
    CREATE INDEX by_time ON tasks (stage, next_attempt_at)
    WHERE stage IS NOT NULL AND next_attempt_at IS NOT NULL
    """,
    """
    CREATE INDEX by_expiry ON tasks (expires_at, id)
    WHERE expires_at IS NOT NULL AND attempts = 0 AND status IN (0, 1, 3)
    """,
    """
    CREATE INDEX by_active_key ON tasks (deduplication_key, created_at, sequence, id)
    WHERE deduplication_key IS NOT NULL AND status < 4
    """,
    """
    CREATE INDEX by_group ON tasks (group_name, status, created_at, sequence, id)
    WHERE group_name IS NOT NULL
    """,
    "CREATE INDEX by_hold ON tasks (held) WHERE held = 1 AND status < 4",
    "CREATE INDEX by_sequence ON tasks (sequence)",
    "CREATE INDEX by_dependent ON edges (task, open)",
)

MIGRATIONS: Final[tuple[Sequence[str], ...]] = (_FIRST,)
"""The statements that lead from each version to the next; only ever appended to."""


def check_identity(database: sqlite3.Connection, path: str, supported: int) -> int:
    """Say which version a database has: 0 for one with nothing in it.

    Raises:
        SchemaTooNewError: a newer version of the adapter wrote it.
        StorageError: it belongs to another program.
    """
    application, version, tables = _marks(database)
    if application == APPLICATION_ID:
        if version > supported:
            raise SchemaTooNewError(path, version, supported)
        return version
    if application != 0 or version != 0 or tables:
        raise StorageError(
            f"{path}: this is the database of another program; give the queue a file of its own"
        )
    return 0


def _marks(database: sqlite3.Connection) -> tuple[int, int, int]:
    # In one transaction: another process may be making the tables between one question and the next.
    is_alone = not database.in_transaction
    if is_alone:
        database.execute("BEGIN")
    try:
        application, version, tables = (
            int(database.execute(question).fetchall()[0][0])
            for question in (
                "PRAGMA application_id",
                "PRAGMA user_version",
                "SELECT count(*) FROM sqlite_master",
            )
        )
    finally:
        if is_alone:
            database.execute("ROLLBACK")
    return application, version, tables


def migrate(
    database: sqlite3.Connection, path: str, migrations: Sequence[Sequence[str]] = MIGRATIONS
) -> None:
    """Bring a database to the newest version, each step in one transaction.

    Another process may do the same at the same time: who comes second waits for the lock and finds the step done.

    Raises:
        SchemaTooNewError: a newer version of the adapter wrote it.
        StorageError: it belongs to another program.
    """
    while check_identity(database, path, len(migrations)) < len(migrations):
        database.execute("BEGIN IMMEDIATE")
        try:
            version = check_identity(database, path, len(migrations))
            if version < len(migrations):
                for statement in migrations[version]:
                    database.execute(statement).fetchall()
                # PRAGMA takes no parameters; both values are integers of this module.
                database.execute(f"PRAGMA application_id = {APPLICATION_ID:d}").fetchall()
                database.execute(f"PRAGMA user_version = {version + 1:d}").fetchall()
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise
