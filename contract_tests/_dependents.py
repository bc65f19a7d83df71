"""Area: who waits for whom (C7)."""

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
from durable_queue import DependencyFailurePolicy, StoredTask, TaskStatus


def waiting(id: str, *depends_on: str, **fields: object) -> StoredTask:
    """Make a waiting record."""
    return in_status(TaskStatus.WAITING, id, depends_on=depends_on, **fields)


class DependentsArea(ContractBase):
    """See the module."""

    @pytest.mark.asyncio
    async def test_only_waiting_dependents(self, open_storage: OpenStorage) -> None:
        """C7.1, S4.1: `get_waiting_dependents` returns no record that is not waiting."""
        async with open_storage() as storage:
            await fill(
                storage, make_task("parent"), *(in_status(s, depends_on=("parent",)) for s in EVERY_STATUS)
            )

            assert ids(await storage.get_waiting_dependents("parent")) == ["waiting"]
            assert ids(await storage.get_waiting_dependents_of(["parent"])) == ["waiting"]

    @pytest.mark.asyncio
    async def test_dependents_come_in_order(self, open_storage: OpenStorage) -> None:
        """C4.2, C7.1: waiting dependents come in order, whatever their priority."""
        async with open_storage() as storage:
            await fill(
                storage,
                waiting("d", "p", created_at=T0 + TICK, sequence=1, priority=9),
                waiting("b", "p", sequence=4),
                waiting("B", "p", sequence=4, priority=7),
                waiting("c", "p", sequence=10),
                waiting("z", "p", created_at=T0 - TICK, sequence=99),
            )
            assert ids(await storage.get_waiting_dependents("p")) == ["z", "B", "b", "c", "d"]
            assert ids(await storage.get_dependents("p")) == ["z", "B", "b", "c", "d"]

    @pytest.mark.asyncio
    async def test_any_place_in_the_list_counts(self, open_storage: OpenStorage) -> None:
        """C7.1: a dependent is found by each of its dependencies, the first, the last and those between."""
        async with open_storage() as storage:
            await fill(storage, waiting("x", "p1", "p2", "p3"), waiting("y", "p2"), waiting("z", "p4"))
            found = {p: ids(await storage.get_waiting_dependents(p)) for p in ("p1", "p2", "p3", "p4", "p5")}

            assert found == {"p1": ["x"], "p2": ["x", "y"], "p3": ["x"], "p4": ["z"], "p5": []}

    @pytest.mark.asyncio
    async def test_the_dependency_need_not_be_stored(self, open_storage: OpenStorage) -> None:
        """C7.2: dependents are found whether or not the dependency is stored, has ended or was deleted."""
        async with open_storage() as storage:
            await storage.save(waiting("x", "p"))
            assert ids(await storage.get_waiting_dependents("p")) == ["x"]

            await storage.save(make_task("p"))
            for status in EVERY_STATUS:
                await storage.update(in_status(status, "p"))
                assert ids(await storage.get_waiting_dependents("p")) == ["x"]
            await storage.delete("p")
            assert await storage.get_waiting_dependents("p") == [waiting("x", "p")]

    @pytest.mark.asyncio
    async def test_a_dependent_that_leaves_waiting(self, open_storage: OpenStorage) -> None:
        """C7.3: a dependent is found while it waits: not before, not afterwards, and again when it waits again."""
        async with open_storage() as storage:
            await storage.save(waiting("x", "p", "q"))
            for status in (*EVERY_STATUS, *EVERY_STATUS[::-1]):
                await storage.update(in_status(status, "x", depends_on=("p", "q")))
                expected = ["x"] if status is TaskStatus.WAITING else []
                assert ids(await storage.get_waiting_dependents("p")) == expected
                assert ids(await storage.get_waiting_dependents("q")) == expected
                assert ids(await storage.get_dependents("q")) == ["x"]

    @pytest.mark.asyncio
    async def test_changed_dependencies_count(self, open_storage: OpenStorage) -> None:
        """C3.4, C7.3: after an update only the new dependencies lead to the record."""
        async with open_storage() as storage:
            await storage.save(waiting("x", "p", "q"))
            await storage.update(waiting("x", "q", "r"))
            found = [ids(await storage.get_waiting_dependents(p)) for p in ("p", "q", "r")]
            assert found == [[], ["x"], ["x"]]

            await storage.update(waiting("x"))
            assert [await storage.get_dependents(p) for p in ("p", "q", "r")] == [[], [], []]

    @pytest.mark.asyncio
    async def test_dependency_ids_are_compared_exactly(self, open_storage: OpenStorage) -> None:
        """C1.5, C7.1: a dependency id is compared exactly and whole: `a` is not found in `ab`, nor in `a,b`."""
        names = (*LOOKALIKES, *NASTY, "a", "ab", "a,b", '"a"', '["a"]', "a b")
        async with open_storage() as storage:
            await fill(storage, *(waiting(f"t{n}", "other", name) for n, name in enumerate(names)))
            for number, name in enumerate(names):
                assert ids(await storage.get_waiting_dependents(name)) == [f"t{number}"]
            for unknown in ("b", "%", "oth", "othe_"):
                assert await storage.get_waiting_dependents(unknown) == []

    @pytest.mark.asyncio
    async def test_wide_joins_and_fans(self, open_storage: OpenStorage) -> None:
        """C7.4: a task with a thousand dependencies, and fifty that depend on one, are found whole."""
        async with open_storage() as storage:
            parents = [f"p{number}" for number in range(1_000)]
            await fill(
                storage,
                waiting("join", *parents, sequence=500),
                *(waiting(f"fan{n:02}", "p7", sequence=n) for n in range(50)),
            )
            for parent in ("p0", "p499", "p999"):
                assert ids(await storage.get_waiting_dependents(parent)) == ["join"]
            expected = [f"fan{n:02}" for n in range(50)] + ["join"]
            assert ids(await storage.get_waiting_dependents("p7")) == expected
            assert ids(await storage.get_waiting_dependents_of(parents)) == expected

    @pytest.mark.asyncio
    async def test_dependents_of_any_status(self, open_storage: OpenStorage) -> None:
        """C7.5: `get_dependents` returns the dependents of every status, in order."""
        async with open_storage() as storage:
            tasks = [in_status(s, sequence=9 - n, depends_on=("o", "p")) for n, s in enumerate(EVERY_STATUS)]
            await fill(storage, *tasks, make_task("p"), make_task("alone"))

            assert await storage.get_dependents("p") == tasks[::-1]
            assert await storage.get_dependents("alone") == []

    @pytest.mark.asyncio
    async def test_ids_of_dependents(self, open_storage: OpenStorage) -> None:
        """C7.8: `get_dependent_ids` names each dependent of any of the ids once, whatever its status."""
        async with open_storage() as storage:
            tasks = [in_status(s, depends_on=("o", "p")) for s in EVERY_STATUS]
            await fill(storage, *tasks, waiting("x", "q"), make_task("p"), make_task("alone"))

            found = list(await storage.get_dependent_ids(["p", "o", "alone", "none"]))
            assert sorted(found) == sorted(task.id for task in tasks)
            assert list(await storage.get_dependent_ids({"q"})) == ["x"]
            assert list(await storage.get_dependent_ids([])) == []

    @pytest.mark.asyncio
    async def test_dependents_of_several(self, open_storage: OpenStorage) -> None:
        """C7.6: `get_waiting_dependents_of` returns each waiting dependent of any of the ids once, in order."""
        async with open_storage() as storage:
            await fill(
                storage,
                waiting("c", "p", "q", sequence=3),
                waiting("a", "q", sequence=1),
                waiting("b", "p", sequence=2),
                waiting("d", "r"),
                in_status(TaskStatus.PENDING, "released", depends_on=("p",)),
            )
            assert ids(await storage.get_waiting_dependents_of(["p", "q", "p", "none"])) == ["a", "b", "c"]
            assert ids(await storage.get_waiting_dependents_of({"r"})) == ["d"]
            assert await storage.get_waiting_dependents_of([]) == []

    @pytest.mark.asyncio
    async def test_whoever_can_be_judged_is_found(self, open_storage: OpenStorage) -> None:
        """C7.7, S4.3, S13.21: `get_judgeable` misses nobody whose verdict can fall, and returns dependents only."""
        run = DependencyFailurePolicy.RUN
        async with open_storage() as storage:
            await fill(
                storage,
                *(in_status(status) for status in EVERY_STATUS if status is not TaskStatus.WAITING),
                waiting("1 last", "running", "completed", sequence=1),
                waiting("2 fails", "failed", "pending", sequence=2),
                waiting("3 missing", "gone", "pending", sequence=3),
                waiting("4 runs", "failed", "gone", "cancelled", sequence=4, on_dependency_failure=run),
                waiting("5 open", "running", "pending", sequence=5),
                waiting("6 open", "failed", "pending", sequence=6, on_dependency_failure=run),
                waiting("7 alone", "unrelated", sequence=7),
                in_status(TaskStatus.PENDING, "8 released", depends_on=("failed",)),
                in_status(TaskStatus.FAILED, "9 judged", depends_on=("gone",)),
            )
            for finished, judged, allowed in (
                (["running"], ["1 last"], ["1 last", "5 open"]),
                (["failed"], ["2 fails", "4 runs"], ["2 fails", "4 runs", "6 open"]),
                (["gone"], ["3 missing", "4 runs"], ["3 missing", "4 runs"]),
                (
                    ["running", "pending"],
                    ["1 last", "2 fails", "3 missing", "5 open", "6 open"],
                    ["1 last", "2 fails", "3 missing", "5 open", "6 open"],
                ),
                (["completed"], [], ["1 last"]),
                (["nobody"], [], []),
            ):
                found = ids(await storage.get_judgeable(finished))
                assert [name for name in found if name in allowed] == found
                assert [name for name in found if name in judged] == judged

    @pytest.mark.asyncio
    async def test_the_last_dependency_releases(self, open_storage: OpenStorage) -> None:
        """C7.7, S4.2: as dependencies end one after the other, in any order, the join is found at the last."""
        parents = [f"p{number}" for number in range(7)]
        async with open_storage() as storage:
            for first in range(7):
                await fill(storage, *(make_task(parent) for parent in parents), waiting("join", *parents))
                for step in range(7):
                    parent = parents[(first + 3 * step) % 7]
                    found = ids(await storage.get_judgeable([parent]))
                    assert found in ([["join"]] if step == 6 else [[], ["join"]])
                    await storage.update(in_status(TERMINAL[step % 3], parent))
                for task_id in (*parents, "join"):
                    await storage.delete(task_id)

    @pytest.mark.asyncio
    async def test_a_dependency_that_is_active_again(self, open_storage: OpenStorage) -> None:
        """C7.7: a dependency that was retried is waited for again; a join that waits again is found again."""
        run = DependencyFailurePolicy.RUN
        async with open_storage() as storage:
            join = waiting("join", "p", "q", on_dependency_failure=run)
            await fill(storage, in_status(TaskStatus.FAILED, "p"), in_status(TaskStatus.RUNNING, "q"), join)
            assert ids(await storage.get_judgeable(["q"])) == ["join"]
            for status in ACTIVE:
                await storage.update(in_status(status, "p"))
                assert ids(await storage.get_judgeable(["q"])) in ([], ["join"])
            await storage.update(in_status(TaskStatus.COMPLETED, "p"))
            assert ids(await storage.get_judgeable(["q"])) == ["join"]

            await storage.update(in_status(TaskStatus.PENDING, "join", depends_on=("p", "q")))
            assert await storage.get_judgeable(["p", "q"]) == []
            await storage.update(join)
            assert ids(await storage.get_judgeable(["p", "q"])) == ["join"]
