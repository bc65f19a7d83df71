"""Kill a run at random moments, start it again, and check that nothing was lost or done twice.

Usage: python tests/command/kill_sweep.py [--kills 20] [--seed N] [--keep FOLDER]

Each round runs a file of jobs in a fresh folder, kills the command with SIGKILL at a random moment of the time that
such a run takes, looks at what the database says, and runs the same command to its end. It is checked that

* the database is whole after the kill (`PRAGMA integrity_check`) and holds all jobs of the run or none;
* a job that the database says has completed is not started again, and no job starts three times;
* a job that is started again was interrupted: it had begun and not completed;
* no attempt of a job begins while processes of an earlier attempt are alive;
* in the end every job has completed, and the command says so.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from durable_queue import TaskStatus
from durable_queue_sqlite import SqliteQueueStorage

ROWS = 6
COLUMNS = 4

JOB = """
import os, sys, time
from pathlib import Path

name, lasts = sys.argv[1], float(sys.argv[2])
guard = Path("running-" + name)
try:
    earlier = int(guard.read_text())
    os.kill(earlier, 0)
    overlaps = Path("/proc", str(earlier), "environ").read_bytes() != b""
except (OSError, ValueError):
    overlaps = False
guard.write_text(str(os.getpid()))
with open("journal", "a") as journal:
    journal.write(f"{'overlap' if overlaps else 'begin'} {name}\\n")
    journal.flush()
    time.sleep(lasts)
    journal.write(f"end {name}\\n")
guard.unlink()
"""


def write_jobs(folder: Path) -> list[str]:
    """Write a file of jobs in rows; each job needs two of the row before. Return their names."""
    (folder / "job.py").write_text(JOB)
    tables = []
    names = []
    for row in range(ROWS):
        for column in range(COLUMNS):
            name = f"job-{row}-{column}"
            needs = [f"job-{row - 1}-{(column + step) % COLUMNS}" for step in (0, 1)] if row else []
            names.append(name)
            tables.append(
                f'[[job]]\nname = "{name}"\nrun = ["{{python}}", "job.py", "{name}", "{0.01 * (1 + row + column)}"]\n'
                f"needs = {needs}\npriority = {column}\n"
            )
    (folder / "jobs.toml").write_text("".join(tables))
    return names


def start(folder: Path) -> subprocess.Popen[bytes]:
    """Start the command."""
    root = str(Path(__file__).parents[2])
    return subprocess.Popen(
        [sys.executable, "-m", "durable_queue", "run", "jobs.toml", "--jobs", "3"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": root},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def begun(folder: Path) -> Counter[str]:
    """Count how often each job has begun so far, by its own account."""
    with contextlib.suppress(FileNotFoundError):
        lines = (folder / "journal").read_text().splitlines()
        return Counter(line.split()[1] for line in lines if not line.startswith("end"))
    return Counter()


async def stored(folder: Path) -> dict[str, TaskStatus]:
    """Return what the database says of each job."""
    if not (folder / "jobs.queue.db").exists():
        return {}
    async with SqliteQueueStorage(folder / "jobs.queue.db") as storage:
        return {task.payload["name"]: task.status for task in await storage.get_all()}


def check_whole(folder: Path) -> None:
    """Check the database file."""
    if (folder / "jobs.queue.db").exists():
        with contextlib.closing(sqlite3.connect(folder / "jobs.queue.db")) as database:
            assert database.execute("pragma integrity_check").fetchall() == [("ok",)]


def play_round(folder: Path, moment: float) -> str:
    """Run, kill after so many seconds, check, run to the end, check; return what happened in one line."""
    names = write_jobs(folder)
    command = start(folder)
    time.sleep(moment)
    command.send_signal(signal.SIGKILL)
    command.communicate()
    check_whole(folder)
    after_kill = asyncio.run(stored(folder))
    assert after_kill.keys() in (set(), set(names)), "a part of the run was submitted"
    completed = {name for name, status in after_kill.items() if status is TaskStatus.COMPLETED}

    command = start(folder)
    output = command.communicate()[0].decode()
    assert command.returncode == 0, output
    check_whole(folder)
    assert set(asyncio.run(stored(folder)).values()) == {TaskStatus.COMPLETED}, output
    starts = begun(folder)
    journal = (folder / "journal").read_text()
    assert "overlap" not in journal, journal
    assert starts.keys() == set(names), "a job is said to have completed and never began"
    again = {name for name, count in starts.items() if count > 1}
    assert not again & completed, f"ran again although completed: {again & completed}"
    running = {name for name, status in after_kill.items() if status is TaskStatus.RUNNING}
    assert again <= running, f"ran again although not interrupted: {again - running}"
    assert max(starts.values()) <= 2, starts
    return f"{len(completed)} of {len(names)} completed at the kill, {len(again)} ran again"


def main() -> None:
    """Play the rounds."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--keep", type=Path, help="leave the folders of the rounds here")
    options = parser.parse_args()
    seed = random.randrange(2**32) if options.seed is None else options.seed
    moments = random.Random(seed)
    folder = options.keep or Path(tempfile.mkdtemp(prefix="kill-sweep-"))
    print(f"seed {seed}")
    whole = folder / "whole"
    whole.mkdir(parents=True)
    write_jobs(whole)
    began = time.monotonic()
    assert start(whole).wait() == 0
    lasts = time.monotonic() - began
    for number in range(options.kills):
        moment = moments.uniform(0, lasts)
        place = folder / f"kill-{number}"
        place.mkdir()
        print(f"kill {number + 1:3} after {moment:.3f} s: {play_round(place, moment)}", flush=True)
    print(
        f"{options.kills} kills over runs of {lasts:.2f} s: no job lost, none completed twice, database whole"
    )
    if options.keep is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
