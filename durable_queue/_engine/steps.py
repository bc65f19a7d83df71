"""One step: decide over the storage, write, and carry on; and what to do when the write fails (S10.1, S13.3)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from durable_queue._core.plan import Plan
from durable_queue._engine.call import Call
from durable_queue._engine.duties import Unit, Worker
from durable_queue._engine.faults import Faults
from durable_queue._engine.recheck import stored_part
from durable_queue._engine.view import StorageReadError, drive
from durable_queue.clock import QueueClock
from durable_queue.storage import QueueStorage

JOINT_FAILURES = 3
"""After how many failures a joint write of the worker is tried task by task (S13.3)."""


class Steps:
    """Carries out the steps that the ledger calls for, one at a time.

    Args:
        storage: where they are written.
        clock: what time they are decided at.
        faults: where failures of the storage are reported.
        publish: announces the events of a plan and whatever hangs on it, after its write.

    Attributes:
        worker: who takes part in the steps, if anybody.
        unit: the work of the worker that is being decided or written, if any.
    """

    def __init__(
        self, storage: QueueStorage, clock: QueueClock, faults: Faults, publish: Callable[[Plan], None]
    ) -> None:
        self.worker: Worker | None = None
        self.unit: Unit | None = None
        self._storage = storage
        self._clock = clock
        self._faults = faults
        self._publish = publish

    async def carry_out(self, calls: list[Call[Any]]) -> None:
        """Take the work of the worker and these calls through a step."""
        if self.worker is not None and self.worker.has_work():
            await self._try_pieces(deque(self.worker.take_aside()), all_of_them=False)
        if self._storage.atomic:
            await self._joint(calls)
        else:
            await self._single(calls)

    async def _joint(self, calls: list[Call[Any]]) -> None:
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
                if worker_plan.records and any(
                    task is None and worker_plan.knows(task_id) for task_id, task in call.plan.records.items()
                ):
                    # Should the write fail, the worker's part is written again: the record must still be there then.
                    later.append(call)
                    continue
                calls_plan.merge(call.plan)
                decided.append(call)
        try:
            await self._write(worker_plan, calls_plan)
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

    async def _single(self, calls: list[Call[Any]]) -> None:
        """Write piece by piece: the storage cannot keep a joint write whole."""
        if self.worker is not None and self.worker.has_work():
            plan = Plan(self._clock.now())
            unit = await self._decide_unit(plan, joint=False)
            if unit is not None and not await self._try_unit(unit, plan):
                await self._persist(unit, plan)
        for call in calls:
            if not call.future.done():
                await self._alone(call)

    async def _decide_unit(self, plan: Plan, *, joint: bool) -> Unit | None:
        if self.worker is None or not self.worker.has_work():
            return None
        self.unit = unit = self.worker.next_unit(plan.now, joint=joint)
        try:
            await unit.decide(plan)
        except Exception as error:  # noqa: BLE001 - the worker goes on whatever a storage raises or answers
            unit.returned()
            self.unit = None
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
            if self.worker is not None:
                self.worker.doubt()
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
            if self.worker is not None:
                self.worker.doubt()
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
            self.unit = None

    async def _try_piece(self, piece: Unit, *, before: Iterable[Unit]) -> None:
        """Decide and write one piece, and set it aside when that fails and it is certain that it is not written."""
        self.unit = piece
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

    async def _write(self, *plans: Plan) -> None:
        any_order = self._storage.atomic
        changes = [change for plan in plans for change in plan.changes(any_order=any_order)]
        if changes:
            try:
                await self._storage.apply(changes)
            except BaseException:
                if self.worker is not None:
                    self.worker.distrust()
                raise

    def _finish_unit(self, unit: Unit, plan: Plan) -> None:
        self._faults.clear(wrote=bool(plan.records), quiet=self.worker is not None and self.worker.has_aside)
        self._conclude(plan)
        unit.written()
        self.unit = None

    def _finish_call(self, call: Call[Any]) -> None:
        assert call.plan is not None
        self._conclude(call.plan)
        call.succeed()

    def _conclude(self, plan: Plan) -> None:
        if self.worker is not None:
            self.worker.observe(plan)
        self._publish(plan)
