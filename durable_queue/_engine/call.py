"""A public call on its way through a step of the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from durable_queue._core.plan import Decision, Plan

T = TypeVar("T")


class Call(Generic[T]):
    """A public call on its way through a step."""

    def __init__(
        self,
        decide: Callable[[Plan], Decision[T]],
        *,
        needs_consumer: bool,
        on_written: Callable[[T], object] | None,
    ) -> None:
        self.decide = decide
        self.needs_consumer = needs_consumer
        self.on_written = on_written
        self.future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.plan: Plan | None = None
        self.answer: T | None = None

    def fail(self, error: BaseException) -> None:
        """Give the caller an error, if it still waits."""
        if not self.future.done():
            self.future.set_exception(error)

    def succeed(self) -> None:
        """Carry on after the write, and give the caller the answer if it still waits."""
        if self.on_written is not None:
            self.on_written(self.answer)  # type: ignore[arg-type]  # None is the answer where T is None
        if not self.future.done():
            self.future.set_result(self.answer)  # type: ignore[arg-type]  # None is the answer where T is None
