"""The verdict on one attempt: outcome in, new record and event out (S5, S7.2, S7.5, S9)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from durable_queue._core import transitions
from durable_queue._core.ends import put_ended
from durable_queue._core.failures import cancelled_failure, interrupted_failure
from durable_queue._core.plan import Plan
from durable_queue.clock import LONGEST_WAIT, later
from durable_queue.events import (
    TaskHandedOff,
    TaskRetryScheduled,
)
from durable_queue.outcomes import Completed, Failed, HandedOff, Interrupted, Outcome, PutBack
from durable_queue.tasks import StoredTask, TaskFailure


def conclude(
    plan: Plan, task: StoredTask, outcome: Outcome, *, random_fraction: Callable[[], float]
) -> StoredTask:
    """Put the record that an outcome leads to into the plan, and announce it.

    Args:
        plan: takes the record and the event; its `now` is when the attempt ended.
        task: the running record.
        outcome: how the attempt ended.
        random_fraction: the source of jitter.

    Returns:
        The new record; terminal or not.
    """
    if isinstance(outcome, Completed):
        return _complete(plan, task, outcome)
    if isinstance(outcome, Failed):
        return _fail(plan, task, outcome, random_fraction)
    if isinstance(outcome, HandedOff):
        return _hand_off(plan, task, outcome)
    if isinstance(outcome, PutBack):
        return _put_back(plan, task)
    return _interrupt(plan, task, outcome, random_fraction)


def _complete(plan: Plan, task: StoredTask, outcome: Completed) -> StoredTask:
    record = transitions.complete(task, outcome.result_text, plan.now)
    return put_ended(plan, record, duration=outcome.duration)


def _fail(plan: Plan, task: StoredTask, outcome: Failed, random_fraction: Callable[[], float]) -> StoredTask:
    if task.cancel_requested or outcome.cancels:
        return _cancel(plan, task, outcome.failure)
    if outcome.may_retry and task.attempts < task.retry_policy.max_attempts:
        delay = outcome.delay
        if delay is None:
            delay = task.retry_policy.delay_after(task.attempts, random_fraction)
        return _retry(plan, task, outcome.failure, delay, outcome.duration)
    return put_ended(plan, transitions.fail(task, outcome.failure, plan.now), duration=outcome.duration)


def _retry(
    plan: Plan, task: StoredTask, failure: TaskFailure, delay: timedelta, duration: timedelta | None
) -> StoredTask:
    due: datetime = later(plan.now, min(delay, LONGEST_WAIT))
    plan.events.append(_retry_event(plan, task, failure, due, duration))
    record = transitions.schedule_retry(task, failure, due, plan.now)
    plan.put(record)
    return record


def _retry_event(
    plan: Plan, task: StoredTask, failure: TaskFailure, due: datetime, duration: timedelta | None = None
) -> TaskRetryScheduled:
    return TaskRetryScheduled(
        task_id=task.id,
        task_type=task.type,
        at=plan.now,
        attempt=task.attempts,
        failure=failure,
        next_attempt_at=due,
        duration=duration,
    )


def _hand_off(plan: Plan, task: StoredTask, outcome: HandedOff) -> StoredTask:
    handed_off = transitions.hand_off(task, outcome.reference, outcome.deadline, plan.now)
    if task.cancel_requested:
        # S13.10: nobody would stop the outside work any more. The reference stays, so that a late report is told apart.
        return _cancel(plan, handed_off, cancelled_failure(task, at=plan.now))
    plan.put(handed_off)
    plan.events.append(
        TaskHandedOff(
            task_id=task.id,
            task_type=task.type,
            at=plan.now,
            attempt=task.attempts,
            reference=outcome.reference,
        )
    )
    return handed_off


def _put_back(plan: Plan, task: StoredTask) -> StoredTask:
    if task.cancel_requested:
        return _cancel(plan, task, cancelled_failure(task, at=plan.now))
    record = transitions.put_back(task, plan.now)
    plan.put(record)
    return record


def _interrupt(
    plan: Plan, task: StoredTask, outcome: Interrupted, random_fraction: Callable[[], float]
) -> StoredTask:
    failure = interrupted_failure(task, at=plan.now)
    task = transitions.count_interruption(task)
    if task.cancel_requested:
        return _cancel(plan, task, failure)
    if outcome.most is not None and task.interruptions > outcome.most:
        return _fail(plan, task, Failed(failure=failure, may_retry=False), random_fraction)
    if outcome.uses_attempt:
        return _fail(plan, task, Failed(failure=failure), random_fraction)
    record = transitions.put_back(task, plan.now, last_failure=failure)
    plan.put(record)
    plan.events.append(_retry_event(plan, task, failure, plan.now))
    return record


def _cancel(plan: Plan, task: StoredTask, failure: TaskFailure) -> StoredTask:
    return put_ended(plan, transitions.cancel(task, plan.now, failure))
