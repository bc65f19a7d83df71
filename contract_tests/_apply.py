"""Area: ordered lists of changes (C9)."""

from __future__ import annotations

import asyncio

import pytest

from contract_tests._base import (
    SECOND,
    T0,
    ContractBase,
    OpenStorage,
    fill,
    full_task,
    ids,
    in_status,
    make_task,
)
from durable_queue import (
    Delete,
    QueueStorage,
    Save,
    TaskAlreadyExistsError,
    TaskNotFoundError,
    TaskStatus,
    Update,
)
from durable_queue.changes import Change


def needs_atomic(storage: QueueStorage) -> None:
    """Skip where lists of changes are not all-or-nothing."""
    if not storage.atomic:
        pytest.skip("this adapter does not say that apply is all-or-nothing: atomic is not set")


class ApplyArea(ContractBase):
    """See the module."""

    @pytest.mark.asyncio
    async def test_changes_of_every_kind(self, open_storage: OpenStorage) -> None:
        """C9.1: `apply` carries out saves, updates and deletes, and every query knows of them."""
        async with open_storage() as storage:
            await fill(storage, make_task("b", next_attempt_at=T0), make_task("c", deduplication_key="k"))
            await storage.apply(
                [
                    Save(in_status(TaskStatus.WAITING, "a", depends_on=("b",), group="g")),
                    Update(full_task("b", status=TaskStatus.RUNNING)),
                    Delete("c"),
                    Save(make_task("d", deduplication_key="k", sequence=50)),
                ]
            )
            assert ids(await storage.get_all()) == ["a", "d", "b"]
            assert await storage.get("b") == full_task("b")
            assert (
                ids(await storage.get_waiting_dependents("b"))
                == ids(await storage.get_by_group("g"))
                == ["a"]
            )
            assert ids([await storage.find_active_by_deduplication_key("k")]) == ["d"]
            assert ids([await storage.get_next_ready(T0 + SECOND)]) == ["d"]
            assert await storage.get_next_wake_at() is None

    @pytest.mark.asyncio
    async def test_an_empty_list(self, open_storage: OpenStorage) -> None:
        """C9.1: an empty list of changes changes nothing."""
        async with open_storage() as storage:
            await storage.save(make_task())
            await storage.apply([])

            assert await storage.get_all() == [make_task()]

    @pytest.mark.asyncio
    async def test_changes_are_made_in_their_order(self, open_storage: OpenStorage) -> None:
        """C9.2: where an id occurs more than once, the changes follow one another in the order of the list."""
        async with open_storage() as storage:
            await fill(storage, make_task("b"), make_task("c"), make_task("d"))
            await storage.apply(
                [
                    Save(make_task("a")),
                    Update(make_task("a", priority=1)),
                    Delete("b"),
                    Update(make_task("a", priority=2)),
                    Save(make_task("b", priority=3)),
                    Save(make_task("e")),
                    Delete("e"),
                    Delete("c"),
                    Delete("c"),
                    Update(make_task("d", priority=4, group="gone")),
                    Update(make_task("d", priority=5)),
                ]
            )
            found = {task.id: task.priority for task in await storage.get_all()}
            assert found == {"a": 2, "b": 3, "d": 5}
            assert await storage.get_by_group("gone") == []
            assert ids(await storage.get_ready(T0, 1)) == ["d"]

    @pytest.mark.asyncio
    async def test_a_save_over_another_record_is_refused(self, open_storage: OpenStorage) -> None:
        """C9.3: a save finds another record under its id: TaskAlreadyExistsError, and that record stays."""
        async with open_storage() as storage:
            await storage.save(make_task("a"))
            with pytest.raises(TaskAlreadyExistsError) as caught:
                await storage.apply([Save(make_task("a", priority=1))])
            assert caught.value.task_id == "a"

            with pytest.raises(TaskAlreadyExistsError):
                await storage.apply([Save(make_task("b")), Save(make_task("b", priority=1))])
            assert await storage.get_all() == [make_task("a")]

    @pytest.mark.asyncio
    async def test_an_update_of_nothing_is_refused(self, open_storage: OpenStorage) -> None:
        """C9.3: an update finds no record under its id: TaskNotFoundError, and nothing is stored."""
        async with open_storage() as storage:
            await storage.save(make_task("a"))
            with pytest.raises(TaskNotFoundError) as caught:
                await storage.apply([Update(make_task("nobody"))])
            assert caught.value.task_id == "nobody"

            with pytest.raises(TaskNotFoundError):
                await storage.apply([Save(make_task("b")), Delete("b"), Update(make_task("b"))])
            assert await storage.get_all() == [make_task("a")]

    @pytest.mark.asyncio
    async def test_an_equal_save_counts_as_done(self, open_storage: OpenStorage) -> None:
        """C9.4, S13.3: a save that finds an equal record under its id has succeeded."""
        async with open_storage() as storage:
            await storage.save(full_task())
            await storage.apply([Save(full_task()), Save(make_task("b")), Save(make_task("b"))])

            assert await storage.get_all() == [make_task("b"), full_task()]

    @pytest.mark.asyncio
    async def test_deleting_what_is_gone(self, open_storage: OpenStorage) -> None:
        """C9.4: a delete of an id that is not stored is passed over."""
        async with open_storage() as storage:
            await storage.apply([Delete("nobody"), Save(make_task("a")), Delete("nobody")])

            assert ids(await storage.get_all()) == ["a"]

    @pytest.mark.asyncio
    async def test_a_list_may_be_repeated(self, open_storage: OpenStorage) -> None:
        """C9.5: a list in which no id occurs twice may be applied again; the second time changes nothing."""
        changes: list[Change] = [
            Update(in_status(TaskStatus.COMPLETED, "b", depends_on=("a",))),
            Save(make_task("c", group="g")),
            Delete("d"),
            Update(in_status(TaskStatus.RUNNING, "e", attempts=1)),
        ]
        async with open_storage() as storage:
            await fill(storage, make_task("b"), make_task("d"), make_task("e"))
            for _ in range(3):
                await storage.apply(changes)
                assert ids(await storage.get_all()) == ["b", "c", "e"]
                assert (
                    ids(await storage.get_by_group("g")) == ids([await storage.get_next_ready(T0)]) == ["c"]
                )
            counts = await storage.count_by_status()
            assert [counts[status] for status in (TaskStatus.PENDING, TaskStatus.RUNNING)] == [1, 1]

    @pytest.mark.asyncio
    async def test_many_changes(self, open_storage: OpenStorage) -> None:
        """C9.1: three hundred changes in one list are no trouble."""
        async with open_storage() as storage:
            await storage.apply([Save(make_task(f"t{n:03}", payload={"n": n})) for n in range(100)])
            await storage.apply([Update(make_task(f"t{n:03}", priority=n % 5)) for n in range(100)])
            await storage.apply([Delete(f"t{n:03}") for n in range(100) if n % 10])

            assert ids(await storage.get_all()) == [f"t{n:03}" for n in range(0, 100, 10)]
            assert ids(await storage.get_ready(T0, 1)) == ["t000"]

    @pytest.mark.asyncio
    async def test_a_failed_list_leaves_no_new_records(self, open_storage: OpenStorage) -> None:
        """C9.6, S13.8: what a list inserted is gone again when a later change of it fails; the rest stays."""
        async with open_storage() as storage:
            await storage.save(make_task("old"))
            with pytest.raises(TaskNotFoundError):
                await storage.apply(
                    [
                        Save(make_task("old")),
                        Save(make_task("a")),
                        Save(make_task("b")),
                        Update(make_task("nobody")),
                    ]
                )
            assert await storage.get_all() == [make_task("old")]

    @pytest.mark.asyncio
    async def test_all_or_nothing(self, open_storage: OpenStorage) -> None:
        """C9.7, S4.7: an atomic storage changes nothing when a change of the list fails, wherever it stands."""
        good: list[Change] = [
            Save(make_task("new", group="g")),
            Update(in_status(TaskStatus.RUNNING, "b", attempts=1)),
            Delete("c"),
            Update(make_task("d", priority=9)),
        ]
        before = [
            make_task("b"),
            make_task("c", deduplication_key="k"),
            in_status(TaskStatus.WAITING, "d", depends_on=("c",)),
        ]
        async with open_storage() as storage:
            needs_atomic(storage)
            await fill(storage, *before)
            for bad in (Update(make_task("nobody")), Save(make_task("b", priority=1))):
                for place in range(len(good) + 1):
                    with pytest.raises((TaskNotFoundError, TaskAlreadyExistsError)):
                        await storage.apply([*good[:place], bad, *good[place:]])
                    assert await storage.get_all() == before
                    assert ids([await storage.get_next_ready(T0)]) == ["b"]
                    assert await storage.get_by_group("g") == []
                    assert ids(await storage.get_waiting_dependents("c")) == ["d"]
                    assert ids([await storage.find_active_by_deduplication_key("k")]) == ["c"]
            await storage.apply(good)
            assert ids(await storage.get_all()) == ["b", "d", "new"]

    @pytest.mark.asyncio
    async def test_readers_see_all_or_nothing(self, open_storage: OpenStorage) -> None:
        """C1.1, C9.7: beside an atomic `apply` a reader sees none of its changes or all of them."""
        async with open_storage() as storage:
            needs_atomic(storage)
            old, new = ([make_task(f"t{n}", priority=p) for n in range(9)] for p in (0, 1))
            await fill(storage, *old)
            answers = await asyncio.gather(
                storage.get_all(),
                storage.apply([Update(task) for task in new]),
                *(storage.get_all() for _ in range(5)),
            )
            assert all(answer in (old, new, None) for answer in answers)
            assert await storage.get_all() == new

    @pytest.mark.asyncio
    async def test_a_cancelled_list_is_whole_or_nothing(self, open_storage: OpenStorage) -> None:
        """C1.4, C9.7, S2.7: when the caller of an atomic `apply` is cancelled, all of the list is done or none."""
        async with open_storage() as storage:
            needs_atomic(storage)
            for turns in range(8):
                tasks = [make_task(f"t{turns}-{n}", group=f"g{turns}") for n in range(5)]
                call = asyncio.create_task(storage.apply([Save(task) for task in tasks]))
                for _ in range(turns):
                    await asyncio.sleep(0)
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
                await storage.save(make_task(f"later {turns}"))
                assert await storage.get_by_group(f"g{turns}") in ([], tasks)
