"""The clock that a test moves: what fires when, and what it shows meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from durable_queue import FakeQueueClock
from durable_queue.testing import FAKE_START

MINUTE = timedelta(minutes=1)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


class Log:
    """What a fake clock has fired: the name of the timer and what the clock showed meanwhile."""

    def __init__(self, clock: FakeQueueClock) -> None:
        self.clock = clock
        self.fired: list[tuple[str, float, float]] = []

    def note(self, name: str) -> Callable[[], None]:
        def fire() -> None:
            wall = (self.clock.now() - FAKE_START) / seconds(1)
            self.fired.append((name, wall, self.clock.monotonic()))

        return fire

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.fired]


@pytest.fixture(name="clock")
def _clock() -> FakeQueueClock:
    return FakeQueueClock()


@pytest.fixture(name="log")
def _log(clock: FakeQueueClock) -> Log:
    return Log(clock)


def test_a_fake_clock_stands_still() -> None:
    """S12.3: it starts at a fixed instant, or at the given one, and does not move on its own."""
    clock = FakeQueueClock()
    east = datetime(2031, 5, 1, 2, tzinfo=timezone(timedelta(hours=2)))

    assert clock.now() == datetime(2030, 1, 1, tzinfo=UTC)
    assert clock.now() == clock.now()
    assert clock.monotonic() == 0.0
    assert FakeQueueClock(east).now() == datetime(2031, 5, 1, tzinfo=UTC)
    assert FakeQueueClock(east).now().tzinfo is UTC


def test_advance_moves_both_clocks(clock: FakeQueueClock) -> None:
    """S13.7: time that passes moves the wall clock and the monotonic clock alike."""
    clock.advance(seconds(1.5))
    clock.advance(timedelta(microseconds=1))

    assert clock.now() == FAKE_START + seconds(1.500001)
    assert clock.monotonic() == 1.500001


def test_set_moves_the_wall_clock_alone(clock: FakeQueueClock) -> None:
    """S12.3, S13.7: a correction goes in either direction and leaves the monotonic clock as it is."""
    clock.advance(seconds(5))
    clock.set(FAKE_START - timedelta(days=400))
    assert clock.now() == FAKE_START - timedelta(days=400)
    clock.set(FAKE_START + timedelta(days=400))

    assert clock.now() == FAKE_START + timedelta(days=400)
    assert clock.monotonic() == 5.0


def test_time_does_not_run_backwards(clock: FakeQueueClock) -> None:
    """S13.7: a negative advance is refused, because the monotonic clock only grows."""
    with pytest.raises(ValueError, match="use set to correct the wall clock"):
        clock.advance(seconds(-1))


@pytest.mark.parametrize("call", ["start", "set", "call_at"])
def test_a_fake_clock_refuses_naive_datetimes(clock: FakeQueueClock, call: str) -> None:
    """S1.7: a naive datetime is a ValueError that says so."""
    naive = datetime(2030, 1, 1)  # noqa: DTZ001  # this is the point
    calls: dict[str, Callable[[], Any]] = {
        "start": lambda: FakeQueueClock(naive),
        "set": lambda: clock.set(naive),
        "call_at": lambda: clock.call_at(naive, print),
    }
    with pytest.raises(ValueError, match="is a naive datetime; give it a time zone"):
        calls[call]()


def test_timers_fire_in_order_of_time_at_their_own_time(clock: FakeQueueClock, log: Log) -> None:
    """S12.3: timers of both kinds fire in order of time, and the clock shows each one's own time."""
    clock.call_at(FAKE_START + seconds(3), log.note("wall 3"))
    clock.call_later(seconds(2), log.note("after 2"))
    clock.call_at(FAKE_START + seconds(1), log.note("wall 1"))
    clock.call_later(seconds(5), log.note("after 5"))

    clock.advance(seconds(4))

    assert log.fired == [("wall 1", 1, 1), ("after 2", 2, 2), ("wall 3", 3, 3)]
    assert clock.now() == FAKE_START + seconds(4)
    clock.advance(seconds(1))
    assert log.fired[3:] == [("after 5", 5, 5)]


def test_timers_of_one_time_fire_in_the_order_of_arming(clock: FakeQueueClock, log: Log) -> None:
    """S12.3: equals fire in the order in which they were armed, whatever their kind."""
    for number in range(3):
        clock.call_later(seconds(2), log.note(f"after {number}"))
        clock.call_at(FAKE_START + seconds(2), log.note(f"wall {number}"))

    clock.advance(seconds(2))

    assert log.names == ["after 0", "wall 0", "after 1", "wall 1", "after 2", "wall 2"]


def test_a_timer_fires_once(clock: FakeQueueClock, log: Log) -> None:
    """S12.3: a timer that has fired is gone."""
    clock.call_later(seconds(1), log.note("once"))
    clock.advance(seconds(1))
    clock.advance(seconds(9))
    clock.set(FAKE_START + timedelta(days=1))

    assert log.names == ["once"]


def test_a_cancelled_timer_does_not_fire(clock: FakeQueueClock, log: Log) -> None:
    """S12.3: cancelling works at any time, also from another timer, and twice."""
    first = clock.call_later(seconds(1), log.note("first"))
    second = clock.call_later(seconds(3), log.note("second"))
    clock.call_later(seconds(2), second.cancel)
    first.cancel()
    first.cancel()

    clock.advance(seconds(5))
    second.cancel()

    assert log.names == []


def test_a_timer_may_be_armed_by_another_within_the_same_advance(clock: FakeQueueClock, log: Log) -> None:
    """S12.3: what is armed while time passes, for a time within the span, fires within it."""

    def tick() -> None:
        log.note("tick")()
        if len(log.fired) < 4:
            clock.call_later(seconds(2), tick)

    clock.call_later(seconds(2), tick)
    clock.call_at(FAKE_START + seconds(5), log.note("five"))

    clock.advance(seconds(20))

    assert log.fired == [("tick", 2, 2), ("tick", 4, 4), ("five", 5, 5), ("tick", 6, 6)]
    assert clock.now() == FAKE_START + seconds(20)


def test_a_timer_that_is_due_when_armed_waits_for_the_next_move(clock: FakeQueueClock, log: Log) -> None:
    """S12.3: without a running loop a timer for a time not after now fires at the next advance or set."""
    clock.call_at(FAKE_START, log.note("now"))
    clock.call_at(FAKE_START - MINUTE, log.note("earlier"))
    clock.call_later(seconds(0), log.note("zero"))
    clock.call_later(seconds(-5), log.note("negative"))
    assert log.names == []
    clock.advance(seconds(0))
    assert log.names == ["now", "earlier", "zero", "negative"]

    clock.call_at(FAKE_START, log.note("set"))
    clock.set(clock.now())

    assert log.names[4:] == ["set"]


def test_a_callback_that_arms_itself_for_now_does_not_stop_time(clock: FakeQueueClock) -> None:
    """S12.3: one advance ends even if a timer re-arms itself without a wait for ever."""
    rounds = 0

    def again() -> None:
        nonlocal rounds
        rounds += 1
        clock.call_later(seconds(0), again)

    clock.call_later(seconds(1), again)
    clock.advance(seconds(5))

    assert rounds == 1
    assert clock.now() == FAKE_START + seconds(5)


def test_a_correction_fires_what_is_due_and_nothing_else(clock: FakeQueueClock, log: Log) -> None:
    """S12.3, S13.7: a leap of the wall clock fires wall timers, at the new time; durations go on."""
    clock.call_at(FAKE_START + seconds(9), log.note("wall 9"))
    clock.call_at(FAKE_START + seconds(5), log.note("wall 5"))
    clock.call_at(FAKE_START + seconds(99), log.note("wall 99"))
    clock.call_later(seconds(1), log.note("after 1"))

    clock.set(FAKE_START + seconds(50))

    assert log.fired == [("wall 9", 50, 0), ("wall 5", 50, 0)]
    clock.advance(seconds(1))
    assert log.fired[2:] == [("after 1", 51, 1)]


def test_a_clock_that_is_set_back_delays_wall_timers_only(clock: FakeQueueClock, log: Log) -> None:
    """S12.3, S12.4: after a step back wall timers wait for their time, durations do not notice."""
    clock.call_at(FAKE_START + seconds(5), log.note("wall 5"))
    clock.call_later(seconds(5), log.note("after 5"))
    clock.set(FAKE_START - seconds(10))

    clock.advance(seconds(5))
    assert log.fired == [("after 5", -5, 5)]
    clock.advance(seconds(10))
    assert log.fired[1:] == [("wall 5", 5, 15)]


def test_the_next_timer_is_told_in_wall_clock_time(clock: FakeQueueClock) -> None:
    """S12.3: the next timer of either kind, as `now` will show it."""
    assert clock.next_timer_at() is None
    after = clock.call_later(seconds(7), print)
    assert clock.next_timer_at() == FAKE_START + seconds(7)
    clock.call_at(FAKE_START + seconds(20), print)
    clock.advance(seconds(2))
    assert clock.next_timer_at() == FAKE_START + seconds(7)
    clock.set(FAKE_START + seconds(19))
    assert clock.next_timer_at() == FAKE_START + seconds(20)
    after.cancel()
    clock.set(FAKE_START)
    assert clock.next_timer_at() == FAKE_START + seconds(20)
    clock.call_at(FAKE_START - MINUTE, print)
    assert clock.next_timer_at() == clock.now()


def test_a_callback_that_raises_does_not_lose_the_others(clock: FakeQueueClock, log: Log) -> None:
    """S12.3: the others fire, time arrives, and the error reaches whoever moved the clock."""

    def fail() -> None:
        log.note("fails")()
        raise RuntimeError("first")

    clock.call_later(seconds(1), fail)
    clock.call_later(seconds(2), log.note("goes on"))
    with pytest.raises(RuntimeError, match="first"):
        clock.advance(seconds(3))
    assert log.names == ["fails", "goes on"]
    assert clock.now() == FAKE_START + seconds(3)

    clock.call_at(clock.now() + seconds(1), fail)
    clock.call_at(clock.now() + seconds(2), fail)
    with pytest.raises(ExceptionGroup) as caught:
        clock.set(clock.now() + MINUTE)
    assert len(caught.value.exceptions) == 2


@pytest.mark.asyncio
async def test_a_timer_that_is_due_fires_at_the_next_turn_of_the_loop(
    clock: FakeQueueClock, log: Log
) -> None:
    """S12.3: in a running loop a due timer fires soon, never inside the call that arms it, and once."""
    clock.call_at(FAKE_START, log.note("due"))
    clock.call_later(seconds(0), log.note("zero"))
    cancelled = clock.call_at(FAKE_START, log.note("cancelled"))
    cancelled.cancel()
    assert log.names == []
    await asyncio.sleep(0)
    assert log.names == ["due", "zero"]
    clock.advance(seconds(1))

    assert log.names == ["due", "zero"]


@pytest.mark.asyncio
async def test_a_due_timer_waits_again_when_the_clock_is_set_back_first(
    clock: FakeQueueClock, log: Log
) -> None:
    """S12.3: between the arming and the next turn a clock that is set back makes the timer wait."""
    clock.call_at(FAKE_START, log.note("due"))
    clock.set(FAKE_START - seconds(10))
    await asyncio.sleep(0)
    assert log.names == []
    clock.advance(seconds(10))

    assert log.fired == [("due", 0, 10)]


@pytest.mark.asyncio
async def test_timers_fire_in_the_thread_of_their_loop(clock: FakeQueueClock) -> None:
    """S12.3: a clock that another thread moves fires the timers in the loop in which they were armed."""
    fired: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    clock.call_later(seconds(1), lambda: fired.set_result(threading.get_ident()))

    await asyncio.to_thread(clock.advance, seconds(1))

    assert await fired == threading.get_ident()


def test_a_timer_of_a_closed_loop_is_dropped(clock: FakeQueueClock, log: Log) -> None:
    """S12.3: the timers of a loop that is gone do not fire anywhere else."""

    async def arm() -> None:
        clock.call_later(seconds(1), log.note("orphan"))

    asyncio.run(arm())
    clock.advance(seconds(2))

    assert log.names == []
    assert clock.next_timer_at() is None
