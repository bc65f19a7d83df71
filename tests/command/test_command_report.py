"""The words of the command: one line for each event."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from durable_queue import QueueStorageFailure, TaskEnqueued, TaskFailed, TaskFailure, TaskStarted
from durable_queue._command.jobfile import Job
from durable_queue._command.report import Report, describe_duration, stamped

AT = datetime(2024, 2, 29, 7, 5, 9).astimezone()


@pytest.fixture
def report() -> Report:
    """Words for one job without retries, whose task is ``t1``."""
    job = Job(name="pack", run="true", cwd=Path("/"))
    return Report({"pack": job}, {"t1": "pack"}, {"pack": Path("logs/pack.log")})


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0.0 s"),
        (0.04, "0.0 s"),
        (12.34, "12.3 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 0 s"),
        (125, "2 min 5 s"),
        (3599.6, "1 h 0 min"),
        (7380, "2 h 3 min"),
        (86400 * 365, "8760 h 0 min"),
    ],
)
def test_durations(seconds: float, expected: str) -> None:
    """A duration is said with two units at most."""
    assert describe_duration(timedelta(seconds=seconds)) == expected


def test_a_line_begins_with_local_time() -> None:
    """Events carry UTC; lines show local time."""
    assert stamped(AT.astimezone(UTC), "started", "pack") == "07:05:09 started     pack"


def test_an_error_of_several_lines_is_said_on_one(report: Report) -> None:
    """Whatever an error says, an event is one line."""
    failure = TaskFailure(error="no space\n  left", error_type="OSError", failed_at=AT, attempt=1)
    event = TaskFailed(task_id="t1", task_type="shell-job", at=AT, attempt=1, failure=failure)

    assert report.line(event) == "07:05:09 failed      pack: no space left; log: logs/pack.log"


def test_what_is_not_of_this_run_is_not_said(report: Report) -> None:
    """Tasks of others, and events that say nothing to the user, have no line."""
    assert report.line(TaskStarted(task_id="t2", task_type="mail", at=AT, attempt=1)) is None
    assert report.line(TaskEnqueued(task_id="t1", task_type="shell-job", at=AT)) is None


def test_a_storage_that_fails_is_said_now_and_then(report: Report) -> None:
    """S10.2: the first failure in a row is said, then one in sixty, about once in a minute."""
    said = [
        consecutive
        for consecutive in range(1, 130)
        if report.line(
            QueueStorageFailure(
                at=AT, operation="apply", error=OSError(), traceback="", consecutive=consecutive
            )
        )
    ]
    error = sqlite3.OperationalError("disk is full")
    line = report.line(
        QueueStorageFailure(at=AT, operation="apply", error=error, traceback="", consecutive=1)
    )

    assert said == [1, 61, 121]
    assert line == "07:05:09 storage     apply failed and is tried again: OperationalError: disk is full"
