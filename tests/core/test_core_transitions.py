"""The moves between statuses: the table, and the functions that carry them out."""

from __future__ import annotations

from datetime import timedelta

import attrs
import pytest

from durable_queue import StoredTask, TaskFailure, TaskStateError, TaskStatus
from durable_queue._core import transitions
from durable_queue._core.transitions import LEGAL_MOVES
from durable_queue.retry import RetryPolicy
from tests.core.world import EARLIER, NOW, record

W, P, R, S = TaskStatus.WAITING, TaskStatus.PENDING, TaskStatus.RUNNING, TaskStatus.RETRY_SCHEDULED
DONE, FAILED, CANCELLED = TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED
BAD = TaskFailure(error="no", error_type="ValueError", failed_at=NOW, attempt=1)

# Each move: its function, from where it may start, and where it leads.
MOVES = {
    "claim": (lambda task: transitions.claim(task, NOW), {P, S}, R),
    "complete": (lambda task: transitions.complete(task, None, NOW), {R}, DONE),
    "fail": (lambda task: transitions.fail(task, BAD, NOW), {R, W}, FAILED),
    "schedule_retry": (lambda task: transitions.schedule_retry(task, BAD, NOW, NOW), {R}, S),
    "cancel": (lambda task: transitions.cancel(task, NOW), {W, P, S, R}, CANCELLED),
    "expire": (lambda task: transitions.expire(task, NOW), {W, P, S}, CANCELLED),
    "request_cancel": (lambda task: transitions.request_cancel(task, NOW), {R}, R),
    "hand_off": (lambda task: transitions.hand_off(task, "ref", None, NOW), {R}, R),
    "release": (lambda task: transitions.release(task, NOW), {W}, P),
    "put_back": (lambda task: transitions.put_back(task, NOW), {R}, P),
    "reopen to pending": (lambda task: transitions.reopen(task, P, NOW), {FAILED, CANCELLED}, P),
    "reopen to waiting": (lambda task: transitions.reopen(task, W, NOW), {FAILED, CANCELLED}, W),
}


def in_status(status: TaskStatus) -> StoredTask:
    return record("t", "dep", status=status, attempts=1, updated_at=EARLIER)


@pytest.mark.parametrize("status", TaskStatus)
@pytest.mark.parametrize("move", MOVES)
def test_every_move_from_every_status_is_made_or_refused_without_a_trace(
    move: str, status: TaskStatus
) -> None:
    """S4.1, S6.3: a move from a status that it does not start from raises and the record is as it was."""
    make, sources, target = MOVES[move]
    task = in_status(status)
    before = attrs.asdict(task, recurse=False)
    if status in sources:
        moved = make(task)
        assert (moved.status, moved.updated_at) == (target, NOW)
    else:
        with pytest.raises(TaskStateError, match=f"task 't' is {status.value}"):
            make(task)
    assert attrs.asdict(task, recurse=False) == before


def test_the_table_holds_just_the_moves_that_there_are() -> None:
    """S6.3: nothing leaves completed, and only a retry leaves failed and cancelled."""
    made: dict[TaskStatus, set[TaskStatus]] = {status: set() for status in TaskStatus}
    for _, sources, target in MOVES.values():
        for source in sources:
            made[source].add(target)
    assert made == LEGAL_MOVES
    assert made[DONE] == set()


def test_a_claim_counts_the_attempt_and_ends_the_last_hand_off() -> None:
    """S3.2, S13.10: attempts go up by one with the claim, which clears the reference in the same record."""
    task = record(
        "t", status=S, attempts=2, next_attempt_at=EARLIER, hand_off_reference="ref", hand_off_deadline=NOW
    )
    claimed = transitions.claim(task, NOW)
    assert (claimed.attempts, claimed.next_attempt_at) == (3, None)
    assert (claimed.hand_off_reference, claimed.hand_off_deadline) == (None, None)


def test_a_release_keeps_the_earliest_start() -> None:
    """S4.2, S2.5: a released task stays scheduled until its run_at."""
    later = NOW + timedelta(hours=1)
    released = transitions.release(record("t", "dep", next_attempt_at=later), NOW)
    assert (released.status, released.next_attempt_at) == (P, later)


def test_a_task_that_is_put_back_has_not_used_the_attempt_and_no_longer_expires() -> None:
    """S7.5, S13.9: a put-back takes the attempt off again and clears expires_at."""
    task = record("t", status=R, attempts=1, expires_at=NOW + timedelta(hours=1))
    back = transitions.put_back(task, NOW)
    assert (back.attempts, back.expires_at) == (0, None)


def test_reopening_resets_what_belongs_to_the_old_life_and_keeps_the_rest() -> None:
    """S6.3, S13.9: attempts, interruptions, request, times and result go; id, order, keys and policy stay."""
    task = record(
        "t",
        "dep",
        status=FAILED,
        attempts=3,
        interruptions=2,
        cancel_requested=True,
        next_attempt_at=NOW,
        expires_at=NOW,
        result=5,
        sequence=7,
        priority=4,
        deduplication_key="key",
        idempotency_key="idem",
        group="group",
        retry_policy=RetryPolicy.fixed(max_attempts=3, delay=timedelta(1)),
    )
    again = transitions.reopen(task, P, NOW)
    expected = attrs.evolve(
        task,
        status=P,
        updated_at=NOW,
        attempts=0,
        interruptions=0,
        cancel_requested=False,
        next_attempt_at=None,
        expires_at=None,
        result=None,
    )
    assert again == expected
    assert transitions.reopen(task, P, NOW, RetryPolicy.none()).retry_policy == RetryPolicy.none()


def test_an_end_on_request_and_an_end_by_expiry_say_so() -> None:
    """S6.1, S8.1: the recorded failure tells a cancellation from an expiry."""
    task = record("t", expires_at=EARLIER)
    on_request, expired = (
        transitions.cancel(task, NOW).last_failure,
        transitions.expire(task, NOW).last_failure,
    )
    assert on_request is not None
    assert expired is not None
    assert (on_request.error_type, expired.error_type) == ("TaskCancelledError", "TaskExpiredError")
    assert (on_request.cause_task_id, expired.cause_task_id) == (None, None)
