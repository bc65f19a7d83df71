"""An idle queue asks the storage nothing, whatever lies in it (S3.4)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import attrs
import pytest

from durable_queue import (
    CorruptRecordError,
    DurableQueue,
    FakeQueueClock,
    MemoryQueueStorage,
    QueueStorage,
    StoredTask,
    TaskContext,
    TaskStarted,
    TaskStatus,
)
from durable_queue.testing import FlakyStorage, run_until_idle
from tests.queue.conftest import MakeQueue
from tests.queue.fault_support import RefusingMemory, starts_of
from tests.queue.handler_support import SECOND, Handler, settle
from tests.support import Other, Work

in_process = pytest.mark.parametrize("storage", ["memory", "thirteen"], indirect=True)


async def no_op(task: object, context: TaskContext) -> None:
    """Complete."""


async def stored(queue: DurableQueue, task_id: str) -> StoredTask:
    task = await queue.get_task(task_id)
    assert task is not None
    return task


class Unreadable(MemoryQueueStorage):
    """A storage with one due record that it cannot read: queries leave it out, its time is still there."""

    bad: str | None = None

    async def get_ready(self, now: datetime, limit: int, **options: Any) -> list[StoredTask]:
        found = await super().get_ready(now, limit + 1, **options)
        return [task for task in found if task.id != self.bad][:limit]

    async def get_expired(self, now: datetime, limit: int) -> list[StoredTask]:
        found = await super().get_expired(now, limit + 1)
        return [task for task in found if task.id != self.bad][:limit]

    async def take_unreadable(self) -> list[CorruptRecordError]:
        return [CorruptRecordError("broken", task_id=self.bad)] if self.bad else []


@pytest.mark.parametrize("storage", ["memory"], indirect=True)
@pytest.mark.asyncio
@pytest.mark.parametrize("options", [{"delay": SECOND}, {"expires_in": SECOND}])
async def test_an_unreadable_record_is_no_hot_loop(
    make_queue: MakeQueue, clock: FakeQueueClock, options: dict[str, Any]
) -> None:
    """S3.4, S7.3: a due or expired record that cannot be read costs a look a second, and hides no other for longer."""
    broken = Unreadable()
    flaky = FlakyStorage(broken)
    queue = make_queue(storage=flaky)
    queue.register(Work, no_op)
    await queue.start()
    broken.bad = await queue.enqueue(Work(0), **options)
    await run_until_idle(queue)
    clock.advance(SECOND)
    await settle()
    calls = sum(flaky.calls.values())
    for _ in range(20):
        await settle()
        clock.advance(SECOND / 20)
    assert sum(flaky.calls.values()) - calls < 20
    other = await queue.enqueue(Work(1), delay=SECOND)
    clock.advance(SECOND)
    await settle()
    clock.advance(SECOND)
    assert (await queue.wait(other)).status is TaskStatus.COMPLETED


@in_process
@pytest.mark.asyncio
@pytest.mark.parametrize("paused", [False, True])
async def test_an_expired_task_is_no_hot_loop(
    make_queue: MakeQueue, storage: QueueStorage, clock: FakeQueueClock, paused: bool
) -> None:
    """S3.4, S8.2: on an adapter that cannot answer for expiry, a task past its time asks nothing of the storage."""
    flaky = FlakyStorage(storage)
    queue, handler = make_queue(storage=flaky), Handler()
    queue.register(Other, handler)
    queue.register(Work, no_op)
    running = await queue.enqueue(Other(), priority=1)
    await queue.start()
    await handler.began.wait()
    for n in range(3):
        await queue.enqueue(Work(n), expires_in=SECOND)
        await queue.enqueue(Work(n), expires_in=SECOND, depends_on=[running])
    if paused:
        await queue.pause()
    clock.advance(SECOND)
    await settle()
    calls = sum(flaky.calls.values())
    for _ in range(20):
        await settle()
        clock.advance(SECOND)
    assert sum(flaky.calls.values()) - calls < 5
    handler.released.set()
    await settle()
    if paused:
        await queue.resume()
    await run_until_idle(queue)
    counts = await queue.counts()
    assert (counts[TaskStatus.CANCELLED], counts[TaskStatus.COMPLETED]) == (6, 1)


@pytest.mark.parametrize("storage", ["memory"], indirect=True)
@pytest.mark.asyncio
@pytest.mark.parametrize("delayed", [False, True])
async def test_a_claim_that_is_set_aside_is_no_hot_loop(
    make_queue: MakeQueue, clock: FakeQueueClock, delayed: bool
) -> None:
    """S10.1: a task whose claim is refused for ever costs one attempt per delay, beside a look a second."""
    stubborn = RefusingMemory()
    flaky = FlakyStorage(stubborn)
    queue = make_queue(storage=flaky, max_concurrent_tasks=2)
    queue.register(Work, no_op)
    task_id = await queue.enqueue(Work(), delay=SECOND if delayed else None)
    stubborn.refuses = starts_of(task_id)
    await queue.start()
    for _ in range(10):
        await settle()
        clock.advance(SECOND)
    calls = sum(flaky.calls.values())
    for _ in range(40):
        await settle()
        clock.advance(SECOND / 4)
    assert sum(flaky.calls.values()) - calls < 10 * 12
    stubborn.refuses = None
    clock.advance(SECOND)
    assert (await queue.wait(task_id)).attempts == 1


@pytest.mark.asyncio
async def test_a_held_or_later_task_is_no_hot_loop(
    make_queue: MakeQueue, storage: QueueStorage, clock: FakeQueueClock
) -> None:
    """S3.4: held tasks, tasks without a free slot and tasks of a paused queue ask nothing of the storage."""
    flaky = FlakyStorage(storage)
    queue, handler = make_queue(storage=flaky), Handler()
    queue.register(Other, handler)
    queue.register(Work, no_op)
    held = await stored(queue, await queue.enqueue(Work()))
    await storage.update(attrs.evolve(held, held=True, payload=held.payload, result=None))
    await queue.enqueue(Other())
    with queue.subscribe(TaskStarted) as starts:
        await queue.start()
        await anext(starts)
    await queue.enqueue(Work(1), delay=SECOND)
    await queue.enqueue(Work(2))
    clock.advance(2 * SECOND)
    await queue.get_tasks()
    await settle()
    calls = sum(flaky.calls.values()) - flaky.calls["changes_elsewhere"] - flaky.calls["take_unreadable"]
    for _ in range(10):
        await settle()
        clock.advance(SECOND / 10)
    left = sum(flaky.calls.values()) - flaky.calls["changes_elsewhere"] - flaky.calls["take_unreadable"]
    assert left - calls < 5
    handler.released.set()
    await run_until_idle(queue)
    assert (await queue.counts())[TaskStatus.COMPLETED] == 3
