"""Deleting terminal tasks, one or many, and never one that is still needed (S6.4, S13.14)."""

from __future__ import annotations

from datetime import datetime

from durable_queue._core.plan import (
    Decision,
    GetDependents,
    GetPage,
    GetTasks,
    GetWaitingDependents,
    Page,
    Plan,
)
from durable_queue._core.settlement import judge_waiting, settle
from durable_queue.errors import CorruptRecordError, TaskNotFoundError, TaskStateError
from durable_queue.tasks import StoredTask, TaskStatus

PURGE_BATCH = 100


def delete(plan: Plan, task_id: str) -> Decision[None]:
    """Delete a terminal task that no waiting task depends on; also a record that cannot be read.

    What waits for an unreadable one is judged in the same step: the dependency is missing then (S4.3, S13.12).

    Raises:
        TaskNotFoundError: the id is not stored.
        TaskStateError: the task is active or needed.
    """
    try:
        found: dict[str, StoredTask] = yield GetTasks((task_id,))
    except CorruptRecordError:
        plan.remove(task_id)
        stranded: list[StoredTask] = yield GetWaitingDependents((task_id,))
        ended = yield from judge_waiting(plan, stranded)
        yield from settle(plan, ended)
        return
    task = found.get(task_id)
    if task is None:
        raise TaskNotFoundError(task_id)
    if not task.status.is_terminal:
        raise TaskStateError(f"task {task_id!r} is {task.status.value}; cancel it before deleting it")
    waiting: list[StoredTask] = yield GetWaitingDependents((task_id,))
    if waiting:
        raise TaskStateError(f"task {task_id!r} cannot be deleted: task {waiting[0].id!r} waits for it")
    plan.remove(task_id)


def purge_batch(
    plan: Plan, status: TaskStatus, *, not_after: datetime | None, after: StoredTask | None
) -> Decision[tuple[int, StoredTask | None]]:
    """Delete the next terminal tasks of a status that no active task depends on.

    Args:
        plan: takes the deletions.
        status: which status.
        not_after: only tasks last changed by then, when given.
        after: where the batch before ended.

    Returns:
        How many are deleted, and where this batch ended; None at the end.
    """
    page: Page = yield GetPage(status, PURGE_BATCH, after)
    count = 0
    for task in page.tasks:
        if task.status is not status or (not_after is not None and task.updated_at > not_after):
            continue
        dependents: list[StoredTask] = yield GetDependents(task.id)
        if all(dependent.status.is_terminal for dependent in dependents):
            plan.remove(task.id)
            count += 1
    return count, page.last
