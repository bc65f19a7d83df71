"""The end of a task that nothing depends on costs no read, and who comes to depend on it is not forgotten (S13.2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import attrs
import pytest
import pytest_asyncio

from durable_queue import (
    DependencyFailurePolicy,
    DurableQueue,
    FakeQueueClock,
    MemoryQueueStorage,
    QueueStorage,
    RetryPolicy,
    TaskGraph,
    TaskStatus,
)
from durable_queue.testing import FlakyStorage, run_until_idle
from durable_queue_sqlite import SqliteQueueStorage
from tests.queue.conftest import MakeQueue
from tests.queue.fault_support import Counting, status_of
from tests.queue.handler_support import SECOND, Handler, after_the_storage, succeed
from tests.support import Other, Work

HOUR = timedelta(hours=1)
RUN = DependencyFailurePolicy.RUN
AGAIN = RetryPolicy.fixed(max_attempts=3, delay=timedelta(0))


@pytest_asyncio.fixture(params=["memory", "sqlite"])
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[QueueStorage]:
    """An empty storage of each kind that can be read ahead."""
    if request.param == "memory":
        yield MemoryQueueStorage()
    else:
        async with SqliteQueueStorage(tmp_path / "queue.db") as opened:
            yield opened


def questions(flaky: FlakyStorage) -> int:
    """Return how often the storage was asked for dependents."""
    return sum(
        flaky.calls[name] for name in ("get_judgeable", "get_waiting_dependents_of", "get_waiting_dependents")
    )


@attrs.frozen
class Scene:
    """A queue in which a task, `parent`, runs until `handler` is released, with another one read ahead behind it.

    Attributes:
        queue: the queue, with one slot.
        handler: the handler of the parent.
        parent: its id; nothing depended on it when it was claimed.
        next: the id of the task that is read ahead.
    """

    queue: DurableQueue
    handler: Handler
    parent: str
    next: str


@pytest_asyncio.fixture
async def scene(make_queue: MakeQueue, storage: QueueStorage) -> AsyncIterator[Scene]:
    """The scene, with nothing stored but these two tasks."""
    queue, handler = make_queue(max_concurrent_tasks=1), Handler()
    queue.register(Other, handler)
    queue.register(Work, succeed)
    parent, behind = await queue.enqueue_all([Other(), Work()])
    await queue.start()
    await handler.began.wait()
    await after_the_storage(queue)
    yield Scene(queue, handler, parent, behind)
    handler.released.set()


@pytest_asyncio.fixture
async def elsewhere(storage: QueueStorage, tmp_path: Path) -> AsyncIterator[Callable[[], QueueStorage]]:
    """Returns another storage object over the same file; closed at the end."""
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(SqliteQueueStorage(tmp_path / "queue.db"))
        yield lambda: other


@pytest.mark.asyncio
@pytest.mark.parametrize("way", ["enqueue", "graph"])
@pytest.mark.parametrize("of", ["parent", "next"])
@pytest.mark.parametrize("producer", ["itself", "another queue"])
async def test_a_dependent_that_comes_later_is_released(
    scene: Scene, make_queue: MakeQueue, of: str, producer: str, way: str
) -> None:
    """S4.2, S13.2, S13.6: a dependent of a task that runs, or is read ahead, without any is released by its end."""
    queue = scene.queue
    if producer == "another queue":
        queue = make_queue()
        queue.register(Work)
    parents = [scene.parent if of == "parent" else scene.next]
    if way == "enqueue":
        child = await queue.enqueue(Work(1), depends_on=parents)
    else:
        graph = TaskGraph()
        graph.add(Work(1), name="child", depends_on=parents)
        child = (await queue.enqueue_graph(graph))["child"]
    # The end of another task first: what is known must not be forgotten by it.
    await after_the_storage(scene.queue)
    scene.handler.released.set()
    assert (await scene.queue.wait(child)).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
@pytest.mark.parametrize("storage", ["sqlite"], indirect=True)
@pytest.mark.parametrize("noticed", [True, False])
@pytest.mark.parametrize("of", ["parent", "next"])
async def test_a_dependent_of_another_storage_object_is_released(
    scene: Scene,
    make_queue: MakeQueue,
    elsewhere: Callable[[], QueueStorage],
    clock: FakeQueueClock,
    of: str,
    noticed: bool,
) -> None:
    """S7.9, S13.6: one that came through the file is released, whether the end or the look for others comes first."""
    producer = make_queue(storage=elsewhere())
    producer.register(Work)
    parent = scene.parent if of == "parent" else scene.next
    child = await producer.enqueue(Work(1), depends_on=[parent])
    if noticed:
        clock.advance(SECOND)
        await after_the_storage(scene.queue)
        await after_the_storage(scene.queue)
    scene.handler.released.set()
    assert (await scene.queue.wait(parent)).status is TaskStatus.COMPLETED
    if not noticed:
        await after_the_storage(scene.queue)
        clock.advance(SECOND)
    assert (await scene.queue.wait(child)).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
@pytest.mark.parametrize("storage", ["sqlite"], indirect=True)
async def test_a_better_task_of_another_storage_object_goes_first(
    scene: Scene, make_queue: MakeQueue, elsewhere: Callable[[], QueueStorage], clock: FakeQueueClock
) -> None:
    """S3.1, S7.9, S13.2: what came through the file has its place in the order once it is noticed."""
    order: list[str] = []
    producer = make_queue(storage=elsewhere())
    producer.register(Work)
    better = await producer.enqueue(Work(1), priority=1)
    clock.advance(SECOND)
    await after_the_storage(scene.queue)
    await after_the_storage(scene.queue)
    scene.handler.released.set()
    waits = {asyncio.create_task(scene.queue.wait(task_id)): task_id for task_id in (better, scene.next)}
    for wait in waits:
        wait.add_done_callback(lambda ended: order.append(waits[ended]))
    await asyncio.wait(waits)
    assert order == [better, scene.next]


@pytest.mark.asyncio
@pytest.mark.parametrize("by", ["policy", "hand"])
async def test_a_task_that_is_ready_again_still_has_its_dependents(make_queue: MakeQueue, by: str) -> None:
    """S4.2, S13.2: a parent that is retried, by its policy or by hand, releases its dependents when it completes."""
    queue, handler, parents = make_queue(max_concurrent_tasks=2), Handler(), Counting({1: 1})
    queue.register(Other, handler)
    queue.register(Work, parents)
    await queue.start()
    first = await queue.enqueue(Other())
    await handler.began.wait()
    parent = await queue.enqueue(Work(1), retry_policy=AGAIN if by == "policy" else None, delay=SECOND)
    child = await queue.enqueue(Work(2), depends_on=[parent, first], on_dependency_failure=RUN)
    clock = queue._clock
    assert isinstance(clock, FakeQueueClock)
    clock.advance(SECOND)
    if by == "hand":
        assert (await queue.wait(parent)).status is TaskStatus.FAILED
        await queue.retry(parent)
    handler.released.set()
    assert (await queue.wait(parent)).status is TaskStatus.COMPLETED
    assert (await queue.wait(child)).status is TaskStatus.COMPLETED
    assert parents.starts == [1, 1, 2]


@pytest.mark.asyncio
async def test_dependents_that_are_stored_are_known_when_a_task_is_read_ahead(
    make_queue: MakeQueue, storage: QueueStorage
) -> None:
    """S4.2, S13.2: of many tasks read together, those with dependents release them, and few others are asked about."""
    flaky = FlakyStorage(storage)
    queue = make_queue(storage=flaky, max_concurrent_tasks=1)
    queue.register(Work, succeed)
    parents = await queue.enqueue_all([Work(n) for n in range(150)])
    for n in (3, 70, 149):
        await queue.enqueue(Work(1000 + n), depends_on=[parents[n]])
    await queue.start()
    await run_until_idle(queue)
    assert (await queue.counts())[TaskStatus.COMPLETED] == 153
    # For each parent, and for a dependent that was released into what had been read before.
    assert 3 <= questions(flaky) <= 6


@pytest.mark.asyncio
@pytest.mark.parametrize("slots", [1, 4])
async def test_ends_without_dependents_ask_nothing(
    make_queue: MakeQueue, storage: QueueStorage, slots: int
) -> None:
    """S13.2: tasks that nothing depends on end without a question, those too that run while others are read."""
    flaky = FlakyStorage(storage)
    queue, handler = make_queue(storage=flaky, max_concurrent_tasks=slots + 1), Handler()
    queue.register(Work, succeed)
    queue.register(Other, handler)
    await queue.enqueue(Other(), priority=9)
    await queue.enqueue_all([Work(n) for n in range(200)])
    await queue.start()
    # Some that are taken up as they come, and some that are read later.
    late = [await queue.enqueue(Work(n), priority=priority) for priority in (1, -1) for n in range(10)]
    await queue.wait(late[-1])
    handler.released.set()
    await run_until_idle(queue)
    assert (await queue.counts())[TaskStatus.COMPLETED] == 221
    assert questions(flaky) == 0


@pytest.mark.asyncio
async def test_a_queue_that_is_never_idle_keeps_nothing_of_what_has_ended(
    make_queue: MakeQueue, clock: FakeQueueClock
) -> None:
    """S13.2: however long one task runs, nothing is kept of others that have ended or wait for a retry."""
    queue, handler, failing = make_queue(max_concurrent_tasks=2), Handler(), Counting({9: 10})
    queue.register(Other, handler)
    queue.register(Work, failing, retry_policy=RetryPolicy.fixed(max_attempts=2, delay=HOUR))
    running = await queue.enqueue(Other())
    await queue.start()
    await handler.began.wait()
    delayed = await queue.enqueue(Work(1), delay=SECOND)
    cancelled = [await queue.enqueue(Work(1), delay=HOUR) for _ in range(10)]
    retried = [await queue.enqueue(Work(9)) for _ in range(10)]
    ended = [await queue.enqueue(Work(2)) for _ in range(300)]
    for task_id in cancelled:
        await queue.cancel(task_id)
    await queue.wait(ended[-1])
    assert await status_of(queue, retried[-1]) is TaskStatus.RETRY_SCHEDULED
    # Its time has come: the order is read anew.
    clock.advance(SECOND)
    await queue.wait(delayed)
    await after_the_storage(queue)
    ahead = queue._worker.ahead
    assert ahead._childless == {running}
    assert (ahead._keys, ahead._tasks) == ([], {})
    handler.released.set()
    await queue.wait(running)
