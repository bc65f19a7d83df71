"""A look at what the storage has of a write that failed: it may have been carried out, whole or in part (S13.3)."""

from __future__ import annotations

from durable_queue._core.plan import Plan
from durable_queue.errors import CorruptRecordError
from durable_queue.storage import QueueStorage
from durable_queue.tasks import StoredTask


async def stored_part(plan: Plan, storage: QueueStorage) -> Plan:
    """Return the changes of a plan that the storage has, with their events.

    Raises:
        Exception: what the storage raised instead of an answer.
    """
    part = Plan(plan.now)
    changed = [task_id for task_id, task in plan.records.items() if task is not None]
    try:
        stored = await storage.get_many(changed)
    except CorruptRecordError:
        stored = {task_id: found for task_id in changed if (found := await _readable(task_id, storage))}
    for task_id, task in plan.records.items():
        if task is None:
            if await _is_gone(task_id, storage):
                part.remove(task_id)
        elif stored.get(task_id) == task:
            part.put(task)
    part.events = [event for event in plan.events if getattr(event, "task_id", None) in part.records]
    return part


async def _readable(task_id: str, storage: QueueStorage) -> StoredTask | None:
    try:
        return await storage.get(task_id)
    except CorruptRecordError:
        return None


async def _is_gone(task_id: str, storage: QueueStorage) -> bool:
    try:
        return await storage.get(task_id) is None
    except CorruptRecordError:
        return False
