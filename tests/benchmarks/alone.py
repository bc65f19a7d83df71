"""Measurements that need a process of their own, because they are about its memory.

``python -m tests.benchmarks.alone NAME ARGUMENT`` measures and prints the figures as JSON.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import attrs

from durable_queue import DurableQueue, MemoryQueueStorage, TaskStatus, Update
from durable_queue_sqlite import SqliteQueueStorage
from tests.benchmarks.filling import NOW, Job, put, ready
from tests.benchmarks.measuring import ROOT, median, resident_memory

_CLAIMS = 1_000


def run(name: str, argument: object) -> dict[str, float]:
    """Measure in a new process.

    Args:
        name: of one of the functions below.
        argument: what it takes.

    Returns:
        Its figures.
    """
    command = [sys.executable, "-m", "tests.benchmarks.alone", name, str(argument)]
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(found.stdout)
    return figures


async def start(path: str) -> dict[str, float]:
    """Start a queue over a file, run one task of it, and stop.

    Returns:
        ``start``: how long `start` took. ``first``: how long until a handler was called. ``peak``: the largest amount
        of memory up to then, in bytes.
    """
    called = asyncio.Event()

    async def handler(task: object, context: object) -> None:
        called.set()
        await asyncio.Event().wait()

    async with SqliteQueueStorage(Path(path)) as storage:
        queue = DurableQueue(storage)
        queue.register(Job, handler)
        began = time.perf_counter()
        await queue.start()
        started = time.perf_counter() - began
        await called.wait()
        first = time.perf_counter() - began
        peak = largest_memory()
        # Its task is put back, so that the file can be measured again.
        await queue.stop(grace=timedelta(0))
        await queue.close()
    return {"start": started, "first": first, "peak": peak}


async def memory(count: str) -> dict[str, float]:
    """Fill a `MemoryQueueStorage`, then claim from it.

    Returns:
        ``bytes``: memory for each task. ``claim``: seconds for a claim, p50.
    """
    number = int(count)
    gc.collect()
    before = resident_memory()
    storage = MemoryQueueStorage()
    await put(storage, ready(number))
    gc.collect()
    used = resident_memory() - before
    claims: list[float] = []
    for _ in range(_CLAIMS):
        began = time.perf_counter()
        [task] = await storage.get_ready(NOW, 1)
        claimed = attrs.evolve(task, status=TaskStatus.RUNNING, attempts=1, updated_at=NOW)
        await storage.apply([Update(claimed)])
        claims.append(time.perf_counter() - began)
        if len(claims) >= number:
            break
    return {"bytes": used / number, "claim": median(claims)}


def largest_memory() -> int:
    """Return the largest amount of memory that this program has had, in bytes; only on Linux.

    `getrusage` would count that of the process it was started from.
    """
    status = Path("/proc/self/status").read_text("ascii")
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def main() -> None:
    """Measure what the command line names."""
    name, argument = sys.argv[1:]
    measure = {"start": start, "memory": memory}[name]
    print(json.dumps(asyncio.run(measure(argument))))


if __name__ == "__main__":
    main()
