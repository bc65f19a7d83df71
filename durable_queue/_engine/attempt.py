"""One attempt: its handler is called here, and its end becomes an outcome (S5)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, TypeAlias

import attrs

from durable_queue._core.failures import failure_of
from durable_queue._engine.context import TaskContext, enter_handler
from durable_queue._engine.registry import TaskType
from durable_queue._engine.threads import HandlerThreads, ThreadedExit
from durable_queue.clock import QueueClock, TimerHandle
from durable_queue.errors import (
    HandOffError,
    PayloadError,
    QueueStateError,
    TaskCancelledError,
    TaskTimeoutError,
    UnknownTaskTypeError,
)
from durable_queue.outcomes import Completed, Failed, HandedOff, Outcome, PutBack
from durable_queue.serialization import encode_result
from durable_queue.tasks import StoredTask

Report: TypeAlias = Callable[[], Outcome]
"""Makes the outcome that outside work has reported early."""


class Stopped(Enum):
    """Why the queue itself cancelled a handler."""

    TIMEOUT = "timeout"
    FORCE = "force"
    GRACE = "grace"


class Attempt:
    """A claimed task and its handler.

    Attributes:
        task: the record as it is stored; kept current by the ledger, so that an outcome needs no read-back.
        context: what the handler sees.
        outcome: how it ended; None while it runs, and for good when the program was torn down.
        is_being_written: whether the outcome is part of a write under way, so that it cannot change any more.
        early_report: what outside work has reported before the handler returned, and who waits for it.
    """

    def __init__(
        self,
        queue: object,
        task: StoredTask,
        task_type: TaskType | None,
        *,
        clock: QueueClock,
        threads: HandlerThreads,
        read_results: Callable[[], Awaitable[dict[str, Any]]],
        on_end: Callable[[Attempt], None],
    ) -> None:
        self.task = task
        self.context = TaskContext(task, read_results)
        self.outcome: Outcome | None = None
        self.is_being_written = False
        self.early_report: tuple[Report, asyncio.Future[bool]] | None = None
        self._queue = queue
        self._type = task_type
        self._clock = clock
        self._threads = threads
        self._on_end = on_end
        self._stopped: Stopped | None = None
        self._in_handler = False
        self._timer: TimerHandle | None = None
        self._began = clock.monotonic()
        self._handler = asyncio.get_running_loop().create_task(
            self._run(), name=f"durable_queue {task.type} {task.id}"
        )
        self._handler.add_done_callback(self._ended)

    @property
    def is_running(self) -> bool:
        """Whether the handler has not ended yet."""
        return not self._handler.done()

    @property
    def hand_off(self) -> tuple[str, datetime | None] | None:
        """The reference and deadline that the handler has set, or None."""
        return self.context._hand_off  # noqa: SLF001 - one room

    def request_cancellation(self, *, force: bool = False) -> None:
        """Tell the handler to stop; with `force` cancel its coroutine too (S6.1)."""
        self.context._request_cancellation()  # noqa: SLF001 - one room
        if force:
            self.stop(Stopped.FORCE)

    def stop(self, why: Stopped) -> None:
        """Cancel the handler's coroutine; a thread cannot be stopped and sees the flag (S5.7)."""
        self.context._request_cancellation()  # noqa: SLF001 - one room
        if self._stopped is None or why is Stopped.GRACE:
            self._stopped = why
        if self._type is None or not self._type.is_plain or not self._in_handler:
            self._handler.cancel()

    def tear_down(self) -> None:
        """Cancel the handler as the end of the program would (S13.5)."""
        self._handler.cancel()

    async def _run(self) -> Outcome:
        enter_handler(self._queue, self.context)
        task_type = self._type
        if task_type is None or task_type.handler is None:
            raise UnknownTaskTypeError(f"no handler is registered for the type {self.task.type!r}")
        instance = task_type.codec.decode(self.task.payload_text)
        handler = task_type.handler
        self._in_handler = True
        if task_type.is_plain:
            value = await self._threads.run(lambda: handler(instance, self.context), self._arm_timeout)
        else:
            self._arm_timeout()
            value = await handler(instance, self.context)
        self._in_handler = False
        if self.hand_off is not None:
            reference, deadline = self.hand_off
            return HandedOff(reference=reference, deadline=deadline)
        if asyncio.iscoroutine(value):
            value.close()
        return Completed(result_text=encode_result(task_type.converter, value), duration=self._elapsed())

    def conclusion(self) -> tuple[StoredTask, Outcome]:
        """Return the record that has ended, and how: what an early report says counts for a hand-off (S13.10).

        Raises:
            ValueError: the attempt has not ended.
        """
        if self.outcome is None:
            raise ValueError(f"the attempt of task {self.task.id!r} has not ended")
        if (
            isinstance(self.outcome, HandedOff)
            and self.early_report is not None
            and not self.task.cancel_requested
        ):
            # The reference stays on the record, so that a further report is told apart from a late one.
            handed_off = attrs.evolve(
                self.task, hand_off_reference=self.outcome.reference, hand_off_deadline=self.outcome.deadline
            )
            return handed_off, self.early_report[0]()
        return self.task, self.outcome

    @property
    def hands_off(self) -> bool:
        """Whether it is handed off, or will be unless its handler raises."""
        # Between the last line of the handler and the outcome lies a turn of the event loop.
        return self.hand_off is not None and (self.outcome is None or isinstance(self.outcome, HandedOff))

    @property
    def awaits_report(self) -> bool:
        """Whether a report would be an early one: the hand-off is made and its write has not begun."""
        return self.hands_off and not self.is_being_written

    def answer_early_report(self, *, written: bool) -> None:
        """Tell whoever has reported early what became of it.

        Args:
            written: whether the outcome is stored; otherwise it is given up.
        """
        if self.early_report is None or self.early_report[1].done():
            return
        answer = self.early_report[1]
        if not isinstance(self.outcome, HandedOff):
            answer.set_exception(
                HandOffError(f"the handler of task {self.task.id!r} did not return; its hand-off is void")
            )
        elif not written:
            answer.set_exception(
                QueueStateError(
                    f"the queue was stopped before the hand-off of task {self.task.id!r} could be stored"
                )
            )
        else:
            answer.set_result(not self.task.cancel_requested)

    def _arm_timeout(self) -> None:
        # Counted from the first line of the handler, which for a thread may be a while after the claim.
        if self._type is not None and self._type.timeout is not None and self.is_running:
            self._timer = self._clock.call_later(self._type.timeout, self._time_out)

    def _time_out(self) -> None:
        if self.is_running and self._stopped is None:
            self.stop(Stopped.TIMEOUT)

    def _elapsed(self) -> timedelta:
        return timedelta(seconds=max(0.0, self._clock.monotonic() - self._began))

    def _ended(self, handler: asyncio.Task[Outcome]) -> None:
        self.context._returned = True  # noqa: SLF001 - one room
        if self._timer is not None:
            self._timer.cancel()
        if handler.cancelled():
            error: BaseException | None = asyncio.CancelledError()
            # S13.5: cancelled from outside while nobody of ours asked for it: the program is being torn down.
            torn_down = self._stopped is None and handler.cancelling() > 0
        else:
            error = handler.exception()
            torn_down = isinstance(error, (KeyboardInterrupt, SystemExit))
        if isinstance(error, ThreadedExit):
            error = error.error
        try:
            if not torn_down:
                self.outcome = handler.result() if error is None else self._failed(error)
        finally:
            # Also when a function of the application leaves through the loop: the slot must not be lost.
            self._on_end(self)

    def _failed(self, error: BaseException) -> Outcome:
        if self._stopped is Stopped.GRACE:
            return PutBack()
        if self._stopped is Stopped.TIMEOUT and self._in_handler:
            limit = self._type.timeout if self._type is not None else None
            late = TaskTimeoutError(f"the attempt took longer than {limit}").with_traceback(
                error.__traceback__
            )
            if not isinstance(error, asyncio.CancelledError):
                late.__cause__ = error
            error = late
        if isinstance(error, PayloadError) and not self._in_handler:
            # A payload that does not decode, or a result that cannot be encoded: another attempt would end the same.
            return self.failed(error, may_retry=False)
        if isinstance(error, UnknownTaskTypeError) and not self._in_handler:
            return self.failed(error, may_retry=False)
        return self.failed(error)

    def failed(self, error: BaseException, *, may_retry: bool = True) -> Failed:
        """Make the outcome of an error, asking the type's options about a retry (S5.2)."""
        return failed_outcome(
            self.task,
            self._type,
            error,
            at=self._clock.now(),
            may_retry=may_retry,
            duration=self._elapsed(),
        )


def failed_outcome(
    task: StoredTask,
    task_type: TaskType | None,
    error: BaseException,
    *,
    at: datetime,
    may_retry: bool = True,
    duration: timedelta | None = None,
) -> Failed:
    """Describe a failed attempt, asking the type's options about a retry (S5.2).

    Args:
        task: the running record.
        task_type: its type; None when it is not registered.
        error: what was raised or reported.
        at: when.
        may_retry: False where the kind of failure rules a retry out.
        duration: how long the attempt took; None where it was not measured.
    """
    cancels = isinstance(error, TaskCancelledError)
    delay = None
    if cancels or task.attempts >= task.retry_policy.max_attempts:
        may_retry = False
    if may_retry and task_type is not None:
        may_retry = task_type.may_retry(error)
        delay = task_type.delay_for(error) if may_retry else None
    return Failed(
        failure=failure_of(error, at=at, attempt=task.attempts),
        may_retry=may_retry,
        delay=delay,
        cancels=cancels,
        duration=duration,
    )
