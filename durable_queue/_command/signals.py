"""Hears the signals that ask the command to end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

_ENDING = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")


class EndSignals:
    """A context in which the first such signal is a request and the second an order.

    Args:
        on_second: called from the signal handler before the process ends at once.

    Attributes:
        received: the first signal, or None so far.
    """

    def __init__(self, on_second: Callable[[], object]) -> None:
        self.received: signal.Signals | None = None
        self._on_second = on_second
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrived = asyncio.Event()
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        for name in _ENDING:
            number = getattr(signal, name, None)
            # What the caller has had ignored (nohup, a shell's background job) stays ignored.
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal gave is what it takes

    async def wait(self) -> signal.Signals:
        """Wait for the first signal, which may have come before."""
        self._loop = asyncio.get_running_loop()
        if self.received is None:
            await self._arrived.wait()
        assert self.received is not None
        return self.received

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.received is not None:
            self._on_second()
            os._exit(exit_status(signal.Signals(number)))
        self.received = signal.Signals(number)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._arrived.set)


def exit_status(number: signal.Signals) -> int:
    """Return the status that says: ended by this signal."""
    return 128 + number
