"""Storages with a fault in how they write or keep records. `test_teeth` runs this module and counts."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing

import attrs
import pytest

from contract_tests import QueueStorageContract
from durable_queue import (
    CorruptRecordError,
    Delete,
    QueueStorage,
    Save,
    StoredTask,
    TaskAlreadyExistsError,
    TaskNotFoundError,
    TaskStatus,
)
from durable_queue import MemoryQueueStorage as Memory
from durable_queue_sqlite import SqliteQueueStorage
from tests.contract.breaking import AREA_OF, breaks, order


class ForgettingStorage(Memory):
    """Base of those that store something else than they were given."""

    def changed(self, task: StoredTask) -> StoredTask:
        raise NotImplementedError

    async def save(self, task):
        await super().save(self.changed(task))

    async def update(self, task):
        await super().update(self.changed(task))

    async def apply(self, changes):
        await QueueStorage.apply(self, changes)


@breaks("records")
class ForgetsTheHandOff(ForgettingStorage):
    def changed(self, task):
        return attrs.evolve(task, hand_off_reference=None)


@breaks("records")
class RoundsToMilliseconds(ForgettingStorage):
    def changed(self, task):
        at = task.updated_at
        return attrs.evolve(task, updated_at=at.replace(microsecond=at.microsecond // 1000 * 1000))


@breaks("records")
class SortsDependencies(ForgettingStorage):
    def changed(self, task):
        return attrs.evolve(task, depends_on=sorted(task.depends_on))


@breaks("records")
class OverwritesOnSave(Memory):
    async def save(self, task):
        self._put(task)


@breaks("records")
class UpdateCreates(Memory):
    async def update(self, task):
        self._put(task)


@breaks("records")
class DeleteOfNothingRaises(Memory):
    async def delete(self, task_id):
        if task_id not in self._tasks:
            raise TaskNotFoundError(task_id)
        await super().delete(task_id)


@breaks("records")
class KeepsOldGroups(Memory):
    def __init__(self):
        super().__init__()
        self._groups = set()

    def _put(self, task):
        self._groups.add((task.group, task.id))
        super()._put(task)

    async def get_by_group(self, group, *, status=None):
        members = [self._tasks[one] for name, one in self._groups if name == group and one in self._tasks]
        return sorted((task for task in members if status in (None, task.status)), key=order)


@breaks("apply")
class SaysItIsAtomic(Memory):
    apply = QueueStorage.apply


@breaks("apply")
class DeletesFirst(Memory):
    async def apply(self, changes):
        await super().apply(sorted(changes, key=lambda change: not isinstance(change, Delete)))


@breaks("apply")
class RefusesAnEqualSave(Memory):
    async def apply(self, changes):
        for change in changes:
            if isinstance(change, Save) and change.task.id in self._tasks:
                raise TaskAlreadyExistsError(change.task.id)
        await super().apply(changes)


@breaks("apply")
class LeavesAPrefix(Memory):
    atomic = False

    async def apply(self, changes):
        for change in changes:
            await super().apply([change])


@breaks("concurrency")
class ChecksThenInserts(Memory):
    async def save(self, task):
        if task.id in self._tasks:
            raise TaskAlreadyExistsError(task.id)
        await asyncio.sleep(0)
        self._put(task)


@breaks("concurrency")
class UpdatesInTwoParts(Memory):
    async def update(self, task):
        await super().update(attrs.evolve(self._tasks.get(task.id, task), status=task.status))
        await asyncio.sleep(0)
        await super().update(task)


@breaks("concurrency")
class StaysLockedWhenCancelled(Memory):
    busy = False

    async def save(self, task):
        while self.busy:
            await asyncio.sleep(0)
            # A test that hangs would tell as much, later.
            self.turns = getattr(self, "turns", 0) + 1
            if self.turns > 1_000:
                raise TimeoutError
        self.busy = True
        await asyncio.sleep(0)
        await super().save(task)
        self.busy = False


@breaks("durability", durable=True)
class IsNotDurable(Memory):
    pass


@breaks("durability", durable=True, kept=True)
class ResetsWhatWasRunning(Memory):
    async def __aenter__(self):
        for task in await self.get_by_status(TaskStatus.RUNNING):
            await self.update(attrs.evolve(task, status=TaskStatus.PENDING))
        return self


@breaks("durability", durable=True, kept=True)
class LosesIndexesWhenReopened(Memory):
    async def __aenter__(self):
        self._by_group = type(self._by_group)(lambda task: [])
        return self


@breaks("durability")
class CannotBeClosedTwice(Memory):
    closed = False

    async def close(self):
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True


@breaks("consumer")
class AnyNumberOfConsumers(Memory):
    async def acquire_consumer(self):
        pass


@breaks("consumer")
class NeverGivesTheClaimBack(Memory):
    async def release_consumer(self):
        pass


@breaks("consumer")
class ReportsItsOwnWrites(Memory):
    async def changes_elsewhere(self):
        return [task.id for task in await self.get_by_status(TaskStatus.WAITING)]


@breaks("consumer", claims_whole_store=True, kept=False)
class ClaimsTheObjectOnly(Memory):
    pass


@breaks("unreadable")
class ReportsWithoutReason(Memory):
    async def take_unreadable(self):
        return [CorruptRecordError("is odd", task_id=task.id) for task in await self.get_all()]


@breaks("walk")
class CountsTheHeldOfAnyStatus(Memory):
    async def count_held(self):
        return sum(task.held for task in self._tasks.values())


@breaks("walk", durable=True, kept=True)
class ForgetsTheHeldWhenReopened(Memory):
    async def __aenter__(self):
        self._held = 0
        return self


class DamagedFile(QueueStorageContract):
    """Base of the contract run on a broken SQLite storage whose records are damaged."""

    durable = True
    storage: type[SqliteQueueStorage]

    @pytest.fixture
    def open_storage(self, tmp_path):
        return lambda: self.storage(tmp_path / "queue.db")

    @pytest.fixture
    def damage(self, tmp_path):
        async def damage(task_id):
            with closing(sqlite3.connect(tmp_path / "queue.db")) as connection, connection:
                connection.execute("UPDATE tasks SET retry_policy = 'no policy' WHERE id = ?", (task_id,))

        return damage


class SilentAboutTheUnreadable(SqliteQueueStorage):
    async def take_unreadable(self):
        return []


class StopsAtTheUnreadable(SqliteQueueStorage):
    async def get_next_ready(self, now):
        found = await super().get_next_ready(now)
        for error in await self.take_unreadable():
            raise error
        return found


class TestSilentAboutTheUnreadable(DamagedFile):
    storage = SilentAboutTheUnreadable


class TestStopsAtTheUnreadable(DamagedFile):
    storage = StopsAtTheUnreadable


AREA_OF["TestSilentAboutTheUnreadable"] = AREA_OF["TestStopsAtTheUnreadable"] = "unreadable"


class TestUnbroken(QueueStorageContract):
    """The control: passes everything."""

    answers_expiry = True

    @pytest.fixture
    def open_storage(self):
        return Memory
