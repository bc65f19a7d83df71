"""Area: limits and continuing after a record (C4.11, C4.12)."""

from __future__ import annotations

from functools import partial

import pytest

from contract_tests._base import (
    EVERY_STATUS,
    T0,
    TICK,
    ContractBase,
    OpenStorage,
    fill,
    ids,
    in_status,
    make_task,
)
from contract_tests._queries import in_order, shuffled
from durable_queue import StoredTask, TaskStatus


class PagingArea(ContractBase):
    """See the module."""

    @pytest.mark.asyncio
    async def test_a_limit_bounds_the_list(self, open_storage: OpenStorage) -> None:
        """C4.11: `limit` returns the first so many, everything when there are fewer, for each status."""
        async with open_storage() as storage:
            for status in EVERY_STATUS:
                await fill(storage, *(in_status(status, f"{status.value}{n}", sequence=n) for n in (3, 1, 2)))
            for status in EVERY_STATUS:
                for limit, wanted in ((1, "1"), (2, "12"), (3, "123"), (4, "123"), (10_000, "123")):
                    found = await storage.get_by_status(status, limit=limit)
                    assert ids(found) == [f"{status.value}{digit}" for digit in wanted]

    @pytest.mark.asyncio
    async def test_a_limit_below_one_is_refused(self, open_storage: OpenStorage) -> None:
        """C1.6: a limit below 1 is a ValueError wherever there is a limit, with records stored or without."""
        async with open_storage() as storage:
            for stored in ([], [make_task(expires_at=T0)]):
                await fill(storage, *stored)
                for limit in (0, -1):
                    for ask in (
                        partial(storage.get_by_status, TaskStatus.PENDING, limit=limit),
                        partial(storage.get_ready, T0, limit),
                        partial(storage.get_ready, T0, limit, types=["mail"]),
                        partial(storage.get_expired, T0, limit),
                    ):
                        with pytest.raises(ValueError):  # noqa: PT011 - the words are the adapter's own
                            await ask()

    @pytest.mark.asyncio
    async def test_after_continues_where_it_left_off(self, open_storage: OpenStorage) -> None:
        """C4.12: pages of every size, each asked for after the last record of the one before, give the whole list."""
        async with open_storage() as storage:
            await fill(storage, *shuffled(in_order(TaskStatus.RUNNING)), make_task("other"))
            expected = ids(in_order())
            for size in (1, 3, 10, 11):
                walked: list[StoredTask] = []
                # Bounded, because an adapter that ignores `after` gives a first page without end.
                for _ in range(len(expected) + 1):
                    after = walked[-1] if walked else None
                    page = await storage.get_by_status(TaskStatus.RUNNING, limit=size, after=after)
                    assert len(page) <= size
                    walked += page
                assert ids(walked) == expected

    @pytest.mark.asyncio
    async def test_after_without_a_limit(self, open_storage: OpenStorage) -> None:
        """C4.12: `after` alone returns all that comes later, and nothing after the last."""
        async with open_storage() as storage:
            tasks = in_order()
            await fill(storage, *shuffled(tasks))
            for place, task in enumerate(tasks):
                found = await storage.get_by_status(TaskStatus.PENDING, after=task)
                assert ids(found) == ids(tasks)[place + 1 :]

    @pytest.mark.asyncio
    async def test_after_a_record_that_is_gone(self, open_storage: OpenStorage) -> None:
        """C4.12: `after` is a place in the order: its record may be changed, deleted, or never have been stored."""
        async with open_storage() as storage:
            tasks = in_order(TaskStatus.RUNNING)
            await fill(storage, *tasks)
            third, fourth = tasks[2], tasks[3]
            await storage.delete(third.id)
            assert ids(await storage.get_by_status(TaskStatus.RUNNING, after=third)) == ids(tasks)[3:]

            await storage.update(make_task(fourth.id, status=TaskStatus.FAILED, created_at=T0, sequence=10))
            assert ids(await storage.get_by_status(TaskStatus.RUNNING, after=third)) == ids(tasks)[4:]
            assert ids(await storage.get_by_status(TaskStatus.RUNNING, after=fourth)) == ids(tasks)[4:]
            assert await storage.get_by_status(TaskStatus.FAILED, after=fourth) == []

            before = make_task("never stored", created_at=T0 - 2 * TICK)
            beyond = make_task("never stored", created_at=T0 + 2 * TICK)
            between = make_task("b!", created_at=T0, sequence=1)
            assert len(await storage.get_by_status(TaskStatus.RUNNING, after=before)) == 8
            assert await storage.get_by_status(TaskStatus.RUNNING, after=beyond) == []
            found = await storage.get_by_status(TaskStatus.RUNNING, after=between, limit=2)
            assert ids(found) == ["b-", "e"]

    @pytest.mark.asyncio
    async def test_after_looks_at_the_place_only(self, open_storage: OpenStorage) -> None:
        """C4.12: neither priority, nor status, nor due time of the record given as `after` matters."""
        async with open_storage() as storage:
            await fill(storage, *(make_task(f"t{n}", sequence=n, priority=n) for n in range(4)))
            place = in_status(TaskStatus.FAILED, "t1", sequence=1, priority=-50, next_attempt_at=T0)

            assert ids(await storage.get_by_status(TaskStatus.PENDING, after=place)) == ["t2", "t3"]

    @pytest.mark.asyncio
    async def test_batches_that_leave_their_status_end(self, open_storage: OpenStorage) -> None:
        """C4.11, C4.12, S7.1: running records that are read in batches and leave their status are each met once."""
        async with open_storage() as storage:
            await fill(
                storage, *(in_status(TaskStatus.RUNNING, f"r{n:02}", sequence=n // 3) for n in range(25))
            )
            met: list[StoredTask] = []
            for _ in range(4):
                after = met[-1] if met else None
                batch = await storage.get_by_status(TaskStatus.RUNNING, limit=10, after=after)
                assert len(batch) <= 10
                for task in batch:
                    await storage.update(make_task(task.id, sequence=task.sequence, attempts=1))
                met += batch

            assert ids(met) == [f"r{n:02}" for n in range(25)]
            assert await storage.get_by_status(TaskStatus.RUNNING) == []
            assert len(await storage.get_pending()) == 25
