"""Answers to the reads of a decision: the storage, overlaid with what the plan has changed (S13.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection
from itertools import islice
from typing import Any, TypeVar

from durable_queue._core.ordering import is_eligible, is_expired, order_key, ready_key
from durable_queue._core.plan import (
    Breathe,
    Decision,
    FindHolder,
    GetDependents,
    GetDependentsOf,
    GetExpired,
    GetFacts,
    GetGroup,
    GetJudgeable,
    GetMaxSequence,
    GetPage,
    GetReady,
    GetTasks,
    GetWaitingDependents,
    Page,
    Plan,
    Request,
)
from durable_queue._core.settlement import Fact, fact_of
from durable_queue._engine.ahead import ReadAhead
from durable_queue.errors import CorruptRecordError
from durable_queue.storage import QueueStorage, pages
from durable_queue.tasks import CLAIMABLE_STATUSES, StoredTask, TaskStatus

T = TypeVar("T")

MOST_HIDDEN = 100
"""How many ready tasks more than there are slots are asked for at most, because the step has changed as many."""

_HIDING = frozenset({TaskStatus.RUNNING, TaskStatus.CANCELLED})
"""What a task that was ready has become when a step of the worker has changed it."""

FACTS_AT_A_TIME = 500
"""How many whole records are held at once while the facts of a wide join are read."""


_OPERATIONS: dict[type, str] = {
    GetTasks: "get_many",
    GetFacts: "get_many",
    GetReady: "get_ready",
    GetJudgeable: "get_judgeable",
    GetWaitingDependents: "get_waiting_dependents_of",
    FindHolder: "find_active_by_deduplication_key",
    GetDependents: "get_dependents",
    GetDependentsOf: "get_dependent_ids",
    GetGroup: "get_by_group",
    GetPage: "get_by_status",
    GetExpired: "get_expired",
    GetMaxSequence: "get_max_sequence",
}
"""The method of the storage that answers each kind of read, for reports."""


class StorageReadError(Exception):
    """A read failed; carries what the storage was doing. Never leaves the engine."""

    def __init__(self, operation: str, error: Exception) -> None:
        super().__init__(operation)
        self.operation = operation
        self.error = error


async def ask(operation: str, answer: Awaitable[T]) -> T:
    """Await an answer of the storage outside of a decision.

    Raises:
        StorageReadError: the read failed.
    """
    try:
        return await answer
    except Exception as error:
        raise StorageReadError(operation, error) from error


async def drive(
    decision: Decision[T], plan: Plan, storage: QueueStorage, ahead: ReadAhead | None = None
) -> T:
    """Run a decision to its end, answering its reads.

    Args:
        decision: what is to be decided.
        plan: what it has changed so far.
        storage: what it is decided over.
        ahead: what was read ahead; only the worker's own decisions follow it.

    Raises:
        StorageReadError: a read failed and the decision did not handle it.
    """
    answer: Any = None
    failed: StorageReadError | None = None
    while True:
        try:
            request = decision.send(answer) if failed is None else decision.throw(failed.error)
        except StopIteration as stop:
            result: T = stop.value
            return result
        except Exception as error:
            if failed is not None and error is failed.error:
                raise failed from error
            raise
        failed = None
        try:
            answer = await _answer(request, plan, storage, ahead)
        except Exception as error:  # noqa: BLE001 - any exception of an adapter is a fault of the storage
            failed = StorageReadError(_OPERATIONS.get(type(request), "read"), error)


async def _answer(request: Request, plan: Plan, storage: QueueStorage, ahead: ReadAhead | None) -> Any:
    match request:
        case GetTasks(ids):
            return await _get_tasks(ids, plan, storage)
        case GetFacts(ids):
            return await _get_facts(ids, plan, storage)
        case GetReady(limit, without):
            return await _get_ready(limit, without, plan, storage, ahead)
        case GetJudgeable(ids):
            parents = ids if ahead is None else ahead.with_dependents(ids)
            return _waiting_dependents(await storage.get_judgeable(parents) if parents else (), ids, plan)
        case GetWaitingDependents(ids):
            parents = ids if ahead is None else ahead.with_dependents(ids)
            stored = await storage.get_waiting_dependents_of(parents) if parents else ()
            return _waiting_dependents(stored, ids, plan)
        case FindHolder(key):
            return await _find_holder(key, plan, storage)
        case GetDependents(task_id):
            found = _overlaid(await storage.get_dependents(task_id), plan)
            found.update(plan.dependents_of([task_id]))
            return sorted(found.values(), key=order_key)
        case GetDependentsOf(ids, without):
            return await _get_dependents_of(ids, without, plan, storage)
        case GetGroup(group, status):
            stored = await storage.get_by_group(group, status=status)
            members = _overlaid(stored, plan)
            members.update({task.id: task for task in plan.changed() if task.group == group})
            return sorted((t for t in members.values() if status in (None, t.status)), key=order_key)
        case GetPage(status, limit, after):
            page = await storage.get_by_status(status, limit=limit, after=after)
            return Page(list(_overlaid(page, plan).values()), page[-1] if page else None)
        case GetExpired(limit):
            overdue = _overlaid(await storage.get_expired(plan.now, limit), plan)
            return [task for task in overdue.values() if is_expired(task, plan.now)]
        case GetMaxSequence():
            return await storage.get_max_sequence()
        case Breathe():
            await asyncio.sleep(0)
            return None


def _overlaid(stored: Collection[StoredTask], plan: Plan) -> dict[str, StoredTask]:
    """Replace each stored record by the plan's form of it; leave out what the plan deletes."""
    current = {task.id: plan.find(task.id) if plan.knows(task.id) else task for task in stored}
    return {task_id: task for task_id, task in current.items() if task is not None}


async def _get_tasks(ids: Collection[str], plan: Plan, storage: QueueStorage) -> dict[str, StoredTask]:
    stored: dict[str, StoredTask] = {}
    unknown = [task_id for task_id in ids if not plan.knows(task_id)]
    if len(unknown) == 1:
        task = await storage.get(unknown[0])
        if task is not None:
            stored[task.id] = task
    elif unknown:
        stored = await storage.get_many(unknown)
    for task_id in ids:
        planned = plan.find(task_id)
        if planned is not None:
            stored[task_id] = planned
    return stored


async def _get_facts(ids: Collection[str], plan: Plan, storage: QueueStorage) -> dict[str, Fact]:
    facts = {task_id: fact_of(task_id, plan.find(task_id)) for task_id in ids if plan.knows(task_id)}
    unknown = iter([task_id for task_id in ids if task_id not in facts])
    while batch := list(islice(unknown, FACTS_AT_A_TIME)):
        stored = await storage.get_many(batch)
        for task_id in batch:
            facts[task_id] = (
                fact_of(task_id, stored[task_id])
                if task_id in stored
                else await _fact_of_absent(task_id, storage)
            )
    return facts


async def _get_dependents_of(
    ids: Collection[str], without: Collection[str], plan: Plan, storage: QueueStorage
) -> list[StoredTask]:
    # By their ids first: a wide join is the dependent of many, and reading it costs by its width each time.
    found = plan.dependents_of(ids)
    stored = await storage.get_dependent_ids(ids)
    unknown = iter([task_id for task_id in stored if not plan.knows(task_id) and task_id not in without])
    while batch := list(islice(unknown, FACTS_AT_A_TIME)):
        found.update(await storage.get_many(batch))
    return sorted((task for task_id, task in found.items() if task_id not in without), key=order_key)


async def _fact_of_absent(task_id: str, storage: QueueStorage) -> Fact:
    # `get_many` leaves out what is not stored and what cannot be read; only the first is missing.
    try:
        return fact_of(task_id, await storage.get(task_id))
    except CorruptRecordError:
        return Fact(None, task_id, is_readable=False)


async def _get_ready(
    limit: int, without: Collection[str], plan: Plan, storage: QueueStorage, ahead: ReadAhead | None
) -> list[StoredTask]:
    # Records that the plan has changed may stand at the head of the storage's answer: ask for as many more.
    hidden = sum(1 for task in plan.changed() if task.status in _HIDING)
    asked = limit + min(hidden, MOST_HIDDEN) + len(without)
    stored = await (storage if ahead is None else ahead).get_ready(plan.now, asked)
    if stored and type(storage).get_ready is QueueStorage.get_ready and all(t.id in without for t in stored):
        stored = await _walk_ready(asked, plan, storage)
    heads = [task for task in stored if not plan.knows(task.id) and task.id not in without]
    plan.hides_ready = any(plan.knows(task.id) for task in stored)
    heads.extend(task for task in plan.changed() if is_eligible(task, plan.now) and task.id not in without)
    heads.sort(key=ready_key)
    if stored and len(stored) < asked:
        # An adapter may give fewer than there are. What comes after its last one could overtake one that it has kept
        # back, and has its turn in the next step.
        last = ready_key(stored[-1])
        heads = [task for task in heads if ready_key(task) <= last]
    return heads[:limit]


async def _walk_ready(limit: int, plan: Plan, storage: QueueStorage) -> list[StoredTask]:
    """Look past a head that is set aside, in a storage that tells of no other."""
    best: list[StoredTask] = []
    for status in CLAIMABLE_STATUSES:
        async for page in pages(storage, status):
            best.extend(task for task in page if is_eligible(task, plan.now))
            best.sort(key=ready_key)
            del best[limit:]
    return best


def _waiting_dependents(stored: Collection[StoredTask], ids: Collection[str], plan: Plan) -> list[StoredTask]:
    found = _overlaid(stored, plan)
    found.update(plan.dependents_of(ids))
    return [task for task in found.values() if task.status is TaskStatus.WAITING]


async def _find_holder(key: str, plan: Plan, storage: QueueStorage) -> StoredTask | None:
    for task in plan.with_key(key):
        if not task.status.is_terminal:
            return task
    stored = await storage.find_active_by_deduplication_key(key)
    # One that the plan has changed is either in the answer above or holds the key no longer.
    return None if stored is None or plan.knows(stored.id) else stored
