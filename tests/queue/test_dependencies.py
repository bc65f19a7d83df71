"""Dependencies on the real queue: who is released, who is ended, by what and in which order."""

from __future__ import annotations

from datetime import timedelta
from itertools import count

import pytest

from durable_queue import (
    CorruptRecordError,
    DependencyFailurePolicy,
    DurableQueue,
    FakeQueueClock,
    QueueStorage,
    RetryPolicy,
    TaskCancelled,
    TaskCompleted,
    TaskEnqueued,
    TaskFailed,
    TaskGraph,
    TaskNotFoundError,
    TaskStarted,
)
from durable_queue.testing import FlakyStorage, advance, collect_events
from tests.queue.conftest import MakeQueue
from tests.queue.graph_support import Script, everything, statuses, told
from tests.support import Work

CANCEL, FAIL, RUN = DependencyFailurePolicy.CANCEL, DependencyFailurePolicy.FAIL, DependencyFailurePolicy.RUN
POLICIES = (CANCEL, FAIL, RUN)
ENDS = {CANCEL: "cancelled", FAIL: "failed", RUN: "completed"}


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def queue(make_queue: MakeQueue, script: Script) -> DurableQueue:
    """A queue with four slots; its ids are t1, t2, ... in order of enqueue."""
    numbers = count(1)
    queue = make_queue(max_concurrent_tasks=4, id_generator=lambda: f"t{next(numbers)}")
    queue.register(Work, script)
    return queue


@pytest.mark.asyncio
async def test_a_dependent_waits_for_the_last_of_its_dependencies(
    queue: DurableQueue, script: Script
) -> None:
    """S4.1, S4.2: it is waiting until every dependency has completed, then it becomes pending and runs."""
    script.hold(1, 2)
    a, b = await queue.enqueue_all([Work(1), Work(2)])
    join = await queue.enqueue(Work(3), depends_on=[a, b])
    await queue.start()
    script.let_go(1)
    await queue.wait(a)
    assert await statuses(queue, [join]) == ["waiting"]
    script.let_go(2)
    assert (await queue.wait(join)).result == 3
    assert script.started == [1, 2, 3]


@pytest.mark.asyncio
async def test_a_released_dependent_still_waits_for_its_own_time(
    queue: DurableQueue, clock: FakeQueueClock, script: Script
) -> None:
    """S4.2, S2.5: of the dependencies and run_at the later decides."""
    a = await queue.enqueue(Work(1))
    b = await queue.enqueue(Work(2), depends_on=[a], delay=timedelta(hours=1))
    await queue.start()
    assert (await queue.drain()).scheduled == 1
    assert await statuses(queue, [b]) == ["pending"]
    await advance(queue, clock, timedelta(minutes=59))
    assert script.started == [1]
    await advance(queue, clock, timedelta(minutes=1))
    assert script.started == [1, 2]


@pytest.mark.asyncio
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("other_first", [True, False])
async def test_dep_07_a_diamond_whose_branches_end_in_either_order(
    queue: DurableQueue, script: Script, policy: DependencyFailurePolicy, other_first: bool
) -> None:
    """S4.3, S4.4, S4.6, DEP-07: cancel and fail end the join at once and once, run waits for both branches."""
    script.fails = {2: 1}
    script.hold(2, 3)
    graph = TaskGraph()
    a = graph.add(Work(1))
    b = graph.add(Work(2), depends_on=[a])
    c = graph.add(Work(3), depends_on=[a])
    d = graph.add(Work(4), depends_on=[b, c], on_dependency_failure=policy)
    e = graph.add(Work(5), depends_on=[d], on_dependency_failure=RUN)
    ids = await queue.enqueue_graph(graph)
    with collect_events(queue) as events:
        await queue.start()
        await script.reached(2, 3)
        for number in (3, 2) if other_first else (2, 3):
            script.let_go(number)
            await queue.wait(ids[b] if number == 2 else ids[c])
            if number == 2 and not other_first:
                expected = ["waiting"] if policy is RUN else [ENDS[policy]]
                assert await statuses(queue, [ids[d]]) == expected
        await queue.wait(ids[e])
    assert await statuses(queue, ids.values()) == [
        "completed",
        "failed",
        "completed",
        ENDS[policy],
        "completed",
    ]
    assert script.started.count(4) == (policy is RUN)
    assert script.started[-1] == 5
    ends = [e for e in events if isinstance(e, (TaskCompleted, TaskFailed, TaskCancelled))]
    assert sorted(e.task_id for e in ends) == sorted(ids.values())


@pytest.mark.asyncio
async def test_the_order_of_depends_on_does_not_matter(queue: DurableQueue, script: Script) -> None:
    """S4.4: dependents that list the same dependencies in another order end alike."""
    script.fails = {1: 1}
    a, b = await queue.enqueue_all([Work(1), Work(2)])
    ids = [
        await queue.enqueue(Work(3), depends_on=order, on_dependency_failure=policy)
        for policy in POLICIES
        for order in ([a, b], [b, a], [a, b, a])
    ]
    await queue.start()
    await queue.drain()
    assert await statuses(queue, ids) == [ENDS[policy] for policy in POLICIES for _ in range(3)]


@pytest.mark.asyncio
async def test_the_block_and_the_root_of_the_cascade_are_recorded_through_mixed_policies(
    queue: DurableQueue, script: Script
) -> None:
    """S4.5: each names the dependency before it and that one's status; the cause is the task that really failed."""
    script.fails = {1: 1}
    a = await queue.enqueue(Work(1))
    b = await queue.enqueue(Work(2), depends_on=[a])
    c = await queue.enqueue(Work(3), depends_on=[b], on_dependency_failure=FAIL)
    d = await queue.enqueue(Work(4), depends_on=[c])
    e = await queue.enqueue(Work(5), depends_on=[d], on_dependency_failure=RUN)
    f = await queue.enqueue(Work(6), depends_on=[e])
    await queue.start()
    await queue.wait(f)
    expected = {b: ("cancelled", a, "failed"), c: ("failed", b, "cancelled"), d: ("cancelled", c, "failed")}
    for task_id, (status, blocking, state) in expected.items():
        task = await queue.get_task(task_id)
        assert task is not None
        assert task.last_failure is not None
        assert (task.status.value, task.attempts) == (status, 0)
        assert task.last_failure.error_type == "DependencyFailedError"
        assert f"{blocking!r} is {state}" in task.last_failure.error
        assert task.last_failure.cause_task_id == a
    assert script.started == [1, 5, 6]
    root = await queue.get_task(a)
    assert root is not None
    assert root.last_failure is not None
    assert root.last_failure.cause_task_id is None


@pytest.mark.asyncio
async def test_a_cascade_stops_at_run_and_a_failure_behind_it_is_a_new_root(
    queue: DurableQueue, script: Script
) -> None:
    """S4.5: a dependent that ran and failed itself is the root for those behind it."""
    script.fails = {1: 1, 2: 1}
    a = await queue.enqueue(Work(1))
    b = await queue.enqueue(Work(2), depends_on=[a], on_dependency_failure=RUN)
    c = await queue.enqueue(Work(3), depends_on=[b])
    await queue.start()
    failure = (await queue.wait(c)).last_failure
    assert failure is not None
    assert failure.cause_task_id == b


@pytest.mark.asyncio
@pytest.mark.parametrize("way", ["failed", "cancelled", "expired"])
@pytest.mark.parametrize("policy", POLICIES)
async def test_dep_02_every_way_not_to_complete_counts_before_and_after_enqueue(
    queue: DurableQueue,
    clock: FakeQueueClock,
    script: Script,
    way: str,
    policy: DependencyFailurePolicy,
) -> None:
    """S4.3, S2.4, DEP-02: failed, cancelled and expired dependencies end a dependent by its policy, also at enqueue."""
    script.fails = {1: 1}
    at = clock.now() + timedelta(minutes=1)
    a = await queue.enqueue(Work(1), expires_at=at if way == "expired" else None)
    before = await queue.enqueue(Work(2), depends_on=[a], on_dependency_failure=policy)
    await queue.start(paused=True)
    if way == "cancelled":
        await queue.cancel(a)
    if way == "expired":
        clock.advance(timedelta(minutes=2))
    await queue.resume()
    await queue.wait(a)
    await queue.pause()
    with collect_events(queue, TaskEnqueued, TaskFailed, TaskCancelled) as events:
        after = await queue.enqueue(Work(3), depends_on=[a], on_dependency_failure=policy)
        behind = await queue.enqueue(Work(4), depends_on=[after])
    assert ("TaskEnqueued", after) == told(events)[0]
    if policy is not RUN:
        name = {CANCEL: "TaskCancelled", FAIL: "TaskFailed"}[policy]
        assert told(events) == [
            ("TaskEnqueued", after),
            (name, after),
            ("TaskEnqueued", behind),
            ("TaskCancelled", behind),
        ]
        assert await statuses(queue, [after, behind]) == [ENDS[policy], "cancelled"]
    await queue.resume()
    await queue.drain()
    end = ENDS[policy]
    assert await statuses(queue, [before, after, behind]) == [
        end,
        end,
        "completed" if policy is RUN else "cancelled",
    ]


@pytest.mark.asyncio
async def test_an_unknown_dependency_is_refused_by_name(queue: DurableQueue) -> None:
    """S2.4, DEP-02: every id must exist; the error names it and nothing is stored."""
    a = await queue.enqueue(Work(1))
    with pytest.raises(TaskNotFoundError, match="'nobody'") as caught:
        await queue.enqueue(Work(2), depends_on=[a, "nobody"])
    assert caught.value.task_id == "nobody"
    assert list(await everything(queue)) == [a]


@pytest.mark.asyncio
async def test_a_dependency_that_completed_before_does_not_hold_anything_up(
    queue: DurableQueue, script: Script
) -> None:
    """S4.1, S4.2: a dependent of completed tasks is pending at once."""
    await queue.start()
    a = await queue.enqueue(Work(1))
    await queue.wait(a)
    await queue.pause()
    b = await queue.enqueue(Work(2), depends_on=[a])
    assert await statuses(queue, [b]) == ["pending"]


@pytest.mark.asyncio
async def test_dep_06_dependents_are_untouched_while_the_dependency_has_attempts_left(
    queue: DurableQueue, clock: FakeQueueClock, script: Script
) -> None:
    """S4.1, S5.2, DEP-06: nothing is judged before the dependency is terminal; attempts are counted exactly."""
    policy = RetryPolicy.fixed(max_attempts=3, delay=timedelta(seconds=1))
    script.fails = {1: 2, 11: 3, 21: 1}
    dependents = {}
    for root, retry_policy in ((1, policy), (11, policy), (21, RetryPolicy.none())):
        parent = await queue.enqueue(Work(root), retry_policy=retry_policy)
        dependents[root] = [
            await queue.enqueue(Work(root + n), depends_on=[parent], on_dependency_failure=p)
            for n, p in enumerate(POLICIES, 1)
        ]
    await queue.start()
    await queue.drain()
    assert await statuses(queue, dependents[1] + dependents[11]) == ["waiting"] * 6
    assert await statuses(queue, dependents[21]) == ["cancelled", "failed", "completed"]
    await advance(queue, clock, timedelta(seconds=1))
    assert await statuses(queue, dependents[1] + dependents[11]) == ["waiting"] * 6
    await advance(queue, clock, timedelta(seconds=1))
    assert await statuses(queue, dependents[1]) == ["completed"] * 3
    assert await statuses(queue, dependents[11]) == ["cancelled", "failed", "completed"]
    assert [script.started.count(n) for n in (1, 11, 21)] == [3, 3, 1]
    assert sorted(n for n in script.started if n not in (1, 11, 21)) == [2, 3, 4, 14, 24]


@pytest.mark.asyncio
async def test_events_come_in_causal_order(queue: DurableQueue, script: Script) -> None:
    """S4.8: the finished task first, then each dependent after the one that settled it."""
    script.fails = {1: 1}
    a = await queue.enqueue(Work(1))
    graph = TaskGraph()
    # Added in an order that is not the order of the edges.
    graph.add(Work(5), name="e", depends_on=["d", "c"])
    graph.add(Work(4), name="d", depends_on=["b"], on_dependency_failure=FAIL)
    graph.add(Work(3), name="c", depends_on=[a])
    graph.add(Work(2), name="b", depends_on=[a])
    ids = await queue.enqueue_graph(graph)
    with collect_events(queue) as events:
        await queue.start()
        await queue.drain()
    order = told(events)
    assert order[:2] == [("TaskStarted", a), ("TaskFailed", a)]
    assert sorted(order[2:]) == sorted(
        [
            ("TaskCancelled", ids["b"]),
            ("TaskCancelled", ids["c"]),
            ("TaskFailed", ids["d"]),
            ("TaskCancelled", ids["e"]),
        ]
    )
    place = {task_id: index for index, (_, task_id) in enumerate(order)}
    assert place[ids["b"]] < place[ids["d"]]
    last = await queue.get_task(ids["e"])
    assert last is not None
    assert last.last_failure is not None
    settled_by = ids["c"] if ids["c"] in last.last_failure.error else ids["d"]
    assert settled_by in last.last_failure.error
    assert place[settled_by] < place[ids["e"]]


@pytest.mark.asyncio
async def test_dep_04_two_parents_that_end_in_the_same_turn_release_their_join_once(
    queue: DurableQueue, script: Script
) -> None:
    """S4.6, DEP-04: 100 joins of two parents that end together are started once each."""
    with collect_events(queue, TaskStarted) as events:
        await queue.start()
        joins = []
        for n in range(0, 300, 3):
            script.hold(n, n + 1)
            a, b = await queue.enqueue_all([Work(n), Work(n + 1)])
            joins.append(await queue.enqueue(Work(n + 2), depends_on=[a, b]))
            await script.reached(n, n + 1)
            script.let_go(n, n + 1)
            await queue.wait(joins[-1])
    assert script.started == [*sorted(script.started)]
    assert len(events) == 300


@pytest.mark.asyncio
@pytest.mark.parametrize("fails", [[1], [2], [1, 2]])
@pytest.mark.parametrize("policy", POLICIES)
async def test_two_parents_that_end_in_the_same_turn_in_every_way(
    queue: DurableQueue, script: Script, fails: list[int], policy: DependencyFailurePolicy
) -> None:
    """S4.4, S4.6: the join of two that end together, well or badly, is settled once and as if they had not."""
    script.fails = dict.fromkeys(fails, 1)
    script.hold(1, 2)
    a, b = await queue.enqueue_all([Work(1), Work(2)])
    join = await queue.enqueue(Work(3), depends_on=[a, b], on_dependency_failure=policy)
    with collect_events(queue, TaskCompleted, TaskFailed, TaskCancelled) as events:
        await queue.start()
        await script.reached(1, 2)
        script.let_go(1, 2)
        await queue.drain()
    assert await statuses(queue, [join]) == [ENDS[policy]]
    assert sorted(task_id for _, task_id in told(events)) == [a, b, join]


@pytest.mark.asyncio
async def test_a_dependent_that_is_cancelled_is_left_alone_by_what_ends_later(
    queue: DurableQueue, script: Script
) -> None:
    """S4.6, S6.1: a waiting task that the user cancels settles those behind it, and nothing touches it again."""
    script.hold(1)
    a = await queue.enqueue(Work(1))
    b = await queue.enqueue(Work(2), depends_on=[a])
    c = await queue.enqueue(Work(3), depends_on=[a, b], on_dependency_failure=RUN)
    await queue.start()
    await script.reached(1)
    await queue.cancel(b)
    cancelled = await queue.get_task(b)
    assert await statuses(queue, [b, c]) == ["cancelled", "waiting"]
    script.let_go(1)
    await queue.wait(c)
    assert await queue.get_task(b) == cancelled
    assert script.started == [1, 3]


@pytest.mark.asyncio
async def test_results_of_completed_dependencies_are_there_by_id(queue: DurableQueue, script: Script) -> None:
    """S5.8: completed dependencies are in the mapping, in no matter what order; one that did not complete is absent."""
    script.fails = {2: 1}
    a, b, c = await queue.enqueue_all([Work(1), Work(2), Work(3)])
    await queue.enqueue(Work(4), depends_on=[c, b, a], on_dependency_failure=RUN)
    await queue.enqueue(Work(5))
    await queue.start()
    await queue.drain()
    assert script.results[4] == {a: 1, c: 3}
    assert script.results[5] == {}


@pytest.mark.asyncio
async def test_a_dependency_that_is_deleted_before_the_dependent_starts_is_absent_from_the_results(
    queue: DurableQueue, script: Script
) -> None:
    """S5.8, S6.4: a released dependent no longer needs its dependency, which can be deleted and is absent then."""
    a = await queue.enqueue(Work(1))
    await queue.start()
    await queue.wait(a)
    await queue.pause()
    b = await queue.enqueue(Work(2), depends_on=[a])
    await queue.delete(a)
    await queue.resume()
    await queue.wait(b)
    assert script.results[2] == {}


@pytest.mark.asyncio
async def test_an_outcome_and_the_claim_of_what_it_released_are_one_write(
    make_queue: MakeQueue, storage: QueueStorage, script: Script
) -> None:
    """S13.2, S4.7: on an atomic storage a chain of n tasks takes n + 1 writes: each end starts the next one."""
    if not storage.atomic:
        # Piece by piece there: the outcome with what it released, then the claim.
        per_task, first = 2, 0
    else:
        per_task, first = 1, 1
    flaky = FlakyStorage(storage)
    queue = make_queue(storage=flaky)
    queue.register(Work, script)
    await queue.enqueue_chain([Work(n) for n in range(5)])
    before = flaky.calls["apply"]
    await queue.start()
    await queue.drain()
    assert script.started == [0, 1, 2, 3, 4]
    assert flaky.calls["apply"] - before == 5 * per_task + first


@pytest.mark.asyncio
async def test_what_waits_for_an_unreadable_record_is_judged_when_that_is_deleted(
    make_queue: MakeQueue, storage: QueueStorage, script: Script
) -> None:
    """S4.3, S13.12: a deleted dependency is missing: its dependents end by their policies, or run, at once."""
    flaky = FlakyStorage(storage)
    queue = make_queue(storage=flaky)
    queue.register(Work, script)
    a = await queue.enqueue(Work(1), delay=timedelta(hours=1))
    ids = [
        await queue.enqueue(Work(n), depends_on=[a], on_dependency_failure=policy)
        for n, policy in enumerate(POLICIES, 2)
    ]
    behind = await queue.enqueue(Work(9), depends_on=[ids[0]])
    await queue.start()
    flaky.fail("get", error=CorruptRecordError("must be a string", task_id=a))
    await queue.delete(a)
    await queue.drain()
    assert await statuses(queue, [*ids, behind]) == ["cancelled", "failed", "completed", "cancelled"]
    task = await queue.get_task(behind)
    assert task is not None
    assert task.last_failure is not None
    assert task.last_failure.cause_task_id == a
