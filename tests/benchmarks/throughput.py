"""How many tasks a second: brought in and run, beside other queues and beside what SQLite itself can do."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Final, Literal

import attrs

from durable_queue import DurableQueue, TaskStatus
from durable_queue_sqlite import SqliteQueueStorage
from tests.benchmarks import peers
from tests.benchmarks.filling import Job, queue_over
from tests.benchmarks.measuring import (
    Row,
    Table,
    alternate,
    at_least,
    fresh_folder,
    median,
    per_second,
    rounds,
    seconds,
)

FILE: Final = "queue.db"
CALLERS: Final = 100
BULK: Final = 10_000
BATCH: Final = 1_000
"""How many rows plain sqlite3 writes in a transaction where ours writes a list."""

SLOTS: Final[Mapping[int, float]] = {1: 0.7, 4: 1.5, 16: 2.5, 64: 3.5}
"""What is asked of each number of slots, as a multiple of huey's best; of its one worker for one slot."""

WORKERS: Final = (1, 4, 16)

LONGEST: Final = timedelta(minutes=5)
"""How long a run may take: a queue whose storage fails tries again for ever."""


@attrs.frozen(kw_only=True)
class Load:
    """What is measured under the same conditions.

    Attributes:
        synchronous: the durability of all.
        size: how many characters a payload holds.
        tasks: how many tasks there are.
        bulk: how many of them `enqueue_all` gets.
        few: how many where a peer slows down with the number of tasks.
        rounds: how often each thing is measured.
        has_bounds: whether these are the rows that must reach something.
    """

    synchronous: Literal["FULL", "NORMAL"]
    size: int
    tasks: int
    bulk: int
    few: int
    rounds: int
    has_bounds: bool = False

    @property
    def text(self) -> str:
        """What each task carries."""
        return "x" * self.size


def tables(quick: bool) -> Iterator[Table]:
    """Measure with FULL, with NORMAL, and with larger payloads."""
    part = 20 if quick else 1
    load = Load(
        synchronous="FULL",
        size=100,
        tasks=20_000 // part,
        bulk=BULK // part,
        few=2_000 // part,
        rounds=rounds(quick),
        has_bounds=True,
    )
    for each in (load, attrs.evolve(load, synchronous="NORMAL", has_bounds=False)):
        told = peers.described(each.synchronous)
        yield Table(
            title=f"Throughput with synchronous={each.synchronous}, payloads of about {each.size} bytes",
            rows=[*_enqueue_rows(each, few=True), *_run_rows(each, SLOTS, WORKERS), *_take_rows(each)],
            notes=(
                f"{each.tasks:,} tasks, {each.bulk:,} for enqueue_all. Medians of {each.rounds}.",
                f"What the connections answer for journal_mode and synchronous (1: NORMAL, 2: FULL): {told}.",
                "huey, persist-queue and litequeue commit each task on its own and have no bulk call.",
                "sqlite3 is one thread that makes the same writes by executemany.",
            ),
        )
    for size, tasks in ((4_000, 5_000), (100_000, 500)):
        large = attrs.evolve(load, size=size, tasks=tasks // part, bulk=tasks // part, has_bounds=False)
        yield Table(
            title=f"Throughput with synchronous=FULL, payloads of {size // 1000} kB",
            rows=[*_enqueue_rows(large, few=False), *_run_rows(large, (1, 16), (1,))],
            notes=(f"{large.tasks:,} tasks. Medians of {large.rounds}.",),
        )


def _enqueue_rows(load: Load, *, few: bool) -> Iterator[Row]:
    """Bring tasks in."""
    with fresh_folder() as folder:
        empty, filled = folder / "empty", folder / "filled"
        for place, tasks in ((empty, 0), (filled, load.tasks)):
            place.mkdir()
            asyncio.run(_fill(place, load, tasks))
        rows = peers.rows_of(filled / FILE)
        runs: dict[str, Callable[[], float]] = {
            "callers": partial(_ours, _enqueue_each, empty, load, CALLERS),
            "bulk": partial(_ours, _enqueue_bulk, empty, load),
            "one": partial(_ours, _enqueue_each, empty, load, 1),
            "huey": partial(_put, peers.Huey, load),
            "sqlite callers": partial(_plain_insert, empty, load, rows, CALLERS),
            "sqlite bulk": partial(_plain_insert, empty, load, rows, BATCH),
            "sqlite one": partial(_plain_insert, empty, load, rows, 1),
        }
        if few:
            runs["persist-queue"] = partial(_put, peers.PersistQueue, load)
            runs["litequeue"] = partial(_put, peers.Litequeue, load)
        rates = _medians(load, runs)
    names = [name for name in ("huey", "persist-queue", "litequeue") if name in rates]
    for ours, measure, batch, bounds in (
        ("callers", f"enqueue, {CALLERS} concurrent callers", CALLERS, {"huey": 5.0}),
        ("bulk", f"enqueue_all of {load.bulk:,}", BATCH, {"huey": 8.0, "sqlite": 0.35}),
        ("one", "enqueue, one caller awaiting each", 1, {"huey": 0.7}),
    ):
        asked = bounds if load.has_bounds else {}
        for name in names if ours != "bulk" else names[:1]:
            yield _row(measure, rates[ours], name, rates[name], asked.get(name))
        limit = f"sqlite3, {batch:,} a transaction"
        yield _row(measure, rates[ours], limit, rates[f"sqlite {ours}"], asked.get("sqlite"))


def _run_rows(load: Load, slots: Collection[int], workers: Sequence[int]) -> Iterator[Row]:
    """Run stored tasks that do nothing."""
    with fresh_folder() as folder:
        ours, hueys = folder / "ours", folder / "huey"
        for place in (ours, hueys):
            place.mkdir()
        asyncio.run(_fill(ours, load, load.tasks))
        with peers.opened(peers.Huey, hueys, "NORMAL") as huey:
            for _ in range(load.tasks):
                huey.put(load.text)
        claim, end = asyncio.run(_moves_of_a_task(load))
        keys = [row[0] for row in peers.rows_of(ours / FILE)["tasks"]]
        runs: dict[str, Callable[[], float]] = {}
        for count in slots:
            runs[f"ours {count}"] = partial(_ours, _run, ours, load, count)
            runs[f"sqlite {count}"] = partial(_plain_run, ours, load, keys, claim, end, count)
        for count in workers:
            runs[f"huey {count}"] = partial(_huey_run, hueys, load, count)
        rates = _medians(load, runs)
    best = max(workers, key=lambda count: rates[f"huey {count}"])
    for count in slots:
        measure = f"run no-op tasks, {count} slot{'s' * (count > 1)}"
        worker = 1 if count == 1 else best
        yield _row(
            measure,
            rates[f"ours {count}"],
            "huey, 1 worker" if worker == 1 else f"huey, {worker} workers",
            rates[f"huey {worker}"],
            SLOTS[count] if load.has_bounds else None,
        )
        yield _row(
            measure, rates[f"ours {count}"], f"sqlite3, {count} a transaction", rates[f"sqlite {count}"]
        )


def _take_rows(load: Load) -> Iterator[Row]:
    """Run few tasks, beside queues that have no workers of their own."""
    load = attrs.evolve(load, tasks=load.few)
    kinds = {"persist-queue, get and ack": peers.PersistQueue, "litequeue, pop and done": peers.Litequeue}
    with fresh_folder() as folder:
        ours = folder / "ours"
        ours.mkdir()
        asyncio.run(_fill(ours, load, load.tasks))
        runs: dict[str, Callable[[], float]] = {"ours": partial(_ours, _run, ours, load, 1)}
        for name, kind in kinds.items():
            runs[name] = partial(_take, kind, load)
        rates = _medians(load, runs)
    for name in kinds:
        yield _row(f"run no-op tasks, 1 slot, {load.tasks:,} stored", rates["ours"], name, rates[name])


def _medians(load: Load, runs: dict[str, Callable[[], float]]) -> dict[str, float]:
    return {name: median(figures) for name, figures in alternate(load.rounds, **runs).items()}


def _row(measure: str, ours: float, name: str, other: float, bound: float | None = None) -> Row:
    told: dict[str, Any] = {
        "measure": measure,
        "ours": per_second(ours),
        "against": f"{name}: {per_second(other)}",
        "ratio": ours / other,
    }
    return Row(**told, wanted="", met=True) if bound is None else at_least(bound, **told)


def _copy(folder: Path, target: Path) -> None:
    """Copy closed files, and have them on disk: else the first commit that is measured would wait for that."""
    for file in folder.iterdir():
        shutil.copy(file, target)
        with (target / file.name).open("rb") as copied:
            os.fsync(copied.fileno())


# Ours


async def _fill(folder: Path, load: Load, tasks: int) -> None:
    async with SqliteQueueStorage(folder / FILE, synchronous="NORMAL") as storage:
        queue = queue_over(storage)
        for _ in range(0, tasks, BATCH):
            await queue.enqueue_all([Job(load.text)] * min(BATCH, tasks))


def _ours(measure: Callable[..., Any], template: Path, load: Load, *arguments: Any) -> float:
    """Measure ours on a copy of a file, in an event loop of its own."""

    async def run() -> float:
        async with SqliteQueueStorage(folder / FILE, synchronous=load.synchronous) as storage:
            return float(await measure(storage, load, *arguments))

    with fresh_folder() as folder:
        _copy(template, folder)
        return asyncio.run(run())


async def _enqueue_each(storage: SqliteQueueStorage, load: Load, callers: int) -> float:
    queue = queue_over(storage)
    await queue.enqueue(Job(load.text))

    left = iter(range(load.tasks))

    async def call() -> None:
        for _ in left:
            await queue.enqueue(Job(load.text))

    began = perf_counter()
    await asyncio.gather(*(call() for _ in range(callers)))
    return load.tasks / (perf_counter() - began)


async def _enqueue_bulk(storage: SqliteQueueStorage, load: Load) -> float:
    queue = queue_over(storage)
    await queue.enqueue(Job(load.text))
    jobs = [Job(load.text) for _ in range(load.bulk)]
    began = perf_counter()
    await queue.enqueue_all(jobs)
    return load.bulk / (perf_counter() - began)


async def _run(storage: SqliteQueueStorage, load: Load, slots: int) -> float:
    queue = queue_over(storage, slots=slots)
    began = perf_counter()
    await queue.start()
    await queue.drain(timeout=LONGEST)
    rate = load.tasks / (perf_counter() - began)
    completed = (await queue.counts())[TaskStatus.COMPLETED]
    await queue.close()
    if completed != load.tasks:
        raise RuntimeError(f"{completed} of {load.tasks} tasks completed")
    return rate


async def _moves_of_a_task(load: Load) -> tuple[list[peers.Move], list[peers.Move]]:
    """Say what a claim and what an outcome writes."""
    states = []
    with fresh_folder() as folder:
        file = folder / FILE
        async with SqliteQueueStorage(file) as storage:
            queue = DurableQueue(storage)

            @queue.handler(Job)
            async def run(job: Job, context: Any) -> None:
                states.append(peers.rows_of(file))

            await queue.enqueue(Job(load.text))
            states.append(peers.rows_of(file))
            async with queue:
                await queue.drain()
            states.append(peers.rows_of(file))
        pending, running, completed = states
        return peers.moves(file, pending, running), peers.moves(file, running, completed)


# The others


def _put(kind: type[Any], load: Load) -> float:
    with fresh_folder() as folder, peers.opened(kind, folder, load.synchronous) as peer:
        peer.put(load.text)

        def put() -> None:
            for _ in range(load.tasks):
                peer.put(load.text)

        return load.tasks / seconds(put)


def _take(kind: type[Any], load: Load) -> float:
    with fresh_folder() as folder:
        with peers.opened(kind, folder, "NORMAL") as peer:
            for _ in range(load.tasks):
                peer.put(load.text)
        with peers.opened(kind, folder, load.synchronous) as peer:

            def take() -> None:
                for _ in range(load.tasks):
                    peer.take()

            return load.tasks / seconds(take)


def _huey_run(template: Path, load: Load, workers: int) -> float:
    with fresh_folder() as folder:
        _copy(template, folder)
        with peers.opened(peers.Huey, folder, load.synchronous) as huey:
            return float(load.tasks / huey.run(load.tasks, workers))


def _plain_insert(template: Path, load: Load, rows: peers.Tables, batch: int) -> float:
    with fresh_folder() as folder:
        _copy(template, folder)
        with peers.PlainSqlite(folder / FILE, load.synchronous) as plain:
            return load.tasks / seconds(partial(plain.insert, rows, batch))


def _plain_run(
    template: Path,
    load: Load,
    keys: Sequence[int],
    claim: Sequence[peers.Move],
    end: Sequence[peers.Move],
    batch: int,
) -> float:
    with fresh_folder() as folder:
        _copy(template, folder)
        with peers.PlainSqlite(folder / FILE, load.synchronous) as plain:
            return load.tasks / seconds(partial(plain.run, keys, claim, end, batch))
