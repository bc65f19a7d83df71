"""Cancellation on request, of one task or of a group (S6.1, S6.2, S13.17)."""

from __future__ import annotations

from collections.abc import Sequence

from durable_queue._core import transitions
from durable_queue._core.ends import put_ended
from durable_queue._core.plan import BREATHE_EVERY, Breathe, Decision, GetGroup, Plan, get_task
from durable_queue._core.settlement import settle
from durable_queue.errors import TaskNotFoundError
from durable_queue.tasks import StoredTask, TaskStatus


def cancel(plan: Plan, task_id: str) -> Decision[list[str]]:
    """Cancel one task; one that is terminal is left alone.

    Returns:
        The ids of running tasks whose handlers have to be told.

    Raises:
        TaskNotFoundError: the id is not stored.
    """
    task = yield from get_task(task_id)
    if task is None:
        raise TaskNotFoundError(task_id)
    return (yield from _cancel_all(plan, [task]))


def cancel_group(plan: Plan, group: str) -> Decision[tuple[int, list[str]]]:
    """Cancel every active member of a group, then settle what depends on them.

    Returns:
        How many active members there were, and the running ones whose handlers have to be told.
    """
    members: list[StoredTask] = yield GetGroup(group)
    active = [task for task in members if not task.status.is_terminal]
    running = yield from _cancel_all(plan, active)
    return len(active), running


def _cancel_all(plan: Plan, tasks: Sequence[StoredTask]) -> Decision[list[str]]:
    ended: list[StoredTask] = []
    running: list[str] = []
    for index, task in enumerate(tasks, 1):
        if task.status is TaskStatus.RUNNING and task.hand_off_reference is None:
            running.append(task.id)
            if not task.cancel_requested:
                plan.put(transitions.request_cancel(task, plan.now))
        elif not task.status.is_terminal:
            ended.append(put_ended(plan, transitions.cancel(task, plan.now)))
        if index % BREATHE_EVERY == 0:
            yield Breathe()
    yield from settle(plan, ended)
    return running
