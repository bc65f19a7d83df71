"""The reference storage: records in the process, found through ordered indexes.

Every index is one sorted list of short tuples that end in the record's id, with what is searched for in front, so
that a query is a range of it and a record costs no container of its own. Nothing sorts or copies a backlog: a claim
reads the head of the eligible order, and when time moves only the tasks that cross the boundary between "not yet due"
and "eligible" change places, in either direction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from heapq import merge
from itertools import islice, takewhile
from types import TracebackType
from typing import Any, ClassVar, Self

from sortedcontainers import SortedList

from durable_queue._core.ordering import ReadyKey, can_be_claimed, can_expire, order_key, ready_key
from durable_queue.clock import check_instant
from durable_queue.errors import TaskAlreadyExistsError, TaskNotFoundError
from durable_queue.storage import Change, Delete, QueueStorage, ReadyHead, Save, check_limit
from durable_queue.tasks import ACTIVE_STATUSES, DependencyFailurePolicy, StoredTask, TaskStatus

_BEGINNING = datetime.min.replace(tzinfo=UTC)


class MemoryQueueStorage(QueueStorage):
    """Keeps tasks in the process: for tests, and for work that need not survive a restart.

    It does everything that the storage contract describes, the optional parts included, and is what the contract's
    random walk compares other storages with. Its records and indexes are gone with the object; `close` keeps them.
    """

    atomic: ClassVar[bool] = True

    def __init__(self) -> None:
        self._tasks: dict[str, StoredTask] = {}
        self._by_status = _Index(lambda task: [(task.status.value, *order_key(task))])
        self._by_key = _Index(_key_rows)
        self._by_group = _Index(_group_rows)
        self._by_dependency = _Index(_dependency_rows)
        self._by_expiry = _Index(lambda task: [(task.expires_at, task.id)] if can_expire(task) else [])
        self._sequences = _Index(lambda task: [task.sequence])
        self._readiness = _Readiness(self._tasks)
        self._held = 0
        self._obstacles: dict[str, int] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def save(self, task: StoredTask) -> None:
        """Insert a new record."""
        if task.id in self._tasks:
            raise TaskAlreadyExistsError(task.id)
        self._put(task)

    async def get(self, task_id: str) -> StoredTask | None:
        """Return the current record, or None."""
        return self._tasks.get(task_id)

    async def update(self, task: StoredTask) -> None:
        """Replace the record of an existing id."""
        if task.id not in self._tasks:
            raise TaskNotFoundError(task.id)
        self._put(task)

    async def delete(self, task_id: str) -> None:
        """Remove a record; a no-op when it is gone."""
        self._remove(task_id)

    async def apply(self, changes: Sequence[Change]) -> None:
        """Carry out all changes in their order, or none."""
        self._check(changes)
        for change in changes:
            if isinstance(change, Delete):
                self._remove(change.task_id)
            else:
                self._put(change.task)

    async def get_pending(self) -> list[StoredTask]:
        """Return every pending record, in order."""
        return await self.get_by_status(TaskStatus.PENDING)

    async def get_by_status(
        self, status: TaskStatus, *, limit: int | None = None, after: StoredTask | None = None
    ) -> list[StoredTask]:
        """Return the records of one status, in order."""
        check_limit(limit)
        rows = self._by_status.starting_with(status.value, after=() if after is None else order_key(after))
        return self._records(islice(rows, limit))

    async def get_next_ready(self, now: datetime) -> StoredTask | None:
        """Return the first record in ready order that is eligible at `now`, or None."""
        head = next(self._readiness.at(now), None)
        return None if head is None else self._tasks[head[-1]]

    async def get_ready(
        self, now: datetime, limit: int, *, types: Collection[str] | None = None
    ) -> list[StoredTask]:
        """Return the next records in ready order that are eligible at `now`, never walking another type's backlog."""
        check_limit(limit)
        return self._records(islice(self._readiness.at(now, types), limit))

    async def read_ahead(self, now: datetime, limit: int) -> ReadyHead:
        """Return what `get_ready` would, with what one has to know to keep it for a while."""
        tasks = await self.get_ready(now, limit)
        return ReadyHead(
            tasks=tasks,
            is_all=len(tasks) < limit,
            until=self._readiness.next_scheduled(),
            with_dependents={
                task.id for task in tasks if next(self._by_dependency.starting_with(task.id), None)
            },
        )

    async def get_next_wake_at(self) -> datetime | None:
        """Return the earliest `next_attempt_at` among the records that can be claimed, overdue ones included."""
        return self._readiness.next_time()

    async def get_max_sequence(self) -> int:
        """Return the largest stored `sequence`, or 0."""
        rows = self._sequences.rows
        return int(rows[-1]) if rows else 0

    async def get_all(self) -> list[StoredTask]:
        """Return every record, in order."""
        return sorted(self._tasks.values(), key=order_key)

    async def find_active_by_deduplication_key(self, key: str) -> StoredTask | None:
        """Return the first active record, in order, with this key."""
        row = next(self._by_key.starting_with(key), None)
        return None if row is None else self._tasks[row[-1]]

    async def get_waiting_dependents(self, task_id: str) -> list[StoredTask]:
        """Return the waiting records that depend on this id, in order."""
        return self._records(self._by_dependency.starting_with(task_id, _WAITING))

    async def get_by_group(self, group: str, *, status: TaskStatus | None = None) -> list[StoredTask]:
        """Return the records of a group, in order, all or those of one status."""
        if status is not None:
            return self._records(self._by_group.starting_with(group, status.value))
        return sorted(self._records(self._by_group.starting_with(group)), key=order_key)

    async def get_many(self, ids: Collection[str]) -> dict[str, StoredTask]:
        """Return the stored records among these ids, by id."""
        return {task_id: self._tasks[task_id] for task_id in ids if task_id in self._tasks}

    async def get_waiting_dependents_of(self, ids: Collection[str]) -> list[StoredTask]:
        """Return the waiting records that depend on any of these ids, each once, in order."""
        found = {row[-1] for task_id in ids for row in self._by_dependency.starting_with(task_id, _WAITING)}
        return sorted(self._records((task_id,) for task_id in found), key=order_key)

    async def get_judgeable(self, ids: Collection[str]) -> list[StoredTask]:
        """Return exactly the waiting dependents of these ids whose verdict can fall now (S13.21)."""
        finished = frozenset(ids)
        found: dict[str, StoredTask] = {}
        for task_id in finished:
            ended = self._tasks.get(task_id)
            blocks = ended is None or ended.status in _UNSUCCESSFUL
            for row in self._by_dependency.starting_with(task_id, _WAITING):
                task = self._tasks[row[-1]]
                if task.id in found:
                    continue
                runs_anyway = task.on_dependency_failure is DependencyFailurePolicy.RUN
                if (blocks and not runs_anyway) or not self._is_obstructed(task, finished):
                    found[task.id] = task
        return sorted(found.values(), key=order_key)

    async def get_dependents(self, task_id: str) -> list[StoredTask]:
        """Return the records of any status that depend on this id, in order."""
        return sorted(self._records(self._by_dependency.starting_with(task_id)), key=order_key)

    async def get_expired(self, now: datetime, limit: int) -> list[StoredTask]:
        """Return at most `limit` records that have not started and whose `expires_at` is not after `now`."""
        check_limit(limit)
        now = check_instant(now, "now")
        return self._records(islice(takewhile(lambda row: row[0] <= now, self._by_expiry.rows), limit))

    async def get_next_expiry_at(self) -> datetime | None:
        """Return the earliest `expires_at` of the records that have not started, or None."""
        rows = self._by_expiry.rows
        return rows[0][0] if rows else None

    async def count_by_status(self) -> dict[TaskStatus, int]:
        """Return how many records there are of each status."""
        return {status: self._by_status.count(status.value) for status in TaskStatus}

    async def count_held(self) -> int:
        """Return how many active records are held."""
        return self._held

    def _records(self, rows: Iterable[tuple[Any, ...]]) -> list[StoredTask]:
        return [self._tasks[row[-1]] for row in rows]

    def _check(self, changes: Sequence[Change]) -> None:
        """Raise what the first change that cannot be carried out would raise, before anything is changed."""
        seen: dict[str, StoredTask | None] = {}
        for change in changes:
            if isinstance(change, Delete):
                seen[change.task_id] = None
                continue
            task = change.task
            stored = seen[task.id] if task.id in seen else self._tasks.get(task.id)
            if isinstance(change, Save):
                if stored is not None and stored != task:
                    raise TaskAlreadyExistsError(task.id)
            elif stored is None:
                raise TaskNotFoundError(task.id)
            seen[task.id] = task

    def _put(self, task: StoredTask) -> None:
        old = self._tasks.get(task.id)
        self._reindex(old, task)
        self._tasks[task.id] = task
        if task.status is not TaskStatus.WAITING:
            self._obstacles.pop(task.id, None)

    def _remove(self, task_id: str) -> None:
        old = self._tasks.get(task_id)
        if old is not None:
            self._reindex(old, None)
            del self._tasks[task_id]
            self._obstacles.pop(task_id, None)

    def _reindex(self, old: StoredTask | None, new: StoredTask | None) -> None:
        self._by_status.replace(old, new)
        self._by_key.replace(old, new)
        self._by_group.replace(old, new)
        self._by_expiry.replace(old, new)
        self._sequences.replace(old, new)
        if (old is not None and old.depends_on) or (new is not None and new.depends_on):
            self._by_dependency.replace(old, new)
        if old is not None:
            self._readiness.remove(old)
            self._held -= old.held and old.status in ACTIVE_STATUSES
        if new is not None:
            self._readiness.add(new)
            self._held += new.held and new.status in ACTIVE_STATUSES

    def _is_obstructed(self, task: StoredTask, finished: frozenset[str]) -> bool:
        """Whether a dependency other than the finished ones is active.

        The place where the last one was found is where the next search begins, so that a join of many tasks costs one
        look per question and not one per dependency. It is a hint only: every answer is checked against the records.
        """
        dependencies = task.depends_on
        start = self._obstacles.get(task.id, 0) % len(dependencies)
        for step in range(len(dependencies)):
            place = (start + step) % len(dependencies)
            dependency = dependencies[place]
            stored = self._tasks.get(dependency)
            if stored is not None and stored.status in ACTIVE_STATUSES and dependency not in finished:
                if place != start:
                    self._obstacles[task.id] = place
                return True
        return False


_UNSUCCESSFUL = frozenset({TaskStatus.FAILED, TaskStatus.CANCELLED})
_WAITING = "1"
_NOT_WAITING = "2"


def _key_rows(task: StoredTask) -> list[tuple[Any, ...]]:
    key = task.deduplication_key
    return [(key, *order_key(task))] if key is not None and task.status in ACTIVE_STATUSES else []


def _group_rows(task: StoredTask) -> list[tuple[Any, ...]]:
    return [] if task.group is None else [(task.group, task.status.value, *order_key(task))]


def _dependency_rows(task: StoredTask) -> list[tuple[Any, ...]]:
    waiting = _WAITING if task.status is TaskStatus.WAITING else _NOT_WAITING
    rest = (waiting, *order_key(task))
    return [(dependency, *rest) for dependency in task.depends_on]


class _Index:
    """A sorted list of the rows that a function makes of each record."""

    def __init__(self, rows_of: Callable[[StoredTask], list[Any]]) -> None:
        self._rows_of = rows_of
        self.rows = SortedList()

    def replace(self, old: StoredTask | None, new: StoredTask | None) -> None:
        """Change what stands here for one record; None stands for a record that is not stored."""
        before = [] if old is None else self._rows_of(old)
        after = [] if new is None else self._rows_of(new)
        if before != after:
            for row in before:
                self.rows.remove(row)
            for row in after:
                self.rows.add(row)

    def starting_with(self, *prefix: str, after: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield the rows with this beginning, in order, those after a place when one is given."""
        rows: Iterator[tuple[Any, ...]] = self.rows.irange(
            (*prefix, *after), _end(prefix), inclusive=(False, False)
        )
        return rows

    def count(self, *prefix: str) -> int:
        """Return how many rows have this beginning."""
        return int(self.rows.bisect_left(_end(prefix)) - self.rows.bisect_left(prefix))


def _end(prefix: tuple[str, ...]) -> tuple[str, ...]:
    # No text lies between a text and the same with a NUL behind it.
    return (*prefix[:-1], prefix[-1] + "\0")


class _Readiness:
    """Who is eligible, in ready order, as time moves in either direction.

    Tasks with a time are in one of two time indexes: `_due`, which are also in the eligible order, and `_scheduled`,
    which are not. The boundary between them is the last instant that was asked about.
    """

    def __init__(self, tasks: dict[str, StoredTask]) -> None:
        self._tasks = tasks
        self._now = _BEGINNING
        self._eligible = SortedList()
        self._eligible_by_type: dict[str, SortedList] = {}
        self._due = SortedList()
        self._scheduled = SortedList()

    def at(self, now: datetime, types: Collection[str] | None = None) -> Iterator[ReadyKey]:
        """Yield the ready keys of the tasks, of all types or of some, that are eligible at an instant, in order."""
        self._move_to(check_instant(now, "now"))
        if types is None:
            return iter(self._eligible)
        lists = [self._eligible_by_type[name] for name in set(types) if name in self._eligible_by_type]
        return iter(lists[0]) if len(lists) == 1 else merge(*lists)

    def next_time(self) -> datetime | None:
        """Return the earliest time of all tasks that have one, due or not."""
        first = self._due or self._scheduled
        return first[0][0] if first else None

    def next_scheduled(self) -> datetime | None:
        """Return the earliest time after the last instant that was asked about."""
        return self._scheduled[0][0] if self._scheduled else None

    def add(self, task: StoredTask) -> None:
        """Take a task up; a no-op for one that cannot be claimed."""
        if can_be_claimed(task):
            at = task.next_attempt_at
            if at is not None:
                (self._due if at <= self._now else self._scheduled).add((at, task.id))
            if at is None or at <= self._now:
                self._admit(task)

    def remove(self, task: StoredTask) -> None:
        """Let go of a task that was taken up, or could not be."""
        if can_be_claimed(task):
            at = task.next_attempt_at
            if at is not None:
                (self._due if at <= self._now else self._scheduled).remove((at, task.id))
            if at is None or at <= self._now:
                self._dismiss(task)

    def _move_to(self, now: datetime) -> None:
        self._now = now
        while self._scheduled and self._scheduled[0][0] <= now:
            row = self._scheduled.pop(0)
            self._due.add(row)
            self._admit(self._tasks[row[1]])
        while self._due and self._due[-1][0] > now:
            row = self._due.pop()
            self._scheduled.add(row)
            self._dismiss(self._tasks[row[1]])

    def _admit(self, task: StoredTask) -> None:
        key = ready_key(task)
        self._eligible.add(key)
        same_type = self._eligible_by_type.get(task.type)
        if same_type is None:
            same_type = self._eligible_by_type[task.type] = SortedList()
        same_type.add(key)

    def _dismiss(self, task: StoredTask) -> None:
        key = ready_key(task)
        self._eligible.remove(key)
        same_type = self._eligible_by_type[task.type]
        same_type.remove(key)
        if not same_type:
            del self._eligible_by_type[task.type]
