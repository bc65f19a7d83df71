"""The jobs file: what is accepted, and how every fault is told."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from durable_queue._command.jobfile import Job, JobFile, JobFileError, read_job_file
from durable_queue.tasks import DependencyFailurePolicy

Write = Callable[[str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a jobs file and return its path."""

    def write_file(content: str | bytes) -> Path:
        path = tmp_path / "jobs.toml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


def problems(path: Path) -> list[str]:
    """Read a file that is at fault and return what is told, without the file's folder."""
    with pytest.raises(JobFileError) as caught:
        read_job_file(path)
    return [problem.replace(str(path), path.name) for problem in caught.value.problems]


def value_problem(write: Write, line: str) -> str:
    """Return the one fault of a job that is good but for a line."""
    (problem,) = problems(write(f'[[job]]\nname = "a"\nrun = ["true"]\n{line}\n'))
    return problem


def test_reads_every_key(write: Write, tmp_path: Path) -> None:
    """Every key of a job is read; what is left out has its documented default."""
    read = read_job_file(
        write(
            """
            [[job]]
            name = "first"
            run = "echo one | cat"
            [[job]]
            name = "second"
            run = ["echo", "two"]
            needs = ["first", "first"]
            if_needed_fails = "run"
            priority = -3
            retries = 2
            retry_delay = "250ms"
            timeout = 1.5
            cwd = "sub"
            [job.env]
            COLOUR = "blue"
            """
        )
    )

    assert list(read.jobs.values()) == [
        Job(
            name="first",
            run="echo one | cat",
            needs=(),
            if_needed_fails=DependencyFailurePolicy.CANCEL,
            priority=0,
            retries=0,
            retry_delay=timedelta(seconds=1),
            timeout=None,
            cwd=tmp_path,
            env={},
        ),
        Job(
            name="second",
            run=("echo", "two"),
            needs=("first",),
            if_needed_fails=DependencyFailurePolicy.RUN,
            priority=-3,
            retries=2,
            retry_delay=timedelta(milliseconds=250),
            timeout=timedelta(seconds=1.5),
            cwd=tmp_path / "sub",
            env={"COLOUR": "blue"},
        ),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2", timedelta(seconds=2)),
        ("0.5", timedelta(milliseconds=500)),
        ('"1.5s"', timedelta(seconds=1.5)),
        ('"20 ms"', timedelta(milliseconds=20)),
        ('"2m"', timedelta(minutes=2)),
        ('"3h"', timedelta(hours=3)),
        ('"365d"', timedelta(days=365)),
    ],
)
def test_durations(write: Write, text: str, expected: timedelta) -> None:
    """A number is seconds; a string is a number with one unit."""
    read = read_job_file(write(f'[[job]]\nname = "a"\nrun = ["true"]\ntimeout = {text}\n'))

    assert read.jobs["a"].timeout == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('need = ["b"]', 'unknown key "need"; did you mean "needs"?'),
        ("colour = 1", 'unknown key "colour"'),
        ('needs = "b"', "needs must be a list of strings"),
        ("needs = [1]", "needs must be a list of strings"),
        ('needs = ["b"]', 'needs "b", which is no job of this file'),
        ('needs = ["A"]', 'needs "A", which is no job of this file'),
        ('needs = ["a"]', "needs itself"),
        ('if_needed_fails = "skip"', 'if_needed_fails must be "cancel", "fail" or "run"'),
        ("if_needed_fails = true", 'if_needed_fails must be "cancel", "fail" or "run"'),
        ("priority = true", "priority must be a whole number, not true or false"),
        ("priority = 1.0", "priority must be a whole number, not a number"),
        ("priority = 2147483648", "priority must be from -2147483648 to 2147483647"),
        ("retries = -1", "retries must be from 0 to 1000000"),
        ("retries = 1000001", "retries must be from 0 to 1000000"),
        ('retries = "2"', "retries must be a whole number, not a string"),
        ("retry_delay = -0.1", "retry_delay must not be negative"),
        ("retry_delay = nan", "retry_delay must be finite"),
        ("retry_delay = inf", "retry_delay must be finite"),
        ("retry_delay = 31536001", "retry_delay must be at most 365 days"),
        (f"retry_delay = 1{'0' * 400}", "retry_delay must be at most 365 days"),
        (f'retry_delay = "1{"0" * 400}d"', "retry_delay must be at most 365 days"),
        ('retry_delay = "366d"', "retry_delay must be at most 365 days"),
        (
            'retry_delay = "1h30m"',
            "retry_delay must be a number with one unit of ms, s, m, h, d, such as '1.5s' or '2m'",
        ),
        (
            'retry_delay = "5"',
            "retry_delay must be a number with one unit of ms, s, m, h, d, such as '1.5s' or '2m'",
        ),
        ("timeout = 0", "timeout must be above zero"),
        (
            "timeout = true",
            "timeout must be a number of seconds or a string such as '1.5s', not true or false",
        ),
        ("timeout = []", "timeout must be a number of seconds or a string such as '1.5s', not a list"),
        ("cwd = 3", "cwd must be a string, not a number"),
        ('cwd = " "', "cwd must not be blank"),
        ('cwd = "a\\u0000b"', "cwd must not contain a NUL character"),
        ("env = {A = 1}", "env must be a table of strings"),
        ('env = ["A"]', "env must be a table of strings"),
        ('env = {"" = "1"}', "env holds a name that is empty or has '=', or a NUL character"),
        ('env = {"A=B" = "1"}', "env holds a name that is empty or has '=', or a NUL character"),
        ('env = {A = "\\u0000"}', "env holds a name that is empty or has '=', or a NUL character"),
        (
            'env = {DURABLE_QUEUE_TASK = "x"}',
            "env must not set DURABLE_QUEUE_TASK: such names are set by the command itself",
        ),
    ],
)
def test_faulty_values(write: Write, line: str, expected: str) -> None:
    """A fault is told with the file, the line, the job and what would be right."""
    assert value_problem(write, line) == f'jobs.toml:4: job "a": {expected}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "name must be a string, not a number"),
        ('""', "name must not be blank"),
        ('"a\\nb"', "name must be printable, on one line and without blanks at its ends"),
        ('" a"', "name must be printable, on one line and without blanks at its ends"),
        ('"\\u001b[31m"', "name must be printable, on one line and without blanks at its ends"),
        (f'"{"n" * 201}"', "name must have at most 200 characters"),
    ],
)
def test_faulty_names(write: Write, text: str, expected: str) -> None:
    """A name is one printable line, because it stands in the lines that the command prints."""
    assert problems(write(f'[[job]]\nrun = ["true"]\nname = {text or 7}\n')) == [
        f"jobs.toml:3: job 1: {expected}"
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", "run must be a list of arguments or a string for the shell, not a number"),
        ('"  "', "run must not be blank"),
        ("[]", "run must begin with the program to run"),
        ('["", "x"]', "run must begin with the program to run"),
        ('["x", 1]', "run must be a list of strings"),
        ('["x", "\\u0000"]', "run must not contain a NUL character"),
    ],
)
def test_faulty_programs(write: Write, text: str, expected: str) -> None:
    """What cannot be a program is refused before anything runs."""
    assert problems(write(f'[[job]]\nname = "a"\nrun = {text}\n')) == [f'jobs.toml:3: job "a": {expected}']


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", ["jobs.toml: holds no job; a job begins with [[job]]"]),
        ("job = []", ["jobs.toml: holds no job; a job begins with [[job]]"]),
        ("job = 3", ["jobs.toml: a job begins with [[job]], in two pairs of brackets"]),
        ('[job]\nname = "a"', ["jobs.toml: a job begins with [[job]], in two pairs of brackets"]),
        (
            '[[jobs]]\nname = "a"',
            ['jobs.toml: unknown key "jobs" outside of a [[job]] table; did you mean "job"?'],
        ),
        ("\n\n[[job]]\n", ["jobs.toml:3: job 1: name is missing", "jobs.toml:3: job 1: run is missing"]),
        ("[[job]]\nname = = 1", ["jobs.toml:2: not valid TOML: Invalid value (column 8)"]),
        ('[[job]]\nname = "a', ["jobs.toml: not valid TOML: Unterminated string (at end of document)"]),
        (b'[[job]]\nname = "\xff"', ["jobs.toml:2: is not UTF-8 text"]),
        ("x = " + "[" * 100_000, ["jobs.toml: nested too deeply"]),
    ],
)
def test_faulty_files(write: Write, content: str | bytes, expected: list[str]) -> None:
    """What is no list of jobs is refused, with the line where there is one."""
    assert problems(write(content)) == expected


def test_every_fault_is_told_in_the_order_of_the_file(write: Write) -> None:
    """All faults of a file are told at once, by line, each with its own key's line."""
    content = """\
[[job]]
retries = -1
name = "a"
run = '''
[[job]]
retries = -1
'''
[[ "job" ]]
name = "b"
[job.env]
X = 1
"""

    assert problems(write(content)) == [
        'jobs.toml:2: job "a": retries must be from 0 to 1000000',
        'jobs.toml:8: job "b": run is missing',
        'jobs.toml:10: job "b": env must be a table of strings',
    ]


def test_faults_of_inline_tables_have_no_line(write: Write) -> None:
    """Jobs that are written inline are read, and their faults told by name."""
    assert problems(write('job = [{name = "a", run = ["x"], priority = "b"}]')) == [
        'jobs.toml: job "a": priority must be a whole number, not a string'
    ]


def test_a_name_is_used_once(write: Write) -> None:
    """The second job of a name is refused, with the line of the first."""
    content = '[[job]]\nname = "a"\nrun = ["x"]\n[[job]]\nname = "b"\nrun = ["x"]\n[[job]]\nrun = ["x"]\nname = "a"\n'

    assert problems(write(content)) == ['jobs.toml:9: job "a": a job of this name stands on line 1 already']


def test_a_ring_is_refused(write: Write) -> None:
    """Jobs that need each other in a ring are refused, and the ring is told."""
    content = "".join(
        f'[[job]]\nname = "{name}"\nrun = ["x"]\nneeds = ["{need}"]\n'
        for name, need in [("a", "b"), ("b", "c"), ("c", "b")]
    )

    (problem,) = problems(write(content))

    assert problem in (
        'jobs.toml:8: job "b" needs "c" needs "b": a ring can never start',
        'jobs.toml:12: job "c" needs "b" needs "c": a ring can never start',
    )


def test_a_long_chain_is_no_ring(write: Write) -> None:
    """A chain of any length is accepted, in any order of the file."""
    names = [f"job-{number}" for number in range(3000)]
    content = "".join(
        f'[[job]]\nname = "{name}"\nrun = ["x"]\nneeds = ["{need}"]\n'
        for name, need in itertools.pairwise(names)
    )

    read = read_job_file(write(f'{content}[[job]]\nname = "{names[-1]}"\nrun = ["x"]\n'))

    assert list(read.jobs) == names


def test_a_byte_order_mark_is_passed_over(write: Write) -> None:
    """A file that an editor has begun with a byte order mark is read like any other."""
    read = read_job_file(write(b'\xef\xbb\xbf[[job]]\nname = "a"\nrun = ["x"]\n'))

    assert list(read.jobs) == ["a"]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """A file that is not there, or is a folder, is a fault like others."""
    assert problems(tmp_path / "none.toml") == ["none.toml: cannot be read: No such file or directory"]
    assert problems(tmp_path) == [f"{tmp_path.name}: cannot be read: Is a directory"]


def identity(read: JobFile) -> tuple[str, str]:
    """Return what a run is known by."""
    return read.path_key, read.content_key


def test_a_run_is_known_by_path_and_content(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S13.1: the identity follows the file's place, however it is spelled, and every byte of its content."""
    content = '[[job]]\nname = "a"\nrun = ["x"]\n'
    path = write(content)
    (tmp_path / "link.toml").symlink_to(path)
    (tmp_path / "copy.toml").write_text(content)
    monkeypatch.chdir(tmp_path)
    first = identity(read_job_file(path))

    assert identity(read_job_file(Path("jobs.toml"))) == first
    assert identity(read_job_file(tmp_path / "link.toml")) == first
    copied = identity(read_job_file(tmp_path / "copy.toml"))
    assert copied[0] != first[0]
    assert copied[1] == first[1]
    edited = identity(read_job_file(write(f"{content}# one more line\n")))
    assert edited[0] == first[0]
    assert edited[1] != first[1]
