"""``python -m durable_queue run``: what it refuses, and that nothing is enqueued then."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest

import durable_queue
from durable_queue_sqlite import SqliteQueueStorage

ONE_JOB = """
[[job]]
name = "one"
run = "echo one >> done"
"""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[[job]]\nname = ", "jobs.toml:2: not valid TOML: Invalid value (column 8)"),
        (
            '[[job]]\nname = "b"\nrun = "true"\nneed = []',
            'jobs.toml:4: job "b": unknown key "need"; did you mean "needs"?',
        ),
        (
            '[[job]]\nname = "b"\nrun = "true"\nneeds = ["c"]',
            'jobs.toml:4: job "b": needs "c", which is no job of this file',
        ),
        (
            '[[job]]\nname = "b"\nrun = "true"\n[[job]]\nname = "b"\nrun = "true"',
            'jobs.toml:5: job "b": a job of this name stands on line 1 already',
        ),
        (
            '[[job]]\nname = "b"\nrun = "true"\nneeds = ["b"]',
            'jobs.toml:4: job "b": needs itself',
        ),
    ],
)
def test_a_bad_file_enqueues_nothing(bench, content: str, message: str) -> None:
    """A file at fault answers 2 with the line and the name; no job starts and no database is made."""
    bench.write(f'{content}\n[[job]]\nname = "a"\nrun = "echo a >> done"\n')

    ended = bench.run()

    assert (ended.status, ended.lines, ended.errors) == (2, [], f"{message}\n")
    assert [path.name for path in bench.folder.iterdir()] == ["jobs.toml"]


def test_a_ring_enqueues_nothing(bench) -> None:
    """A ring answers 2 with the names on it."""
    bench.write(
        '[[job]]\nname = "a"\nrun = "true"\nneeds = ["b"]\n[[job]]\nname = "b"\nrun = "true"\nneeds = ["a"]\n'
    )

    ended = bench.run()

    assert (ended.status, ended.lines) == (2, [])
    assert '"a" needs "b"' in ended.errors
    assert not (bench.folder / "jobs.queue.db").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["walk"],
        ["run"],
        ["run", "jobs.toml", "--jobs", "0"],
        ["run", "jobs.toml", "--jobs", "many"],
        ["run", "jobs.toml", "--colour"],
        ["run", "jobs.toml", "more.toml"],
    ],
)
def test_wrong_usage(bench, arguments: list[str]) -> None:
    """A wrong usage answers 2 with the usage."""
    bench.write(ONE_JOB)

    ended = bench.start(*arguments).end()

    assert (ended.status, ended.lines) == (2, [])
    assert ended.errors.startswith("usage: durable_queue")
    assert bench.read("done") == []


def test_the_database_is_kept_where_it_is_asked_for(bench) -> None:
    """`--db` names the database, its folder is made, and the logs lie beside it."""
    bench.write('[[job]]\nname = "a"\nrun = "exit 1"\n')

    ended = bench.run("--db", "state/run.db")

    assert ended.lines[-1] == "failed      a: exit status 1; log: state/run.db-logs/a.log"
    assert (bench.folder / "state" / "run.db-logs" / "a.log").exists()
    assert not (bench.folder / "jobs.queue.db").exists()


def test_a_file_elsewhere_brings_its_folder(bench) -> None:
    """The database, the logs and a job's folder go with the file, wherever the command is called."""
    (bench.folder / "sub").mkdir()
    bench.write('[[job]]\nname = "a"\nrun = "pwd > where"\n', "sub/jobs.toml")

    assert bench.run(file="sub/jobs.toml").status == 0
    assert bench.read("sub/where") == [str(bench.folder / "sub")]
    assert (bench.folder / "sub" / "jobs.queue.db").exists()


def test_a_database_that_cannot_be_used(bench) -> None:
    """What is no database of this kind is refused and left as it was."""
    bench.write(ONE_JOB)
    (bench.folder / "text.db").write_text("this is no database, but a text of some length\n" * 100)
    with sqlite3.connect(bench.folder / "other.db") as other:
        other.execute("create table songs (title text)")
    other.close()
    (bench.folder / "folder.db").mkdir()

    for name in ("text.db", "other.db", "folder.db"):
        before = (bench.folder / name).read_bytes() if name != "folder.db" else b""
        ended = bench.run("--db", name)

        assert (ended.status, ended.lines) == (2, []), name
        assert ended.errors.startswith(f"durable_queue run: error: {name}: cannot be used: "), name
        assert ended.errors.count("\n") == 1, name
        assert name == "folder.db" or (bench.folder / name).read_bytes() == before
    assert bench.run("--db", ":memory:").status == 2
    assert bench.read("done") == []


@pytest.mark.asyncio
async def test_a_database_of_another_program_is_refused(bench) -> None:
    """Unfinished tasks of another program would be run or failed by the command: it touches nothing."""
    bench.write(ONE_JOB)
    at = durable_queue.SystemQueueClock().now()
    task = durable_queue.StoredTask(
        id="mail-1", type="send-mail", created_at=at, status=durable_queue.TaskStatus.RUNNING, attempts=1
    )
    async with SqliteQueueStorage(bench.folder / "app.db") as storage:
        await storage.save(task)

    ended = await asyncio.to_thread(bench.run, "--db", "app.db")

    assert (ended.status, ended.lines) == (2, [])
    assert ended.errors == (
        "durable_queue run: error: app.db: holds unfinished tasks of another program; name another with --db\n"
    )
    async with SqliteQueueStorage(bench.folder / "app.db") as storage:
        assert await storage.get_all() == [task]
