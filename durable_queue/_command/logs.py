"""The log files: one for each job, appended to by every attempt."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from datetime import datetime
from pathlib import Path
from typing import IO

_PLAIN = re.compile(r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?")
_LONGEST = 80


def log_name(name: str) -> str:
    """Return the name of a job's log file: safe on every file system, and never the same for two jobs.

    A plain name (small letters, digits, ``-``, ``_`` and inner dots) is kept. Of any other, what is plain is kept
    and a digest of the whole is added after ``~``, which no plain name holds; so names that differ in case only do
    not meet where the file system ignores case.
    """
    if _PLAIN.fullmatch(name) and not _RESERVED.fullmatch(name) and len(name) <= _LONGEST:
        return f"{name}.log"
    kept = re.sub(r"[^a-z0-9_-]+", "-", name.lower())[:_LONGEST].strip("-")
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    return f"{kept}~{digest}.log"


def open_log(path: Path) -> IO[bytes]:
    """Open a log to append to; what a process writes to it goes to its end, whoever else writes.

    Raises:
        OSError: it cannot be opened.
    """

    def opener(name: str, flags: int) -> int:
        # A pipe in the place of the log would hold the whole command until somebody reads from it.
        return os.open(name, flags | getattr(os, "O_NONBLOCK", 0), 0o666)

    return open(path, "ab", buffering=0, opener=opener)


def write_mark(log: IO[bytes], text: str) -> None:
    """Write a line of the command's own, on a line of its own."""
    before = "\n" if _inside_line(log) else ""
    log.write(f"{before}--- {text}\n".encode("utf-8", "backslashreplace"))


def describe_begin(at: datetime, attempt: str, command: tuple[str, ...] | str) -> str:
    """Say when, in local time, and how an attempt begins, for the log."""
    shown = command if isinstance(command, str) else shlex.join(command)
    on_one_line = shown.replace("\n", "\\n").replace("\r", "\\r")
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S} {attempt}: {on_one_line}"


def _inside_line(log: IO[bytes]) -> bool:
    end = os.fstat(log.fileno()).st_size
    if not end:
        return False
    with Path(log.name).open("rb") as reader:
        reader.seek(end - 1)
        return reader.read(1) != b"\n"
