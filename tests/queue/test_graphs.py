"""Batches, chains and graphs: validated whole, stored whole, folded before rings are looked for (S2.6, S13.13)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from durable_queue import (
    DependencyCycleError,
    DependencyFailurePolicy,
    DurableQueue,
    FakeQueueClock,
    QueueStorage,
    RetryPolicy,
    StorageError,
    TaskCancelled,
    TaskEnqueued,
    TaskGraph,
    TaskNotFoundError,
    TaskStatus,
)
from durable_queue.testing import FAKE_START, FlakyStorage, collect_events
from tests.queue.conftest import MakeQueue
from tests.support import Other, ThirteenMethodStorage, Work, assert_untouched

HOUR = timedelta(hours=1)


async def succeed(task: object, context: object) -> None:
    """A handler."""


async def fail(task: object, context: object) -> None:
    raise RuntimeError("no")


def started(queue: DurableQueue, **options: object) -> list[int]:
    """Register `Work` with a handler that notes the number of each start."""
    order: list[int] = []

    async def run(task: Work, context: object) -> None:
        order.append(task.n)

    queue.register(Work, run, **options)  # type: ignore[arg-type]  # as given by the test
    return order


@pytest.mark.asyncio
async def test_a_batch_shares_its_options(make_queue: MakeQueue) -> None:
    """S2.6: the tasks of `enqueue_all` are independent, in order, and each has all options."""
    queue = make_queue()
    queue.register(Work, succeed)
    before = await queue.enqueue(Work())
    ids = await queue.enqueue_all(
        (Work(n) for n in range(3)),
        priority=4,
        group="g",
        depends_on=[before],
        on_dependency_failure=DependencyFailurePolicy.RUN,
        retry_policy=RetryPolicy.fixed(max_attempts=2, delay=HOUR),
        delay=HOUR,
        expires_in=2 * HOUR,
    )
    tasks = await queue.get_tasks(group="g")
    assert [task.id for task in tasks] == ids
    assert [task.payload["n"] for task in tasks] == [0, 1, 2]
    for task in tasks:
        assert (task.priority, task.depends_on, task.status) == (4, (before,), TaskStatus.WAITING)
        assert task.on_dependency_failure is DependencyFailurePolicy.RUN
        assert task.retry_policy.max_attempts == 2
        assert (task.next_attempt_at, task.expires_at) == (FAKE_START + HOUR, FAKE_START + 2 * HOUR)


@pytest.mark.asyncio
async def test_nothing_to_enqueue(make_queue: MakeQueue) -> None:
    """S2.6: empty batches, chains and graphs store nothing and return nothing."""
    queue = make_queue()
    assert await queue.enqueue_all([]) == []
    assert await queue.enqueue_chain(iter([])) == []
    assert await queue.enqueue_graph(TaskGraph()) == {}
    with pytest.raises(TypeError, match="TaskGraph"):
        await queue.enqueue_graph([Work()])
    assert await queue.get_tasks() == []


@pytest.mark.asyncio
async def test_a_chain_runs_in_order(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S2.6, S13.19: each task depends on the one before; dependencies and times are for the first, the rest for all."""
    queue = make_queue(max_concurrent_tasks=4)
    order = started(queue)
    before = await queue.enqueue(Work(0))
    ids = await queue.enqueue_chain(
        [Work(1), Work(2), Work(3)],
        depends_on=[before],
        delay=HOUR,
        priority=2,
        group="g",
        expires_in=2 * HOUR,
    )
    tasks = [await queue.get_task(task_id) for task_id in ids]
    assert [task.depends_on for task in tasks] == [(before,), (ids[0],), (ids[1],)]
    assert [task.next_attempt_at for task in tasks] == [FAKE_START + HOUR, None, None]
    assert [(task.priority, task.group, task.expires_at) for task in tasks] == [
        (2, "g", FAKE_START + 2 * HOUR)
    ] * 3
    await queue.start()
    await queue.drain()
    clock.advance(HOUR)
    await queue.drain()
    assert order == [0, 1, 2, 3]


@pytest.mark.asyncio
async def test_a_chain_breaks_where_a_task_fails(make_queue: MakeQueue) -> None:
    """S2.6, S4.3: what comes after a failed task of a chain follows its policy."""
    queue = make_queue()
    queue.register(Work, succeed)
    queue.register(Other, fail)
    await queue.start()
    ids = await queue.enqueue_chain([Work(), Other(), Work(), Work()])
    await queue.drain()
    statuses = [(await queue.get_task(task_id)).status.value for task_id in ids]
    assert statuses == ["completed", "failed", "cancelled", "cancelled"]


@pytest.mark.asyncio
async def test_a_graph_may_name_what_is_added_later(make_queue: MakeQueue) -> None:
    """S2.6: nodes depend on names, also of later nodes, and on stored ids; the order of add is the order of start."""
    queue = make_queue()
    order = started(queue)
    stored = await queue.enqueue(Work(0))
    graph = TaskGraph()
    last = graph.add(Work(4), depends_on=["left", "right"])
    assert last == "#1"
    graph.add(Work(2), name="left", depends_on=["top"], group="g")
    graph.add(Work(3), name="right", depends_on=["top", stored])
    graph.add(Work(1), name="top", priority=5)
    ids = await queue.enqueue_graph(graph)
    assert set(ids) == {"#1", "left", "right", "top"}
    task = await queue.get_task(ids["right"])
    assert task.depends_on == (ids["top"], stored)
    assert [task.payload["n"] for task in await queue.get_tasks()] == [0, 4, 2, 3, 1]
    await queue.start()
    await queue.drain()
    assert order == [1, 0, 2, 3, 4]
    again = await queue.enqueue_graph(graph)
    assert not set(again.values()) & set(ids.values())


@pytest.mark.asyncio
async def test_a_graph_keeps_dependencies_that_can_be_walked_once(make_queue: MakeQueue) -> None:
    """S2.6: a graph with dependencies from an iterator can be submitted again and again."""
    queue = make_queue()
    queue.register(Work, succeed)
    graph = TaskGraph()
    graph.add(Work(), name="a")
    graph.add(Work(), name="b", depends_on=(name for name in ["a"]))
    for _ in range(2):
        ids = await queue.enqueue_graph(graph)
        assert (await queue.get_task(ids["b"])).depends_on == (ids["a"],)


@pytest.mark.asyncio
async def test_a_name_goes_before_an_id(make_queue: MakeQueue) -> None:
    """S2.6: what is both a node's name and a stored id means the node."""
    queue = make_queue()
    queue.register(Work, succeed)
    stored = await queue.enqueue(Work())
    graph = TaskGraph()
    graph.add(Work(), name=stored)
    graph.add(Work(), name="b", depends_on=[stored])
    ids = await queue.enqueue_graph(graph)
    assert (await queue.get_task(ids["b"])).depends_on == (ids[stored],)


def test_names_of_nodes() -> None:
    """S13.19: automatic names are #1, #2, ...; a name of one's own may not start so, be blank, or be given twice."""
    graph = TaskGraph()
    assert [graph.add(Work()), graph.add(Work())] == ["#1", "#2"]
    for name in ("#1", "#x", "", " ", "a\0b"):
        with pytest.raises(ValueError, match="name"):
            graph.add(Work(), name=name)
    graph.add(Work(), name="a")
    with pytest.raises(ValueError, match="'a'"):
        graph.add(Work(), name="a")
    assert len(graph) == 3


@pytest.mark.asyncio
async def test_dep_03_rings_are_refused_with_their_path(make_queue: MakeQueue) -> None:
    """S2.6: a ring of any length is refused, `cycle` names it in order, and nothing is stored."""
    queue = make_queue(id_generator=iter(map(str, range(1000))).__next__)
    queue.register(Work, succeed)
    for ring in (["a"], ["a", "b"], ["a", "b", "c"], ["a", *(f"n{n}" for n in range(200))]):
        graph = TaskGraph()
        graph.add(Work(), name="outside")
        for name, dependency in zip(ring, [*ring[1:], ring[0]], strict=True):
            graph.add(Work(), name=name, depends_on=[dependency, "outside"])
        graph.add(Work(), name="behind", depends_on=["a"])
        with pytest.raises(DependencyCycleError, match="a") as caught:
            await queue.enqueue_graph(graph)
        cycle = list(caught.value.cycle)
        start = cycle.index("a")
        assert cycle[start:] + cycle[:start] == ring
    await assert_untouched(queue)


@pytest.mark.asyncio
async def test_dep_03_a_task_cannot_depend_on_itself(make_queue: MakeQueue) -> None:
    """S2.6: an id that the caller chose does not let a task depend on itself."""
    queue = make_queue(id_generator=lambda: "mine")
    queue.register(Work, succeed)
    with pytest.raises(DependencyCycleError):
        await queue.enqueue(Work(), depends_on=["mine"])
    await assert_untouched(queue)


@pytest.mark.asyncio
async def test_an_unknown_dependency_refuses_the_graph(make_queue: MakeQueue) -> None:
    """S2.4: a dependency that is neither a node nor stored is named, and nothing of the graph is stored."""
    queue = make_queue()
    queue.register(Work, succeed)
    graph = TaskGraph()
    graph.add(Work(), name="a")
    graph.add(Work(), depends_on=["a", "#7"])
    with pytest.raises(TaskNotFoundError, match="#7"):
        await queue.enqueue_graph(graph)
    await assert_untouched(queue)


@pytest.mark.asyncio
async def test_a_graph_on_ended_tasks_is_judged_at_once(make_queue: MakeQueue) -> None:
    """S2.4: behind a failed task the whole graph ends in the step of the insert, each node announced before its end."""
    queue = make_queue()
    queue.register(Work, succeed)
    queue.register(Other, fail)
    await queue.start()
    failed = await queue.enqueue(Other())
    await queue.drain()
    graph = TaskGraph()
    graph.add(Work(), name="b", depends_on=["a"])
    graph.add(Work(), name="a", depends_on=[failed])
    graph.add(Work(), name="c", depends_on=["b", "a"], on_dependency_failure=DependencyFailurePolicy.RUN)
    with collect_events(queue, TaskEnqueued, TaskCancelled) as events:
        ids = await queue.enqueue_graph(graph)
        seen = [(type(event), event.task_id) for event in events]
        await queue.drain()
    assert seen == [
        (TaskEnqueued, ids["a"]),
        (TaskCancelled, ids["a"]),
        (TaskEnqueued, ids["b"]),
        (TaskCancelled, ids["b"]),
        (TaskEnqueued, ids["c"]),
    ]
    for name in ("a", "b"):
        assert (await queue.get_task(ids[name])).last_failure.cause_task_id == failed
    assert (await queue.get_task(ids["c"])).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
async def test_a_folded_node_stands_for_the_stored_task(make_queue: MakeQueue) -> None:
    """S2.3: what depends on a folded node depends on the task it was folded onto; its own edges are dropped."""
    queue = make_queue()
    queue.register(Work, succeed)
    holder = await queue.enqueue(Work(0), deduplication_key="k")
    graph = TaskGraph()
    graph.add(Work(1), name="folded", deduplication_key="k", depends_on=["missing", "other"])
    graph.add(Work(2), name="other", depends_on=["folded"])
    ids = await queue.enqueue_graph(graph)
    assert ids["folded"] == holder
    assert (await queue.get_task(ids["other"])).depends_on == (holder,)
    assert len(await queue.get_tasks()) == 2
    assert (await queue.get_task(holder)).payload == {"n": 0}


@pytest.mark.asyncio
async def test_con_04_nodes_with_one_key_are_folded_onto_the_first(make_queue: MakeQueue) -> None:
    """S13.13: in one call the second node with a key is the first one, wherever it is named."""
    queue = make_queue()
    queue.register(Work, succeed)
    graph = TaskGraph()
    for n in range(8):
        graph.add(Work(n), name=f"n{n}")
    graph.add(Work(8), name="first", deduplication_key="k")
    graph.add(Work(9), name="second", deduplication_key="k", depends_on=["first", "n0"])
    graph.add(Work(10), name="third", depends_on=["second", "first"])
    ids = await queue.enqueue_graph(graph)
    assert ids["second"] == ids["first"]
    assert (await queue.get_task(ids["first"])).depends_on == ()
    assert (await queue.get_task(ids["third"])).depends_on == (ids["first"],)
    assert len(await queue.get_tasks()) == 10


@pytest.mark.asyncio
async def test_rings_are_looked_for_after_folding(make_queue: MakeQueue) -> None:
    """S13.13: folding can drop a ring, and can make one."""
    queue = make_queue()
    queue.register(Work, succeed)
    ring = TaskGraph()
    ring.add(Work(), name="a", deduplication_key="k", depends_on=["b"])
    ring.add(Work(), name="b", deduplication_key="k")
    with pytest.raises(DependencyCycleError) as caught:
        await queue.enqueue_graph(ring)
    assert caught.value.cycle == ("a",)
    await assert_untouched(queue)

    no_ring = TaskGraph()
    no_ring.add(Work(), name="a", deduplication_key="x")
    no_ring.add(Work(), name="b", depends_on=["c"], deduplication_key="x")
    no_ring.add(Work(), name="c", depends_on=["b"])
    ids = await queue.enqueue_graph(no_ring)
    assert ids["b"] == ids["a"]


@pytest.mark.asyncio
@pytest.mark.parametrize("where", [1, 7, 10])
async def test_sto_04_a_chain_is_stored_whole_or_not_at_all(
    make_queue: MakeQueue, storage: QueueStorage, where: int
) -> None:
    """S2.6, S13.8: when the write of ten tasks fails none is stored, and the same call works afterwards."""
    if isinstance(storage, ThirteenMethodStorage):
        flaky = storage.inner = FlakyStorage(storage.inner)  # type: ignore[assignment]  # it fails beneath the adapter
        flaky.fail("save", nth=where)
        queue = make_queue()
    else:
        flaky = FlakyStorage(storage)
        flaky.fail("apply")
        queue = make_queue(storage=flaky)
    order = started(queue)
    with collect_events(queue) as events:
        with pytest.raises(StorageError):
            await queue.enqueue_chain([Work(n) for n in range(10)])
        assert list(events) == []
    assert await queue.get_tasks() == []
    assert len(await queue.enqueue_chain([Work(n) for n in range(10)])) == 10
    await queue.start()
    await queue.drain()
    assert order == list(range(10))


@pytest.mark.asyncio
async def test_a_deep_chain_and_a_wide_graph(make_queue: MakeQueue, storage: QueueStorage) -> None:
    """S2.6, S4.6: a chain may be deep and a graph wide."""
    # Where every look at a waiting task walks its dependencies one by one, fewer have to do.
    size = 50 if isinstance(storage, ThirteenMethodStorage) else 1000
    queue = make_queue(max_concurrent_tasks=16)
    order = started(queue)
    chain = await queue.enqueue_chain([Work(n) for n in range(2 * size)])
    graph = TaskGraph()
    parents = [graph.add(Work(n)) for n in range(size)]
    graph.add(Work(-1), name="join", depends_on=parents)
    await queue.cancel(chain[1])
    await queue.enqueue_graph(graph)
    await queue.start()
    await queue.drain()
    assert sorted(order) == sorted([0, *range(size), -1])
    assert order[-1] == -1
    assert (await queue.counts())[TaskStatus.CANCELLED] == 2 * size - 1


@pytest.mark.asyncio
async def test_calls_that_travel_together_stay_independent(make_queue: MakeQueue) -> None:
    """S2.6: of calls made at once each gets its own answer; one that is refused costs the others nothing."""
    queue = make_queue()
    queue.register(Work, succeed)
    answers = await asyncio.gather(
        queue.enqueue(Work(1)),
        queue.enqueue(Work(2), depends_on=["missing"]),
        queue.enqueue_all([Work(3), Work(4)]),
        return_exceptions=True,
    )
    assert isinstance(answers[1], TaskNotFoundError)
    assert [task.id for task in await queue.get_tasks()] == [answers[0], *answers[2]]
