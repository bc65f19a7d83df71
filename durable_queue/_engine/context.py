"""What a handler is given besides its task (S5.8, S6.1, S9.1)."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine
from datetime import datetime
from typing import Any, TypeVar

from durable_queue._text import check_name
from durable_queue.clock import check_instant
from durable_queue.errors import HandOffError, QueueStateError
from durable_queue.tasks import StoredTask

T = TypeVar("T")


class TaskContext:
    """The running attempt, seen from its handler.

    A plain-function handler runs in a thread: it may use everything here, and awaits through `call`.

    Attributes:
        task_id: the task's id.
        attempt: which attempt this is, from 1.
        max_attempts: how many its retry policy allows in all.
        idempotency_key: the key given at enqueue, else the task's id: the same for every attempt.
        deduplication_key: the key given at enqueue, or None.
    """

    def __init__(self, task: StoredTask, read_results: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        self.task_id = task.id
        self.attempt = task.attempts
        self.max_attempts = task.retry_policy.max_attempts
        self.idempotency_key = task.idempotency_key or task.id
        self.deduplication_key = task.deduplication_key
        self._read_results = read_results
        self._loop = asyncio.get_running_loop()
        self._cancelled = asyncio.Event()
        self._cancellation_requested = task.cancel_requested
        self._hand_off: tuple[str, datetime | None] | None = None
        self._returned = False
        if task.cancel_requested:
            self._cancelled.set()

    @property
    def cancellation_requested(self) -> bool:
        """Whether somebody asked the task to stop (S6.1); a handler that works long looks at it now and then."""
        return self._cancellation_requested

    async def wait_cancelled(self) -> None:
        """Return once somebody has asked the task to stop."""
        await self._cancelled.wait()

    def hand_off(self, reference: str | None = None, *, deadline: datetime | None = None) -> str:
        """Leave the task to outside work: when the handler returns, it stays running and holds no slot (S9.1).

        Args:
            reference: what the report must name, unique per attempt; None makes ``{task_id}:{attempt}``.
            deadline: when the report must have come, aware; after it the attempt fails.

        Returns:
            The reference.

        Raises:
            HandOffError: the attempt is handed off already, or has ended.
            ValueError: the reference is no usable text, or the deadline is naive.
        """
        if self._returned:
            raise HandOffError(
                f"the attempt of task {self.task_id!r} has ended; it cannot be handed off any more"
            )
        if self._hand_off is not None:
            raise HandOffError(f"task {self.task_id!r} is handed off already")
        if reference is None:
            reference = f"{self.task_id}:{self.attempt}"
        check_name(reference, "reference")
        self._hand_off = (reference, None if deadline is None else check_instant(deadline, "deadline"))
        return reference

    async def dependency_results(self) -> dict[str, Any]:
        """Return the results of the dependencies that completed, by id (S5.8).

        A dependency that did not complete or is no longer stored is absent.
        """
        return await self._read_results()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the queue's event loop and return its result; for plain-function handlers only.

        Raises:
            QueueStateError: called from the event loop itself, where it would wait for itself: use await there.
            RuntimeError: the event loop has been closed.
        """
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            coroutine.close()
            raise QueueStateError("context.call is for plain-function handlers; await the coroutine here")
        try:
            answer = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            # The loop has been closed under a handler that went on.
            coroutine.close()
            raise
        return answer.result()

    def _request_cancellation(self) -> None:
        self._cancellation_requested = True
        self._cancelled.set()


_current: contextvars.ContextVar[tuple[object, TaskContext] | None] = contextvars.ContextVar(
    "durable_queue_current", default=None
)


def enter_handler(queue: object, context: TaskContext) -> None:
    """Mark the current context, and what it starts, as inside a handler of a queue (S13.15)."""
    _current.set((queue, context))


def refuse_inside_handler(queue: object, verb: str) -> None:
    """Refuse a call that would wait for the handler that makes it (S7.7).

    Raises:
        QueueStateError: the caller is a running handler of this queue, or a task or thread that it started.
    """
    current = _current.get()
    if current is not None and current[0] is queue and not current[1]._returned:  # noqa: SLF001 - one room
        raise QueueStateError(
            f"{verb} was called from inside a handler of the same queue, which it would wait for; "
            "enqueue a task that depends on the other one, or call it from outside"
        )


def current_task_id(queue: object) -> str | None:
    """Return the id of the task whose handler of this queue is making the call, or None."""
    current = _current.get()
    if current is None or current[0] is not queue or current[1]._returned:  # noqa: SLF001 - one room
        return None
    return current[1].task_id
