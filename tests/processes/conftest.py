"""Child processes over one real file, and a consumer of it in the process of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from durable_queue import DurableQueue, FakeQueueClock
from durable_queue_sqlite import SqliteQueueStorage
from tests.processes.bench import Bench
from tests.processes.notes import Notes
from tests.support import Work


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


@pytest.fixture
def clock() -> FakeQueueClock:
    return FakeQueueClock()


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest_asyncio.fixture
async def consumer(file: Path, clock: FakeQueueClock, notes: Notes) -> AsyncIterator[DurableQueue]:
    """A started queue over the file."""
    async with SqliteQueueStorage(file) as storage:
        queue = DurableQueue(storage, clock=clock)
        queue.register(Work, notes)
        await queue.start()
        yield queue
        await queue.close()
