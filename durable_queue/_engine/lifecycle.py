"""Start, pause, resume, drain and stop (S7)."""

from __future__ import annotations

import asyncio
import contextvars
from datetime import timedelta
from enum import Enum

import attrs

from durable_queue._core.plan import Decision, Page, Plan
from durable_queue._core.recovery import recover_batch
from durable_queue._engine.attempt import Attempt, Stopped
from durable_queue._engine.ledger import Ledger
from durable_queue._engine.watch import Watch
from durable_queue._engine.worker import SlotWorker
from durable_queue.clock import QueueClock, TimerHandle
from durable_queue.errors import QueueClosedError, QueueStateError
from durable_queue.storage import QueueStorage, pages
from durable_queue.tasks import CLAIMABLE_STATUSES, StoredTask, TaskStatus

LAST_SECOND = timedelta(seconds=1)
"""How long cancelled handlers have to end after the grace of a stop is over (S13.4)."""


class RunState(Enum):
    """What a queue is doing."""

    IDLE = "idle"
    """Not started, or stopped: nothing runs."""
    RUNNING = "running"
    PAUSED = "paused"
    """Running handlers go on, nothing is claimed."""
    STOPPING = "stopping"
    """Waiting for running handlers to end."""


@attrs.frozen(kw_only=True)
class DrainResult:
    """What is left after `DurableQueue.drain` (S7.8).

    Attributes:
        scheduled: tasks that are due later.
        waiting: tasks that wait for a dependency.
        handed_off: tasks that wait for outside work.
        held: tasks that are held, whatever their status.
    """

    scheduled: int
    waiting: int
    handed_off: int
    held: int


class Lifecycle:
    """Moves one queue between its run states."""

    def __init__(
        self, storage: QueueStorage, clock: QueueClock, ledger: Ledger, worker: SlotWorker, watch: Watch
    ) -> None:
        self.state = RunState.IDLE
        self.is_closing = False
        self._storage = storage
        self._clock = clock
        self._ledger = ledger
        self._worker = worker
        self._watch = watch
        self._starting = False
        self._stopping: asyncio.Task[list[str]] | None = None
        self._grace_timer: TimerHandle | None = None
        self._grace_ends: float | None = None
        self._grace_over = False
        # Handlers that a stop could not end; while one lives the consumer claim is kept (S13.4).
        self._stubborn: list[Attempt] = []

    @property
    def is_consumer(self) -> bool:
        """Whether this queue is the one that ends tasks."""
        return self.state is not RunState.IDLE

    @property
    def is_quiet(self) -> bool:
        """Whether no loop need be kept: idle, with nothing under way."""
        return self.state is RunState.IDLE and not self._starting and self._ledger.is_idle

    async def start(self, *, paused: bool) -> None:
        """Recover, then claim; see `DurableQueue.start`."""
        if self.is_closing:
            raise QueueClosedError("the queue is being closed; make a new DurableQueue over the same storage")
        self._forget_ended()
        if self._stubborn:
            names = ", ".join(repr(attempt.task.id) for attempt in self._stubborn)
            raise QueueStateError(f"handlers that ignored the last stop are still running: tasks {names}")
        if self.state is not RunState.IDLE or self._starting:
            state = "being started already" if self._starting else self.state.value
            raise QueueStateError(f"the queue is {state}; only an idle queue can be started")
        self._starting = True
        self._ledger.context = contextvars.copy_context()
        try:
            try:
                # A cancelled start may leave the claim to be taken by a step that is under way: released below.
                await self._ledger.exclusive(self._acquire)
                await self._recover()
                await self._judge_stranded()
            except BaseException:
                await asyncio.shield(self._ledger.exclusive(self._give_up_claim))
                raise
            self.state = RunState.PAUSED if paused else RunState.RUNNING
            self._worker.begin(claiming=not paused)
        finally:
            self._starting = False
            self._watch.notify()
        self._ledger.kick()

    async def pause(self) -> None:
        """Return once no claim can follow; running handlers go on."""
        self._require(RunState.RUNNING, RunState.PAUSED, verb="paused")
        self.state = RunState.PAUSED
        self._worker.claiming = False
        self._watch.notify()
        await self._ledger.exclusive(_nothing)

    async def resume(self) -> None:
        """Claim again."""
        self._require(RunState.RUNNING, RunState.PAUSED, verb="resumed")
        self.state = RunState.RUNNING
        self._worker.claiming = True
        self._worker.agenda.claims = True
        self._ledger.kick()

    async def drain(self, within: timedelta, timeout: timedelta | None) -> DrainResult:
        """Wait until nothing runs and nothing is or becomes ready within that time; see `DurableQueue.drain`."""
        self._require(RunState.RUNNING, verb="drained")
        began = self._clock.monotonic()
        late = False

        def over() -> None:
            nonlocal late
            late = True
            self._watch.notify()

        def drained() -> bool:
            if self.state is not RunState.RUNNING:
                raise QueueStateError(f"the queue became {self.state.value} while it was being drained")
            if self._ledger.is_idle and self._worker.is_idle and self._is_clear(within, began):
                return True
            if late:
                raise TimeoutError(f"the queue was not drained within {timeout}")
            return False

        timer = None if timeout is None else self._clock.call_later(timeout, over)
        self._ledger.kick()
        try:
            await self._watch.until(drained)
        finally:
            if timer is not None:
                timer.cancel()
        return await self._ledger.exclusive(self._remains)

    async def stop(self, grace: timedelta | None) -> list[str]:
        """Wait for running handlers, at most for the grace; see `DurableQueue.stop`."""
        await self._watch.until(lambda: not self._starting)
        if self._stopping is None:
            if self.state is RunState.IDLE:
                return []
            self.state = RunState.STOPPING
            self._worker.claiming = False
            self._grace_over = False
            self._grace_ends = None
            self._stopping = asyncio.get_running_loop().create_task(self._stop(), name="durable_queue stop")
            self._watch.notify()
        if grace is not None:
            self._shorten_grace(grace)
        # The stop goes on when one of those who wait for it is cancelled.
        return list(await asyncio.shield(self._stopping))

    async def crash(self) -> None:
        """Leave everything as the end of the process would, for tests: nothing more is written."""
        attempts = list(self._worker.attempts.values())
        self._worker.end()
        self._worker.attempts.clear()
        self._ledger.abandon()
        for attempt in attempts:
            attempt.tear_down()
        self.state = RunState.IDLE
        await self._give_up_claim()
        self._watch.notify()

    def _shorten_grace(self, grace: timedelta) -> None:
        ends = self._clock.monotonic() + grace.total_seconds()
        if self._grace_ends is not None and self._grace_ends <= ends:
            return
        self._grace_ends = ends
        if self._grace_timer is not None:
            self._grace_timer.cancel()
        self._grace_timer = self._clock.call_later(grace, self._end_grace)

    def _end_grace(self) -> None:
        self._grace_over = True
        self._watch.notify()

    async def _stop(self) -> list[str]:
        try:
            interrupted = await self._end_work()
            if not self._stubborn:
                await self._give_up_claim()
            return interrupted
        finally:
            if self._grace_timer is not None:
                self._grace_timer.cancel()
            self._grace_timer = None
            self.state = RunState.IDLE
            self._stopping = None
            self._watch.notify()

    async def _end_work(self) -> list[str]:
        worker = self._worker
        try:
            self._ledger.kick()
            await self._watch.until(lambda: self._grace_over or self._all_written())
            left = [] if self._all_written() else await self._interrupt()
            # A claim that could not be written may have been: its task is then recovered at the next start.
            return list(dict.fromkeys([*worker.put_back, *left, *worker.claims_aside()]))
        finally:
            worker.end()

    async def _interrupt(self) -> list[str]:
        """Cancel what is left, give it a last second, and return what could not be ended or written."""
        worker = self._worker
        worker.calls_off = True
        for attempt in worker.running:
            attempt.stop(Stopped.GRACE)
        over = False

        def end() -> None:
            nonlocal over
            over = True
            self._watch.notify()

        timer = self._clock.call_later(LAST_SECOND, end)
        try:
            await self._watch.until(lambda: over or self._all_written())
        finally:
            timer.cancel()
        left = list(worker.attempts)
        self._stubborn = worker.running
        for attempt in worker.attempts.values():
            attempt.answer_early_report(written=False)
        worker.attempts.clear()
        unit = self._ledger.abandon()
        if unit is not None:
            left.extend(task.id for task in unit.claimed)
        return left

    def _all_written(self) -> bool:
        return not self._worker.attempts and not self._ledger.has_unit

    async def _give_up_claim(self) -> None:
        try:
            await self._release()
        except Exception:  # noqa: BLE001 - the claim dies with the process; a stop must not fail because of it
            self._ledger.has_consumer = False

    async def _give_up_unused_claim(self) -> None:
        if self.state is RunState.IDLE and not self._starting:
            await self._give_up_claim()

    def stubborn_ended(self) -> None:
        """Give the consumer claim up once the last handler that ignored a stop has ended."""
        if not self._stubborn:
            return
        self._forget_ended()
        if not self._stubborn:
            # Between two steps, so that a start or a call that needs the claim comes whole before or after it.
            self._release_task = asyncio.get_running_loop().create_task(
                self._ledger.exclusive(self._give_up_unused_claim)
            )

    def _forget_ended(self) -> None:
        self._stubborn = [attempt for attempt in self._stubborn if attempt.is_running]

    async def _acquire(self) -> None:
        if not self._ledger.has_consumer:
            await self._storage.acquire_consumer()
            self._ledger.has_consumer = True

    async def _release(self) -> None:
        if self._ledger.has_consumer:
            self._ledger.has_consumer = False
            await self._storage.release_consumer()

    async def _recover(self) -> None:
        """Conclude interrupted tasks, batch by batch, each written before the next is read (S7.1)."""
        after: StoredTask | None = None
        while True:
            anchor = after

            def decide(plan: Plan, anchor: StoredTask | None = anchor) -> Decision[Page]:
                return recover_batch(
                    plan,
                    anchor,
                    rule_for=self._worker.registry.interruption_of,
                    random_fraction=self._worker.random_fraction,
                )

            page = await self._ledger.call(decide)
            if page.last is None:
                break
            for task in page.tasks:
                if task.hand_off_reference is not None:
                    self._worker.agenda.note_deadline(task)
            after = page.last
        await self._worker.report_unreadable()

    async def _judge_stranded(self) -> None:
        """Have waiting tasks judged that another process may have inserted while nobody consumed (S13.6)."""
        self._worker.keep_inserted(await self._storage.changes_elsewhere() or ())

    def _is_clear(self, within: timedelta, began: float) -> bool:
        due = self._worker.agenda.next_due
        if due is None:
            return True
        left = within.total_seconds() - (self._clock.monotonic() - began)
        return (due - self._clock.now()).total_seconds() > left

    async def _remains(self) -> DrainResult:
        counts = await self._storage.count_by_status()
        held = await self._storage.count_held()
        scheduled = counts[TaskStatus.PENDING] + counts[TaskStatus.RETRY_SCHEDULED]
        if held:
            # A waiting task can be held too, so that the two counts do not say how many are due later.
            scheduled = 0
            for status in CLAIMABLE_STATUSES:
                async for page in pages(self._storage, status):
                    scheduled += sum(not task.held for task in page)
        return DrainResult(
            scheduled=scheduled,
            waiting=counts[TaskStatus.WAITING],
            handed_off=counts[TaskStatus.RUNNING],
            held=held,
        )

    def _require(self, *states: RunState, verb: str) -> None:
        if self.state not in states:
            raise QueueStateError(f"the queue is {self.state.value}; only a started one can be {verb}")


async def _nothing() -> None:
    return None
