"""One task at a time: commits and bytes for each, the way from enqueue to handler, and a loop that is never idle."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import attrs

from durable_queue import DurableQueue
from durable_queue_sqlite import SqliteQueueStorage
from tests.benchmarks import wal
from tests.benchmarks.filling import Job, queue_over
from tests.benchmarks.measuring import (
    Row,
    Table,
    at_most,
    duration,
    fresh_folder,
    median,
    percentile,
    rounds,
)

BUSY: Final = 0.0002
"""How long each callback of the application holds the loop."""

_LARGE: Final = 100_000
_LARGE_TASKS: Final = 50


def tables(quick: bool) -> Iterator[Table]:
    """Measure."""
    with fresh_folder() as folder:
        yield Table(
            title="Commits and bytes for each task",
            rows=[*_commit_rows(folder, 200 if quick else 2_000), _payload_row(folder)],
            notes=("Both are counted in SQLite's write-ahead log.",),
        )
    with fresh_folder() as folder:
        yield Table(
            title="Latency, SqliteQueueStorage, FULL",
            rows=[_idle_row(folder, 50 if quick else 500), *_busy_rows(folder, quick)],
        )


def _commit_rows(folder: Path, count: int) -> Iterator[Row]:
    for slots in (1, 16):
        found = asyncio.run(_run(folder / f"{slots}.db", [Job()] * count, slots=slots))
        each = found.commits / count
        # The first claim has no outcome to share a commit with, the last outcome no claim.
        bound = (count + 1) / count if slots == 1 else 1 / 8
        yield Row(
            measure=f"commits for each task run, {slots} slot{'s' * (slots > 1)}",
            ours=f"{each:.3f} ({found.commits:,} for {count:,})",
            against="",
            ratio=None,
            wanted="at most 1, and one for the first claim" if slots == 1 else "at most 1/8",
            met=each <= bound,
        )


def _payload_row(folder: Path) -> Row:
    sizes: dict[int, float] = {}
    for size in (len(Job().text), _LARGE):
        found = asyncio.run(_run(folder / f"{size}.db", [Job("x" * size)] * _LARGE_TASKS, slots=1))
        sizes[size] = found.bytes / _LARGE_TASKS
    small, large = sizes.values()
    return at_most(
        1.5,
        measure="bytes in the -wal for claim and outcome, payloads of 100 kB, 1 slot",
        ours=f"{large:,.0f} B",
        against=f"payloads of 100 B: {small:,.0f} B",
        ratio=large / small,
    )


async def _run(path: Path, jobs: list[Job], *, slots: int) -> wal.Written:
    """Store jobs, then open the file again, run them, and say what running them has written."""
    async with SqliteQueueStorage(path) as storage:
        await queue_over(storage).enqueue_all(jobs)
    async with SqliteQueueStorage(path) as storage:
        with wal.kept(path):
            queue = queue_over(storage, slots=slots)
            await queue.start()
            await queue.drain()
            found = wal.written(path)
        await queue.close()
    return found


@attrs.frozen
class Stamp:
    """A task that notes when its handler is called."""

    task_type = "stamp"


def _idle_row(folder: Path, count: int) -> Row:
    starts, commits = asyncio.run(_idle(folder, count))
    ours, commit = median(starts), median(commits)
    bound = 2 * commit + 0.002
    return Row(
        measure="idle queue: from the call of enqueue to the start of the handler, p50",
        ours=f"{duration(ours)} (p99 {duration(percentile(starts, 99))})",
        against=f"commit of a row by sqlite3: {duration(commit)}",
        ratio=None,
        wanted=f"two commits and 2 ms: {duration(bound)}",
        met=ours <= bound,
    )


async def _idle(folder: Path, count: int) -> tuple[list[float], list[float]]:
    """Return how long each start took, and each commit of plain `sqlite3` taken in turn with them."""
    starts: list[float] = []
    commits: list[float] = []
    began = 0.0

    async def handler(task: Stamp, context: object) -> None:
        starts.append(time.perf_counter() - began)

    async with SqliteQueueStorage(folder / "idle.db") as storage:
        queue = DurableQueue(storage)
        queue.register(Stamp, handler)
        with closing(sqlite3.connect(folder / "plain.db", isolation_level=None)) as database:
            database.execute("PRAGMA journal_mode = WAL").fetchall()
            database.execute("PRAGMA synchronous = FULL").fetchall()
            database.execute("CREATE TABLE rows (text TEXT)")
            async with queue:
                for _ in range(count):
                    at = time.perf_counter()
                    database.execute("INSERT INTO rows VALUES (?)", ("x" * 100,))
                    commits.append(time.perf_counter() - at)
                    began = time.perf_counter()
                    await queue.enqueue(Stamp())
                    await queue.drain()
                    await asyncio.sleep(0.001)
    return starts, commits


def _busy_rows(folder: Path, quick: bool) -> Iterator[Row]:
    most, limit = (200, 10.0) if quick else (1_000, 60.0)
    taken: list[float] = []
    for turn in range(rounds(quick)):
        taken += asyncio.run(_busy(folder / f"busy-{turn}.db", most, limit / rounds(quick)))
    ninety_nine = percentile(taken, 99)
    yield Row(
        measure=f"loop kept busy by callbacks of {duration(BUSY)}: one durable enqueue, p99",
        ours=duration(ninety_nine),
        against=f"p50 {duration(median(taken))}, longest {duration(max(taken))} of {len(taken):,}",
        ratio=None,
        wanted="under 100.0 ms",
        met=ninety_nine < 0.1,
    )


async def _busy(path: Path, most: int, limit: float) -> list[float]:
    """Return how long each of some enqueues took, one after the other; an endless one counts from the limit on."""
    loop = asyncio.get_running_loop()
    taken: list[float] = []
    over = False

    def burn() -> None:
        ends = time.perf_counter() + BUSY
        while time.perf_counter() < ends:
            pass
        if not over:
            loop.call_soon(burn)

    async def enqueue() -> None:
        while len(taken) < most:
            began.append(time.perf_counter())
            await queue.enqueue(Job())
            taken.append(time.perf_counter() - began[-1])

    began: list[float] = []
    async with SqliteQueueStorage(path) as storage:
        queue = queue_over(storage)
        await queue.enqueue(Job())
        burn()
        work = asyncio.create_task(enqueue())
        done, _ = await asyncio.wait([work], timeout=limit)
        if not done:
            taken.append(time.perf_counter() - began[-1])
            work.cancel()
        over = True
        await asyncio.wait([work])
    return taken
