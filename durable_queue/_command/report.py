"""What the command says: one line for each event, and the summary. Text in, text out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path

from durable_queue._command.jobfile import Job
from durable_queue.errors import DependencyFailedError
from durable_queue.events import (
    QueueEvent,
    QueueStorageFailure,
    TaskCancelled,
    TaskCompleted,
    TaskFailed,
    TaskRetryScheduled,
    TaskStarted,
)
from durable_queue.tasks import TERMINAL_STATUSES, StoredTask, TaskFailure, TaskStatus

_STORAGE_REPEAT = 60


class Report:
    """Words for the jobs of one run.

    Args:
        jobs: the jobs by name.
        names: the name of each task's job, by task id.
        logs: the path of each job's log, by name.
    """

    def __init__(self, jobs: Mapping[str, Job], names: Mapping[str, str], logs: Mapping[str, Path]) -> None:
        self._jobs = jobs
        self._names = names
        self._logs = logs

    def line(self, event: QueueEvent) -> str | None:
        """Return the line for an event, or None when there is nothing to say."""
        if isinstance(event, QueueStorageFailure):
            return _storage_line(event)
        name = self._names.get(getattr(event, "task_id", ""))
        if name is None:
            return None
        if isinstance(event, TaskStarted):
            return stamped(event.at, "started", name + self._of(name, event.attempt))
        if isinstance(event, TaskCompleted):
            return stamped(event.at, "completed", name + _took(event.duration))
        if isinstance(event, TaskRetryScheduled):
            wait = describe_duration(event.next_attempt_at - event.at)
            text = f"{name}{self._of(name, event.attempt)}: {self._reason(event.failure)}; again in {wait}"
            return stamped(event.at, "retry", text + self._log(name))
        if isinstance(event, TaskFailed):
            return stamped(event.at, "failed", self._failed(name, event.attempt, event.failure))
        if isinstance(event, TaskCancelled):
            return stamped(event.at, "cancelled", self._cancelled(name, event.failure))
        return None

    def summary(self, tasks: Iterable[StoredTask], took: timedelta | None) -> list[str]:
        """Return the lines that say how the run stands: the counts, then every job that did not complete.

        Args:
            tasks: all tasks of the run.
            took: how long the command worked on it, or None when it did not.
        """
        by_status: dict[TaskStatus, list[StoredTask]] = {status: [] for status in TaskStatus}
        for task in tasks:
            by_status[task.status].append(task)
        total = sum(map(len, by_status.values()))
        ended = {status: len(by_status[status]) for status in TaskStatus if status in TERMINAL_STATUSES}
        counts = ", ".join(f"{count} {status.value}" for status, count in ended.items())
        unfinished = total - sum(ended.values())
        left = f", {unfinished} left" if unfinished else ""
        failed = [
            _row("failed", self._failed(self._names[task.id], task.attempts, task.last_failure))
            for task in by_status[TaskStatus.FAILED]
        ]
        cancelled = [
            _row("cancelled", self._cancelled(self._names[task.id], task.last_failure))
            for task in by_status[TaskStatus.CANCELLED]
        ]
        return [f"{counts}{left} of {describe_count(total, 'job')}{_took(took)}", *failed, *cancelled]

    def _failed(self, name: str, attempt: int, failure: TaskFailure | None) -> str:
        if failure is None or _is_verdict(failure):
            return f"{name}: {self._reason(failure)}"
        return f"{name}{self._of(name, attempt)}: {self._reason(failure)}{self._log(name)}"

    def _cancelled(self, name: str, failure: TaskFailure | None) -> str:
        return f"{name}: {self._reason(failure)}"

    def _reason(self, failure: TaskFailure | None) -> str:
        if failure is None:
            return "no reason is known"
        if _is_verdict(failure):
            cause = self._names.get(failure.cause_task_id or "")
            return "a job that it needs did not complete" if cause is None else f"because of {cause}"
        # On one line, whatever the error says.
        return " ".join(failure.error.split())

    def _of(self, name: str, attempt: int) -> str:
        attempts = self._jobs[name].retries + 1
        return "" if attempts == 1 else f" (attempt {attempt} of {attempts})"

    def _log(self, name: str) -> str:
        return f"; log: {self._logs[name]}"


def stamped(at: datetime, word: str, text: str) -> str:
    """Return a line of the form ``12:03:44 started    pack``, in local time."""
    return f"{at.astimezone():%H:%M:%S} {_row(word, text)}"


def describe_count(count: int, noun: str) -> str:
    """Return ``1 job`` or ``2 jobs``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def describe_duration(duration: timedelta) -> str:
    """Return a duration as a person would say it: ``0.4 s``, ``2 min 5 s``, ``1 h 2 min``."""
    seconds = duration.total_seconds()
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _row(word: str, text: str) -> str:
    return f"{word:<11} {text}"


def _took(duration: timedelta | None) -> str:
    return "" if duration is None else f" in {describe_duration(duration)}"


def _is_verdict(failure: TaskFailure) -> bool:
    return failure.error_type == DependencyFailedError.__name__


def _storage_line(event: QueueStorageFailure) -> str | None:
    # The queue tries again after its delay, for ever.
    if event.consecutive % _STORAGE_REPEAT != 1:
        return None
    kind = type(event.error).__name__
    return stamped(event.at, "storage", f"{event.operation} failed and is tried again: {kind}: {event.error}")
