"""Enqueue: from checked drafts to stored records, whole or not at all (S2)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any

import attrs

from durable_queue._core.copying import changed
from durable_queue._core.graphs import dependencies_first
from durable_queue._core.ordering import is_expired
from durable_queue._core.plan import BREATHE_EVERY, Breathe, Decision, FindHolder, GetFacts, GetTasks, Plan
from durable_queue._core.settlement import (
    Blocked,
    Fact,
    Free,
    end_blocked,
    end_expired,
    fact_of,
    judge,
    settle,
)
from durable_queue._json import JsonText
from durable_queue.errors import CorruptRecordError, TaskAlreadyExistsError, TaskNotFoundError
from durable_queue.events import TaskEnqueued
from durable_queue.retry import RetryPolicy
from durable_queue.tasks import DependencyFailurePolicy, StoredTask, TaskStatus


@attrs.frozen(kw_only=True, repr=False)
class Draft:
    """A task that is about to be enqueued; everything that can be checked without the storage has been.

    Attributes:
        name: what other drafts of the same call may depend on it by.
        depends_on: names of this call or ids of stored tasks.

    The other attributes are those of `StoredTask`.
    """

    name: str
    id: str
    type: str
    payload_text: JsonText
    retry_policy: RetryPolicy
    deduplication_key: str | None = None
    idempotency_key: str | None = None
    priority: int = 0
    depends_on: tuple[str, ...] = ()
    on_dependency_failure: DependencyFailurePolicy = DependencyFailurePolicy.CANCEL
    group: str | None = None
    next_attempt_at: datetime | None = None
    expires_at: datetime | None = None


def admit(
    plan: Plan,
    drafts: Sequence[Draft],
    *,
    created_at: datetime,
    updated_at: datetime,
    first_sequence: int,
    ids_may_repeat: bool = False,
) -> Decision[dict[str, str]]:
    """Turn drafts into records: fold, look for rings, look up dependencies, judge (S13.13).

    Args:
        plan: takes the new records and the events.
        drafts: in order of add; names are unique.
        created_at: the created_at of all of them.
        updated_at: the updated_at; earlier after the clock was set back (S13.20).
        first_sequence: the sequence of the first; the others count on from it.
        ids_may_repeat: whether the ids are of a source that might repeat one.

    Returns:
        The id that each name stands for: its own, or that of the task that holds its key.

    Raises:
        DependencyCycleError: the nodes depend on each other in a ring.
        TaskAlreadyExistsError: an id is taken.
        TaskNotFoundError: a dependency is neither a node nor stored.
    """
    if not ids_may_repeat and not any(map(_is_involved, drafts)):
        # Most calls: tasks that nothing else has a say in.
        yield from _store_free(plan, drafts, created_at, updated_at, first_sequence)
        return {draft.name: draft.id for draft in drafts}
    id_of: dict[str, str] = {}
    kept: dict[str, Draft] = {}
    name_holding: dict[str, str] = {}
    for draft in drafts:
        holder = None
        if draft.deduplication_key is not None:
            first = name_holding.setdefault(draft.deduplication_key, draft.name)
            holder = id_of.get(first) or (yield from find_holder(plan, draft.deduplication_key))
        if holder is None:
            kept[draft.name] = draft
        id_of[draft.name] = holder or draft.id

    if ids_may_repeat:
        yield from _refuse_taken(kept.values())
    name_of = {draft.id: name for name, draft in kept.items()}

    def node(dependency: str) -> str:
        # A folded node stands for the task it was folded onto, which may be another node of this call.
        target = id_of.get(dependency, dependency)
        return name_of.get(target, target)

    order: Iterable[str] = kept
    if any(draft.depends_on for draft in kept.values()):
        order = dependencies_first(
            {name: [node(dependency) for dependency in draft.depends_on] for name, draft in kept.items()}
        )
    outside = {
        target
        for draft in kept.values()
        for dependency in draft.depends_on
        if (target := id_of.get(dependency, dependency)) not in name_of
    }
    facts: dict[str, Fact] = (yield GetFacts(outside)) if outside else {}
    for task_id in outside:
        if not facts[task_id].is_readable:
            raise CorruptRecordError("cannot be read, so nothing can depend on it", task_id=task_id)
        if facts[task_id].status is None:
            raise TaskNotFoundError(task_id, f"no task with id {task_id!r} is stored; nothing was enqueued")

    position = {draft.name: index for index, draft in enumerate(drafts)}
    for index, name in enumerate(order, 1):
        record = _record(kept[name], id_of, created_at, updated_at, first_sequence + position[name])
        record = _store(plan, record, facts)
        facts[record.id] = fact_of(record.id, record)
        if index % BREATHE_EVERY == 0:
            yield Breathe()
    return id_of


def _is_involved(draft: Draft) -> bool:
    return draft.deduplication_key is not None or bool(draft.depends_on)


def _store_free(
    plan: Plan, drafts: Sequence[Draft], created_at: datetime, updated_at: datetime, first_sequence: int
) -> Decision[None]:
    """Store tasks without dependencies and keys."""
    record: StoredTask | None = None
    options: tuple[Any, ...] = ()
    for index, draft in enumerate(drafts):
        before, options = options, _shared_by(draft)
        if record is not None and options == before:
            # One of many that were enqueued with the same options.
            record = changed(
                record, id=draft.id, payload_text=draft.payload_text, sequence=first_sequence + index
            )
        else:
            record = _record(draft, {}, created_at, updated_at, first_sequence + index)
        _announce(plan, record)
        plan.put(record, new=True)
        if index % BREATHE_EVERY == BREATHE_EVERY - 1:
            yield Breathe()


def find_holder(plan: Plan, key: str) -> Decision[str | None]:
    """Return the id of the active task that holds a deduplication key.

    One that is past its `expires_at` holds it no longer: it is settled here, in the same step (S13.13).
    """
    holder: StoredTask | None = yield FindHolder(key)
    if holder is None:
        return None
    if is_expired(holder, plan.now):
        yield from settle(plan, [end_expired(plan, holder)])
        return None
    return holder.id


def _refuse_taken(drafts: Collection[Draft]) -> Decision[None]:
    # The storage would notice a stored id too, but not one that another call of the same step has just taken.
    stored: dict[str, StoredTask] = yield GetTasks([draft.id for draft in drafts])
    seen = set(stored)
    for draft in drafts:
        if draft.id in seen:
            raise TaskAlreadyExistsError(draft.id)
        seen.add(draft.id)


_shared_by = attrgetter(
    *(field.name for field in attrs.fields(Draft) if field.name not in {"name", "id", "payload_text"})
)


def _record(
    draft: Draft, id_of: dict[str, str], created_at: datetime, updated_at: datetime, sequence: int
) -> StoredTask:
    return StoredTask(
        id=draft.id,
        type=draft.type,
        payload=draft.payload_text,
        status=TaskStatus.WAITING if draft.depends_on else TaskStatus.PENDING,
        retry_policy=draft.retry_policy,
        created_at=created_at,
        updated_at=updated_at,
        sequence=sequence,
        next_attempt_at=draft.next_attempt_at,
        deduplication_key=draft.deduplication_key,
        idempotency_key=draft.idempotency_key,
        priority=draft.priority,
        depends_on=draft.depends_on and tuple(id_of.get(name, name) for name in draft.depends_on),
        on_dependency_failure=draft.on_dependency_failure,
        group=draft.group,
        expires_at=draft.expires_at,
    )


def _announce(plan: Plan, record: StoredTask) -> None:
    plan.events.append(TaskEnqueued(task_id=record.id, task_type=record.type, at=plan.now))


def _store(plan: Plan, record: StoredTask, facts: dict[str, Fact]) -> StoredTask:
    _announce(plan, record)
    verdict = judge(record, facts) if record.depends_on else Free.RELEASE
    if isinstance(verdict, Blocked):
        return end_blocked(plan, record, verdict, new=True)
    if verdict is Free.RELEASE and record.status is TaskStatus.WAITING:
        record = attrs.evolve(record, status=TaskStatus.PENDING)
    plan.put(record, new=True)
    return record
