"""Every change of a task's status, in one place.

Two rules hold. All moves between statuses are in this file: first the table of what is legal, then one total function
a move. And the file knows neither who asks nor why: whether a failed attempt may be retried, whether a dependent is
released or cancelled, is decided elsewhere; here it is only carried out, or refused without a trace.

The diagram in ``docs/explanation/states.md`` is checked against `MOVES` by a test.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from durable_queue._core.copying import changed
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

_ENDED_BADLY = frozenset({FAILED, CANCELLED})

MOVES: dict[str, tuple[frozenset[TaskStatus], frozenset[TaskStatus]]] = {
    "claim": (frozenset({PENDING, RETRY_SCHEDULED}), frozenset({RUNNING})),
    "complete": (frozenset({RUNNING}), frozenset({COMPLETED})),
    "fail": (frozenset({RUNNING, WAITING}), frozenset({FAILED})),
    "schedule_retry": (frozenset({RUNNING}), frozenset({RETRY_SCHEDULED})),
    "cancel": (frozenset({WAITING, PENDING, RETRY_SCHEDULED, RUNNING}), frozenset({CANCELLED})),
    "expire": (frozenset({WAITING, PENDING, RETRY_SCHEDULED}), frozenset({CANCELLED})),
    "request_cancel": (frozenset({RUNNING}), frozenset({RUNNING})),
    "hand_off": (frozenset({RUNNING}), frozenset({RUNNING})),
    "release": (frozenset({WAITING}), frozenset({PENDING})),
    "put_back": (frozenset({RUNNING}), frozenset({PENDING})),
    "reopen": (_ENDED_BADLY, frozenset({PENDING, WAITING})),
}
"""For each function below, the statuses that it starts from and those that it leads to."""

LEGAL_MOVES: dict[TaskStatus, frozenset[TaskStatus]] = {
    status: frozenset().union(*(after for before, after in MOVES.values() if status in before))
    for status in TaskStatus
}
"""For each status, where a task can go from there; nowhere from completed."""


def claim(task: StoredTask, now: datetime) -> StoredTask:
    """Start an attempt: it is counted here, and the reference of an earlier hand-off ends (S3.2, S13.10)."""
    return _move(
        "claim",
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
    return _move("complete", task, COMPLETED, now, result_text=result_text)


def fail(task: StoredTask, failure: TaskFailure, now: datetime) -> StoredTask:
    """End a running task, or a waiting one by its policy, as failed."""
    return _move("fail", task, FAILED, now, last_failure=failure)


def schedule_retry(task: StoredTask, failure: TaskFailure, due: datetime, now: datetime) -> StoredTask:
    """Give a running task another attempt at a later time."""
    return _move("schedule_retry", task, RETRY_SCHEDULED, now, last_failure=failure, next_attempt_at=due)


def cancel(task: StoredTask, now: datetime, failure: TaskFailure | None = None) -> StoredTask:
    """End a task as cancelled; without a failure given, as on request."""
    return _move("cancel", task, CANCELLED, now, last_failure=failure or cancelled_failure(task, at=now))


def expire(task: StoredTask, now: datetime) -> StoredTask:
    """Cancel a task that has not started in time (S8.1)."""
    return _move("expire", task, CANCELLED, now, last_failure=expired_failure(task, at=now))


def request_cancel(task: StoredTask, now: datetime) -> StoredTask:
    """Ask a running task to stop (S6.1)."""
    return _move("request_cancel", task, RUNNING, now, cancel_requested=True)


def hand_off(task: StoredTask, reference: str, deadline: datetime | None, now: datetime) -> StoredTask:
    """Leave a running task to outside work (S9.1)."""
    return _move("hand_off", task, RUNNING, now, hand_off_reference=reference, hand_off_deadline=deadline)


def release(task: StoredTask, now: datetime) -> StoredTask:
    """Make a waiting task pending; a `run_at` that it has still counts (S4.2)."""
    return _move("release", task, PENDING, now)


def put_back(task: StoredTask, now: datetime, **changes: Any) -> StoredTask:
    """Make a running task ready again as if the attempt had not been; it has started, so it no longer expires."""
    return _move("put_back", task, PENDING, now, attempts=task.attempts - 1, expires_at=None, **changes)


def count_interruption(task: StoredTask) -> StoredTask:
    """Count that the process ended while a task ran (S7.2); what becomes of it is the next move."""
    return changed(task, interruptions=task.interruptions + 1)


def reopen(
    task: StoredTask, status: TaskStatus, now: datetime, retry_policy: RetryPolicy | None = None
) -> StoredTask:
    """Give a failed or cancelled task a fresh start under the same id, order and keys (S6.3, S13.9)."""
    return _move(
        "reopen",
        task,
        status,
        now,
        attempts=0,
        interruptions=0,
        cancel_requested=False,
        next_attempt_at=None,
        expires_at=None,
        result_text=None,
        retry_policy=retry_policy or task.retry_policy,
    )


def _move(move: str, task: StoredTask, status: TaskStatus, now: datetime, **changes: Any) -> StoredTask:
    before, after = MOVES[move]
    if task.status not in before or status not in after:
        raise TaskStateError(
            f"task {task.id!r} is {task.status.value}; {move} cannot make it {status.value} from there"
        )
    return changed(task, status=status, updated_at=now, **changes)
