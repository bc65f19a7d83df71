"""Subscriptions: every event to everybody who asked for it, in one order, without anybody waiting (S11.1)."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import Self

from durable_queue.errors import QueueClosedError
from durable_queue.events import EventsMissed, QueueEvent


class Subscription:
    """The events that one subscriber has not taken yet: a context manager and an asynchronous iterator.

    Iteration ends when the queue is closed, after what was delivered before. When the buffer is full the oldest event
    makes room and an `EventsMissed` with the count takes the place of all that were dropped.
    """

    def __init__(self, wanted: tuple[type[QueueEvent], ...], size: int, now: Callable[[], datetime]) -> None:
        self._wanted = wanted
        self._buffer: deque[QueueEvent] = deque()
        self._size = size
        self._now = now
        self._missed = 0
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        self._buffer.clear()
        self._missed = 0

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> QueueEvent:
        while not self._buffer and not self._missed:
            if self._ended:
                raise StopAsyncIteration
            if self._waiter is not None:
                raise RuntimeError("this subscription is being awaited already; subscribe once per reader")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._next()

    def take(self) -> list[QueueEvent]:
        """Return what is buffered, without waiting; for tests."""
        taken = []
        while self._buffer or self._missed:
            taken.append(self._next())
        return taken

    def deliver(self, event: QueueEvent) -> None:
        """Buffer an event if it is wanted."""
        if self._ended or (self._wanted and not isinstance(event, self._wanted)):
            return
        if len(self._buffer) == self._size:
            self._buffer.popleft()
            self._missed += 1
        self._buffer.append(event)
        self._wake()

    def end(self) -> None:
        """Deliver nothing more; iteration ends after what is buffered."""
        self._ended = True
        self._wake()

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will be delivered."""
        return self._ended

    def _next(self) -> QueueEvent:
        if self._missed:
            count, self._missed = self._missed, 0
            return EventsMissed(at=self._now(), count=count)
        return self._buffer.popleft()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Broadcast:
    """All subscriptions of a queue.

    They are held weakly: a subscriber that goes away without leaving its `with` block, together with its buffer,
    can be collected.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._subscriptions: weakref.WeakSet[Subscription] = weakref.WeakSet()
        self._closed = False

    def subscribe(self, wanted: tuple[type[QueueEvent], ...], buffer: int) -> Subscription:
        """Open a subscription.

        Raises:
            QueueClosedError: the streams have ended.
            TypeError: something wanted is no event class.
            ValueError: the buffer holds nothing.
        """
        if self._closed:
            raise QueueClosedError("the queue is closed; it announces nothing more")
        for kind in wanted:
            if not (isinstance(kind, type) and issubclass(kind, QueueEvent)):
                raise TypeError("subscribe takes event classes, for example TaskCompleted")
        if buffer < 1:
            raise ValueError("buffer must be at least 1")
        subscription = Subscription(wanted, buffer, self._now)
        self._subscriptions.add(subscription)
        return subscription

    def emit(self, event: QueueEvent) -> None:
        """Put an event into every buffer that wants it."""
        if not self._subscriptions:
            return
        for subscription in list(self._subscriptions):
            if subscription.has_ended:
                self._subscriptions.discard(subscription)
            else:
                subscription.deliver(event)

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        for subscription in list(self._subscriptions):
            subscription.end()
