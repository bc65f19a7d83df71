"""A handler for a consumer in the process of the test."""

from __future__ import annotations

from durable_queue import TaskContext
from tests.support import Work


class Notes:
    """A handler that notes the numbers of its tasks."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    async def __call__(self, task: Work, context: TaskContext) -> None:
        self.seen.append(task.n)
