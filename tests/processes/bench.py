"""Child processes over one real file."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import attrs

import durable_queue

LONGEST = 20
"""Seconds after which a child is killed, so that one that hangs fails its test."""

CHILD = Path(__file__).with_name("child.py")


@attrs.frozen
class Ended:
    """How a child ended.

    Attributes:
        status: its exit status; negative when a signal ended it.
        errors: what it printed to standard error.
    """

    status: int
    errors: str


class Child:
    """A child process that runs a scenario of `child.py`."""

    def __init__(self, scenario: str, file: Path, marks: Path, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD), scenario, str(file), str(marks)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(Path(durable_queue.__file__).parents[1])},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._watchdog = threading.Timer(LONGEST, self.process.kill)
        self._watchdog.start()

    def line(self) -> str:
        """Return the next line that it prints; empty when it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip()

    def end(self) -> Ended:
        """Wait for its end."""
        _, errors = self.process.communicate()
        self._watchdog.cancel()
        return Ended(self.process.returncode, errors)

    def close(self) -> None:
        """End it, if it still runs."""
        self._watchdog.cancel()
        self.process.kill()
        self.process.communicate()


class Bench:
    """A folder with a queue's file, the marks of its handlers, and children at work on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "queue.db"
        self._marks = folder / "marks.txt"
        self._children: list[Child] = []

    def start(self, scenario: str, *, file: str | Path | None = None) -> Child:
        """Start a child, by default on the bench's file."""
        child = Child(scenario, Path(file or self.file), self._marks, self.folder)
        self._children.append(child)
        return child

    def starts(self) -> list[str]:
        """Return which job started, for each start of a handler in any process."""
        return self._marks.read_text().split() if self._marks.exists() else []

    def close(self) -> None:
        """End all children."""
        for child in self._children:
            child.close()
