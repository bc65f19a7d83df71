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


# By the identity of the storage, which may be neither hashable nor ours; the consumer keeps it alive.
_consumers: weakref.WeakValueDictionary[int, Consumer] = weakref.WeakValueDictionary()


def arrive(storage: QueueStorage, consumer: Consumer) -> None:
    """Say who consumes a storage from now on."""
    _consumers[id(storage)] = consumer


def leave(storage: QueueStorage, consumer: Consumer) -> None:
    """Say that it no longer does."""
    if _consumers.get(id(storage)) is consumer:
        del _consumers[id(storage)]


def tell(storage: QueueStorage, plan: Plan, *, by: Consumer) -> None:
    """Say what has been written, unless the consumer did it itself."""
    consumer = _consumers.get(id(storage))
    if consumer is None or consumer is by or not plan.records:
        return
    consumer.hear([task.id for task in plan.changed() if task.status is TaskStatus.WAITING])
