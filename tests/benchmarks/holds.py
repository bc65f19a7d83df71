"""How long the event loop is held up while something is done in it."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Final, Self

TICK: Final = 0.001


class Hold:
    """Ticks once in a millisecond while it is entered, and notes how late the latest tick came.

    A loop that is given no rest at all would starve the storage's thread of the interpreter and measure that.

    Attributes:
        longest: in seconds.
    """

    def __init__(self) -> None:
        self.longest = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def __enter__(self) -> Self:
        self._arm()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # The end may have come in the turn in which a tick was due.
        self._note()

    def _arm(self) -> None:
        self._due = time.perf_counter() + TICK
        self._timer = asyncio.get_running_loop().call_later(TICK, self._tick)

    def _tick(self) -> None:
        self._note()
        self._arm()

    def _note(self) -> None:
        self.longest = max(self.longest, time.perf_counter() - self._due)
