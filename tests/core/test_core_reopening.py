"""Retry by hand as a decision: what comes back, by edges, and what is refused without a trace."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import attrs
import pytest

from durable_queue import RetryPolicy, StoredTask, TaskFailure, TaskNotFoundError, TaskStateError, TaskStatus
from durable_queue._core.plan import Decision, GetDependentsOf, GetFacts, Plan, Request
from durable_queue._core.reopening import reopen
from tests.core.world import EARLIER, FAIL, NOW, RUN, World, record, stranded

COMPLETED, FAILED, CANCELLED = TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED


def failed(task_id: str, *depends_on: str, **fields: Any) -> StoredTask:
    """Make a task that failed by itself."""
    failure = TaskFailure(error="no", error_type="ValueError", failed_at=EARLIER, attempt=1)
    return record(task_id, *depends_on, status=FAILED, attempts=1, last_failure=failure, **fields)


def fallen(task_id: str, *depends_on: str, cause: str, **fields: Any) -> StoredTask:
    """Make a task that its policy ended because of a dependency."""
    failure = TaskFailure(
        error="x", error_type="DependencyFailedError", failed_at=EARLIER, attempt=0, cause_task_id=cause
    )
    status = FAILED if fields.get("on_dependency_failure") is FAIL else CANCELLED
    return record(task_id, *depends_on, status=status, last_failure=failure, **fields)


def retry(world: World, task_id: str, *, dependents: bool = True) -> list[str]:
    """Decide and store; return the ids in the order of the write, which must be safe wherever it stops."""
    plan = Plan(NOW)
    assert world.run(reopen(plan, task_id, retry_policy=None, dependents=dependents), plan) == task_id
    written = []
    for change in plan.changes():
        world.write_one(change)
        assert not list(stranded(world.stored))
        written.append(change.task.id)
    return written


def refused(world: World, task_id: str, *, dependents: bool = True) -> str:
    """Return why a retry is refused; the stored records are as they were."""
    plan, before = Plan(NOW), dict(world.stored)
    with pytest.raises(TaskStateError) as caught:
        world.run(reopen(plan, task_id, retry_policy=None, dependents=dependents), plan)
    assert world.stored == before
    return str(caught.value)


def counted(decision: Decision[str], facts: Counter[str], reads: Counter[type[Request]]) -> Decision[str]:
    """Count how often each fact is asked for, and each kind of read, while a decision is made."""
    answer: Any = None
    while True:
        try:
            request = decision.send(answer)
        except StopIteration as stop:
            id_: str = stop.value
            return id_
        reads[type(request)] += 1
        if isinstance(request, GetFacts):
            facts.update(request.ids)
        answer = yield request


@pytest.mark.parametrize("status", TaskStatus)
def test_only_failed_and_cancelled_tasks_are_reopened(status: TaskStatus) -> None:
    """S6.3: every other status is refused and named."""
    world = World(record("t", status=status, attempts=1))
    if status in (FAILED, CANCELLED):
        retry(world, "t")
        assert (world.stored["t"].status, world.stored["t"].attempts) == (TaskStatus.PENDING, 0)
    else:
        assert f"is {status.value}" in refused(world, "t")


def test_an_unknown_task_is_not_found() -> None:
    """S6.3: TaskNotFoundError."""
    plan = Plan(NOW)
    with pytest.raises(TaskNotFoundError):
        World().run(reopen(plan, "t", retry_policy=None, dependents=False), plan)


def test_it_waits_while_a_dependency_is_active_and_is_refused_while_one_has_not_completed() -> None:
    """S6.3, S4.1: judged again at retry; the message names the dependency and its status."""
    active = [status for status in TaskStatus if not status.is_terminal]
    for status in active:
        world = World(record("z"), record("a", "z", status=status), failed("t", "a"))
        retry(world, "t")
        assert world.statuses()["t"] == "waiting"
    for status in (FAILED, CANCELLED):
        text = refused(World(record("a", status=status), failed("t", "a")), "t")
        assert f"'a' is {status.value}" in text
    world = World(record("a", status=FAILED), failed("t", "a", on_dependency_failure=RUN))
    retry(world, "t")
    assert world.statuses()["t"] == "pending"


def test_a_missing_dependency_counts_as_completed_for_a_task_that_had_started_and_else_refuses() -> None:
    """S13.14: what has been deleted since was there when the task started."""
    world = World(failed("t", "gone"))
    retry(world, "t")
    assert world.statuses()["t"] == "pending"
    assert "'gone' is missing" in refused(World(fallen("t", "gone", cause="gone")), "t")


def test_dependents_come_back_at_any_depth_and_only_those_that_fell() -> None:
    """S6.3, S13.9: not one that the user cancelled, nor what fell behind that, nor what failed by itself."""
    by_user = TaskFailure(error="x", error_type="TaskCancelledError", failed_at=EARLIER, attempt=0)
    world = World(
        failed("p"),
        fallen("c", "p", cause="p"),
        fallen("g", "c", cause="p", on_dependency_failure=FAIL),
        record("x", "p", status=CANCELLED, last_failure=by_user),
        fallen("behind x", "x", cause="x"),
        failed("ran", "p", on_dependency_failure=RUN),
        fallen("behind ran", "ran", cause="ran"),
        record("done", "p", status=COMPLETED, on_dependency_failure=RUN),
    )
    assert set(retry(world, "p")) == {"p", "c", "g"}
    assert world.statuses() == {
        "p": "pending",
        "c": "waiting",
        "g": "waiting",
        "x": "cancelled",
        "behind x": "cancelled",
        "ran": "failed",
        "behind ran": "cancelled",
        "done": "completed",
    }


def test_without_dependents_only_the_task_itself_comes_back() -> None:
    """S6.3: dependents=False leaves them ended."""
    world = World(failed("p"), fallen("c", "p", cause="p"))
    assert retry(world, "p", dependents=False) == ["p"]


def test_the_task_is_written_before_what_waits_for_it_again() -> None:
    """S4.7: a crash in the middle leaves no task waiting on one that has ended."""
    world = World(
        failed("p"),
        fallen("d", "p", "c", cause="p"),
        fallen("c", "b", cause="p"),
        fallen("b", "p", cause="p"),
    )
    assert retry(world, "p") == ["p", "b", "c", "d"]


def test_a_join_comes_back_with_the_last_of_its_branches_by_edges() -> None:
    """S13.9: not while another dependency still blocks it; whose fault its end was does not matter."""
    world = World(
        failed("a"), failed("b"), fallen("join", "a", "b", cause="a"), fallen("end", "join", cause="a")
    )
    assert retry(world, "a") == ["a"]
    assert retry(world, "b") == ["b", "join", "end"]
    assert world.statuses() == {"a": "pending", "b": "pending", "join": "waiting", "end": "waiting"}


def test_a_diamond_comes_back_whole() -> None:
    """S13.9, S4.6: the join is looked at once more when its second branch is back, and reopened once."""
    world = World(
        failed("a"),
        fallen("b", "a", cause="a"),
        fallen("c", "a", cause="a"),
        fallen("d", "b", "c", cause="a"),
        fallen("e", "d", cause="a"),
    )
    assert sorted(retry(world, "a")) == ["a", "b", "c", "d", "e"]


def test_a_held_key_refuses_the_task_and_the_whole_call() -> None:
    """S6.3, S13.9: the holder is named, the key is not; nothing is reopened when it is a dependent's key."""
    holder = record("h", deduplication_key="secret")
    text = refused(World(holder, attrs.evolve(failed("t"), deduplication_key="secret")), "t")
    assert "'h'" in text
    assert "secret" not in text
    world = World(holder, failed("p"), fallen("c", "p", cause="p", deduplication_key="secret"))
    assert "'c'" in refused(world, "p")
    retry(world, "p", dependents=False)


def test_two_dependents_with_the_same_key_cannot_both_come_back() -> None:
    """S6.3, S2.3: the first that is reopened holds it."""
    world = World(
        failed("p"),
        fallen("c", "p", cause="p", deduplication_key="k"),
        fallen("d", "p", cause="p", deduplication_key="k", sequence=1),
    )
    assert "'d'" in refused(world, "p")


def test_a_new_policy_is_for_the_task_and_not_for_its_dependents() -> None:
    """S6.3: `retry_policy` replaces that of the task asked for."""
    fixed = RetryPolicy.fixed(max_attempts=4, delay=NOW - EARLIER)
    world, plan = World(failed("p"), fallen("c", "p", cause="p")), Plan(NOW)
    world.run(reopen(plan, "p", retry_policy=fixed, dependents=True), plan)
    world.write(plan)
    assert [world.stored[name].retry_policy for name in "pc"] == [fixed, RetryPolicy.none()]


def test_a_wide_or_deep_reopening_breathes() -> None:
    """S13.21: the loop has turns while thousands come back."""
    wide = World(failed("p"), *(fallen(f"c{n}", "p", cause="p") for n in range(500)))
    retry(wide, "p")
    assert wide.longest_run <= 2 * 64 + 2
    names = ["p", *(f"c{n}" for n in range(100))]
    deep = World(
        failed("p"),
        *(fallen(name, before, cause="p") for before, name in pairwise(names)),
    )
    retry(deep, "p")
    assert deep.breaths >= 100


@pytest.mark.parametrize(
    "shape", ["beside each other", "beside each other, and one more", "one behind the other"]
)
def test_a_join_of_many_branches_is_judged_when_it_is_met_and_when_all_are_back(shape: str) -> None:
    """S13.9, S13.21: what is asked for grows with the edges, not with the edges of the join times its branches."""
    many = 300
    branches = [f"b{n}" for n in range(many)]
    before = ["p", *branches] if shape == "one behind the other" else ["p"] * many
    is_blocked = shape == "beside each other, and one more"
    world = World(
        failed("p"),
        failed("q"),
        *(fallen(name, dependency, cause="p") for dependency, name in zip(before, branches, strict=False)),
        fallen("join", *branches, *(["q"] if is_blocked else []), cause="p"),
    )
    plan, facts, reads = Plan(NOW), Counter[str](), Counter[type[Request]]()
    world.run(counted(reopen(plan, "p", retry_policy=None, dependents=True), facts, reads), plan)
    world.write(plan)

    assert world.statuses()["join"] == ("cancelled" if is_blocked else "waiting")
    assert all(world.statuses()[name] == "waiting" for name in branches)
    # The edges of the branches once, those of the join twice at most.
    assert facts.total() <= many + 2 * (many + 1)
    assert reads[GetDependentsOf] <= (many + 2 if shape == "one behind the other" else many // 64 + 3)
    assert world.longest_run <= 2 * 64 + 2


@pytest.mark.parametrize(("joins", "width"), [(1, 3500), (20, 500)])
def test_wide_joins_are_judged_in_slices(joins: int, width: int) -> None:
    """S13.21: the loop has turns while tasks with thousands of dependencies are judged."""
    others = [f"o{n}" for n in range(width)]
    names = [f"join{n}" for n in range(joins)]
    world, plan = World(failed("p"), *(fallen(name, "p", *others, cause="p") for name in names)), Plan(NOW)
    world.stored.update({name: record(name, status=COMPLETED, attempts=1) for name in others})
    facts, reads = Counter[str](), Counter[type[Request]]()
    world.run(counted(reopen(plan, "p", retry_policy=None, dependents=True), facts, reads), plan)
    world.write(plan)

    assert all(world.statuses()[name] == "waiting" for name in names)
    assert set(facts.values()) == {joins}
    # One for the answer to each question for dependents, and one for every thousand edges.
    assert world.breaths >= 2 + joins * width // 1000


def test_what_an_expired_holder_takes_with_it_does_not_let_a_join_come_back() -> None:
    """S13.9, S13.13: a branch that has come back and is ended in the same step blocks the join again."""
    world = World(
        failed("p"),
        record("h", status=TaskStatus.PENDING, deduplication_key="k", expires_at=EARLIER),
        fallen("join", "p", "b", "c", cause="p"),
        fallen("b", "p", "h", cause="p", sequence=1),
        fallen("c", "p", cause="p", deduplication_key="k", sequence=2),
    )
    retry(world, "p")
    assert world.statuses() == {
        "p": "pending",
        "h": "cancelled",
        "b": "cancelled",
        "c": "waiting",
        "join": "cancelled",
    }
