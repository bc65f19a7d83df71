"""Area: one live consumer, and what others do beside it (C11)."""

from __future__ import annotations

import pytest

from contract_tests._base import ContractBase, OpenStorage, fill, ids, in_status, make_task
from durable_queue import QueueInUseError, TaskStatus


class ConsumerArea(ContractBase):
    """See the module."""

    def _needs_whole_store(self) -> None:
        if not self.claims_whole_store:
            pytest.skip("this adapter's claim covers one storage object: claims_whole_store is not set")

    @pytest.mark.asyncio
    async def test_one_consumer_at_a_time(self, open_storage: OpenStorage) -> None:
        """C11.1, S7.9: a second claim is refused with QueueInUseError as long as the first one stands."""
        async with open_storage() as storage:
            await storage.acquire_consumer()
            for _ in range(2):
                with pytest.raises(QueueInUseError):
                    await storage.acquire_consumer()
            await storage.release_consumer()
            await storage.acquire_consumer()
            await storage.release_consumer()

    @pytest.mark.asyncio
    async def test_releasing_without_a_claim(self, open_storage: OpenStorage) -> None:
        """C11.2: giving back a claim that is not held does nothing."""
        async with open_storage() as storage:
            await storage.release_consumer()
            await storage.acquire_consumer()
            await storage.release_consumer()
            await storage.release_consumer()
            await storage.acquire_consumer()
            await storage.release_consumer()

    @pytest.mark.asyncio
    async def test_records_need_no_claim(self, open_storage: OpenStorage) -> None:
        """C11.3: reading and writing records needs no claim, and a claim changes no record."""
        async with open_storage() as storage:
            await storage.save(make_task("a"))
            await storage.acquire_consumer()
            await storage.save(make_task("b"))
            assert ids(await storage.get_all()) == ["a", "b"]

            await storage.release_consumer()
            await storage.delete("a")
            assert ids(await storage.get_all()) == ["b"]

    @pytest.mark.asyncio
    async def test_a_claim_ends_with_its_storage(self, open_storage: OpenStorage) -> None:
        """C11.4: a claim that was not given back is over when its storage object is closed."""
        async with open_storage() as storage:
            await storage.acquire_consumer()
            await storage.close()
        async with open_storage() as storage:
            await storage.acquire_consumer()
            await storage.release_consumer()

    @pytest.mark.asyncio
    async def test_a_claim_covers_the_whole_store(self, open_storage: OpenStorage) -> None:
        """C11.5, S7.9: a claim through one object refuses one through another, which may still read and insert."""
        self._needs_whole_store()
        async with open_storage() as first, open_storage() as second:
            await first.acquire_consumer()
            with pytest.raises(QueueInUseError):
                await second.acquire_consumer()
            await second.release_consumer()
            with pytest.raises(QueueInUseError):
                await second.acquire_consumer()
            await second.save(make_task("from outside"))
            assert ids(await first.get_all()) == ids(await second.get_all()) == ["from outside"]

            await first.release_consumer()
            await second.acquire_consumer()
            with pytest.raises(QueueInUseError):
                await first.acquire_consumer()

    @pytest.mark.asyncio
    async def test_own_writes_are_not_others(self, open_storage: OpenStorage) -> None:
        """C11.6: `changes_elsewhere` does not report what was written through the same object."""
        async with open_storage() as storage:
            await storage.changes_elsewhere()
            await fill(storage, make_task("a"), in_status(TaskStatus.WAITING, "b", depends_on=("a",)))
            await storage.delete("a")

            assert await storage.changes_elsewhere() in (None, [])

    @pytest.mark.asyncio
    async def test_waiting_tasks_of_others_are_named(self, open_storage: OpenStorage) -> None:
        """C11.7, S13.6: `changes_elsewhere` notices what others wrote and names their waiting tasks, once."""
        self._needs_whole_store()
        async with open_storage() as first, open_storage() as second:
            await first.changes_elsewhere()
            await second.save(make_task("pending"))
            assert await first.changes_elsewhere() == []

            await fill(
                second, in_status(TaskStatus.WAITING, "waits", depends_on=("pending",)), make_task("more")
            )
            assert await first.changes_elsewhere() == ["waits"]
            assert await first.changes_elsewhere() is None
