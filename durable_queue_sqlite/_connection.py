"""The way into the connection's thread and back: open, one hop per operation, close.

An await of aiosqlite costs a hop between threads whatever it carries, and a caller that is cancelled between two of
them would leave a transaction open. So an operation is one callable that runs whole in the thread, and a call ends
when its operation has ended, cancelled or not (S2.7).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Any, TypeVar, cast
from weakref import WeakSet

import aiosqlite

from durable_queue.errors import CorruptRecordError, StorageError
from durable_queue_sqlite import _opening
from durable_queue_sqlite._breather import Breather
from durable_queue_sqlite._session import Job, Session

_Result = TypeVar("_Result")


class Link:
    """One aiosqlite connection, bound to the process and the event loop that opened it.

    Args:
        path: the resolved path.
        synchronous: ``FULL`` or ``NORMAL``.

    Attributes:
        path: the same.
        is_inherited: whether this process is a fork of the one that opened it.
    """

    def __init__(self, path: str, synchronous: str) -> None:
        self.path = path
        self._session = Session(path, synchronous)
        self.is_inherited = False
        _made.add(self)
        self._loop = asyncio.get_running_loop()
        self._breather = Breather(self._loop)
        self._closing: asyncio.Task[None] | None = None
        self._connection = _connection_in_daemon_thread(self._session)

    @property
    def is_closing(self) -> bool:
        """Whether `close` was called, in this process or before the fork."""
        return self._closing is not None

    @property
    def is_closed(self) -> bool:
        """Whether `close` has come to its end, however it ended."""
        return self._closing is not None and self._closing.done()

    async def open(self) -> None:
        """Open the database; when that fails, no thread and no descriptor is left."""
        if self.path in _inherited_paths:
            raise StorageError(
                f"{self.path}: the file was open in the process that this one was forked from, and SQLite cannot be "
                "used across a fork; start this process by spawn, or fork before opening"
            )
        try:
            await self._connection
        except asyncio.CancelledError:
            # Nothing is open yet and the thread has been told to stop; it must not outlive the event loop.
            self._session.wait_for_thread()
            raise
        _links.add(self)
        try:
            job = Job("open", Session.open)
            await self._carry(job)
            job.outcome()
        except BaseException:
            # What has failed first is what the caller is told.
            with suppress(StorageError):
                await asyncio.shield(self._start_closing())
            raise

    async def run(self, name: str, operation: Callable[[Session], _Result]) -> _Result:
        """Run an operation in the connection's thread.

        Raises:
            StorageError: the storage cannot be used from here, or the database has refused.
        """
        self.check_usable()
        job = Job(name, operation)
        await self._carry(job)
        return job.outcome()

    def take_unreadable(self) -> list[CorruptRecordError]:
        """Return, and forget, which records queries have left out."""
        self.check_usable()
        return self._session.take_unreadable()

    async def close(self) -> None:
        """Bring the file up to date, close it and end the thread; a no-op when it is closed."""
        if self.is_inherited:
            return
        if self._loop.is_running() and self._loop is not asyncio.get_running_loop():
            raise StorageError(f"{self.path}: close the storage in the event loop that opened it")
        if self._closing is None or self._closing.get_loop() is not asyncio.get_running_loop():
            self._start_closing()
        await asyncio.shield(cast("asyncio.Task[None]", self._closing))

    def check_usable(self) -> None:
        """Raise StorageError where this connection cannot be used: closed, another process, another event loop."""
        if self.is_inherited:
            raise StorageError(
                f"{self.path}: the storage was opened in another process, the one that this was forked from; "
                "open one in a process of its own"
            )
        if self._closing is not None:
            raise StorageError(f"{self.path}: the storage is closed")
        if self._loop is not asyncio.get_running_loop():
            raise StorageError(
                f"{self.path}: the storage was opened in another event loop; close it there before it is used here"
            )
        if not self._is_alive:
            raise StorageError(f"{self.path}: the connection's thread has ended; close and open the storage")

    @property
    def _is_alive(self) -> bool:
        thread = self._session.thread
        return thread is not None and thread.is_alive()

    async def _carry(self, job: Job[Any]) -> None:
        """Hand a job to the thread and wait until it is done, through any cancellation.

        So nothing goes on behind the back of a caller who was cancelled, and no loop is closed under the thread. The
        wait is as long as the job's, at most about `BUSY_SECONDS` when another program locks the file.
        """
        cancelled: asyncio.CancelledError | None = None
        while True:
            self._breather.begin()
            try:
                # Not SQL: the session takes the job under this name, see `Session.executescript`.
                await self._connection.executescript(cast(Any, job))
                break
            except asyncio.CancelledError as error:
                if self.is_inherited:
                    # A forked child that leaves the event loop: there is no thread to wait for.
                    raise
                # The job is in the thread's queue all the same; what comes after it has seen its end.
                cancelled = error
                job = Job("wait", _nothing)
            finally:
                self._breather.end()
        if cancelled is not None:
            raise cancelled

    def _start_closing(self) -> asyncio.Task[None]:
        self._closing = asyncio.create_task(self._shut())
        return self._closing

    async def _shut(self) -> None:
        job = Job("close", Session.close)
        try:
            if self._is_alive:
                await self._carry(job)
        finally:
            # A forked child that unwinds through this must not touch what its parent has open.
            if not self.is_inherited:
                _links.discard(self)
                self._breather.stop()
                self._connection.stop()
                self._session.wait_for_thread()
                # Does something only after a thread that died, as it does with an event loop that is closed under it.
                job.run(self._session)
        job.outcome()


def _connection_in_daemon_thread(session: Session) -> aiosqlite.Connection:
    # aiosqlite's thread would keep a program alive that forgets to close the storage. A thread takes after the one
    # that makes it, so a daemon makes this one.
    made: list[aiosqlite.Connection] = []

    def make() -> None:
        made.append(aiosqlite.Connection(cast(Any, session.enter), iter_chunk_size=64))

    maker = Thread(target=make, daemon=True)
    maker.start()
    maker.join()
    return made[0]


def _nothing(_: Session) -> None:
    pass


_made: WeakSet[Link] = WeakSet()
_links: WeakSet[Link] = WeakSet()
_inherited: list[Link] = []
_inherited_paths: set[str] = set()


def _after_fork_in_child() -> None:
    for link in _made:
        link.is_inherited = True
    # Kept for ever: closing an inherited connection, as its destructor would, could harm the parent's.
    _inherited.extend(_links)
    _inherited_paths.update(link.path for link in _links if link.path != _opening.MEMORY)
    _links.clear()
    _opening.forget_creation_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
