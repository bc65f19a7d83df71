"""What the queue announces, after the write that it reports (S11). Frozen values, subscribed to by class."""

from __future__ import annotations

from datetime import datetime, timedelta

import attrs

from durable_queue.tasks import TaskFailure


@attrs.frozen(kw_only=True)
class QueueEvent:
    """Base of all events.

    Attributes:
        at: when it happened by the queue's clock, aware UTC.
    """

    at: datetime


@attrs.frozen(kw_only=True)
class _TaskEvent(QueueEvent):
    """Base of the events about one task.

    Attributes:
        task_id: the task's id.
        task_type: its type name.
    """

    task_id: str
    task_type: str


@attrs.frozen(kw_only=True)
class TaskEnqueued(_TaskEvent):
    """A task was stored; not sent for a call that deduplication answered with an existing id."""


@attrs.frozen(kw_only=True)
class TaskStarted(_TaskEvent):
    """A task was claimed and its handler is about to be called.

    Attributes:
        attempt: which attempt begins, from 1.
    """

    attempt: int


@attrs.frozen(kw_only=True)
class TaskRetryScheduled(_TaskEvent):
    """An attempt failed and another one has a time.

    Attributes:
        attempt: which attempt failed, from 1.
        failure: why.
        next_attempt_at: when the next one is due.
        duration: how long the attempt took, on the monotonic clock; None where it was not measured.
    """

    attempt: int
    failure: TaskFailure
    next_attempt_at: datetime
    duration: timedelta | None = None


@attrs.frozen(kw_only=True)
class TaskCompleted(_TaskEvent):
    """A task completed.

    Attributes:
        attempt: which attempt completed, from 1.
        duration: how long it took, on the monotonic clock; None where it was not measured (outside work).
    """

    attempt: int
    duration: timedelta | None = None


@attrs.frozen(kw_only=True)
class TaskFailed(_TaskEvent):
    """A task failed for good.

    Attributes:
        attempt: how many attempts had begun.
        failure: why.
        duration: how long the last attempt took; None where it was not measured.
    """

    attempt: int
    failure: TaskFailure
    duration: timedelta | None = None


@attrs.frozen(kw_only=True)
class TaskCancelled(_TaskEvent):
    """A task was cancelled: on request, because of a dependency, or because it expired.

    Attributes:
        failure: which of these, and for a dependent the cause.
    """

    failure: TaskFailure | None = None


@attrs.frozen(kw_only=True)
class TaskHandedOff(_TaskEvent):
    """A handler returned after handing its task off to outside work.

    Attributes:
        attempt: which attempt, from 1.
        reference: what the report must name.
    """

    attempt: int
    reference: str = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class TaskProgress(_TaskEvent):
    """A running task reported how far it is.

    Attributes:
        fraction: from 0 to 1.
        message: what it is doing, or None.
    """

    fraction: float
    message: str | None = attrs.field(default=None, repr=False)


@attrs.frozen(kw_only=True)
class QueueStorageFailure(QueueEvent):
    """The storage failed the worker; the operation is tried again (S10.2).

    Attributes:
        operation: what was being done, for example ``"apply"`` or ``"get_ready"``.
        error: what the storage raised.
        traceback: where, as text.
        consecutive: how many failures in a row this is, from 1.
    """

    operation: str
    error: BaseException = attrs.field(eq=False)
    traceback: str = attrs.field(repr=False)
    consecutive: int


@attrs.frozen(kw_only=True)
class EventsMissed(QueueEvent):
    """A subscriber was too slow: events that it asked for were dropped here, oldest first (S11.1).

    Attributes:
        count: how many.
    """

    count: int
