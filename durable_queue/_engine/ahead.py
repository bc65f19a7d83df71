"""The ready tasks that were read ahead, so that a step with free slots needs no read (S13.2).

A step that claims one task at a time would otherwise spend as long on asking as on writing. What is kept here is
the head of the ready order as the storage has it: every write of the queue is followed, and whatever could have
changed it behind the queue's back makes it forgotten.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable
from datetime import datetime

from durable_queue._core.ordering import ReadyKey, can_be_claimed, ready_key
from durable_queue._core.plan import Plan
from durable_queue.storage import QueueStorage
from durable_queue.tasks import StoredTask

MOST_AHEAD = 256
FEWEST_AHEAD = 64
ROUNDS_AHEAD = 4
"""How many tasks are read at once: enough for some rounds of all slots, within these bounds."""


class ReadAhead:
    """Answers what is ready, from memory where that is certain.

    Args:
        storage: where the tasks are.
        slots: how many tasks the queue runs at once.
        running: returns the ids of the tasks that are claimed.
    """

    def __init__(self, storage: QueueStorage, slots: int, running: Callable[[], Collection[str]]) -> None:
        self._storage = storage
        self._batch = min(MOST_AHEAD, max(FEWEST_AHEAD, ROUNDS_AHEAD * slots))
        self._running = running
        self._keys: list[ReadyKey] = []
        self._tasks: dict[str, StoredTask] = {}
        # Ids of ready and running tasks that nothing depends on.
        self._childless: set[str] = set()
        self._as_of: datetime | None = None
        self._until: datetime | None = None
        self._is_all = False
        self._forgotten = 0

    def forget(self) -> None:
        """Forget everything: what the storage has may have changed unseen."""
        self._forgotten += 1
        self._as_of = None
        self._keys.clear()
        self._tasks.clear()
        self._childless.clear()

    async def get_ready(self, now: datetime, limit: int) -> list[StoredTask]:
        """Return the next tasks in ready order; see `QueueStorage.get_ready`."""
        if self._is_certain(now, limit):
            self._as_of = now
            return [self._tasks[key[-1]] for key in self._keys[:limit]]
        if not self._storage.reads_ahead:
            return await self._storage.get_ready(now, limit)
        before = self._forgotten
        head = await self._storage.read_ahead(now, max(limit, self._batch))
        if before == self._forgotten:
            # Otherwise somebody has written meanwhile, and what was read is as good as any answer but not to be kept.
            self._keys = [ready_key(task) for task in head.tasks]
            self._tasks = {task.id: task for task in head.tasks}
            self._childless.intersection_update(self._running())
            self._childless.update(self._tasks.keys() - head.with_dependents)
            self._as_of, self._until, self._is_all = now, head.until, head.is_all
        return head.tasks[:limit]

    def with_dependents(self, ids: Iterable[str]) -> list[str]:
        """Return which of these ids something may depend on."""
        return [task_id for task_id in ids if task_id not in self._childless]

    def observe(self, plan: Plan) -> None:
        """Follow what has just been written."""
        if self._as_of is None:
            return
        for task_id, task in plan.records.items():
            if task_id in self._tasks:
                key = ready_key(self._tasks.pop(task_id))
                del self._keys[bisect_left(self._keys, key)]
            if task is None or task.status.is_terminal:
                self._childless.discard(task_id)
            elif can_be_claimed(task) and self._take_up(task, self._as_of) and plan.is_new(task_id):
                self._childless.add(task_id)
        for dependency in plan.by_dependency:
            self._childless.discard(dependency)

    def _take_up(self, task: StoredTask, as_of: datetime) -> bool:
        at = task.next_attempt_at
        if at is not None and at > as_of:
            if self._until is None or at < self._until:
                self._until = at
            return False
        key = ready_key(task)
        if not self._is_all and not (self._keys and key < self._keys[-1]):
            return False
        insort(self._keys, key)
        self._tasks[task.id] = task
        if len(self._keys) > 2 * self._batch:
            for *_, task_id in self._keys[self._batch :]:
                del self._tasks[task_id]
                self._childless.discard(task_id)
            del self._keys[self._batch :]
            self._is_all = False
        return task.id in self._tasks

    def _is_certain(self, now: datetime, limit: int) -> bool:
        return (
            self._as_of is not None
            # On a clock that has gone back, what was due may not be due any more.
            and self._as_of <= now
            and (self._until is None or now < self._until)
            and (self._is_all or len(self._keys) >= limit)
        )
