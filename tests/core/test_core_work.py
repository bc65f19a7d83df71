"""One step of the worker, decided over what the step itself has changed."""

from __future__ import annotations

from datetime import timedelta

from durable_queue import RetryPolicy, StoredTask, TaskFailure, TaskStarted, TaskStatus
from durable_queue._core.plan import Plan
from durable_queue._core.settlement import judge_waiting
from durable_queue._core.work import Ended, judge_inserted, work
from durable_queue.outcomes import Completed, Failed, Outcome
from tests.core.world import EARLIER, NOW, RUN, World, evolved, record

RUNNING = TaskStatus.RUNNING


def ended(task: StoredTask, outcome: Outcome | None = None) -> Ended:
    return Ended(task=task, outcome=outcome or Completed(), at=NOW, fraction=0.5)


def failed() -> Failed:
    return Failed(failure=TaskFailure(error="no", error_type="ValueError", failed_at=NOW, attempt=1))


def decide(world: World, plan: Plan, *ends: Ended, slots: int = 10, expire: bool = False) -> list[str]:
    claimed = world.run(
        work(plan, ends, expire=expire, late_outcome=lambda task: failed(), free_slots=slots), plan
    )
    return [task.id for task in claimed]


def test_a_step_claims_what_it_has_just_made_ready() -> None:
    """S13.2: the claims are decided over the step's own changes: the released dependent starts in the same write."""
    a = record("a", status=RUNNING, attempts=1)
    world, plan = World(a, record("b", "a"), record("c", "b")), Plan(NOW)
    assert decide(world, plan, ended(a)) == ["b"]
    assert plan.records["b"] == evolved(world.stored["b"], status=RUNNING, attempts=1, updated_at=NOW)
    assert set(plan.records) == {"a", "b"}


def test_what_the_step_made_ready_takes_its_place_in_the_order() -> None:
    """S13.2, S3.1: the best of the storage's heads and of the step's own come first, by priority, then age."""
    a = record("a", status=RUNNING, attempts=1)
    world = World(
        a,
        record("low", priority=-1, created_at=EARLIER - timedelta(1)),
        record("middle", sequence=1),
        record("b", "a", sequence=2),
        record("high", "a", priority=5, sequence=9),
    )
    plan = Plan(NOW)
    assert decide(world, plan, ended(a), slots=3) == ["high", "middle", "b"]
    starts = [event.task_id for event in plan.events if isinstance(event, TaskStarted)]
    assert starts == ["high", "middle", "b"]


def test_an_attempt_that_ends_and_is_due_again_at_once_is_a_candidate_like_any_other() -> None:
    """S13.2: a retry with no wait is claimed again in the step that has written its failure, in one record."""
    policy = RetryPolicy.fixed(max_attempts=2, delay=timedelta(0))
    a = record("a", status=RUNNING, attempts=1, retry_policy=policy)
    world, plan = World(a), Plan(NOW)
    assert decide(world, plan, ended(a, failed())) == ["a"]
    again = plan.records["a"]
    assert again is not None
    assert (again.status, again.attempts) == (RUNNING, 2)


def test_two_parents_that_finish_in_one_step_release_their_join_once() -> None:
    """S4.6, DEP-04: the storage still takes both for active; the join is released and claimed once."""
    parents = [record(name, status=RUNNING, attempts=1) for name in "ab"]
    world, plan = World(*parents, record("join", "a", "b")), Plan(NOW)
    assert decide(world, plan, *map(ended, parents)) == ["join"]
    assert [event.task_id for event in plan.events] == ["a", "b", "join"]


def test_a_dependent_of_one_that_completed_and_one_that_was_ended_before_in_the_same_step_is_released() -> (
    None
):
    """S4.3, S13.6: what a judgement earlier in the step has ended counts, though the storage takes it for active."""
    a = record("a", status=RUNNING, attempts=1)
    world = World(
        a,
        record("gone", status=TaskStatus.FAILED),
        record("foreign", "gone"),
        record("d", "a", "foreign", on_dependency_failure=RUN),
    )
    plan = Plan(NOW)
    world.run(judge_inserted(plan, ["foreign"]), plan)
    assert decide(world, plan, ended(a)) == ["d"]


def test_one_that_expires_in_the_step_counts_for_the_join_of_another_that_completes() -> None:
    """S8.1, S4.3: an expiry and a completion of one step settle their common dependent together."""
    a = record("a", status=RUNNING, attempts=1)
    late = record("late", expires_at=EARLIER)
    world = World(a, late, record("d", "a", "late", on_dependency_failure=RUN))
    plan = Plan(NOW)
    assert decide(world, plan, ended(a), expire=True) == ["d"]
    assert plan.records["late"] is not None
    assert plan.records["late"].status is TaskStatus.CANCELLED


def test_a_head_past_its_expiry_is_cancelled_with_its_dependents_and_the_next_one_starts() -> None:
    """S8.2: where the storage does not answer for expiry it is noticed at the claim, which then looks further."""
    world = World(record("late", expires_at=EARLIER, priority=1), record("d", "late"), record("next"))
    plan = Plan(NOW)
    assert decide(world, plan, slots=1) == ["next"]
    world.write(plan)
    assert world.statuses() == {"late": "cancelled", "d": "cancelled", "next": "running"}


def test_a_waiting_task_past_its_expiry_is_cancelled_when_it_is_judged() -> None:
    """S8.2: a judged task that has expired is cancelled as expired, whatever the verdict would be."""
    world = World(record("done", status=TaskStatus.COMPLETED), record("d", "done", expires_at=NOW))
    plan = Plan(NOW)
    (gone,) = world.run(judge_waiting(plan, [world.stored["d"]]), plan)
    assert gone.last_failure.error_type == "TaskExpiredError"


def test_no_slot_no_claim_and_excluded_tasks_are_passed_over() -> None:
    """S3.2: claims never exceed the free slots."""
    world = World(record("a"), record("b", sequence=1), record("c", sequence=2))
    assert decide(world, Plan(NOW), slots=0) == []
    assert decide(world, Plan(NOW), slots=2) == ["a", "b"]
    plan = Plan(NOW)
    claimed = world.run(
        work(plan, [], expire=False, late_outcome=lambda task: failed(), free_slots=2, without={"a"}), plan
    )
    assert [task.id for task in claimed] == ["b", "c"]


def test_a_long_cascade_breathes() -> None:
    """S13.21: a cascade of thousands gives the loop a turn again and again, deep or wide."""
    a = record("a", status=RUNNING, attempts=1)
    wide = World(a, *(record(f"d{n}", "a") for n in range(1000)))
    decide(wide, Plan(NOW), ended(a, failed()), slots=0)
    assert wide.breaths >= 1000 / 64
    deep = World(a, record("d0", "a"), *(record(f"d{n}", f"d{n - 1}") for n in range(1, 1000)))
    decide(deep, Plan(NOW), ended(a, failed()), slots=0)
    assert deep.breaths >= 1000


def test_wide_joins_breathe_by_their_dependencies() -> None:
    """S13.21: few joins of very many dependencies are as much work as many dependents, and let the loop in as often."""
    parents = [record(f"p{n}", status=TaskStatus.COMPLETED) for n in range(499)]
    a = record("a", status=RUNNING, attempts=1)
    joins = [record(f"j{n}", "a", *(parent.id for parent in parents)) for n in range(20)]
    world = World(a, *parents, *joins)
    assert len(decide(world, Plan(NOW), ended(a), slots=100)) == 20
    assert world.breaths >= 20 * 500 / 1000
