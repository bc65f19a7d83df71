"""What has been written to a SQLite database since it was opened, read from its write-ahead log.

A frame of the log is one page. The last frame of a commit says how large the database is after it, all others say 0.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import attrs

_HEADER: Final = 32
_FRAME_HEADER: Final = 24


@attrs.frozen
class Written:
    """What stands in the log.

    Attributes:
        bytes: its size.
        commits: how many transactions that changed something have been committed.
    """

    bytes: int
    commits: int


@contextmanager
def kept(database: Path) -> Iterator[None]:
    """Have SQLite append to the log and never begin it anew, by an open reader."""
    with closing(sqlite3.connect(database, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        yield


def written(database: Path) -> Written:
    """Read the log of a database that was opened with an empty one and is `kept` since."""
    log = database.with_name(f"{database.name}-wal")
    data = log.read_bytes() if log.exists() else b""
    if not data:
        return Written(0, 0)
    page = int.from_bytes(data[8:12])
    commits = 0
    for place in range(_HEADER, len(data), page + _FRAME_HEADER):
        # The salts of a frame are those of the header, or it is left over from before.
        if data[place + 8 : place + 16] != data[16:24]:
            raise RuntimeError("the log was begun anew while it was measured")
        commits += data[place + 4 : place + 8] != bytes(4)
    return Written(len(data), commits)
