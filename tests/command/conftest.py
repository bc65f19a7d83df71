"""Real runs of the command: real processes, real files, and lines that a test can wait for."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

import durable_queue

LONGEST = 60
"""Seconds after which a process of a test is killed, so that a fault fails the test instead of hanging it."""


@attrs.frozen
class Ended:
    """How a run of the command ended.

    Attributes:
        status: its exit status; negative when a signal ended it.
        lines: what it printed, with times and durations replaced by ``T`` and ``N``.
        errors: what it printed to standard error.
    """

    status: int
    lines: list[str]
    errors: str


class Running:
    """A run of the command that has not ended yet; its lines are read one by one."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: list[str] = []
        self._watchdog = threading.Timer(LONGEST, process.kill)
        self._watchdog.start()

    def wait_for(self, beginning: str) -> None:
        """Read until a line begins like this, times left out.

        Raises:
            AssertionError: the command has ended without such a line.
        """
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.append(neutral(line))
            if self._lines[-1].startswith(beginning):
                return
        raise AssertionError(f"no line began with {beginning!r}: {self._lines}")

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the command alone, not to its jobs."""
        self.process.send_signal(number)

    def end(self) -> Ended:
        """Wait for the end; what is not read yet is read now."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._lines.extend(neutral(line) for line in self.process.stdout)
        errors = self.process.stderr.read()
        status = self.process.wait()
        self.close()
        return Ended(status, self._lines, errors)

    def close(self) -> None:
        """Kill what still runs and let go of it."""
        self._watchdog.cancel()
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


class Bench:
    """A folder with a jobs file, and the command over it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "PYTHONPATH": str(Path(durable_queue.__file__).parents[1])}
        # The command flushes its lines by itself, and is not compiled anew for every test.
        for name in ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"):
            self.environment.pop(name, None)
        self._started: list[Running] = []
        self._fifos: list[Fifo] = []

    def write(self, jobs: str, name: str = "jobs.toml") -> None:
        """Write a jobs file."""
        (self.folder / name).write_text(jobs)

    def start(self, *arguments: str) -> Running:
        """Start ``python -m durable_queue`` with these arguments."""
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "durable_queue", *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        running = Running(process)
        self._started.append(running)
        return running

    def run(self, *options: str, file: str = "jobs.toml") -> Ended:
        """Run a jobs file, one job at a time unless `options` say otherwise, to the end."""
        return self.start("run", file, "--jobs", "1", *options).end()

    def read(self, name: str) -> list[str]:
        """Return the lines of a file that the jobs have written."""
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    @staticmethod
    def is_alive(pid: int | str) -> bool:
        """Whether a process still runs; one that nobody has collected yet does not."""
        try:
            return Path("/proc", str(pid), "environ").read_bytes() != b""
        except OSError:
            return False

    @staticmethod
    def ends(pid: int) -> bool:
        """Wait for the end of a process that may be dying, and return whether it came."""
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        try:
            return bool(select.select([descriptor], [], [], LONGEST)[0])
        finally:
            os.close(descriptor)

    def fifo(self, name: str) -> Fifo:
        """Make a FIFO for the jobs."""
        fifo = Fifo(self.folder / name)
        self._fifos.append(fifo)
        return fifo

    def close(self) -> None:
        """Kill every run that is left."""
        for running in self._started:
            running.close()
        for fifo in self._fifos:
            fifo.close()


class Fifo:
    """How a job and a test wait for each other: `take` for the job's ``echo > NAME``, `give` for its ``read``."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        # Open at both ends, so that neither opening nor writing waits for the other side.
        self._end = os.open(path, os.O_RDWR)

    def take(self) -> str:
        """Wait for a job to write a line, and return it."""
        line = b""
        while not line.endswith(b"\n"):
            readable, _, _ = select.select([self._end], [], [], LONGEST)
            assert readable, "no job has written"
            line += os.read(self._end, 1)
        return line.decode().strip()

    def give(self) -> None:
        """Let a job go on that waits for it, now or later."""
        os.write(self._end, b"go\n")

    def close(self) -> None:
        """Let go of it."""
        os.close(self._end)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A folder to run jobs files in."""
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def neutral(line: str) -> str:
    """Replace what differs from run to run: the time, and how long something took."""
    line = re.sub(r"^\d\d:\d\d:\d\d ", "T ", line.rstrip("\n"))
    return re.sub(r" in \d+\.\d s", " in N s", line)
