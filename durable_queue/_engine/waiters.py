"""Callers that wait for the end of a task (`DurableQueue.wait`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from durable_queue._core.plan import Plan
from durable_queue.clock import QueueClock
from durable_queue.errors import QueueClosedError, QueueStateError, TaskNotFoundError
from durable_queue.tasks import StoredTask


class Waiters:
    """Who waits for which task; an entry lives as long as its wait."""

    def __init__(self, clock: QueueClock) -> None:
        self._clock = clock
        self._futures: dict[str, set[asyncio.Future[StoredTask]]] = {}

    async def wait(
        self,
        task_id: str,
        timeout: timedelta | None,
        *,
        read: Callable[[str], Awaitable[StoredTask | None]],
        is_consumer: Callable[[], bool],
    ) -> StoredTask:
        """Return a task's record once it is terminal; see `DurableQueue.wait`."""
        future: asyncio.Future[StoredTask] = asyncio.get_running_loop().create_future()
        # Before the read: a step that ends the task between the two must not be missed.
        self._futures.setdefault(task_id, set()).add(future)
        timer = None
        if timeout is not None:
            timer = self._clock.call_later(timeout, lambda: _time_out(future, task_id, timeout))
        try:
            task = await read(task_id)
            if task is None:
                raise TaskNotFoundError(task_id)
            if task.status.is_terminal:
                return task
            if not is_consumer():
                raise QueueStateError(
                    "this queue runs no tasks, so nobody here would end the wait; start it first"
                )
            return await future
        finally:
            if timer is not None:
                timer.cancel()
            self._forget(task_id, future)

    def observe(self, plan: Plan) -> None:
        """Answer those who wait for what has just been written."""
        if not self._futures:
            return
        for task_id, task in plan.records.items():
            for future in self._futures.get(task_id, ()):
                if future.done():
                    continue
                if task is None:
                    future.set_exception(TaskNotFoundError(task_id, f"task {task_id!r} was deleted"))
                elif task.status.is_terminal:
                    future.set_result(task)

    def close(self) -> None:
        """End every wait; a stop does not, because the queue can be started again."""
        for futures in self._futures.values():
            for future in futures:
                if not future.done():
                    future.set_exception(QueueClosedError("the queue was closed while a task was waited for"))

    def _forget(self, task_id: str, future: asyncio.Future[StoredTask]) -> None:
        if future.done() and not future.cancelled():
            # An answer that came while the caller was leaving for another reason is not an error of anybody.
            future.exception()
        futures = self._futures[task_id]
        futures.discard(future)
        if not futures:
            del self._futures[task_id]


def _time_out(future: asyncio.Future[StoredTask], task_id: str, timeout: timedelta) -> None:
    if not future.done():
        future.set_exception(TimeoutError(f"task {task_id!r} had not ended within {timeout}"))
