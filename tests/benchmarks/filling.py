"""Files with many tasks in them, made fast and through public names only."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, Final

import attrs

from durable_queue import DurableQueue, MemoryQueueStorage, QueueStorage, Save, StoredTask, TaskStatus
from durable_queue_sqlite import SqliteQueueStorage

TEXT: Final = "x" * 89
"""Makes a payload of 100 bytes."""

BEGAN: Final = datetime(2024, 1, 1, tzinfo=UTC)
"""When the first of the tasks in a file was created."""

NOW: Final = BEGAN + timedelta(days=30)
"""After all of them, and after the times of those that are due."""

LATER: Final = NOW + timedelta(days=36_500)
"""The time of those that are not due, also for a queue that lives by the computer's clock."""

_ROWS_PER_WRITE = 5_000

Shape = Callable[[int], Iterable[StoredTask]]
"""Makes so many tasks, and perhaps some others that go with them."""


@attrs.frozen
class Job:
    """A task with a payload of 100 bytes."""

    task_type = "job"
    text: str = TEXT


@attrs.frozen
class Other:
    """The same under another type."""

    task_type = "other"
    text: str = TEXT


def id_of(number: int) -> str:
    """Return the id of a task by its number; spread over the index as random ones are."""
    return hashlib.blake2b(number.to_bytes(8), digest_size=16).hexdigest()


def record(number: int, **fields: Any) -> StoredTask:
    """Return a task as a queue would have stored it, pending unless a field says otherwise."""
    return StoredTask(
        id=id_of(number),
        type=fields.pop("type", "job"),
        payload={"text": TEXT},
        created_at=BEGAN + timedelta(milliseconds=number),
        sequence=number,
        **fields,
    )


def ready(count: int, *, first: int = 1, **fields: Any) -> Iterable[StoredTask]:
    """Make tasks that are ready."""
    return (record(number, **fields) for number in range(first, first + count))


def finished(count: int, *, first: int = 1) -> Iterable[StoredTask]:
    """Make tasks that have completed."""
    return ready(count, first=first, status=TaskStatus.COMPLETED, attempts=1, result="done", updated_at=NOW)


async def put(storage: QueueStorage, tasks: Iterable[StoredTask]) -> None:
    """Store tasks, many in one write."""
    left = iter(tasks)
    while batch := [Save(task) for task in islice(left, _ROWS_PER_WRITE)]:
        await storage.apply(batch)


async def make_file(path: Path, tasks: Iterable[StoredTask]) -> Path:
    """Store tasks in a new file and close it."""
    # What is acknowledged need not be on the disk: nothing is measured yet.
    async with SqliteQueueStorage(path, synchronous="NORMAL") as storage:
        await put(storage, tasks)
    _bring_to_disk(path)
    return path


def copy(path: Path, name: str) -> Path:
    """Copy a closed file beside itself, so that a measurement may change it."""
    copied = path.with_name(name)
    shutil.copyfile(path, copied)
    _bring_to_disk(copied)
    return copied


def remove(path: Path) -> None:
    """Remove a closed file and what belongs to it."""
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


def _bring_to_disk(path: Path) -> None:
    # A measurement that follows must not pay for it.
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def storage_of(kind: str, folder: Path) -> SqliteQueueStorage | MemoryQueueStorage:
    """Return an empty storage of a kind, `sqlite` or `memory`."""
    return SqliteQueueStorage(folder / "queue.db") if kind == "sqlite" else MemoryQueueStorage()


async def nothing(task: object, context: object) -> None:
    """Do nothing: the handler of most measurements."""


def queue_over(storage: QueueStorage, *, slots: int = 1) -> DurableQueue:
    """Return a queue that does nothing with jobs."""
    queue = DurableQueue(storage, max_concurrent_tasks=slots)
    queue.register(Job, nothing)
    return queue
