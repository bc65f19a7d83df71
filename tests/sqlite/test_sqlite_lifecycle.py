"""The life of a storage: opened, closed, opened again, forgotten, used from the wrong place."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from durable_queue import StorageError
from durable_queue.storage import Save, Update
from durable_queue_sqlite import SqliteQueueStorage
from tests.sqlite.support import T0, descriptors, ids, names, run_python, task


def own_threads() -> set[threading.Thread]:
    """The threads of this process, without those for handlers that a test before may have left to end by themselves."""
    return {thread for thread in threading.enumerate() if not thread.name.startswith("durable_queue handler")}


@pytest.mark.asyncio
async def test_close_leaves_nothing_behind(tmp_path: Path) -> None:
    """S7.6: after close there is no thread, no descriptor, no journal, and the file holds everything."""
    threads, before = own_threads(), descriptors()
    storage = await SqliteQueueStorage.open(tmp_path / "queue.db")
    await storage.save(task("a"))
    await storage.acquire_consumer()

    await storage.close()
    await storage.close()

    assert own_threads() == threads
    assert descriptors() == before
    assert names(tmp_path) in (["queue.db"], ["queue.db", "queue.db.lock"])


@pytest.mark.asyncio
async def test_two_that_close_at_once_both_see_it_closed(tmp_path: Path) -> None:
    """S7.6: close is over when it returns, whoever began it."""
    storage = await SqliteQueueStorage.open(tmp_path / "queue.db")
    threads = len(own_threads())

    await asyncio.gather(storage.close(), storage.close())

    assert len(own_threads()) == threads - 1


@pytest.mark.asyncio
async def test_a_closed_storage_says_so(tmp_path: Path) -> None:
    """S13.20: use before open and after close is a clear error."""
    storage = SqliteQueueStorage(tmp_path / "queue.db")

    with pytest.raises(StorageError, match="storage is closed"):
        await storage.get("a")
    async with storage:
        assert await storage.get("a") is None
    with pytest.raises(StorageError, match="storage is closed"):
        await storage.get("a")


@pytest.mark.asyncio
async def test_what_was_asked_before_close_is_answered(tmp_path: Path) -> None:
    """S2.7: close comes after the calls that came before it."""
    storage = await SqliteQueueStorage.open(tmp_path / "queue.db")

    saving = [asyncio.create_task(storage.save(task(f"t{number}"))) for number in range(20)]
    await asyncio.sleep(0)
    await storage.close()
    await asyncio.gather(*saving)

    async with storage:
        assert len(await storage.get_all()) == 20


@pytest.mark.asyncio
async def test_open_can_be_awaited_and_entered(tmp_path: Path) -> None:
    """S13.20: every way to open leads to the same storage."""
    async with SqliteQueueStorage.open(tmp_path / "queue.db") as storage:
        await storage.save(task("a"))
    async with await SqliteQueueStorage.open(tmp_path / "queue.db") as storage:
        assert ids(await storage.get_all()) == ["a"]
    with pytest.raises(StorageError, match="storage is closed"):
        await storage.get_all()


def test_a_closed_storage_works_in_another_event_loop(tmp_path: Path) -> None:
    """S13.20: the binding to an event loop ends with close."""
    storage = SqliteQueueStorage(tmp_path / "queue.db")

    async def save(task_id: str) -> list[str]:
        async with storage:
            await storage.save(task(task_id))
            return ids(await storage.get_all())

    asyncio.run(save("a"))

    assert asyncio.run(save("b")) == ["a", "b"]


def test_an_open_storage_refuses_another_event_loop(tmp_path: Path) -> None:
    """S13.20: in a second event loop an open storage says what is wrong, and can be closed and used there."""
    storage = SqliteQueueStorage(tmp_path / "queue.db")

    async def leave_open() -> None:
        await storage.__aenter__()
        await storage.save(task("a"))

    async def use() -> list[str]:
        with pytest.raises(StorageError, match="another event loop"):
            await storage.get("a")
        with pytest.raises(StorageError, match="another event loop"):
            await storage.__aenter__()
        await storage.close()
        async with storage:
            return ids(await storage.get_all())

    asyncio.run(leave_open())

    assert asyncio.run(asyncio.wait_for(use(), 5)) == ["a"]


@pytest.mark.asyncio
async def test_a_running_event_loop_keeps_its_storage(tmp_path: Path) -> None:
    """S13.20: nobody closes a storage under an event loop that is at work."""
    async with SqliteQueueStorage(tmp_path / "queue.db") as storage:
        with pytest.raises(StorageError, match="close the storage in the event loop that opened it"):
            await asyncio.to_thread(lambda: asyncio.run(storage.close()))

        assert await storage.get("a") is None


def test_a_forgotten_storage_does_not_keep_the_program_alive(tmp_path: Path) -> None:
    """S13.23: a program that never closes its storage ends, quietly, and its tasks are stored."""
    run_python(
        """
        import asyncio, sys
        from tests.sqlite.support import task
        from durable_queue_sqlite import SqliteQueueStorage

        async def main():
            global storage
            storage = await SqliteQueueStorage.open(sys.argv[1])
            await storage.save(task("a"))

        asyncio.run(main())
        """,
        tmp_path / "queue.db",
    )

    async def stored() -> list[str]:
        async with SqliteQueueStorage(tmp_path / "queue.db") as storage:
            return ids(await storage.get_all())

    assert asyncio.run(stored()) == ["a"]


def test_a_loop_that_ends_with_calls_under_way_ends_cleanly(tmp_path: Path) -> None:
    """S2.7: calls that the end of the event loop cuts off are whole, and the thread complains of nothing."""
    said = run_python(
        """
        import asyncio, sys
        from tests.sqlite.support import task
        from durable_queue.storage import Save
        from durable_queue_sqlite import SqliteQueueStorage

        async def main():
            global storage
            storage = await SqliteQueueStorage.open(sys.argv[1])
            for number in range(5):
                pair = [Save(task(f"{number}.{half}")) for half in "ab"]
                calls.append(asyncio.create_task(storage.apply(pair)))
            await asyncio.sleep(0)

        async def again():
            await storage.close()
            async with storage:
                halves = [found.id for found in await storage.get_all()]
                print(len(halves) % 2, all(call.cancelled() for call in calls))

        calls = []
        asyncio.run(main())
        asyncio.run(again())
        """,
        tmp_path / "queue.db",
    )

    assert said == "0 True\n"


@pytest.mark.asyncio
async def test_no_data_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """S1.8: the driver's own debug lines show neither payload, result, key nor group."""
    caplog.set_level(logging.DEBUG)
    secret = task(
        "a", payload={"p": "sesame-1"}, result="sesame-2", deduplication_key="sesame-3", group="sesame-4"
    )
    async with SqliteQueueStorage(tmp_path / "queue.db") as storage:
        await storage.apply([Save(secret)])
        await storage.apply([Update(secret)])
        await storage.get("a")
        await storage.get_ready(T0, 5, types=["work"])
        await storage.find_active_by_deduplication_key("sesame-3")
        await storage.get_by_group("sesame-4")

    assert "executing" in caplog.text
    assert "sesame" not in caplog.text


@pytest.mark.asyncio
async def test_a_file_that_moved_its_journal_mode_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S13.22: where write-ahead logging is refused, the storage works in the mode that is left."""
    monkeypatch.setattr("durable_queue_sqlite._opening._JOURNAL", "PRAGMA journal_mode = DELETE")
    async with SqliteQueueStorage(tmp_path / "queue.db") as storage:
        await storage.apply([Save(task("a"))])

        assert names(tmp_path) == ["queue.db"]
        assert ids(await storage.get_ready(T0, 1)) == ["a"]


@pytest.mark.asyncio
async def test_two_that_open_at_once_share_one_connection(tmp_path: Path) -> None:
    """S13.20: a storage that is entered twice at the same time has one connection, and one close ends it."""
    threads = own_threads()
    storage = SqliteQueueStorage(tmp_path / "queue.db")

    await asyncio.gather(storage.__aenter__(), storage.__aenter__())
    await storage.save(task("a"))

    assert len(own_threads() - threads) == 1
    await storage.close()
    assert own_threads() == threads


@pytest.mark.asyncio
async def test_a_close_during_open_does_no_harm(tmp_path: Path) -> None:
    """S13.20: close of a storage that is not open yet is the no-op that it always is then."""
    for steps in range(6):
        storage = SqliteQueueStorage(tmp_path / "queue.db")
        opening = asyncio.create_task(storage.__aenter__())
        for _ in range(steps):
            await asyncio.sleep(0)
        await storage.close()
        await opening
        await storage.close()


@pytest.mark.asyncio
async def test_a_cancelled_close_goes_on_and_can_be_opened_after(tmp_path: Path) -> None:
    """S13.20: who enters a storage that is still closing waits for that and gets an open one."""
    path = tmp_path / "queue.db"
    storage = await SqliteQueueStorage.open(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        saving = asyncio.create_task(storage.save(task("a")))
        closing_it = asyncio.create_task(storage.close())
        await asyncio.sleep(0)
        closing_it.cancel()
        await asyncio.wait([closing_it])
        with pytest.raises(StorageError, match="storage is closed"):
            await storage.get("a")
        other.execute("COMMIT")

    async with storage:
        assert ids(await storage.get_all()) == ["a"]
    await saving


@pytest.mark.asyncio
async def test_close_empties_the_log_while_others_have_the_file_open(tmp_path: Path) -> None:
    """S7.6: what this storage has written is in the file itself, whoever else is at work."""
    path = tmp_path / "queue.db"
    async with SqliteQueueStorage(path) as other:
        async with SqliteQueueStorage(path) as storage:
            await storage.save(task("a"))
            assert path.with_name("queue.db-wal").stat().st_size > 0

        assert path.with_name("queue.db-wal").stat().st_size == 0
        assert ids(await other.get_all()) == ["a"]
