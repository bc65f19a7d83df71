"""Enqueue as a decision: folding, rings, dependencies, and the verdict at once."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from itertools import pairwise, product
from typing import Any

import pytest

from durable_queue import (
    DependencyCycleError,
    RetryPolicy,
    StoredTask,
    TaskCancelled,
    TaskEnqueued,
    TaskFailed,
    TaskNotFoundError,
    TaskStatus,
)
from durable_queue._core.admission import Draft, admit
from durable_queue._core.graphs import dependencies_first
from durable_queue._core.plan import Plan
from durable_queue._json import JsonText
from tests.core.world import EARLIER, FAIL, NOW, RUN, World, record

COMPLETED, FAILED, CANCELLED = TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED


def draft(name: str, *depends_on: str, **fields: Any) -> Draft:
    """Make a draft; its id is its name in capitals."""
    return Draft(
        name=name,
        id=name.upper(),
        type="work",
        payload_text=JsonText("{}"),
        retry_policy=RetryPolicy.none(),
        depends_on=depends_on,
        **fields,
    )


def submit(world: World, *drafts: Draft) -> tuple[dict[str, str], dict[str, StoredTask], list[Any]]:
    """Decide and store; return the ids, the new records in order of the write, and the events."""
    plan = Plan(NOW)
    ids = world.run(admit(plan, drafts, created_at=NOW, updated_at=NOW, first_sequence=10), plan)
    before = set(world.stored)
    world.write(plan)
    new = {task_id: task for task_id, task in world.stored.items() if task_id not in before}
    return ids, new, plan.events


def refused(world: World, *drafts: Draft) -> Exception:
    """Return the error of a submission, which must have decided nothing."""
    plan = Plan(NOW)
    with pytest.raises((DependencyCycleError, TaskNotFoundError)) as caught:
        world.run(admit(plan, drafts, created_at=NOW, updated_at=NOW, first_sequence=10), plan)
    assert (plan.records, plan.events) == ({}, [])
    return caught.value


def test_records_are_written_dependencies_first_and_numbered_in_order_of_add() -> None:
    """S2.6, S13.8: a name may be used before it is added; the write has dependencies first, the sequence not."""
    ids, new, events = submit(World(), draft("c", "b"), draft("b", "a"), draft("a"))
    assert ids == {"a": "A", "b": "B", "c": "C"}
    assert list(new) == ["A", "B", "C"]
    assert [(task.sequence, task.depends_on, task.status) for task in new.values()] == [
        (12, (), TaskStatus.PENDING),
        (11, ("A",), TaskStatus.WAITING),
        (10, ("B",), TaskStatus.WAITING),
    ]
    assert [event.task_id for event in events] == ["A", "B", "C"]


def test_a_name_of_the_graph_goes_before_a_stored_id() -> None:
    """S2.6: a dependency is a node of that name if there is one, else a stored id."""
    world = World(record("a", status=COMPLETED), record("z", status=COMPLETED))
    _, new, _ = submit(world, draft("a"), draft("b", "a", "z"))
    assert new["B"].depends_on == ("A", "z")
    assert new["B"].status is TaskStatus.WAITING


def test_a_ring_is_refused_with_its_path() -> None:
    """S2.6, S13.13: the names on the ring in order, each depending on the next, without what merely leads to it."""
    error = refused(World(), draft("x", "a"), draft("a", "b"), draft("b", "c"), draft("c", "a"))
    assert isinstance(error, DependencyCycleError)
    assert error.cycle == ("a", "b", "c")
    assert "a -> b -> c -> a" in str(error)


def test_a_self_edge_is_a_ring_of_one() -> None:
    """S13.13: a node that depends on itself is refused."""
    error = refused(World(), draft("a", "a"))
    assert isinstance(error, DependencyCycleError)
    assert error.cycle == ("a",)


def test_every_graph_of_three_nodes_is_ordered_or_refused_for_a_ring_that_is_there() -> None:
    """S2.6: all 512 graphs of three nodes, self edges included: an order along the edges, or a true ring."""
    names = "abc"
    pairs = list(product(names, repeat=2))
    for chosen in product((False, True), repeat=len(pairs)):
        edges: dict[str, list[str]] = {name: [] for name in names}
        for (source, target), is_there in zip(pairs, chosen, strict=True):
            if is_there:
                edges[source].append(target)
        ring, order = ring_or_order(edges)
        assert all(later in edges[name] for name, later in pairwise([*ring, *ring[:1]]))
        assert len(set(ring)) == len(ring)
        assert bool(ring) == has_ring(edges)
        assert not order or sorted(order) == list(names)
        assert all(order.index(b) < order.index(a) for a in order for b in edges[a])


def ring_or_order(edges: Mapping[str, list[str]]) -> tuple[tuple[str, ...], list[str]]:
    try:
        return (), dependencies_first(edges)
    except DependencyCycleError as error:
        return error.cycle, []


def has_ring(edges: Mapping[str, list[str]]) -> bool:
    def leads_back(start: str, name: str, left: int) -> bool:
        return any(
            after == start or (left > 0 and leads_back(start, after, left - 1)) for after in edges[name]
        )

    return any(leads_back(name, name, len(edges)) for name in edges)


def test_a_very_deep_graph_is_ordered_without_recursion() -> None:
    """S4.6: 100,000 nodes one behind the other."""
    edges = {str(n): [str(n + 1)] for n in range(100_000)}
    assert dependencies_first(edges) == [str(n) for n in reversed(range(100_000))]


def test_an_unknown_dependency_is_refused_by_name() -> None:
    """S2.4: it must be a node or stored; nothing is decided."""
    error = refused(World(), draft("a"), draft("b", "a", "nobody"))
    assert isinstance(error, TaskNotFoundError)
    assert error.task_id == "nobody"


def test_a_node_whose_key_is_held_stands_for_the_holder_and_its_own_edges_are_dropped() -> None:
    """S2.3: what depends on it depends on the holder; the holder is unchanged and gets no event."""
    holder = record("h", deduplication_key="key")
    world = World(holder, record("other"))
    ids, new, events = submit(
        world,
        draft("a"),
        draft("folded", "a", "nobody", deduplication_key="key"),
        draft("b", "folded"),
    )
    assert ids == {"a": "A", "folded": "h", "b": "B"}
    assert new["B"].depends_on == ("h",)
    assert list(new) == ["A", "B"]
    assert world.stored["h"] == holder
    assert [event.task_id for event in events] == ["A", "B"]


def test_the_second_node_with_a_key_folds_onto_the_first() -> None:
    """S2.3: in one call too; edges to the second go to the first."""
    ids, new, _ = submit(
        World(), draft("a", deduplication_key="k"), draft("b", deduplication_key="k"), draft("c", "a", "b")
    )
    assert ids == {"a": "A", "b": "A", "c": "C"}
    assert new["C"].depends_on == ("A",)


def test_rings_are_looked_for_after_folding() -> None:
    """S13.13: folding can make a ring, and can take one away."""
    error = refused(
        World(), draft("a", "b", deduplication_key="k"), draft("b", deduplication_key="k"), draft("c")
    )
    assert isinstance(error, DependencyCycleError)
    assert error.cycle == ("a",)
    ids, new, _ = submit(
        World(), draft("a", deduplication_key="k"), draft("b", "a"), draft("c", "b", deduplication_key="k")
    )
    assert ids == {"a": "A", "b": "B", "c": "A"}
    assert new["B"].depends_on == ("A",)


def test_a_terminal_task_does_not_hold_its_key() -> None:
    """S2.3: only active tasks block a key."""
    for status in TaskStatus:
        world = World(record("h", status=status, deduplication_key="key"))
        ids, _, _ = submit(world, draft("a", deduplication_key="key"))
        assert ids["a"] == ("A" if status in (COMPLETED, FAILED, CANCELLED) else "h")


def test_a_holder_past_its_expiry_is_settled_in_the_step_and_does_not_hold_its_key() -> None:
    """S13.13, S8.1: the expired holder and its dependents end first, then the new task is stored."""
    world = World(
        record("h", deduplication_key="key", expires_at=EARLIER),
        record("d", "h"),
    )
    ids, _, events = submit(world, draft("a", deduplication_key="key"))
    assert ids == {"a": "A"}
    assert world.statuses() == {"h": "cancelled", "d": "cancelled", "A": "pending"}
    assert [(type(event), event.task_id) for event in events] == [
        (TaskCancelled, "h"),
        (TaskCancelled, "d"),
        (TaskEnqueued, "A"),
    ]


def test_dependencies_that_have_ended_are_judged_at_once_through_the_whole_graph() -> None:
    """S2.4, S4.5: each is enqueued first and then ended, and what is behind it in the same call too."""
    failed = record("f", status=FAILED)
    world = World(failed)
    _, new, events = submit(
        world,
        draft("a", "f"),
        draft("b", "a", on_dependency_failure=FAIL),
        draft("c", "b", "a", on_dependency_failure=RUN),
        draft("d", "c"),
    )
    assert {task_id: task.status.value for task_id, task in new.items()} == {
        "A": "cancelled",
        "B": "failed",
        "C": "pending",
        "D": "waiting",
    }
    assert [(type(event), event.task_id) for event in events] == [
        (TaskEnqueued, "A"),
        (TaskCancelled, "A"),
        (TaskEnqueued, "B"),
        (TaskFailed, "B"),
        (TaskEnqueued, "C"),
        (TaskEnqueued, "D"),
    ]
    causes = [task.last_failure.cause_task_id for task in new.values() if task.last_failure]
    assert causes == ["f", "f"]


def test_completed_dependencies_release_at_once_and_the_time_still_counts() -> None:
    """S4.2, S2.5: pending, scheduled for its run_at."""
    later = NOW + timedelta(hours=1)
    _, new, _ = submit(World(record("c", status=COMPLETED)), draft("a", "c", next_attempt_at=later))
    assert (new["A"].status, new["A"].next_attempt_at) == (TaskStatus.PENDING, later)
