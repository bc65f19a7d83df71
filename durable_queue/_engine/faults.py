"""Failures of the storage met by the worker: reported, logged without flooding, waited out (S10.1, S10.2)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from durable_queue._core.failures import trace_of
from durable_queue._engine.view import StorageReadError
from durable_queue._text import STACK_TRACE_LIMIT, storable
from durable_queue.clock import QueueClock, TimerHandle
from durable_queue.events import QueueEvent, QueueStorageFailure

logger = logging.getLogger("durable_queue")


class Faults:
    """Counts failures in a row and says when to try again.

    Args:
        clock: what the delay is measured by.
        delay: how long to wait after a failure.
        emit: announces each failure.
    """

    def __init__(self, clock: QueueClock, delay: timedelta, emit: Callable[[QueueEvent], None]) -> None:
        self.on_over: Callable[[], object] = lambda: None
        self._clock = clock
        self._delay = delay
        self._emit = emit
        self._consecutive = 0
        self._is_writing = False
        self._backing_off: TimerHandle | None = None

    @property
    def is_backing_off(self) -> bool:
        """Whether the worker has to wait before it asks the storage again."""
        return self._backing_off is not None

    @property
    def delay(self) -> timedelta:
        """How long to wait after a failure."""
        return self._delay

    def report(
        self, operation: str, error: BaseException, failures: int = 0, *, is_write: bool = False
    ) -> None:
        """Announce a failure, and log the first and then ever fewer of a row.

        Args:
            operation: what was being done.
            error: what the storage raised.
            failures: how often this very write has failed; it counts on while others succeed in between.
            is_write: whether a write failed, so that a read that succeeds says nothing.
        """
        if isinstance(error, StorageReadError):
            operation, error = error.operation, error.error
        self._is_writing = is_write
        self._consecutive = max(self._consecutive + 1, failures)
        self.announce(operation, error, self._consecutive)
        # 1, 2, 4, 8, ...: an outage of a day leaves seventeen lines.
        if self._consecutive & (self._consecutive - 1) == 0:
            logger.warning(
                "the storage failed in %s with %s (%d in a row); trying again every %s s",
                operation,
                type(error).__name__,
                self._consecutive,
                self._delay.total_seconds(),
            )

    def announce(self, operation: str, error: BaseException, consecutive: int = 1) -> None:
        """Emit a QueueStorageFailure."""
        trace = storable(trace_of(error), STACK_TRACE_LIMIT)
        _forget_frames(error)
        self._emit(
            QueueStorageFailure(
                at=self._clock.now(),
                operation=operation,
                error=error,
                traceback=trace,
                consecutive=consecutive,
            )
        )

    def clear(self, *, wrote: bool, quiet: bool) -> None:
        """Note that the storage works.

        Args:
            wrote: whether it has written something, and not only answered.
            quiet: whether there is still something that it refuses to write.
        """
        if self._consecutive and (wrote or not self._is_writing):
            if not quiet:
                logger.info("the storage works again after %d failures", self._consecutive)
            self._consecutive = 0

    def back_off(self, error: BaseException) -> None:
        """Report a failed read, and keep the worker from the storage for the delay; public calls go on."""
        self.report("read", error)
        if self._backing_off is None:
            self._backing_off = self._clock.call_later(self._delay, self._over)

    def reset(self) -> None:
        """Forget a back-off, when the queue stops."""
        if self._backing_off is not None:
            self._backing_off.cancel()
            self._backing_off = None

    async def wait(self) -> None:
        """Wait for the delay."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self._clock.call_later(self._delay, partial(_set, done))
        try:
            await done
        finally:
            timer.cancel()

    def _over(self) -> None:
        self._backing_off = None
        self.on_over()


def _forget_frames(error: BaseException) -> None:
    # The event outlives the call: the frames, and the locals in them, must not.
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        link = left.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            link.__traceback__ = None
            left += [link.__cause__, link.__context__]


def _set(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
