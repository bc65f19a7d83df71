"""Storages with a fault in a query, and the contract run on them. `test_teeth` runs this module and counts."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime

from durable_queue import MemoryQueueStorage as Memory
from durable_queue import TaskStatus
from tests.contract.breaking import breaks, order


@breaks("queries")
class IgnoresTheSequence(Memory):
    async def get_by_status(self, status, *, limit=None, after=None):
        found = await super().get_by_status(status, limit=limit, after=after)
        return sorted(found, key=lambda task: (task.created_at, task.id))


@breaks("queries")
class SortsIdsByUtf16(Memory):
    async def get_all(self):
        key = lambda task: (task.created_at, task.sequence, task.id.encode("utf-16-be"))  # noqa: E731
        return sorted(self._tasks.values(), key=key)


@breaks("queries")
class PendingMeansReady(Memory):
    async def get_pending(self):
        return [task for task in await super().get_pending() if not task.held]


@breaks("queries")
class GroupIgnoresTheStatus(Memory):
    async def get_by_group(self, group, *, status=None):
        return await super().get_by_group(group)


@breaks("queries")
class MaxSequenceNeverShrinks(Memory):
    largest = 0

    async def get_max_sequence(self):
        self.largest = max(self.largest, await super().get_max_sequence())
        return self.largest


@breaks("queries")
class CountsOnlyWhatThereIs(Memory):
    async def count_by_status(self):
        return {status: count for status, count in (await super().count_by_status()).items() if count}


@breaks("queries")
class TooManyVariables(Memory):
    async def get_many(self, ids):
        if len(ids) > 999:
            raise sqlite3.OperationalError("too many SQL variables")
        return await super().get_many(ids)


@breaks("paging")
class IgnoresTheLimit(Memory):
    async def get_by_status(self, status, *, limit=None, after=None):
        found = await super().get_by_status(status, limit=limit, after=after)
        return found if limit is None else await super().get_by_status(status, after=after)


@breaks("paging")
class TakesALimitOfZero(Memory):
    async def get_ready(self, now, limit, *, types=None):
        return await super().get_ready(now, limit, types=types) if limit > 0 else []


@breaks("paging")
class IgnoresAfter(Memory):
    async def get_by_status(self, status, *, limit=None, after=None):
        return await super().get_by_status(status, limit=limit)


@breaks("paging")
class LooksAfterUp(Memory):
    async def get_by_status(self, status, *, limit=None, after=None):
        found = await super().get_by_status(status)
        place = 0 if after is None else [task.id for task in found].index(after.id) + 1
        return found[place:][:limit]


@breaks("readiness")
class IgnoresThePriority(Memory):
    async def get_next_ready(self, now):
        return min(await super().get_ready(now, 10_000), key=order, default=None)


@breaks("readiness")
class ReadyByDueTime(Memory):
    async def get_next_ready(self, now):
        ready = await super().get_ready(now, 10_000)
        key = lambda task: (-task.priority, task.next_attempt_at or task.created_at, *order(task))  # noqa: E731
        return min(ready, key=key, default=None)


@breaks("readiness")
class HeldIsReady(Memory):
    async def get_next_ready(self, now):
        held = [task for task in await self.get_pending() if task.held]
        return held[0] if held else await super().get_next_ready(now)


@breaks("readiness")
class WaitingIsReady(Memory):
    async def get_next_ready(self, now):
        waiting = await self.get_by_status(TaskStatus.WAITING)
        return await super().get_next_ready(now) or next(iter(waiting), None)


@breaks("readiness")
class DueAfterItsTime(Memory):
    async def get_next_ready(self, now):
        found = await super().get_next_ready(now)
        return None if found is not None and found.next_attempt_at == now else found


@breaks("readiness")
class ReadsTheClock(Memory):
    async def get_next_ready(self, now):
        return await super().get_next_ready(datetime.now(UTC))


@breaks("readiness")
class TimeOnlyMovesOn(Memory):
    latest = datetime.min.replace(tzinfo=UTC)

    async def get_next_ready(self, now):
        self.latest = max(self.latest, now)
        return await super().get_next_ready(self.latest)


@breaks("readiness")
class WakeIgnoresRetries(Memory):
    async def get_next_wake_at(self):
        pending = [task for task in await self.get_pending() if not task.held]
        return min((task.next_attempt_at for task in pending if task.next_attempt_at), default=None)


@breaks("readiness")
class WakeIgnoresTheOverdue(Memory):
    now = datetime.min.replace(tzinfo=UTC)

    async def get_next_ready(self, now):
        self.now = now
        return await super().get_next_ready(now)

    async def get_next_wake_at(self):
        found = await super().get_next_wake_at()
        return None if found is None or found < self.now else found


@breaks("readiness")
class SomeTypesMeansAll(Memory):
    async def get_ready(self, now, limit, *, types=None):
        return await super().get_ready(now, limit)


@breaks("keys")
class TerminalHoldsItsKey(Memory):
    async def find_active_by_deduplication_key(self, key):
        return next((task for task in await self.get_all() if task.deduplication_key == key), None)


@breaks("keys")
class RetryHoldsNoKey(Memory):
    async def find_active_by_deduplication_key(self, key):
        found = await super().find_active_by_deduplication_key(key)
        return None if found is not None and found.status is TaskStatus.RETRY_SCHEDULED else found


@breaks("keys")
class FindsTheNewestHolder(Memory):
    async def find_active_by_deduplication_key(self, key):
        holders = [task for task in await self.get_all() if task.deduplication_key == key]
        return next((task for task in reversed(holders) if not task.status.is_terminal), None)


@breaks("keys")
class FoldsTheCaseOfKeys(Memory):
    async def find_active_by_deduplication_key(self, key):
        return next(
            (
                task
                for task in await self.get_all()
                if (task.deduplication_key or "").casefold() == key.casefold() and not task.status.is_terminal
            ),
            None,
        )


@breaks("dependents")
class ReturnsReleasedDependents(Memory):
    async def get_waiting_dependents(self, task_id):
        return await self.get_dependents(task_id)


@breaks("dependents")
class NamesWaitingDependentsOnly(Memory):
    async def get_dependent_ids(self, ids):
        return [task.id for task in await self.get_waiting_dependents_of(ids)]


@breaks("dependents")
class FindsPartsOfIds(Memory):
    async def get_waiting_dependents(self, task_id):
        waiting = await self.get_by_status(TaskStatus.WAITING)
        return [task for task in waiting if task_id in ",".join(task.depends_on)]


@breaks("dependents")
class OnlyTheFirstDependencyCounts(Memory):
    async def get_waiting_dependents(self, task_id):
        return [
            task for task in await super().get_waiting_dependents(task_id) if task.depends_on[0] == task_id
        ]


@breaks("dependents")
class DependentsOfStoredTasksOnly(Memory):
    async def get_waiting_dependents(self, task_id):
        return await super().get_waiting_dependents(task_id) if task_id in self._tasks else []


@breaks("dependents")
class JudgesOnlyWhenAllHaveEnded(Memory):
    async def get_judgeable(self, ids):
        found = await super().get_judgeable(ids)
        return [task for task in found if not self._is_obstructed(task, frozenset(ids))]


@breaks("dependents")
class BelievesWhatIsStored(Memory):
    async def get_judgeable(self, ids):
        found = await super().get_judgeable(ids)
        return [task for task in found if not self._is_obstructed(task, frozenset())]


@breaks("expiry")
class ExpiresWhatHasStarted(Memory):
    async def get_expired(self, now, limit):
        late = [
            task for task in await self.get_all() if task.expires_at is not None and task.expires_at <= now
        ]
        return sorted(late, key=lambda task: task.expires_at)[:limit]


@breaks("expiry")
class HeldNeverExpires(Memory):
    async def get_expired(self, now, limit):
        return [task for task in await super().get_expired(now, limit) if not task.held]


@breaks("expiry")
class NeverSaysWhenItExpires(Memory):
    async def get_next_expiry_at(self):
        return None
