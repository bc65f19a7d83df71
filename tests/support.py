"""What the queue tests share: task classes, a minimal adapter, and ways to wait for what has happened."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, ParamSpec, TypeVar

import attrs

from durable_queue import DurableQueue, MemoryQueueStorage, QueueStorage, StoredTask, TaskStatus
from durable_queue.testing import FlakyStorage

P = ParamSpec("P")
T = TypeVar("T")


@attrs.frozen
class Work:
    """A task with one number."""

    task_type = "work"
    n: int = 0


@attrs.frozen
class Other:
    """A task of another type."""

    task_type = "other"
    n: int = 0


@attrs.frozen
class Anything:
    """A task that carries any JSON value."""

    task_type = "anything"
    value: Any = None


async def _between_turns(method: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
    await asyncio.sleep(0)
    answer = await method(*args, **options)
    await asyncio.sleep(0)
    return answer


class ThirteenMethodStorage(QueueStorage):
    """An adapter that implements the abstract methods and nothing else, over a memory storage.

    Like one that does I/O, it lets others have a turn before and after it has done its work: whatever can come
    between two statements of the queue does.
    """

    def __init__(self) -> None:
        self.inner = MemoryQueueStorage()

    async def save(self, task: StoredTask) -> None:
        await _between_turns(self.inner.save, task)

    async def get(self, task_id: str) -> StoredTask | None:
        return await _between_turns(self.inner.get, task_id)

    async def update(self, task: StoredTask) -> None:
        await _between_turns(self.inner.update, task)

    async def delete(self, task_id: str) -> None:
        await _between_turns(self.inner.delete, task_id)

    async def get_pending(self) -> list[StoredTask]:
        return await _between_turns(self.inner.get_pending)

    async def get_by_status(
        self, status: TaskStatus, *, limit: int | None = None, after: StoredTask | None = None
    ) -> list[StoredTask]:
        return await _between_turns(self.inner.get_by_status, status, limit=limit, after=after)

    async def get_next_ready(self, now: datetime) -> StoredTask | None:
        return await _between_turns(self.inner.get_next_ready, now)

    async def get_next_wake_at(self) -> datetime | None:
        return await _between_turns(self.inner.get_next_wake_at)

    async def get_max_sequence(self) -> int:
        return await _between_turns(self.inner.get_max_sequence)

    async def get_all(self) -> list[StoredTask]:
        return await _between_turns(self.inner.get_all)

    async def find_active_by_deduplication_key(self, key: str) -> StoredTask | None:
        return await _between_turns(self.inner.find_active_by_deduplication_key, key)

    async def get_waiting_dependents(self, task_id: str) -> list[StoredTask]:
        return await _between_turns(self.inner.get_waiting_dependents, task_id)

    async def get_by_group(self, group: str, *, status: TaskStatus | None = None) -> list[StoredTask]:
        return await _between_turns(self.inner.get_by_group, group, status=status)


class YieldingStorage(FlakyStorage):
    """Passes every method on, and lets others have a turn before and after it, as a storage with I/O does."""

    async def _call(
        self, operation: str, method: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs
    ) -> T:
        return await _between_turns(super()._call, operation, method, *args, **options)


async def assert_untouched(queue: DurableQueue) -> None:
    """Say that a refused call has stored nothing and that an ordinary `Work` still runs; stops the queue."""
    assert await queue.get_tasks() == []
    await queue.start()
    task = await queue.wait(await queue.enqueue(Work(1)))
    assert task.status is TaskStatus.COMPLETED
    await queue.stop()
