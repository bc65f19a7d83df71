"""Area: what is left when the store is closed and opened again (C10)."""

from __future__ import annotations

import asyncio

import pytest

from contract_tests._base import (
    EVERY_STATUS,
    NASTY,
    SECOND,
    T0,
    TICK,
    ContractBase,
    OpenStorage,
    fill,
    full_task,
    ids,
    in_status,
    make_task,
)
from contract_tests._queries import in_order, shuffled
from contract_tests._records import assert_same_list
from durable_queue import Delete, Save, TaskAlreadyExistsError, TaskNotFoundError, TaskStatus, Update


class DurabilityArea(ContractBase):
    """See the module."""

    def _needs_durable(self) -> None:
        if not self.durable:
            pytest.skip("this adapter does not outlive its process: durable is not set")

    @pytest.mark.asyncio
    async def test_records_outlive_the_storage_object(self, open_storage: OpenStorage) -> None:
        """C10.1: every acknowledged record is there after close and reopen, equal field by field."""
        self._needs_durable()
        tasks = [
            *(make_task(text, group=text, type=text, deduplication_key=text) for text in sorted(NASTY)),
            full_task(),
            *(full_task(f"s{n}", status=status, sequence=50 + n) for n, status in enumerate(EVERY_STATUS)),
        ]
        async with open_storage() as storage:
            for task in tasks:
                await storage.save(task)
        for _ in range(2):
            async with open_storage() as storage:
                assert_same_list(await storage.get_all(), tasks)

    @pytest.mark.asyncio
    async def test_changes_outlive_the_storage_object(self, open_storage: OpenStorage) -> None:
        """C10.1: updates, deletes and lists of changes are there after close and reopen as well."""
        self._needs_durable()
        async with open_storage() as storage:
            await fill(storage, *(make_task(f"t{n}") for n in range(6)))
            await storage.update(full_task("t1", status=TaskStatus.COMPLETED))
            await storage.delete("t2")
        async with open_storage() as storage:
            assert ids(await storage.get_all()) == ["t0", "t3", "t4", "t5", "t1"]
            await storage.apply([Delete("t3"), Update(make_task("t4", priority=4)), Save(make_task("t6"))])
        async with open_storage() as storage:
            assert ids(await storage.get_all()) == ["t0", "t4", "t5", "t6", "t1"]
            assert await storage.get("t1") == full_task("t1", status=TaskStatus.COMPLETED)
            assert await storage.get("t4") == make_task("t4", priority=4)

    @pytest.mark.asyncio
    async def test_queries_answer_after_reopening(self, open_storage: OpenStorage) -> None:
        """C10.2: after reopening every query answers as it did before."""
        self._needs_durable()
        async with open_storage() as storage:
            await fill(storage, *shuffled(in_order(TaskStatus.COMPLETED, group="done")))
            await fill(
                storage,
                make_task("low", sequence=2, deduplication_key="k", expires_at=T0 + SECOND),
                make_task("high", sequence=3, priority=3, next_attempt_at=T0 + TICK),
                in_status(TaskStatus.RETRY_SCHEDULED, "retry", priority=1, next_attempt_at=T0),
                make_task("held", priority=9, held=True, next_attempt_at=T0 - SECOND),
                in_status(TaskStatus.WAITING, "waits", depends_on=("low", "gone"), group="g", sequence=70),
            )
        async with open_storage() as storage:
            assert ids(await storage.get_by_status(TaskStatus.COMPLETED)) == ids(in_order())
            assert ids(await storage.get_by_group("done")) == ids(in_order())
            assert ids(await storage.get_pending()) == ["held", "low", "high"]
            assert ids([await storage.get_next_ready(T0)]) == ["retry"]
            assert ids([await storage.get_next_ready(T0 - TICK)]) == ["low"]
            assert ids([await storage.get_next_ready(T0 + TICK)]) == ["high"]
            assert await storage.get_next_wake_at() == T0
            assert await storage.get_max_sequence() == 70
            assert ids([await storage.find_active_by_deduplication_key("k")]) == ["low"]
            assert ids(await storage.get_waiting_dependents("gone")) == ["waits"]
            assert ids(await storage.get_by_group("g", status=TaskStatus.WAITING)) == ["waits"]
            assert await storage.count_held() == 1
            assert (await storage.count_by_status())[TaskStatus.COMPLETED] == 10
            assert ids(await storage.get_expired(T0 + SECOND, 9)) in (["low"], [])

    @pytest.mark.asyncio
    async def test_known_ids_stay_known(self, open_storage: OpenStorage) -> None:
        """C3.2, C3.3, C10.2: after reopening a stored id is still taken and a deleted one still unknown."""
        self._needs_durable()
        async with open_storage() as storage:
            await fill(storage, make_task("kept"), make_task("deleted"))
            await storage.delete("deleted")
        async with open_storage() as storage:
            with pytest.raises(TaskAlreadyExistsError):
                await storage.save(make_task("kept", priority=1))
            with pytest.raises(TaskNotFoundError):
                await storage.update(make_task("deleted"))
            assert await storage.get_all() == [make_task("kept")]

    @pytest.mark.asyncio
    async def test_running_tasks_are_left_alone(self, open_storage: OpenStorage) -> None:
        """C10.3, S7.1, S9.1: opening a store changes no record; running ones stay running, handed off or not."""
        self._needs_durable()
        interrupted = full_task("interrupted", hand_off_reference=None, hand_off_deadline=None)
        handed_off = full_task("handed off")
        async with open_storage() as storage:
            await fill(storage, interrupted, handed_off)
        for _ in range(2):
            async with open_storage() as storage:
                assert_same_list(await storage.get_by_status(TaskStatus.RUNNING), [handed_off, interrupted])

    @pytest.mark.asyncio
    async def test_a_cancelled_write_is_whole_or_nothing_after_reopening(
        self, open_storage: OpenStorage
    ) -> None:
        """C1.4, C10.1: a write cancelled shortly before closing is there whole or not at all."""
        self._needs_durable()
        for turns in range(4):
            old, new = make_task("one", attempts=turns), full_task("one", attempts=turns)
            async with open_storage() as storage:
                await storage.delete("one")
                await storage.save(old)
                call = asyncio.create_task(storage.update(new))
                for _ in range(turns):
                    await asyncio.sleep(0)
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
            async with open_storage() as storage:
                stored = await storage.get_all()
                assert stored in ([old], [new])
                assert await storage.get_by_group("group-1") == [task for task in stored if task == new]

    @pytest.mark.asyncio
    async def test_closing_twice(self, open_storage: OpenStorage) -> None:
        """C10.4: closing a storage again does nothing."""
        async with open_storage() as storage:
            await storage.save(make_task())
            await storage.close()
            await storage.close()
