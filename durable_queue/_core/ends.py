"""A record that has ended goes into the plan together with its announcement."""

from __future__ import annotations

from datetime import timedelta

from durable_queue._core.plan import Plan
from durable_queue.events import TaskCancelled, TaskCompleted, TaskFailed
from durable_queue.tasks import StoredTask, TaskStatus


def put_ended(
    plan: Plan, task: StoredTask, *, duration: timedelta | None = None, new: bool = False
) -> StoredTask:
    """Put a terminal record into a plan, and the event that tells how it ended.

    Args:
        plan: takes both.
        task: the record, completed, failed or cancelled.
        duration: how long its last attempt took; None where it was not measured.
        new: whether it is not stored yet.

    Returns:
        The record.
    """
    plan.put(task, new=new)
    if task.status is TaskStatus.COMPLETED:
        plan.events.append(
            TaskCompleted(
                task_id=task.id, task_type=task.type, at=plan.now, attempt=task.attempts, duration=duration
            )
        )
    elif task.status is TaskStatus.FAILED and task.last_failure is not None:
        plan.events.append(
            TaskFailed(
                task_id=task.id,
                task_type=task.type,
                at=plan.now,
                attempt=task.attempts,
                failure=task.last_failure,
                duration=duration,
            )
        )
    else:
        plan.events.append(
            TaskCancelled(task_id=task.id, task_type=task.type, at=plan.now, failure=task.last_failure)
        )
    return task
