"""A persistent task queue with dependencies for Python programs that run in one process.

The layers, from the bottom: values (errors, clock, retry, tasks, events), decisions without I/O (`_core`), the
storage interface and the in-memory reference, the engine that talks to event loop, clock and storage (`_engine`),
and `DurableQueue` on top. Importing this package loads neither aiosqlite nor pytest: the SQLite storage is in
`durable_queue_sqlite`, the checks for adapter authors in `contract_tests`, helpers for tests in
`durable_queue.testing`.
"""

from durable_queue._engine.broadcast import Subscription
from durable_queue._engine.context import TaskContext
from durable_queue._engine.lifecycle import DrainResult, RunState
from durable_queue._fake_clock import FakeQueueClock
from durable_queue.changes import Delete, Save, Update
from durable_queue.clock import QueueClock, SystemQueueClock
from durable_queue.errors import (
    CorruptRecordError,
    DependencyCycleError,
    DependencyFailedError,
    DuplicateTaskTypeError,
    DurableQueueError,
    HandOffError,
    HandOffExpiredError,
    PayloadError,
    QueueClosedError,
    QueueInUseError,
    QueueStateError,
    SchemaTooNewError,
    StorageError,
    TaskAlreadyExistsError,
    TaskCancelledError,
    TaskExpiredError,
    TaskInterruptedError,
    TaskNotFoundError,
    TaskStateError,
    TaskTimeoutError,
    UnknownTaskTypeError,
)
from durable_queue.events import (
    EventsMissed,
    QueueEvent,
    QueueStorageFailure,
    TaskCancelled,
    TaskCompleted,
    TaskEnqueued,
    TaskFailed,
    TaskHandedOff,
    TaskProgress,
    TaskRetryScheduled,
    TaskStarted,
)
from durable_queue.graph import TaskGraph
from durable_queue.memory import MemoryQueueStorage
from durable_queue.queue import DurableQueue
from durable_queue.retry import RetryPolicy
from durable_queue.storage import QueueStorage
from durable_queue.tasks import DependencyFailurePolicy, StoredTask, TaskFailure, TaskStatus

__all__ = [
    "CorruptRecordError",
    "Delete",
    "DependencyCycleError",
    "DependencyFailedError",
    "DependencyFailurePolicy",
    "DrainResult",
    "DuplicateTaskTypeError",
    "DurableQueue",
    "DurableQueueError",
    "EventsMissed",
    "FakeQueueClock",
    "HandOffError",
    "HandOffExpiredError",
    "MemoryQueueStorage",
    "PayloadError",
    "QueueClock",
    "QueueClosedError",
    "QueueEvent",
    "QueueInUseError",
    "QueueStateError",
    "QueueStorage",
    "QueueStorageFailure",
    "RetryPolicy",
    "RunState",
    "Save",
    "SchemaTooNewError",
    "StorageError",
    "StoredTask",
    "Subscription",
    "SystemQueueClock",
    "TaskAlreadyExistsError",
    "TaskCancelled",
    "TaskCancelledError",
    "TaskCompleted",
    "TaskContext",
    "TaskEnqueued",
    "TaskExpiredError",
    "TaskFailed",
    "TaskFailure",
    "TaskGraph",
    "TaskHandedOff",
    "TaskInterruptedError",
    "TaskNotFoundError",
    "TaskProgress",
    "TaskRetryScheduled",
    "TaskStarted",
    "TaskStateError",
    "TaskStatus",
    "TaskTimeoutError",
    "UnknownTaskTypeError",
    "Update",
]
