"""The others: huey, persist-queue, litequeue, and plain `sqlite3` that makes the same writes as this queue.

Each in its fastest form of the durability that is asked for: a write-ahead log and ``synchronous`` as given, set on the
peer's own connections and read back from them.
"""

from __future__ import annotations

import signal
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Self

import attrs
from huey import SqliteHuey
from litequeue import LiteQueue
from persistqueue import SQLiteAckQueue

from tests.benchmarks.measuring import fresh_folder, seconds

LEVELS: Final = {"NORMAL": 1, "FULL": 2}
"""What ``PRAGMA synchronous`` answers for the names that it takes."""

Tables = Mapping[str, list[tuple[Any, ...]]]
"""The rows of a file by table, the key of a row first."""


class Huey:
    """huey without a result store, which would cost it a commit more a task."""

    def __init__(self, folder: Path) -> None:
        self._huey = SqliteHuey(
            "benchmark", filename=str(folder / "huey.db"), journal_mode="wal", fsync=True, results=False
        )
        self._left = 0
        self._counting = threading.Lock()
        self._ended = threading.Event()
        self.put = self._huey.task(name="job")(self._job)
        self.connections = [self._huey.storage.conn]

    def run(self, count: int, workers: int) -> float:
        """Run so many stored tasks in huey's own consumer.

        Returns:
            The seconds from its start to the end of the last task.
        """
        self._left = count
        handlers = {number: signal.getsignal(number) for number in _CAUGHT_BY_HUEY}
        consumer = self._huey.create_consumer(workers=workers, worker_type="thread", periodic=False)

        def work() -> None:
            consumer.start()
            self._ended.wait()

        time = seconds(work)
        consumer.stop()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for _, thread in consumer.worker_threads:
            thread.join()
        consumer.scheduler.join()
        return time

    def close(self) -> None:
        self._huey.storage.close()

    def _job(self, text: str) -> None:
        with self._counting:
            self._left -= 1
            if not self._left:
                self._ended.set()


_CAUGHT_BY_HUEY: Final = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


class PersistQueue:
    """persist-queue's queue with acknowledgements."""

    def __init__(self, folder: Path) -> None:
        self._queue = SQLiteAckQueue(str(folder / "persist-queue"), auto_commit=True)
        self._last: int | None = None
        self.put = self._queue.put
        self.connections = [self._queue._getter, self._queue._putter]

    def take(self) -> None:
        """Get a task and acknowledge it."""
        if self._last is None:
            item = self._queue.get(block=False, raw=True)
        else:
            # From where it was: without, it reads past all that is acknowledged.
            item = self._queue.get(block=False, raw=True, id=self._last, next_in_order=True)
        self._last = item["pqid"]
        self._queue.ack(id=self._last)

    def close(self) -> None:
        self._queue.close()


class Litequeue:
    """litequeue, whose own setting is NORMAL."""

    def __init__(self, folder: Path) -> None:
        self._queue = LiteQueue(folder / "litequeue.db")
        self.put = self._queue.put
        self.connections = [self._queue.conn]

    def take(self) -> None:
        """Pop a task and mark it done."""
        self._queue.done(self._queue.pop().message_id)

    def close(self) -> None:
        self._queue.close()


@contextmanager
def opened(kind: type[Any], folder: Path, synchronous: str) -> Iterator[Any]:
    """Open a peer in a folder, with every connection of it set to this durability and asked whether it is."""
    peer = kind(folder)
    try:
        for connection in peer.connections:
            connection.execute(f"PRAGMA synchronous = {synchronous}")
            told = settings(connection)
            if told != f"wal, {LEVELS[synchronous]}":
                raise RuntimeError(f"{kind.__name__} is not at {synchronous} with a write-ahead log: {told}")
        yield peer
    finally:
        peer.close()


def settings(connection: sqlite3.Connection) -> str:
    """Return what a connection says of its journal and its ``synchronous``."""
    return ", ".join(
        str(connection.execute(f"PRAGMA {name}").fetchall()[0][0]) for name in ("journal_mode", "synchronous")
    )


def described(synchronous: str) -> str:
    """Say which versions are compared, and what their connections answer."""
    told = []
    for kind, package in ((Huey, "huey"), (PersistQueue, "persist-queue"), (Litequeue, "litequeue")):
        with fresh_folder() as folder, opened(kind, folder, synchronous) as peer:
            answers = {settings(connection) for connection in peer.connections}
            told.append(f"{package} {version(package)} ({' / '.join(answers)})")
    return ", ".join(told)


@attrs.frozen
class Move:
    """A write that a task makes on its way, for one table.

    Attributes:
        statement: its first parameter is the key of the row.
        values: the other parameters.
    """

    statement: str
    values: tuple[Any, ...]


def rows_of(file: Path) -> Tables:
    """Return all rows of a database but SQLite's own."""
    with closing(sqlite3.connect(file)) as database:
        names = database.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY rowid"
        ).fetchall()
        return {
            name: database.execute(f'SELECT * FROM "{name}" ORDER BY 1').fetchall()
            for (name,) in names
            if not name.startswith("sqlite_")
        }


def moves(file: Path, before: Tables, after: Tables) -> list[Move]:
    """Return the writes that make of one state of a task another one."""
    found = []
    with closing(sqlite3.connect(file)) as database:
        for table, rows in after.items():
            columns = [column[0] for column in database.execute(f'SELECT * FROM "{table}"').description]
            old = {row[0]: row for row in before[table]}
            for row in rows:
                known = old.get(row[0])
                if known is None:
                    found.append(Move(_insert(table, len(row)), row[1:]))
                elif known != row:
                    changed = [at for at, value in enumerate(row) if value != known[at]]
                    found.append(
                        Move(
                            f'UPDATE "{table}" SET '
                            + ", ".join(
                                f'"{columns[at]}" = ?{place}' for place, at in enumerate(changed, start=2)
                            )
                            + f' WHERE "{columns[0]}" = ?1',
                            tuple(row[at] for at in changed),
                        )
                    )
    return found


class PlainSqlite:
    """One thread that makes the writes of this queue by ``executemany``, and nothing else: what SQLite can do.

    Args:
        file: a file of this queue's.
        synchronous: the durability.
    """

    def __init__(self, file: Path, synchronous: str) -> None:
        self._database = sqlite3.connect(file, isolation_level=None)
        self._database.execute(f"PRAGMA synchronous = {synchronous}")
        if settings(self._database) != f"wal, {LEVELS[synchronous]}":
            raise RuntimeError(f"{file.name} is not at {synchronous} with a write-ahead log")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def insert(self, rows: Tables, batch: int) -> None:
        """Insert the rows of many tasks, so many tasks a transaction."""
        filled = {table: (_insert(table, len(stored[0])), stored) for table, stored in rows.items() if stored}
        count = max(len(stored) for _, stored in filled.values())
        for first in range(0, count, batch):
            self._commit((statement, stored[first : first + batch]) for statement, stored in filled.values())

    def run(self, keys: Sequence[int], claim: Sequence[Move], end: Sequence[Move], batch: int) -> None:
        """Write claims and ends of tasks, so many a transaction: those that end together with the next claims."""
        running: Sequence[int] = ()
        for first in range(0, len(keys) + batch, batch):
            claimed = keys[first : first + batch]
            self._commit(
                (move.statement, [(key, *move.values) for key in part])
                for which, part in ((end, running), (claim, claimed))
                for move in which
            )
            running = claimed

    def _commit(self, writes: Iterable[tuple[str, Sequence[tuple[Any, ...]]]]) -> None:
        self._database.execute("BEGIN IMMEDIATE")
        for statement, rows in writes:
            self._database.executemany(statement, rows)
        self._database.execute("COMMIT")


def _insert(table: str, width: int) -> str:
    return f'INSERT INTO "{table}" VALUES ({", ".join(f"?{place}" for place in range(1, width + 1))})'
