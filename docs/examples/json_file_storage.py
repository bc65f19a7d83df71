"""A storage adapter that keeps all tasks in one JSON file."""
# ruff: noqa: D102 - what each method must do is written at QueueStorage

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Self

from durable_queue import QueueStorage, StoredTask, TaskAlreadyExistsError, TaskNotFoundError, TaskStatus


class JsonFileStorage(QueueStorage):
    """Reads the file once, answers from memory, and writes the whole file anew for every change."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._lock = asyncio.Lock()
        records = json.loads(self._path.read_text("utf-8")) if self._path.exists() else []
        self._tasks = {task.id: task for task in map(StoredTask.from_json, records)}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        async with self._lock:
            pass  # a write whose caller was cancelled may still be under way

    async def save(self, task: StoredTask) -> None:
        await self._change(task.id, task, known=False)

    async def update(self, task: StoredTask) -> None:
        await self._change(task.id, task, known=True)

    async def delete(self, task_id: str) -> None:
        await self._change(task_id, None)

    async def _change(self, task_id: str, task: StoredTask | None, *, known: bool | None = None) -> None:
        async def change() -> None:
            async with self._lock:
                if known is False and task_id in self._tasks:
                    raise TaskAlreadyExistsError(task_id)
                if known is True and task_id not in self._tasks:
                    raise TaskNotFoundError(task_id)
                tasks = {other: self._tasks[other] for other in self._tasks if other != task_id}
                if task is not None:
                    tasks[task_id] = task
                await asyncio.to_thread(self._write, tasks)
                self._tasks = tasks

        await asyncio.shield(asyncio.create_task(change()))

    def _write(self, tasks: dict[str, StoredTask]) -> None:
        temporary = self._path.with_name(self._path.name + ".new")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump([task.to_json() for task in tasks.values()], file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)
        if os.name == "posix":  # the new name has to be on the disk too
            folder = os.open(self._path.parent, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)

    async def get(self, task_id: str) -> StoredTask | None:
        return self._tasks.get(task_id)

    async def get_all(self) -> list[StoredTask]:
        return sorted(self._tasks.values(), key=_order)

    async def get_pending(self) -> list[StoredTask]:
        return await self.get_by_status(TaskStatus.PENDING)

    async def get_by_status(
        self, status: TaskStatus, *, limit: int | None = None, after: StoredTask | None = None
    ) -> list[StoredTask]:
        if limit is not None and limit < 1:
            raise ValueError("limit must be at least 1")
        found = self._select(lambda task: task.status is status)
        if after is not None:
            found = [task for task in found if _order(task) > _order(after)]
        return found[:limit]

    async def get_next_ready(self, now: datetime) -> StoredTask | None:
        due = [task for task in self._claimable() if (task.next_attempt_at or now) <= now]
        return min(due, key=lambda task: (-task.priority, *_order(task)), default=None)

    async def get_next_wake_at(self) -> datetime | None:
        times = [task.next_attempt_at for task in self._claimable() if task.next_attempt_at]
        return min(times, default=None)

    async def get_max_sequence(self) -> int:
        return max((task.sequence for task in self._tasks.values()), default=0)

    async def find_active_by_deduplication_key(self, key: str) -> StoredTask | None:
        holders = self._select(lambda task: task.deduplication_key == key and not task.status.is_terminal)
        return holders[0] if holders else None

    async def get_waiting_dependents(self, task_id: str) -> list[StoredTask]:
        return self._select(lambda task: task.status is TaskStatus.WAITING and task_id in task.depends_on)

    async def get_by_group(self, group: str, *, status: TaskStatus | None = None) -> list[StoredTask]:
        return self._select(lambda task: task.group == group and status in (None, task.status))

    def _select(self, matches: Callable[[StoredTask], bool]) -> list[StoredTask]:
        return sorted(filter(matches, self._tasks.values()), key=_order)

    def _claimable(self) -> list[StoredTask]:
        statuses = (TaskStatus.PENDING, TaskStatus.RETRY_SCHEDULED)
        return self._select(lambda task: task.status in statuses and not task.held)


def _order(task: StoredTask) -> tuple[datetime, int, str]:
    return (task.created_at, task.sequence, task.id)
