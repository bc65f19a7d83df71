"""Larger graphs than can be gone through one by one: random ones, worked off by the real queue in random orders."""

from __future__ import annotations

import asyncio
import random

import pytest

from durable_queue import TaskCancelled, TaskCompleted, TaskFailed, TaskGraph
from durable_queue.testing import collect_events
from tests.core.world import POLICIES, Edges, Ended, Policies, expected_status
from tests.queue.conftest import MakeQueue
from tests.queue.graph_support import Script, told
from tests.support import Work

SIZE = 14


def draw(chance: random.Random) -> tuple[Edges, Policies]:
    """Draw a graph whose nodes are in no particular order, and a policy for each."""
    names = [f"n{n}" for n in range(SIZE)]
    rank = {name: place for place, name in enumerate(chance.sample(names, SIZE))}
    edges = {
        name: tuple(other for other in names if rank[other] < rank[name] and chance.random() < 0.2)
        for name in names
    }
    return edges, {name: chance.choice(POLICIES) for name in names}


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", range(12))
async def test_a_random_graph_ends_as_the_clauses_say(make_queue: MakeQueue, seed: int) -> None:
    """S4.1-S4.8: whatever runs, fails or is cancelled meanwhile, in whatever order, each task ends as it must."""
    chance = random.Random(seed)
    edges, policies = draw(chance)
    bad = {n for n in range(SIZE) if chance.random() < 0.3}
    script = Script(bad)
    script.hold(*range(SIZE))
    queue = make_queue(max_concurrent_tasks=chance.choice([1, 3, 8]))
    queue.register(Work, script)
    graph = TaskGraph()
    for n, name in enumerate(edges):
        graph.add(Work(n), name=name, depends_on=edges[name], on_dependency_failure=policies[name])
    ids = await queue.enqueue_graph(graph)
    name_of = {task_id: name for name, task_id in ids.items()}
    with collect_events(queue, TaskCompleted, TaskFailed, TaskCancelled) as events:
        await queue.start()
        order = chance.sample(range(SIZE), SIZE)
        while order:
            now = [order.pop() for _ in range(min(len(order), chance.choice([1, 1, 2, 3])))]
            script.let_go(*now)
            if chance.random() < 0.3:
                # Together with the ends of handlers, and with each other.
                await asyncio.gather(*(queue.cancel(chance.choice(list(ids.values()))) for _ in range(2)))
        await queue.drain()
    tasks = {name: await queue.get_task(task_id) for name, task_id in ids.items()}
    ended: Ended = {}
    for name, task in tasks.items():
        assert task is not None
        by_user = task.last_failure is not None and task.last_failure.error_type == "TaskCancelledError"
        if task.attempts > 0 or by_user:
            ended[name] = task.status.value
    for name, task in tasks.items():
        assert task is not None
        assert task.status.value == expected_status(name, edges, policies, ended)
        assert task.status.is_terminal
    announced = [name_of[task_id] for _, task_id in told(events)]
    assert sorted(announced) == sorted(edges)
    for name, task in tasks.items():
        assert task is not None
        if name not in ended:
            failure = task.last_failure
            assert failure is not None
            blocking = next(other for other in edges[name] if f"{ids[other]!r}" in failure.error)
            assert announced.index(blocking) < announced.index(name)
            assert name_of[str(failure.cause_task_id)] in ended
