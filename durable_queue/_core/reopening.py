"""Retry by hand: a fresh start for a failed or cancelled task, and for the dependents that fell with it (S6.3)."""

from __future__ import annotations

from collections import deque

from durable_queue._core import transitions
from durable_queue._core.admission import find_holder
from durable_queue._core.failures import is_dependency_failure
from durable_queue._core.plan import BREATHE_EVERY, Breathe, Decision, GetDependents, GetFacts, Plan, get_task
from durable_queue._core.settlement import Blocked, Fact, Free, judge
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
    verdict = yield from _judge_again(task)
    if isinstance(verdict, Blocked):
        state = "missing" if verdict.fact.status is None else verdict.fact.status.value
        raise TaskStateError(
            f"task {task_id!r} cannot be retried: its dependency {verdict.by!r} is {state}; retry that one first"
        )
    yield from _reopen_one(plan, task, verdict, retry_policy)
    if dependents:
        yield from _reopen_dependents(plan, task_id)
    return task_id


def _reopen_dependents(plan: Plan, task_id: str) -> Decision[None]:
    # By edges (S13.9): a dependent comes back once none of its dependencies blocks it. In a diamond the join is looked
    # at again each time one of its branches has come back, and comes back with the last.
    reopened = deque([task_id])
    while reopened:
        dependents: list[StoredTask] = yield GetDependents(reopened.popleft())
        yield Breathe()
        for index, dependent in enumerate(dependents, 1):
            if index % BREATHE_EVERY == 0:
                yield Breathe()
            if dependent.status not in REOPENABLE or not is_dependency_failure(dependent.last_failure):
                continue
            verdict = yield from _judge_again(dependent)
            if not isinstance(verdict, Blocked):
                yield from _reopen_one(plan, dependent, verdict, None)
                reopened.append(dependent.id)


def _judge_again(task: StoredTask) -> Decision[Free | Blocked]:
    if not task.depends_on:
        return Free.RELEASE
    facts: dict[str, Fact] = yield GetFacts(task.depends_on)
    if task.attempts > 0:
        # It had started, so everything it needed was there; what has been deleted since counts as completed (S13.14).
        facts = {
            id_: Fact(TaskStatus.COMPLETED, id_) if fact.status is None else fact
            for id_, fact in facts.items()
        }
    return judge(task, facts)


def _reopen_one(plan: Plan, task: StoredTask, verdict: Free, policy: RetryPolicy | None) -> Decision[None]:
    if task.deduplication_key is not None:
        holder = yield from find_holder(plan, task.deduplication_key)
        if holder is not None:
            raise TaskStateError(
                f"task {task.id!r} cannot be retried: the active task {holder!r} holds its deduplication key"
            )
    status = TaskStatus.WAITING if verdict is Free.WAIT else TaskStatus.PENDING
    plan.put(transitions.reopen(task, status, plan.now, policy))
