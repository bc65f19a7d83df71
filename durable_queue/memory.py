"""The reference storage: records in the process, found through ordered indexes.

What has an order is found through sorted lists of short tuples that end in the record's id, what has a name through the
ids under that name; a record costs no container of its own. Nothing sorts or copies a backlog: a claim reads the head
of the eligible order, and when time moves only the tasks that cross the boundary between "not yet due" and "eligible"
change places, in either direction.

`apply` is one turn of the event loop however long its list is. So each index is brought up to date once a list and not
once a record, and only where a record's place in it has changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from heapq import merge
from itertools import islice, takewhile
from operator import attrgetter
from types import TracebackType
from typing import Any, ClassVar, Self, TypeAlias

from sortedcontainers import SortedList

from durable_queue._core.ordering import can_be_claimed, can_expire, is_eligible, order_key, ready_key
from durable_queue.clock import check_instant
from durable_queue.errors import TaskAlreadyExistsError, TaskNotFoundError
from durable_queue.storage import Change, Delete, QueueStorage, ReadyHead, Save, check_limit
from durable_queue.tasks import ACTIVE_STATUSES, DependencyFailurePolicy, StoredTask, TaskStatus

_BEGINNING = datetime.min.replace(tzinfo=UTC)

Replacements: TypeAlias = Sequence[tuple[StoredTask | None, StoredTask | None]]
"""Stored records, each with what takes its place under the same id; None stands for nothing stored."""


class MemoryQueueStorage(QueueStorage):
    """Keeps tasks in the process: for tests, and for work that need not survive a restart.

    It does everything that the storage contract describes, the optional parts included, and is what the contract's
    random walk compares other storages with. Its records and indexes are gone with the object; `close` keeps them.
    """

    atomic: ClassVar[bool] = True

    def __init__(self) -> None:
        self._tasks: dict[str, StoredTask] = {}
        self._by_status = _Parts(lambda task: (task.status, order_key(task)))
        self._by_key = _Names(_key_of)
        self._by_group = _Names(_group_of)
        self._by_dependency = _Names(attrgetter("depends_on"))
        self._by_expiry = _Index(lambda task: (task.expires_at, task.id) if can_expire(task) else None)
        self._sequences = _Index(attrgetter("sequence"))
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
        self._replace({task_id: None})

    async def apply(self, changes: Sequence[Change]) -> None:
        """Carry out all changes in their order, or none."""
        self._replace(self._outcome_of(changes))

    async def get_pending(self) -> list[StoredTask]:
        """Return every pending record, in order."""
        return await self.get_by_status(TaskStatus.PENDING)

    async def get_by_status(
        self, status: TaskStatus, *, limit: int | None = None, after: StoredTask | None = None
    ) -> list[StoredTask]:
        """Return the records of one status, in order."""
        check_limit(limit)
        rows = self._by_status.rows.get(status, ())
        if rows and after is not None:
            rows = rows.irange(order_key(after), inclusive=(False, False))
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
            with_dependents={task.id for task in tasks if task.id in self._by_dependency.rows},
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
        return min(self._named(self._by_key, key), key=order_key, default=None)

    async def get_waiting_dependents(self, task_id: str) -> list[StoredTask]:
        """Return the waiting records that depend on this id, in order."""
        return sorted(self._waiting_dependents(task_id), key=order_key)

    async def get_by_group(self, group: str, *, status: TaskStatus | None = None) -> list[StoredTask]:
        """Return the records of a group, in order, all or those of one status."""
        statuses = TaskStatus if status is None else (status,)
        members = (task for one in statuses for task in self._named(self._by_group, (group, one)))
        return sorted(members, key=order_key)

    async def get_many(self, ids: Collection[str]) -> dict[str, StoredTask]:
        """Return the stored records among these ids, by id."""
        return {task_id: self._tasks[task_id] for task_id in ids if task_id in self._tasks}

    async def get_waiting_dependents_of(self, ids: Collection[str]) -> list[StoredTask]:
        """Return the waiting records that depend on any of these ids, each once, in order."""
        found = {task.id: task for task_id in ids for task in self._waiting_dependents(task_id)}
        return sorted(found.values(), key=order_key)

    async def get_judgeable(self, ids: Collection[str]) -> list[StoredTask]:
        """Return exactly the waiting dependents of these ids whose verdict can fall now (S13.21)."""
        finished = frozenset(ids)
        found: dict[str, StoredTask] = {}
        for task_id in finished:
            ended = self._tasks.get(task_id)
            blocks = ended is None or ended.status in _UNSUCCESSFUL
            for task in self._waiting_dependents(task_id):
                if task.id in found:
                    continue
                runs_anyway = task.on_dependency_failure is DependencyFailurePolicy.RUN
                if (blocks and not runs_anyway) or not self._is_obstructed(task, finished):
                    found[task.id] = task
        return sorted(found.values(), key=order_key)

    async def get_dependents(self, task_id: str) -> list[StoredTask]:
        """Return the records of any status that depend on this id, in order."""
        return sorted(self._named(self._by_dependency, task_id), key=order_key)

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
        return {status: len(self._by_status.rows.get(status, ())) for status in TaskStatus}

    async def count_held(self) -> int:
        """Return how many active records are held."""
        return self._held

    def _records(self, rows: Iterable[tuple[Any, ...]]) -> list[StoredTask]:
        return [self._tasks[row[-1]] for row in rows]

    def _named(self, index: _Names, name: Hashable) -> Iterable[StoredTask]:
        return (self._tasks[task_id] for task_id in index.rows.get(name, ()))

    def _waiting_dependents(self, task_id: str) -> Iterable[StoredTask]:
        return (t for t in self._named(self._by_dependency, task_id) if t.status is TaskStatus.WAITING)

    def _outcome_of(self, changes: Sequence[Change]) -> dict[str, StoredTask | None]:
        """Return what these changes leave under each id, None for nothing; raise for the first that cannot be done."""
        outcome: dict[str, StoredTask | None] = {}
        for change in changes:
            if isinstance(change, Delete):
                outcome[change.task_id] = None
                continue
            task = change.task
            stored = outcome[task.id] if task.id in outcome else self._tasks.get(task.id)
            if isinstance(change, Save):
                if stored is not None and stored != task:
                    raise TaskAlreadyExistsError(task.id)
            elif stored is None:
                raise TaskNotFoundError(task.id)
            outcome[task.id] = task
        return outcome

    def _put(self, task: StoredTask) -> None:
        self._replace({task.id: task})

    def _replace(self, outcome: Mapping[str, StoredTask | None]) -> None:
        """Put these records in the place of whatever is stored under their ids."""
        pairs = [(self._tasks.get(task_id), task) for task_id, task in outcome.items()]
        self._by_status.replace(pairs)
        self._by_key.replace(pairs)
        self._by_group.replace(pairs)
        self._by_dependency.replace(pairs)
        self._by_expiry.replace(pairs)
        self._sequences.replace(pairs)
        self._readiness.replace(pairs)
        for old, new in pairs:
            if old is not None and old.held:
                self._held -= old.status in ACTIVE_STATUSES
            if new is not None and new.held:
                self._held += new.status in ACTIVE_STATUSES
        for task_id, task in outcome.items():
            if task is None:
                self._tasks.pop(task_id, None)
            else:
                self._tasks[task_id] = task
            if self._obstacles and (task is None or task.status is not TaskStatus.WAITING):
                self._obstacles.pop(task_id, None)

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
_FEW = 8


def _key_of(task: StoredTask) -> tuple[str, ...]:
    key = task.deduplication_key
    return () if key is None or task.status not in ACTIVE_STATUSES else (key,)


def _group_of(task: StoredTask) -> tuple[tuple[str, TaskStatus], ...]:
    return () if task.group is None else ((task.group, task.status),)


def _time_row(task: StoredTask) -> tuple[datetime, str] | None:
    at = task.next_attempt_at
    return None if at is None or not can_be_claimed(task) else (at, task.id)


def _differences(row_of: Callable[[StoredTask], Any], pairs: Replacements) -> tuple[list[Any], list[Any]]:
    """Return the rows that go and those that come; a row that stays where it is is in neither."""
    gone, come = [], []
    for old, new in pairs:
        before = None if old is None else row_of(old)
        after = None if new is None else row_of(new)
        if before != after:
            if before is not None:
                gone.append(before)
            if after is not None:
                come.append(after)
    return gone, come


def _exchange(rows: SortedList, gone: Sequence[Any], come: Sequence[Any]) -> None:
    """Take out rows that are in a list and put others in."""
    if not gone and not come:
        return
    if len(gone) == len(rows):
        rows.clear()
    else:
        for row in gone:
            rows.remove(row)
    rows.update(come)


def _exchange_parts(parts: dict[Any, SortedList], gone: Sequence[Any], come: Sequence[Any]) -> None:
    """Take rows, each given with its part, out of their lists and put others in; a list without rows goes."""
    rows_of: dict[Any, tuple[list[Any], list[Any]]] = defaultdict(lambda: ([], []))
    for part, row in gone:
        rows_of[part][0].append(row)
    for part, row in come:
        rows_of[part][1].append(row)
    for part, (out, into) in rows_of.items():
        _exchange(parts[part], out, into)
        if not parts[part]:
            del parts[part]


class _Index:
    """A sorted list of the rows that a function makes of the records, one or none of each."""

    def __init__(self, row_of: Callable[[StoredTask], Any]) -> None:
        self._row_of = row_of
        self.rows = SortedList()

    def replace(self, pairs: Replacements) -> None:
        """Change what stands here for some records."""
        _exchange(self.rows, *_differences(self._row_of, pairs))


class _Parts:
    """A sorted list for each part that a function puts records into; it gives the part and the row of a record."""

    def __init__(self, row_of: Callable[[StoredTask], tuple[Any, Any]]) -> None:
        self._row_of = row_of
        self.rows: dict[Any, SortedList] = defaultdict(SortedList)

    def replace(self, pairs: Replacements) -> None:
        """Change what stands here for some records."""
        _exchange_parts(self.rows, *_differences(self._row_of, pairs))


class _Names:
    """The ids of the records under each of the names that a function gives a record, each name once.

    Most keys have one holder and most tasks few dependents, and a few ids take less room in a tuple.
    """

    def __init__(self, names_of: Callable[[StoredTask], Collection[Hashable]]) -> None:
        self._names_of = names_of
        self.rows: dict[Hashable, tuple[str, ...] | set[str]] = {}

    def replace(self, pairs: Replacements) -> None:
        """Change what stands here for some records."""
        for old, new in pairs:
            before = () if old is None else self._names_of(old)
            after = () if new is None else self._names_of(new)
            if before is after or before == after:
                continue
            if old is not None:
                for name in before:
                    self._take_out(name, old.id)
            if new is not None:
                for name in after:
                    self._put_in(name, new.id)

    def _put_in(self, name: Hashable, task_id: str) -> None:
        found = self.rows.get(name, ())
        if isinstance(found, set):
            found.add(task_id)
        else:
            self.rows[name] = (*found, task_id) if len(found) < _FEW else {*found, task_id}

    def _take_out(self, name: Hashable, task_id: str) -> None:
        found = self.rows[name]
        if isinstance(found, set):
            found.remove(task_id)
        else:
            found = self.rows[name] = tuple(one for one in found if one != task_id)
        if not found:
            del self.rows[name]


class _Readiness:
    """Who is eligible, in ready order, as time moves in either direction.

    Tasks with a time are in one of two time indexes: `_due`, which are also in the eligible order, and `_scheduled`,
    which are not. The boundary between them is the last instant that was asked about.
    """

    def __init__(self, tasks: dict[str, StoredTask]) -> None:
        self._tasks = tasks
        self._now = _BEGINNING
        self._eligible = SortedList()
        self._eligible_by_type: dict[str, SortedList] = defaultdict(SortedList)
        self._due = SortedList()
        self._scheduled = SortedList()

    def at(self, now: datetime, types: Collection[str] | None = None) -> Iterator[tuple[Any, ...]]:
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

    def replace(self, pairs: Replacements) -> None:
        """Let go of records and take up others; those that cannot be claimed have no place here."""
        gone, come = _differences(_time_row, pairs)
        _exchange(self._due, *([row for row in rows if row[0] <= self._now] for rows in (gone, come)))
        _exchange(self._scheduled, *([row for row in rows if row[0] > self._now] for rows in (gone, come)))
        self._exchange_eligible(*_differences(self._eligible_row, pairs))

    def _eligible_row(self, task: StoredTask) -> tuple[str, Any] | None:
        return (task.type, ready_key(task)) if is_eligible(task, self._now) else None

    def _exchange_eligible(self, gone: Sequence[tuple[str, Any]], come: Sequence[tuple[str, Any]]) -> None:
        _exchange(self._eligible, [key for _, key in gone], [key for _, key in come])
        _exchange_parts(self._eligible_by_type, gone, come)

    def _move_to(self, now: datetime) -> None:
        came = list(takewhile(lambda row: row[0] <= now, self._scheduled))
        went = list(takewhile(lambda row: row[0] > now, reversed(self._due)))
        self._now = now
        if came or went:
            _exchange(self._scheduled, came, went)
            _exchange(self._due, went, came)
            self._exchange_eligible(self._keys_of(went), self._keys_of(came))

    def _keys_of(self, rows: Iterable[tuple[datetime, str]]) -> list[tuple[str, Any]]:
        tasks = (self._tasks[task_id] for _, task_id in rows)
        return [(task.type, ready_key(task)) for task in tasks]
