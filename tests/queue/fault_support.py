"""Storages that refuse single records or give one head at a time, and a clock that goes on while a storage fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import ClassVar

from durable_queue import (
    DurableQueue,
    FakeQueueClock,
    MemoryQueueStorage,
    QueueStorage,
    QueueStorageFailure,
    Save,
    StorageError,
    StoredTask,
    TaskContext,
    TaskStatus,
    Update,
)
from durable_queue.storage import Change
from tests.support import ThirteenMethodStorage, Work

SECOND = timedelta(seconds=1)
Refusal = Callable[[StoredTask], bool]


class RefusingMemory(MemoryQueueStorage):
    """An atomic storage that refuses every write with a record for which `refuses` is true."""

    refuses: Refusal | None = None

    async def save(self, task: StoredTask) -> None:
        self._check_refusal([Save(task)])
        await super().save(task)

    async def update(self, task: StoredTask) -> None:
        self._check_refusal([Update(task)])
        await super().update(task)

    async def apply(self, changes: Sequence[Change]) -> None:
        self._check_refusal(changes)
        await super().apply(changes)

    def _check_refusal(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if isinstance(change, (Save, Update)) and self.refuses is not None and self.refuses(change.task):
                raise StorageError("a record was refused")


class OneHead(RefusingMemory):
    """An atomic storage that tells of one ready task at a time."""

    async def get_ready(
        self, now: datetime, limit: int, *, types: Collection[str] | None = None
    ) -> list[StoredTask]:
        return await QueueStorage.get_ready(self, now, limit, types=types)


class DefaultHead(RefusingMemory):
    """The same, by leaving the default in place."""

    get_ready = QueueStorage.get_ready  # type: ignore[assignment]  # taken from the base on purpose


class RefusingThirteen(ThirteenMethodStorage):
    """An adapter of thirteen methods that refuses every write with a record for which `refuses` is true."""

    atomic: ClassVar[bool] = False
    refuses: Refusal | None = None

    async def save(self, task: StoredTask) -> None:
        self._check_refusal(task)
        await super().save(task)

    async def update(self, task: StoredTask) -> None:
        self._check_refusal(task)
        await super().update(task)

    def _check_refusal(self, task: StoredTask) -> None:
        if self.refuses is not None and self.refuses(task):
            raise StorageError("a record was refused")


def ends_of(task_id: str) -> Refusal:
    """Refuse the completion of a task."""
    return lambda task: task.id == task_id and task.status is TaskStatus.COMPLETED


def starts_of(task_id: str) -> Refusal:
    """Refuse the claim of a task."""
    return lambda task: task.id == task_id and task.status is TaskStatus.RUNNING


REFUSING = [RefusingMemory, DefaultHead, RefusingThirteen]


@asynccontextmanager
async def time_goes_on(
    queue: DurableQueue, clock: FakeQueueClock
) -> AsyncIterator[list[QueueStorageFailure]]:
    """Let a second pass after every failure of the storage, while a block runs; collects the failures."""
    failures: list[QueueStorageFailure] = []

    async def follow() -> None:
        with queue.subscribe(QueueStorageFailure, buffer=100_000) as events:
            async for event in events:
                assert isinstance(event, QueueStorageFailure)
                failures.append(event)
                clock.advance(SECOND)

    following = asyncio.create_task(follow())
    await asyncio.sleep(0)
    try:
        yield failures
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


class Counting:
    """A handler that counts its starts by number and fails as often as it is told."""

    def __init__(self, fails: dict[int, int] | None = None) -> None:
        self.starts: list[int] = []
        self._fails = dict(fails or {})

    async def __call__(self, task: Work, context: TaskContext) -> int:
        self.starts.append(task.n)
        if self._fails.get(task.n, 0):
            self._fails[task.n] -= 1
            raise ValueError("told to fail")
        return task.n


async def status_of(queue: DurableQueue, task_id: str) -> TaskStatus:
    """Return the status of a stored task."""
    task = await queue.get_task(task_id)
    assert task is not None
    return task.status
