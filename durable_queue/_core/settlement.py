"""Dependencies: the verdict on one dependent, and the cascade of outcomes (S4).

`judge` is the truth table of S4.3; ``docs/explanation/dependencies.md`` shows it and a test compares the two. `settle`
walks a cascade level by level, without recursion, whatever its depth and width.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import TypeAlias

import attrs

from durable_queue._core import transitions
from durable_queue._core.ends import put_ended
from durable_queue._core.failures import dependency_failure, is_dependency_failure
from durable_queue._core.ordering import is_expired
from durable_queue._core.plan import (
    BREATHE_EVERY,
    Breathe,
    Decision,
    GetFacts,
    GetJudgeable,
    GetWaitingDependents,
    Plan,
)
from durable_queue.tasks import DependencyFailurePolicy, StoredTask, TaskStatus

EDGES_PER_SLICE = 1000
"""After how many dependencies a cascade lets the event loop take a turn (S13.21)."""


@attrs.frozen
class Fact:
    """What a verdict needs to know of a dependency.

    Attributes:
        status: its status; None when it is not stored.
        cause: for one that did not complete, the task at the root of its end (S4.5).
        is_readable: whether its record could be read; nobody can say how one that cannot has ended (S7.3).
    """

    status: TaskStatus | None
    cause: str
    is_readable: bool = True

    @property
    def is_active(self) -> bool:
        """Whether it may still complete."""
        return not self.is_readable or (self.status is not None and not self.status.is_terminal)

    @property
    def did_not_complete(self) -> bool:
        """Whether it failed, was cancelled, expired or is missing."""
        return self.is_readable and (
            self.status is None or (self.status.is_terminal and self.status is not TaskStatus.COMPLETED)
        )


def fact_of(task_id: str, task: StoredTask | None) -> Fact:
    """Return the fact of a dependency from its record, or of a missing one."""
    if task is None:
        return Fact(None, task_id)
    failure = task.last_failure
    if failure is not None and failure.cause_task_id is not None and is_dependency_failure(failure):
        return Fact(task.status, failure.cause_task_id)
    return Fact(task.status, task_id)


class Free(Enum):
    """The verdicts that end nothing."""

    WAIT = "wait"
    RELEASE = "release"


@attrs.frozen
class Blocked:
    """The verdict that the policy ends the dependent now.

    Attributes:
        by: the first dependency, in the order of `depends_on`, that did not complete.
        fact: its fact.
    """

    by: str
    fact: Fact


Verdict: TypeAlias = Free | Blocked


def judge(task: StoredTask, facts: Mapping[str, Fact]) -> Verdict:
    """Say what becomes of a dependent (S4.2-S4.4).

    Args:
        task: the dependent; its status does not matter.
        facts: at least one for each of its dependencies.
    """
    if task.on_dependency_failure is not DependencyFailurePolicy.RUN:
        for task_id in task.depends_on:
            if facts[task_id].did_not_complete:
                return Blocked(task_id, facts[task_id])
    if any(facts[task_id].is_active for task_id in task.depends_on):
        return Free.WAIT
    return Free.RELEASE


def end_blocked(plan: Plan, task: StoredTask, verdict: Blocked, *, new: bool = False) -> StoredTask:
    """Cancel or fail a dependent as its policy says, and announce it (S4.5)."""
    failure = dependency_failure(
        task, blocking=verdict.by, status=verdict.fact.status, cause=verdict.fact.cause, at=plan.now
    )
    if task.on_dependency_failure is DependencyFailurePolicy.FAIL:
        return put_ended(plan, transitions.fail(task, failure, plan.now), new=new)
    return put_ended(plan, transitions.cancel(task, plan.now, failure), new=new)


def end_expired(plan: Plan, task: StoredTask) -> StoredTask:
    """Cancel a task that has not started in time, and announce it (S8.1)."""
    return put_ended(plan, transitions.expire(task, plan.now))


def settle(plan: Plan, finished: Sequence[StoredTask], *, alone: bool = False) -> Decision[None]:
    """Carry the outcome of finished tasks to all that depend on them, at any depth (S4.6).

    Args:
        plan: holds the finished tasks already.
        finished: what has just become terminal.
        alone: whether nothing else in the step has become terminal. The storage can then leave out the dependents
            that have another active dependency; otherwise it might take one that has just ended for active.
    """
    completed = [task.id for task in finished if task.status is TaskStatus.COMPLETED]
    blocking = [task.id for task in finished if task.status is not TaskStatus.COMPLETED]
    while completed or blocking:
        dependents: dict[str, StoredTask] = {}
        if completed and alone:
            dependents |= {task.id: task for task in (yield GetJudgeable(completed))}
        elif completed:
            dependents |= {task.id: task for task in (yield GetWaitingDependents(completed))}
        if blocking:
            dependents |= {task.id: task for task in (yield GetWaitingDependents(blocking))}
        # Only ends that block cascade further: a released dependent has not ended.
        blocking = [task.id for task in (yield from judge_waiting(plan, dependents.values()))]
        completed = []


def judge_waiting(plan: Plan, waiting: Iterable[StoredTask]) -> Decision[list[StoredTask]]:
    """Judge waiting tasks and carry the verdicts out, for these only.

    Returns:
        Those that ended.
    """
    tasks = sorted(waiting, key=lambda task: (task.created_at, task.sequence, task.id))
    ended: list[StoredTask] = []
    stored: dict[str, Fact] = {}
    for batch in _slices(tasks):
        # Joins often share their dependencies: what one slice has read need not be read for the next.
        asked = {id_ for task in batch for id_ in _needed(plan, task) if id_ not in stored}
        if asked:
            stored |= yield GetFacts(asked)
        for task in batch:
            if is_expired(task, plan.now):
                ended.append(end_expired(plan, task))
                continue
            facts = {
                id_: stored[id_] if id_ in stored else fact_of(id_, plan.find(id_))
                for id_ in task.depends_on
                if id_ in stored or plan.knows(id_)
            }
            verdict = _early_block(task, facts) or judge(task, facts)
            if isinstance(verdict, Blocked):
                ended.append(end_blocked(plan, task, verdict))
            elif verdict is Free.RELEASE:
                plan.put(transitions.release(task, plan.now))
        yield Breathe()
    return ended


def _slices(tasks: Sequence[StoredTask]) -> Iterable[list[StoredTask]]:
    # Wide joins cost by their dependencies.
    batch: list[StoredTask] = []
    edges = 0
    for task in tasks:
        batch.append(task)
        edges += len(task.depends_on)
        if len(batch) == BREATHE_EVERY or edges >= EDGES_PER_SLICE:
            yield batch
            batch, edges = [], 0
    if batch:
        yield batch


def _needed(plan: Plan, task: StoredTask) -> Iterable[str]:
    # The plan knows the ends that brought us here; when one of them already decides, nothing need be read. Any other
    # dependency that had not completed would have ended the dependent before.
    known = {id_: fact_of(id_, plan.find(id_)) for id_ in task.depends_on if plan.knows(id_)}
    if _early_block(task, known) is not None:
        return ()
    return [id_ for id_ in task.depends_on if id_ not in known]


def _early_block(task: StoredTask, facts: Mapping[str, Fact]) -> Blocked | None:
    if task.on_dependency_failure is DependencyFailurePolicy.RUN:
        return None
    for id_ in task.depends_on:
        fact = facts.get(id_)
        if fact is not None and fact.did_not_complete:
            return Blocked(id_, fact)
    return None
