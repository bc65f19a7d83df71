"""Area: who is ready, in which order, and when somebody will be (C5)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from contract_tests._base import (
    EVERY_STATUS,
    LOOKALIKES,
    NASTY,
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
from durable_queue import QueueStorage, StoredTask, TaskStatus


async def drained(storage: QueueStorage, now: datetime) -> list[str]:
    """Claim everything that is ready, one by one, and return the ids in the order of the claims."""
    claimed: list[str] = []
    while (task := await storage.get_next_ready(now)) and task.id not in claimed:
        claimed.append(task.id)
        await storage.delete(task.id)
    return claimed


async def ready_ids(storage: QueueStorage, now: datetime) -> list[str | None]:
    """Return the next ready id, after checking that `get_ready` agrees about it."""
    head = await storage.get_next_ready(now)
    several = await storage.get_ready(now, 100)
    assert ids(several[:1]) == ids([] if head is None else [head])
    return ids(several[:1])


class ReadinessArea(ContractBase):
    """See the module."""

    @pytest.mark.asyncio
    async def test_only_pending_and_retry_scheduled_are_ready(self, open_storage: OpenStorage) -> None:
        """C5.1, S3.1: of all statuses only pending and retryScheduled are ever ready."""
        ready = {TaskStatus.PENDING, TaskStatus.RETRY_SCHEDULED}
        async with open_storage() as storage:
            for status in EVERY_STATUS:
                task = in_status(status, next_attempt_at=T0)
                await storage.save(task)
                assert await ready_ids(storage, T0) == ([status.value] if status in ready else [])
                assert await storage.get_next_wake_at() == (T0 if status in ready else None)
                await storage.delete(task.id)

    @pytest.mark.asyncio
    async def test_ready_at_its_time_and_not_before(self, open_storage: OpenStorage) -> None:
        """C5.2, S3.1: a task is ready from the microsecond of its next_attempt_at on; without one, always."""
        async with open_storage() as storage:
            for status in (TaskStatus.PENDING, TaskStatus.RETRY_SCHEDULED):
                await storage.save(in_status(status, next_attempt_at=T0))
                assert await ready_ids(storage, T0 - TICK) == []
                assert await ready_ids(storage, T0) == [status.value]
                assert await ready_ids(storage, T0 + TICK) == [status.value]
                await storage.update(in_status(status))
                assert await ready_ids(storage, datetime(1970, 1, 1, tzinfo=UTC)) == [status.value]
                await storage.delete(status.value)

    @pytest.mark.asyncio
    async def test_highest_priority_first(self, open_storage: OpenStorage) -> None:
        """C5.3, S3.1: the highest priority is first, negative ones last, whatever the age."""
        async with open_storage() as storage:
            await fill(
                storage,
                make_task("minus", priority=-1, created_at=T0 - SECOND),
                make_task("lowest", priority=-(2**31), created_at=T0 - 2 * SECOND),
                make_task("ten", priority=10, created_at=T0 + SECOND),
                make_task("nine", priority=9),
                make_task("zero", created_at=T0 - SECOND),
                make_task("highest", priority=2**31 - 1, created_at=T0 + SECOND),
            )
            assert await drained(storage, T0) == ["highest", "ten", "nine", "zero", "minus", "lowest"]

    @pytest.mark.asyncio
    async def test_within_a_priority_the_oldest_first(self, open_storage: OpenStorage) -> None:
        """C5.3, S3.1: within a priority: created_at, then sequence, then id, across both statuses."""
        retry = TaskStatus.RETRY_SCHEDULED
        async with open_storage() as storage:
            await fill(
                storage,
                make_task("d", sequence=10),
                in_status(retry, "c", sequence=10, next_attempt_at=T0 - SECOND),
                make_task("z", created_at=T0 - TICK, sequence=99),
                in_status(retry, "a", created_at=T0 + TICK, sequence=1),
                make_task("b", sequence=9, next_attempt_at=T0),
                in_status(retry, "C", sequence=10, next_attempt_at=T0),
                make_task("first", priority=1, created_at=T0 + SECOND),
            )
            assert await drained(storage, T0) == ["first", "z", "b", "C", "c", "d", "a"]

    @pytest.mark.asyncio
    async def test_the_due_time_is_no_part_of_the_order(self, open_storage: OpenStorage) -> None:
        """C5.3, S3.1: among those that are due, the due time does not matter."""
        async with open_storage() as storage:
            await fill(
                storage,
                make_task("old, due last", next_attempt_at=T0 + 3 * SECOND),
                in_status(TaskStatus.RETRY_SCHEDULED, "mid", sequence=1, next_attempt_at=T0 + SECOND),
                make_task("new, no time", sequence=2),
            )
            assert await ready_ids(storage, T0) == ["new, no time"]
            assert await ready_ids(storage, T0 + SECOND) == ["mid"]
            assert await drained(storage, T0 + 3 * SECOND) == ["old, due last", "mid", "new, no time"]

    @pytest.mark.asyncio
    async def test_a_backlog_that_is_not_due_is_passed_over(self, open_storage: OpenStorage) -> None:
        """C5.2, C5.3: tasks of a higher priority that are not due do not hide those that are."""
        async with open_storage() as storage:
            await fill(
                storage,
                *(make_task(f"later{n}", priority=100, next_attempt_at=T0 + SECOND) for n in range(30)),
                make_task("now", priority=-7),
            )
            assert await ready_ids(storage, T0) == ["now"]
            assert await ready_ids(storage, T0 + SECOND) == ["later0"]

    @pytest.mark.asyncio
    async def test_a_held_task_is_never_ready(self, open_storage: OpenStorage) -> None:
        """C5.4, S3.1: a held task is neither ready nor counted for the next wake, until it is released."""
        async with open_storage() as storage:
            for status in (TaskStatus.PENDING, TaskStatus.RETRY_SCHEDULED):
                held = in_status(status, held=True, priority=5, next_attempt_at=T0)
                await fill(storage, held, make_task("free", next_attempt_at=T0 + SECOND))
                assert await ready_ids(storage, T0) == []
                assert await ready_ids(storage, T0 + SECOND) == ["free"]
                assert await storage.get_next_wake_at() == T0 + SECOND
                assert await storage.get_ready(T0 + SECOND, 9, types=["mail"]) == [await storage.get("free")]

                await storage.update(in_status(status, held=False, priority=5, next_attempt_at=T0))
                assert await ready_ids(storage, T0) == [status.value]
                assert await storage.get_next_wake_at() == T0
                await storage.delete(status.value)
                await storage.delete("free")

    @pytest.mark.asyncio
    async def test_time_may_go_backwards(self, open_storage: OpenStorage) -> None:
        """C1.8, C5.5, S12.3: an earlier `now` after a later one is answered as if the later had never been asked."""
        async with open_storage() as storage:
            await fill(
                storage,
                make_task("a", sequence=1, next_attempt_at=T0 + SECOND, priority=2),
                make_task("b", sequence=2, next_attempt_at=T0 + 2 * SECOND, priority=3),
                make_task("c", sequence=3, next_attempt_at=T0 - SECOND),
            )
            seconds = {-2: [], -1: ["c"], 0: ["c"], 1: ["a"], 2: ["b"], 3: ["b"]}
            for second in (0, 3, 1, 2, -2, 3, -1, 0, 2, -2, 1):
                assert await ready_ids(storage, T0 + second * SECOND) == seconds[second]
            await storage.get_next_ready(T0 + 3 * SECOND)
            await storage.save(make_task("d", priority=9, next_attempt_at=T0 + 2 * SECOND))
            assert await ready_ids(storage, T0 + SECOND) == ["a"]
            assert await ready_ids(storage, T0 + 2 * SECOND) == ["d"]

    @pytest.mark.asyncio
    async def test_a_change_moves_a_task_in_the_order(self, open_storage: OpenStorage) -> None:
        """C3.4, C5.3: a changed priority, time or status counts at once."""
        async with open_storage() as storage:
            await fill(storage, make_task("a", sequence=1), make_task("b", sequence=2))
            await storage.update(make_task("b", sequence=2, priority=1))
            assert await ready_ids(storage, T0) == ["b"]

            await storage.update(make_task("b", sequence=2, priority=1, next_attempt_at=T0 + TICK))
            assert await ready_ids(storage, T0) == ["a"]

            await storage.update(in_status(TaskStatus.RUNNING, "a", sequence=1))
            assert await ready_ids(storage, T0) == []
            assert await ready_ids(storage, T0 + TICK) == ["b"]

            await storage.update(make_task("b", sequence=2, priority=-1, type="other", next_attempt_at=T0))
            await storage.update(in_status(TaskStatus.RETRY_SCHEDULED, "a", sequence=1, next_attempt_at=T0))
            assert await drained(storage, T0) == ["a", "b"]

    @pytest.mark.asyncio
    async def test_next_wake_is_the_earliest_time(self, open_storage: OpenStorage) -> None:
        """C5.6: the next wake is the earliest next_attempt_at of pending and retryScheduled records, overdue too."""
        async with open_storage() as storage:
            await storage.save(make_task("without"))
            assert await storage.get_next_wake_at() is None

            await storage.save(make_task("p", next_attempt_at=T0 + 2 * TICK))
            assert await storage.get_next_wake_at() == T0 + 2 * TICK

            await storage.save(in_status(TaskStatus.RETRY_SCHEDULED, "r", next_attempt_at=T0 + TICK))
            assert await storage.get_next_wake_at() == T0 + TICK

            await storage.get_next_ready(T0 + timedelta(days=900))
            assert await storage.get_next_wake_at() == T0 + TICK

            await storage.update(in_status(TaskStatus.RUNNING, "r", next_attempt_at=T0 + TICK))
            assert await storage.get_next_wake_at() == T0 + 2 * TICK

            await storage.update(make_task("p", next_attempt_at=T0 - 40 * SECOND))
            assert await storage.get_next_wake_at() == T0 - 40 * SECOND

            await storage.delete("p")
            assert await storage.get_next_wake_at() is None

    @pytest.mark.asyncio
    async def test_next_wake_ignores_what_cannot_be_claimed(self, open_storage: OpenStorage) -> None:
        """C5.1, C5.6: times of waiting, running and finished records do not count for the next wake."""
        others = set(EVERY_STATUS) - {TaskStatus.PENDING, TaskStatus.RETRY_SCHEDULED}
        async with open_storage() as storage:
            await fill(storage, *(in_status(status, next_attempt_at=T0) for status in others))
            assert await storage.get_next_wake_at() is None

    @pytest.mark.asyncio
    async def test_several_ready_are_the_first_in_ready_order(self, open_storage: OpenStorage) -> None:
        """C5.7: `get_ready` returns the first in ready order: at least one when there is one, at most `limit`."""
        expected = ["d", "b", "a", "c"]
        async with open_storage() as storage:
            await fill(
                storage,
                make_task("a", sequence=1),
                in_status(TaskStatus.RETRY_SCHEDULED, "b", priority=1, next_attempt_at=T0),
                make_task("c", sequence=2, type="other"),
                make_task("d", priority=2),
                make_task("late", priority=9, next_attempt_at=T0 + TICK),
                make_task("held", priority=9, held=True),
                *(
                    in_status(status, priority=9)
                    for status in EVERY_STATUS[1:]
                    if status.value != "retryScheduled"
                ),
            )
            for limit in (1, 2, 3, 4, 5, 1_000):
                found = ids(await storage.get_ready(T0, limit))
                assert 1 <= len(found) <= limit
                assert found == expected[: len(found)]

    @pytest.mark.asyncio
    async def test_ready_of_some_types(self, open_storage: OpenStorage) -> None:
        """C5.8, S3.5: `get_ready` with `types` looks at these types only, in the same order."""
        async with open_storage() as storage:
            await fill(
                storage,
                *(make_task(f"busy{n}", type="busy", priority=9, sequence=n) for n in range(40)),
                make_task("a1", type="a", priority=-1),
                make_task("a2", type="a", next_attempt_at=T0 + TICK),
                in_status(TaskStatus.RETRY_SCHEDULED, "b1", type="b", sequence=7, next_attempt_at=T0),
                make_task("b2", type="b", sequence=5),
                in_status(TaskStatus.WAITING, "b3", type="b", priority=99),
            )
            for types, expected in (
                (["a"], ["a1"]),
                (["b"], ["b2", "b1"]),
                ({"a", "b"}, ["b2", "b1", "a1"]),
                (("b", "a", "b", "unknown"), ["b2", "b1", "a1"]),
                (frozenset({"unknown"}), []),
                ([], []),
            ):
                found = ids(await storage.get_ready(T0, 10, types=types))
                assert found == expected[: len(found)]
                assert bool(found) == bool(expected)
                assert ids(await storage.get_ready(T0, 1, types=types)) == expected[:1]
            assert ids(await storage.get_ready(T0 + TICK, 1, types=["a"])) == ["a2"]
            assert ids(await storage.get_ready(T0, 1, types=["busy"])) == ["busy0"]

    @pytest.mark.asyncio
    async def test_type_names_are_compared_exactly(self, open_storage: OpenStorage) -> None:
        """C1.5, C5.8: a type's name is compared exactly."""
        names = LOOKALIKES + NASTY
        async with open_storage() as storage:
            await fill(storage, *(make_task(f"t{n}", type=name, priority=n) for n, name in enumerate(names)))
            for number, name in enumerate(names):
                assert ids(await storage.get_ready(T0, 5, types=[name])) == [f"t{number}"]

    @pytest.mark.asyncio
    async def test_a_claim_takes_the_task_out_of_the_order(self, open_storage: OpenStorage) -> None:
        """C5.9, S3.2: claimed by an update to running, a task is ready no more; put back, it is at its old place."""
        async with open_storage() as storage:
            tasks = [make_task(f"t{n}", sequence=n, next_attempt_at=T0 if n % 2 else None) for n in range(6)]
            await fill(storage, *tasks)
            claimed: list[StoredTask] = []
            while (task := await storage.get_next_ready(T0)) and task not in claimed:
                await storage.update(
                    in_status(TaskStatus.RUNNING, task.id, sequence=task.sequence, attempts=1)
                )
                claimed.append(task)
            assert claimed == tasks

            await storage.update(tasks[4])
            await storage.update(tasks[2])
            assert await drained(storage, T0) == ["t2", "t4"]
