"""Ready tasks are read ahead, and nothing starts because of it that would not have started without (S13.2)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path

import attrs
import pytest
import pytest_asyncio

from durable_queue import (
    DurableQueue,
    FakeQueueClock,
    MemoryQueueStorage,
    QueueStorage,
    RetryPolicy,
    StorageError,
    TaskContext,
    TaskStatus,
)
from durable_queue.testing import FlakyStorage, crash, run_until_idle
from durable_queue_sqlite import SqliteQueueStorage
from tests.queue.conftest import MakeQueue
from tests.queue.fault_support import OneHead, status_of
from tests.queue.handler_support import SECOND, Handler, after_the_storage, begin_stop, settle
from tests.support import Other, ThirteenMethodStorage, Work

MICROSECOND = timedelta(microseconds=1)
BATCH = 64
"""How many tasks are read at once for one slot."""


@pytest_asyncio.fixture(params=["memory", "sqlite"])
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[QueueStorage]:
    """An empty storage of each kind that can be read ahead."""
    if request.param == "memory":
        yield MemoryQueueStorage()
    else:
        async with SqliteQueueStorage(tmp_path / "queue.db") as opened:
            yield opened


@attrs.frozen
class Scene:
    """A queue with one slot, taken by a task that the test holds, and the others read ahead meanwhile.

    Attributes:
        queue: the queue.
        flaky: its storage.
        holder: the id of the task that is held.
        handler: its handler; release it to let the others start.
        order: the numbers of the `Work` tasks in the order of their starts.
        fails: how often the attempts of a number are to fail, each after it has enqueued a better task, 100.
        ids: the ids of those that were stored before, by number.
    """

    queue: DurableQueue
    flaky: FlakyStorage
    holder: str
    handler: Handler
    order: list[int]
    fails: dict[int, int]
    ids: dict[int, str]

    async def reads_of(self, action: Awaitable[object]) -> int:
        """Return how often the ready order is read while something is done."""
        before = self.flaky.calls["get_ready"]
        await action
        await after_the_storage(self.queue)
        return self.flaky.calls["get_ready"] - before

    async def go_on(self) -> list[int]:
        """Let everything run, and return the order of the starts."""
        self.handler.released.set()
        await run_until_idle(self.queue)
        return self.order


SetScene = Callable[..., Awaitable[Scene]]


@pytest.fixture
def set_scene(make_queue: MakeQueue, storage: QueueStorage, clock: FakeQueueClock) -> Iterator[SetScene]:
    """Sets the scene with so many tasks of priority 0 behind the one that is held; each of them takes a tick."""
    handler = Handler()

    async def set_scene(
        count: int = 3,
        *,
        before: Callable[[DurableQueue], Awaitable[object]] | None = None,
        tick: timedelta = timedelta(0),
    ) -> Scene:
        flaky = FlakyStorage(storage)
        queue = make_queue(storage=flaky, max_concurrent_tasks=1)
        order: list[int] = []
        fails: dict[int, int] = {}

        async def run(task: Work, context: TaskContext) -> None:
            order.append(task.n)
            clock.advance(tick)
            if fails.get(task.n, 0):
                fails[task.n] -= 1
                await queue.enqueue(Work(100), priority=100)
                raise ValueError("told to fail")

        queue.register(Work, run)
        queue.register(Other, handler)
        holder = await queue.enqueue(Other(), priority=1_000)
        ids = dict(enumerate(await queue.enqueue_all([Work(n) for n in range(count)])))
        if before is not None:
            await before(queue)
        await queue.start()
        await handler.began.wait()
        await after_the_storage(queue)
        assert flaky.calls["get_ready"] == 1
        return Scene(queue, flaky, holder, handler, order, fails, ids)

    yield set_scene
    # A test that has failed is not to hold up the clean-up.
    handler.released.set()


@pytest.mark.asyncio
@pytest.mark.parametrize(("count", "reads"), [(BATCH - 2, 0), (BATCH - 1, 1), (5 * BATCH, 5)])
async def test_many_claims_cost_one_read(set_scene: SetScene, count: int, reads: int) -> None:
    """S13.2: tasks are claimed in their order from what was read at once; then the next lot is read."""
    scene = await set_scene(count)
    taken = await scene.reads_of(scene.go_on())
    assert scene.order == list(range(count))
    # Once more when nothing runs.
    assert taken <= reads + 1


@pytest.mark.asyncio
@pytest.mark.parametrize("count", [3, 2 * BATCH])
async def test_a_better_task_goes_first_and_a_worse_one_last(set_scene: SetScene, count: int) -> None:
    """S3.1, S13.2: what is enqueued while others are read ahead takes its place among them, and among those behind."""
    scene = await set_scene(count)
    for n, priority in ((1001, 1), (1002, -1), (1003, 2), (1004, 0)):
        assert await scene.reads_of(scene.queue.enqueue(Work(n), priority=priority)) == 0
    assert await scene.go_on() == [1003, 1001, *range(count), 1004, 1002]


@pytest.mark.asyncio
async def test_what_does_not_fit_is_read_again(set_scene: SetScene) -> None:
    """S13.2: when more is enqueued than is kept ahead, the rest is found in the storage, in its order."""
    scene = await set_scene(0)
    for n in range(5 * BATCH):
        await scene.queue.enqueue(Work(n), priority=n % 3)
    assert len(scene.queue._worker.ahead._keys) <= 2 * BATCH
    assert await scene.go_on() == [n for rest in (2, 1, 0) for n in range(5 * BATCH) if n % 3 == rest]


@pytest.mark.asyncio
@pytest.mark.parametrize("then", ["nothing", "delete", "purge"])
@pytest.mark.parametrize("count", [3, 2 * BATCH])
async def test_a_cancelled_task_does_not_start(set_scene: SetScene, count: int, then: str) -> None:
    """S6.1, S6.4, S13.2: a task that was read ahead and is cancelled, or deleted after that, is left out."""
    scene = await set_scene(count)
    await scene.queue.cancel(scene.ids[0])
    await scene.queue.cancel(scene.ids[2])
    if then == "delete":
        await scene.queue.delete(scene.ids[0])
    elif then == "purge":
        assert await scene.queue.purge(statuses={TaskStatus.CANCELLED}) == 2
    assert await scene.go_on() == [1, *range(3, count)]
    if then == "nothing":
        assert await status_of(scene.queue, scene.ids[0]) is TaskStatus.CANCELLED


@pytest.mark.asyncio
async def test_a_cancelled_group_does_not_start(set_scene: SetScene) -> None:
    """S6.2, S13.2: all members that were read ahead are left out."""
    scene = await set_scene(
        before=lambda queue: queue.enqueue_all([Work(n) for n in (7, 8, 9)], group="g", priority=1)
    )
    assert await scene.queue.cancel_group("g") == 3
    assert await scene.go_on() == [0, 1, 2]


@pytest.mark.asyncio
async def test_a_reopened_task_starts_once_at_its_old_place(set_scene: SetScene) -> None:
    """S6.3, S13.2: a task that was read ahead, cancelled and retried by hand starts as it is now."""
    scene = await set_scene()
    await scene.queue.cancel(scene.ids[1])
    assert await scene.reads_of(scene.queue.retry(scene.ids[1])) == 0
    assert await scene.go_on() == [0, 1, 2]
    task = await scene.queue.get_task(scene.ids[1])
    assert task is not None
    assert (task.status, task.attempts) == (TaskStatus.COMPLETED, 1)


@pytest.mark.asyncio
async def test_a_task_that_fails_has_its_place_again(set_scene: SetScene) -> None:
    """S5.1, S13.2: a retry without a wait has its place among what was read ahead, as the clock moves on."""
    again = RetryPolicy.fixed(max_attempts=3, delay=timedelta(0))
    scene = await set_scene(
        before=lambda queue: queue.enqueue(Work(9), priority=5, retry_policy=again), tick=MICROSECOND
    )
    scene.fails[9] = 2
    assert await scene.reads_of(scene.go_on()) <= 1
    assert scene.order == [9, 100, 9, 100, 9, 0, 1, 2]


@pytest.mark.asyncio
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_task_that_comes_due_takes_its_place(
    set_scene: SetScene, clock: FakeQueueClock, when: str
) -> None:
    """S3.1, S3.4, S13.2: a delayed task starts before worse ones that were read ahead when its time comes."""

    async def enqueue(queue: DurableQueue) -> None:
        # The later one first, so that a time already known is brought forward.
        await queue.enqueue(Work(8), priority=6, delay=2 * SECOND)
        await queue.enqueue(Work(9), priority=5, delay=SECOND)
        await queue.enqueue(Work(7), priority=4, delay=3 * SECOND)

    scene = await set_scene(before=enqueue if when == "before" else None)
    if when == "after":
        await enqueue(scene.queue)
    clock.advance(SECOND)
    assert await scene.go_on() == [9, 0, 1, 2]
    clock.advance(SECOND)
    await run_until_idle(scene.queue)
    assert scene.order == [9, 0, 1, 2, 8]


@pytest.mark.asyncio
async def test_nothing_starts_early_on_a_clock_that_has_gone_back(
    set_scene: SetScene, clock: FakeQueueClock
) -> None:
    """S12.3, S13.2: what was due when it was read ahead, or enqueued since, waits when its time is to come again."""
    began = clock.now()

    async def enqueue(queue: DurableQueue) -> None:
        await queue.enqueue(Work(9), priority=5, delay=SECOND)
        clock.advance(2 * SECOND)

    scene = await set_scene(before=enqueue)
    clock.set(began)
    await scene.queue.enqueue(Work(8), priority=6, delay=SECOND)
    assert await scene.go_on() == [0, 1, 2]
    clock.advance(SECOND)
    await run_until_idle(scene.queue)
    assert scene.order == [0, 1, 2, 8, 9]


@pytest.mark.asyncio
@pytest.mark.parametrize("after_commit", [False, True])
async def test_a_failed_write_makes_it_look_anew(set_scene: SetScene, after_commit: bool) -> None:
    """S10.1, S13.2: after a write that failed, or was perhaps carried out, the next claim is from a fresh read."""
    scene = await set_scene()
    scene.flaky.fail("apply", after_commit=after_commit)
    with pytest.raises(StorageError):
        await scene.queue.enqueue(Work(9), priority=9)
    assert await scene.reads_of(scene.go_on()) >= 1
    assert scene.order == ([9] if after_commit else []) + [0, 1, 2]


@pytest.mark.asyncio
async def test_a_write_of_unknown_outcome_is_found(set_scene: SetScene) -> None:
    """S13.2, S13.3: a cancellation whose outcome nobody could tell is honoured, and the others start."""
    scene = await set_scene()
    scene.flaky.fail("apply", after_commit=True)
    scene.flaky.fail("get_many")
    with pytest.raises(StorageError):
        await scene.queue.cancel(scene.ids[0])
    assert await scene.go_on() == [1, 2]


@pytest.mark.asyncio
async def test_another_queue_may_enqueue_a_better_task(set_scene: SetScene, make_queue: MakeQueue) -> None:
    """S13.2, S13.6: what another queue object of the program stores comes before what was read ahead."""
    scene = await set_scene()
    producer = make_queue(storage=scene.flaky)
    producer.register(Work)
    await producer.enqueue(Work(9), priority=9)
    assert await scene.go_on() == [9, 0, 1, 2]


@pytest.mark.asyncio
async def test_a_read_that_crosses_a_write_is_not_kept(make_queue: MakeQueue, storage: QueueStorage) -> None:
    """S13.2: what was read before another queue object wrote serves the step that has asked, and no other."""
    flaky = FlakyStorage(storage)
    consumer, producer = make_queue(storage=flaky, max_concurrent_tasks=1), make_queue(storage=flaky)
    order: list[int] = []

    async def run(task: Work, context: TaskContext) -> None:
        order.append(task.n)

    consumer.register(Work, run)
    producer.register(Work)
    await consumer.enqueue_all([Work(n) for n in range(3)])
    gate = flaky.gate("get_ready", after_commit=True)
    await consumer.start()
    await gate.reached()
    await producer.enqueue(Work(9), priority=9)
    await settle()
    gate.release()
    await run_until_idle(consumer)
    assert order == [0, 9, 1, 2]


@pytest.mark.asyncio
@pytest.mark.parametrize("end", ["stop", "crash"])
async def test_a_queue_that_has_stopped_keeps_nothing(set_scene: SetScene, end: str) -> None:
    """S7.5, S13.2: the records that were read ahead are let go when the queue no longer works."""
    scene = await set_scene()
    ahead = scene.queue._worker.ahead
    assert len(ahead._tasks) == 3
    if end == "crash":
        await crash(scene.queue)
    else:
        stopping = await begin_stop(scene.queue)
        scene.handler.released.set()
        await stopping
    assert (ahead._tasks, ahead._keys, ahead._childless) == ({}, [], set())
    if end == "stop":
        await scene.queue.start()
        assert await scene.go_on() == [0, 1, 2]


@pytest.mark.asyncio
async def test_what_was_stored_while_nothing_ran_is_found(
    set_scene: SetScene, make_queue: MakeQueue, storage: QueueStorage
) -> None:
    """S13.2: once nothing runs a look is a fresh one, so that a record stored past the queue has its turn."""
    scene = await set_scene(before=lambda queue: queue.enqueue(Work(7), delay=SECOND, priority=7))
    assert await scene.go_on() == [0, 1, 2]
    template = await scene.queue.get_task(scene.ids[0])
    assert template is not None
    await storage.save(
        attrs.evolve(
            template, id="by hand", status=TaskStatus.PENDING, attempts=0, payload={"n": 5}, result=None
        )
    )
    await scene.queue.enqueue(Work(6), priority=-1)
    await run_until_idle(scene.queue)
    assert scene.order == [0, 1, 2, 5, 6]


def test_only_who_overrides_it_is_asked(storage: QueueStorage) -> None:
    """S13.2: a storage that changes `get_ready` without `read_ahead` is asked for what it has changed."""

    class Both(OneHead):
        read_ahead = MemoryQueueStorage.read_ahead

    assert storage.reads_ahead
    assert Both().reads_ahead
    for other in (ThirteenMethodStorage(), OneHead(), FlakyStorage(OneHead())):
        assert not other.reads_ahead


@pytest.mark.asyncio
async def test_a_storage_cannot_be_asked_that_does_not_say_so() -> None:
    """S13.8: the default says what to ask instead."""
    with pytest.raises(
        NotImplementedError, match="ThirteenMethodStorage does not override read_ahead; ask get_ready"
    ):
        await ThirteenMethodStorage().read_ahead(FakeQueueClock().now(), 1)
