"""What the tests of running and stopping share: a handler that a test holds, and ways to begin."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from durable_queue import DurableQueue, RunState, StoredTask, TaskContext, TaskStatus
from tests.support import Other, Work

SECOND = timedelta(seconds=1)
GRACE = timedelta(seconds=5)
NOW = timedelta(0)


class Handler:
    """A coroutine handler that runs until it is released, and says when it begins and when it is cancelled."""

    def __init__(self, *, swallows: int = 0, ends: BaseException | None = None) -> None:
        self.began = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.released = asyncio.Event()
        self.starts = 0
        self.contexts: list[TaskContext] = []
        self._swallows = swallows
        self._ends = ends

    async def __call__(self, task: object, context: TaskContext) -> Any:
        self.starts += 1
        self.contexts.append(context)
        self.began.set()
        while True:
            try:
                await self.released.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                if self._swallows == 0:
                    raise self._ends or asyncio.CancelledError from None
                self._swallows -= 1
            else:
                return "done"


async def settle() -> None:
    """Let everything happen that needs neither time nor a thread: a fixed number of turns of the loop."""
    for _ in range(20):
        await asyncio.sleep(0)


async def after_the_storage(queue: DurableQueue) -> None:
    """Return when what has been asked of the storage so far is answered, and the answers have been acted on."""
    await settle()
    # A storage with a thread answers in the order of the questions.
    await queue.counts()
    await settle()


async def begin_stop(queue: DurableQueue, grace: timedelta | None = None) -> asyncio.Task[list[str]]:
    """Call stop in a task and let it get as far as it can."""
    stopping = asyncio.create_task(queue.stop(grace=grace))
    await asyncio.sleep(0)
    assert queue.run_state is RunState.STOPPING
    return stopping


async def started(queue: DurableQueue, handler: Handler, **options: Any) -> str:
    """Register the handler, start the queue and return the id of a task that runs."""
    queue.register(Work, handler, **options)
    task_id = await queue.enqueue(Work(1))
    await queue.start()
    await handler.began.wait()
    return task_id


async def run(queue: DurableQueue, handler: Callable[..., Any], **options: Any) -> StoredTask:
    """Run one task with a handler, and a control task behind it, which must complete; return the record."""
    queue.register(Work, handler, **options)
    queue.register(Other, succeed)
    task_id = await queue.enqueue(Work(1))
    control = await queue.enqueue(Other())
    await queue.start()
    assert (await queue.wait(control)).status is TaskStatus.COMPLETED
    record = await queue.get_task(task_id)
    assert record is not None
    return record


async def succeed(task: object, context: TaskContext) -> None:
    """A handler."""
