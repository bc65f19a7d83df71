"""Waiting for a condition of the queue, without polling: drain, pause and stop look again whenever it has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Watch:
    """Wakes those who wait for a condition once it holds."""

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], Callable[[], bool]] = {}

    def notify(self) -> None:
        """Say that something may have changed."""
        # Looked at here, so that a caller who waits for the end of thousands of tasks is not woken for each of them.
        for waiter, condition in list(self._waiters.items()):
            if not waiter.done() and _may_hold(condition):
                waiter.set_result(None)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once the condition holds; it is evaluated after every `notify`, and may raise."""
        while not condition():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters[waiter] = condition
            try:
                await waiter
            finally:
                del self._waiters[waiter]


def _may_hold(condition: Callable[[], bool]) -> bool:
    try:
        return condition()
    except Exception:  # noqa: BLE001 - raised again where it is waited for
        return True
