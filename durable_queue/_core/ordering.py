"""The two orders of tasks and who is eligible for a start (S3.1, S8.1)."""

from __future__ import annotations

from datetime import datetime

from durable_queue.tasks import CLAIMABLE_STATUSES, StoredTask, TaskStatus

OrderKey = tuple[datetime, int, str]
ReadyKey = tuple[int, datetime, int, str]


def order_key(task: StoredTask) -> OrderKey:
    """Oldest first, then sequence, then id."""
    return (task.created_at, task.sequence, task.id)


def ready_key(task: StoredTask) -> ReadyKey:
    """Highest priority first, then `order_key`."""
    return (-task.priority, task.created_at, task.sequence, task.id)


def can_be_claimed(task: StoredTask) -> bool:
    """Whether a task is eligible once its time has come: pending or retryScheduled, and not held."""
    return task.status in CLAIMABLE_STATUSES and not task.held


def is_eligible(task: StoredTask, now: datetime) -> bool:
    """Whether a task may be claimed at `now`."""
    return can_be_claimed(task) and (task.next_attempt_at is None or task.next_attempt_at <= now)


def can_expire(task: StoredTask) -> bool:
    """Whether a task is one that its `expires_at` applies to: set, no attempt so far, not running or terminal."""
    return (
        task.expires_at is not None
        and task.attempts == 0
        and (task.status in CLAIMABLE_STATUSES or task.status is TaskStatus.WAITING)
    )


def is_expired(task: StoredTask, now: datetime) -> bool:
    """Whether a task has to be cancelled at `now` because it has not started in time."""
    return can_expire(task) and task.expires_at is not None and task.expires_at <= now
