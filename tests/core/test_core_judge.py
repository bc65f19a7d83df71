"""The verdict on one dependent, for every state of up to three dependencies."""

from __future__ import annotations

from itertools import permutations, product

import pytest

from durable_queue import DependencyFailurePolicy, TaskFailure, TaskStatus
from durable_queue._core.plan import Plan
from durable_queue._core.settlement import Blocked, Fact, Free, end_blocked, fact_of, judge
from tests.core.world import CANCEL, FAIL, NOW, POLICIES, RUN, record

# None stands for a dependency that is not stored.
STATES = (*TaskStatus, None)
ACTIVE = {TaskStatus.PENDING, TaskStatus.WAITING, TaskStatus.RUNNING, TaskStatus.RETRY_SCHEDULED}
NOT_COMPLETED = {TaskStatus.FAILED, TaskStatus.CANCELLED, None}


def verdict_by_the_clauses(policy: DependencyFailurePolicy, states: tuple[TaskStatus | None, ...]) -> str:
    """S4.2, S4.3, word by word."""
    some_did_not_complete = not NOT_COMPLETED.isdisjoint(states)
    if policy in (CANCEL, FAIL) and some_did_not_complete:
        return "end"
    return "release" if ACTIVE.isdisjoint(states) else "wait"


def name_of(verdict: Free | Blocked) -> str:
    return "end" if isinstance(verdict, Blocked) else verdict.value


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_combination_of_states_has_the_verdict_of_the_clauses(
    policy: DependencyFailurePolicy, size: int
) -> None:
    """S4.2, S4.3, S4.4: for every state of every dependency, in every order of depends_on."""
    for states in product(STATES, repeat=size):
        names = [f"d{n}" for n in range(size)]
        facts = {name: Fact(state, name) for name, state in zip(names, states, strict=True)}
        for order in permutations(names):
            task = record("t", *order, on_dependency_failure=policy)
            verdict = judge(task, facts)
            assert name_of(verdict) == verdict_by_the_clauses(policy, states)
            if isinstance(verdict, Blocked):
                blocking = [name for name in order if facts[name].status in NOT_COMPLETED]
                assert (verdict.by, verdict.fact) == (blocking[0], facts[blocking[0]])


def test_the_state_of_the_dependent_itself_does_not_matter() -> None:
    """S4.1: judged when waiting and again at retry, by the same rule."""
    facts = {"a": Fact(TaskStatus.COMPLETED, "a")}
    for status in TaskStatus:
        assert judge(record("t", "a", status=status), facts) is Free.RELEASE


@pytest.mark.parametrize("status", STATES)
def test_the_failure_names_the_dependency_its_status_and_the_root(status: TaskStatus | None) -> None:
    """S4.5: DependencyFailedError with the blocking dependency, its status and the root; no attempt is counted."""
    if status not in NOT_COMPLETED:
        return
    plan = Plan(NOW)
    task = record("t", "a", on_dependency_failure=FAIL)
    ended = end_blocked(plan, task, Blocked("a", Fact(status, "root")))
    assert ended.last_failure == TaskFailure(
        error=f"dependency 'a' is {'missing' if status is None else status.value}",
        error_type="DependencyFailedError",
        failed_at=NOW,
        attempt=0,
        cause_task_id="root",
    )
    assert (ended.status, ended.attempts) == (TaskStatus.FAILED, 0)


def test_the_root_is_inherited_only_from_a_dependency_failure() -> None:
    """S4.5: one that ended by its own failure is a root, whatever a handler of that name has raised."""
    own = TaskFailure(error="x", error_type="DependencyFailedError", failed_at=NOW, attempt=1)
    inherited = TaskFailure(
        error="x", error_type="DependencyFailedError", failed_at=NOW, attempt=0, cause_task_id="root"
    )
    other = TaskFailure(error="x", error_type="ValueError", failed_at=NOW, attempt=1, cause_task_id="root")
    causes = {
        failure.error_type + str(failure.cause_task_id): fact_of(
            "a", record("a", status=TaskStatus.FAILED, last_failure=failure)
        ).cause
        for failure in (own, inherited, other)
    }
    assert causes == {
        "DependencyFailedErrorNone": "a",
        "DependencyFailedErrorroot": "root",
        "ValueErrorroot": "a",
    }
    assert fact_of("gone", None) == Fact(None, "gone")


def test_run_is_the_only_policy_that_waits_past_a_failure() -> None:
    """S4.3: cancel and fail do not wait for the other dependencies, run does."""
    facts = {"a": Fact(TaskStatus.FAILED, "a"), "b": Fact(TaskStatus.RUNNING, "b")}
    verdicts = {
        policy: name_of(judge(record("t", "a", "b", on_dependency_failure=policy), facts))
        for policy in POLICIES
    }
    assert verdicts == {CANCEL: "end", FAIL: "end", RUN: "wait"}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_dependency_whose_record_cannot_be_read_is_waited_for(policy: DependencyFailurePolicy) -> None:
    """S7.3: nobody can say how it ended, so nothing is decided because of it; another one may still decide."""
    unreadable = Fact(None, "a", is_readable=False)
    task = record("t", "a", "b", on_dependency_failure=policy)
    assert judge(task, {"a": unreadable, "b": Fact(TaskStatus.COMPLETED, "b")}) is Free.WAIT
    verdict = judge(task, {"a": unreadable, "b": Fact(TaskStatus.FAILED, "b")})
    assert name_of(verdict) == ("wait" if policy is RUN else "end")
