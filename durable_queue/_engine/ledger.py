"""The serialised steps of a queue: decide, write once, then tell (S2.7, S10, S13.3).

Everything that changes the storage goes through here, one step at a time. While a step's write is under way, finished
handlers and public calls collect; the next step takes them together. So the batch grows with the load, and a lone task
pays no waiting time. The steps run in a task of the ledger's own: a caller that is cancelled stops waiting and nothing
else happens.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from durable_queue._core.plan import Decision, Plan
from durable_queue._engine.call import Call
from durable_queue._engine.duties import Unit, Worker
from durable_queue._engine.faults import Faults
from durable_queue._engine.steps import Steps
from durable_queue._engine.watch import Watch
from durable_queue.clock import QueueClock
from durable_queue.errors import QueueStateError
from durable_queue.storage import QueueStorage

T = TypeVar("T")

CALLS_PER_STEP = 256
"""How many public calls share one write at most."""


class Ledger:
    """Runs the steps of one queue.

    Args:
        storage: where they are written.
        clock: what time they are decided at.
        faults: where failures of the storage are reported.
        watch: told whenever something may have changed for somebody who waits.
        publish: announces the events of a plan and whatever hangs on it, after its write.
    """

    def __init__(
        self,
        storage: QueueStorage,
        clock: QueueClock,
        faults: Faults,
        watch: Watch,
        publish: Callable[[Plan], None],
    ) -> None:
        self.has_consumer = False
        self.context = contextvars.copy_context()
        self._storage = storage
        self._faults = faults
        self._watch = watch
        self._steps = Steps(storage, clock, faults, publish)
        self._calls: deque[Call[Any]] = deque()
        self._exclusive: deque[tuple[Callable[[], Awaitable[Any]], asyncio.Future[Any]]] = deque()
        self._pump: asyncio.Task[None] | None = None

    def attach(self, worker: Worker) -> None:
        """Let a worker take part in the steps."""
        self._steps.worker = worker

    @property
    def is_idle(self) -> bool:
        """Whether no step is under way or due."""
        return self._pump is None

    @property
    def has_unit(self) -> bool:
        """Whether work of the worker is being decided or written."""
        return self._steps.unit is not None

    async def call(
        self,
        decide: Callable[[Plan], Decision[T]],
        *,
        needs_consumer: bool = False,
        on_written: Callable[[T], object] | None = None,
    ) -> T:
        """Take part in a step.

        Args:
            decide: makes the decision; may be asked again when a joint write failed.
            needs_consumer: whether an idle queue has to hold the consumer claim meanwhile (S13.6).
            on_written: called with the answer after the write, also when the caller no longer waits.

        Returns:
            What the decision returned, once its changes are stored and its events are delivered.

        Raises:
            Exception: what the decision, or the storage, raised; nothing is stored then, as far as is known.
        """
        call = Call(decide, needs_consumer=needs_consumer, on_written=on_written)
        self._calls.append(call)
        self.kick()
        return await call.future

    async def exclusive(self, action: Callable[[], Awaitable[T]]) -> T:
        """Run an action between two steps."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._exclusive.append((action, future))
        self.kick()
        return await future

    def kick(self) -> None:
        """See to it that what is due gets a step."""
        if self._pump is None:
            # A context of its own: handlers are started from it and must not inherit that of a random caller.
            self._pump = asyncio.get_running_loop().create_task(
                self._run(), name="durable_queue ledger", context=self.context.copy()
            )

    def abandon(self) -> Unit | None:
        """Give up the worker's part of the step under way, because its write does not come through (S13.4).

        Returns:
            What was given up; it may have been written all the same.
        """
        unit, self._steps.unit = self._steps.unit, None
        if unit is not None and self._pump is not None:
            self._pump.cancel()
            self._pump = None
            self._go_on()
        return unit

    def leave_loop(self) -> None:
        """Forget the step task of an event loop that the queue no longer belongs to; its work was done."""
        if self._pump is not None and self._pump.get_loop() is not asyncio.get_running_loop():
            self._pump = None

    async def _run(self) -> None:
        try:
            while True:
                if self._exclusive:
                    await self._run_exclusive(*self._exclusive.popleft())
                elif self._calls or (self._steps.worker is not None and self._steps.worker.has_work()):
                    await self._step(self._take_calls())
                    self._watch.notify()
                elif self._steps.worker is not None:
                    await self._steps.worker.before_idle()
                    if not (self._exclusive or self._calls or self._steps.worker.has_work()):
                        return
                else:
                    return
        except BaseException:
            if self._pump is asyncio.current_task() and self._steps.worker is not None:
                # Cancelled by somebody else than `abandon`, or a storage raised what no storage should: the program is
                # perhaps being torn down in the middle of this work.
                if self._steps.unit is not None:
                    self._steps.unit.returned()
                    self._steps.unit = None
                self._steps.worker.torn_down()
            raise
        finally:
            if self._pump is asyncio.current_task():
                self._pump = None
                self._go_on()
            self._watch.notify()

    def _go_on(self) -> None:
        if self._exclusive or any(not call.future.done() for call in self._calls):
            self.kick()

    async def _run_exclusive(self, action: Callable[[], Awaitable[Any]], future: asyncio.Future[Any]) -> None:
        try:
            answer = await action()
        except Exception as error:  # noqa: BLE001 - handed to the caller
            if not future.done():
                future.set_exception(error)
        except BaseException:
            future.cancel()
            raise
        else:
            if not future.done():
                future.set_result(answer)

    def _take_calls(self) -> list[Call[Any]]:
        taken: list[Call[Any]] = []
        while self._calls and len(taken) < CALLS_PER_STEP:
            call = self._calls.popleft()
            # A caller that was cancelled before its turn came has stored nothing.
            if not call.future.done():
                taken.append(call)
        return taken

    async def _step(self, calls: list[Call[Any]]) -> None:
        borrowed = False
        try:
            if not self.has_consumer and any(call.needs_consumer for call in calls):
                borrowed = await self._borrow_consumer(calls)
            await self._steps.carry_out(calls)
        finally:
            if borrowed:
                await self._return_consumer()
            for call in calls:
                # Only a step that was abandoned leaves a caller without an answer.
                call.fail(QueueStateError("the queue was stopped while the storage did not answer"))

    async def _borrow_consumer(self, calls: list[Call[Any]]) -> bool:
        try:
            await self._storage.acquire_consumer()
        except Exception as error:  # noqa: BLE001 - handed to the callers
            for call in calls:
                if call.needs_consumer:
                    call.fail(error)
            return False
        self.has_consumer = True
        return True

    async def _return_consumer(self) -> None:
        self.has_consumer = False
        try:
            await self._storage.release_consumer()
        except Exception as error:  # noqa: BLE001 - the claim dies with the process; the calls have their answers
            self._faults.report("release_consumer", error)
