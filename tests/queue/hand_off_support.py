"""What the tests of hand-offs share."""

from __future__ import annotations

from typing import Any

from durable_queue import DurableQueue, StoredTask, TaskContext
from durable_queue.testing import run_until_idle
from tests.support import Work


class HandsOff:
    """A handler that hands every attempt off; the references are what `hand_off` returned."""

    def __init__(self, reference: str | None = None, *, deadline: Any = None) -> None:
        self.references: list[str] = []
        self._reference = reference
        self._deadline = deadline

    async def __call__(self, task: object, context: TaskContext) -> str:
        deadline = self._deadline() if callable(self._deadline) else self._deadline
        self.references.append(context.hand_off(self._reference, deadline=deadline))
        return "is ignored"


async def handed_off(queue: DurableQueue, handler: HandsOff, **options: Any) -> str:
    """Register the handler, start the queue and return the id of a task that is handed off."""
    queue.register(Work, handler, **options)
    task_id = await queue.enqueue(Work(1))
    await queue.start()
    await run_until_idle(queue)
    return task_id


async def stored(queue: DurableQueue, task_id: str) -> StoredTask:
    task = await queue.get_task(task_id)
    assert task is not None
    return task
