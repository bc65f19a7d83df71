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
        hides_ready: whether the storage has answered `GetReady` with something that the plan changes, behind which
            more may be ready.
    """

    def __init__(self, now: datetime, parent: Plan | None = None) -> None:
        self.now = now
        self.records: dict[str, StoredTask | None] = {}
        self.events: list[QueueEvent] = []
        self.hides_ready = False
        self._new: set[str] = set()
        self.parent = parent
        # A cascade asks at every level: without these a long one would walk all that it has decided each time.
        self.by_dependency: dict[str, list[str]] = {}
        self.by_key: dict[str, list[str]] = {}

    def put(self, task: StoredTask, *, new: bool = False) -> None:
        """Change a record; `new` when it is not stored yet."""
        if new:
            self._new.add(task.id)
        self._record(task.id, task)

    def remove(self, task_id: str) -> None:
        """Delete a record."""
        self._record(task_id, None)

    def _record(self, task_id: str, task: StoredTask | None) -> None:
        # The dependencies and the key of a task never change, so that it is entered once.
        if task is not None and self.records.get(task_id) is None:
            for dependency in task.depends_on:
                self.by_dependency.setdefault(dependency, []).append(task_id)
            if task.deduplication_key is not None:
                self.by_key.setdefault(task.deduplication_key, []).append(task_id)
        self.records[task_id] = task

    def knows(self, task_id: str) -> bool:
        """Whether this plan, or the step's, has changed or deleted a record."""
        return task_id in self.records or (self.parent is not None and self.parent.knows(task_id))

    def is_new(self, task_id: str) -> bool:
        """Whether a record that this plan changes is not stored yet."""
        return task_id in self._new

    def find(self, task_id: str) -> StoredTask | None:
        """Return a record that the plan knows; None when it is deleted or not known."""
        if task_id in self.records:
            return self.records[task_id]
        return None if self.parent is None else self.parent.find(task_id)

    def changed(self) -> Iterable[StoredTask]:
        """Return the current form of every record that the plan and the step's have changed and not deleted."""
        if self.parent is not None:
            yield from (task for task in self.parent.changed() if task.id not in self.records)
        yield from (task for task in self.records.values() if task is not None)

    def dependents_of(self, ids: Iterable[str]) -> dict[str, StoredTask]:
        """Return, by id, the current form of the changed records that depend on any of these ids."""
        found = {
            task_id: self.find(task_id)
            for plan in self._and_parents()
            for dependency in ids
            for task_id in plan.by_dependency.get(dependency, ())
        }
        return {task_id: task for task_id, task in found.items() if task is not None}

    def with_key(self, key: str) -> list[StoredTask]:
        """Return the current form of the changed records with a deduplication key."""
        ids = {task_id: None for plan in self._and_parents() for task_id in plan.by_key.get(key, ())}
        return [task for task_id in ids if (task := self.find(task_id)) is not None]

    def _and_parents(self) -> Iterable[Plan]:
        plan: Plan | None = self
        while plan is not None:
            yield plan
            plan = plan.parent

    def merge(self, other: Plan) -> None:
        """Take over what a plan made on top of this one has decided."""
        if other.by_dependency or other.by_key:
            for task_id, task in other.records.items():
                self._record(task_id, task)
        else:
            self.records.update(other.records)
        self.events.extend(other.events)
        self._new |= other._new

    def changes(self, *, any_order: bool = False) -> list[Change]:
        """Return the write: new records in their order, then updates in a safe order, then deletions.

        A storage that is not atomic is left recoverable by this order wherever it stops: a dependent is written before
        what settled it, and a dependency that is active again before what waits for it (S4.7, S13.8).

        Args:
            any_order: whether the order of the updates does not matter, because they are written whole or not at all.
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
        order = updates if any_order else _safe_order(updates)
        return [*saves, *(Update(updates[task_id]) for task_id in order), *deletes]


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
class GetDependentsOf:
    """Asks for the dependents of any of these ids, whatever their status, each once; some can be left out."""

    ids: Collection[str]
    without: Collection[str] = ()


@attrs.frozen
class GetGroup:
    """Asks for the tasks of a group, all or those of one status."""

    group: str = attrs.field(repr=False)
    status: TaskStatus | None = None


@attrs.frozen
class GetPage:
    """Asks for a `Page`: the next tasks of a status, in order, each as the plan has it."""

    status: TaskStatus
    limit: int | None
    after: StoredTask | None = None


@attrs.frozen
class Page:
    """Some tasks of a walk by key.

    Attributes:
        tasks: in order; what the plan deletes is missing, and what it changes may have another status.
        last: the last stored record, where the next page begins; None at the end of the walk.
    """

    tasks: list[StoredTask]
    last: StoredTask | None


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
    | GetDependentsOf
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
