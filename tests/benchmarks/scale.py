"""The same work beside a thousand and beside a million stored tasks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Final

import attrs

from durable_queue import (
    DependencyFailurePolicy,
    DurableQueue,
    QueueStorage,
    RetryPolicy,
    StoredTask,
    TaskStatus,
    Update,
)
from durable_queue_sqlite import SqliteQueueStorage
from tests.benchmarks import alone
from tests.benchmarks.filling import (
    BEGAN,
    LATER,
    NOW,
    Job,
    Other,
    Shape,
    copy,
    finished,
    id_of,
    make_file,
    nothing,
    queue_over,
    ready,
    record,
    remove,
)
from tests.benchmarks.measuring import (
    Row,
    Table,
    at_least,
    at_most,
    duration,
    fresh_folder,
    median,
    per_second,
    rounds,
)

FEW: Final = 1_000
MANY: Final = 1_000_000
READY: Final = 1_000
"""How many tasks are ready beside those that are not."""

_MIB: Final = 1024 * 1024
_CALLERS: Final = 100
_SLOTS: Final = 16


def tables(quick: bool) -> Iterator[Table]:
    """Measure."""
    many = 20_000 if quick else MANY
    with fresh_folder() as folder:
        yield Table(
            title=f"A claim with {many:,} stored, SqliteQueueStorage, FULL",
            rows=list(_claim_rows(folder, many, quick)),
            notes=(
                "A claim is `get_ready(now, 1)` and the `apply` of the claimed record.",
                "Claims in the large and in the small file are taken in turn.",
            ),
        )
    with fresh_folder() as folder:
        yield Table(
            title=f"A queue over {many:,} stored tasks, SqliteQueueStorage, FULL",
            rows=[
                *_start_rows(folder, many, quick),
                *_recovery_rows(folder, many // 10, quick),
                *_throughput_rows(folder, many, quick),
            ],
        )
    yield Table(title="MemoryQueueStorage", rows=list(_memory_rows(many)))


def all_ready(count: int) -> Iterable[StoredTask]:
    """Nothing stands in the way."""
    return ready(count)


def not_due(count: int) -> Iterable[StoredTask]:
    """Tasks of higher priority that are not due, and some that are ready."""
    return chain(
        ready(count, priority=10, next_attempt_at=LATER),
        ready(READY, first=count + 1),
    )


def half_now_due(count: int) -> Iterable[StoredTask]:
    """Every second one was delayed when it was stored, and is due by now."""
    due = BEGAN + timedelta(days=29)
    return (record(number, next_attempt_at=due if number % 2 else None) for number in range(1, count + 1))


def all_waiting(count: int) -> Iterable[StoredTask]:
    """Tasks that wait for some that are ready."""
    parents = [id_of(number) for number in range(1, READY + 1)]
    waiting = (
        record(
            number,
            status=TaskStatus.WAITING,
            depends_on=[parents[number % READY]],
            on_dependency_failure=DependencyFailurePolicy.CANCEL,
        )
        for number in range(READY + 1, READY + count + 1)
    )
    return chain(ready(READY), waiting)


def all_finished(count: int) -> Iterable[StoredTask]:
    """Tasks that have completed, and some that are ready."""
    return chain(finished(count), ready(READY, first=count + 1))


def half_finished(count: int) -> Iterable[StoredTask]:
    """As many that have completed as are ready."""
    half = count // 2
    return chain(finished(half), ready(count - half, first=half + 1))


def interrupted(count: int) -> Iterable[StoredTask]:
    """Tasks that a process left running; they are retried, not soon."""
    policy = RetryPolicy.fixed(max_attempts=3, delay=timedelta(days=1))
    return ready(count, status=TaskStatus.RUNNING, attempts=1, retry_policy=policy, updated_at=NOW)


SHAPES: Final[dict[str, Shape]] = {
    "all ready": all_ready,
    "all of higher priority and not due, 1,000 more ready": not_due,
    "half delayed, now due": half_now_due,
    "all waiting, 1,000 more ready": all_waiting,
    "all finished, 1,000 more ready": all_finished,
}


def _claim_rows(folder: Path, many: int, quick: bool) -> Iterator[Row]:
    claims = 50 if quick else 500
    for name, shape in SHAPES.items():
        files = [asyncio.run(make_file(folder / f"{count}.db", shape(count))) for count in (FEW, many)]
        small, large = asyncio.run(_claim_both(files[0], files[1], claims))
        yield at_most(
            2,
            measure=f"{name}: claim, p50",
            ours=duration(median(large.claims)),
            against=f"with {FEW:,}: {duration(median(small.claims))}",
            ratio=median(large.claims) / median(small.claims),
        )
        yield Row(
            measure=f"{name}: get_ready alone, p50",
            ours=duration(median(large.reads)),
            against=f"with {FEW:,}: {duration(median(small.reads))}",
            ratio=median(large.reads) / median(small.reads),
            wanted="",
            met=True,
        )
        if shape is half_now_due:
            yield Row(
                measure=f"{name}: the first get_ready, which makes them eligible",
                ours=duration(large.first),
                against=f"with {FEW:,}: {duration(small.first)}",
                ratio=None,
                wanted="",
                met=True,
            )
        if shape is all_ready:
            yield asyncio.run(_types_row(folder, files[1], claims))
        for file in files:
            remove(file)


@attrs.define
class Claims:
    """What the claims of one file have taken, in seconds.

    Attributes:
        first: the first `get_ready`.
        reads: each further `get_ready`.
        claims: each `get_ready` with its `apply`.
    """

    first: float = 0.0
    reads: list[float] = attrs.field(factory=list)
    claims: list[float] = attrs.field(factory=list)

    async def take(self, storage: QueueStorage) -> None:
        """Claim a task."""
        began = time.perf_counter()
        [task] = await storage.get_ready(NOW, 1)
        read = time.perf_counter()
        claimed = attrs.evolve(
            task, status=TaskStatus.RUNNING, attempts=1, updated_at=NOW, next_attempt_at=None
        )
        await storage.apply([Update(claimed)])
        self.reads.append(read - began)
        self.claims.append(time.perf_counter() - began)


async def _claim_both(small: Path, large: Path, count: int) -> tuple[Claims, Claims]:
    """Claim from two files in turn."""
    few, many = Claims(), Claims()
    async with SqliteQueueStorage(small) as first, SqliteQueueStorage(large) as second:
        pairs = [(few, first), (many, second)]
        for claims, storage in pairs:
            began = time.perf_counter()
            await storage.get_ready(NOW, 1)
            claims.first = time.perf_counter() - began
        for _ in range(count):
            for claims, storage in pairs:
                await claims.take(storage)
            pairs.reverse()
    return few, many


async def _types_row(folder: Path, large: Path, count: int) -> Row:
    """Ask for one type behind a backlog of another, and with no backlog."""
    number = 10 * MANY
    wanted = list(ready(READY, first=number, type=Other.task_type))
    small = await make_file(folder / "types.db", wanted)
    await make_file(large, wanted)
    times: dict[Path, list[float]] = {small: [], large: []}
    async with SqliteQueueStorage(small) as first, SqliteQueueStorage(large) as second:
        pairs = [(small, first), (large, second)]
        for _ in range(count):
            for path, storage in pairs:
                began = time.perf_counter()
                [task] = await storage.get_ready(NOW, 1, types=[Other.task_type])
                times[path].append(time.perf_counter() - began)
                if task.id != id_of(number):
                    raise RuntimeError("the first task of the type was not the answer")
            pairs.reverse()
    remove(small)
    ours, other = median(times[large]), median(times[small])
    return at_most(
        2,
        measure="all ready, of another type: get_ready(types=...), p50",
        ours=duration(ours),
        against=f"without a backlog: {duration(other)}",
        ratio=ours / other,
    )


def _start_rows(folder: Path, many: int, quick: bool) -> Iterator[Row]:
    files = {
        count: asyncio.run(make_file(folder / f"start-{count}.db", all_ready(count))) for count in (FEW, many)
    }
    found: dict[int, list[dict[str, float]]] = {FEW: [], many: []}
    for _ in range(rounds(quick)):
        for count, file in files.items():
            found[count].append(alone.run("start", file))
    small, large = (
        {name: median([figures[name] for figures in found[count]]) for name in ("start", "first", "peak")}
        for count in (FEW, many)
    )
    yield Row(
        measure=f"start() with {many:,} pending",
        ours=duration(large["start"]),
        against=f"with {FEW:,}: {duration(small['start'])}",
        ratio=None,
        wanted="under 2.00 s",
        met=large["start"] < 2,
    )
    yield Row(
        measure=f"start() with {many:,} pending, until a handler is called",
        ours=duration(large["first"]),
        against=f"with {FEW:,}: {duration(small['first'])}",
        ratio=None,
        wanted="",
        met=True,
    )
    more = large["peak"] - small["peak"]
    yield Row(
        measure=f"largest memory of the process that starts with {many:,} pending",
        ours=f"{large['peak'] / _MIB:.1f} MiB",
        against=f"with {FEW:,}: {small['peak'] / _MIB:.1f} MiB",
        ratio=None,
        wanted="less than 50 MB more",
        met=more < 50_000_000,
    )
    for file in files.values():
        remove(file)


def _recovery_rows(folder: Path, many: int, quick: bool) -> Iterator[Row]:
    files = {
        count: asyncio.run(make_file(folder / f"interrupted-{count}.db", interrupted(count)))
        for count in (FEW, many)
    }
    each: dict[int, list[float]] = {FEW: [], many: []}
    for _ in range(rounds(quick)):
        for count, file in files.items():
            for _ in range(3 if count == FEW else 1):
                copied = copy(file, "recovered.db")
                each[count].append(asyncio.run(_recover(copied)) / count)
                remove(copied)
    small, large = median(each[FEW]), median(each[many])
    yield at_most(
        1.5,
        measure=f"recovery of {many:,} interrupted tasks, each",
        ours=duration(large),
        against=f"of {FEW:,}: {duration(small)}",
        ratio=large / small,
    )
    for file in files.values():
        remove(file)


async def _recover(path: Path) -> float:
    async with SqliteQueueStorage(path) as storage:
        queue = queue_over(storage)
        began = time.perf_counter()
        await queue.start(paused=True)
        taken = time.perf_counter() - began
        left = (await queue.counts())[TaskStatus.RUNNING]
        await queue.close()
    if left:
        raise RuntimeError(f"{left} tasks were not recovered")
    return taken


def _throughput_rows(folder: Path, many: int, quick: bool) -> Iterator[Row]:
    bounds = {FEW: 1.0, many // 10: 0.8, many: 0.5}
    files = {
        count: asyncio.run(make_file(folder / f"stored-{count}.db", half_finished(count))) for count in bounds
    }
    tasks = 500 if quick else 5_000
    enqueued: dict[int, list[float]] = {count: [] for count in bounds}
    ran: dict[int, list[float]] = {count: [] for count in bounds}
    for _ in range(rounds(quick)):
        for count, file in files.items():
            # A million more or less by some thousand is the same; the others begin with as many each time.
            path = file if count == many else copy(file, "working.db")
            rates = asyncio.run(_work(path, tasks))
            enqueued[count].append(rates[0])
            ran[count].append(rates[1])
            if path is not file:
                remove(path)
    for verb, rates_of in (("enqueue, 100 callers", enqueued), (f"run, {_SLOTS} slots", ran)):
        base = median(rates_of[FEW])
        for count in (many // 10, many):
            rate = median(rates_of[count])
            yield at_least(
                bounds[count],
                measure=f"{verb}, {count:,} stored",
                ours=per_second(rate),
                against=f"with {FEW:,}: {per_second(base)}",
                ratio=rate / base,
            )
    for file in files.values():
        remove(file)


async def _work(path: Path, count: int) -> tuple[float, float]:
    """Enqueue tasks, which go before those in the file, and run them; return how many a second each."""
    left = count
    ended = asyncio.Event()

    async def handler(task: object, context: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            ended.set()

    async with SqliteQueueStorage(path) as storage:
        queue = DurableQueue(storage, max_concurrent_tasks=_SLOTS)
        queue.register(Job, nothing)
        queue.register(Other, handler)
        jobs = iter([Other()] * count)
        began = time.perf_counter()
        await asyncio.gather(*[_caller(queue, jobs) for _ in range(_CALLERS)])
        enqueued = count / (time.perf_counter() - began)
        began = time.perf_counter()
        await queue.start()
        await ended.wait()
        ran = count / (time.perf_counter() - began)
        await queue.close()
    return enqueued, ran


async def _caller(queue: DurableQueue, jobs: Iterator[object]) -> None:
    for job in jobs:
        await queue.enqueue(job, priority=1)


def _memory_rows(many: int) -> Iterator[Row]:
    found = alone.run("memory", many)
    yield Row(
        measure=f"memory for each of {many:,} tasks",
        ours=f"{found['bytes']:,.0f} B",
        against="",
        ratio=None,
        wanted="under 1,500 B",
        met=found["bytes"] < 1_500,
    )
    yield Row(
        measure=f"claim with {many:,} stored, p50",
        ours=duration(found["claim"]),
        against="",
        ratio=None,
        wanted="under 50 us",
        met=found["claim"] < 50e-6,
    )
