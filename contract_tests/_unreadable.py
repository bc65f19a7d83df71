"""Area: one record that cannot be read stops nothing (C12)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from contract_tests._base import T0, ContractBase, Damage, OpenStorage, fill, ids, in_status, make_task
from durable_queue import CorruptRecordError, QueueStorage, TaskAlreadyExistsError, TaskStatus


class UnreadableArea(ContractBase):
    """See the module."""

    @asynccontextmanager
    async def _with_a_damaged_record(
        self, open_storage: OpenStorage, damage: Damage | None
    ) -> AsyncIterator[QueueStorage]:
        if damage is None:
            pytest.skip(
                "this adapter's tests offer no way to damage a record: the fixture damage is not overridden"
            )
        async with open_storage() as storage:
            await fill(
                storage,
                make_task("bad", priority=9, group="g", deduplication_key="k", expires_at=T0),
                make_task("good", group="g", sequence=1),
                in_status(TaskStatus.WAITING, "good waits", group="g", depends_on=("bad",), sequence=2),
                in_status(TaskStatus.WAITING, "bad waits", group="g", depends_on=("good",), sequence=3),
            )
        await damage("bad")
        await damage("bad waits")
        async with open_storage() as storage:
            yield storage

    @pytest.mark.asyncio
    async def test_nothing_to_report(self, open_storage: OpenStorage) -> None:
        """C12.1: as long as every record can be read there is nothing for `take_unreadable` to return."""
        async with open_storage() as storage:
            await fill(storage, make_task("a"), make_task("b"))
            await storage.get_all()
            await storage.get_next_ready(T0)

            assert await storage.take_unreadable() == []

    @pytest.mark.asyncio
    async def test_get_says_so(self, open_storage: OpenStorage, damage: Damage | None) -> None:
        """C12.2, S7.3: `get` of an unreadable record raises CorruptRecordError with its id."""
        async with self._with_a_damaged_record(open_storage, damage) as storage:
            for _ in range(2):
                with pytest.raises(CorruptRecordError) as caught:
                    await storage.get("bad")
                assert caught.value.task_id == "bad"
            assert ids([await storage.get("good")]) == ["good"]

    @pytest.mark.asyncio
    async def test_queries_leave_it_out(self, open_storage: OpenStorage, damage: Damage | None) -> None:
        """C12.3, S7.3, S13.12: every other query leaves an unreadable record out and answers with the rest."""
        async with self._with_a_damaged_record(open_storage, damage) as storage:
            assert ids([await storage.get_next_ready(T0)]) == ids(await storage.get_ready(T0, 1)) == ["good"]
            assert ids(await storage.get_ready(T0, 5, types=["mail"])) == ["good"]
            assert ids(await storage.get_pending()) == ["good"]
            assert ids(await storage.get_by_status(TaskStatus.PENDING, limit=1)) == ["good"]
            assert (
                ids(await storage.get_all()) == ids(await storage.get_by_group("g")) == ["good", "good waits"]
            )
            assert ids(await storage.get_by_group("g", status=TaskStatus.WAITING)) == ["good waits"]
            assert await storage.find_active_by_deduplication_key("k") is None
            assert ids(await storage.get_waiting_dependents("bad")) == ["good waits"]
            assert await storage.get_waiting_dependents("good") == await storage.get_judgeable(["good"]) == []
            assert await storage.get_expired(T0, 5) == []

    @pytest.mark.asyncio
    async def test_what_was_left_out_is_reported(
        self, open_storage: OpenStorage, damage: Damage | None
    ) -> None:
        """C12.4, S13.12: `take_unreadable` returns what queries left out since the last call, and forgets it."""
        async with self._with_a_damaged_record(open_storage, damage) as storage:
            assert ids([await storage.get_next_ready(T0)]) == ["good"]
            await storage.get_all()
            reported = await storage.take_unreadable()

            assert {error.task_id for error in reported} == {"bad", "bad waits"}
            assert all(isinstance(error, CorruptRecordError) for error in reported)
            assert await storage.take_unreadable() == []

    @pytest.mark.asyncio
    async def test_its_id_is_taken_until_it_is_deleted(
        self, open_storage: OpenStorage, damage: Damage | None
    ) -> None:
        """C12.5, S13.12: an unreadable record keeps its id and can be deleted; then the id is free."""
        async with self._with_a_damaged_record(open_storage, damage) as storage:
            with pytest.raises((TaskAlreadyExistsError, CorruptRecordError)):
                await storage.save(make_task("bad"))
            await storage.delete("bad")
            assert await storage.get("bad") is None

            await storage.save(make_task("bad"))
            assert ids(await storage.get_pending()) == ["bad", "good"]
