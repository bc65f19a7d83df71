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
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from durable_queue._core.plan import Decision, Plan
from durable_queue._engine.call import Call
from durable_queue._engine.duties import Unit, Worker
from durable_queue._engine.faults import Faults
from durable_queue._engine.recheck import stored_part
from durable_queue._engine.view import StorageReadError, drive
from durable_queue._engine.watch import Watch
from durable_queue.clock import QueueClock
from durable_queue.errors import QueueStateError
from durable_queue.storage import QueueStorage

T = TypeVar("T")

CALLS_PER_STEP = 256
"""How many public calls share one write at most."""

JOINT_FAILURES = 3
"""After how many failures a joint write of the worker is tried task by task (S13.3)."""


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
        self._clock = clock
        self._faults = faults
        self._watch = watch
        self._publish = publish
        self._worker: Worker | None = None
        self._calls: deque[Call[Any]] = deque()
        self._exclusive: deque[tuple[Callable[[], Awaitable[Any]], asyncio.Future[Any]]] = deque()
        self._pump: asyncio.Task[None] | None = None
        self._unit: Unit | None = None

    def attach(self, worker: Worker) -> None:
        """Let a worker take part in the steps."""
        self._worker = worker

    @property
    def is_idle(self) -> bool:
        """Whether no step is under way or due."""
        return self._pump is None

    @property
    def has_unit(self) -> bool:
        """Whether work of the worker is being decided or written."""
        return self._unit is not None

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
        unit, self._unit = self._unit, None
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
                elif self._calls or (self._worker is not None and self._worker.has_work()):
                    await self._step(self._take_calls())
                    self._watch.notify()
                elif self._worker is not None:
                    await self._worker.before_idle()
                    if not (self._exclusive or self._calls or self._worker.has_work()):
                        return
                else:
                    return
        except asyncio.CancelledError:
            if self._pump is asyncio.current_task() and self._worker is not None:
                # By somebody else than `abandon`: the program is being torn down in the middle of this work.
                if self._unit is not None:
                    self._unit.returned()
                    self._unit = None
                self._worker.torn_down()
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
            if self._worker is not None and self._worker.has_work():
                await self._try_pieces(deque(self._worker.take_aside()), all_of_them=False)
            if self._storage.atomic:
                await self._joint_step(calls)
            else:
                await self._single_steps(calls)
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

    async def _joint_step(self, calls: list[Call[Any]]) -> None:
        now = self._clock.now()
        worker_plan = Plan(now)
        unit = await self._decide_unit(worker_plan, joint=True)
        if unit is None:
            worker_plan = Plan(now)
        calls_plan = Plan(now, worker_plan)
        decided, later = [], []
        for call in calls:
            if not call.future.done() and await self._decide_call(call, Plan(now, calls_plan)):
                assert call.plan is not None
                if any(
                    task is None and worker_plan.knows(task_id) for task_id, task in call.plan.records.items()
                ):
                    # Should the write fail, the worker's part is written again: the record must still be there then.
                    later.append(call)
                    continue
                calls_plan.merge(call.plan)
                decided.append(call)
        everything = Plan(now)
        everything.merge(worker_plan)
        everything.merge(calls_plan)
        try:
            await self._write(everything)
        except Exception as error:  # noqa: BLE001 - any exception of an adapter is a fault of the storage
            if unit is not None and worker_plan.records:
                self._report_write(unit, error)
                await self._persist(unit, worker_plan)
                unit = None
            elif len(decided) == 1:
                await self._fail_call(decided.pop(), error)
            if unit is not None:
                self._finish_unit(unit, worker_plan)
            for call in decided:
                await self._decide_again(call)
        else:
            if unit is not None:
                self._finish_unit(unit, worker_plan)
            for call in decided:
                self._finish_call(call)
        for call in later:
            await self._alone(call)

    async def _single_steps(self, calls: list[Call[Any]]) -> None:
        """Write piece by piece: the storage cannot keep a joint write whole."""
        if self._worker is not None and self._worker.has_work():
            plan = Plan(self._clock.now())
            unit = await self._decide_unit(plan, joint=False)
            if unit is not None and not await self._try_unit(unit, plan):
                await self._persist(unit, plan)
        for call in calls:
            if not call.future.done():
                await self._alone(call)

    async def _decide_unit(self, plan: Plan, *, joint: bool) -> Unit | None:
        if self._worker is None or not self._worker.has_work():
            return None
        self._unit = unit = self._worker.next_unit(plan.now, joint=joint)
        try:
            await unit.decide(plan)
        except Exception as error:  # noqa: BLE001 - the worker goes on whatever a storage raises or answers
            unit.returned()
            self._unit = None
            self._faults.back_off(error)
            return None
        return unit

    async def _decide_call(self, call: Call[Any], plan: Plan) -> bool:
        try:
            call.answer = await drive(call.decide(plan), plan, self._storage)
        except StorageReadError as error:
            call.fail(error.error)
            return False
        except Exception as error:  # noqa: BLE001 - handed to the caller
            call.fail(error)
            return False
        call.plan = plan
        return True

    async def _alone(self, call: Call[Any]) -> None:
        plan = Plan(self._clock.now())
        if not await self._decide_call(call, plan):
            return
        try:
            await self._write(plan)
        except Exception as error:  # noqa: BLE001 - handed to the caller
            await self._fail_call(call, error)
        else:
            self._finish_call(call)

    async def _fail_call(self, call: Call[Any], error: Exception) -> None:
        """Give a caller the error of the write, which may have been carried out all the same."""
        assert call.plan is not None
        try:
            part = await stored_part(call.plan, self._storage)
        except Exception:  # noqa: BLE001 - the caller gets the first error, and the worker will look for itself
            call.fail(error)
            if self._worker is not None:
                self._worker.doubt()
            return
        call.fail(error)
        if len(part.records) == len(call.plan.records):
            self._finish_call(call)
        elif not self._storage.atomic:
            self._conclude(part)

    async def _decide_again(self, call: Call[Any]) -> None:
        """Bring a call through whose joint write failed: it may have been written all the same (S13.3)."""
        plan = call.plan
        assert plan is not None
        if not plan.records:
            # What it was decided on may have been the change of another call, which is not stored after all.
            await self._alone(call)
            return
        try:
            part = await stored_part(plan, self._storage)
        except Exception as error:  # noqa: BLE001 - handed to the caller
            call.fail(error)
            if self._worker is not None:
                self._worker.doubt()
            return
        if len(part.records) == len(plan.records):
            self._finish_call(call)
        else:
            await self._alone(call)

    async def _persist(self, unit: Unit, plan: Plan) -> None:
        """Write the worker's part again, then task by task; nothing overtakes it meanwhile (S10.3, S13.3)."""
        for _ in range(JOINT_FAILURES - 1):
            await self._faults.wait()
            if await self._try_unit(unit, plan):
                return
        await self._faults.wait()
        if await self._was_written(unit, plan):
            return
        await self._try_pieces(deque(unit.split()), all_of_them=True)

    async def _try_pieces(self, pieces: deque[Unit], *, all_of_them: bool) -> None:
        """Write pieces one by one and set aside what fails.

        Args:
            pieces: what to try; empty afterwards.
            all_of_them: otherwise the first failure is taken for an outage, and those behind it come first next time.
        """
        try:
            while pieces:
                piece = pieces.popleft()
                await self._try_piece(piece, before=() if all_of_them else pieces)
                if piece.is_aside and not all_of_them:
                    pieces.clear()
        finally:
            # Not empty only when the step is given up in the middle.
            for piece in pieces:
                piece.set_aside()
            self._unit = None

    async def _try_piece(self, piece: Unit, *, before: Iterable[Unit]) -> None:
        """Decide and write one piece, and set it aside when that fails and it is certain that it is not written."""
        self._unit = piece
        plan = Plan(self._clock.now())
        try:
            await piece.decide(plan)
        except Exception as error:  # noqa: BLE001 - the worker goes on whatever a storage raises
            plan = Plan(plan.now)
            piece.failures += 1
            self._faults.report("read", error, piece.failures)
        else:
            if await self._try_unit(piece, plan):
                return
        for unit in (*before, piece):
            # At once, because the delay counts from the failure.
            unit.set_aside()
        if plan.records and await self._was_written(piece, plan):
            piece.withdraw()

    async def _try_unit(self, unit: Unit, plan: Plan) -> bool:
        try:
            await self._write(plan)
        except Exception as error:  # noqa: BLE001 - any exception of an adapter is a fault of the storage
            self._report_write(unit, error)
            return False
        self._finish_unit(unit, plan)
        return True

    async def _was_written(self, unit: Unit, plan: Plan) -> bool:
        """Find out what became of a write that failed, however long the storage takes to say so (S10.3)."""
        while True:
            try:
                part = await stored_part(plan, self._storage)
            except Exception as error:  # noqa: BLE001 - any exception of an adapter is a fault of the storage
                self._faults.report("get_many", error)
                await self._faults.wait()
            else:
                break
        if len(part.records) == len(plan.records):
            self._finish_unit(unit, plan)
            return True
        if not self._storage.atomic:
            self._conclude(part)
        return False

    def _report_write(self, unit: Unit, error: Exception) -> None:
        unit.failures += 1
        self._faults.report("apply", error, unit.failures, is_write=True)

    async def _write(self, plan: Plan) -> None:
        changes = plan.changes()
        if changes:
            await self._storage.apply(changes)

    def _finish_unit(self, unit: Unit, plan: Plan) -> None:
        self._faults.clear(
            wrote=bool(plan.records), quiet=self._worker is not None and self._worker.has_aside
        )
        self._conclude(plan)
        unit.written()
        self._unit = None

    def _finish_call(self, call: Call[Any]) -> None:
        assert call.plan is not None
        self._conclude(call.plan)
        call.succeed()

    def _conclude(self, plan: Plan) -> None:
        if self._worker is not None:
            self._worker.observe(plan)
        self._publish(plan)
