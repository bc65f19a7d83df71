"""Tools for tests of programs that use a queue: a clock that stands still, a storage that fails, and helpers.

Nothing here needs pytest, and nothing sleeps: a test moves the clock and waits for the queue to become idle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, overload

from durable_queue._fake_clock import FAKE_START, FakeQueueClock
from durable_queue._flaky_storage import OPERATIONS, WRITES, FlakyStorage, Gate
from durable_queue.events import QueueEvent

if TYPE_CHECKING:
    from durable_queue._engine.broadcast import Subscription
    from durable_queue.queue import DrainResult, DurableQueue

__all__ = [
    "FAKE_START",
    "OPERATIONS",
    "WRITES",
    "CollectedEvents",
    "FakeQueueClock",
    "FlakyStorage",
    "Gate",
    "advance",
    "collect_events",
    "crash",
    "run_until_idle",
]


class CollectedEvents(Sequence[QueueEvent]):
    """What a queue has announced so far; see `collect_events`. It is read like a list and equals one."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._events: list[QueueEvent] = []

    def _taken(self) -> list[QueueEvent]:
        self._events.extend(self._subscription.take())
        return self._events

    @overload
    def __getitem__(self, index: int) -> QueueEvent: ...

    @overload
    def __getitem__(self, index: slice) -> list[QueueEvent]: ...

    def __getitem__(self, index: int | slice) -> QueueEvent | list[QueueEvent]:
        return self._taken()[index]

    def __len__(self) -> int:
        return len(self._taken())

    def __eq__(self, other: object) -> bool:
        return self._taken() == (other._taken() if isinstance(other, CollectedEvents) else other)

    __hash__ = None  # type: ignore[assignment]  # it changes, like a list

    def __repr__(self) -> str:
        return repr(self._taken())


@contextmanager
def collect_events(
    queue: DurableQueue, *event_types: type[QueueEvent], buffer: int = 1_000_000
) -> Iterator[CollectedEvents]:
    """Collect the events of a queue while a block runs.

    Args:
        queue: the queue.
        event_types: which events; all when none is given.
        buffer: how many may lie unread, see `DurableQueue.subscribe`.

    Yields:
        A sequence of the events delivered so far; it can still be read after the block.
    """
    with queue.subscribe(*event_types, buffer=buffer) as subscription:
        events = CollectedEvents(subscription)
        try:
            yield events
        finally:
            # Leaving a subscription drops what it has buffered.
            len(events)


async def run_until_idle(queue: DurableQueue) -> DrainResult:
    """Wait until nothing runs and nothing is ready; the clock is not moved.

    Returns:
        What remains, as `DurableQueue.drain` says it.
    """
    return await queue.drain()


async def crash(queue: DurableQueue) -> None:
    """Leave a queue the way a crash of its process does, without ending the process.

    Its handlers are cancelled and nothing more is written: what ran is still running in the storage, and the next
    queue over the same storage recovers it (S7.2). The queue itself is of no use any more.

    Args:
        queue: the queue, started.
    """
    await queue._lifecycle.crash()  # noqa: SLF001 - the tools for tests know the queue from inside


async def advance(queue: DurableQueue, clock: FakeQueueClock, delta: timedelta) -> None:
    """Let time pass as it would have passed, with the queue working meanwhile.

    The clock goes from one armed timer to the next, and after each the queue becomes idle before the clock
    goes on. The queue must be running, and no handler may wait for the clock itself: it would never become
    idle.

    Args:
        queue: the queue.
        clock: its clock.
        delta: how far in all, not negative.
    """
    await queue.drain()
    left = delta
    while (when := _next_timer(queue, clock)) is not None and when - clock.now() <= left:
        step = when - clock.now()
        clock.advance(step)
        left -= step
        await queue.drain()
    clock.advance(left)
    await queue.drain()


def _next_timer(queue: DurableQueue, clock: FakeQueueClock) -> datetime | None:
    # The look for other processes is armed twice a second for ever; a step for each would make an hour long.
    background = queue.background_timers
    return clock.next_timer_at(ignoring=background)
