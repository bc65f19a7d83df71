"""Queues of one program over one storage object: the one that consumes hears what the others store (S13.6).

A storage notices what other connections write, not what comes through itself. So it is said here, in memory: a task
that another queue object has enqueued would otherwise wait for the next thing that happens.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Protocol

from durable_queue._core.plan import Plan
from durable_queue.storage import QueueStorage
from durable_queue.tasks import TaskStatus


class Consumer(Protocol):
    """The queue that runs the tasks of a storage."""

    def hear(self, waiting: Sequence[str]) -> None:
        """Take in that others have written; `waiting` are the waiting tasks among it."""


def arrive(storage: QueueStorage, consumer: Consumer) -> None:
    """Say who consumes a storage object from now on."""
    # Weakly: a queue that is dropped without a stop must not live on in its storage.
    storage.consumed_by = weakref.ref(consumer)


def leave(storage: QueueStorage, consumer: Consumer) -> None:
    """Say that it no longer does."""
    if storage.consumed_by is not None and storage.consumed_by() in (consumer, None):
        storage.consumed_by = None


def tell(storage: QueueStorage, plan: Plan, *, by: Consumer) -> None:
    """Say what has been written, unless the consumer did it itself."""
    consumer: Consumer | None = None if storage.consumed_by is None else storage.consumed_by()
    if consumer is None or consumer is by or not plan.records:
        return
    consumer.hear([task.id for task in plan.changed() if task.status is TaskStatus.WAITING])
