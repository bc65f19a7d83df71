"""Changes to the file: a list of them folded to what each id ends as, then written by few statements."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from durable_queue.errors import CorruptRecordError, TaskAlreadyExistsError, TaskNotFoundError
from durable_queue.storage import Change, Delete, Save
from durable_queue.tasks import StoredTask
from durable_queue_sqlite import _statements as sql
from durable_queue_sqlite._reading import ids_as_json
from durable_queue_sqlite._rows import FIXED, columns_of, read
from durable_queue_sqlite._session import Session

_FIRST_TERMINAL: Final = 4
_STATUS: Final = FIXED
_DEPENDS_ON: Final = FIXED - 1


@attrs.frozen
class _Known:
    """What is stored under an id before a transaction.

    Attributes:
        row: its row number.
        is_active: whether its status is none of the terminal ones.
        has_result: whether a result is stored.
        fixed: the columns that an update of its state leaves alone.
    """

    row: int
    is_active: bool
    has_result: bool
    fixed: tuple[Any, ...]


def apply(session: Session, changes: Sequence[Change], *, equal_is_saved: bool = True) -> None:
    """Carry out all changes in their order, or none, in one transaction.

    Args:
        session: where.
        changes: the list.
        equal_is_saved: whether a `Save` that finds an equal record counts as done.

    Raises:
        TaskAlreadyExistsError: a `Save` found another record under its id.
        TaskNotFoundError: an `Update` found none.
    """
    if changes:
        session.write(lambda database: _Writer(session, database).apply(changes, equal_is_saved))


class _Writer:
    """One transaction's worth of changes."""

    def __init__(self, session: Session, database: sqlite3.Connection) -> None:
        self._session = session
        self._database = database

    def apply(self, changes: Sequence[Change], equal_is_saved: bool) -> None:
        known = self._known(changes)
        final = self._fold(changes, known, equal_is_saved)
        deleted: list[tuple[int]] = []
        inserted: list[StoredTask] = []
        updated: list[StoredTask] = []
        for task_id, task in final.items():
            if task is None:
                if task_id in known:
                    deleted.append((known[task_id].row,))
            elif task_id in known:
                updated.append(task)
            else:
                inserted.append(task)
        # First all tasks, then the edges: whether one is open is looked up among the tasks as they end.
        edges: list[tuple[int, str]] = []
        self._delete(deleted)
        self._insert(inserted, edges)
        self._update(updated, known, edges)
        if edges:
            self._database.executemany(sql.INSERT_EDGES, edges)
        self._open_and_close_edges(final, known)

    def _known(self, changes: Sequence[Change]) -> dict[str, _Known]:
        ids = {change.task_id if isinstance(change, Delete) else change.task.id for change in changes}
        rows = self._session.fetch(sql.KNOWN, (ids_as_json(ids),))
        return {row[0]: _Known(row[1], row[2] < _FIRST_TERMINAL, bool(row[3]), row[4:]) for row in rows}

    def _fold(
        self, changes: Sequence[Change], known: Mapping[str, _Known], equal_is_saved: bool
    ) -> dict[str, StoredTask | None]:
        """Return what each id ends as, or raise for the first change that cannot be carried out."""
        final: dict[str, StoredTask | None] = {}
        for change in changes:
            if isinstance(change, Delete):
                final[change.task_id] = None
                continue
            task = change.task
            is_stored = final[task.id] is not None if task.id in final else task.id in known
            if isinstance(change, Save):
                if is_stored and not (equal_is_saved and self._is_equal(task, final)):
                    raise TaskAlreadyExistsError(task.id)
                if is_stored:
                    continue
            elif not is_stored:
                raise TaskNotFoundError(task.id)
            final[task.id] = task
        return final

    def _is_equal(self, task: StoredTask, final: Mapping[str, StoredTask | None]) -> bool:
        if task.id in final:
            return final[task.id] == task
        try:
            return read(self._session.fetch(sql.GET, (task.id,))[0]) == task
        except CorruptRecordError:
            return False

    def _delete(self, rows: list[tuple[int]]) -> None:
        if rows:
            for statement in (sql.DELETE_TASK, sql.DELETE_PAYLOAD, sql.DELETE_RESULT, sql.DELETE_EDGES):
                self._database.executemany(statement, rows)

    def _insert(self, tasks: list[StoredTask], edges: list[tuple[int, str]]) -> None:
        if not tasks:
            return
        last = self._database.execute(sql.ALLOCATE_ROWS, (len(tasks),)).fetchall()[0][0]
        boundary, writer = self._session.boundary, self._session.writer
        rows, payloads, results = [], [], []
        for row, task in enumerate(tasks, start=last - len(tasks) + 1):
            columns = columns_of(task, boundary)
            rows.append((row, task.id, *columns, writer))
            payloads.append((row, task.payload_text))
            if task.result_text is not None:
                results.append((row, task.result_text))
            if columns[_DEPENDS_ON] is not None:
                edges.append((row, columns[_DEPENDS_ON]))
        self._database.executemany(sql.INSERT_TASK, rows)
        self._database.executemany(sql.INSERT_PAYLOAD, payloads)
        if results:
            self._database.executemany(sql.PUT_RESULT, results)

    def _update(
        self, tasks: list[StoredTask], known: Mapping[str, _Known], edges: list[tuple[int, str]]
    ) -> None:
        if not tasks:
            return
        boundary = self._session.boundary
        states: list[tuple[Any, ...]] = []
        whole: list[tuple[Any, ...]] = []
        payloads, results, without_result, without_edges = [], [], [], []
        for task in tasks:
            columns = columns_of(task, boundary)
            old = known[task.id]
            if columns[:FIXED] == old.fixed:
                states.append((*columns[FIXED:], old.row))
            else:
                whole.append((*columns, old.row))
                if columns[_DEPENDS_ON] != old.fixed[_DEPENDS_ON]:
                    without_edges.append((old.row,))
                    if columns[_DEPENDS_ON] is not None:
                        edges.append((old.row, columns[_DEPENDS_ON]))
            payloads.append((old.row, task.payload_text))
            if task.result_text is not None:
                results.append((old.row, task.result_text))
            elif old.has_result:
                without_result.append((old.row,))
        for statement, rows in (
            (sql.UPDATE_STATE, states),
            (sql.UPDATE_TASK, whole),
            (sql.UPDATE_PAYLOAD, payloads),
            (sql.PUT_RESULT, results),
            (sql.DELETE_RESULT, without_result),
            (sql.DELETE_EDGES, without_edges),
        ):
            if rows:
                self._database.executemany(statement, rows)

    def _open_and_close_edges(
        self, final: Mapping[str, StoredTask | None], known: Mapping[str, _Known]
    ) -> None:
        opened: list[str] = []
        closed: list[str] = []
        for task_id, task in final.items():
            was_active = task_id in known and known[task_id].is_active
            is_active = task is not None and not task.status.is_terminal
            if was_active != is_active:
                (opened if is_active else closed).append(task_id)
        if opened:
            self._database.execute(sql.OPEN_EDGES, (ids_as_json(opened),))
        if closed:
            self._database.execute(sql.CLOSE_EDGES, (ids_as_json(closed),))
