"""Every queue test runs on the memory reference, on SQLite, and on an adapter of thirteen methods."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from durable_queue import DurableQueue, FakeQueueClock, MemoryQueueStorage, QueueStorage
from durable_queue_sqlite import SqliteQueueStorage
from tests.support import ThirteenMethodStorage

MakeQueue = Callable[..., DurableQueue]

DEADLINE = 15.0
"""Seconds after which a test that hangs fails instead."""


@pytest.fixture(autouse=True)
def deadline() -> Iterator[None]:
    """Ends a wait that would never end, in the test or in the clean-up after it."""
    if not hasattr(signal, "SIGALRM"):
        yield
        return

    def fail(signum: int, frame: object) -> None:
        raise TimeoutError(f"the test was still waiting after {DEADLINE} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, DEADLINE, DEADLINE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest_asyncio.fixture(params=["memory", "sqlite", "thirteen"])
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[QueueStorage]:
    """An empty storage of each kind."""
    if request.param == "memory":
        yield MemoryQueueStorage()
    elif request.param == "thirteen":
        yield ThirteenMethodStorage()
    else:
        async with SqliteQueueStorage(tmp_path / "queue.db") as opened:
            yield opened


@pytest.fixture
def clock() -> FakeQueueClock:
    """A clock that stands still until the test moves it."""
    return FakeQueueClock()


@pytest_asyncio.fixture
async def make_queue(storage: QueueStorage, clock: FakeQueueClock) -> AsyncIterator[MakeQueue]:
    """Makes queues over the storage and the clock, and closes them at the end."""
    made: list[DurableQueue] = []

    def make(**options: object) -> DurableQueue:
        options.setdefault("clock", clock)
        queue = DurableQueue(options.pop("storage", storage), **options)  # type: ignore[arg-type]  # as given by the test
        made.append(queue)
        return queue

    yield make
    for queue in made:
        await queue.close()
