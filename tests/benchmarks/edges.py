"""Dependencies: what an edge costs with 100 and with 10,000 of them, and how long they hold the event loop up."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs

from durable_queue import DurableQueue, TaskGraph, TaskStatus
from tests.benchmarks.filling import Job, Other, queue_over, storage_of
from tests.benchmarks.holds import Hold
from tests.benchmarks.measuring import Row, Table, at_most, duration, fresh_folder, median, rounds

T = TypeVar("T")

FEW: Final = 100
MANY: Final = 10_000
LONGEST_HOLD: Final = 0.1
_SLOTS: Final = 16
_FEW_AS_OFTEN: Final = 3
"""How often the short measurement is taken for each long one."""


@attrs.frozen(kw_only=True)
class Part:
    """What one part of the life of a graph has cost.

    Attributes:
        an_edge: seconds for each edge.
        hold: the longest hold of the event loop.
    """

    an_edge: float
    hold: float


@attrs.frozen(kw_only=True)
class Cost:
    """What a graph has cost.

    Attributes:
        enqueue: to store it.
        settle: to settle it.
    """

    enqueue: Part
    settle: Part


Case = Callable[[DurableQueue, int], Coroutine[None, None, Cost]]


async def parent_completes(queue: DurableQueue, count: int) -> Cost:
    """Release many dependents of one parent."""
    return await _parent_ends(queue, count, fails=False)


async def parent_fails(queue: DurableQueue, count: int) -> Cost:
    """Cancel many dependents of one parent."""
    return await _parent_ends(queue, count, fails=True)


async def _parent_ends(queue: DurableQueue, count: int, *, fails: bool) -> Cost:
    may_end = asyncio.Event()

    @queue.handler(Other)
    async def parent(task: Other, context: object) -> None:
        await may_end.wait()
        if fails:
            raise RuntimeError("as asked")

    graph = TaskGraph()
    head = graph.add(Other(), name="parent")
    for _ in range(count):
        # Not before tomorrow: released, they would be run, and that is no cost of an edge.
        graph.add(Job(), depends_on=[head], delay=timedelta(days=1))
    ids, enqueue = await _timed(queue.enqueue_graph(graph), count)
    await queue.start()
    may_end.set()
    _, settle = await _timed(queue.wait(ids[head]), count)
    await _expect(queue, TaskStatus.CANCELLED if fails else TaskStatus.PENDING, count)
    return Cost(enqueue=enqueue, settle=settle)


async def child_waits(queue: DurableQueue, count: int) -> Cost:
    """Run many parents, and then the one child of them all."""
    ran = asyncio.Event()

    @queue.handler(Other)
    async def child(task: Other, context: object) -> None:
        ran.set()

    graph = TaskGraph()
    parents = [graph.add(Job()) for _ in range(count)]
    graph.add(Other(), depends_on=parents)
    _, enqueue = await _timed(queue.enqueue_graph(graph), count)
    await queue.start()
    _, settle = await _timed(ran.wait(), count)
    await queue.drain()
    await _expect(queue, TaskStatus.COMPLETED, count + 1)
    return Cost(enqueue=enqueue, settle=settle)


async def chain_is_cancelled(queue: DurableQueue, count: int) -> Cost:
    """Cancel a long chain at its head."""
    queue.register(Other, _never)
    await queue.start(paused=True)
    tasks = [Job() for _ in range(count + 1)]
    ids, enqueue = await _timed(queue.enqueue_chain(tasks), count)
    _, settle = await _timed(queue.cancel(ids[0]), count)
    await _expect(queue, TaskStatus.CANCELLED, count + 1)
    return Cost(enqueue=enqueue, settle=settle)


CASES: Final[dict[str, Case]] = {
    "one parent completes, {} dependents are released": parent_completes,
    "one parent fails, {} dependents are cancelled": parent_fails,
    "{} parents run, then their one child": child_waits,
    "a chain of {} is cancelled at its head": chain_is_cancelled,
}


async def _never(task: object, context: object) -> None:
    raise AssertionError("nothing runs in a paused queue")


async def _timed(work: Coroutine[Any, Any, T], count: int) -> tuple[T, Part]:
    gc.collect()
    with Hold() as hold:
        began = time.perf_counter()
        answer = await work
        took = time.perf_counter() - began
        # What goes on after the answer may hold the loop up as well.
        await asyncio.sleep(0.01)
    return answer, Part(an_edge=took / count, hold=hold.longest)


async def _expect(queue: DurableQueue, status: TaskStatus, count: int) -> None:
    found = (await queue.counts())[status]
    if found != count:
        raise RuntimeError(f"{found} tasks are {status.value} and not {count}")


async def measure(kind: str, folder: Path, case: Case, count: int) -> Cost:
    """Measure a case once, in a storage of a kind."""
    async with storage_of(kind, folder) as storage:
        queue = queue_over(storage, slots=_SLOTS)
        cost = await case(queue, count)
        await queue.close()
        return cost


def _once(kind: str, case: Case, count: int) -> Cost:
    with fresh_folder() as folder:
        return asyncio.run(measure(kind, folder, case, count))


def tables(quick: bool) -> Iterator[Table]:
    """Measure."""
    many = 1_000 if quick else MANY
    for kind, title in (("sqlite", "SqliteQueueStorage"), ("memory", "MemoryQueueStorage")):
        rows: list[Row] = []
        for name, case in CASES.items():
            few_costs: list[Cost] = []
            many_costs: list[Cost] = []
            for _ in range(rounds(quick)):
                few_costs += [_once(kind, case, FEW) for _ in range(_FEW_AS_OFTEN)]
                many_costs.append(_once(kind, case, many))
            rows += _rows(name.format(f"{many:,}"), few_costs, many_costs)
        yield Table(
            title=f"Dependencies, {title}",
            rows=rows,
            notes=(
                f"The cost of an edge is the time of the whole, divided by the edges; {_SLOTS} slots.",
                "The hold is the longest time in all rounds for which the event loop took no turn.",
            ),
        )


def _rows(name: str, few: list[Cost], many: list[Cost]) -> Iterator[Row]:
    for verb in ("settle", "enqueue"):
        parts: list[list[Part]] = [[getattr(cost, verb) for cost in costs] for costs in (few, many)]
        small, large = (median([part.an_edge for part in costs]) for costs in parts)
        yield at_most(
            2,
            measure=f"{name}: to {verb} an edge",
            ours=duration(large),
            against=f"with {FEW}: {duration(small)}",
            ratio=large / small,
        )
        longest = max(part.hold for part in parts[1])
        yield Row(
            measure=f"{name}: longest hold to {verb} them",
            ours=duration(longest),
            against="",
            ratio=None,
            wanted=f"under {duration(LONGEST_HOLD)}",
            met=longest < LONGEST_HOLD,
        )
