"""Every small world of dependencies, walked through to every end, against the clauses of S4 as plain recursion."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations, product

import pytest

from durable_queue import (
    StoredTask,
    TaskCancelled,
    TaskFailed,
    TaskFailure,
    TaskStatus,
)
from durable_queue._core import settlement, transitions
from durable_queue._core.plan import Plan
from durable_queue._core.settlement import settle
from durable_queue._core.verdicts import conclude
from durable_queue.outcomes import Completed, Failed
from tests.core.world import (
    CANCEL,
    NOW,
    POLICIES,
    Edges,
    Ended,
    Policies,
    World,
    expected_status,
    record,
    stranded,
)

NAMES = "abcd"


def graphs(size: int) -> Iterator[Edges]:
    """Every acyclic graph: a task may depend on any of those before it."""
    names = NAMES[:size]
    choices = [
        [chosen for count in range(index + 1) for chosen in combinations(names[:index], count)]
        for index in range(size)
    ]
    for picked in product(*choices):
        yield dict(zip(names, picked, strict=True))


def worlds(size: int) -> Iterator[tuple[Edges, Policies]]:
    """Every graph with every policy of every task that depends on something."""
    for edges in graphs(size):
        dependents = [name for name in edges if edges[name]]
        for policies in product(POLICIES, repeat=len(dependents)):
            yield edges, dict(zip(dependents, policies, strict=True))


def make_world(edges: Edges, policies: Policies) -> World:
    return World(
        *(
            record(name, *edges[name], on_dependency_failure=policies.get(name, CANCEL), sequence=index)
            for index, name in enumerate(edges)
        )
    )


def end(plan: Plan, task: StoredTask, outcome: str) -> StoredTask:
    """End a task as its handler, or a user, would."""
    if outcome == "cancelled":
        ended = transitions.cancel(task, NOW)
        plan.put(ended)
        plan.events.append(
            TaskCancelled(task_id=task.id, task_type=task.type, at=NOW, failure=ended.last_failure)
        )
        return ended
    running = transitions.claim(task, NOW)
    if outcome == "completed":
        return conclude(plan, running, Completed(), random_fraction=lambda: 0.5)
    failure = TaskFailure(error="no", error_type="ValueError", failed_at=NOW, attempt=1)
    return conclude(plan, running, Failed(failure=failure), random_fraction=lambda: 0.5)


def steps(statuses: Mapping[str, str], *, users_cancel: bool, pairs: bool) -> Iterator[Ended]:
    """Everything that can happen next: one end, or two in one step."""
    ready = [name for name, status in statuses.items() if status == "pending"]
    for name in ready:
        for outcome in ("completed", "failed"):
            yield {name: outcome}
    if users_cancel:
        for name, status in statuses.items():
            if status in ("pending", "waiting"):
                yield {name: "cancelled"}
    if pairs:
        for one, other in combinations(ready, 2):
            for first, second in product(("completed", "failed"), repeat=2):
                yield {one: first, other: second}
                yield {other: second, one: first}


def walk(edges: Edges, policies: Policies, *, users_cancel: bool, pairs: bool, alone: bool) -> int:
    """Go every way through a world and compare each step with the oracle; return how many steps there were."""
    seen: set[tuple[tuple[str, str], ...]] = set()
    todo: list[tuple[Ended, dict[str, StoredTask]]] = [({}, make_world(edges, policies).stored)]
    count = 0
    while todo:
        ended, stored = todo.pop()
        statuses = {name: task.status.value for name, task in stored.items()}
        for step in steps(statuses, users_cancel=users_cancel, pairs=pairs):
            world = World(*stored.values())
            plan = Plan(NOW)
            finished = [end(plan, stored[name], outcome) for name, outcome in step.items()]
            world.run(settle(plan, finished, alone=alone), plan)
            check_writes(world, plan)
            now_ended = ended | step
            expected = {name: expected_status(name, edges, policies, now_ended) for name in edges}
            check_step(world, plan, stored, expected=expected, ended=now_ended, step=step)
            count += 1
            key = tuple(sorted(now_ended.items()))
            if key not in seen:
                seen.add(key)
                todo.append((now_ended, world.stored))
    return count


def check_writes(world: World, plan: Plan) -> None:
    """S4.7: wherever the write stops, no task waits although its verdict is due."""
    for change in plan.changes():
        world.write_one(change)
        assert not list(stranded(world.stored)), [change.task.id for change in plan.changes()]


def check_step(
    world: World,
    plan: Plan,
    before: Mapping[str, StoredTask],
    *,
    expected: Mapping[str, str],
    ended: Ended,
    step: Ended,
) -> None:
    for name, task in world.stored.items():
        assert task.status.value == expected[name]
        if task.status == before[name].status:
            # Terminal tasks are left as they are, waiting ones too: nothing is written twice.
            assert task == before[name]
        elif name not in step:
            assert task.attempts == 0
            check_cause(task, world.stored, ended)
    check_events(plan, before, world.stored, step)


def check_cause(task: StoredTask, stored: Mapping[str, StoredTask], ended: Ended) -> None:
    """S4.5: the blocking dependency and its status are named, and the root of the cascade is the cause."""
    failure = task.last_failure
    if task.status is TaskStatus.PENDING:
        assert failure is None
        return
    assert failure is not None
    assert failure.error_type == "DependencyFailedError"
    possible = {}
    for dependency in task.depends_on:
        other = stored[dependency]
        if other.status in (TaskStatus.FAILED, TaskStatus.CANCELLED):
            inherited = None if dependency in ended else other.last_failure
            root = dependency if inherited is None else inherited.cause_task_id
            possible[f"dependency {dependency!r} is {other.status.value}"] = root
    assert possible[failure.error] == failure.cause_task_id


def check_events(
    plan: Plan, before: Mapping[str, StoredTask], stored: Mapping[str, StoredTask], step: Ended
) -> None:
    """S4.8: one event for each end and no more, each after that of the task that it was settled by."""
    announced: list[str] = []
    for event in plan.events:
        name: str = event.task_id  # type: ignore[attr-defined]  # all of them are about a task
        status = stored[name].status
        assert {TaskStatus.CANCELLED: TaskCancelled, TaskStatus.FAILED: TaskFailed}.get(
            status, type(event)
        ) is type(event)
        if name not in step:
            failure = stored[name].last_failure
            assert failure is not None
            assert any(f"{earlier!r}" in failure.error for earlier in announced)
        announced.append(name)
    changed = [name for name in stored if stored[name].status != before[name].status]
    assert sorted(announced) == [name for name in changed if stored[name].status is not TaskStatus.PENDING]


@pytest.fixture(params=["whole levels", "slices of one"])
def slices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets cascades be judged a level at once, or task by task."""
    if request.param == "slices of one":
        monkeypatch.setattr(settlement, "EDGES_PER_SLICE", 1)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.usefixtures("slices")
def test_every_world_of_up_to_three_tasks_follows_the_clauses(size: int, alone: bool) -> None:
    """S4.1-S4.8: any graph, any policies, any ends in any order, users' cancellations and double ends included."""
    steps_walked = [
        walk(edges, policies, users_cancel=True, pairs=True, alone=alone) for edges, policies in worlds(size)
    ]
    assert min(steps_walked) >= 3


@pytest.mark.parametrize("alone", [True, False])
def test_every_world_of_four_tasks_follows_the_clauses(alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """S4.1-S4.8: any graph, any policies, any ends in any order."""
    if not alone:
        monkeypatch.setattr(settlement, "EDGES_PER_SLICE", 1)
    steps_walked = [
        walk(edges, policies, users_cancel=False, pairs=alone, alone=alone) for edges, policies in worlds(4)
    ]
    assert len(steps_walked) == 880
