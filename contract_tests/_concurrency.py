"""Area: calls side by side, and callers that give up (C1)."""

from __future__ import annotations

import asyncio

import pytest

from contract_tests._base import T0, ContractBase, OpenStorage, fill, full_task, ids, make_task
from durable_queue import QueueStorage, StoredTask, TaskAlreadyExistsError, TaskNotFoundError, TaskStatus


async def settled(storage: QueueStorage, task_id: str) -> StoredTask | None:
    """Return a record after checking that queries of other kinds agree with `get` about it."""
    task = await storage.get(task_id)
    expected = [] if task is None else [task]
    everything = [other for other in await storage.get_all() if other.id == task_id]
    listed = [
        other for status in TaskStatus for other in await storage.get_by_status(status) if other.id == task_id
    ]
    grouped = [other for name in ("old", "new") for other in await storage.get_by_group(name)]

    assert everything == listed == expected
    assert [other for other in grouped if other.id == task_id] == expected
    return task


class ConcurrencyArea(ContractBase):
    """See the module."""

    @pytest.mark.asyncio
    async def test_concurrent_saves_are_all_stored(self, open_storage: OpenStorage) -> None:
        """C1.2: fifty saves at the same time store fifty records."""
        async with open_storage() as storage:
            tasks = [make_task(f"t{n:02}", sequence=n, group="g") for n in range(50)]
            await asyncio.gather(*(storage.save(task) for task in tasks))

            assert await storage.get_all() == await storage.get_by_group("g") == tasks
            assert await storage.get_max_sequence() == 49

    @pytest.mark.asyncio
    async def test_one_of_several_equal_saves_wins(self, open_storage: OpenStorage) -> None:
        """C1.3: of several saves of one id at the same time one succeeds and its record is stored whole."""
        async with open_storage() as storage:
            tasks = [full_task("one", priority=n, group=f"g{n}") for n in range(10)]
            outcomes = await asyncio.gather(*(storage.save(task) for task in tasks), return_exceptions=True)
            winners = [task for task, outcome in zip(tasks, outcomes, strict=True) if outcome is None]

            assert sum(isinstance(outcome, TaskAlreadyExistsError) for outcome in outcomes) == 9
            assert await storage.get_all() == winners
            assert await storage.get_by_group(winners[0].group or "") == winners

    @pytest.mark.asyncio
    async def test_concurrent_updates_leave_one_of_them(self, open_storage: OpenStorage) -> None:
        """C1.2: of several updates of one record at the same time one is what is stored, in every query."""
        async with open_storage() as storage:
            await storage.save(make_task("one", group="old"))
            statuses = list(TaskStatus)
            tasks = [
                full_task("one", status=status, group="new", attempts=n) for n, status in enumerate(statuses)
            ]
            await asyncio.gather(*(storage.update(task) for task in tasks))

            assert await settled(storage, "one") in tasks
            assert sum((await storage.count_by_status()).values()) == 1

    @pytest.mark.asyncio
    async def test_readers_see_whole_records(self, open_storage: OpenStorage) -> None:
        """C1.1: beside an update a reader sees the whole old record or the whole new one, and always one."""
        old, new = make_task("one", group="old"), full_task("one", group="new")
        async with open_storage() as storage:
            await fill(storage, old, make_task("other", sequence=99))
            for before, after in ((old, new), (new, old)):
                answers = await asyncio.gather(
                    *(storage.get("one") for _ in range(3)),
                    storage.update(after),
                    *(storage.get("one") for _ in range(3)),
                    *(storage.get_by_group("old") for _ in range(3)),
                )
                singles, groups = [*answers[:3], *answers[4:7]], answers[7:]
                assert all(answer in (before, after) for answer in singles)
                assert all(group in ([], [old]) for group in groups)
                assert await settled(storage, "one") == after

    @pytest.mark.asyncio
    async def test_all_kinds_of_calls_side_by_side(self, open_storage: OpenStorage) -> None:
        """C1.2: saves, updates, deletes and queries of different ids do not disturb each other."""
        async with open_storage() as storage:
            await fill(
                storage, *(make_task(f"u{n}") for n in range(10)), *(make_task(f"d{n}") for n in range(10))
            )
            await asyncio.gather(
                *(storage.save(make_task(f"s{n}")) for n in range(10)),
                *(storage.update(make_task(f"u{n}", priority=n)) for n in range(10)),
                *(storage.delete(f"d{n}") for n in range(10)),
                storage.get_all(),
                storage.get_next_ready(T0),
                storage.get_next_wake_at(),
                storage.get_by_status(TaskStatus.PENDING, limit=3),
                storage.find_active_by_deduplication_key("k"),
                storage.get_waiting_dependents("u1"),
            )
            found = {task.id: task.priority for task in await storage.get_all()}
            assert found == {**{f"s{n}": 0 for n in range(10)}, **{f"u{n}": n for n in range(10)}}
            assert ids([await storage.get_next_ready(T0)]) == ["u9"]

    @pytest.mark.asyncio
    async def test_a_failed_call_harms_no_other(self, open_storage: OpenStorage) -> None:
        """C1.2: calls that fail leave those beside them and after them untouched."""
        async with open_storage() as storage:
            await storage.save(make_task("known"))
            outcomes = await asyncio.gather(
                *(storage.save(make_task(f"t{n}", sequence=n)) for n in range(5)),
                storage.save(make_task("known", priority=1)),
                storage.update(make_task("unknown")),
                *(storage.save(make_task(f"t{n}", sequence=n)) for n in range(5, 10)),
                return_exceptions=True,
            )
            assert [type(outcome) for outcome in outcomes[5:7]] == [TaskAlreadyExistsError, TaskNotFoundError]
            assert outcomes[:5] == outcomes[7:] == [None] * 5
            assert ids(await storage.get_all()) == ["known", *(f"t{n}" for n in range(10))]
            await storage.update(make_task("known", priority=2))
            assert ids([await storage.get_next_ready(T0)]) == ["known"]

    @pytest.mark.asyncio
    async def test_a_cancelled_write_is_whole_or_nothing(self, open_storage: OpenStorage) -> None:
        """C1.4, S2.7: a save, update or delete whose caller is cancelled is done whole or not at all."""
        async with open_storage() as storage:
            for turns in range(8):
                old, new = make_task(f"o{turns}", group="old"), full_task(f"o{turns}", group="new")
                fresh, doomed = make_task(f"f{turns}", group="new"), make_task(f"d{turns}", group="old")
                await fill(storage, old, doomed)
                calls = [
                    asyncio.create_task(storage.save(fresh)),
                    asyncio.create_task(storage.update(new)),
                    asyncio.create_task(storage.delete(doomed.id)),
                ]
                for _ in range(turns):
                    await asyncio.sleep(0)
                for call in calls:
                    call.cancel()
                await asyncio.gather(*calls, return_exceptions=True)
                await storage.save(make_task(f"later {turns}"))

                assert await settled(storage, fresh.id) in (None, fresh)
                assert await settled(storage, old.id) in (old, new)
                assert await settled(storage, doomed.id) in (None, doomed)
                await storage.update(new)
                assert await settled(storage, old.id) == new

    @pytest.mark.asyncio
    async def test_cancelled_neighbours(self, open_storage: OpenStorage) -> None:
        """C1.4: calls beside a cancelled one succeed."""
        async with open_storage() as storage:
            for turns in range(4):
                tasks = [make_task(f"t{turns}-{n}", group="new") for n in range(10)]
                calls = [asyncio.create_task(storage.save(task)) for task in tasks]
                for _ in range(turns):
                    await asyncio.sleep(0)
                for call in calls[::2]:
                    call.cancel()
                await asyncio.gather(*calls, return_exceptions=True)

                assert [call.exception() for call in calls[1::2]] == [None] * 5
                for task in tasks[1::2]:
                    assert await settled(storage, task.id) == task
