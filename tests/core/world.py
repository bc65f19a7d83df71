"""A world of records in a dict, and answers to the reads of a decision: the core needs neither storage nor loop.

Written from the docstrings of the requests, and as stingy as they allow: whatever a storage may leave out is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs

from durable_queue import DependencyFailurePolicy, Save, StoredTask, TaskStatus, Update
from durable_queue._core import plan as asks
from durable_queue._core.plan import Plan
from durable_queue._core.settlement import Fact, fact_of

CANCEL, FAIL, RUN = DependencyFailurePolicy.CANCEL, DependencyFailurePolicy.FAIL, DependencyFailurePolicy.RUN
POLICIES = (CANCEL, FAIL, RUN)
TERMINAL = (TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED)
NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
EARLIER = NOW - timedelta(hours=1)


Edges = dict[str, tuple[str, ...]]
Policies = dict[str, DependencyFailurePolicy]
Ended = dict[str, str]


def record(task_id: str, *depends_on: str, **fields: Any) -> StoredTask:
    """Make a record: waiting when it depends on something, else pending."""
    fields.setdefault("status", TaskStatus.WAITING if depends_on else TaskStatus.PENDING)
    fields.setdefault("created_at", EARLIER)
    return StoredTask(id=task_id, type="work", depends_on=depends_on, **fields)


class World:
    """Stored records, and how decisions breathed.

    Attributes:
        stored: the records by id.
        breaths: how often a decision let the loop have a turn.
        longest_run: the largest number of reads between two of those.
    """

    def __init__(self, *records: StoredTask) -> None:
        self.stored = {task.id: task for task in records}
        self.breaths = 0
        self.longest_run = 0
        self._run = 0

    def run(self, decision: Any, plan: Plan) -> Any:
        """Run a decision to its end and return what it returns; nothing is stored."""
        answer: Any = None
        while True:
            try:
                request = decision.send(answer)
            except StopIteration as stop:
                return stop.value
            self._run = 0 if isinstance(request, asks.Breathe) else self._run + 1
            self.longest_run = max(self.longest_run, self._run)
            answer = self._answer(request, plan)

    def write(self, plan: Plan) -> None:
        """Store what a plan has decided."""
        for change in plan.changes():
            self.write_one(change)

    def write_one(self, change: Any) -> None:
        """Carry out one change, strictly."""
        if isinstance(change, Save):
            assert change.task.id not in self.stored
            self.stored[change.task.id] = change.task
        elif isinstance(change, Update):
            assert change.task.id in self.stored
            self.stored[change.task.id] = change.task
        else:
            self.stored.pop(change.task_id, None)

    def statuses(self) -> dict[str, str]:
        """Return the status of every record, as its name in lower case."""
        return {task_id: task.status.name.lower() for task_id, task in self.stored.items()}

    def _answer(self, request: Any, plan: Plan) -> Any:
        current = {**self.stored, **plan.records}
        tasks = [task for task in current.values() if task is not None]
        match request:
            case asks.Breathe():
                self.breaths += 1
                return None
            case asks.GetTasks(ids):
                return {task.id: task for task in tasks if task.id in ids}
            case asks.GetFacts(ids):
                return {task_id: fact_of(task_id, current.get(task_id)) for task_id in ids}
            case asks.FindHolder(key):
                holders = [t for t in tasks if t.deduplication_key == key and t.status not in TERMINAL]
                return min(holders, key=in_order, default=None)
            case asks.GetWaitingDependents(ids):
                return _waiting(tasks, ids)
            case asks.GetJudgeable(ids):
                return [
                    task
                    for task in _waiting(tasks, ids)
                    if task.id in plan.records or not self._has_other_active(task, ids)
                ]
            case asks.GetDependents(task_id):
                return sorted((task for task in tasks if task_id in task.depends_on), key=in_order)
            case asks.GetDependentsOf(ids, without):
                found = [t for t in tasks if not set(ids).isdisjoint(t.depends_on) and t.id not in without]
                return sorted(found, key=in_order)
            case asks.GetGroup(group, status):
                members = [t for t in tasks if t.group == group and status in (None, t.status)]
                return sorted(members, key=in_order)
            case asks.GetPage(status, limit, after):
                page = sorted((t for t in self.stored.values() if t.status is status), key=in_order)
                page = [t for t in page if after is None or in_order(t) > in_order(after)][:limit]
                now = [current[t.id] for t in page]
                return asks.Page([t for t in now if t is not None], page[-1] if page else None)
            case asks.GetReady(limit, without):
                ready = [t for t in tasks if _is_ready(t, plan.now) and t.id not in without]
                return sorted(ready, key=lambda t: (-t.priority, *in_order(t)))[:limit]
            case asks.GetExpired(limit):
                return [t for t in tasks if _is_overdue(t, plan.now)][:limit]
            case asks.GetMaxSequence():
                return max((task.sequence for task in self.stored.values()), default=0)
        raise AssertionError(f"unknown request {request!r}")

    def _has_other_active(self, task: StoredTask, ids: Iterable[str]) -> bool:
        # As the storage knows it: it has not seen the plan.
        others = [self.stored.get(other) for other in task.depends_on if other not in ids]
        return any(other is not None and other.status not in TERMINAL for other in others)


def expected_status(name: str, edges: Edges, policies: Policies, ended: Ended) -> str:
    """S4.1-S4.4: what a task is, given how those that ran, or were cancelled by the user, have ended."""
    if name in ended:
        return ended[name]
    states = [expected_status(dependency, edges, policies, ended) for dependency in edges[name]]
    bad = [state for state in states if state in ("failed", "cancelled")]
    if bad and policies[name] is CANCEL:
        return "cancelled"
    if bad and policies[name] is FAIL:
        return "failed"
    if all(state in ("completed", "failed", "cancelled") for state in states):
        return "pending"
    return "waiting"


def in_order(task: StoredTask) -> tuple[datetime, int, str]:
    """Oldest first, then sequence, then id."""
    return (task.created_at, task.sequence, task.id)


def facts(**statuses: TaskStatus | None) -> dict[str, Fact]:
    """Make the facts of dependencies that ended by themselves."""
    return {task_id: Fact(status, task_id) for task_id, status in statuses.items()}


def stranded(stored: Mapping[str, StoredTask]) -> Iterator[str]:
    """Yield the waiting tasks whose verdict is due by S4.2 and S4.3."""
    for task in stored.values():
        if task.status is not TaskStatus.WAITING:
            continue
        states = [stored[d].status if d in stored else None for d in task.depends_on]
        ended = [state for state in states if state is None or state in TERMINAL]
        bad = [state for state in ended if state is not TaskStatus.COMPLETED]
        if len(ended) == len(states) or (bad and task.on_dependency_failure is not RUN):
            yield task.id


def plan_over(**records: StoredTask) -> Plan:
    """Make a plan that has changed some records."""
    plan = Plan(NOW)
    for task in records.values():
        plan.put(task)
    return plan


def evolved(task: StoredTask, **fields: Any) -> StoredTask:
    """Return a record with other fields."""
    return attrs.evolve(task, **fields)


def _waiting(tasks: Iterable[StoredTask], ids: Iterable[str]) -> list[StoredTask]:
    wanted = set(ids)
    found = [t for t in tasks if t.status is TaskStatus.WAITING and wanted & set(t.depends_on)]
    return sorted(found, key=in_order)


def _is_ready(task: StoredTask, now: datetime) -> bool:
    claimable = task.status in (TaskStatus.PENDING, TaskStatus.RETRY_SCHEDULED) and not task.held
    return claimable and (task.next_attempt_at is None or task.next_attempt_at <= now)


def _is_overdue(task: StoredTask, now: datetime) -> bool:
    unstarted = task.attempts == 0 and task.status not in (*TERMINAL, TaskStatus.RUNNING)
    return unstarted and task.expires_at is not None and task.expires_at <= now
