"""Drives one run: submits the jobs in one piece or finds them, works them off, and says how it ended."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from durable_queue import (
    DurableQueue,
    DurableQueueError,
    EventsMissed,
    QueueEvent,
    QueueInUseError,
    QueueStorageFailure,
    RetryPolicy,
    StoredTask,
    TaskCancelled,
    TaskCompleted,
    TaskFailed,
    TaskGraph,
    TaskRetryScheduled,
    TaskStarted,
    TaskStatus,
)
from durable_queue._command.attempt import JobRunner, ShellJob
from durable_queue._command.jobfile import JobFile, JobFileError, read_job_file
from durable_queue._command.leftovers import end_leftovers
from durable_queue._command.logs import log_name
from durable_queue._command.printer import Printer, make_encodable
from durable_queue._command.process import Processes
from durable_queue._command.report import Report, describe_count, describe_duration, stamped
from durable_queue._command.signals import EndSignals, exit_status
from durable_queue.tasks import ACTIVE_STATUSES
from durable_queue_sqlite import SqliteQueueStorage

NOT_COMPLETED = 1
REFUSED = 2

STOP_GRACE = timedelta(seconds=2)
"""How long running jobs may go on after the first signal."""

_ENDED = (TaskCompleted, TaskFailed, TaskCancelled)
_TOLD = (TaskStarted, TaskRetryScheduled, *_ENDED, QueueStorageFailure)


class RefusedError(Exception):
    """The command cannot do its work with this database; the text says what to do."""


def run_file(path: Path, database: Path | None, slots: int | None) -> int:
    """Run the jobs of a file to their end.

    Args:
        path: the jobs file.
        database: where the run is kept; beside the file when None.
        slots: the most jobs at a time; the number of processors when None.

    Returns:
        The exit status.
    """
    make_encodable()
    try:
        job_file = read_job_file(path)
    except JobFileError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        return REFUSED
    processes = Processes()
    printer = Printer()
    try:
        with EndSignals(processes.kill_now) as signals:
            run = _Run(
                job_file,
                path.with_suffix(".queue.db") if database is None else database,
                os.cpu_count() or 1 if slots is None else slots,
                processes=processes,
                printer=printer,
                signals=signals,
            )
            return asyncio.run(run.main())
    except RefusedError as error:
        print(f"durable_queue run: error: {error}", file=sys.stderr)
        return REFUSED
    finally:
        printer.close()


class _Run:
    def __init__(
        self,
        file: JobFile,
        database: Path,
        slots: int,
        *,
        processes: Processes,
        printer: Printer,
        signals: EndSignals,
    ) -> None:
        self._file = file
        self._database = database
        self._slots = slots
        self._printer = printer
        self._signals = signals
        self._same_file = f"run:{file.path_key}:"
        self._group = f"{self._same_file}{file.content_key}"
        self._log_folder = Path(f"{database}-logs")
        self._logs = {name: self._log_folder / log_name(name) for name in file.jobs}
        self._processes = processes
        self._runner = JobRunner(file.jobs, self._logs, processes)

    async def main(self) -> int:
        async with self._open() as storage:
            queue = DurableQueue(storage, max_concurrent_tasks=self._slots, max_interruptions=None)
            queue.register(ShellJob, self._runner, rerun_interrupted=True)
            try:
                return await self._run(queue)
            finally:
                await queue.stop(grace=timedelta(0))
                await queue.close()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[SqliteQueueStorage]:
        if str(self._database) == ":memory:":
            raise RefusedError("a run is kept in a file; name one with --db")
        with self._faults_refuse():
            self._database.parent.mkdir(parents=True, exist_ok=True)
            storage = await SqliteQueueStorage.open(self._database)
        try:
            yield storage
        finally:
            await storage.close()

    @contextmanager
    def _faults_refuse(self) -> Iterator[None]:
        """Before the jobs start and after they have ended, a fault of the database ends the command.

        In between the queue sits it out.
        """
        try:
            yield
        except QueueInUseError:
            raise RefusedError(
                f"{self._database}: another process works on it; wait for its end or name another with --db"
            ) from None
        except (DurableQueueError, sqlite3.Error, OSError) as error:
            raise RefusedError(f"{self._database}: cannot be used: {error}") from None

    async def _run(self, queue: DurableQueue) -> int:
        began = time.monotonic()
        with self._faults_refuse():
            tasks = await self._tasks(queue)
            if tasks and not _unfinished(tasks):
                return self._tell_finished(tasks)
            await self._take_up(queue)
            # Recovery has put back by now what was running then.
            interrupted = [task.id for task in tasks if task.status is TaskStatus.RUNNING]
            tasks = await self._tasks(queue)
        names = _names(tasks)
        await self._tell_begin(tasks, interrupted, names)
        await self._work(queue, tasks, names)
        with self._faults_refuse():
            tasks = await self._tasks(queue)
        return self._tell_end(tasks, timedelta(seconds=time.monotonic() - began))

    async def _take_up(self, queue: DurableQueue) -> None:
        """Start the queue, paused, over a database that holds this run and no other."""
        await self._refuse_others(queue)
        # From here on no other process begins a run here; what one has begun since the look before is seen now.
        await queue.start(paused=True)
        await self._refuse_others(queue)
        self._log_folder.mkdir(parents=True, exist_ok=True)
        if not await self._tasks(queue):
            await queue.enqueue_graph(self._graph())

    async def _work(self, queue: DurableQueue, tasks: list[StoredTask], names: Mapping[str, str]) -> None:
        """Run the jobs until all have ended or a signal stops them; close the queue."""
        report = Report(self._file.jobs, names, self._logs)
        # Every task can end in one step, and each event must find room.
        with queue.subscribe(*_TOLD, buffer=2 * len(tasks) + 1000) as events:
            follower = asyncio.create_task(self._follow(queue, events, report, _unfinished(tasks)))
            stop = asyncio.create_task(self._signals.wait())
            await queue.resume()
            await asyncio.wait({follower, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not follower.done():
                await self._stop(queue, stop.result(), names)
            stop.cancel()
            await queue.close()
            await follower

    async def _follow(
        self, queue: DurableQueue, events: AsyncIterator[QueueEvent], report: Report, remaining: set[str]
    ) -> None:
        """Print a line for each event until no task remains or the stream ends."""
        while remaining:
            event = await anext(events, None)
            if event is None:
                return
            if isinstance(event, EventsMissed):
                remaining.intersection_update(_unfinished(await self._tasks(queue)))
                continue
            line = report.line(event)
            if line is not None:
                self._printer.print(line)
            if isinstance(event, _ENDED):
                remaining.discard(event.task_id)

    async def _stop(self, queue: DurableQueue, received: signal.Signals, names: Mapping[str, str]) -> None:
        if self._processes.count:
            jobs = describe_count(self._processes.count, "running job")
            grace = describe_duration(STOP_GRACE)
            self._say("stopping", f"{received.name}: {jobs} may end within {grace}; once more to end at once")
        else:
            self._say("stopping", received.name)
        for task_id in await queue.stop(grace=STOP_GRACE):
            self._say("stopped", f"{names[task_id]}: it starts again next time")

    async def _refuse_others(self, queue: DurableQueue) -> None:
        """Refuse a database that holds unfinished tasks which are not of this run.

        A queue works on everything in its storage, so those would be run as well, or fail for want of a handler.
        """
        for status in ACTIVE_STATUSES:
            for task in await queue.get_tasks(status=status, limit=len(self._file.jobs) + 1):
                if task.group != self._group:
                    raise RefusedError(await self._describe_other(queue, task))

    async def _describe_other(self, queue: DurableQueue, task: StoredTask) -> str:
        if task.type != ShellJob.task_type or task.group is None:
            return f"{self._database}: holds unfinished tasks of another program; name another with --db"
        tasks = await queue.get_tasks(group=task.group)
        left = f"{len(_unfinished(tasks))} of {describe_count(len(tasks), 'job')}"
        if task.group.startswith(self._same_file):
            return (
                f"{self._file.path}: the file was changed, and a run of its old text is not finished ({left} left). "
                f"Put the old text back to finish it, name another database with --db, or delete the files "
                f"{self._database}* to give it up"
            )
        return (
            f"{self._database}: holds an unfinished run of {task.payload['file']} ({left} left); "
            "finish that one first or name another database with --db"
        )

    def _graph(self) -> TaskGraph:
        graph = TaskGraph()
        # A job may have any printable name; a node may not.
        nodes = {name: f"job-{position}" for position, name in enumerate(self._file.jobs)}
        # A path may hold bytes that are no text.
        file = str(self._file.path).encode("utf-8", "backslashreplace").decode()
        for job in self._file.jobs.values():
            graph.add(
                ShellJob(job.name, file),
                name=nodes[job.name],
                depends_on=[nodes[need] for need in job.needs],
                on_dependency_failure=job.if_needed_fails,
                priority=job.priority,
                retry_policy=RetryPolicy.fixed(max_attempts=job.retries + 1, delay=job.retry_delay),
                group=self._group,
            )
        return graph

    async def _tasks(self, queue: DurableQueue) -> list[StoredTask]:
        return await queue.get_tasks(group=self._group)

    async def _tell_begin(
        self, tasks: list[StoredTask], interrupted: list[str], names: Mapping[str, str]
    ) -> None:
        unfinished = _unfinished(tasks)
        jobs = describe_count(len(tasks), "job")
        what = jobs if len(unfinished) == len(tasks) else f"going on with {len(unfinished)} of {jobs}"
        self._printer.print(
            f"{self._file.path}: {what}, at most {self._slots} at a time, kept in {self._database}"
        )
        for task_id in interrupted:
            self._say("interrupted", f"{names[task_id]}: it starts again")
        for task_id in await end_leftovers(unfinished):
            self._say("cleaned", f"{names[task_id]}: ended what its interrupted attempt had left running")

    def _tell_finished(self, tasks: list[StoredTask]) -> int:
        self._printer.print(
            f"{self._file.path}: this run has finished before; to run it once more, change the file, name another "
            f"database with --db, or delete the files {self._database}*"
        )
        return self._tell_end(tasks, None)

    def _tell_end(self, tasks: list[StoredTask], took: timedelta | None) -> int:
        for line in Report(self._file.jobs, _names(tasks), self._logs).summary(tasks, took):
            self._printer.print(line)
        if _unfinished(tasks):
            assert self._signals.received is not None
            self._printer.print("stopped; the same command goes on with what is left")
            return exit_status(self._signals.received)
        return 0 if all(task.status is TaskStatus.COMPLETED for task in tasks) else NOT_COMPLETED

    def _say(self, word: str, text: str) -> None:
        self._printer.print(stamped(datetime.now(UTC), word, text))


def _unfinished(tasks: Iterable[StoredTask]) -> set[str]:
    return {task.id for task in tasks if not task.status.is_terminal}


def _names(tasks: Iterable[StoredTask]) -> dict[str, str]:
    return {task.id: task.payload["name"] for task in tasks}
