"""Area: tasks whose time is over before they started (C8)."""

from __future__ import annotations

import pytest

from contract_tests._base import (
    EVERY_STATUS,
    SECOND,
    T0,
    TICK,
    ContractBase,
    OpenStorage,
    fill,
    ids,
    in_status,
    make_task,
)
from durable_queue import TaskStatus

CAN_EXPIRE = {"pending", "waiting", "retryScheduled"}


class ExpiryArea(ContractBase):
    """See the module."""

    def _needs_answers(self) -> None:
        if not self.answers_expiry:
            pytest.skip("this adapter leaves expiry to the queue: answers_expiry is not set")

    @pytest.mark.asyncio
    async def test_what_has_not_expired_is_not_returned(self, open_storage: OpenStorage) -> None:
        """C8.1, S8.1: `get_expired` returns no record that has started, ended, or still has time."""
        async with open_storage() as storage:
            await fill(
                storage,
                *(
                    in_status(status, f"started {status.value}", attempts=1, expires_at=T0)
                    for status in EVERY_STATUS
                ),
                *(
                    in_status(status, f"not waiting {status.value}", expires_at=T0)
                    for status in EVERY_STATUS
                    if status.value not in CAN_EXPIRE
                ),
                make_task("has time", expires_at=T0 + TICK),
                make_task("never"),
            )
            assert await storage.get_expired(T0, 100) == []
            assert await storage.get_next_expiry_at() in (None, T0 + TICK)

    @pytest.mark.asyncio
    async def test_what_has_expired_is_returned(self, open_storage: OpenStorage) -> None:
        """C8.2, S8.1: `get_expired` returns the records that can expire and whose time is reached, held or not."""
        self._needs_answers()
        async with open_storage() as storage:
            for held in (False, True):
                for status in EVERY_STATUS:
                    task = in_status(status, held=held, expires_at=T0, next_attempt_at=T0 + SECOND)
                    await storage.save(task)
                    expected = [status.value] if status.value in CAN_EXPIRE else []
                    assert await storage.get_expired(T0 - TICK, 5) == []
                    assert ids(await storage.get_expired(T0, 5)) == expected
                    assert ids(await storage.get_expired(T0 + TICK, 5)) == expected
                    assert await storage.get_next_expiry_at() == (T0 if expected else None)
                    await storage.delete(task.id)

    @pytest.mark.asyncio
    async def test_the_earliest_expiry_first(self, open_storage: OpenStorage) -> None:
        """C8.3: expired records come by their expires_at, at most `limit`, whatever their priority or age."""
        self._needs_answers()
        async with open_storage() as storage:
            await fill(
                storage,
                make_task("third", expires_at=T0 + 3 * TICK, priority=9, created_at=T0 - SECOND),
                in_status(TaskStatus.WAITING, "first", expires_at=T0 + TICK, created_at=T0 + SECOND),
                in_status(TaskStatus.RETRY_SCHEDULED, "second", expires_at=T0 + 2 * TICK),
            )
            expected = ["first", "second", "third"]
            for limit in (1, 2, 3, 4):
                assert ids(await storage.get_expired(T0 + SECOND, limit)) == expected[:limit]
            assert ids(await storage.get_expired(T0 + 2 * TICK, 9)) == ["first", "second"]
            assert await storage.get_expired(T0, 9) == []

    @pytest.mark.asyncio
    async def test_the_next_expiry_follows_the_records(self, open_storage: OpenStorage) -> None:
        """C8.4: the next expiry is the earliest of those that can expire, overdue or not, after every change."""
        self._needs_answers()
        async with open_storage() as storage:
            assert await storage.get_next_expiry_at() is None
            await fill(storage, make_task("a", expires_at=T0 + SECOND), make_task("b", expires_at=T0 + TICK))
            assert await storage.get_next_expiry_at() == T0 + TICK

            await storage.get_expired(T0 + 2 * SECOND, 1)
            assert await storage.get_next_expiry_at() == T0 + TICK

            await storage.update(in_status(TaskStatus.RUNNING, "b", attempts=1, expires_at=T0 + TICK))
            assert await storage.get_next_expiry_at() == T0 + SECOND

            await storage.update(in_status(TaskStatus.RETRY_SCHEDULED, "b", attempts=1, expires_at=T0 + TICK))
            assert await storage.get_next_expiry_at() == T0 + SECOND

            await storage.update(make_task("b", attempts=0, expires_at=T0 - SECOND))
            assert await storage.get_next_expiry_at() == T0 - SECOND

            await storage.update(make_task("b"))
            await storage.delete("a")
            assert await storage.get_next_expiry_at() is None
            assert await storage.get_expired(T0 + 9 * SECOND, 9) == []
