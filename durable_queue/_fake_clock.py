"""A clock that stands still until a test moves it; `durable_queue.testing` is its public home."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from datetime import UTC, datetime, timedelta

from durable_queue.clock import QueueClock, TimerHandle, check_instant

FAKE_START = datetime(2030, 1, 1, tzinfo=UTC)
"""What a `FakeQueueClock` shows unless it is told otherwise."""

_ZERO = timedelta(0)


class FakeQueueClock(QueueClock):
    """A clock that moves only when a test moves it (S12.3, S13.7).

    `advance` lets time pass: the wall clock and the monotonic clock move together, and every timer that
    becomes due fires at its own time. `set` corrects the wall clock alone, in either direction, as somebody
    who changes the computer's clock does.

    A timer fires in the event loop in which it was armed. One that is due when it is armed fires at the
    loop's next turn, or where no loop is running at the next `advance` or `set`.

    Args:
        start: the first wall-clock time, aware; 2030-01-01T00:00:00 UTC by default.
    """

    def __init__(self, start: datetime | None = None) -> None:
        self._now = FAKE_START if start is None else check_instant(start, "start")
        self._elapsed = _ZERO
        self._timers: dict[_Timer, None] = {}
        self._moves = 0

    def now(self) -> datetime:
        """Return the wall-clock time, aware and in UTC."""
        return self._now

    def monotonic(self) -> float:
        """Return the seconds by which the clock has been advanced so far."""
        return self._elapsed / timedelta(seconds=1)

    def call_at(self, when: datetime, callback: Callable[[], object]) -> TimerHandle:
        """Call `callback` once `now` has reached `when`."""
        return self._arm(_Timer(self, callback, when=check_instant(when, "when")))

    def call_later(self, delay: timedelta, callback: Callable[[], object]) -> TimerHandle:
        """Call `callback` once the clock has been advanced by `delay`."""
        return self._arm(_Timer(self, callback, after=self._elapsed + max(delay, _ZERO)))

    def next_timer_at(self, *, ignoring: Container[TimerHandle] = ()) -> datetime | None:
        """Return the wall-clock time at which the next timer fires if nobody calls `set`, or None.

        Args:
            ignoring: timers that do not count.
        """
        waits = [self._wait_of(timer) for timer in self._timers if timer not in ignoring]
        return self._now + min(waits) if waits else None

    def advance(self, delta: timedelta) -> None:
        """Let time pass.

        Timers fire in order of time, then in the order in which they were armed; `now` and `monotonic` show
        each timer's own time while it fires. A timer that a callback arms within the span fires within it
        too.

        Args:
            delta: by how much, not negative; zero fires what is due already.

        Raises:
            ValueError: `delta` is negative.
            Exception: what a callback raised, after all others have fired; an ExceptionGroup if several did.
        """
        if delta < _ZERO:
            raise ValueError("time cannot be advanced by a negative delta; use set to correct the wall clock")
        self._moves += 1
        end = self._elapsed + delta
        errors: list[Exception] = []
        while (timer := self._first_within(end - self._elapsed)) is not None:
            self._move(self._wait_of(timer))
            self._fire(timer, errors)
        self._move(end - self._elapsed)
        _raise(errors)

    def set(self, now: datetime) -> None:
        """Correct the wall clock; `monotonic` stays as it is.

        Wall-clock timers that are due at the new time fire, all at that time.

        Args:
            now: the new time, aware; it may be earlier than the old one.

        Raises:
            Exception: as for `advance`.
        """
        self._now = check_instant(now, "now")
        self._moves += 1
        errors: list[Exception] = []
        while (timer := self._first_within(_ZERO)) is not None:
            self._fire(timer, errors)
        _raise(errors)

    def _arm(self, timer: _Timer) -> _Timer:
        self._timers[timer] = None
        if self._wait_of(timer) <= _ZERO:
            # Never inside the call that arms it, and not within the move that is under way: a callback that
            # arms itself again for now would keep that move from ever ending.
            timer.born_due_in = self._moves
            if timer.loop is not None:
                timer.loop.call_soon(self._fire_soon, timer)
        return timer

    def _fire_soon(self, timer: _Timer) -> None:
        # It may have fired or been cancelled meanwhile, or the clock may have been set back.
        if timer in self._timers and self._wait_of(timer) <= _ZERO:
            del self._timers[timer]
            timer.callback()

    def _wait_of(self, timer: _Timer) -> timedelta:
        wait = timer.after - self._elapsed if timer.when is None else timer.when - self._now
        return max(wait, _ZERO)

    def _first_within(self, span: timedelta) -> _Timer | None:
        # The dict keeps the order of arming, and min returns the first of equals.
        candidates = [timer for timer in self._timers if timer.born_due_in != self._moves]
        first = min(candidates, key=self._wait_of, default=None)
        return None if first is None or self._wait_of(first) > span else first

    def _move(self, delta: timedelta) -> None:
        self._now += delta
        self._elapsed += delta

    def _fire(self, timer: _Timer, errors: list[Exception]) -> None:
        del self._timers[timer]
        if timer.loop is None or timer.loop is _running_loop():
            try:
                timer.callback()
            except Exception as error:  # noqa: BLE001  # raised by the mover once the other timers have fired
                errors.append(error)
        elif not timer.loop.is_closed():
            timer.loop.call_soon_threadsafe(timer.callback)


class _Timer:
    """A timer of `FakeQueueClock`, of the wall clock (`when`) or of the monotonic clock (`after`)."""

    def __init__(
        self,
        clock: FakeQueueClock,
        callback: Callable[[], object],
        *,
        when: datetime | None = None,
        after: timedelta = _ZERO,
    ) -> None:
        self._clock = clock
        self.callback = callback
        self.when = when
        self.after = after
        self.loop = _running_loop()
        self.born_due_in = -1

    def cancel(self) -> None:
        self._clock._timers.pop(self, None)  # noqa: SLF001  # a timer is a part of its clock


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _raise(errors: list[Exception]) -> None:
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ExceptionGroup("several timers failed", errors)
