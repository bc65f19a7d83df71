"""What the tests of the SQLite storage share: records, a way to the adapter's own connection, child processes."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from durable_queue import StoredTask
from durable_queue_sqlite import SqliteQueueStorage

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)

_Result = TypeVar("_Result")


def task(task_id: str, **fields: Any) -> StoredTask:
    """Return a record with this id; what is not given is plain."""
    return StoredTask(
        **{"type": "work", "payload": {"of": task_id}, "created_at": T0, "id": task_id, **fields}
    )


def ids(tasks: list[StoredTask]) -> list[str]:
    """Return the ids of records, in their order."""
    return [found.id for found in tasks]


async def on_connection(
    storage: SqliteQueueStorage, action: Callable[[sqlite3.Connection], _Result]
) -> _Result:
    """Run an action on the storage's own connection, in its thread."""
    link = storage._link
    assert link is not None
    return await link.run("test", lambda session: action(session.database))


def execute(path: Path, statement: str, *parameters: Any) -> list[Any]:
    """Run a statement through a connection of our own and commit."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        return database.execute(statement, parameters).fetchall()


def listing(folder: Path) -> dict[str, str]:
    """Return the names in a folder, each with the hash of its content."""
    return {
        entry.name: hashlib.sha256(entry.read_bytes()).hexdigest() if entry.is_file() else "folder"
        for entry in folder.iterdir()
    }


def names(folder: Path) -> list[str]:
    """Return the names in a folder, sorted."""
    return sorted(entry.name for entry in folder.iterdir())


def descriptors() -> set[str]:
    """Return what the descriptors of this process stand for, as far as the system tells."""
    folder = Path("/proc/self/fd")
    found = set()
    for entry in folder.iterdir() if folder.is_dir() else []:
        # The listing's own descriptor is gone by now.
        with suppress(FileNotFoundError):
            found.add(str(entry.readlink()))
    return found


def start_python(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a child process with pipes."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def run_python(code: str, *arguments: object) -> str:
    """Run a child process to its end, at most 10 seconds; it must succeed and complain of nothing.

    Returns:
        What it printed.
    """
    with start_python(code, *arguments) as child:
        try:
            output, complaints = child.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            child.kill()
            raise
    assert (child.returncode, complaints) == (0, "")
    return output
