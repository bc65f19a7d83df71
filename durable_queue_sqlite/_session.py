"""What lives in the connection's thread: the database, its transactions and what has been noticed in it."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from threading import Event, Thread, current_thread
from typing import Any, Generic, TypeAlias, TypeVar

from durable_queue.errors import CorruptRecordError, DurableQueueError, StorageError
from durable_queue.tasks import StoredTask
from durable_queue_sqlite import _rows
from durable_queue_sqlite import _statements as sql
from durable_queue_sqlite._consumer import ConsumerClaim
from durable_queue_sqlite._opening import MEMORY, close_database, open_database
from durable_queue_sqlite._recall import Recall

_Result = TypeVar("_Result")
Until: TypeAlias = Callable[[_rows.Row], bool] | None


class Session:
    """One open database, for one thread; every method runs there.

    Attributes:
        path: where it is, resolved.
        thread: the connection's thread.
        boundary: the last instant that was asked about, in microseconds (see `_rows.columns_of`).
        writer: what marks the rows that this session inserts.
        unreadable: what queries have left out, by id, until somebody takes it.
        seen: the data version and the last row number that `changes_elsewhere` has told of.
        looks_back: whether the next `changes_elsewhere` has to tell of all that nobody has consumed.
        last_own_row: the last row number given out as of the last own write.
        recall: the rows that need no look before they are written.
        claim: the right to consume, held or not.
    """

    def __init__(self, path: str, synchronous: str) -> None:
        self.path = path
        self.thread: Thread | None = None
        self.boundary = -(2**63)
        self.writer = secrets.randbits(31)
        self.unreadable: dict[str, CorruptRecordError] = {}
        self.seen = (0, 0)
        self.looks_back = False
        self.last_own_row = 0
        self.recall = Recall()
        self.claim = ConsumerClaim(None if path == MEMORY else path)
        self._has_thread = Event()
        self._synchronous = synchronous
        self._caught_up_with = -1
        self._database: sqlite3.Connection | None = None

    def __repr__(self) -> str:
        return f"<Session {self.path!r}>"

    def enter(self) -> Session:
        """Take note of the thread; what aiosqlite calls to connect."""
        self.thread = current_thread()
        self._has_thread.set()
        return self

    def wait_for_thread(self) -> None:
        """Wait until the thread, which has been told to stop, has done so; the one method for other threads."""
        self._has_thread.wait()
        if self.thread is not None:
            self.thread.join()

    def executescript(self, job: Job[Any]) -> None:
        """Run a job; what aiosqlite calls, in the thread, for its method of the same name."""
        job.run(self)

    def open(self) -> None:
        """Open the database."""
        self._database = open_database(self.path, self._synchronous)
        self.seen = (self.data_version(), self.last_row())
        self.last_own_row = self.seen[1]

    def close(self) -> None:
        """Close the database and give the claim back; closing twice is a no-op."""
        database, self._database = self._database, None
        try:
            if database is not None:
                close_database(database)
        finally:
            self.claim.release()

    @property
    def database(self) -> sqlite3.Connection:
        """The open connection."""
        if self._database is None:
            raise StorageError(f"{self.path}: the storage is closed")
        return self._database

    def fetch(
        self, statement: str, parameters: Sequence[Any] = (), *, until: Until = None
    ) -> list[_rows.Row]:
        """Return all rows of a query; no cursor is left open, because one would pin the WAL.

        Args:
            statement: the query.
            parameters: its values.
            until: when given, is asked after each row whether that was enough.
        """
        database = self.database
        try:
            cursor = database.execute(statement, parameters)
            if until is not None:
                return _some(cursor, until)
            return cursor.fetchall()
        except sqlite3.OperationalError as error:
            if not str(error).startswith("Could not decode"):
                raise
        # Text that is no UTF-8 in one row must not take the others with it.
        strict = database.text_factory
        database.text_factory = _decode_leniently
        try:
            return self.database.execute(statement, parameters).fetchall()
        finally:
            database.text_factory = strict

    def write(self, work: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """Run work in one transaction that has the write lock from the start."""
        database = self.database
        database.execute(sql.BEGIN_WRITE)
        try:
            result = work(database)
            database.execute(sql.COMMIT)
        except BaseException:
            self.recall.forget()
            # SQLite has already rolled back after some errors; the first error is the one to tell.
            if database.in_transaction:
                with suppress(sqlite3.Error):
                    database.execute(sql.ROLLBACK)
            raise
        return result

    def catch_up(self) -> int:
        """Forget what another connection may have changed; to be called first in a transaction that writes.

        Returns:
            The last row number that was given out.
        """
        version = self.data_version()
        if version != self._caught_up_with:
            self.recall.forget()
            self.last_own_row = self.last_row()
            self._caught_up_with = version
        return self.last_own_row

    def data_version(self) -> int:
        """Return a number that changes when another connection commits."""
        return int(self.fetch(sql.DATA_VERSION)[0][0])

    def last_row(self) -> int:
        """Return the last row number that was given out."""
        return int(self.fetch(sql.LAST_ROW)[0][0])

    def records(self, rows: Iterable[_rows.Row]) -> list[StoredTask]:
        """Return the records that can be read, and remember the others."""
        found = []
        for row in rows:
            try:
                found.append(_rows.read(row))
            except CorruptRecordError as error:
                self.unreadable[row[1]] = error
        return found

    def take_unreadable(self) -> list[CorruptRecordError]:
        """Return, and forget, which records queries have left out; from any thread, between two operations."""
        taken: list[CorruptRecordError] = []
        while self.unreadable:
            taken.append(self.unreadable.popitem()[1])
        return taken[::-1]

    def error_for(self, name: str, error: BaseException) -> BaseException:
        """Return what the caller of an operation gets for an error: nothing of the data in it (S1.8)."""
        if isinstance(error, DurableQueueError):
            return error
        if isinstance(error, UnicodeEncodeError):
            told = StorageError(f"{self.path}: {name} failed: a text with a lone surrogate cannot be stored")
            told.__suppress_context__ = True
            return told
        if isinstance(error, (sqlite3.Error, sqlite3.Warning, OSError, OverflowError)):
            told = StorageError(f"{self.path}: {name} failed: {error}")
            told.__cause__ = error
            return told
        return error


class Job(Generic[_Result]):
    """An operation on its way through the connection's thread, and its outcome.

    aiosqlite logs the repr of what it runs, so a job's shows its name and nothing else (S1.8).
    """

    def __init__(self, name: str, operation: Callable[[Session], _Result]) -> None:
        self.name = name
        self._operation = operation
        self._value: _Result
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def run(self, session: Session) -> None:
        """Carry it out; an error waits here for the caller."""
        try:
            self._value = self._operation(session)
        except BaseException as error:  # noqa: BLE001 - raised in the caller, by `outcome`
            self._error = session.error_for(self.name, error)

    def outcome(self) -> _Result:
        """Return the value, or raise the error."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._value


def _some(cursor: sqlite3.Cursor, until: Callable[[_rows.Row], bool]) -> list[_rows.Row]:
    with closing(cursor):
        rows: list[_rows.Row] = []
        for row in cursor:
            rows.append(row)
            if until(row):
                break
        return rows


def _decode_leniently(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
