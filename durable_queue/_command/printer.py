"""Gets lines to standard output without ever making the queue wait for whoever reads them."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading


class Printer:
    """Prints lines from a thread of its own, each flushed.

    A reader that stops reading stops the thread and not the jobs; one that has gone away (`BrokenPipeError`) loses
    the rest of the lines and nothing else.
    """

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="durable-queue-printer", daemon=True)
        self._thread.start()

    def print(self, line: str) -> None:
        """Print a line, soon."""
        self._lines.put(line)

    def close(self) -> None:
        """Wait until everything is out."""
        self._lines.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                print(line, flush=True)
            except (OSError, ValueError):
                _silence()
                return


def make_encodable() -> None:
    """Let standard output show what its encoding lacks as an escape instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _silence() -> None:
    # What is left in the buffer would fail once more when the interpreter flushes it at its end, and change the status.
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
