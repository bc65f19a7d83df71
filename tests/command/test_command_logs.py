"""The log files: names that are safe and distinct, and marks on lines of their own."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from durable_queue._command.logs import describe_begin, log_name, open_log, write_mark


@pytest.mark.parametrize("name", ["pack", "a-b_c", "step.2", "0", "-"])
def test_plain_names_are_kept(name: str) -> None:
    """A plain name is the log's name."""
    assert log_name(name) == f"{name}.log"


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("../../etc/passwd", "etc-passwd~"),
        ("/", "~"),
        ("..", "~"),
        (".hidden", "hidden~"),
        ("ends.", "ends~"),
        ("con", "con~"),
        ("nul.txt", "nul-txt~"),
        ("Pack", "pack~"),
        ("a b", "a-b~"),
        ("a~b", "a-b~"),
        ("größe", "gr-e~"),
        ("x" * 200, "x" * 80 + "~"),
    ],
)
def test_other_names_are_made_safe(name: str, kept: str) -> None:
    """Any other name keeps what is plain and is told apart by a digest."""
    result = log_name(name)

    assert result.startswith(kept)
    assert len(result) == len(kept) + 12 + len(".log")


def test_no_two_names_share_a_log() -> None:
    """Names that differ only in case, or in what is replaced, have logs of their own."""
    names = ["pack", "Pack", "PACK", "a b", "a/b", "a-b", "a\\b", "con", "CON", "x" * 200, "x" * 199]

    assert len({log_name(name).casefold() for name in names}) == len(names)


def test_a_mark_stands_on_its_own_line(tmp_path: Path) -> None:
    """Output that does not end its line is not run together with what the command adds."""
    path = tmp_path / "a.log"
    with open_log(path) as log:
        write_mark(log, "one")
        log.write(b"no end of line")
        write_mark(log, "two")
    with open_log(path) as log:
        log.write(b"line\n")
        write_mark(log, "three")

    assert path.read_text() == "--- one\nno end of line\n--- two\nline\n--- three\n"


def test_the_begin_of_an_attempt_is_one_line() -> None:
    """A program of several lines is shown on one."""
    at = datetime(2024, 2, 29, 7, 5, 9).astimezone()

    assert (
        describe_begin(at, "attempt 1 of 2", ("echo", "a b"))
        == "2024-02-29 07:05:09 attempt 1 of 2: echo 'a b'"
    )
    assert describe_begin(at, "attempt 1 of 1", "a\nb") == "2024-02-29 07:05:09 attempt 1 of 1: a\\nb"
