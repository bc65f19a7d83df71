"""How a process may end, and what the next one finds: crashes, interrupts, exits, unclosed queues, one consumer."""

from __future__ import annotations

import signal
import sqlite3
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest

from durable_queue import DurableQueue, RetryPolicy, StoredTask, TaskContext, TaskStatus
from durable_queue_sqlite import SqliteQueueStorage
from tests.processes.bench import Bench, Ended

ONCE = RetryPolicy.none()
LINUX = sys.platform.startswith("linux")


@attrs.frozen
class Job:
    task_type = "job"
    n: int = 0


async def records(bench: Bench) -> list[StoredTask]:
    """Return what is stored, without recovering it; the file is whole and not locked."""
    connection = sqlite3.connect(bench.file)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
    async with SqliteQueueStorage(bench.file) as storage:
        return await storage.get_all()


async def run_on(bench: Bench, **options: Any) -> list[StoredTask]:
    """Recover and run what is left with a handler that succeeds; return the records."""
    starts = bench.folder / "marks.txt"

    async def work(task: Job, context: TaskContext) -> str:
        with starts.open("a") as marks:
            marks.write(f"{task.n}\n")
        return "done"

    async with SqliteQueueStorage(bench.file) as storage:
        queue = DurableQueue(storage, **options)
        queue.register(Job, work)
        async with queue:
            await queue.drain(within=timedelta(seconds=1))
        return await storage.get_all()


@pytest.mark.asyncio
@pytest.mark.parametrize("scenario", ["forever", "forever in a thread"])
async def test_rec_01_a_killed_process_is_recovered(bench: Bench, scenario: str) -> None:
    """S7.2: after SIGKILL the task is running in the file; the next start recovers it by its policy."""
    child = bench.start(scenario)
    assert child.line() == "started"
    child.process.send_signal(signal.SIGKILL)
    child.end()
    (before,) = await records(bench)
    assert (before.status, before.attempts) == (TaskStatus.RUNNING, 1)
    (after,) = await run_on(bench)

    assert (after.status, after.attempts, after.interruptions) == (TaskStatus.COMPLETED, 2, 1)
    assert after.last_failure.error_type == "TaskInterruptedError"
    assert bench.starts() == ["0", "0"]


@pytest.mark.asyncio
async def test_rec_01_a_killed_process_whose_task_has_no_attempts_left(bench: Bench) -> None:
    """S7.2: it fails with an error that says so, and its handler is not called again."""
    child = bench.start("forever")
    assert child.line() == "started"
    child.process.send_signal(signal.SIGKILL)
    child.end()
    async with SqliteQueueStorage(bench.file) as storage:
        (task,) = await storage.get_all()
        await storage.update(attrs.evolve(task, retry_policy=ONCE))
    (after,) = await run_on(bench)

    assert (after.status, after.attempts) == (TaskStatus.FAILED, 1)
    assert "interrupted" in after.last_failure.error
    assert bench.starts() == ["0"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("scenario", "status"), [("interrupt", -signal.SIGINT), ("leave", 3), ("leave in a thread", 3)]
)
async def test_shu_04_keyboard_interrupt_and_exit_leave_through_the_loop(
    bench: Bench, scenario: str, status: int
) -> None:
    """S5.4: the process ends with the usual status; the task is recovered, the one behind it was not begun."""
    ended = bench.start(scenario).end()
    assert ended.status == status
    assert "never retrieved" not in ended.errors
    assert "was destroyed" not in ended.errors
    first, second = await records(bench)
    assert (first.status, first.attempts) == (TaskStatus.RUNNING, 1)
    assert (second.status, second.attempts) == (TaskStatus.PENDING, 0)
    after = await run_on(bench)

    assert [(task.status, task.attempts) for task in after] == [
        (TaskStatus.COMPLETED, 2),
        (TaskStatus.COMPLETED, 1),
    ]
    assert bench.starts() == ["0", "0", "1"]


@pytest.mark.asyncio
@pytest.mark.parametrize("scenario", ["unclosed", "unclosed in threads", "cancel everything"])
async def test_shu_01_a_program_that_ends_with_handlers_running(bench: Bench, scenario: str) -> None:
    """S13.5: it exits in silence, nothing is written for what ran, nothing new was begun; all is recovered."""
    ended = bench.start(scenario).end()
    assert (ended.status, ended.errors) == (0, "")
    before = await records(bench)
    assert [(task.status, task.attempts, task.last_failure) for task in before] == [
        (TaskStatus.RUNNING, 1, None)
    ] * 3 + [(TaskStatus.PENDING, 0, None)] * 2
    after = await run_on(bench)

    assert [(task.status, task.attempts) for task in after] == [(TaskStatus.COMPLETED, 2)] * 3 + [
        (TaskStatus.COMPLETED, 1)
    ] * 2


@pytest.mark.asyncio
async def test_shu_01_handlers_that_swallow_the_end_of_the_program(bench: Bench) -> None:
    """S13.5: whether their results are stored in time or not, the process exits and nothing is lost."""
    ended = bench.start("unclosed and stubborn").end()
    assert (ended.status, ended.errors) == (0, "")
    assert {task.status for task in await records(bench)} <= {TaskStatus.RUNNING, TaskStatus.COMPLETED}

    assert {task.status for task in await run_on(bench)} == {TaskStatus.COMPLETED}


@pytest.mark.asyncio
async def test_an_interrupt_from_the_keyboard_closes_the_queue(bench: Bench) -> None:
    """S13.4: Ctrl-C ends the main task; async with stops with its grace and puts the running task back."""
    child = bench.start("graceful")
    assert child.line() == "started"
    child.process.send_signal(signal.SIGINT)
    ended = child.end()
    (record,) = await records(bench)

    assert ended.status == -signal.SIGINT
    assert (record.status, record.attempts) == (TaskStatus.PENDING, 0)


@pytest.mark.asyncio
async def test_a_second_interrupt_ends_a_program_that_waits_for_its_handlers(bench: Bench) -> None:
    """S13.5: without a grace the first Ctrl-C waits for the handler, the second one tears the program down."""
    child = bench.start("forever")
    assert child.line() == "started"
    child.process.send_signal(signal.SIGINT)
    while child.process.poll() is None:
        child.process.send_signal(signal.SIGINT)
    ended = child.end()
    (record,) = await records(bench)

    assert ended.status == -signal.SIGINT
    assert "was destroyed" not in ended.errors
    assert (record.status, record.attempts) == (TaskStatus.RUNNING, 1)


@pytest.mark.asyncio
async def test_shu_01_what_was_enqueued_is_there_although_nothing_was_closed(bench: Bench) -> None:
    """S2.1: the process exits by itself and in silence."""
    ended = bench.start("enqueue only").end()
    assert (ended.status, ended.errors) == (0, "")

    assert [task.status for task in await records(bench)] == [TaskStatus.PENDING]


@pytest.mark.skipif(not LINUX, reason="descriptors are listed in /proc")
def test_shu_01_closing_twice_leaves_neither_thread_nor_descriptor(bench: Bench) -> None:
    """S7.6: after close no thread and no open file is left, and the file can be deleted."""
    child = bench.start("close twice")
    assert child.line() == "threads []"
    assert child.line() == "files []"
    ended = child.end()
    assert (ended.status, ended.errors) == (0, "")

    bench.file.unlink()


@pytest.mark.asyncio
async def test_one_consumer_per_file_among_processes(bench: Bench, tmp_path: Path) -> None:
    """S7.9: a second process is refused by whatever spelling of the path and touches nothing, until the first dies."""
    link = tmp_path / "elsewhere" / "link.db"
    link.parent.mkdir()
    link.symlink_to(bench.file)
    first = bench.start("consume")
    assert first.line() == "consuming"
    async with SqliteQueueStorage(bench.file) as storage:
        queue = DurableQueue(storage)
        queue.register(Job, None)
        task_id = await queue.enqueue(Job(7))
        assert first.line() == "started"
        before = await storage.get(task_id)
        for spelling in (bench.file, "queue.db", "./elsewhere/../queue.db", link):
            second = bench.start("consume", file=spelling)
            assert second.line() == "in use"
            assert second.end() == Ended(0, "")
        assert await storage.get(task_id) == before
    first.process.send_signal(signal.SIGKILL)
    first.end()
    third = bench.start("consume", file=link)

    assert third.line() == "consuming"
