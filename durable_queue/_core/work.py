"""One step of the worker: outcomes in, then what has expired, then the next claims; one write in all (S13.2)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from functools import partial
from itertools import groupby
from operator import attrgetter

import attrs

from durable_queue._core import transitions
from durable_queue._core.ordering import is_expired
from durable_queue._core.plan import Decision, GetExpired, GetReady, GetTasks, Plan
from durable_queue._core.settlement import end_expired, judge_waiting, settle
from durable_queue._core.verdicts import conclude
from durable_queue.errors import CorruptRecordError
from durable_queue.events import TaskStarted
from durable_queue.outcomes import Outcome
from durable_queue.tasks import StoredTask, TaskStatus

EXPIRY_BATCH = 100


@attrs.frozen(kw_only=True)
class Ended:
    """An attempt that has ended and is not written yet.

    Attributes:
        task: the running record.
        outcome: how it ended.
        at: when, fixed here so that writing it again writes the same record (S10.1).
        fraction: the random number for its jitter, fixed for the same reason.
    """

    task: StoredTask
    outcome: Outcome
    at: datetime
    fraction: float


def conclude_all(plan: Plan, ended: Sequence[Ended]) -> list[StoredTask]:
    """Put the records of ended attempts into the plan; return those that are terminal now."""
    finished = []
    for at, group in groupby(ended, attrgetter("at")):
        # As of the moment that was fixed for them, whenever they are written.
        part = Plan(at, plan)
        for end in group:
            record = conclude(part, end.task, end.outcome, random_fraction=partial(float, end.fraction))
            if record.status.is_terminal:
                finished.append(record)
        plan.merge(part)
    return finished


def work(
    plan: Plan,
    ended: Sequence[Ended],
    *,
    expire: bool,
    late_hand_offs: Collection[str] = (),
    late_outcome: Callable[[StoredTask], Outcome],
    free_slots: int,
    without: Collection[str] = (),
) -> Decision[list[StoredTask]]:
    """Decide one step of the worker.

    Args:
        plan: takes everything.
        ended: the attempts that have ended since the last step.
        expire: whether to look for tasks whose time is over.
        late_hand_offs: tasks that may be handed off past their deadline (S9.4).
        late_outcome: makes the outcome of such a one.
        free_slots: how many tasks to claim at most.
        without: ids that must not be claimed.

    Returns:
        The claimed records, as they will be written.
    """
    # A judgement earlier in the step has ended tasks that the storage still takes for active.
    alone = not plan.records
    finished = conclude_all(plan, ended)
    if late_hand_offs:
        finished.extend((yield from _end_late(plan, late_hand_offs, late_outcome)))
    if expire:
        overdue: list[StoredTask] = yield GetExpired(EXPIRY_BATCH)
        finished.extend(end_expired(plan, task) for task in overdue)
    yield from settle(plan, finished, alone=alone)
    return (yield from claim(plan, free_slots, without))


def _end_late(
    plan: Plan, ids: Collection[str], late_outcome: Callable[[StoredTask], Outcome]
) -> Decision[list[StoredTask]]:
    stored = yield from _readable(ids)
    late = [
        Ended(task=task, outcome=late_outcome(task), at=plan.now, fraction=0.5)
        for task in stored.values()
        if task.status is TaskStatus.RUNNING
        and task.hand_off_deadline is not None
        and task.hand_off_deadline <= plan.now
    ]
    return conclude_all(plan, late)


def _readable(ids: Collection[str]) -> Decision[dict[str, StoredTask]]:
    """Ask for tasks by id and pass over what cannot be read: one record stops nothing (S7.3)."""
    try:
        stored: dict[str, StoredTask] = yield GetTasks(ids)
    except CorruptRecordError:
        # Only the look at a single id raises; several leave it out.
        return {}
    return stored


def claim(plan: Plan, free_slots: int, without: Collection[str]) -> Decision[list[StoredTask]]:
    """Claim the next tasks in ready order; one found past its `expires_at` is cancelled instead (S8.2)."""
    claimed: list[StoredTask] = []
    while len(claimed) < free_slots:
        ready: list[StoredTask] = yield GetReady(free_slots - len(claimed), without)
        late = [task for task in ready if is_expired(task, plan.now)]
        for task in ready:
            if task not in late:
                record = transitions.claim(task, plan.now)
                put_claim(plan, record)
                claimed.append(record)
        if not late:
            break
        yield from settle(plan, [end_expired(plan, task) for task in late])
    return claimed


def put_claim(plan: Plan, task: StoredTask) -> None:
    """Put a claimed record into the plan and announce its start."""
    plan.put(task)
    plan.events.append(TaskStarted(task_id=task.id, task_type=task.type, at=plan.now, attempt=task.attempts))


def judge_inserted(plan: Plan, ids: Collection[str]) -> Decision[None]:
    """Judge waiting tasks that another process has inserted (S13.6)."""
    stored = yield from _readable(ids)
    waiting = [task for task in stored.values() if task.status is TaskStatus.WAITING]
    ended = yield from judge_waiting(plan, waiting)
    yield from settle(plan, ended)
