"""One attempt of one job: the handler that the queue calls."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar

import attrs

from durable_queue import TaskContext
from durable_queue._command.jobfile import ENVIRONMENT_PREFIX, Job
from durable_queue._command.leftovers import TASK_VARIABLE
from durable_queue._command.logs import describe_begin, open_log, write_mark
from durable_queue._command.process import NotStartedError, Processes, describe_status
from durable_queue._command.report import describe_duration

PYTHON_PLACEHOLDER = "{python}"
"""An argument that stands for the interpreter that runs the command."""


@attrs.frozen
class ShellJob:
    """What is stored of a job; the rest is in its file, whose content is part of the run's identity.

    Attributes:
        name: the job's name in its file.
        file: the file, to be named in messages.
    """

    task_type: ClassVar[str] = "shell-job"

    name: str
    file: str


class JobFailedError(Exception):
    """The attempt did not succeed; the text is what is reported."""


class JobRunner:
    """Runs the jobs of one file.

    Args:
        jobs: the jobs by name.
        logs: the path of each job's log, by name.
        processes: what runs the child processes.
    """

    def __init__(self, jobs: Mapping[str, Job], logs: Mapping[str, Path], processes: Processes) -> None:
        self._jobs = jobs
        self._logs = logs
        self._processes = processes

    async def __call__(self, task: ShellJob, context: TaskContext) -> None:
        """Run a job's program once.

        Raises:
            JobFailedError: it did not end with status 0.
            OSError: its log cannot be written.
        """
        job = self._jobs[task.name]
        with open_log(self._logs[job.name]) as log:
            attempt = f"attempt {context.attempt} of {job.retries + 1}"
            write_mark(log, describe_begin(datetime.now(UTC), attempt, job.run))
            began = time.monotonic()
            outcome = "stopped"
            try:
                status = await self._processes.run(
                    _command(job.run),
                    cwd=job.cwd,
                    env=_environment(job, context),
                    output=log,
                    timeout=job.timeout,
                )
                outcome = describe_status(status)
            except NotStartedError as error:
                status = None
                outcome = str(error)
            except TimeoutError:
                assert job.timeout is not None
                status = None
                outcome = f"timed out after {describe_duration(job.timeout)}"
            finally:
                # The outcome is known: a full disk must not turn it into another one.
                with contextlib.suppress(OSError):
                    took = describe_duration(timedelta(seconds=time.monotonic() - began))
                    write_mark(log, f"{outcome} ({attempt}, {took})")
        if status != 0:
            raise JobFailedError(outcome)


def _command(run: tuple[str, ...] | str) -> tuple[str, ...] | str:
    if isinstance(run, str):
        return run
    return tuple(sys.executable if argument == PYTHON_PLACEHOLDER else argument for argument in run)


def _environment(job: Job, context: TaskContext) -> dict[str, str]:
    return {
        **os.environ,
        **job.env,
        f"{ENVIRONMENT_PREFIX}JOB": job.name,
        f"{ENVIRONMENT_PREFIX}ATTEMPT": str(context.attempt),
        f"{ENVIRONMENT_PREFIX}PYTHON": sys.executable,
        TASK_VARIABLE: context.task_id,
    }
