"""Retry by hand: a fresh start for a failed or cancelled task, and for the dependents that fell with it (S6.3)."""

from __future__ import annotations

from collections import defaultdict, deque

import attrs

from durable_queue._core import transitions
from durable_queue._core.admission import find_holder
from durable_queue._core.failures import is_dependency_failure
from durable_queue._core.plan import (
    BREATHE_EVERY,
    Breathe,
    Decision,
    GetDependentsOf,
    GetFacts,
    Plan,
    get_task,
)
from durable_queue._core.settlement import EDGES_PER_SLICE, Blocked, Fact, Free, judge
from durable_queue.errors import TaskNotFoundError, TaskStateError
from durable_queue.retry import RetryPolicy
from durable_queue.tasks import StoredTask, TaskStatus

REOPENABLE = frozenset({TaskStatus.FAILED, TaskStatus.CANCELLED})


def reopen(plan: Plan, task_id: str, *, retry_policy: RetryPolicy | None, dependents: bool) -> Decision[str]:
    """Reopen a task and, when asked, whatever was ended because of it, at any depth.

    Raises:
        TaskNotFoundError: the id is not stored.
        TaskStateError: the task is neither failed nor cancelled, its key is held by another active task, or a
            dependency did not complete; nothing has changed then.
    """
    task = yield from get_task(task_id)
    if task is None:
        raise TaskNotFoundError(task_id)
    if task.status not in REOPENABLE:
        raise TaskStateError(
            f"task {task_id!r} is {task.status.value}; only failed or cancelled tasks can be retried"
        )
    verdict = judge(task, (yield from _facts_of(task)))
    if isinstance(verdict, Blocked):
        state = "missing" if verdict.fact.status is None else verdict.fact.status.value
        raise TaskStateError(
            f"task {task_id!r} cannot be retried: its dependency {verdict.by!r} is {state}; retry that one first"
        )
    yield from _reopen_one(plan, task, verdict, retry_policy)
    if dependents:
        yield from _reopen_dependents(plan, task_id)
    return task_id


@attrs.define
class _Join:
    """A dependent that cannot come back yet.

    Attributes:
        task: its record.
        blocking: how many of its dependencies still block it.
    """

    task: StoredTask
    blocking: int


def _reopen_dependents(plan: Plan, task_id: str) -> Decision[None]:
    # By edges (S13.9): a dependent comes back once none of its dependencies blocks it. It is judged when it is met and,
    # if something blocked it then, when all of that has come back; in between it is counted only. A join of many
    # branches would else be judged with all of them for each that comes back.
    reopened = deque([task_id])
    met: set[str] = set()
    joins: defaultdict[str, list[_Join]] = defaultdict(list)
    while reopened:
        back = [reopened.popleft() for _ in range(min(len(reopened), BREATHE_EVERY))]
        dependents: list[StoredTask] = yield GetDependentsOf(back, without=met)
        yield Breathe()
        fallen = [task for task in dependents if _has_fallen(task)]
        met.update(task.id for task in dependents)
        for join in (join for id_ in back for join in joins.pop(id_, ())):
            join.blocking -= 1
            if join.blocking == 0:
                fallen.append(join.task)
        edges = 0
        for index, task in enumerate(fallen, 1):
            facts = yield from _facts_of(task)
            verdict = judge(task, facts)
            if isinstance(verdict, Blocked):
                blocking = [id_ for id_ in task.depends_on if facts[id_].did_not_complete]
                join = _Join(task, len(blocking))
                for id_ in blocking:
                    joins[id_].append(join)
            else:
                yield from _reopen_one(plan, task, verdict, None)
                reopened.append(task.id)
            edges += len(task.depends_on)
            if index % BREATHE_EVERY == 0 or edges >= EDGES_PER_SLICE:
                edges = 0
                yield Breathe()


def _has_fallen(task: StoredTask) -> bool:
    return task.status in REOPENABLE and is_dependency_failure(task.last_failure)


def _facts_of(task: StoredTask) -> Decision[dict[str, Fact]]:
    facts: dict[str, Fact] = {}
    for start in range(0, len(task.depends_on), EDGES_PER_SLICE):
        if start:
            yield Breathe()
        facts |= yield GetFacts(task.depends_on[start : start + EDGES_PER_SLICE])
    if task.attempts > 0:
        # It had started, so everything it needed was there; what has been deleted since counts as completed (S13.14).
        for id_, fact in facts.items():
            if fact.status is None:
                facts[id_] = Fact(TaskStatus.COMPLETED, id_)
    return facts


def _reopen_one(plan: Plan, task: StoredTask, verdict: Free, policy: RetryPolicy | None) -> Decision[None]:
    if task.deduplication_key is not None:
        holder = yield from find_holder(plan, task.deduplication_key)
        if holder is not None:
            raise TaskStateError(
                f"task {task.id!r} cannot be retried: the active task {holder!r} holds its deduplication key"
            )
    status = TaskStatus.WAITING if verdict is Free.WAIT else TaskStatus.PENDING
    plan.put(transitions.reopen(task, status, plan.now, policy))
