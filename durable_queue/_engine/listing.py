"""Lists of tasks for the application."""

from __future__ import annotations

from durable_queue._core.ordering import order_key
from durable_queue.storage import QueueStorage
from durable_queue.tasks import StoredTask, TaskStatus


async def list_tasks(
    storage: QueueStorage,
    *,
    status: TaskStatus | None,
    group: str | None,
    limit: int | None,
    after: StoredTask | None,
) -> list[StoredTask]:
    """Return tasks in order; see `DurableQueue.get_tasks`."""
    if group is not None:
        members = await storage.get_by_group(group, status=status)
        return [task for task in members if after is None or order_key(task) > order_key(after)][:limit]
    if status is not None:
        return await storage.get_by_status(status, limit=limit, after=after)
    if limit is None and after is None:
        return await storage.get_all()
    found: list[StoredTask] = []
    for one in TaskStatus:
        found.extend(await storage.get_by_status(one, limit=limit, after=after))
    return sorted(found, key=order_key)[:limit]
