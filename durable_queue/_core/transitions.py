"""Every change of a task's status, in one place.

Two rules hold. All moves between statuses are in this file: first the table of what is legal, then one total function
a move. And the file knows neither who asks nor why: whether a failed attempt may be retried, whether a dependent is
released or cancelled, is decided elsewhere; here it is only carried out, or refused without a trace.

The diagram in ``docs/explanation/states.md`` is checked against `LEGAL_MOVES` by a test.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import attrs

from durable_queue._core.failures import cancelled_failure, expired_failure
from durable_queue._json import JsonText
from durable_queue.errors import TaskStateError
from durable_queue.retry import RetryPolicy
from durable_queue.tasks import StoredTask, TaskFailure, TaskStatus

PENDING = TaskStatus.PENDING
WAITING = TaskStatus.WAITING
RUNNING = TaskStatus.RUNNING
RETRY_SCHEDULED = TaskStatus.RETRY_SCHEDULED
COMPLETED = TaskStatus.COMPLETED
FAILED = TaskStatus.FAILED
CANCELLED = TaskStatus.CANCELLED

FIRST_STATUSES = frozenset({PENDING, WAITING, CANCELLED, FAILED})
"""What a new record may be: ended at once when a dependency decides so at enqueue (S2.4)."""

LEGAL_MOVES: dict[TaskStatus, frozenset[TaskStatus]] = {
    WAITING: frozenset({PENDING, CANCELLED, FAILED}),
    PENDING: frozenset({RUNNING, CANCELLED}),
    RETRY_SCHEDULED: frozenset({RUNNING, CANCELLED}),
    # To itself: a request to cancel, or a hand-off. To pending: put back by stop, or an interruption that is free.
    RUNNING: frozenset({RUNNING, COMPLETED, FAILED, CANCELLED, RETRY_SCHEDULED, PENDING}),
    # Only by DurableQueue.retry (S6.3).
    FAILED: frozenset({PENDING, WAITING}),
    CANCELLED: frozenset({PENDING, WAITING}),
    COMPLETED: frozenset(),
}


def claim(task: StoredTask, now: datetime) -> StoredTask:
    """Start an attempt: it is counted here, and the reference of an earlier hand-off ends (S3.2, S13.10)."""
    return _move(
        task,
        RUNNING,
        now,
        attempts=task.attempts + 1,
        next_attempt_at=None,
        hand_off_reference=None,
        hand_off_deadline=None,
    )


def complete(task: StoredTask, result_text: JsonText | None, now: datetime) -> StoredTask:
    """End a running task well."""
    return _move(task, COMPLETED, now, result=result_text)


def fail(task: StoredTask, failure: TaskFailure, now: datetime) -> StoredTask:
    """End a running task, or a waiting one by its policy, as failed."""
    return _move(task, FAILED, now, last_failure=failure)


def schedule_retry(task: StoredTask, failure: TaskFailure, due: datetime, now: datetime) -> StoredTask:
    """Give a running task another attempt at a later time."""
    return _move(task, RETRY_SCHEDULED, now, last_failure=failure, next_attempt_at=due)


def cancel(task: StoredTask, now: datetime, failure: TaskFailure | None = None) -> StoredTask:
    """End a task as cancelled; without a failure given, as on request."""
    return _move(task, CANCELLED, now, last_failure=failure or cancelled_failure(task, at=now))


def expire(task: StoredTask, now: datetime) -> StoredTask:
    """Cancel a task that has not started in time (S8.1)."""
    return cancel(task, now, expired_failure(task, at=now))


def request_cancel(task: StoredTask, now: datetime) -> StoredTask:
    """Ask a running task to stop (S6.1)."""
    return _move(task, RUNNING, now, cancel_requested=True)


def hand_off(task: StoredTask, reference: str, deadline: datetime | None, now: datetime) -> StoredTask:
    """Leave a running task to outside work (S9.1)."""
    return _move(task, RUNNING, now, hand_off_reference=reference, hand_off_deadline=deadline)


def release(task: StoredTask, now: datetime) -> StoredTask:
    """Make a waiting task pending; a `run_at` that it has still counts (S4.2)."""
    return _move(task, PENDING, now)


def put_back(task: StoredTask, now: datetime, **changes: Any) -> StoredTask:
    """Make a running task ready again as if the attempt had not been; it has started, so it no longer expires."""
    return _move(task, PENDING, now, attempts=task.attempts - 1, expires_at=None, **changes)


def count_interruption(task: StoredTask) -> StoredTask:
    """Count that the process ended while a task ran (S7.2); what becomes of it is the next move."""
    return attrs.evolve(task, interruptions=task.interruptions + 1)


def reopen(
    task: StoredTask, status: TaskStatus, now: datetime, retry_policy: RetryPolicy | None = None
) -> StoredTask:
    """Give a failed or cancelled task a fresh start under the same id, order and keys (S6.3, S13.9)."""
    return _move(
        task,
        status,
        now,
        attempts=0,
        interruptions=0,
        cancel_requested=False,
        next_attempt_at=None,
        expires_at=None,
        result=None,
        retry_policy=retry_policy or task.retry_policy,
    )


def _move(task: StoredTask, status: TaskStatus, now: datetime, **changes: Any) -> StoredTask:
    if status not in LEGAL_MOVES[task.status]:
        raise TaskStateError(
            f"task {task.id!r} is {task.status.value}; it cannot become {status.value} from there"
        )
    return attrs.evolve(task, status=status, updated_at=now, **changes)
