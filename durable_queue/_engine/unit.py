"""The units of work that the worker has the ledger write: outcomes, chores and claims."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from durable_queue._core import transitions
from durable_queue._core.ordering import is_eligible, is_expired
from durable_queue._core.plan import Plan
from durable_queue._core.work import Ended, judge_inserted, put_claim, work
from durable_queue._engine.attempt import Attempt
from durable_queue._engine.view import ask, drive
from durable_queue.errors import CorruptRecordError
from durable_queue.outcomes import PutBack
from durable_queue.tasks import StoredTask, TaskStatus

if TYPE_CHECKING:
    from durable_queue._engine.worker import SlotWorker


class WorkUnit:
    """Outcomes, then chores (expiries, deadlines, judgements), then claims, as one write.

    Args:
        worker: whose work it is.
        attempts: what has ended.
        at: when, fixed here so that writing an outcome again writes the same record (S10.1).
        free_slots: how many tasks may be claimed.
        chores: whether to see to chores.
        fractions: the random numbers for jitter, of an earlier unit with the same attempts.
        failures: how often the write has failed in a row.

    Attributes:
        claimed: the claimed records, once it is decided.
        failures: as above.
        is_aside: whether it is set aside.
    """

    def __init__(
        self,
        worker: SlotWorker,
        attempts: Sequence[Attempt],
        *,
        at: datetime,
        free_slots: int = 0,
        chores: bool = False,
        fractions: Sequence[float] = (),
        failures: int = 0,
    ) -> None:
        self.claimed: list[StoredTask] = []
        self.failures = failures
        self.is_aside = False
        self._worker = worker
        self._attempts = attempts
        self._at = at
        self._free_slots = free_slots
        self._chores = chores
        self._fractions = list(fractions)
        self._inserted: list[str] = []
        self._late: list[tuple[datetime, str]] = []
        self._asked_for_claims = False

    async def decide(self, plan: Plan) -> None:
        """Fill the plan."""
        worker, agenda = self._worker, self._worker.agenda
        ends = self._take_ends()
        if self._chores:
            await self._look_elsewhere()
            await agenda.look_for_expiries(plan.now)
            self._inserted = worker.take_inserted()
            self._late = agenda.take_late(plan.now)
            if self._inserted:
                await drive(judge_inserted(plan, self._inserted), plan, worker.storage)
        self._asked_for_claims = self._free_slots > 0 and agenda.claims
        self.claimed = await drive(
            work(
                plan,
                ends,
                expire=self._chores and agenda.expiries,
                late_hand_offs=[task_id for _, task_id in self._late],
                late_outcome=worker.late_outcome,
                free_slots=self._free_slots if self._asked_for_claims else 0,
                without=worker.claims_aside(),
            ),
            plan,
            worker.storage,
            worker.ahead,
        )
        if self._chores and agenda.expiries:
            agenda.looked_for_expired(plan)
        if self._asked_for_claims and not self.claimed and not plan.hides_ready:
            agenda.found_nothing(plan.now)

    def written(self) -> None:
        """Free the slots of the written outcomes and call the handlers of the written claims."""
        for attempt in self._attempts:
            self._worker.release(attempt)
            if isinstance(attempt.outcome, PutBack):
                self._worker.put_back.append(attempt.task.id)
            attempt.answer_early_report(written=True)
        for task in self.claimed:
            self._worker.start(task)
        if self._asked_for_claims and self.claimed:
            # The storage may have answered with fewer than there are.
            self._worker.agenda.claims = True

    def returned(self) -> None:
        """Take the work back."""
        self._release_ends()
        self._worker.take_back([attempt for attempt in self._attempts if self._worker.holds(attempt)])
        self._worker.keep_inserted(self._inserted)
        self._worker.agenda.keep_late(self._late)
        self.claimed = []

    def set_aside(self) -> None:
        """Try again later and alone."""
        self._release_ends()
        self._worker.put_aside(self)

    def withdraw(self) -> None:
        """Forget that it was set aside: it has been written after all."""
        self._worker.withdraw(self)

    def split(self) -> list[WorkUnit]:
        """Return one unit for each outcome and then for each claim; chores are found again."""
        ends = [
            WorkUnit(self._worker, [attempt], at=self._at, fractions=[fraction], failures=self.failures)
            for attempt, fraction in zip(self._attempts, self._fractions, strict=True)
        ]
        claims = [ClaimUnit(self._worker, task, failures=self.failures) for task in self.claimed]
        self._worker.keep_inserted(self._inserted)
        self._worker.agenda.keep_late(self._late)
        self._worker.agenda.expiries = self._chores
        return [*ends, *claims]

    def _take_ends(self) -> list[Ended]:
        while len(self._fractions) < len(self._attempts):
            self._fractions.append(self._worker.random_fraction())
        ends = []
        for attempt, fraction in zip(self._attempts, self._fractions, strict=True):
            task, outcome = attempt.conclusion()
            attempt.is_being_written = True
            ends.append(Ended(task=task, outcome=outcome, at=self._at, fraction=fraction))
        return ends

    def _release_ends(self) -> None:
        for attempt in self._attempts:
            attempt.is_being_written = False

    async def _look_elsewhere(self) -> None:
        agenda = self._worker.agenda
        if agenda.elsewhere:
            inserted = await ask("changes_elsewhere", self._worker.storage.changes_elsewhere())
            agenda.elsewhere = False
            agenda.arm_poll()
            if inserted is not None:
                self._worker.keep_inserted(inserted)
                agenda.begin()


class ClaimUnit(WorkUnit):
    """One claim whose write has failed, to be tried alone.

    Others have gone on meanwhile: the task may have been cancelled, its dependency may not be settled after all, and
    the slot may be taken. So it is looked at again.
    """

    def __init__(self, worker: SlotWorker, task: StoredTask, *, failures: int) -> None:
        super().__init__(worker, [], at=task.updated_at, failures=failures)
        self.claimed = [task]
        self._task = task

    async def decide(self, plan: Plan) -> None:
        """Claim the task if it can still be claimed; otherwise change nothing."""
        worker = self._worker
        try:
            stored = await worker.storage.get(self._task.id)
        except CorruptRecordError:
            stored = None
        self.claimed = []
        if stored is not None and _is_claim(stored, self._task):
            self.claimed = [stored]
        elif (
            stored is not None
            and is_eligible(stored, plan.now)
            and not is_expired(stored, plan.now)
            and worker.may_claim
            and worker.free_slots() > 0
        ):
            self.claimed = [transitions.claim(stored, plan.now)]
        for task in self.claimed:
            put_claim(plan, task)
        worker.agenda.claims = True


def _is_claim(stored: StoredTask, claimed: StoredTask) -> bool:
    """Whether a claim had been written after all, though perhaps with a request to cancel by now."""
    return (
        stored.status is TaskStatus.RUNNING
        and stored.attempts == claimed.attempts
        and stored.hand_off_reference is None
    )
