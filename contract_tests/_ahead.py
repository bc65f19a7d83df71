"""Area: the head of the ready order, for a reader who keeps it for a while (C5.10 to C5.13)."""

from __future__ import annotations

from datetime import datetime

import pytest

from contract_tests._base import (
    EVERY_STATUS,
    LOOKALIKES,
    NASTY,
    SECOND,
    T0,
    TERMINAL,
    TICK,
    ContractBase,
    Damage,
    OpenStorage,
    fill,
    ids,
    in_status,
    make_task,
)
from durable_queue import QueueStorage, TaskStatus

RETRY = TaskStatus.RETRY_SCHEDULED
EPOCH = datetime.min.replace(tzinfo=T0.tzinfo)
MEBIBYTE = 1024 * 1024


def needs_read_ahead(storage: QueueStorage) -> None:
    """Skip where the head cannot be asked for."""
    if not storage.reads_ahead:
        pytest.skip("this adapter does not override read_ahead: the queue asks its get_ready instead")


async def until(storage: QueueStorage, now: datetime) -> datetime | None:
    """Return until when the head at an instant can be kept, the same for every limit."""
    answers = {(await storage.read_ahead(now, limit)).until for limit in (1, 2, 100)}
    assert len(answers) == 1
    return answers.pop()


class AheadArea(ContractBase):
    """See the module."""

    @pytest.mark.asyncio
    async def test_the_head_is_what_is_ready(self, open_storage: OpenStorage) -> None:
        """C5.10, C1.7: `read_ahead` gives the first eligible records, whole and in ready order, every time."""
        async with open_storage() as storage:
            needs_read_ahead(storage)
            for limit in (1, 100):
                assert (await storage.read_ahead(T0, limit)).tasks == []
            ready = [
                make_task("d", priority=2, group="g", deduplication_key="k"),
                in_status(RETRY, "b", priority=1, attempts=1, next_attempt_at=T0),
                make_task("z", created_at=T0 - TICK, sequence=99),
                make_task("a", next_attempt_at=T0 - SECOND),
                make_task("c", sequence=2, type="other", expires_at=T0 - SECOND),
                make_task("lowest", priority=-(2**31), created_at=T0 - SECOND),
            ]
            await fill(
                storage,
                *ready[::-1],
                make_task("late", priority=9, next_attempt_at=T0 + TICK),
                make_task("held", priority=9, held=True),
                *(
                    in_status(status, priority=9)
                    for status in EVERY_STATUS
                    if status not in (TaskStatus.PENDING, RETRY)
                ),
            )
            for limit in (1, 2, 5, 6, 7, 1_000) * 2:
                found = (await storage.read_ahead(T0, limit)).tasks
                assert 1 <= len(found) <= limit
                assert found == ready[: len(found)]

    @pytest.mark.asyncio
    async def test_all_means_that_nothing_else_is_eligible(self, open_storage: OpenStorage) -> None:
        """C5.11: `is_all` is false as long as a single eligible record is missing, however the head is cut."""
        async with open_storage() as storage:
            needs_read_ahead(storage)
            await fill(
                storage,
                *(make_task(f"t{n}", sequence=n) for n in range(3)),
                in_status(RETRY, "retry", priority=-1, next_attempt_at=T0),
            )
            for limit in (1, 2, 3, 4, 5, 100):
                head = await storage.read_ahead(T0, limit)
                assert not head.is_all or len(head.tasks) == 4
            assert not (await storage.read_ahead(T0, 3)).is_all
            assert not (await storage.read_ahead(T0 - SECOND, 2)).is_all

    @pytest.mark.asyncio
    async def test_large_payloads_may_make_it_shorter(self, open_storage: OpenStorage) -> None:
        """C5.10, C5.11: of large payloads it may give fewer, but not none, and does not call them all."""
        tasks = [make_task(f"t{n}", sequence=n, payload={"text": "é" * MEBIBYTE}) for n in range(3)]
        huge = make_task("huge", priority=1, payload={"text": "x" * 5 * MEBIBYTE})
        async with open_storage() as storage:
            needs_read_ahead(storage)
            await fill(storage, huge, *tasks)
            for left in ([huge, *tasks], tasks):
                for limit in (2, 100):
                    head = await storage.read_ahead(T0, limit)
                    assert 1 <= len(head.tasks) <= limit
                    # Not all in one assert: a failure would print the payloads.
                    same = head.tasks == left[: len(head.tasks)]
                    assert same
                    assert not head.is_all or len(head.tasks) == len(left)
                await storage.delete("huge")

    @pytest.mark.asyncio
    async def test_until_is_the_earliest_time_to_come(self, open_storage: OpenStorage) -> None:
        """C5.12: `until` is the earliest next_attempt_at after `now`; overdue ones do not hide it."""
        async with open_storage() as storage:
            needs_read_ahead(storage)
            assert await until(storage, T0) is None
            await fill(storage, make_task("without"), make_task("overdue", next_attempt_at=T0 - SECOND))
            assert await until(storage, T0) is None

            await storage.save(make_task("p", priority=-9, next_attempt_at=T0 + 2 * TICK))
            assert await until(storage, T0) == T0 + 2 * TICK
            await storage.save(in_status(RETRY, "r", priority=9, next_attempt_at=T0 + TICK))
            assert await until(storage, T0) == T0 + TICK
            assert await until(storage, T0 + TICK) == T0 + 2 * TICK
            assert await until(storage, T0 + 2 * TICK) is None

            await storage.update(in_status(RETRY, "r", next_attempt_at=T0 + 5 * SECOND))
            assert await until(storage, T0 + 2 * TICK) == T0 + 5 * SECOND
            await storage.update(in_status(TaskStatus.RUNNING, "r", next_attempt_at=T0 + 5 * SECOND))
            assert await until(storage, T0 + 2 * TICK) is None

    @pytest.mark.asyncio
    async def test_until_on_a_clock_that_goes_back(self, open_storage: OpenStorage) -> None:
        """C1.8, C5.12: with an earlier `now`, what was due is to come again at its time, and is not in the head."""
        async with open_storage() as storage:
            needs_read_ahead(storage)
            await fill(
                storage,
                *(make_task(f"t{n}", sequence=n, next_attempt_at=T0 + n * SECOND) for n in range(5)),
            )
            for second in (-1, 9, 2, 3, 0, -1, 4, 1):
                now = T0 + second * SECOND
                due = [f"t{n}" for n in range(5) if n <= second]
                assert await until(storage, now) == (None if second >= 4 else T0 + (second + 1) * SECOND)
                assert ids((await storage.read_ahead(now, 100)).tasks) == due
            assert await until(storage, EPOCH) == T0

    @pytest.mark.asyncio
    async def test_until_ignores_what_cannot_be_claimed(self, open_storage: OpenStorage) -> None:
        """C5.4, C5.12: times of held, waiting, running and finished records do not count."""
        async with open_storage() as storage:
            needs_read_ahead(storage)
            others = set(EVERY_STATUS) - {TaskStatus.PENDING, RETRY}
            later = T0 + SECOND
            await fill(
                storage,
                *(in_status(status, next_attempt_at=later) for status in others),
                make_task("held", held=True, next_attempt_at=later),
                in_status(RETRY, "held too", held=True, next_attempt_at=later),
            )
            for now in (T0, later, T0):
                assert await until(storage, now) is None
            await storage.update(make_task("held", next_attempt_at=later))
            assert await until(storage, T0) == later

    @pytest.mark.asyncio
    async def test_every_task_with_a_dependent_is_named(self, open_storage: OpenStorage) -> None:
        """C5.13: `with_dependents` names each task of the head that any stored record depends on, at any place."""
        async with open_storage() as storage:
            needs_read_ahead(storage)
            names = [f"on {status.value}" for status in EVERY_STATUS]
            await fill(
                storage,
                *(make_task(name, sequence=number) for number, name in enumerate(names)),
                make_task("childless", priority=9),
                make_task("parent of two", priority=-9),
                *(
                    in_status(status, depends_on=("never stored", f"on {status.value}", "parent of two"))
                    for status in EVERY_STATUS
                    if status not in (TaskStatus.PENDING, RETRY)
                ),
                make_task(TaskStatus.PENDING.value, held=True, depends_on=("on pending",)),
                in_status(RETRY, held=True, depends_on=("on retryScheduled", "parent of two")),
            )
            head = await storage.read_ahead(T0, 100)
            found = ids(head.tasks)
            assert found == ["childless", *names, "parent of two"][: len(found)]
            assert set(head.with_dependents) >= {*names, "parent of two"} & set(found)

    @pytest.mark.asyncio
    async def test_dependents_that_come_later_are_named(self, open_storage: OpenStorage) -> None:
        """C3.4, C5.13: what a save, an update or a list of changes makes depend on a task counts at once."""
        async with open_storage() as storage:
            needs_read_ahead(storage)
            await fill(storage, *(make_task(name, sequence=n) for n, name in enumerate("abcx")))

            async def named() -> set[str]:
                return set((await storage.read_ahead(T0, 1)).with_dependents)

            for name in "abc":
                # As the queue does: it is read, and then claimed, before somebody depends on it.
                assert ids((await storage.read_ahead(T0, 1)).tasks) == [name]
                await storage.update(in_status(TaskStatus.RUNNING, name, attempts=1))
                if name == "a":
                    await storage.save(in_status(TaskStatus.WAITING, "w", depends_on=("a",)))
                elif name == "b":
                    await storage.update(in_status(TaskStatus.WAITING, "w", depends_on=("a", "b")))
                else:
                    await fill(storage, in_status(TaskStatus.WAITING, "v", depends_on=("c",)))
                await storage.update(make_task(name, priority=1))
                assert ids((await storage.read_ahead(T0, 1)).tasks) == [name]
                assert name in await named()
                await storage.update(in_status(TaskStatus.COMPLETED, name))

    @pytest.mark.asyncio
    async def test_names_with_dependents_are_compared_exactly(self, open_storage: OpenStorage) -> None:
        """C1.5, C5.13: whatever an id looks like, a task that is depended on is named."""
        names = LOOKALIKES + NASTY
        async with open_storage() as storage:
            needs_read_ahead(storage)
            await fill(storage, *(make_task(name, sequence=n) for n, name in enumerate(names)))
            for number, name in enumerate(names):
                await storage.save(in_status(TERMINAL[number % 3], f"child {number}", depends_on=(name,)))
            for name in names:
                head = await storage.read_ahead(T0, 1)
                assert ids(head.tasks) == [name]
                assert name in head.with_dependents
                await storage.delete(name)

    @pytest.mark.asyncio
    async def test_a_limit_below_one_is_refused_ahead(self, open_storage: OpenStorage) -> None:
        """C1.6: a limit below 1 is a ValueError, with records stored or without."""
        async with open_storage() as storage:
            needs_read_ahead(storage)
            for stored in ([], [make_task()]):
                await fill(storage, *stored)
                for limit in (0, -1):
                    with pytest.raises(ValueError):  # noqa: PT011 - the words are the adapter's own
                        await storage.read_ahead(T0, limit)

    @pytest.mark.asyncio
    async def test_the_head_passes_over_unreadable_records(
        self, open_storage: OpenStorage, damage: Damage | None
    ) -> None:
        """C5.10, C12.3, C12.4: records that cannot be read are left out, reported, and hide none behind them."""
        if damage is None:
            pytest.skip(
                "this adapter's tests offer no way to damage a record: the fixture damage is not overridden"
            )
        tasks = [make_task(f"t{n}", sequence=n) for n in range(8)]
        child = in_status(TaskStatus.WAITING, "child", depends_on=("t3", "t7"))
        async with open_storage() as storage:
            needs_read_ahead(storage)
            await fill(storage, *tasks, child)
        broken = ("t0", "t1", "t2", "t4", "child")
        for task_id in broken:
            await damage(task_id)
        readable = [tasks[3], *tasks[5:]]
        async with open_storage() as storage:
            for limit in (1, 2, 3, 4, 5, 100):
                head = await storage.read_ahead(T0, limit)
                assert 1 <= len(head.tasks) <= limit
                assert head.tasks == readable[: len(head.tasks)]
                assert not head.is_all or len(head.tasks) == len(readable)
                assert set(head.with_dependents) >= {"t3", "t7"} & set(ids(head.tasks))
            reported = {error.task_id for error in await storage.take_unreadable()}
            assert set(broken[:3]) <= reported <= set(broken)
