"""Area: deduplication keys (C6)."""

from __future__ import annotations

import pytest

from contract_tests._base import (
    ACTIVE,
    EVERY_STATUS,
    LOOKALIKES,
    NASTY,
    T0,
    TERMINAL,
    TICK,
    ContractBase,
    OpenStorage,
    fill,
    ids,
    in_status,
    make_task,
)
from durable_queue import TaskStatus


class KeysArea(ContractBase):
    """See the module."""

    @pytest.mark.asyncio
    async def test_an_active_task_holds_its_key(self, open_storage: OpenStorage) -> None:
        """C6.1, S2.3: active tasks are found by their key, terminal ones are not."""
        async with open_storage() as storage:
            for status in EVERY_STATUS:
                await storage.save(in_status(status, deduplication_key=f"key-{status.value}"))
            for status in ACTIVE:
                found = await storage.find_active_by_deduplication_key(f"key-{status.value}")
                assert ids([found]) == [status.value]
            for status in TERMINAL:
                assert await storage.find_active_by_deduplication_key(f"key-{status.value}") is None

    @pytest.mark.asyncio
    async def test_held_and_scheduled_tasks_hold_their_key(self, open_storage: OpenStorage) -> None:
        """C6.1: being held, not due, or past its expiry changes nothing about a key."""
        async with open_storage() as storage:
            await fill(
                storage,
                make_task("h", deduplication_key="held", held=True),
                make_task("l", deduplication_key="later", next_attempt_at=T0 + TICK),
                make_task("e", deduplication_key="expired", expires_at=T0 - TICK),
            )
            found = [
                await storage.find_active_by_deduplication_key(key) for key in ("held", "later", "expired")
            ]
            assert ids(found) == ["h", "l", "e"]

    @pytest.mark.asyncio
    async def test_the_oldest_holder_is_found(self, open_storage: OpenStorage) -> None:
        """C6.2: of several active holders the first in order is found, whatever its priority and status."""
        async with open_storage() as storage:
            key = {"deduplication_key": "k"}
            await fill(
                storage,
                in_status(TaskStatus.PENDING, "new", created_at=T0 + TICK, priority=9, **key),
                in_status(TaskStatus.WAITING, "b", sequence=2, **key),
                in_status(TaskStatus.RETRY_SCHEDULED, "a", sequence=2, **key),
                in_status(TaskStatus.RUNNING, "z", sequence=1, **key),
                in_status(TaskStatus.FAILED, "ended", created_at=T0 - TICK, **key),
            )
            for expected in ("z", "a", "b", "new"):
                assert ids([await storage.find_active_by_deduplication_key("k")]) == [expected]
                await storage.delete(expected)
            assert await storage.find_active_by_deduplication_key("k") is None

    @pytest.mark.asyncio
    async def test_a_key_follows_the_status(self, open_storage: OpenStorage) -> None:
        """C6.3: a key is free once its holder is terminal, and taken again when the holder is active again."""
        async with open_storage() as storage:
            await storage.save(make_task(deduplication_key="k"))
            for status in (*EVERY_STATUS, *EVERY_STATUS[::-1]):
                await storage.update(in_status(status, "task", deduplication_key="k"))
                found = await storage.find_active_by_deduplication_key("k")
                assert ids([found]) == (["task"] if status in ACTIVE else [None])

    @pytest.mark.asyncio
    async def test_a_key_is_compared_exactly(self, open_storage: OpenStorage) -> None:
        """C1.5, C6.4: keys are compared exactly, across types, and a task without one has none."""
        names = LOOKALIKES + NASTY
        async with open_storage() as storage:
            await storage.save(make_task("none"))
            await fill(
                storage,
                *(make_task(f"t{n}", deduplication_key=key, type=f"type{n}") for n, key in enumerate(names)),
            )
            for number, key in enumerate(names):
                found = await storage.find_active_by_deduplication_key(key)
                assert ids([found]) == [f"t{number}"]
            for unknown in ("None", "nobody", "k", "%"):
                assert await storage.find_active_by_deduplication_key(unknown) is None

    @pytest.mark.asyncio
    async def test_the_idempotency_key_is_another_key(self, open_storage: OpenStorage) -> None:
        """C6.4, S2.3: the idempotency key, the group and the type are no deduplication keys."""
        async with open_storage() as storage:
            await storage.save(
                make_task("id", idempotency_key="k", group="k", type="k", hand_off_reference="k")
            )

            assert await storage.find_active_by_deduplication_key("k") is None
