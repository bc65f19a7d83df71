"""Reports of outside work: to which task they belong, and whether they still count (S9.2, S9.3, S13.10)."""

from __future__ import annotations

from durable_queue._core.plan import Decision, get_task
from durable_queue.errors import HandOffError, TaskNotFoundError
from durable_queue.tasks import StoredTask, TaskStatus


def find_reported(task_id: str, reference: str) -> Decision[StoredTask | None]:
    """Find the open hand-off that a report is about.

    Returns:
        The running record; None when this hand-off has ended already, so that the report changes nothing.

    Raises:
        TaskNotFoundError: the id is not stored.
        HandOffError: the task is not handed off, or under another reference.
    """
    task = yield from get_task(task_id)
    if task is None:
        raise TaskNotFoundError(task_id)
    if task.hand_off_reference is None:
        raise HandOffError(f"task {task_id!r} is {task.status.value} and not handed off")
    if task.hand_off_reference != reference:
        raise HandOffError(f"task {task_id!r} is handed off under another reference")
    # The reference stays on the record until the next claim clears it: until then a report is a repetition, not late.
    return task if task.status is TaskStatus.RUNNING else None
