"""Storages that read ahead wrongly, and the contract run on them. `test_teeth` runs this module and counts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import attrs

from durable_queue import MemoryQueueStorage as Memory
from durable_queue import TaskStatus
from durable_queue_sqlite import SqliteQueueStorage
from tests.contract.breaking import AREA_OF, breaks, order
from tests.contract.broken_writes import DamagedFile


async def head_of(storage, now, limit, **fields):
    """What the reference answers, with some of it changed."""
    return attrs.evolve(await Memory.read_ahead(storage, now, limit), **fields)


@breaks("ahead")
class ReadsAheadByAge(Memory):
    async def read_ahead(self, now, limit):
        ready = sorted(await self.get_ready(now, 10_000), key=order)
        return await head_of(self, now, limit, tasks=ready[:limit])


@breaks("ahead")
class ReadsAheadWhatIsHeld(Memory):
    async def read_ahead(self, now, limit):
        held = [task for task in await self.get_pending() if task.held]
        return (
            await head_of(self, now, limit, tasks=held[:limit]) if held else await head_of(self, now, limit)
        )


@breaks("ahead")
class ReadsAheadWhatIsNotDue(Memory):
    async def read_ahead(self, now, limit):
        return await head_of(self, now, limit, tasks=await self.get_ready(now + timedelta(seconds=1), limit))


@breaks("ahead")
class ReadsAheadOneTooMany(Memory):
    async def read_ahead(self, now, limit):
        return await head_of(self, now, limit, tasks=await self.get_ready(now, limit + 1))


@breaks("ahead")
class ReadsOldHeads(Memory):
    kept = None

    async def read_ahead(self, now, limit):
        self.kept = self.kept or await super().read_ahead(now, limit)
        return self.kept


@breaks("ahead")
class ReadsAheadNothingLarge(Memory):
    async def read_ahead(self, now, limit):
        head = await super().read_ahead(now, limit)
        room = 4 * 1024 * 1024
        small = [task for task in head.tasks if (room := room - len(task.payload_text)) >= 0]
        return attrs.evolve(head, tasks=small, is_all=head.is_all and small == head.tasks)


@breaks("ahead")
class CallsWhatIsSmallAll(Memory):
    async def read_ahead(self, now, limit):
        head = await super().read_ahead(now, limit)
        room = 4 * 1024 * 1024
        small = [task for task in head.tasks if (room := room - len(task.payload_text)) >= 0]
        return attrs.evolve(head, tasks=small or head.tasks[:1])


@breaks("ahead")
class AlwaysSaysAll(Memory):
    async def read_ahead(self, now, limit):
        return await head_of(self, now, limit, is_all=True)


@breaks("ahead")
class UntilIsTheNextWake(Memory):
    async def read_ahead(self, now, limit):
        wake = await self.get_next_wake_at()
        return await head_of(self, now, limit, until=wake if wake is not None and wake > now else None)


@breaks("ahead")
class UntilMayBeOver(Memory):
    async def read_ahead(self, now, limit):
        return await head_of(self, now, limit, until=await self.get_next_wake_at())


@breaks("ahead")
class UntilIgnoresRetries(Memory):
    async def read_ahead(self, now, limit):
        coming = [task.next_attempt_at for task in await self.get_pending() if not task.held]
        earliest = min((at for at in coming if at is not None and at > now), default=None)
        return await head_of(self, now, limit, until=earliest)


@breaks("ahead")
class UntilCountsTheHeld(Memory):
    async def read_ahead(self, now, limit):
        claimable = (TaskStatus.PENDING, TaskStatus.RETRY_SCHEDULED)
        coming = [task.next_attempt_at for task in await self.get_all() if task.status in claimable]
        earliest = min((at for at in coming if at is not None and at > now), default=None)
        return await head_of(self, now, limit, until=earliest)


@breaks("ahead")
class UntilOnlyMovesOn(Memory):
    latest = datetime.min.replace(tzinfo=UTC)

    async def read_ahead(self, now, limit):
        self.latest = max(self.latest, now)
        later = await super().read_ahead(self.latest, limit)
        return await head_of(self, now, limit, until=later.until)


@breaks("ahead")
class OnlyWaitingDependentsAreNamed(Memory):
    async def read_ahead(self, now, limit):
        head = await super().read_ahead(now, limit)
        named = [task.id for task in head.tasks if await self.get_waiting_dependents(task.id)]
        return attrs.evolve(head, with_dependents=named)


@breaks("ahead")
class NamesTheFirstDependencyOnly(Memory):
    async def read_ahead(self, now, limit):
        first = {task.depends_on[0] for task in await self.get_all() if task.depends_on}
        return await head_of(self, now, limit, with_dependents=first)


@breaks("ahead")
class NamesWhatHadDependentsWhenItWasRead(Memory):
    def __init__(self):
        super().__init__()
        self.childless = set()

    async def read_ahead(self, now, limit):
        head = await super().read_ahead(now, limit)
        self.childless |= {task.id for task in head.tasks} - head.with_dependents
        return attrs.evolve(head, with_dependents=head.with_dependents - self.childless)


@breaks("ahead")
class FoldsTheCaseOfNames(Memory):
    async def read_ahead(self, now, limit):
        head = await super().read_ahead(now, limit)
        return attrs.evolve(head, with_dependents={task_id.casefold() for task_id in head.with_dependents})


@breaks("ahead")
class ReadsAheadWithoutALimit(Memory):
    async def read_ahead(self, now, limit):
        return await super().read_ahead(now, max(limit, 1))


class StopsAtTheFirstPage(SqliteQueueStorage):
    """Does not look for readable records behind a page of unreadable ones."""

    async def read_ahead(self, now, limit):
        head = await super().read_ahead(now, limit)
        left_out = {error.task_id for error in await self.take_unreadable()}
        return attrs.evolve(head, tasks=head.tasks[: max(0, limit - len(left_out))])


class CallsThePageAll(SqliteQueueStorage):
    """Takes records that it has left out for the end of the order."""

    async def read_ahead(self, now, limit):
        head = await super().read_ahead(now, limit)
        return attrs.evolve(head, is_all=head.is_all or bool(await self.take_unreadable()))


class TestStopsAtTheFirstPage(DamagedFile):
    storage = StopsAtTheFirstPage


class TestCallsThePageAll(DamagedFile):
    storage = CallsThePageAll


AREA_OF["TestStopsAtTheFirstPage"] = AREA_OF["TestCallsThePageAll"] = "ahead"
