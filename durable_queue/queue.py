"""`DurableQueue`: the public class, and the verbs of its life (S7, S11).

Each verb checks its arguments and hands a decision to the ledger. Those that bring tasks in are in `_verbs.submit`,
those about stored tasks in `_verbs.manage`.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Self

from durable_queue._engine.arguments import check_delay, check_optional_delay
from durable_queue._engine.context import refuse_inside_handler
from durable_queue._engine.lifecycle import DrainResult as DrainResult
from durable_queue._engine.lifecycle import RunState as RunState
from durable_queue._engine.retention import Retention
from durable_queue._verbs.manage import Managing
from durable_queue._verbs.submit import Submitting
from durable_queue.events import QueueEvent
from durable_queue.tasks import StoredTask

if TYPE_CHECKING:
    from durable_queue._engine.broadcast import Subscription


class DurableQueue(Submitting, Managing):
    """A persistent queue of tasks with dependencies, consumed in the event loop of one process.

    It belongs to the event loop that used it first, until it is stopped (S2.8); a call from another loop is refused
    and another thread uses `asyncio.run_coroutine_threadsafe`. ``async with`` starts it and closes it.

    Args:
        storage: where the tasks are; it stays the caller's, who closes it after the queue.
        clock: the time to live by; the computer's by default.
        max_concurrent_tasks: how many handlers run at once.
        storage_retry_delay: how long the worker waits before it tries a failed storage again (S10.1).
        random_fraction: gives floats in [0, 1) for jitter.
        id_generator: gives ids for new tasks; they must never repeat. Random ones by default.
        max_interruptions: after how many interruptions by a crash a task fails whatever its policy; None for no bound.
        converter: the cattrs converter for payloads and results; `durable_queue.serialization.make_converter` makes
            one to add to.
        stop_grace: the `grace` of the stop at the end of ``async with``.
        retention: how long completed tasks are kept before the queue, while idle, purges them (S6.5); None keeps them
            for ever.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument has an impossible value.
    """

    async def start(self, *, paused: bool = False) -> None:
        """Recover what was interrupted, then run tasks (S7.1).

        Args:
            paused: recover and wait for `resume`.

        Raises:
            QueueStateError: the queue is not idle.
            QueueInUseError: another live queue consumes this storage.
            Exception: what the storage raised; the queue stays idle and can be started again.
        """
        self._begin_call()
        await self._lifecycle.start(paused=paused)
        self._retention = Retention(
            self._clock,
            self._keep,
            purge=lambda keep: self.purge(older_than=keep),
            is_idle=lambda: not self._worker.attempts,
            faults=self._faults,
        )
        self._retention.begin()

    async def pause(self) -> None:
        """Start nothing more; return once no start can follow. Running handlers go on, expiry too."""
        self._begin_call()
        await self._lifecycle.pause()

    async def resume(self) -> None:
        """Go on after `pause`."""
        self._begin_call()
        await self._lifecycle.resume()

    async def stop(self, *, grace: timedelta | None = None) -> list[str]:
        """Wait for running handlers and return to idle; in any state, any number of times (S7.5).

        Args:
            grace: how long to wait before handlers are cancelled and their tasks put back, without counting the
                attempt; None waits as long as they take. A second stop may shorten it.

        Returns:
            The ids of tasks that were interrupted; those whose handler would not end or whose record could not be
            written are recovered at the next start.

        Raises:
            QueueStateError: called from inside a handler of this queue.
        """
        refuse_inside_handler(self, "stop")
        check_optional_delay(grace, "grace")
        if self.run_state is RunState.IDLE and self._lifecycle.is_quiet:
            self._loop = None
            return []
        self._bind_loop()
        if self._retention is not None:
            self._retention.end()
        interrupted = await self._lifecycle.stop(grace)
        if self.run_state is RunState.IDLE:
            # Unless somebody who waited for the same stop has started it again by now.
            self._loop = None
            if self._retention is not None:
                # A start that this stop waited for has begun it meanwhile.
                self._retention.end()
        return interrupted

    async def close(self, *, grace: timedelta | None = None) -> None:
        """Stop, then end the event streams; the storage stays open (S7.6).

        Until the stop is over, running handlers can still use the queue. Afterwards only the reads, `stop` and `close`
        do not raise QueueClosedError.

        Args:
            grace: as for `stop`.

        Raises:
            QueueStateError: called from inside a handler of this queue.
        """
        refuse_inside_handler(self, "close")
        check_optional_delay(grace, "grace")
        if not self._lifecycle.is_quiet:
            self._bind_loop()
        if self._closing is None:
            self._lifecycle.is_closing = True
            self._closing = asyncio.get_running_loop().create_task(
                self._close(grace), name="durable_queue close"
            )
        elif grace is not None:
            await self.stop(grace=grace)
        if not self._is_closed:
            # It goes on when one of those who wait for it is cancelled.
            await asyncio.shield(self._closing)

    async def _close(self, grace: timedelta | None) -> None:
        try:
            await self.stop(grace=grace)
        finally:
            self._is_closed = True
            self._broadcast.close()
            self._waiters.close()

    async def drain(
        self, *, within: timedelta = timedelta(0), timeout: timedelta | None = None
    ) -> DrainResult:
        """Wait until nothing runs in a slot and nothing is or becomes ready within a time (S7.8).

        Args:
            within: how far ahead to look for tasks that become ready.
            timeout: how long to wait at most; None for as long as it takes.

        Returns:
            What remains: later, waiting, handed-off and held tasks.

        Raises:
            TimeoutError: `timeout` passed first.
            QueueStateError: the queue is not running, was paused or stopped meanwhile, or the call comes from inside
                a handler of this queue.
        """
        refuse_inside_handler(self, "drain")
        check_delay(within, "within")
        check_optional_delay(timeout, "timeout")
        self._begin_call()
        return await self._lifecycle.drain(within, timeout)

    async def wait(self, task_id: str, *, timeout: timedelta | None = None) -> StoredTask:
        """Wait until a task is terminal; a stop does not end the wait, `close` does.

        Args:
            task_id: which.
            timeout: how long at most; None for as long as it takes.

        Returns:
            Its record as of the step that ended it.

        Raises:
            TaskNotFoundError: the id is not stored, or was deleted meanwhile.
            TimeoutError: `timeout` passed first.
            QueueStateError: nobody runs tasks here, so that it might wait for ever, or the call comes from inside a
                handler of this queue.
            QueueClosedError: the queue was closed meanwhile.
        """
        refuse_inside_handler(self, "wait")
        check_optional_delay(timeout, "timeout")
        self._begin_call()
        return await self._waiters.wait(
            task_id,
            timeout,
            read=self._storage.get,
            is_consumer=lambda: self._lifecycle.is_consumer,
        )

    def subscribe(self, *event_types: type[QueueEvent], buffer: int = 1024) -> Subscription:
        """Listen to what happens from now on (S11.1).

        Args:
            event_types: only these classes and their subclasses; all events without any.
            buffer: how many events may wait for the subscriber before the oldest are dropped and counted.

        Returns:
            A context manager and asynchronous iterator of events.
        """
        return self._broadcast.subscribe(event_types, buffer)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(grace=self._stop_grace)
