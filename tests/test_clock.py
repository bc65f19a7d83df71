"""The computer's clock: leaps in both directions, early wake-ups, freezegun."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from freezegun import freeze_time

from durable_queue import QueueClock, SystemQueueClock
from durable_queue.clock import check_instant, later
from durable_queue.testing import FAKE_START

MINUTE = timedelta(minutes=1)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


class SteppedClock(SystemQueueClock):
    """The system clock with a wall clock that the test sets; the loop's own time goes on as it does."""

    def __init__(self, now: datetime, recheck: timedelta) -> None:
        super().__init__(recheck=recheck)
        self.wall = now
        self.looks = 0
        self.looked_thrice = asyncio.Event()

    def now(self) -> datetime:
        self.looks += 1
        if self.looks == 3:
            self.looked_thrice.set()
        return self.wall


def test_the_system_clock_shows_aware_utc() -> None:
    """S12.1: the wall clock is aware UTC, the monotonic clock is the computer's."""
    clock: QueueClock = SystemQueueClock()
    before, shown, after = datetime.now(UTC), clock.now(), datetime.now(UTC)

    assert before <= shown <= after
    assert shown.tzinfo is UTC
    assert time.monotonic() <= clock.monotonic() <= time.monotonic()


@pytest.mark.parametrize("recheck", [seconds(0), seconds(-1), seconds(30.001)])
def test_the_system_clock_looks_again_at_least_every_30_seconds(recheck: timedelta) -> None:
    """S12.2: a longer interval between two looks is refused."""
    with pytest.raises(ValueError, match="recheck must be above zero and at most 30 seconds"):
        SystemQueueClock(recheck=recheck)


@pytest.mark.asyncio
async def test_a_wall_timer_fires_when_the_clock_leaps_forward() -> None:
    """S12.2: a timer for tomorrow fires once, within one look, when the clock leaps past it."""
    clock = SteppedClock(FAKE_START, recheck=seconds(0.001))
    fired: list[datetime] = []
    done = asyncio.Event()
    clock.call_at(FAKE_START + timedelta(days=1), lambda: (fired.append(clock.wall), done.set()))
    await asyncio.sleep(0)
    assert clock.looks == 1
    assert fired == []

    clock.wall = FAKE_START + timedelta(days=1, seconds=5)
    async with asyncio.timeout(10):
        await done.wait()

    assert fired == [FAKE_START + timedelta(days=1, seconds=5)]


@pytest.mark.asyncio
async def test_a_wall_timer_waits_longer_when_the_clock_is_set_back() -> None:
    """S12.2: a timer whose time has gone away again waits for it, and fires once."""
    clock = SteppedClock(FAKE_START, recheck=seconds(0.001))
    done = asyncio.Event()
    clock.call_at(FAKE_START + seconds(0.01), done.set)
    clock.wall = FAKE_START - timedelta(days=1)
    async with asyncio.timeout(10):
        await clock.looked_thrice.wait()
    assert not done.is_set()

    clock.wall = FAKE_START + seconds(0.01)
    async with asyncio.timeout(10):
        await done.wait()


@pytest.mark.asyncio
async def test_a_wall_timer_is_not_early_and_does_not_spin() -> None:
    """S12.2: a timer fires at its time or a little later, after a handful of looks."""

    class Counting(SystemQueueClock):
        looks = 0

        def now(self) -> datetime:
            self.looks += 1
            return super().now()

    clock = Counting()
    done: asyncio.Future[datetime] = asyncio.get_running_loop().create_future()
    when = datetime.now(UTC) + seconds(0.05)
    clock.call_at(when, lambda: done.set_result(datetime.now(UTC)))
    async with asyncio.timeout(10):
        fired_at = await done

    assert fired_at >= when
    assert clock.looks <= 3


@pytest.mark.asyncio
async def test_a_wall_timer_for_the_past_fires_soon_but_not_at_once() -> None:
    """S12.1: a timer never fires inside the call that arms it."""
    fired: list[int] = []
    SystemQueueClock().call_at(FAKE_START - timedelta(days=9999), lambda: fired.append(1))
    assert fired == []
    await asyncio.sleep(0)

    assert fired == [1]


@pytest.mark.asyncio
async def test_timers_of_the_system_clock_can_be_cancelled() -> None:
    """S12.1: a cancelled timer of either kind does not fire, before or after its first look."""
    clock = SteppedClock(FAKE_START, recheck=seconds(0.001))
    fired: list[str] = []
    soon = clock.call_at(FAKE_START, lambda: fired.append("soon"))
    armed = clock.call_at(FAKE_START + seconds(60), lambda: fired.append("armed"))
    after = clock.call_later(seconds(0), lambda: fired.append("after"))
    soon.cancel()
    after.cancel()
    await asyncio.sleep(0)
    armed.cancel()
    clock.wall = FAKE_START + seconds(61)
    done = asyncio.Event()
    clock.call_later(seconds(0.005), done.set)
    async with asyncio.timeout(10):
        await done.wait()

    assert fired == []


@pytest.mark.asyncio
async def test_a_duration_does_not_follow_the_wall_clock() -> None:
    """S13.7: `call_later` measures by the monotonic clock; a negative duration is none."""
    clock = SteppedClock(FAKE_START, recheck=seconds(0.001))
    done = asyncio.Event()
    began = clock.monotonic()
    clock.call_later(seconds(0.02), done.set)
    clock.wall = FAKE_START + timedelta(days=1)
    async with asyncio.timeout(10):
        await done.wait()
    assert clock.monotonic() - began >= 0.019

    at_once = asyncio.Event()
    clock.call_later(seconds(-5), at_once.set)
    async with asyncio.timeout(10):
        await at_once.wait()


@pytest.mark.asyncio
async def test_the_system_clock_follows_freezegun() -> None:
    """S12.2, S13.7: under `freeze_time(real_asyncio=True)` a timer of an hour fires when an hour is ticked."""
    with freeze_time("2030-01-01", real_asyncio=True) as frozen:
        clock = SystemQueueClock(recheck=seconds(0.001))
        assert clock.now() == datetime(2030, 1, 1, tzinfo=UTC)
        done = asyncio.Event()
        clock.call_at(clock.now() + timedelta(hours=1), done.set)
        await asyncio.sleep(0)
        assert not done.is_set()

        frozen.tick(timedelta(hours=1))
        async with asyncio.timeout(10):
            await done.wait()

        assert clock.now() == datetime(2030, 1, 1, 1, tzinfo=UTC)


def test_an_instant_is_checked_and_turned_to_utc() -> None:
    """S1.7: an aware datetime becomes UTC; anything else is refused with its name."""
    east = datetime(2030, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))

    assert check_instant(east, "when") == FAKE_START
    assert check_instant(east, "when").tzinfo is UTC
    with pytest.raises(ValueError, match=r"^when is a naive datetime; give it a time zone, for example"):
        check_instant(datetime(2030, 1, 1), "when")  # noqa: DTZ001  # this is the point
    with pytest.raises(TypeError, match=r"^when must be a datetime, not str$"):
        check_instant("2030-01-01", "when")
    with pytest.raises(ValueError, match=r"^when is out of the range of datetimes in UTC$"):
        check_instant(datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))), "when")
    with pytest.raises(ValueError, match=r"^when is out of the range of datetimes in UTC$"):
        check_instant(datetime.min.replace(tzinfo=timezone(timedelta(hours=1))), "when")


def test_the_end_of_time_is_not_passed() -> None:
    """S5.3: an instant beyond the last one is the last one."""
    assert later(FAKE_START, MINUTE) == FAKE_START + MINUTE
    assert later(datetime.max.replace(tzinfo=UTC), MINUTE) == datetime.max.replace(tzinfo=UTC)
