"""What the child processes of these tests do: ``python child.py SCENARIO FILE MARKS``.

They print a line for whatever the test waits for. A handler appends a line to MARKS, and syncs it, at every start, so
that starts are counted across processes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs

from durable_queue import DurableQueue, QueueInUseError, RetryPolicy, TaskContext
from durable_queue_sqlite import SqliteQueueStorage

FILE, MARKS = Path(sys.argv[2]), Path(sys.argv[3])
RETRIED = RetryPolicy.fixed(max_attempts=3, delay=timedelta(0))


@attrs.frozen
class Job:
    task_type = "job"
    n: int = 0


def mark(task: Job) -> None:
    """Note a start in the file."""
    with MARKS.open("a") as marks:
        marks.write(f"{task.n}\n")
        marks.flush()
        os.fsync(marks.fileno())


def say(line: str) -> None:
    print(line, flush=True)


async def forever(task: Job, context: TaskContext) -> None:
    mark(task)
    say("started")
    await asyncio.Event().wait()


def forever_in_thread(task: Job, context: TaskContext) -> None:
    mark(task)
    say("started")
    time.sleep(600)


async def stubborn(task: Job, context: TaskContext) -> str:
    mark(task)
    say("started")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        say("swallowed")
    return "after the end"


async def interrupt(task: Job, context: TaskContext) -> None:
    mark(task)
    raise KeyboardInterrupt


async def leave(task: Job, context: TaskContext) -> None:
    mark(task)
    sys.exit(3)


def leave_in_thread(task: Job, context: TaskContext) -> None:
    mark(task)
    sys.exit(3)


async def run_forever(handler: Callable[..., Any], *, jobs: int = 1, slots: int = 1, **options: Any) -> None:
    """Run some jobs, of which the first ones do not end, until something ends the process."""
    async with SqliteQueueStorage(FILE) as storage:
        queue = DurableQueue(storage, max_concurrent_tasks=slots, **options)
        queue.register(Job, handler, retry_policy=RETRIED)
        await queue.enqueue_all([Job(n) for n in range(jobs)])
        async with queue:
            await asyncio.Event().wait()


async def run_unclosed(handler: Callable[..., Any], *, jobs: int, slots: int) -> None:
    """Leave the program while handlers run, with nothing closed."""
    storage = await SqliteQueueStorage.open(FILE)
    queue = DurableQueue(storage, max_concurrent_tasks=slots)
    began = asyncio.Semaphore(0)

    async def work(task: Job, context: TaskContext) -> Any:
        began.release()
        return await handler(task, context)

    def work_in_thread(task: Job, context: TaskContext) -> Any:
        context.call(release())
        return handler(task, context)

    async def release() -> None:
        began.release()

    queue.register(
        Job, work if asyncio.iscoroutinefunction(handler) else work_in_thread, retry_policy=RETRIED
    )
    await queue.enqueue_all([Job(n) for n in range(jobs)])
    await queue.start()
    for _ in range(slots):
        await began.acquire()


async def cancel_everything() -> None:
    """End by cancelling every other task, as many programs do at their end, and look at what is left."""
    await run_unclosed(forever, jobs=5, slots=3)
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def enqueue_only() -> None:
    """Leave the loop right after an enqueue, with nothing closed."""
    storage = await SqliteQueueStorage.open(FILE)
    queue = DurableQueue(storage)
    queue.register(Job, None)
    await queue.enqueue(Job(1))


async def close_twice() -> None:
    """Close everything twice and tell what is left of threads and descriptors."""
    storage = await SqliteQueueStorage.open(FILE)
    queue = DurableQueue(storage)

    async def work(task: Job, context: TaskContext) -> None:
        mark(task)

    queue.register(Job, work)
    await queue.start()
    await queue.wait(await queue.enqueue(Job(1)))
    for _ in range(2):
        await queue.close()
        await storage.close()
    await asyncio.to_thread(lambda: None)
    say(
        f"threads {sorted(t.name for t in threading.enumerate() if not t.name.startswith(('Main', 'asyncio_')))}"
    )
    say(f"files {held()}")


def held() -> list[str]:
    """Return the names of the open files that begin like that of the queue's."""
    names = [str(number.resolve()) for number in Path("/proc/self/fd").iterdir()]
    return sorted(name for name in names if name.startswith(str(FILE.resolve())))


async def consume() -> None:
    """Start over the file, say how that went, and stay."""
    async with SqliteQueueStorage(FILE) as storage:
        queue = DurableQueue(storage)
        queue.register(Job, forever)
        try:
            await queue.start()
        except QueueInUseError:
            say("in use")
            return
        say("consuming")
        await asyncio.Event().wait()


SCENARIOS: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
    "forever": lambda: run_forever(forever),
    "forever in a thread": lambda: run_forever(forever_in_thread),
    "graceful": lambda: run_forever(forever, stop_grace=timedelta(0)),
    "interrupt": lambda: run_forever(interrupt, jobs=2),
    "leave": lambda: run_forever(leave, jobs=2),
    "leave in a thread": lambda: run_forever(leave_in_thread, jobs=2),
    "unclosed": lambda: run_unclosed(forever, jobs=5, slots=3),
    "unclosed in threads": lambda: run_unclosed(forever_in_thread, jobs=5, slots=3),
    "unclosed and stubborn": lambda: run_unclosed(stubborn, jobs=3, slots=3),
    "cancel everything": cancel_everything,
    "enqueue only": enqueue_only,
    "close twice": close_twice,
    "consume": consume,
}

if __name__ == "__main__":
    # A test run in the background of a shell hands down that interrupts are ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asyncio.run(SCENARIOS[sys.argv[1]]())
