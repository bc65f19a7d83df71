"""Handlers that end as a test says, and ways to look at many tasks at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from durable_queue import DurableQueue, QueueEvent, TaskContext, TaskStatus
from durable_queue.testing import CollectedEvents
from tests.support import Work


class Script:
    """One handler for `Work`: what each number does is settable, what happened is recorded.

    Attributes:
        fails: how many more times each of these numbers fails.
        started: the numbers in the order of their starts.
        results: what each dependent found in `context.dependency_results()`, by number.
    """

    def __init__(self, fails: Iterable[int] = ()) -> None:
        self.fails = dict.fromkeys(fails, 1)
        self.started: list[int] = []
        self.results: dict[int, dict[str, object]] = {}
        self._gates: dict[int, asyncio.Event] = {}
        self._reached: dict[int, asyncio.Event] = {}

    def hold(self, *numbers: int) -> None:
        """Let the attempts of these numbers wait for `let_go`."""
        for number in numbers:
            self._gates[number] = asyncio.Event()
            self._reached[number] = asyncio.Event()

    def let_go(self, *numbers: int) -> None:
        """Let held attempts end; several numbers end in one turn of the loop."""
        for number in numbers:
            self._gates[number].set()

    async def reached(self, *numbers: int) -> None:
        """Return once the handlers of these held numbers are at work."""
        for number in numbers:
            await self._reached[number].wait()

    async def __call__(self, task: Work, context: TaskContext) -> int:
        """Be the handler."""
        self.started.append(task.n)
        if task.n in self._gates:
            self._reached[task.n].set()
            await self._gates[task.n].wait()
        if self.fails.get(task.n, 0):
            self.fails[task.n] -= 1
            raise ValueError("told to fail")
        self.results[task.n] = await context.dependency_results()
        return task.n


async def statuses(queue: DurableQueue, ids: Iterable[str]) -> list[str]:
    """Return the status values of tasks, in the order of their ids."""
    found = []
    for task_id in ids:
        task = await queue.get_task(task_id)
        assert task is not None
        found.append(task.status.value)
    return found


async def everything(queue: DurableQueue) -> dict[str, TaskStatus]:
    """Return the status of every task."""
    return {task.id: task.status for task in await queue.get_tasks()}


def told(events: CollectedEvents) -> list[tuple[str, str]]:
    """Return the class name and the task of every event, in order."""
    return [_of(event) for event in events]


def _of(event: QueueEvent) -> tuple[str, str]:
    return (type(event).__name__, getattr(event, "task_id", ""))
