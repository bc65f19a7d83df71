"""What a session still knows of the rows that it has read or written, so that writing them needs no look first.

A task is inserted, claimed and ended by the same process within moments. What its row holds is known all that time,
unless another connection commits or a transaction comes to an unclear end; then everything here is forgotten.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from durable_queue_sqlite._rows import Row

MOST_ROWS: Final = 1024
MOST_TEXT: Final = 4 * 1024 * 1024
"""How many characters of payload are kept in all; they are compared with what an update brings."""


class Known(NamedTuple):
    """What is stored under an id before a transaction.

    Attributes:
        row: its row number, None when nothing is stored.
        is_active: whether its status is none of the terminal ones.
        has_edges: whether anything depends on the id, stored or not.
        has_result: whether a result is stored.
        fixed: the columns that an update of its state leaves alone.
        payload: the stored text, None when it was not read.
    """

    row: int | None = None
    is_active: bool = False
    has_edges: bool = False
    has_result: bool = False
    fixed: tuple[Any, ...] = ()
    payload: str | None = None


NOTHING: Final = Known()
"""What is known of an id that is not stored and that nothing depends on."""


def known_of(row: Row, payload: str, *, has_edges: bool) -> Known:
    """Return what a row of an active task, as `_rows.read` takes it, lets one know.

    Args:
        row: the row.
        payload: the same text as its record holds, so that the two need not be compared letter by letter.
        has_edges: whether anything depends on it.
    """
    return Known(row[0], True, has_edges, row[20] is not None, (row[2], *row[5:8], *row[13:17]), payload)


class Recall:
    """The rows of active tasks that were read or written last; the oldest make room."""

    def __init__(self) -> None:
        self._known: dict[str, Known] = {}
        self._text = 0

    def forget(self) -> None:
        """Forget everything."""
        self._known.clear()
        self._text = 0

    def find(self, task_id: str) -> Known | None:
        """Return what is known of an id, or None."""
        return self._known.get(task_id)

    def keep(self, task_id: str, known: Known) -> None:
        """Remember an id, in place of what was known of it."""
        if task_id in self._known:
            self.drop(task_id)
        self._known[task_id] = known
        self._text += _length(known)
        while len(self._known) > MOST_ROWS or self._text > MOST_TEXT:
            self.drop(next(iter(self._known)))

    def drop(self, task_id: str) -> None:
        """Forget an id; a no-op when it is not known."""
        known = self._known.pop(task_id, None)
        if known is not None:
            self._text -= _length(known)

    def note_dependents(self, task_id: str) -> None:
        """Take note that something depends on an id now."""
        known = self._known.get(task_id)
        if known is not None and not known.has_edges:
            self._known[task_id] = known._replace(has_edges=True)


def _length(known: Known) -> int:
    return 0 if known.payload is None else len(known.payload)
