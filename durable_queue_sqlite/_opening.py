"""Opening a database file: what is looked at before anything is written, and how the connection is set up.

A file that is not ours is refused as it is, with nothing created beside it. So the first look is through a connection
that takes no locks and makes no -wal or -shm file. The file is never opened by other means than SQLite: closing any
descriptor of a file drops every lock that this process holds on it.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple
from urllib.parse import quote

from durable_queue.errors import StorageError
from durable_queue_sqlite._schema import MIGRATIONS, check_identity, migrate

MEMORY: Final = ":memory:"
BUSY_SECONDS: Final = 5.0
"""How long a statement waits for the lock of another connection."""

LONGEST_NAME: Final = 240
"""The longest file name, in bytes: SQLite and the consumer's lock append theirs, and 255 is the usual end."""

_JOURNAL: Final = "PRAGMA journal_mode = WAL"
_OLDEST_SQLITE: Final = (3, 37, 0)
_WAL_LIMIT: Final = 64 * 1024 * 1024
_CHECKED_WHOLE: Final = 4 * 1024 * 1024
_creating = [Lock()]


def resolve(path: str | os.PathLike[str]) -> str:
    """Return the path that a storage will open, whatever becomes of the working directory later.

    Symlinks are followed, so that one file has one path; ``~`` is an ordinary name.

    Raises:
        TypeError: it is no path.
        ValueError: it is empty or holds a NUL.
    """
    name = os.fspath(path)
    if not isinstance(name, str):
        raise TypeError(f"path must be a str or a Path, not {type(name).__name__}")
    if not name or "\0" in name:
        raise ValueError("path must not be empty and must not contain a NUL character")
    return MEMORY if name == MEMORY else os.path.realpath(name)


def open_database(path: str, synchronous: str) -> sqlite3.Connection:
    """Open, and if need be create or migrate, the database at a resolved path.

    Raises:
        SchemaTooNewError: a newer version of the adapter wrote it.
        StorageError: it cannot be used, and has not been changed.
        sqlite3.Error: SQLite met anything else; the caller adds the path.
    """
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise StorageError(
            f"{path}: SQLite {sqlite3.sqlite_version} is too old; version 3.37 or newer is needed"
        )
    if path != MEMORY:
        _check_place(path)
        _inspect(path)
        _create(path)
    database = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        _set_up(database, synchronous)
        migrate(database, path)
    except BaseException:
        database.close()
        raise
    return database


def close_database(database: sqlite3.Connection) -> None:
    """Write the log into the file as far as readers elsewhere allow, and close it."""
    try:
        database.execute("PRAGMA busy_timeout = 0").fetchall()
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except sqlite3.Error:
        # What is committed is in the WAL all the same, and the next open finds it.
        pass
    finally:
        database.close()


def forget_creation_lock() -> None:
    """Make the lock new in a forked child, where the thread that holds it may not exist."""
    _creating[:] = [Lock()]


def _check_place(path: str) -> None:
    file = Path(path)
    folder = file.parent
    if not folder.is_dir():
        raise StorageError(f"{path}: there is no folder {folder}; create it first ('~' is not expanded)")
    if file.is_dir():
        raise StorageError(f"{path}: this is a folder; name a file")
    if len(os.fsencode(file.name)) > LONGEST_NAME:
        raise StorageError(f"{path}: the file name is longer than {LONGEST_NAME} bytes")
    if file.exists():
        if not file.is_file():
            raise StorageError(f"{path}: this is no regular file")
        if not os.access(path, os.R_OK | os.W_OK):
            raise StorageError(f"{path}: the file cannot be read and written; change its permissions")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StorageError(
            f"{path}: the folder cannot be written to; SQLite keeps its journal beside the file"
        )


def _create(path: str) -> None:
    """Create the file for its owner's eyes only: a payload may be confidential. SQLite's own files follow its mode."""
    # Under a lock, because closing this descriptor drops the locks of a connection that another thread has opened.
    with _creating[0]:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            pass
        except OSError as error:
            raise StorageError(f"{path}: the file cannot be created: {error.strerror}") from error


def _inspect(path: str) -> None:
    """Refuse a file that is damaged or not ours, through eyes that change nothing."""
    while True:
        before = _fingerprint(path)
        if before is None or before.size == 0:
            return
        is_in_use = _is_in_use(path)
        try:
            with _read_only(path, immutable=not is_in_use) as database:
                check_identity(database, path, len(MIGRATIONS))
                if before.size <= _CHECKED_WHOLE and not _has_content(path + "-journal"):
                    _check_pages(database, path)
        except (sqlite3.Error, StorageError) as error:
            # Without locks, a file that another process is just writing looks damaged: then look again.
            if not is_in_use and (_is_in_use(path) or _fingerprint(path) != before):
                time.sleep(0.005)
                continue
            if isinstance(error, StorageError):
                raise
            raise StorageError(f"{path}: this is no database that can be opened: {error}") from error
        else:
            return


def _check_pages(database: sqlite3.Connection, path: str) -> None:
    findings = database.execute("PRAGMA quick_check(1)").fetchall()
    if findings != [("ok",)]:
        raise StorageError(
            f"{path}: the database is damaged; restore it from a copy (PRAGMA quick_check tells more)"
        )


class _Fingerprint(NamedTuple):
    inode: int
    size: int
    modified: int


def _fingerprint(path: str) -> _Fingerprint | None:
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        return None
    return _Fingerprint(found.st_ino, found.st_size, found.st_mtime_ns)


def _is_in_use(path: str) -> bool:
    """Whether SQLite left or keeps files beside it: then only a connection with locks sees the right thing."""
    return any(_has_content(path + suffix) for suffix in ("-wal", "-journal"))


def _has_content(path: str) -> bool:
    found = _fingerprint(path)
    return found is not None and found.size > 0


@contextmanager
def _read_only(path: str, *, immutable: bool) -> Iterator[sqlite3.Connection]:
    uri = f"file:{quote(os.fsencode(path))}?mode=ro" + ("&immutable=1" if immutable else "")
    database = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        yield database
    finally:
        database.close()


def _set_up(database: sqlite3.Connection, synchronous: str) -> None:
    for pragma in (
        "PRAGMA temp_store = MEMORY",
        "PRAGMA cache_size = -16000",
        f"PRAGMA journal_size_limit = {_WAL_LIMIT:d}",
        "PRAGMA synchronous = NORMAL" if synchronous == "NORMAL" else "PRAGMA synchronous = FULL",
    ):
        database.execute(pragma).fetchall()
    if sys.platform == "darwin":
        # A plain fsync on macOS leaves the data in the drive's cache.
        database.execute("PRAGMA fullfsync = ON").fetchall()
        database.execute("PRAGMA checkpoint_fullfsync = ON").fetchall()
    _ask_for_wal(database)


def _ask_for_wal(database: sqlite3.Connection) -> None:
    # Changing the mode needs the file for a moment and does not wait for it, so two programs that open a new file at
    # the same time would refuse each other. A file system that cannot do WAL answers with the mode that stays.
    give_up_at = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            database.execute(_JOURNAL).fetchall()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up_at:
                raise
            time.sleep(0.01)
        else:
            return
