"""Time as an object that is handed in (S12).

The queue and its storages never ask the operating system for the time. Two kinds of time are kept apart: `now` is the
wall clock, which may be corrected in either direction and which due times refer to; `monotonic` only ever grows, and
every duration (a time-out, a grace, a retry delay of the storage) is measured by it (S13.7).
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LONGEST_WAIT = timedelta(days=365)
"""The longest delay of any kind (S2.2, S5.3)."""


class TimerHandle(Protocol):
    """What `QueueClock.call_at` and `QueueClock.call_later` return."""

    def cancel(self) -> None:
        """Call the timer off; a no-op once it has fired."""


class QueueClock(ABC):
    """The time that a queue lives by.

    `now` is aware UTC. Callbacks run in the queue's event loop, never inside the call that armed them.
    """

    @abstractmethod
    def now(self) -> datetime:
        """Return the wall-clock time, aware and in UTC."""

    @abstractmethod
    def monotonic(self) -> float:
        """Return seconds on a clock that never goes backwards; only differences mean anything."""

    @abstractmethod
    def call_at(self, when: datetime, callback: Callable[[], object]) -> TimerHandle:
        """Call `callback` once `now` has reached `when`, however the wall clock is corrected meanwhile."""

    @abstractmethod
    def call_later(self, delay: timedelta, callback: Callable[[], object]) -> TimerHandle:
        """Call `callback` after a duration, untouched by corrections of the wall clock."""


class SystemQueueClock(QueueClock):
    """The computer's clock.

    A timer for a wall-clock time re-reads the clock while it waits, because a single long sleep is not what the wall
    clock says after a suspend, a correction or a jump.

    Args:
        recheck: the longest time between two looks at the clock while a timer is armed, above zero and at most
            30 seconds (S12.2).
    """

    def __init__(self, *, recheck: timedelta = timedelta(seconds=1)) -> None:
        if not timedelta(0) < recheck <= timedelta(seconds=30):
            raise ValueError("recheck must be above zero and at most 30 seconds")
        self._recheck = recheck.total_seconds()

    def now(self) -> datetime:
        """Return the wall-clock time, aware and in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return `time.monotonic`."""
        return time.monotonic()

    def call_at(self, when: datetime, callback: Callable[[], object]) -> TimerHandle:
        """Call `callback` in the running loop once the wall clock has reached `when`."""
        return _WallTimer(self, check_instant(when, "when"), callback, self._recheck)

    def call_later(self, delay: timedelta, callback: Callable[[], object]) -> TimerHandle:
        """Call `callback` in the running loop after a duration."""
        return asyncio.get_running_loop().call_later(max(0.0, delay.total_seconds()), callback)


class _WallTimer:
    """A timer of `SystemQueueClock`: sleeps in short pieces until the wall clock says it is time."""

    def __init__(
        self, clock: QueueClock, when: datetime, callback: Callable[[], object], recheck: float
    ) -> None:
        self._clock = clock
        self._when = when
        self._callback = callback
        self._recheck = recheck
        self._handle: asyncio.Handle = asyncio.get_running_loop().call_soon(self._look)

    def cancel(self) -> None:
        self._handle.cancel()

    def _look(self) -> None:
        left = (self._when - self._clock.now()).total_seconds()
        if left <= 0:
            self._callback()
        else:
            # Half a millisecond more, so that a loop whose timers fire a hair early does not look twice.
            self._handle = asyncio.get_running_loop().call_later(
                min(left + 0.0005, self._recheck), self._look
            )


def check_instant(value: object, what: str) -> datetime:
    """Check that an instant is an aware datetime and turn it to UTC (S1.7).

    Raises:
        TypeError: it is no datetime.
        ValueError: it is naive, or out of range in UTC.
    """
    if not isinstance(value, datetime):
        raise TypeError(f"{what} must be a datetime, not {type(value).__name__}")
    if value.tzinfo is UTC:
        return value
    if value.utcoffset() is None:
        raise ValueError(
            f"{what} is a naive datetime; give it a time zone, for example datetime.now(timezone.utc)"
        )
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{what} is out of the range of datetimes in UTC") from None


def later(instant: datetime, delay: timedelta) -> datetime:
    """Return `instant + delay`, at most the last instant there is."""
    try:
        return instant + delay
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)
