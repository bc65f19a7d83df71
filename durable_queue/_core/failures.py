"""The failures that are recorded on tasks, as text that can always be stored (S5.5)."""

from __future__ import annotations

import traceback
from datetime import datetime

from durable_queue._text import ERROR_TEXT_LIMIT, STACK_TRACE_LIMIT, storable
from durable_queue.errors import (
    DependencyFailedError,
    TaskCancelledError,
    TaskExpiredError,
    TaskInterruptedError,
)
from durable_queue.tasks import StoredTask, TaskFailure, TaskStatus

_FRAMES_KEPT = 40


def failure_of(error: BaseException, *, at: datetime, attempt: int) -> TaskFailure:
    """Describe an exception; neither it, nor its frames, nor their locals are kept.

    Args:
        error: the exception; its `__str__` may raise.
        at: when the attempt ended.
        attempt: which attempt it was.
    """
    return TaskFailure(
        error=storable(_text_of(error), ERROR_TEXT_LIMIT),
        error_type=storable(type(error).__name__, ERROR_TEXT_LIMIT),
        stack_trace=storable(trace_of(error), STACK_TRACE_LIMIT) if error.__traceback__ else None,
        failed_at=at,
        attempt=attempt,
    )


def trace_of(error: BaseException) -> str:
    """Format a traceback with the frames nearest to the error and the chain of its causes."""
    try:
        return "".join(traceback.TracebackException.from_exception(error, limit=-_FRAMES_KEPT).format())
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 - a hostile exception class must not cost the task its outcome
        return f"{type(error).__name__}: <its traceback could not be formatted>\n"


def dependency_failure(
    task: StoredTask, *, blocking: str, status: TaskStatus | None, cause: str, at: datetime
) -> TaskFailure:
    """Say which dependency ended a dependent, and what is at the root of the cascade (S4.5).

    Args:
        task: the dependent.
        blocking: the dependency that did not complete.
        status: its status; None when it is not stored.
        cause: the task at the root.
        at: when.
    """
    state = "missing" if status is None else status.value
    return TaskFailure(
        error=f"dependency {blocking!r} is {state}",
        error_type=DependencyFailedError.__name__,
        failed_at=at,
        attempt=task.attempts,
        cause_task_id=cause,
    )


def is_dependency_failure(failure: TaskFailure | None) -> bool:
    """Whether a failure was made by `dependency_failure` and not raised by a handler."""
    return (
        failure is not None
        and failure.cause_task_id is not None
        and failure.error_type == DependencyFailedError.__name__
    )


def cancelled_failure(task: StoredTask, *, at: datetime) -> TaskFailure:
    """Say that the task was cancelled on request."""
    return _plain(TaskCancelledError, "cancelled on request", task, at)


def expired_failure(task: StoredTask, *, at: datetime) -> TaskFailure:
    """Say that the task had not started by its `expires_at` (S8.1)."""
    return _plain(TaskExpiredError, f"had not started by {task.expires_at}", task, at)


def interrupted_failure(task: StoredTask, *, at: datetime) -> TaskFailure:
    """Say that the process ended while the task ran (S7.2)."""
    return _plain(
        TaskInterruptedError, f"attempt {task.attempts} was interrupted: its process ended", task, at
    )


def _plain(kind: type[Exception], text: str, task: StoredTask, at: datetime) -> TaskFailure:
    return TaskFailure(error=text, error_type=kind.__name__, failed_at=at, attempt=task.attempts)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 - S5.5: an error whose text cannot be made is stored by its type
        return f"<{type(error).__name__} whose text could not be made>"
