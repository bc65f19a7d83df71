"""Changes to the file: a list of them folded to what each id ends as, then written by few statements."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final

from durable_queue.errors import CorruptRecordError, TaskAlreadyExistsError, TaskNotFoundError
from durable_queue.storage import Change, Delete, Save
from durable_queue.tasks import StoredTask
from durable_queue_sqlite import _statements as sql
from durable_queue_sqlite._reading import as_json
from durable_queue_sqlite._recall import MOST_ROWS, NOTHING, Known
from durable_queue_sqlite._rows import FIXED, columns_of, read
from durable_queue_sqlite._session import Session

_FIRST_TERMINAL: Final = 4
_DEPENDS_ON: Final = FIXED - 1


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
        writer = session.write(lambda database: _Writer(session, database).apply(changes, equal_is_saved))
        # Only now: a number that was rolled back may be given out again, to somebody else.
        session.last_own_row = writer.last_row
        writer.remember()


class _Writer:
    """One transaction's worth of changes.

    Attributes:
        last_row: the last row number that was given out.
    """

    def __init__(self, session: Session, database: sqlite3.Connection) -> None:
        self._session = session
        self._database = database
        self._dropped: list[str] = []
        self._kept: list[tuple[str, Known]] = []
        self._edges: list[tuple[int | None, StoredTask, str]] = []
        self.last_row = 0

    def apply(self, changes: Sequence[Change], equal_is_saved: bool) -> _Writer:
        """Carry the list out; returns itself."""
        self.last_row = self._session.catch_up()
        known = self._look(changes)
        deleted: list[int] = []
        inserted: list[tuple[Known, StoredTask]] = []
        updated: list[tuple[Known, StoredTask]] = []
        opened: list[str] = []
        closed: list[str] = []
        for task_id, task in self._fold(changes, known, equal_is_saved).items():
            old = known[task_id]
            if task is None:
                if old.row is not None:
                    deleted.append(old.row)
            elif old.row is None:
                inserted.append((old, task))
            else:
                updated.append((old, task))
            is_active = task is not None and not task.status.is_terminal
            if old.has_edges and old.is_active != is_active:
                (opened if is_active else closed).append(task_id)
            if not is_active:
                self._dropped.append(task_id)
        # First all tasks, then the edges: whether one is open is looked up among the tasks as they end.
        self._delete(deleted)
        self._insert(inserted)
        self._update(updated)
        edges = [f"[{row:d},{depends_on}]" for row, _, depends_on in self._edges]
        self._execute(sql.INSERT_EDGES, edges and f"[{','.join(edges)}]")
        self._execute(sql.OPEN_EDGES, opened and as_json(opened))
        self._execute(sql.CLOSE_EDGES, closed and as_json(closed))
        return self

    def remember(self) -> None:
        """Have the session know what it has written; to be called after the commit."""
        recall = self._session.recall
        for task_id in self._dropped:
            recall.drop(task_id)
        for task_id, known in self._kept:
            recall.keep(task_id, known)
        for _, task, _ in self._edges:
            for dependency in task.depends_on:
                recall.note_dependents(dependency)

    def _look(self, changes: Sequence[Change]) -> dict[str, Known]:
        """Find out what is stored under each id: by heart, or all that is left by one query."""
        known: dict[str, Known] = {}
        new: list[str] = []
        unknown: list[str] = []
        find = self._session.recall.find
        for change in changes:
            task_id = change.task_id if isinstance(change, Delete) else change.task.id
            if task_id in known:
                continue
            found = find(task_id)
            known[task_id] = found or NOTHING
            if found is None:
                (new if isinstance(change, Save) else unknown).append(task_id)
        if new and self._session.fetch(sql.IS_ANY_KNOWN, (as_json(new),))[0][0]:
            unknown += new
        if unknown:
            rows = self._session.fetch(sql.KNOWN, (as_json(unknown),))[0][0]
            for task_id, (row, status, has_edges, has_result, *fixed) in zip(
                unknown, json.loads(rows), strict=True
            ):
                known[task_id] = Known(
                    row=row,
                    is_active=row is not None and status < _FIRST_TERMINAL,
                    has_edges=bool(has_edges),
                    has_result=bool(has_result),
                    fixed=tuple(fixed),
                )
        return known

    def _fold(
        self, changes: Sequence[Change], known: Mapping[str, Known], equal_is_saved: bool
    ) -> dict[str, StoredTask | None]:
        """Return what each id ends as, or raise for the first change that cannot be carried out."""
        final: dict[str, StoredTask | None] = {}
        for change in changes:
            if isinstance(change, Delete):
                final[change.task_id] = None
                continue
            task = change.task
            is_stored = final[task.id] is not None if task.id in final else known[task.id].row is not None
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

    def _delete(self, rows: list[int]) -> None:
        for statement in (sql.DELETE_TASKS, sql.DELETE_PAYLOADS, sql.DELETE_RESULTS, sql.DELETE_EDGES):
            self._execute(statement, rows and as_json(rows))

    def _insert(self, tasks: list[tuple[Known, StoredTask]]) -> None:
        boundary, writer = self._session.boundary, self._session.writer
        rows: list[tuple[Any, ...]] = []
        payloads: list[tuple[int, str]] = []
        results: list[tuple[int, str]] = []
        first_kept = len(tasks) - MOST_ROWS
        for index, (old, task) in enumerate(tasks):
            self.last_row = row = self.last_row + 1
            columns = columns_of(task, boundary)
            rows.append((row, task.id, *columns, writer))
            payloads.append((row, task.payload_text))
            if task.result_text is not None:
                results.append((row, task.result_text))
            if columns[_DEPENDS_ON] is not None:
                self._edges.append((row, task, columns[_DEPENDS_ON]))
            if index >= first_kept:
                self._keep(old, row, task, columns)
        self._write_rows(sql.INSERT_TASKS, rows)
        self._write_rows(sql.INSERT_PAYLOADS, payloads)
        self._write_rows(sql.PUT_RESULTS, results)

    def _update(self, tasks: list[tuple[Known, StoredTask]]) -> None:
        boundary = self._session.boundary
        states: dict[tuple[Any, ...], list[int | None]] = {}
        whole: list[tuple[Any, ...]] = []
        payloads: list[tuple[int | None, str]] = []
        results: list[tuple[int | None, str]] = []
        without_result: list[int | None] = []
        without_edges: list[int | None] = []
        for old, task in tasks:
            columns = columns_of(task, boundary)
            if columns[:FIXED] == old.fixed:
                states.setdefault(columns[FIXED:], []).append(old.row)
            else:
                whole.append((old.row, *columns))
                if columns[_DEPENDS_ON] != old.fixed[_DEPENDS_ON]:
                    without_edges.append(old.row)
                    if columns[_DEPENDS_ON] is not None:
                        self._edges.append((old.row, task, columns[_DEPENDS_ON]))
            if task.payload_text != old.payload:
                payloads.append((old.row, task.payload_text))
            if task.result_text is not None:
                results.append((old.row, task.result_text))
            elif old.has_result:
                without_result.append(old.row)
            self._keep(old, old.row, task, columns)
        self._set_states(states)
        self._write_rows(sql.UPDATE_TASKS, whole)
        self._write_rows(sql.UPDATE_PAYLOADS, payloads)
        self._write_rows(sql.PUT_RESULTS, results)
        self._execute(sql.DELETE_RESULTS, without_result and as_json(without_result))
        self._execute(sql.DELETE_EDGES, without_edges and as_json(without_edges))

    def _set_states(self, states: Mapping[tuple[Any, ...], list[int | None]]) -> None:
        single: list[tuple[Any, ...]] = []
        for state, rows in states.items():
            if len(rows) == 1:
                single.append((rows[0], *state))
            else:
                self._database.execute(sql.SET_STATE, (as_json(rows), *state))
        self._write_rows(sql.UPDATE_STATES, single)

    def _keep(self, old: Known, row: int | None, task: StoredTask, columns: tuple[Any, ...]) -> None:
        has_result = task.result_text is not None
        if task.payload_text is old.payload and has_result is old.has_result and columns[:FIXED] == old.fixed:
            # By heart already, and unchanged: so is a claim, as a rule.
            return
        if columns[FIXED] < _FIRST_TERMINAL:
            known = Known(row, True, old.has_edges, has_result, columns[:FIXED], task.payload_text)
            self._kept.append((task.id, known))

    def _write_rows(self, statements: Mapping[int, str], rows: Sequence[tuple[Any, ...]]) -> None:
        """Write rows by as few statements as the batch sizes allow."""
        done = 0
        for size in sql.BATCH_SIZES:
            while len(rows) - done >= size:
                batch = rows[done : done + size]
                self._database.execute(statements[size], list(chain.from_iterable(batch)))
                done += size

    def _execute(self, statement: str, parameter: str | list[Any]) -> None:
        """Execute a statement about a list, unless the list is empty."""
        if parameter:
            self._database.execute(statement, (parameter,))
