"""What a step has decided so far: changed records, deletions and events, over a storage it cannot see.

Decisions are generators. They yield the reads that they need (the classes at the end) and are sent the answers,
which already show what the plan has changed (S13.2). So they stay free of I/O, can be stopped between any two reads,
and a long one gives the event loop a turn by yielding `Breathe`.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable
from datetime import datetime
from typing import Any, TypeAlias, TypeVar

import attrs

from durable_queue._core.graphs import dependencies_first
from durable_queue.changes import Change, Delete, Save, Update
from durable_queue.events import QueueEvent
from durable_queue.tasks import StoredTask, TaskStatus

T = TypeVar("T")


class Plan:
    """The changes of one decision, over those of the step that it belongs to.

    Attributes:
        now: the time of the decision, read once at the edge.
        records: the changed records by id; None for a deleted one.
        events: what to announce after the write, in causal order.
    """

    def __init__(self, now: datetime, parent: Plan | None = None) -> None:
        self.now = now
        self.records: dict[str, StoredTask | None] = {}
        self.events: list[QueueEvent] = []
        self._new: set[str] = set()
        self._parent = parent

    def put(self, task: StoredTask, *, new: bool = False) -> None:
        """Change a record; `new` when it is not stored yet."""
        if new:
            self._new.add(task.id)
        self.records[task.id] = task

    def remove(self, task_id: str) -> None:
        """Delete a record."""
        self.records[task_id] = None

    def knows(self, task_id: str) -> bool:
        """Whether this plan, or the step's, has changed or deleted a record."""
        return task_id in self.records or (self._parent is not None and self._parent.knows(task_id))

    def find(self, task_id: str) -> StoredTask | None:
        """Return a record that the plan knows; None when it is deleted or not known."""
        if task_id in self.records:
            return self.records[task_id]
        return None if self._parent is None else self._parent.find(task_id)

    def changed(self) -> Iterable[StoredTask]:
        """Return the current form of every record that the plan and the step's have changed and not deleted."""
        if self._parent is not None:
            yield from (task for task in self._parent.changed() if task.id not in self.records)
        yield from (task for task in self.records.values() if task is not None)

    def merge(self, other: Plan) -> None:
        """Take over what a plan made on top of this one has decided."""
        self.records.update(other.records)
        self.events.extend(other.events)
        self._new |= other._new

    def changes(self) -> list[Change]:
        """Return the write: new records in their order, then updates in a safe order, then deletions.

        A storage that is not atomic is left recoverable by this order wherever it stops: a dependent is written before
        what settled it, and a dependency that is active again before what waits for it (S4.7, S13.8).
        """
        saves: list[Change] = []
        updates: dict[str, StoredTask] = {}
        deletes: list[Change] = []
        for task_id, task in self.records.items():
            if task is None:
                deletes.append(Delete(task_id))
            elif task_id in self._new:
                saves.append(Save(task))
            else:
                updates[task_id] = task
        return [*saves, *(Update(updates[task_id]) for task_id in _safe_order(updates)), *deletes]


def _safe_order(updates: dict[str, StoredTask]) -> Iterable[str]:
    # Each rule goes along an edge, in the direction that its dependent chooses, so the rules never form a ring.
    before: dict[str, list[str]] = {task_id: [] for task_id in reversed(updates)}
    for task in updates.values():
        for dependency in task.depends_on:
            if dependency in before:
                if task.status is TaskStatus.WAITING:
                    before[task.id].append(dependency)
                else:
                    before[dependency].append(task.id)
    return dependencies_first(before) if any(before.values()) else before


@attrs.frozen
class GetTasks:
    """Asks for a dict of the stored tasks among these ids."""

    ids: Collection[str]


@attrs.frozen
class GetFacts:
    """Asks for a dict id -> `Fact` of all these ids."""

    ids: Collection[str]


@attrs.frozen
class FindHolder:
    """Asks for the active task that holds a deduplication key, or None."""

    key: str = attrs.field(repr=False)


@attrs.frozen
class GetJudgeable:
    """Asks for the waiting dependents of these ids that have no other active dependency; more are allowed."""

    ids: Collection[str]


@attrs.frozen
class GetWaitingDependents:
    """Asks for every waiting dependent of these ids."""

    ids: Collection[str]


@attrs.frozen
class GetDependents:
    """Asks for the dependents of an id, whatever their status."""

    task_id: str


@attrs.frozen
class GetGroup:
    """Asks for the tasks of a group, all or those of one status."""

    group: str = attrs.field(repr=False)
    status: TaskStatus | None = None


@attrs.frozen
class GetPage:
    """Asks for the next tasks of a status, in order; what the plan has changed is left out."""

    status: TaskStatus
    limit: int | None
    after: StoredTask | None = None


@attrs.frozen
class GetReady:
    """Asks for the next tasks to claim, in ready order."""

    limit: int
    without: Collection[str] = ()


@attrs.frozen
class GetExpired:
    """Asks for tasks whose time is over before they have started."""

    limit: int


@attrs.frozen
class GetMaxSequence:
    """Asks for the largest stored sequence."""


@attrs.frozen
class Breathe:
    """Asks for nothing: lets the event loop take a turn (S13.21)."""


Request: TypeAlias = (
    GetTasks
    | GetFacts
    | FindHolder
    | GetJudgeable
    | GetWaitingDependents
    | GetDependents
    | GetGroup
    | GetPage
    | GetReady
    | GetExpired
    | GetMaxSequence
    | Breathe
)
Decision: TypeAlias = Generator[Request, Any, T]

BREATHE_EVERY = 64
"""How many records a decision works on before it lets the event loop take a turn."""


def get_task(task_id: str) -> Decision[StoredTask | None]:
    """Ask for one task."""
    found: dict[str, StoredTask] = yield GetTasks((task_id,))
    return found.get(task_id)
