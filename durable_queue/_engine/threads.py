"""Threads for plain-function handlers (S5.6, S13.15).

The standard pool joins its threads when the interpreter exits, so one handler that never returns would keep the
program from ending. These are daemons: the task is recovered at the next start instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

IDLE_SECONDS = 10.0
"""How long a thread without work is kept."""


class HandlerThreads:
    """Runs functions in daemon threads; the caller bounds how many at once.

    A thread that has nothing to do is used again, and ends after a while.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._jobs: deque[Callable[[], None]] = deque()
        self._idle = 0

    async def run(self, function: Callable[[], Any], on_start: Callable[[], object]) -> Any:
        """Call a function in a thread, in a copy of the current context, and return what it returns.

        Args:
            function: what to call.
            on_start: called in the event loop when the function's first line is about to run.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def post(callback: Callable[..., object], *arguments: object) -> None:
            try:
                loop.call_soon_threadsafe(callback, *arguments)
            except RuntimeError:
                # The loop has been closed under a handler that went on: nobody is there to be told.
                return

        def job() -> None:
            post(on_start)
            try:
                value = context.run(function)
            except BaseException as error:  # noqa: BLE001 - carried to the loop, which tells the kinds apart
                post(_fail, done, error)
            else:
                post(_succeed, done, value)

        self._submit(job)
        return await done

    def _submit(self, job: Callable[[], None]) -> None:
        with self._condition:
            self._jobs.append(job)
            if self._idle >= len(self._jobs):
                self._condition.notify()
                return
        try:
            threading.Thread(target=self._serve, name="durable_queue handler", daemon=True).start()
        except RuntimeError:
            # No thread is to be had: the attempt fails, and the job must not run later beside its retry.
            with self._condition, contextlib.suppress(ValueError):
                self._jobs.remove(job)
            raise

    def _serve(self) -> None:
        while True:
            with self._condition:
                while not self._jobs:
                    self._idle += 1
                    woken = self._condition.wait(IDLE_SECONDS)
                    self._idle -= 1
                    if not woken and not self._jobs:
                        return
                job = self._jobs.popleft()
            job()
            # A finished job holds the handler's arguments: let go of them while idle.
            del job


class ThreadedExit(Exception):  # noqa: N818  # it carries one that is no error
    """Carries a StopIteration or a CancelledError out of a thread, where a future cannot."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(type(error).__name__)
        self.error = error


def _fail(done: asyncio.Future[Any], error: BaseException) -> None:
    if done.cancelled():
        return
    if isinstance(error, (StopIteration, asyncio.CancelledError)):
        # A future refuses the one and takes the other for its own cancellation.
        error = ThreadedExit(error)
    done.set_exception(error)


def _succeed(done: asyncio.Future[Any], value: object) -> None:
    if not done.cancelled():
        done.set_result(value)
