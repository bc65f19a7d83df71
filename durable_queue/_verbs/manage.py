"""The verbs about tasks that are stored: look, change, report, remove (S6, S9)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from durable_queue._core import cancellation, reopening
from durable_queue._core.plan import Decision, Plan
from durable_queue._core.removal import delete, purge_batch
from durable_queue._engine.arguments import check_delay, check_kind
from durable_queue._engine.context import current_task_id
from durable_queue._engine.listing import list_tasks
from durable_queue._text import check_name
from durable_queue._verbs.base import QueueBase
from durable_queue.clock import check_instant
from durable_queue.retry import RetryPolicy
from durable_queue.storage import check_limit
from durable_queue.tasks import StoredTask, TaskStatus


class Managing(QueueBase):
    """Look at, cancel, retry, delete and report about stored tasks."""

    async def cancel(self, task_id: str, *, force: bool = False) -> None:
        """Cancel a task that has not started, or ask a running one to stop (S6.1); a terminal one is left alone.

        Args:
            task_id: which.
            force: whether to cancel the coroutine of a running handler too.

        Raises:
            TaskNotFoundError: the id is not stored.
            QueueInUseError: the queue is idle and another one consumes the storage.
        """
        check_name(task_id, "task_id")
        await self._change(
            lambda plan: cancellation.cancel(plan, task_id),
            on_written=lambda running: self._tell_running(running, force=force),
        )

    async def cancel_group(self, group: str) -> int:
        """Cancel every active member of a group; dependents outside follow their policy (S6.2).

        Returns:
            How many members were active.

        Raises:
            QueueInUseError: the queue is idle and another one consumes the storage.
        """
        check_name(group, "group")
        count, _ = await self._change(
            lambda plan: cancellation.cancel_group(plan, group),
            on_written=lambda answer: self._tell_running(answer[1], force=False),
        )
        return count

    async def retry(
        self, task_id: str, *, retry_policy: RetryPolicy | None = None, dependents: bool = False
    ) -> str:
        """Give a failed or cancelled task a fresh start under the same id (S6.3).

        Args:
            task_id: which.
            retry_policy: a new policy; the task's own by default.
            dependents: whether to reopen the dependents too that were ended because of it, at any depth.

        Returns:
            The id.

        Raises:
            TaskNotFoundError: the id is not stored.
            TaskStateError: the task is neither failed nor cancelled, an active task holds its key, or a dependency
                did not complete; nothing has changed then.
            QueueInUseError: the queue is idle and another one consumes the storage.
        """
        check_name(task_id, "task_id")
        check_kind(retry_policy, RetryPolicy, "retry_policy", "a RetryPolicy")
        return await self._change(
            lambda plan: reopening.reopen(plan, task_id, retry_policy=retry_policy, dependents=dependents)
        )

    async def delete(self, task_id: str) -> None:
        """Delete a terminal task that no waiting task depends on (S6.4).

        Raises:
            TaskNotFoundError: the id is not stored.
            TaskStateError: the task is active or needed.
            QueueInUseError: the queue is idle and another one consumes the storage.
        """
        check_name(task_id, "task_id")
        await self._change(lambda plan: delete(plan, task_id))

    async def purge(
        self,
        *,
        statuses: Collection[TaskStatus] = frozenset({TaskStatus.COMPLETED}),
        older_than: timedelta | datetime | None = None,
    ) -> int:
        """Delete terminal tasks that no active task depends on, in bounded batches (S6.4).

        Args:
            statuses: which terminal statuses.
            older_than: only tasks that ended so long ago, or before that instant.

        Returns:
            How many were deleted.

        Raises:
            ValueError: a status is not terminal.
            QueueInUseError: the queue is idle and another one consumes the storage.
        """
        not_after = None
        if isinstance(older_than, datetime):
            not_after = check_instant(older_than, "older_than")
        elif older_than is not None:
            not_after = self._clock.now() - check_delay(older_than, "older_than")
        check_kind(statuses, Collection, "statuses", "a set of TaskStatus")
        for status in statuses:
            if not isinstance(status, TaskStatus) or not status.is_terminal:
                raise ValueError("statuses must be terminal ones: completed, failed, cancelled")
        total = 0
        for status in statuses:
            after: StoredTask | None = None
            while True:

                def decide(
                    plan: Plan, status: TaskStatus = status, after: StoredTask | None = after
                ) -> Decision[tuple[int, StoredTask | None]]:
                    return purge_batch(plan, status, not_after=not_after, after=after)

                count, after = await self._change(decide)
                total += count
                if after is None:
                    break
        return total

    async def get_task(self, task_id: str) -> StoredTask | None:
        """Return a task's record, or None.

        Raises:
            CorruptRecordError: the record cannot be read.
        """
        check_name(task_id, "task_id")
        self._bind_loop()
        return await self._storage.get(task_id)

    async def get_tasks(
        self,
        *,
        status: TaskStatus | None = None,
        group: str | None = None,
        limit: int | None = None,
        after: StoredTask | None = None,
    ) -> list[StoredTask]:
        """Return tasks in order: oldest first.

        Args:
            status: only this one.
            group: only this group.
            limit: at most so many.
            after: only what comes later in the order than this record.

        Raises:
            CorruptRecordError: a record among them cannot be read.
            ValueError: `limit` is below 1.
        """
        check_limit(limit)
        check_kind(status, TaskStatus, "status", "a TaskStatus")
        check_kind(after, StoredTask, "after", "a StoredTask")
        if group is not None:
            check_name(group, "group")
        self._bind_loop()
        return await self._ledger.exclusive(lambda: self._list(status, group, limit, after))

    async def counts(self) -> dict[TaskStatus, int]:
        """Return how many tasks there are of each status; every status is a key."""
        self._bind_loop()
        return await self._storage.count_by_status()

    async def complete_hand_off(self, task_id: str, *, reference: str, result: object = None) -> bool:
        """Report that outside work has completed a handed-off task (S9.2).

        Args:
            task_id: which task.
            reference: the reference that it was handed off under.
            result: stored as the task's result.

        Returns:
            True, once it is stored; False when this hand-off has ended already, and nothing has changed.

        Raises:
            TaskNotFoundError: the id is not stored.
            HandOffError: the task is not handed off, or under another reference.
            PayloadError: the result cannot be stored as JSON.
            QueueInUseError: the queue is idle and another one consumes the storage.
        """
        self._begin_call()
        return await self._reports.complete(
            task_id, reference, result, inside=current_task_id(self) == task_id
        )

    async def fail_hand_off(self, task_id: str, error: BaseException | str, *, reference: str) -> bool:
        """Report that outside work has failed; retried by the task's rules (S9.2).

        Args:
            task_id: which task.
            error: an exception, or a text, which `retry_if` sees as a HandOffError.
            reference: the reference that it was handed off under.

        Returns:
            True, once it is stored; False when this hand-off has ended already, and nothing has changed.

        Raises:
            TaskNotFoundError: the id is not stored.
            HandOffError: the task is not handed off, or under another reference.
            QueueInUseError: the queue is idle and another one consumes the storage.
        """
        self._begin_call()
        return await self._reports.fail(task_id, reference, error, inside=current_task_id(self) == task_id)

    async def hand_offs(self) -> list[StoredTask]:
        """Return the tasks that are handed off and not reported yet, oldest first (S9.4)."""
        running = await self.get_tasks(status=TaskStatus.RUNNING)
        return [task for task in running if task.hand_off_reference is not None]

    async def _list(
        self, status: TaskStatus | None, group: str | None, limit: int | None, after: StoredTask | None
    ) -> list[StoredTask]:
        # What worker queries have met before is reported, and is no error of this list.
        await self._worker.report_unreadable()
        tasks = await list_tasks(self._storage, status=status, group=group, limit=limit, after=after)
        for error in await self._worker.report_unreadable():
            raise error
        return tasks

    def _tell_running(self, running: Sequence[str], *, force: bool) -> None:
        for task_id in running:
            attempt = self._worker.attempts.get(task_id)
            if attempt is not None:
                attempt.request_cancellation(force=force)
