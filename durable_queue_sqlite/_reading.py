"""Queries that take more than one statement: pages that pass over unreadable records, and readiness as time moves."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from durable_queue.storage import ReadyHead
from durable_queue.tasks import StoredTask, from_micros
from durable_queue_sqlite import _statements as sql
from durable_queue_sqlite._recall import known_of
from durable_queue_sqlite._rows import Row
from durable_queue_sqlite._session import Session

STAGING_BATCH: Final = 1000
"""How many tasks become eligible in one transaction when their time has come; the file is locked meanwhile."""

AHEAD_TEXT: Final = 4 * 1024 * 1024
"""After how many characters of payload nothing more is read ahead."""

FIRST: Final = -(2**63)
BEGINNING: Final = (FIRST, FIRST, FIRST, "")
"""The place before the head of the ready order."""
_NO_LIMIT: Final = -1
_PAYLOAD: Final = -3


def as_json(values: Collection[Any]) -> str:
    """Return a list as the one parameter that statements take."""
    return json.dumps(list(values))


def get_by_status(
    session: Session, status: int, after: tuple[int, int, str] | None, limit: int | None
) -> list[StoredTask]:
    """Return the records of a status, in order, after a place in it."""
    return _page(
        session,
        sql.GET_BY_STATUS,
        (status,),
        after or (FIRST, FIRST, ""),
        limit,
        place_of=lambda row: (row[6], row[7], row[1]),
    )


def get_expired(session: Session, now: int, limit: int) -> list[StoredTask]:
    """Return the records that have not started in time, earliest first."""
    return _page(session, sql.GET_EXPIRED, (now,), (FIRST, ""), limit, place_of=lambda row: (row[11], row[1]))


def get_ready(
    session: Session, now: int, limit: int, types: Collection[str] | None
) -> list[StoredTask] | None:
    """Return the next records that are eligible, or None when more tasks have come due than one call sees to.

    The caller then asks again, and others get their turn in between.
    """
    if not _has_staged(session, now):
        return None
    if types is None:
        return _page(session, sql.GET_READY, (), BEGINNING, limit, place_of=_ready_place)
    allowed = as_json(types)
    return _page(session, sql.GET_READY_OF_TYPES, (allowed,), BEGINNING, limit, place_of=_ready_place)


def read_ahead(session: Session, now: int, limit: int) -> ReadyHead | None:
    """Return the head of the ready order, or None as `get_ready` does.

    What was read is known by heart then, so that claiming it needs no look.
    """
    if not _has_staged(session, now):
        return None
    text = 0

    def is_enough(row: Row) -> bool:
        # Large payloads: the memory that the head takes is bounded, whatever is in it.
        nonlocal text
        text += len(row[_PAYLOAD] or "")
        return text > AHEAD_TEXT

    rows = session.fetch(sql.READ_AHEAD, (*BEGINNING, limit), until=is_enough)
    tasks = session.records(rows)
    is_all = len(rows) < limit and text <= AHEAD_TEXT
    with_dependents = {row[1] for row in rows if row[-1]}
    if len(tasks) == len(rows):
        for row, task in zip(rows, tasks, strict=True):
            session.recall.keep(task.id, known_of(row, task.payload_text, has_edges=bool(row[-1])))
    else:
        # Behind what cannot be read there is perhaps more; this is rare, so that it may be slow.
        tasks = _page(session, sql.GET_READY, (), BEGINNING, limit, place_of=_ready_place)
        is_all = len(tasks) < limit
        with_dependents.update(task.id for task in tasks)
    until = scalar(session, sql.NEXT_SCHEDULED)
    return ReadyHead(
        tasks=tasks,
        is_all=is_all,
        until=None if until is None else from_micros(until),
        with_dependents=with_dependents,
    )


def _ready_place(row: Row) -> tuple[Any, ...]:
    return (row[5], row[6], row[7], row[1])


def _page(
    session: Session,
    statement: str,
    fixed: tuple[Any, ...],
    place: tuple[Any, ...],
    limit: int | None,
    *,
    place_of: Callable[[Row], tuple[Any, ...]],
) -> list[StoredTask]:
    """Read on past unreadable records until there are enough or no more."""
    found: list[StoredTask] = []
    while True:
        wanted = _NO_LIMIT if limit is None else limit - len(found)
        rows = session.fetch(statement, (*fixed, *place, wanted))
        found += session.records(rows)
        if limit is None or len(found) == limit or len(rows) < wanted:
            return found
        place = place_of(rows[-1])


def _has_staged(session: Session, now: int) -> bool:
    """Make what is due by now eligible, and what is not (a clock that went back) not; False when some is left."""
    promote, demote = session.fetch(sql.IS_STAGING_DUE, (now,))[0]
    session.boundary = now
    if not promote and not demote:
        return True

    def stage(database: sqlite3.Connection) -> int:
        moved = 0
        for statement in (sql.PROMOTE, sql.DEMOTE):
            moved = max(moved, database.execute(statement, (now, STAGING_BATCH)).rowcount)
        return moved

    return session.write(stage) < STAGING_BATCH


def get_many(session: Session, ids: Collection[str]) -> dict[str, StoredTask]:
    """Return the stored records among these ids that can be read."""
    return {task.id: task for task in session.records(session.fetch(sql.GET_MANY, (as_json(ids),)))}


def scalar(session: Session, statement: str, parameters: Sequence[Any] = ()) -> Any:
    """Return the only value of a query."""
    return session.fetch(statement, parameters)[0][0]


def changes_elsewhere(session: Session) -> list[str] | None:
    """Say which waiting tasks other connections have inserted since the last call, None when none has committed.

    The first call of a consumer looks back: at waiting tasks of whomever that nobody was there to judge.
    """
    version, last_row = session.seen
    if session.looks_back:
        session.looks_back = False
        session.seen = (session.data_version(), session.last_row())
        return [row[0] for row in session.fetch(sql.STRANDED)]
    if session.data_version() == version:
        # All rows so far are our own or told of, so the next look need not pass over them.
        session.seen = (version, max(last_row, session.last_own_row))
        return None
    database = session.database
    database.execute(sql.BEGIN_READ)
    try:
        seen = (session.data_version(), session.last_row())
        rows = session.fetch(sql.WAITING_FROM_ELSEWHERE, (last_row, session.writer))
    finally:
        database.execute(sql.COMMIT)
    session.seen = seen
    return [row[0] for row in rows]
