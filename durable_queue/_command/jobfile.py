"""The jobs file: TOML in, checked `Job` values out, or every fault with its line."""

from __future__ import annotations

import difflib
import graphlib
import hashlib
import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs

from durable_queue._command.toml_lines import TableLines
from durable_queue.clock import LONGEST_WAIT
from durable_queue.tasks import DependencyFailurePolicy

ENVIRONMENT_PREFIX = "DURABLE_QUEUE_"
"""What the names of the variables begin with that the command itself sets for every job."""

MOST_RETRIES = 1_000_000
NAME_LENGTH = 200

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")


class JobFileError(Exception):
    """The file cannot be used.

    Attributes:
        problems: one text for each fault, with the file's name and, where it is known, the line.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@attrs.frozen(kw_only=True)
class Job:
    """One job of the file, checked.

    Attributes:
        name: unique in the file, printable, on one line.
        run: the program and its arguments, or a text for the shell.
        needs: the names of the jobs that have to end first, each once.
        if_needed_fails: what happens when one of them does not complete.
        priority: higher starts first.
        retries: attempts after the first.
        retry_delay: the wait before each of them.
        timeout: how long one attempt may take, or None.
        cwd: the folder that it runs in.
        env: variables on top of the inherited ones.
    """

    name: str
    run: tuple[str, ...] | str
    needs: tuple[str, ...] = ()
    if_needed_fails: DependencyFailurePolicy = DependencyFailurePolicy.CANCEL
    priority: int = 0
    retries: int = 0
    retry_delay: timedelta = timedelta(seconds=1)
    timeout: timedelta | None = None
    cwd: Path
    env: Mapping[str, str] = attrs.field(factory=dict, converter=MappingProxyType, repr=False)


@attrs.frozen
class JobFile:
    """A jobs file that was read and found good.

    Attributes:
        path: where it is, as the user gave it.
        jobs: its jobs by name, in their order.
        path_key: stands for the file's place, however its path is spelled.
        content_key: stands for its content, byte for byte.
    """

    path: Path
    jobs: Mapping[str, Job]
    path_key: str
    content_key: str


def read_job_file(path: Path) -> JobFile:
    """Read and check a jobs file.

    Raises:
        JobFileError: it cannot be read or holds a fault; every fault is told, not only the first.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise JobFileError([f"{path}: cannot be read: {error.strerror or error}"]) from None
    text = _decoded(path, content)
    tables = _tables(path, text)
    folder = path.absolute().parent
    reader = _JobsReader(TableLines(text, "job", len(tables)), folder)
    jobs = reader.read(tables)
    if reader.problems:
        faults = sorted(reader.problems, key=lambda fault: fault[0] or 0)
        raise JobFileError([_located(path, line, problem) for line, problem in faults])
    return JobFile(
        path=path,
        jobs=MappingProxyType(jobs),
        path_key=_digest(os.path.normcase(os.path.realpath(path)).encode("utf-8", "surrogateescape")),
        content_key=_digest(content),
    )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def _located(path: Path, line: int | None, problem: str) -> str:
    return f"{path}: {problem}" if line is None else f"{path}:{line}: {problem}"


def _decoded(path: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise JobFileError([_located(path, line, "is not UTF-8 text")]) from None


def _tables(path: Path, text: str) -> list[dict[str, Any]]:
    try:
        data = tomllib.loads(text)
    except ValueError as error:
        # Not only TOMLDecodeError: a number of thousands of digits is refused by `int`.
        message = str(error)
        found = re.search(r" \(at line (\d+), column (\d+)\)$", message)
        if found:
            message = f"{message[: found.start()]} (column {found[2]})"
        line = int(found[1]) if found else None
        raise JobFileError([_located(path, line, f"not valid TOML: {message}")]) from None
    except RecursionError:
        raise JobFileError([f"{path}: nested too deeply"]) from None
    tables = data.pop("job", [])
    problems = [
        f"{path}: unknown key {_quoted(key)} outside of a [[job]] table{_suggestion(key, ['job'])}"
        for key in data
    ]
    if not problems:
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            problems.append(f"{path}: a job begins with [[job]], in two pairs of brackets")
        elif not tables:
            problems.append(f"{path}: holds no job; a job begins with [[job]]")
    if problems:
        raise JobFileError(problems)
    return list(tables)


class _BadValueError(Exception):
    """A value is not what its key takes; the text goes on from the key's name."""


class _JobsReader:
    """Checks the tables one by one, then what they say about each other; collects every fault."""

    def __init__(self, lines: TableLines, folder: Path) -> None:
        self.problems: list[tuple[int | None, str]] = []
        self._lines = lines
        self._folder = folder

    def read(self, tables: list[dict[str, Any]]) -> dict[str, Job]:
        jobs: dict[str, Job] = {}
        positions: dict[str, int] = {}
        for position, table in enumerate(tables):
            job = self._job(position, table)
            if job is None:
                continue
            if job.name in jobs:
                first = self._lines.table(positions[job.name])
                where = "above" if first is None else f"on line {first}"
                self._report(position, "name", f"{_label(job)}: a job of this name stands {where} already")
            else:
                jobs[job.name] = job
                positions[job.name] = position
        # A table that is at fault is no job, so what others say about it cannot be judged.
        if not self.problems:
            self._check_needs(jobs, positions)
        if not self.problems:
            self._check_rings(jobs, positions)
        return jobs

    def _report(self, position: int, key: str | None, problem: str) -> None:
        line = self._lines.table(position) if key is None else self._lines.key(position, key)
        self.problems.append((line, problem))

    def _job(self, position: int, table: dict[str, Any]) -> Job | None:
        before = len(self.problems)
        label = f"job {position + 1}"
        fields: dict[str, Any] = {}
        # The name goes first: the other messages use it.
        for key in sorted(table, key=lambda key: key != "name"):
            read = _KEYS.get(key)
            if read is None:
                self._report(position, key, f"{label}: unknown key {_quoted(key)}{_suggestion(key, _KEYS)}")
                continue
            try:
                fields[key] = read(table[key])
            except _BadValueError as error:
                self._report(position, key, f"{label}: {key} {error}")
            else:
                label = f"job {_quoted(fields['name'])}" if key == "name" else label
        for key in ("name", "run"):
            if key not in table:
                self._report(position, None, f"{label}: {key} is missing")
        if len(self.problems) > before:
            return None
        fields["cwd"] = self._folder / fields.get("cwd", "")
        return Job(**fields)

    def _check_needs(self, jobs: dict[str, Job], positions: dict[str, int]) -> None:
        for job in jobs.values():
            for need in job.needs:
                if need == job.name:
                    self._report(positions[job.name], "needs", f"{_label(job)}: needs itself")
                elif need not in jobs:
                    hint = _suggestion(need, jobs)
                    problem = f"{_label(job)}: needs {_quoted(need)}, which is no job of this file{hint}"
                    self._report(positions[job.name], "needs", problem)

    def _check_rings(self, jobs: dict[str, Job], positions: dict[str, int]) -> None:
        try:
            graphlib.TopologicalSorter({job.name: job.needs for job in jobs.values()}).prepare()
        except graphlib.CycleError as error:
            # graphlib tells the ring from the needed to the needing job.
            ring = [_quoted(name) for name in reversed(error.args[1])]
            first = error.args[1][-1]
            self._report(positions[first], "needs", f"job {' needs '.join(ring)}: a ring can never start")


def _label(job: Job) -> str:
    return f"job {_quoted(job.name)}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _suggestion(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {_quoted(near[0])}?" if near else ""


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _BadValueError(f"must be a string, not {_kind(value)}")
    if not value.strip():
        raise _BadValueError("must not be blank")
    if "\0" in value:
        raise _BadValueError("must not contain a NUL character")
    return value


def _name(value: object) -> str:
    name = _text(value)
    if not name.isprintable() or name != name.strip():
        raise _BadValueError("must be printable, on one line and without blanks at its ends")
    if len(name) > NAME_LENGTH:
        raise _BadValueError(f"must have at most {NAME_LENGTH} characters")
    return name


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _BadValueError("must be a list of strings")
    if any("\0" in item for item in value):
        raise _BadValueError("must not contain a NUL character")
    return tuple(value)


def _run(value: object) -> tuple[str, ...] | str:
    if isinstance(value, str):
        return _text(value)
    if not isinstance(value, list):
        raise _BadValueError(f"must be a list of arguments or a string for the shell, not {_kind(value)}")
    arguments = _texts(value)
    if not arguments or not arguments[0].strip():
        raise _BadValueError("must begin with the program to run")
    return arguments


def _needs(value: object) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_texts(value)))


def _policy(value: object) -> DependencyFailurePolicy:
    for policy in DependencyFailurePolicy:
        if value == policy.value:
            return policy
    raise _BadValueError('must be "cancel", "fail" or "run"')


def _integer(lowest: int, highest: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        if type(value) is not int:
            raise _BadValueError(f"must be a whole number, not {_kind(value)}")
        if not lowest <= value <= highest:
            raise _BadValueError(f"must be from {lowest} to {highest}")
        return value

    return read


def _duration(value: object) -> timedelta:
    if isinstance(value, str):
        found = _DURATION.fullmatch(value)
        if found is None:
            raise _BadValueError(
                f"must be a number with one unit of {', '.join(_UNITS)}, such as '1.5s' or '2m'"
            )
        seconds = float(found[1]) * _UNITS[found[2]]
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        if isinstance(value, float) and not math.isfinite(value):
            raise _BadValueError("must be finite")
        seconds = value
    else:
        raise _BadValueError(f"must be a number of seconds or a string such as '1.5s', not {_kind(value)}")
    if seconds < 0:
        raise _BadValueError("must not be negative")
    if seconds > LONGEST_WAIT.total_seconds():
        raise _BadValueError("must be at most 365 days")
    return timedelta(seconds=seconds)


def _timeout(value: object) -> timedelta:
    timeout = _duration(value)
    if not timeout:
        raise _BadValueError("must be above zero")
    return timeout


def _environment(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise _BadValueError("must be a table of strings")
    for name, text in value.items():
        if not name or "=" in name or "\0" in name + text:
            raise _BadValueError("holds a name that is empty or has '=', or a NUL character")
        if name.upper().startswith(ENVIRONMENT_PREFIX):
            raise _BadValueError(f"must not set {name}: such names are set by the command itself")
    return dict(value)


_KEYS: Mapping[str, Callable[[object], Any]] = {
    "name": _name,
    "run": _run,
    "needs": _needs,
    "if_needed_fails": _policy,
    "priority": _integer(-(2**31), 2**31 - 1),
    "retries": _integer(0, MOST_RETRIES),
    "retry_delay": _duration,
    "timeout": _timeout,
    "cwd": _text,
    "env": _environment,
}

_KINDS = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "a table",
}


def _kind(value: object) -> str:
    return _KINDS.get(type(value), "a date or time")
