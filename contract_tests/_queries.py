"""Area: lists, groups, counts and aggregates (C4)."""

from __future__ import annotations

import pytest

from contract_tests._base import (
    EVERY_STATUS,
    LOOKALIKES,
    NASTY,
    T0,
    TICK,
    ContractBase,
    OpenStorage,
    fill,
    ids,
    in_status,
    make_task,
)
from durable_queue import StoredTask, TaskStatus


def in_order(status: TaskStatus = TaskStatus.PENDING, **fields: object) -> list[StoredTask]:
    """Records of one status, in the right order; their priorities and times would give others."""
    places = [
        ("zz", T0 - TICK, 9, 0),
        ("b", T0, 1, 0),
        ("a", T0, 2, 5),
        ("B", T0, 10, 0),
        ("b-", T0, 10, 7),
        ("e", T0, 10, -1),
        ("é", T0, 10, 0),
        ("\uffff", T0, 10, 0),
        ("😀", T0, 10, 3),
        ("0", T0 + TICK, 0, 99),
    ]
    return [
        make_task(
            task_id,
            status=status,
            created_at=at,
            sequence=sequence,
            priority=priority,
            updated_at=T0,
            **fields,
        )
        for task_id, at, sequence, priority in places
    ]


def shuffled(tasks: list[StoredTask]) -> list[StoredTask]:
    """The same records in an order that is neither theirs nor its reverse."""
    return tasks[1::2] + tasks[::2][::-1]


class QueriesArea(ContractBase):
    """See the module."""

    @pytest.mark.asyncio
    async def test_an_empty_store_answers(self, open_storage: OpenStorage) -> None:
        """C4.1: an empty store answers every query with nothing, not with an error."""
        async with open_storage() as storage:
            assert await storage.get_all() == await storage.get_pending() == []
            for status in EVERY_STATUS:
                assert await storage.get_by_status(status) == []
            assert await storage.get_by_group("g") == []
            assert await storage.get_by_group("g", status=TaskStatus.FAILED) == []
            assert await storage.get_waiting_dependents("a") == await storage.get_dependents("a") == []
            assert await storage.get_judgeable(["a"]) == await storage.get_judgeable([]) == []
            assert await storage.get_next_ready(T0) is None
            assert await storage.get_ready(T0, 5) == await storage.get_ready(T0, 5, types=["mail"]) == []
            assert await storage.get_next_wake_at() is None
            assert await storage.find_active_by_deduplication_key("k") is None
            assert await storage.get_many([]) == await storage.get_many(["a"]) == {}
            assert await storage.get_max_sequence() == await storage.count_held() == 0

    @pytest.mark.asyncio
    async def test_order_is_created_at_then_sequence_then_id(self, open_storage: OpenStorage) -> None:
        """C4.2: the order is the oldest created_at, then the sequence, then the id by code points."""
        async with open_storage() as storage:
            await fill(storage, *shuffled(in_order()))

            assert ids(await storage.get_all()) == ids(in_order())
            assert ids(await storage.get_pending()) == ids(in_order())
            assert ids(await storage.get_by_status(TaskStatus.PENDING)) == ids(in_order())

    @pytest.mark.asyncio
    async def test_pending_are_all_pending(self, open_storage: OpenStorage) -> None:
        """C4.3: `get_pending` returns every pending record, those not due and those held too, and no other."""
        async with open_storage() as storage:
            await fill(
                storage,
                *(in_status(status) for status in EVERY_STATUS),
                make_task("later", sequence=1, next_attempt_at=T0 + TICK),
                make_task("held", sequence=2, held=True),
                make_task("expired", sequence=3, expires_at=T0 - TICK),
            )
            assert ids(await storage.get_pending()) == ["pending", "later", "held", "expired"]

    @pytest.mark.asyncio
    async def test_by_status_is_one_status(self, open_storage: OpenStorage) -> None:
        """C4.4: `get_by_status` returns the records of one status, in order, for each status there is."""
        async with open_storage() as storage:
            for number, status in enumerate(EVERY_STATUS):
                await fill(
                    storage,
                    in_status(status, f"{status.value}-2", sequence=20 + number),
                    in_status(status, f"{status.value}-1", sequence=10 + number, held=True),
                )
            for status in EVERY_STATUS:
                found = await storage.get_by_status(status)
                assert ids(found) == [f"{status.value}-1", f"{status.value}-2"]

    @pytest.mark.asyncio
    async def test_all_is_every_record(self, open_storage: OpenStorage) -> None:
        """C4.5: `get_all` returns every record of every status, in one order."""
        async with open_storage() as storage:
            tasks = [in_status(status, sequence=9 - n) for n, status in enumerate(EVERY_STATUS)]
            await fill(storage, *tasks)

            assert await storage.get_all() == tasks[::-1]

    @pytest.mark.asyncio
    async def test_a_group_is_its_members(self, open_storage: OpenStorage) -> None:
        """C4.6: `get_by_group` returns the members in order, of every status or of the one asked for."""
        async with open_storage() as storage:
            for number, status in enumerate(EVERY_STATUS):
                await fill(
                    storage,
                    in_status(status, f"{status.value}-b", group="g", sequence=20 - number),
                    in_status(status, f"{status.value}-a", group="g", sequence=10 - number),
                    in_status(status, f"{status.value}-h", group="h"),
                    in_status(status, f"{status.value}-n"),
                )
            found = await storage.get_by_group("g")
            expected = [f"{status.value}-{part}" for part in "ab" for status in EVERY_STATUS[::-1]]
            assert ids(found) == expected
            for status in EVERY_STATUS:
                found = await storage.get_by_group("g", status=status)
                assert ids(found) == [f"{status.value}-a", f"{status.value}-b"]
                assert ids(await storage.get_by_group("h", status=status)) == [f"{status.value}-h"]
            assert await storage.get_by_group("nothing") == []

    @pytest.mark.asyncio
    async def test_group_order(self, open_storage: OpenStorage) -> None:
        """C4.2, C4.6: members of a group come in the same order as everything else."""
        async with open_storage() as storage:
            await fill(storage, *shuffled(in_order(TaskStatus.FAILED, group="g")))

            assert ids(await storage.get_by_group("g")) == ids(in_order())
            assert ids(await storage.get_by_group("g", status=TaskStatus.FAILED)) == ids(in_order())

    @pytest.mark.asyncio
    async def test_group_names_are_compared_exactly(self, open_storage: OpenStorage) -> None:
        """C1.5, C4.6: a group's name is compared exactly."""
        async with open_storage() as storage:
            names = LOOKALIKES + NASTY
            await fill(storage, *(make_task(f"t{n}", group=name) for n, name in enumerate(names)))
            for number, name in enumerate(names):
                assert ids(await storage.get_by_group(name)) == [f"t{number}"]
                assert ids(await storage.get_by_group(name, status=TaskStatus.PENDING)) == [f"t{number}"]
                assert await storage.get_by_group(name, status=TaskStatus.WAITING) == []

    @pytest.mark.asyncio
    async def test_max_sequence_is_the_largest_stored(self, open_storage: OpenStorage) -> None:
        """C4.7: `get_max_sequence` is the largest sequence of any status that is stored now."""
        async with open_storage() as storage:
            for number, status in enumerate(EVERY_STATUS, start=1):
                await storage.save(in_status(status, sequence=number * 10, created_at=T0 - number * TICK))
                assert await storage.get_max_sequence() == number * 10
            await storage.save(make_task("small", sequence=1))
            assert await storage.get_max_sequence() == 70

            await storage.delete("cancelled")
            assert await storage.get_max_sequence() == 60

    @pytest.mark.asyncio
    async def test_many_are_found_by_id(self, open_storage: OpenStorage) -> None:
        """C4.8: `get_many` returns the stored records among the ids, by id, in whatever status, each once."""
        async with open_storage() as storage:
            tasks = {status.value: in_status(status) for status in EVERY_STATUS}
            await fill(storage, *tasks.values(), *(make_task(text, group="nasty") for text in NASTY))

            assert await storage.get_many([*tasks, "nobody", *tasks]) == tasks
            assert sorted(await storage.get_many(NASTY)) == sorted(NASTY)
            assert await storage.get_many({"failed"}) == {"failed": tasks["failed"]}

    @pytest.mark.asyncio
    async def test_ten_thousand_ids_at_once(self, open_storage: OpenStorage) -> None:
        """C4.8: ten thousand ids in one `get_many`, and in one `get_judgeable`, are no trouble."""
        names = [f"id-{number}" for number in range(10_000)]
        async with open_storage() as storage:
            join = in_status(TaskStatus.WAITING, "join", depends_on=("id-0", "id-9999"))
            await fill(storage, make_task("id-0"), make_task("id-5000"), make_task("id-9999"), join)

            assert list(await storage.get_many(names[:0])) == []
            assert sorted(await storage.get_many(names)) == ["id-0", "id-5000", "id-9999"]
            assert await storage.get_judgeable(names) == [join]

    @pytest.mark.asyncio
    async def test_counts_have_every_status(self, open_storage: OpenStorage) -> None:
        """C4.9: `count_by_status` has a number for every status, zero included."""
        async with open_storage() as storage:
            assert await storage.count_by_status() == dict.fromkeys(EVERY_STATUS, 0)
            for number, status in enumerate(EVERY_STATUS):
                await fill(storage, *(in_status(status, f"{status.value}-{n}") for n in range(number)))
            assert await storage.count_by_status() == {
                TaskStatus.PENDING: 0,
                TaskStatus.WAITING: 1,
                TaskStatus.RUNNING: 2,
                TaskStatus.RETRY_SCHEDULED: 3,
                TaskStatus.COMPLETED: 4,
                TaskStatus.FAILED: 5,
                TaskStatus.CANCELLED: 6,
            }

    @pytest.mark.asyncio
    async def test_held_are_counted_while_active(self, open_storage: OpenStorage) -> None:
        """C4.10: `count_held` counts the held records that are active."""
        async with open_storage() as storage:
            await fill(storage, *(in_status(status, held=True) for status in EVERY_STATUS), make_task("free"))
            assert await storage.count_held() == 4

            await storage.update(in_status(TaskStatus.WAITING))
            await storage.delete("running")
            assert await storage.count_held() == 2

            await storage.update(in_status(TaskStatus.FAILED))
            await storage.delete("completed")
            assert await storage.count_held() == 2

            await storage.update(in_status(TaskStatus.RETRY_SCHEDULED, "cancelled", held=True))
            await storage.update(in_status(TaskStatus.COMPLETED, "pending", held=True))
            assert await storage.count_held() == 2

    @pytest.mark.asyncio
    async def test_asking_changes_nothing(self, open_storage: OpenStorage) -> None:
        """C1.7: a query changes nothing; asked again it answers the same."""
        async with open_storage() as storage:
            tasks = [
                *(in_status(status, next_attempt_at=T0, expires_at=T0, group="g") for status in EVERY_STATUS),
                in_status(TaskStatus.WAITING, "dependent", sequence=1, depends_on=("failed",)),
            ]
            await fill(storage, *tasks)
            for _ in range(2):
                assert ids([await storage.get_next_ready(T0)]) == ["pending"]
                assert ids(await storage.get_ready(T0, 1)) == ["pending"]
                assert ids(await storage.get_judgeable(["failed"])) == ["dependent"]
                await storage.get_expired(T0, 10)
                await storage.get_by_group("g")
            for task in tasks:
                assert await storage.get(task.id) == task
