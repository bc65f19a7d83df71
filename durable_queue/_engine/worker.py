"""The worker: slots, claims, outcomes (S3, S5). It decides through the core and writes through the ledger."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from durable_queue._core.plan import Plan
from durable_queue._engine import neighbours
from durable_queue._engine.agenda import Agenda
from durable_queue._engine.ahead import ReadAhead
from durable_queue._engine.attempt import Attempt, Stopped, failed_outcome
from durable_queue._engine.duties import Unit
from durable_queue._engine.faults import Faults
from durable_queue._engine.registry import Registry
from durable_queue._engine.threads import HandlerThreads
from durable_queue._engine.unit import WorkUnit
from durable_queue._engine.view import ask
from durable_queue.clock import QueueClock, TimerHandle
from durable_queue.errors import CorruptRecordError, HandOffExpiredError
from durable_queue.outcomes import Outcome
from durable_queue.storage import QueueStorage
from durable_queue.tasks import StoredTask, TaskStatus

OUTCOMES_PER_STEP = 256
"""How many outcomes share one write at most."""

TEARDOWN = timedelta(seconds=1)
"""How long nothing is claimed after the program has begun to be torn down: a task that was claimed in a loop about to
end would lose an attempt. A loop that lives longer than this goes on (S13.5)."""

INSERTED_PER_STEP = 100
"""How many waiting tasks that others have inserted are judged in one step."""


class SlotWorker:
    """Runs handlers in a bounded number of slots.

    Attributes:
        attempts: the claimed tasks by id, from the claim's write to the outcome's.
        claiming: whether it may claim; false while paused or stopping.
        put_back: ids of the attempts that a stop has taken back so far.
        calls_off: whether a claim that comes through is taken back at once; true when the grace of a stop is over.
    """

    def __init__(
        self,
        queue: object,
        storage: QueueStorage,
        clock: QueueClock,
        registry: Registry,
        faults: Faults,
        *,
        slots: int,
        random_fraction: Callable[[], float],
        wake: Callable[[], object],
        ended: Callable[[], object],
    ) -> None:
        self.attempts: dict[str, Attempt] = {}
        self.claiming = False
        self.working = False
        self.put_back: list[str] = []
        self.calls_off = False
        self.ahead = ReadAhead(storage, slots, self.attempts.keys)
        self.agenda = Agenda(clock, storage, self.ahead, wake)
        self.storage = storage
        self.clock = clock
        self.registry = registry
        self.random_fraction = partial(_draw, random_fraction)
        self._queue = queue
        self._faults = faults
        self._slots = slots
        self._wake = wake
        self._on_ended = ended
        self._threads = HandlerThreads()
        self._ended: deque[Attempt] = deque()
        self._inserted: list[str] = []
        self._reported_unreadable: set[str | None] = set()
        # Work whose own write keeps failing while that of others succeeds; each piece holds its slot (S13.3).
        self._aside: list[WorkUnit] = []
        self._aside_due = False
        self._aside_timer: TimerHandle | None = None
        self._teardown: TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self, *, claiming: bool) -> None:
        """Start working."""
        self.working = True
        self.claiming = claiming
        self.calls_off = False
        self.put_back.clear()
        self.agenda.begin()
        self._loop = asyncio.get_running_loop()
        neighbours.arrive(self.storage, self)

    def end(self) -> None:
        """Stop working; what is not written is recovered at the next start."""
        self.working = self.claiming = False
        neighbours.leave(self.storage, self)
        self.agenda.end()
        self._faults.reset()
        self._ended.clear()
        self._aside.clear()
        self._aside_due = False
        for timer in (self._aside_timer, self._teardown):
            if timer is not None:
                timer.cancel()
        self._aside_timer = self._teardown = None

    @property
    def may_claim(self) -> bool:
        """Whether it may claim just now."""
        return self.claiming and self._teardown is None

    @property
    def is_idle(self) -> bool:
        """Whether no attempt is under way or unwritten and nothing is known to be ready."""
        return not (self.attempts or self._ended or self._aside or self.agenda.claims) and (
            not self._faults.is_backing_off
        )

    @property
    def running(self) -> list[Attempt]:
        """The attempts whose handlers have not ended."""
        return [attempt for attempt in self.attempts.values() if attempt.is_running]

    def free_slots(self, being_freed: int = 0) -> int:
        """Return how many tasks may be claimed.

        Args:
            being_freed: how many slots the step under way gives back.
        """
        return self._slots - len(self.attempts) - len(self.claims_aside()) + being_freed

    def claims_aside(self) -> list[str]:
        """Return the ids of the claims whose own write keeps failing."""
        return [task.id for unit in self._aside for task in unit.claimed]

    def has_work(self) -> bool:
        """Whether a unit is due now."""
        if not self.working or self._faults.is_backing_off:
            return False
        agenda = self.agenda
        return bool(
            self._ended
            or self._aside_due
            or self._inserted
            or agenda.elsewhere
            or agenda.expiries
            or agenda.has_late
            or (agenda.claims and self.may_claim and self.free_slots() > 0)
        )

    def next_unit(self, now: datetime, *, joint: bool) -> Unit:
        """Return the work that is due; the smallest piece of it unless `joint`."""
        most = OUTCOMES_PER_STEP if joint else 1
        attempts = [self._ended.popleft() for _ in range(min(most, len(self._ended)))]
        # A storage that is not atomic gets an outcome, a cascade or a claim at a time.
        free = self.free_slots(len(attempts)) if self.may_claim else 0
        if not joint:
            free = 0 if attempts or self.agenda.expiries else min(free, 1)
        return WorkUnit(self, attempts, at=now, free_slots=max(0, free), chores=True)

    def observe(self, plan: Plan) -> None:
        """See what has been written: keep the records of running attempts current, and the agenda."""
        for task_id, task in plan.records.items():
            attempt = self.attempts.get(task_id)
            if attempt is not None and task is not None and task.status is TaskStatus.RUNNING:
                attempt.task = task
        if self.working:
            self.agenda.observe(plan)
            self.ahead.observe(plan)

    async def before_idle(self) -> None:
        """Report what could not be read, learn when to wake up, and arm the timers."""
        if not self.working or self._faults.is_backing_off:
            return
        if not self.attempts:
            # Nothing is pressing: what comes next is claimed after a fresh look.
            self.ahead.forget()
        try:
            await ask("take_unreadable", self.report_unreadable())
            await self.agenda.learn()
        except Exception as error:  # noqa: BLE001 - any exception of an adapter is a fault of the storage
            self._faults.back_off(error)
            return
        if self.working:
            self.agenda.look()
            self.agenda.arm(claims=self.may_claim and self.free_slots() > 0)

    async def report_unreadable(self) -> list[CorruptRecordError]:
        """Report each record that cannot be read, once (S7.3); return what queries have met since the last time."""
        met = await self.storage.take_unreadable()
        for error in met:
            if error.task_id not in self._reported_unreadable:
                self._reported_unreadable.add(error.task_id)
                self._faults.announce("read a record", error)
        return met

    def start(self, task: StoredTask) -> None:
        """Call the handler of a task whose claim is written."""
        attempt = Attempt(
            self._queue,
            task,
            self.registry.named(task.type),
            clock=self.clock,
            threads=self._threads,
            read_results=lambda: self._read_results(task),
            on_end=self._attempt_ended,
        )
        self.attempts[task.id] = attempt
        if self.calls_off:
            attempt.stop(Stopped.GRACE)

    def release(self, attempt: Attempt) -> None:
        """Give the slot of an attempt back, its outcome being written or given up."""
        if self.holds(attempt):
            del self.attempts[attempt.task.id]

    def holds(self, attempt: Attempt) -> bool:
        """Whether the outcome of an attempt is neither written nor given up."""
        return self.attempts.get(attempt.task.id) is attempt

    def take_back(self, attempts: Sequence[Attempt]) -> None:
        """Queue outcomes again that could not be decided."""
        self._ended.extendleft(reversed(attempts))

    def hear(self, waiting: Sequence[str]) -> None:
        """Look again: another queue of this program has written to the storage (S13.6)."""
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._take_in, waiting)
        else:
            self._take_in(waiting)

    def _take_in(self, waiting: Sequence[str]) -> None:
        if self.working:
            self.keep_inserted(waiting)
            self.agenda.begin()
            self._wake()

    def keep_inserted(self, ids: Sequence[str]) -> None:
        """Remember waiting tasks that others have inserted until they are judged."""
        self._inserted.extend(ids)

    def take_inserted(self) -> list[str]:
        """Return, and forget, some of the waiting tasks that others have inserted."""
        ids, self._inserted = self._inserted[:INSERTED_PER_STEP], self._inserted[INSERTED_PER_STEP:]
        return ids

    @property
    def has_aside(self) -> bool:
        """Whether some work is set aside."""
        return bool(self._aside)

    def take_aside(self) -> list[WorkUnit]:
        """Return, and forget, the pieces that were set aside and are to be tried again now."""
        if not self._aside_due:
            return []
        self._aside_due = False
        pieces, self._aside = self._aside, []
        for piece in pieces:
            piece.is_aside = False
        return pieces

    def withdraw(self, unit: WorkUnit) -> None:
        """Forget that a unit was set aside."""
        if unit.is_aside:
            unit.is_aside = False
            self._aside.remove(unit)

    def distrust(self) -> None:
        """Forget what was read ahead: a write has failed, or has perhaps been carried out."""
        self.ahead.forget()

    def doubt(self) -> None:
        """Look at the storage anew: a write of somebody else may have been carried out."""
        if self.working:
            self.agenda.begin()

    def put_aside(self, unit: WorkUnit) -> None:
        """Try a unit again on its own after the delay."""
        unit.is_aside = True
        self._aside.append(unit)
        if self._aside_timer is None:
            self._aside_timer = self.clock.call_later(self._faults.delay, self._aside_is_due)

    def late_outcome(self, task: StoredTask) -> Outcome:
        """Make the outcome of a hand-off whose deadline is over (S9.4)."""
        error = HandOffExpiredError(f"no report had come by {task.hand_off_deadline}")
        return failed_outcome(task, self.registry.named(task.type), error, at=self.clock.now())

    async def _read_results(self, task: StoredTask) -> dict[str, Any]:
        stored = await self.storage.get_many(task.depends_on) if task.depends_on else {}
        return {
            task_id: stored[task_id].result
            for task_id in task.depends_on
            if task_id in stored and stored[task_id].status is TaskStatus.COMPLETED
        }

    def _attempt_ended(self, attempt: Attempt) -> None:
        if not self.holds(attempt):
            # Stop has given it up: its outcome comes too late and is dropped (S13.4).
            self._on_ended()
            return
        if attempt.outcome is None:
            # The program is being torn down; the task is recovered at the next start (S13.5).
            attempt.answer_early_report(written=False)
            self.release(attempt)
            self.torn_down()
        else:
            self._ended.append(attempt)
        self._on_ended()

    def torn_down(self) -> None:
        """Claim nothing for a moment: the program may be at its end (S13.5)."""
        if self.working and self._teardown is None:
            self._teardown = self.clock.call_later(TEARDOWN, self._teardown_is_over)

    def _teardown_is_over(self) -> None:
        self._teardown = None
        self._wake()

    def _aside_is_due(self) -> None:
        self._aside_timer = None
        self._aside_due = bool(self._aside)
        self._wake()


def _draw(random_fraction: Callable[[], float]) -> float:
    """Ask the source of jitter; a faulty one must not cost the task its outcome."""
    try:
        fraction = float(random_fraction())
    except Exception:  # noqa: BLE001 - whatever it raises, the wait is that without jitter
        return 0.5
    return fraction if 0 <= fraction < 1 else 0.5
