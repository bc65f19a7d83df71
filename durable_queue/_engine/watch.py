"""Waiting for a condition of the queue, without polling: drain, pause and stop look again whenever it has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Watch:
    """Wakes everybody who waits for a condition, so that each can look at its own."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """Say that something may have changed."""
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once the condition holds; it is evaluated after every `notify`, and may raise."""
        while not condition():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
