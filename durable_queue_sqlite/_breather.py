"""A pause of the event loop for the connection's thread, when the loop is too busy to let it run.

Both need the interpreter lock. A loop that is hard at work gives it up only for the instant in which it looks for
input, and takes it back before a waiting thread has woken up; an operation that needs it some ten times can then
take seconds. So a loop that has kept an operation waiting, and has itself been computing meanwhile, sleeps for a
moment now and then until the operation is through. A loop that is idle, or waits for a slow disk, does not.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

PATIENCE: Final = 0.005
"""Seconds without an answer before the loop is suspected."""

NAP: Final = 0.0002
NAP_EVERY: Final = 0.001
BUSY: Final = 0.5
"""The share of the time that a loop must have been computing to be busy."""


class Breather:
    """Watches the operations that are under way in one connection's thread.

    Args:
        loop: the event loop that waits for them.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._under_way = 0
        self._progress = 0.0
        self._computed = 0.0
        self._armed_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Take note that an operation is handed to the thread."""
        self._under_way += 1
        if self._under_way == 1:
            self._progress = self._loop.time()
        if self._timer is None:
            # One timer for all operations of the next milliseconds, most of which have ended when it fires.
            self._arm(PATIENCE)

    def end(self) -> None:
        """Take note that an operation has ended."""
        self._under_way -= 1
        self._progress = self._loop.time()

    def stop(self) -> None:
        """Watch no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, delay: float) -> None:
        self._computed = time.thread_time()
        self._armed_at = self._loop.time()
        self._timer = self._loop.call_later(delay, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._under_way:
            return
        now = self._loop.time()
        waited = now - self._progress
        if waited < PATIENCE:
            self._arm(PATIENCE - waited)
            return
        if time.thread_time() - self._computed > BUSY * (now - self._armed_at):
            time.sleep(NAP)
        self._arm(NAP_EVERY)
