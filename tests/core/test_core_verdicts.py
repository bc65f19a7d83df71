"""From the outcome of an attempt to the record and the event: the tables of S5.2, S7.2 and S13.1."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import attrs
import pytest

from durable_queue import (
    RetryPolicy,
    StoredTask,
    TaskCancelled,
    TaskCompleted,
    TaskFailed,
    TaskFailure,
    TaskHandedOff,
    TaskRetryScheduled,
    TaskStateError,
    TaskStatus,
)
from durable_queue._core.plan import Plan
from durable_queue._core.verdicts import conclude
from durable_queue._json import JsonText
from durable_queue.outcomes import Completed, Failed, HandedOff, Interrupted, Outcome, PutBack
from tests.core.world import EARLIER, NOW, record

PENDING, RUNNING, RETRY = TaskStatus.PENDING, TaskStatus.RUNNING, TaskStatus.RETRY_SCHEDULED
COMPLETED, FAILED, CANCELLED = TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED
THREE = RetryPolicy.fixed(max_attempts=3, delay=timedelta(minutes=1))
ERROR = TaskFailure(error="no", error_type="ValueError", failed_at=NOW, attempt=1)


def running(**fields: Any) -> StoredTask:
    fields.setdefault("attempts", 1)
    return record("t", status=RUNNING, updated_at=EARLIER, **fields)


def after(task: StoredTask, outcome: Outcome) -> tuple[StoredTask, list[Any]]:
    plan = Plan(NOW)
    concluded = conclude(plan, task, outcome, random_fraction=lambda: 0.5)
    assert plan.records == {"t": concluded}
    assert concluded.updated_at == NOW
    return concluded, plan.events


@pytest.mark.parametrize(
    ("attempts", "policy", "may_retry", "requested", "cancels", "expected"),
    [
        (1, RetryPolicy.none(), True, False, False, FAILED),
        (1, THREE, True, False, False, RETRY),
        (2, THREE, True, False, False, RETRY),
        (3, THREE, True, False, False, FAILED),
        (4, THREE, True, False, False, FAILED),
        (1, THREE, False, False, False, FAILED),
        (1, THREE, True, True, False, CANCELLED),
        (3, THREE, True, True, False, CANCELLED),
        (1, THREE, False, True, False, CANCELLED),
        (1, THREE, True, False, True, CANCELLED),
        (3, THREE, False, False, True, CANCELLED),
    ],
)
def test_a_failed_attempt(
    attempts: int,
    policy: RetryPolicy,
    *,
    may_retry: bool,
    requested: bool,
    cancels: bool,
    expected: TaskStatus,
) -> None:
    """S5.2, S6.1, S13.5: retried while attempts are left and it is allowed; cancelled when asked for or said so."""
    task = running(attempts=attempts, retry_policy=policy, cancel_requested=requested)
    concluded, (event,) = after(task, Failed(failure=ERROR, may_retry=may_retry, cancels=cancels))
    assert (concluded.status, concluded.attempts, concluded.last_failure) == (expected, attempts, ERROR)
    kinds = {FAILED: TaskFailed, RETRY: TaskRetryScheduled, CANCELLED: TaskCancelled}
    assert type(event) is kinds[expected]
    assert (event.task_id, event.task_type, event.at, event.failure) == ("t", "work", NOW, ERROR)
    if expected is RETRY:
        due = NOW + timedelta(minutes=1)
        assert concluded.next_attempt_at == event.next_attempt_at == due
        assert event.attempt == attempts


def test_the_wait_that_the_resolver_chose_goes_before_the_policy_and_is_at_most_a_year() -> None:
    """S5.2, S5.3: `retry_delay` chooses the wait; everything is at most 365 days."""
    for chosen, expected in ((timedelta(0), timedelta(0)), (timedelta(days=400), timedelta(days=365))):
        concluded, _ = after(running(retry_policy=THREE), Failed(failure=ERROR, delay=chosen))
        assert concluded.next_attempt_at == NOW + expected


def test_a_completed_attempt_keeps_its_result_and_the_history_of_its_failures() -> None:
    """S5.1, S6.1: a return completes, also with a request to cancel, and stores the result."""
    for requested in (False, True):
        task = running(attempts=2, cancel_requested=requested, last_failure=ERROR)
        duration = timedelta(seconds=2)
        concluded, events = after(task, Completed(result_text=JsonText("[1]"), duration=duration))
        assert concluded == attrs.evolve(task, status=COMPLETED, result=[1], updated_at=NOW)
        assert events == [TaskCompleted(task_id="t", task_type="work", at=NOW, attempt=2, duration=duration)]


def test_a_hand_off_leaves_the_task_running_under_its_reference() -> None:
    """S9.1: the reference and the deadline are on the record, and the event tells them."""
    deadline = NOW + timedelta(hours=1)
    concluded, (event,) = after(running(), HandedOff(reference="ref", deadline=deadline))
    assert (concluded.status, concluded.hand_off_reference, concluded.hand_off_deadline) == (
        RUNNING,
        "ref",
        deadline,
    )
    assert event == TaskHandedOff(task_id="t", task_type="work", at=NOW, attempt=1, reference="ref")


def test_a_hand_off_with_a_request_to_cancel_is_cancelled_and_keeps_the_reference() -> None:
    """S13.10: handed off with a request pending is cancelled; the reference stays until the next claim."""
    concluded, (event,) = after(running(cancel_requested=True), HandedOff(reference="ref"))
    assert (concluded.status, concluded.hand_off_reference) == (CANCELLED, "ref")
    assert isinstance(event, TaskCancelled)


def test_a_put_back_is_as_if_the_attempt_had_not_been_unless_a_cancellation_was_asked_for() -> None:
    """S7.5, S13.4: put back without counting the attempt and without an event; cancelled if a request is stored."""
    concluded, events = after(running(attempts=2), PutBack())
    assert (concluded.status, concluded.attempts, events) == (PENDING, 1, [])
    concluded, (event,) = after(running(attempts=2, cancel_requested=True), PutBack())
    assert (concluded.status, concluded.attempts, type(event)) == (CANCELLED, 2, TaskCancelled)


@pytest.mark.parametrize(
    ("attempts", "interruptions", "requested", "rule", "expected"),
    [
        # S7.2: a failed attempt like another.
        (1, 0, False, Interrupted(), RETRY),
        (2, 1, False, Interrupted(), RETRY),
        (3, 2, False, Interrupted(), FAILED),
        (1, 0, True, Interrupted(), CANCELLED),
        # Above the bound it fails, whatever attempts are left.
        (1, 2, False, Interrupted(most=3), RETRY),
        (1, 3, False, Interrupted(most=3), FAILED),
        (1, 0, False, Interrupted(most=0), FAILED),
        (1, 99, False, Interrupted(most=None), RETRY),
        (1, 3, True, Interrupted(most=3), CANCELLED),
        # S13.1: with rerun_interrupted it uses up no attempt; only the bound counts.
        (1, 0, False, Interrupted(uses_attempt=False), PENDING),
        (3, 2, False, Interrupted(uses_attempt=False), PENDING),
        (1, 3, False, Interrupted(uses_attempt=False, most=3), FAILED),
        (1, 99, False, Interrupted(uses_attempt=False, most=None), PENDING),
        (1, 0, True, Interrupted(uses_attempt=False, most=None), CANCELLED),
    ],
)
def test_an_interruption(
    attempts: int, interruptions: int, *, requested: bool, rule: Interrupted, expected: TaskStatus
) -> None:
    """S7.2, S13.1: counted, then retried, failed, cancelled or put back."""
    task = running(
        attempts=attempts,
        interruptions=interruptions,
        cancel_requested=requested,
        retry_policy=THREE,
        expires_at=NOW + timedelta(hours=1),
    )
    concluded, (event,) = after(task, rule)
    assert (concluded.status, concluded.interruptions) == (expected, interruptions + 1)
    assert concluded.attempts == attempts - (expected is PENDING)
    assert (concluded.expires_at is None) == (expected is PENDING)
    failure = concluded.last_failure
    assert failure is not None
    assert (failure.error_type, failure.attempt, event.failure) == ("TaskInterruptedError", attempts, failure)
    kinds = {
        FAILED: TaskFailed,
        RETRY: TaskRetryScheduled,
        CANCELLED: TaskCancelled,
        PENDING: TaskRetryScheduled,
    }
    assert type(event) is kinds[expected]


@pytest.mark.parametrize("status", [status for status in TaskStatus if status is not RUNNING])
def test_an_outcome_of_a_task_that_is_not_running_changes_nothing(status: TaskStatus) -> None:
    """S6.1, S13.4: a late outcome is refused, whatever it says."""
    for outcome in (Completed(), HandedOff(reference="ref"), PutBack()):
        plan = Plan(NOW)
        with pytest.raises(TaskStateError):
            conclude(plan, record("t", "dep", status=status), outcome, random_fraction=lambda: 0.5)
        assert (plan.records, plan.events) == ({}, [])
