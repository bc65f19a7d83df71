"""More than one process: the consumer's claim, forks, and files left behind by a crash."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from durable_queue import QueueInUseError
from durable_queue_sqlite import SqliteQueueStorage
from tests.sqlite.support import execute, ids, run_python, start_python, task

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

_HOLD = """
    import asyncio, sys
    from durable_queue_sqlite import SqliteQueueStorage
    from tests.sqlite.support import task

    async def main():
        async with SqliteQueueStorage(sys.argv[1]) as storage:
            await storage.acquire_consumer()
            await storage.save(task("held"))
            print("held", flush=True)
            sys.stdin.readline()

    asyncio.run(main())
"""


@contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a process that holds the claim on a file."""
    with start_python(_HOLD, path) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        try:
            yield child
        finally:
            child.kill()


@pytest.mark.asyncio
async def test_the_claim_is_one_per_file(tmp_path: Path) -> None:
    """S7.9: neither this object, nor another, nor another path to the file can claim it a second time."""
    path = tmp_path / "queue.db"
    (tmp_path / "folder").symlink_to(tmp_path)
    (tmp_path / "link.db").symlink_to(path)
    async with SqliteQueueStorage(path) as storage:
        await storage.acquire_consumer()
        for other in (path, tmp_path / "folder" / "queue.db", tmp_path / "link.db", f"{tmp_path}/./queue.db"):
            async with SqliteQueueStorage(other) as second:
                with pytest.raises(QueueInUseError, match="another live queue"):
                    await second.acquire_consumer()
                await second.release_consumer()
        with pytest.raises(QueueInUseError, match="already"):
            await storage.acquire_consumer()

        await storage.release_consumer()
        await storage.release_consumer()
        async with SqliteQueueStorage(path) as second:
            await second.acquire_consumer()
            with pytest.raises(QueueInUseError):
                await storage.acquire_consumer()


@pytest.mark.asyncio
async def test_close_gives_the_claim_back(tmp_path: Path) -> None:
    """S7.9: a closed storage consumes nothing."""
    storage = SqliteQueueStorage(tmp_path / "queue.db")
    for _ in range(2):
        async with storage:
            await storage.acquire_consumer()


@pytest.mark.asyncio
async def test_a_database_in_memory_is_claimed_by_object() -> None:
    """S7.9: two databases in memory have nothing to do with each other."""
    async with SqliteQueueStorage(":memory:") as storage, SqliteQueueStorage(":memory:") as other:
        await storage.acquire_consumer()
        await other.acquire_consumer()
        with pytest.raises(QueueInUseError):
            await storage.acquire_consumer()


@pytest.mark.asyncio
async def test_the_claim_of_another_process_ends_with_it(tmp_path: Path) -> None:
    """S7.9: while the process lives the claim is refused, reads and writes are not; killed, it holds nothing."""
    path = tmp_path / "queue.db"
    with holder(path) as child:
        async with SqliteQueueStorage(path) as storage:
            with pytest.raises(QueueInUseError, match="in this or another process"):
                await storage.acquire_consumer()
            await storage.save(task("mine"))
            assert ids(await storage.get_all()) == ["held", "mine"]

            child.kill()
            child.wait(10)
            await storage.acquire_consumer()

            assert ids(await storage.get_all()) == ["held", "mine"]
    assert execute(path, "PRAGMA integrity_check") == [("ok",)]


@needs_fork
def test_a_forked_child_does_not_keep_the_claim(tmp_path: Path) -> None:
    """S7.9: when the process that holds the claim dies, a child that it forked before does not hold it on."""
    path = tmp_path / "queue.db"
    said = run_python(_FORKED_CLAIM, path)

    assert said == "claimed\n"


_FORKED_CLAIM = """
    import asyncio, os, sys
    from durable_queue_sqlite import SqliteQueueStorage

    async def consume(path):
        storage = await SqliteQueueStorage.open(path)
        await storage.acquire_consumer()
        return storage

    grandchild_waits, keep = os.pipe()
    holder_waits, is_running = os.pipe()
    holder = os.fork()
    if not holder:
        storage = asyncio.run(consume(sys.argv[1]))
        if not os.fork():
            os.close(keep)
            os.write(is_running, b".")
            # Lives until the test's process closes its end.
            os.read(grandchild_waits, 1)
            os._exit(0)
        os.read(holder_waits, 1)
        os.kill(os.getpid(), 9)
    os.close(grandchild_waits)
    os.waitpid(holder, 0)
    asyncio.run(consume(sys.argv[1]))
    print("claimed", flush=True)
    os.close(keep)
    os._exit(0)
"""


@needs_fork
@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ("exit", "exit done"),
        ("save", "save refused True"),
        ("get", "get refused True"),
        ("enter", "enter refused True"),
        ("claim", "claim refused True"),
        ("open", "open refused True"),
        ("close", "close done"),
    ],
)
def test_in_a_forked_child_every_call_is_refused(tmp_path: Path, call: str, answer: str) -> None:
    """S7.9: a child is told at once that the storage is its parent's, ends by itself, and harms nothing."""
    path = tmp_path / "queue.db"

    said = run_python(_FORKED_CALL, path, call)

    assert said.split("\n") == [answer] * 8 + ["40 stored, claimed", ""]
    assert execute(path, "PRAGMA integrity_check") == [("ok",)]
    assert execute(path, "SELECT count(*) FROM tasks") == [(40,)]


@needs_fork
@pytest.mark.parametrize("under_way", ["saves", "saves and close"])
def test_a_forked_child_may_leave_the_event_loop(tmp_path: Path, under_way: str) -> None:
    """S7.9: a child that unwinds through its parent's calls waits for no thread and closes nothing of its parent's."""
    said = run_python(
        """
        import asyncio, os, sys
        from durable_queue_sqlite import SqliteQueueStorage
        from tests.sqlite.support import task

        async def main():
            global link, storage
            storage = await SqliteQueueStorage.open(sys.argv[1])
            link = storage._link
            calls.extend(asyncio.create_task(storage.save(task(f"t{number}"))) for number in range(20))
            await asyncio.sleep(0)
            if sys.argv[2] == "saves and close":
                calls.append(asyncio.create_task(storage.close()))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            child = os.fork()
            if not child:
                raise SystemExit
            # The parent's event loop shares its descriptors with the child, so it does not go on either.
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
            os._exit(0)

        calls = []
        try:
            asyncio.run(main())
        finally:
            print("open" if link._session._database else "closed")
        """,
        tmp_path / "queue.db",
        under_way,
    )

    assert said == "open\n0\n"


_FORKED_CALL = """
    import asyncio, os, sys, threading, time
    from durable_queue import QueueInUseError, StorageError
    from durable_queue_sqlite import SqliteQueueStorage
    from tests.sqlite.support import task

    path, name = sys.argv[1:]
    calls = {
        "exit": lambda: asyncio.sleep(0),
        "save": lambda: storage.save(task("child")),
        "get": lambda: storage.get("0.0"),
        "close": lambda: storage.close(),
        "enter": lambda: storage.__aenter__(),
        "claim": lambda: storage.acquire_consumer(),
        "open": lambda: SqliteQueueStorage.open(path).__aenter__(),
    }

    async def call():
        began = time.monotonic()
        try:
            await calls[name]()
            print(name, "done")
        except StorageError as error:
            print(name, "refused", "forked" in str(error))
        assert time.monotonic() - began < 1

    def in_child():
        asyncio.run(call())
        sys.stdout.flush()

    def in_loop(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(10)

    async def consume():
        global storage
        storage = await SqliteQueueStorage.open(path)
        await storage.acquire_consumer()

    # The event loop has a thread of its own, as in a server: a child that went on with the parent's loop would break
    # it, storage or not.
    loop = asyncio.new_event_loop()
    server = threading.Thread(target=loop.run_forever, daemon=True)
    server.start()
    in_loop(consume())
    for number in range(8):
        writing = [
            asyncio.run_coroutine_threadsafe(storage.save(task(f"{number}.{n}")), loop) for n in range(5)
        ]
        child = os.fork()
        if not child:
            asyncio.run(call())
            sys.exit()
        for saved in writing:
            saved.result(10)
        assert os.waitpid(child, 0)[1] == 0

    async def finish():
        async with SqliteQueueStorage(path) as other:
            try:
                await other.acquire_consumer()
            except QueueInUseError:
                print(len(await storage.get_all()), "stored, claimed")
        await storage.close()

    in_loop(finish())
    loop.call_soon_threadsafe(loop.stop)
    server.join()
    loop.close()
"""


@pytest.mark.asyncio
async def test_what_a_killed_process_acknowledged_is_there(tmp_path: Path) -> None:
    """S2.1: after a kill the log is still beside the file, and the next open finds all of it."""
    path = tmp_path / "queue.db"
    with holder(path):
        pass

    assert path.with_name("queue.db-wal").stat().st_size > 0
    async with SqliteQueueStorage(path) as storage:
        assert ids(await storage.get_all()) == ["held"]
