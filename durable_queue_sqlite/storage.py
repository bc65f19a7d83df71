"""`SqliteQueueStorage`: tasks in one SQLite file."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Coroutine, Generator, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, ClassVar, Literal, Self, TypeVar

from durable_queue.clock import check_instant
from durable_queue.errors import CorruptRecordError, StorageError
from durable_queue.storage import Change, Delete, QueueStorage, ReadyHead, Save, Update, check_limit
from durable_queue.tasks import StoredTask, TaskStatus, from_micros, to_micros
from durable_queue_sqlite import _reading, _rows, _writing
from durable_queue_sqlite import _statements as sql
from durable_queue_sqlite._connection import Link
from durable_queue_sqlite._opening import resolve
from durable_queue_sqlite._session import Session

_Result = TypeVar("_Result")


class SqliteQueueStorage(QueueStorage):
    """Keeps tasks in a SQLite file, so that they survive the end of the process, however it ends.

    ``async with SqliteQueueStorage("queue.db") as storage`` opens and closes it, and so do `open` and `close`. A
    closed storage can be opened again, in another event loop too. The path is resolved when the storage is made:
    symlinks are followed, a later change of the working directory changes nothing, ``~`` is not expanded. A new file
    can be read by its owner only. Hard links to the file and network drives are not supported.

    Args:
        path: the file, or ``":memory:"`` for a database that is gone with the object.
        synchronous: ``"FULL"``: what is acknowledged is on the disk. ``"NORMAL"``: a loss of power may take back the
            last changes, the end of the process does not.

    Raises:
        ValueError: the path is empty, or `synchronous` is neither.
    """

    atomic: ClassVar[bool] = True

    def __init__(
        self, path: str | os.PathLike[str], *, synchronous: Literal["FULL", "NORMAL"] = "FULL"
    ) -> None:
        if synchronous not in ("FULL", "NORMAL"):
            raise ValueError("synchronous must be 'FULL' or 'NORMAL'")
        self._path = resolve(path)
        self._synchronous = synchronous
        self._link: Link | None = None

    def __repr__(self) -> str:
        return f"SqliteQueueStorage({self._path!r})"

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, synchronous: Literal["FULL", "NORMAL"] = "FULL"
    ) -> _Opening:
        """Make a storage and open it: ``storage = await SqliteQueueStorage.open(path)``, or ``async with``.

        Args:
            path: see the class.
            synchronous: see the class.

        Raises:
            SchemaTooNewError: a newer version of this package wrote the file; it is left as it is.
            StorageError: the file cannot be used; it is left as it is.
        """
        return _Opening(cls(path, synchronous=synchronous))

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _open(self) -> None:
        if self._link is not None and self._link.is_closing:
            await self.close()
        if self._link is not None:
            # Entering an open storage is what ``async with await SqliteQueueStorage.open(...)`` does.
            self._link.check_usable()
            return
        link = Link(self._path, self._synchronous)
        await link.open()
        if self._link is None:
            self._link = link
        else:
            # Somebody else has opened it meanwhile.
            await link.close()

    async def close(self) -> None:
        """Bring the file up to date, give the claim back, close the file and end the thread; closing twice is a no-op.

        In a process that was forked from the one that opened it, nothing happens.
        """
        link = self._link
        if link is not None:
            try:
                await link.close()
            finally:
                if self._link is link and link.is_closed:
                    self._link = None

    async def save(self, task: StoredTask) -> None:
        """Insert a new record."""
        await self._run("save", lambda session: _writing.apply(session, [Save(task)], equal_is_saved=False))

    async def get(self, task_id: str) -> StoredTask | None:
        """Return the current record, or None."""

        def get(session: Session) -> StoredTask | None:
            rows = session.fetch(sql.GET, (task_id,))
            return _rows.read(rows[0]) if rows else None

        return await self._run("get", get)

    async def update(self, task: StoredTask) -> None:
        """Replace the record of an existing id."""
        await self._run("update", lambda session: _writing.apply(session, [Update(task)]))

    async def delete(self, task_id: str) -> None:
        """Remove a record, readable or not; a no-op when it is gone."""
        await self._run("delete", lambda session: _writing.apply(session, [Delete(task_id)]))

    async def apply(self, changes: Sequence[Change]) -> None:
        """Carry out all changes in their order in one transaction, or none."""
        listed = list(changes)
        await self._run("apply", lambda session: _writing.apply(session, listed))

    async def get_pending(self) -> list[StoredTask]:
        """Return every pending record, in order."""
        return await self.get_by_status(TaskStatus.PENDING)

    async def get_by_status(
        self, status: TaskStatus, *, limit: int | None = None, after: StoredTask | None = None
    ) -> list[StoredTask]:
        """Return the records of one status, in order."""
        check_limit(limit)
        code = _rows.STATUS_CODES[status]
        place = None if after is None else (to_micros(after.created_at), after.sequence, after.id)
        return await self._run(
            "get_by_status", lambda session: _reading.get_by_status(session, code, place, limit)
        )

    async def get_next_ready(self, now: datetime) -> StoredTask | None:
        """Return the first record in ready order that is eligible at `now`, or None."""
        head = await self.get_ready(now, 1)
        return head[0] if head else None

    async def get_ready(
        self, now: datetime, limit: int, *, types: Collection[str] | None = None
    ) -> list[StoredTask]:
        """Return the next records in ready order that are eligible at `now`, never walking another type's backlog."""
        check_limit(limit)
        instant = to_micros(check_instant(now, "now"))
        wanted = None if types is None else frozenset(types)
        while True:
            found = await self._run(
                "get_ready", lambda session: _reading.get_ready(session, instant, limit, wanted)
            )
            if found is not None:
                return found

    async def read_ahead(self, now: datetime, limit: int) -> ReadyHead:
        """Return what `get_ready` would, with what one has to know to keep it for a while."""
        check_limit(limit)
        instant = to_micros(check_instant(now, "now"))
        while True:
            found = await self._run(
                "read_ahead", lambda session: _reading.read_ahead(session, instant, limit)
            )
            if found is not None:
                return found

    async def get_next_wake_at(self) -> datetime | None:
        """Return the earliest `next_attempt_at` among the records that can be claimed, overdue ones included."""

        def get(session: Session) -> datetime | None:
            times = [micros for micros in session.fetch(sql.NEXT_WAKE)[0] if micros is not None]
            return from_micros(min(times)) if times else None

        return await self._run("get_next_wake_at", get)

    async def get_max_sequence(self) -> int:
        """Return the largest stored `sequence`, or 0."""
        return await self._run(
            "get_max_sequence", lambda session: _reading.scalar(session, sql.MAX_SEQUENCE) or 0
        )

    async def get_all(self) -> list[StoredTask]:
        """Return every record, in order."""
        return await self._records("get_all", sql.GET_ALL)

    async def find_active_by_deduplication_key(self, key: str) -> StoredTask | None:
        """Return the first active record, in order, with this key."""
        found = await self._records("find_active_by_deduplication_key", sql.GET_ACTIVE_BY_KEY, key)
        return found[0] if found else None

    async def get_waiting_dependents(self, task_id: str) -> list[StoredTask]:
        """Return the waiting records that depend on this id, in order."""
        return await self.get_waiting_dependents_of([task_id])

    async def get_by_group(self, group: str, *, status: TaskStatus | None = None) -> list[StoredTask]:
        """Return the records of a group, in order, all or those of one status."""
        if status is None:
            return await self._records("get_by_group", sql.GET_BY_GROUP, group)
        return await self._records(
            "get_by_group", sql.GET_BY_GROUP_AND_STATUS, group, _rows.STATUS_CODES[status]
        )

    async def get_many(self, ids: Collection[str]) -> dict[str, StoredTask]:
        """Return the stored records among these ids, by id."""
        wanted = frozenset(ids)
        return await self._run("get_many", lambda session: _reading.get_many(session, wanted))

    async def get_waiting_dependents_of(self, ids: Collection[str]) -> list[StoredTask]:
        """Return the waiting records that depend on any of these ids, each once, in order."""
        return await self._records(
            "get_waiting_dependents", sql.GET_WAITING_DEPENDENTS, _reading.as_json(ids)
        )

    async def get_judgeable(self, ids: Collection[str]) -> list[StoredTask]:
        """Return exactly the waiting dependents of these ids whose verdict can fall now (S13.21)."""
        return await self._records("get_judgeable", sql.GET_JUDGEABLE, _reading.as_json(frozenset(ids)))

    async def get_dependents(self, task_id: str) -> list[StoredTask]:
        """Return the records of any status that depend on this id, in order."""
        return await self._records("get_dependents", sql.GET_DEPENDENTS, task_id)

    async def get_dependent_ids(self, ids: Collection[str]) -> Collection[str]:
        """Return the ids of the records of any status that depend on any of these ids, each once."""
        wanted = _reading.as_json(frozenset(ids))
        rows = await self._run(
            "get_dependent_ids", lambda session: session.fetch(sql.GET_DEPENDENT_IDS, (wanted,))
        )
        return [row[0] for row in rows]

    async def get_expired(self, now: datetime, limit: int) -> list[StoredTask]:
        """Return at most `limit` records that have not started and whose `expires_at` is not after `now`."""
        check_limit(limit)
        instant = to_micros(check_instant(now, "now"))
        return await self._run("get_expired", lambda session: _reading.get_expired(session, instant, limit))

    async def get_next_expiry_at(self) -> datetime | None:
        """Return the earliest `expires_at` of the records that have not started, or None."""

        def get(session: Session) -> datetime | None:
            micros = _reading.scalar(session, sql.NEXT_EXPIRY)
            return None if micros is None else from_micros(micros)

        return await self._run("get_next_expiry_at", get)

    async def count_by_status(self) -> dict[TaskStatus, int]:
        """Return how many records there are of each status."""
        rows = await self._run("count_by_status", lambda session: session.fetch(sql.COUNT_BY_STATUS))
        counted: dict[int, int] = dict(rows)
        return {status: counted.get(code, 0) for status, code in _rows.STATUS_CODES.items()}

    async def count_held(self) -> int:
        """Return how many active records are held."""
        return await self._run("count_held", lambda session: int(_reading.scalar(session, sql.COUNT_HELD)))

    async def take_unreadable(self) -> list[CorruptRecordError]:
        """Return, and forget, which records queries have had to leave out since the last call."""
        # Not in the thread: the queue asks after every step, and there is something to take about never.
        return self._open_link().take_unreadable()

    async def changes_elsewhere(self) -> list[str] | None:
        """Say which waiting tasks other connections have inserted; None when none of them has written."""
        return await self._run("changes_elsewhere", _reading.changes_elsewhere)

    async def acquire_consumer(self) -> None:
        """Claim the right to consume this file, for this object alone among all processes."""

        def acquire(session: Session) -> None:
            session.claim.acquire()
            session.looks_back = True

        await self._run("acquire_consumer", acquire)

    async def release_consumer(self) -> None:
        """Give the claim back; a no-op without one."""
        await self._run("release_consumer", lambda session: session.claim.release())

    async def _records(self, name: str, statement: str, *parameters: Any) -> list[StoredTask]:
        return await self._run(name, lambda session: session.records(session.fetch(statement, parameters)))

    def _run(self, name: str, operation: Callable[[Session], _Result]) -> Coroutine[Any, Any, _Result]:
        return self._open_link().run(name, operation)

    def _open_link(self) -> Link:
        if self._link is None:
            raise StorageError(
                f"{self._path}: the storage is closed; open it first, for example by 'async with'"
            )
        return self._link


class _Opening:
    """What `SqliteQueueStorage.open` returns: to be awaited, or entered by ``async with``."""

    def __init__(self, storage: SqliteQueueStorage) -> None:
        self._storage = storage

    def __await__(self) -> Generator[Any, None, SqliteQueueStorage]:
        return self._storage.__aenter__().__await__()

    async def __aenter__(self) -> SqliteQueueStorage:
        return await self._storage.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._storage.__aexit__(kind, error, trace)
