"""A queue and the event loop that it belongs to (S2.8, S13.20, SHU-06)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from durable_queue import (
    DurableQueue,
    MemoryQueueStorage,
    QueueStateError,
    RunState,
    TaskStatus,
)
from durable_queue_sqlite import SqliteQueueStorage
from tests.queue.handler_support import Handler, succeed
from tests.support import Work


@pytest.fixture(params=["memory", "sqlite"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryQueueStorage | SqliteQueueStorage:
    """A storage that is made where no loop runs, to be entered in each."""
    return MemoryQueueStorage() if request.param == "memory" else SqliteQueueStorage(tmp_path / "queue.db")


CALLS: dict[str, Callable[[DurableQueue], Coroutine[Any, Any, Any]]] = {
    "enqueue": lambda queue: queue.enqueue(Work()),
    "enqueue_all": lambda queue: queue.enqueue_all([Work()]),
    "start": lambda queue: queue.start(),
    "pause": lambda queue: queue.pause(),
    "resume": lambda queue: queue.resume(),
    "stop": lambda queue: queue.stop(),
    "drain": lambda queue: queue.drain(),
    "wait": lambda queue: queue.wait("id"),
    "cancel": lambda queue: queue.cancel("id"),
    "cancel_group": lambda queue: queue.cancel_group("g"),
    "retry": lambda queue: queue.retry("id"),
    "delete": lambda queue: queue.delete("id"),
    "purge": lambda queue: queue.purge(),
    "get_task": lambda queue: queue.get_task("id"),
    "get_tasks": lambda queue: queue.get_tasks(),
    "counts": lambda queue: queue.counts(),
    "hand_offs": lambda queue: queue.hand_offs(),
    "complete_hand_off": lambda queue: queue.complete_hand_off("id", reference="r"),
    "fail_hand_off": lambda queue: queue.fail_hand_off("id", "no", reference="r"),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("name", CALLS)
async def test_a_call_from_another_loop_is_refused_at_once(name: str) -> None:
    """S2.8: every call from the loop of another thread is refused with a word about what to use, and harms nothing."""
    async with DurableQueue(MemoryQueueStorage()) as queue:
        queue.register(Work, succeed)

        def call() -> str:
            with pytest.raises(QueueStateError, match="another event loop") as caught:
                asyncio.run(CALLS[name](queue))
            return str(caught.value)

        assert "run_coroutine_threadsafe" in await asyncio.to_thread(call)
        assert queue.run_state is RunState.RUNNING
        assert (await queue.wait(await queue.enqueue(Work()))).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
async def test_the_first_use_binds() -> None:
    """S2.8: a queue that was only enqueued to belongs to that loop too."""
    queue = DurableQueue(MemoryQueueStorage())
    queue.register(Work, succeed)
    await queue.enqueue(Work())

    def call() -> None:
        with pytest.raises(QueueStateError, match="another event loop"):
            asyncio.run(queue.counts())

    await asyncio.to_thread(call)
    await queue.close()


@pytest.mark.asyncio
async def test_other_threads_enqueue_through_the_loop() -> None:
    """S2.8: threads that use `run_coroutine_threadsafe` with the queue's loop wake it, each at once."""
    async with DurableQueue(MemoryQueueStorage()) as queue:
        queue.register(Work, succeed)
        loop = asyncio.get_running_loop()
        ended: list[TaskStatus] = []

        async def submit(n: int) -> TaskStatus:
            return (await queue.wait(await queue.enqueue(Work(n)))).status

        def produce() -> None:
            ended.extend(asyncio.run_coroutine_threadsafe(submit(n), loop).result(5) for n in range(10))

        threads = [threading.Thread(target=produce) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert ended == [TaskStatus.COMPLETED] * 40


def test_shu_06_built_before_any_loop(storage: MemoryQueueStorage | SqliteQueueStorage) -> None:
    """SHU-06, S2.8: queue and storage may be made where no loop runs, as at import, and used in one."""
    queue = DurableQueue(storage)
    queue.register(Work, succeed)

    async def main() -> TaskStatus:
        async with storage, queue:
            return (await queue.wait(await queue.enqueue(Work()))).status

    assert asyncio.run(main()) is TaskStatus.COMPLETED


def test_shu_06_stopped_and_used_in_another_loop(storage: MemoryQueueStorage | SqliteQueueStorage) -> None:
    """S13.20: the binding of a queue ends with stop, that of a storage with close; both can then be used again."""
    queue = DurableQueue(storage)
    queue.register(Work, succeed)

    async def main(n: int) -> list[TaskStatus]:
        async with storage:
            await queue.enqueue(Work(n))
            await queue.start()
            await queue.drain()
            tasks = await queue.get_tasks()
            await queue.stop()
            return [task.status for task in tasks]

    for n in range(3):
        assert asyncio.run(main(n)) == [TaskStatus.COMPLETED] * (n + 1)


def test_an_idle_queue_is_let_go_by_stop() -> None:
    """S13.20: stop ends the binding of a queue that has only enqueued, too."""
    queue = DurableQueue(MemoryQueueStorage())
    queue.register(Work, succeed)

    async def enqueue(n: int) -> None:
        await queue.enqueue(Work(n))
        await queue.stop()

    for n in range(2):
        asyncio.run(enqueue(n))
    assert asyncio.run(queue.counts())[TaskStatus.PENDING] == 2


def test_shu_06_not_stopped_and_used_in_another_loop() -> None:
    """SHU-06: a started queue whose loop has ended refuses a second loop with a clear error and does not hang."""
    queue = DurableQueue(MemoryQueueStorage())
    queue.register(Work, succeed)

    async def first() -> None:
        await queue.start()
        await queue.enqueue(Work())

    async def second(call: Callable[[DurableQueue], Coroutine[Any, Any, Any]]) -> None:
        async with asyncio.timeout(1):
            await call(queue)

    asyncio.run(first())
    for call in CALLS.values():
        with pytest.raises(QueueStateError, match="another event loop"):
            asyncio.run(second(call))


def test_a_handler_left_behind_by_its_loop_is_recovered(tmp_path: Path) -> None:
    """S13.5: a task whose loop was torn down is left running and recovered by the next queue over the file."""

    async def first() -> str:
        handler = Handler()
        async with SqliteQueueStorage(tmp_path / "queue.db") as storage:
            queue = DurableQueue(storage)
            queue.register(Work, handler)
            await queue.start()
            task_id = await queue.enqueue(Work())
            await handler.began.wait()
            return task_id

    async def second(task_id: str) -> tuple[TaskStatus, int]:
        async with SqliteQueueStorage(tmp_path / "queue.db") as storage, DurableQueue(storage) as queue:
            task = await queue.get_task(task_id)
            assert task is not None
            return task.status, task.interruptions

    assert asyncio.run(second(asyncio.run(first()))) == (TaskStatus.FAILED, 1)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file for several tests."""
    return tmp_path_factory.mktemp("shared") / "queue.db"


@pytest.mark.asyncio
@pytest.mark.parametrize("n", range(3))
async def test_shu_06_one_file_in_the_loop_of_each_test(file: Path, n: int) -> None:
    """SHU-06: tests with a loop of their own use one file after each other."""
    async with SqliteQueueStorage(file) as storage, DurableQueue(storage) as queue:
        queue.register(Work, succeed)
        assert (await queue.wait(await queue.enqueue(Work(n)))).status is TaskStatus.COMPLETED
        assert {task.status for task in await queue.get_tasks()} == {TaskStatus.COMPLETED}
