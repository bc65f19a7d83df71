"""Purging on its own: completed tasks are deleted once they are old enough, while the queue is idle (S6.5)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from durable_queue._engine.faults import Faults
from durable_queue.clock import QueueClock, TimerHandle

SHORTEST = timedelta(seconds=1)
LONGEST = timedelta(hours=1)


class Retention:
    """Looks now and then, a tenth of the kept time apart, whether there is something to purge.

    Args:
        clock: what the time between two looks is measured by.
        keep: how long completed tasks are kept; None keeps them for ever.
        purge: deletes what is older, in bounded batches.
        is_idle: whether no task is ready or running; otherwise the look is put off to the next one.
        faults: where a failure of the storage is reported.
    """

    def __init__(
        self,
        clock: QueueClock,
        keep: timedelta | None,
        purge: Callable[[timedelta], Awaitable[int]],
        is_idle: Callable[[], bool],
        faults: Faults,
    ) -> None:
        self._clock = clock
        self._keep = keep
        self._purge = purge
        self._is_idle = is_idle
        self._faults = faults
        self._timer: TimerHandle | None = None
        self._purging: asyncio.Task[None] | None = None

    @property
    def timers(self) -> list[TimerHandle]:
        """The timer that is armed, if one is."""
        return [] if self._timer is None else [self._timer]

    def begin(self) -> None:
        """Start looking; the first time at once."""
        if self._keep is not None:
            self._timer = self._clock.call_later(timedelta(0), self._look)

    def end(self) -> None:
        """Stop looking; a purge that is under way ends after its batch."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._purging is not None:
            self._purging.cancel()

    def _look(self) -> None:
        self._timer = None
        if self._keep is None:
            return
        if self._is_idle():
            self._purging = asyncio.get_running_loop().create_task(self._purge_now(self._keep))
        self._timer = self._clock.call_later(max(SHORTEST, min(self._keep / 10, LONGEST)), self._look)

    async def _purge_now(self, keep: timedelta) -> None:
        try:
            await self._purge(keep)
        except Exception as error:  # noqa: BLE001 - the next look tries again
            self._faults.report("purge", error)
        finally:
            self._purging = None
