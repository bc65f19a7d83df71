"""Every exception of the package, in one tree under `DurableQueueError`.

Facts that a program may want to act on are attributes; the message names the thing and what to do.
No message contains a payload, a result, a key or a group (S1.8).
"""

from __future__ import annotations

from collections.abc import Sequence


class DurableQueueError(Exception):
    """Base of everything that this package raises on purpose."""


class QueueStateError(DurableQueueError):
    """The queue cannot do this now: wrong run state, wrong event loop, or a call from inside a handler."""


class QueueClosedError(QueueStateError):
    """The queue was closed; make a new one over the same storage."""


class QueueInUseError(DurableQueueError):
    """Another live queue consumes this storage (S7.9); nothing was touched."""


class TaskNotFoundError(DurableQueueError, LookupError):
    """No stored task has this id.

    Attributes:
        task_id: the id that was asked for.
    """

    def __init__(self, task_id: str, message: str | None = None) -> None:
        super().__init__(message or f"no task with id {task_id!r} is stored")
        self.task_id = task_id


class TaskAlreadyExistsError(DurableQueueError, ValueError):
    """A task with this id is stored already.

    Attributes:
        task_id: the id that is taken.
    """

    def __init__(self, task_id: str) -> None:
        super().__init__(f"a task with id {task_id!r} is already stored")
        self.task_id = task_id


class TaskStateError(DurableQueueError):
    """The task's status does not allow this; the message says which status it has and what would be needed."""


class UnknownTaskTypeError(DurableQueueError, LookupError):
    """No task class or handler is registered for this type (S2.2, S5.2)."""


class DuplicateTaskTypeError(DurableQueueError, ValueError):
    """The type name or the task class is registered already."""


class PayloadError(DurableQueueError, ValueError):
    """A payload or result cannot be stored as JSON and come back equal (S2.2), or does not decode (S5.2).

    Attributes:
        path: where the offending value sits, for example ``$.items[3].price``; the value itself is never told.
        reason: what is wrong with it.
    """

    def __init__(self, message: str, path: str = "$") -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self.reason = message


class DependencyCycleError(DurableQueueError, ValueError):
    """The nodes of a graph depend on each other in a ring (S2.6).

    Attributes:
        cycle: the names on the ring, in order; each depends on the next and the last on the first.
    """

    def __init__(self, cycle: Sequence[str]) -> None:
        ring = " -> ".join([*cycle, cycle[0]])
        super().__init__(f"dependencies form a cycle: {ring}; nothing was stored")
        self.cycle = tuple(cycle)


class DependencyFailedError(DurableQueueError):
    """Recorded on a task that its policy cancelled or failed because of a dependency (S4.5)."""


class TaskCancelledError(DurableQueueError):
    """The task was cancelled on request; a handler may raise it to say so itself (S13.5)."""


class TaskInterruptedError(DurableQueueError):
    """Recorded on a task whose process ended while it ran (S7.2)."""


class TaskExpiredError(DurableQueueError):
    """Recorded on a task that had not started when its time was over (S8.1)."""


class TaskTimeoutError(DurableQueueError, TimeoutError):
    """The attempt took longer than the type's ``timeout`` (S5.7)."""


class HandOffError(DurableQueueError):
    """The report does not fit: not handed off, another reference, or failed outside (S9)."""


class HandOffExpiredError(HandOffError):
    """The deadline of a hand-off passed without a report (S9.4)."""


class StorageError(DurableQueueError):
    """The storage could not do what was asked; the adapter's own error is the cause."""


class CorruptRecordError(StorageError):
    """One stored record cannot be read (S7.3); the others can.

    Attributes:
        task_id: the record's id where it is known.
        field: the field or key that is malformed.
        reason: what is wrong with it.
    """

    def __init__(self, message: str, *, task_id: str | None = None, field: str | None = None) -> None:
        where = "record" if task_id is None else f"record {task_id!r}"
        what = "" if field is None else f", field {field!r}"
        super().__init__(f"{where}{what}: {message}")
        self.reason = message
        self.task_id = task_id
        self.field = field


class SchemaTooNewError(StorageError):
    """The file was written by a newer version of the adapter and is left as it is.

    Attributes:
        found: the schema version of the file.
        supported: the newest version that this build reads.
    """

    def __init__(self, path: str, found: int, supported: int) -> None:
        super().__init__(
            f"{path}: schema version {found} is newer than {supported}, the newest that this version reads; "
            "upgrade durable-queue to open it"
        )
        self.found = found
        self.supported = supported
