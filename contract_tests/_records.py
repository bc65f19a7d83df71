"""Area: records come back as they were stored, and single writes do what they say (C2, C3)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import attrs
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
    full_task,
    ids,
    in_status,
    make_task,
)
from durable_queue import (
    DependencyFailurePolicy,
    QueueStorage,
    RetryPolicy,
    StoredTask,
    TaskAlreadyExistsError,
    TaskNotFoundError,
    TaskStatus,
)


class RecordsArea(ContractBase):
    """See the module."""

    @pytest.mark.asyncio
    async def test_every_field_comes_back(self, open_storage: OpenStorage) -> None:
        """C2.1, S1.2: a record with no field at its default comes back equal, field by field."""
        async with open_storage() as storage:
            await storage.save(full_task())
            stored = await storage.get("full")

            assert_same(stored, full_task())

    @pytest.mark.asyncio
    async def test_every_field_comes_back_after_an_update(self, open_storage: OpenStorage) -> None:
        """C2.1, C3.4: an update replaces every field, to all set and back to all default."""
        async with open_storage() as storage:
            await storage.save(make_task("full"))
            await storage.update(full_task())
            assert_same(await storage.get("full"), full_task())

            await storage.update(make_task("full"))
            assert_same(await storage.get("full"), make_task("full"))

    @pytest.mark.asyncio
    async def test_every_query_returns_whole_records(self, open_storage: OpenStorage) -> None:
        """C2.1: lists and lookups return records as complete as `get` does."""
        async with open_storage() as storage:
            running = full_task("running")
            ready = full_task("ready", status=TaskStatus.PENDING, held=False, deduplication_key="other")
            waiting = full_task("waiting", status=TaskStatus.WAITING, deduplication_key="third", group="g2")
            await fill(storage, running, ready, waiting)
            answers = [
                *(await storage.get_by_status(TaskStatus.RUNNING)),
                await storage.find_active_by_deduplication_key("dedup-1"),
                (await storage.get_many(["running"]))["running"],
            ]
            for answer in answers:
                assert_same(answer, running)
            for answer in [*(await storage.get_pending()), await storage.get_next_ready(T0 + 3 * TICK)]:
                assert_same(answer, ready)
            for answer in [
                *(await storage.get_waiting_dependents("dep-a")),
                *(await storage.get_by_group("g2")),
            ]:
                assert_same(answer, waiting)
            assert_same_list(await storage.get_all(), [ready, running, waiting])

    @pytest.mark.asyncio
    async def test_defaults_come_back(self, open_storage: OpenStorage) -> None:
        """C2.2: a record with nothing but the required fields comes back with None, zero and empty as they were."""
        async with open_storage() as storage:
            await storage.save(StoredTask(id="bare", type="t", created_at=T0))
            stored = await storage.get("bare")

            assert stored == StoredTask(id="bare", type="t", created_at=T0)
            assert stored is not None
            assert (stored.result_text, stored.depends_on) == (None, ())

    @pytest.mark.asyncio
    async def test_every_status_and_policy_comes_back(self, open_storage: OpenStorage) -> None:
        """C2.3: each status, each dependency policy and each kind of retry policy comes back."""
        policies = [
            RetryPolicy.none(),
            RetryPolicy.fixed(max_attempts=1, delay=timedelta(0)),
            RetryPolicy.fixed(max_attempts=2**31 - 1, delay=timedelta(days=365)),
            RetryPolicy.exponential(max_attempts=3, initial_delay=timedelta(seconds=1)),
            RetryPolicy.exponential(
                max_attempts=3,
                initial_delay=timedelta(0),
                max_delay=timedelta(0),
                jitter=True,
                jitter_factor=1.0,
            ),
        ]
        tasks = [in_status(status) for status in EVERY_STATUS]
        tasks += [make_task(f"d-{p.value}", on_dependency_failure=p) for p in DependencyFailurePolicy]
        tasks += [make_task(f"r-{number}", retry_policy=policy) for number, policy in enumerate(policies)]
        async with open_storage() as storage:
            await come_back(storage, tasks)

    @pytest.mark.asyncio
    async def test_instants_keep_their_microseconds(self, open_storage: OpenStorage) -> None:
        """C2.4: an instant comes back to the microsecond and in UTC, from the year 1 to 9999."""
        instants = [
            T0 + TICK,
            datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
            datetime(1, 1, 1, tzinfo=UTC),
            datetime(1900, 1, 1, tzinfo=UTC),
            datetime(2038, 1, 19, 3, 14, 8, 1, tzinfo=UTC),
            datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        ]
        async with open_storage() as storage:
            await come_back(
                storage,
                [
                    make_task(f"t{number}", created_at=at, updated_at=at, next_attempt_at=at, expires_at=at)
                    for number, at in enumerate(instants)
                ],
            )
            stored = await storage.get("t0")
            assert stored is not None
            assert stored.created_at.tzinfo is UTC

    @pytest.mark.asyncio
    async def test_json_text_comes_back(self, open_storage: OpenStorage) -> None:
        """C2.5, S13.11: payload and result come back as the same canonical text."""
        values = [
            {"float": 1.0, "int": 1, "big": 10**600, "small": 5e-324, "minus": -0.0},
            {"nested": [[[{"a": []}]]], "": "empty key", "text": "\x01\x7f\u2028 \\u0000 '\" 😀"},
            {"large": "x" * 1_000_000},
        ]
        async with open_storage() as storage:
            tasks = [make_task(f"t{n}", payload=value, result=value) for n, value in enumerate(values)]
            tasks += [make_task(f"r{n}", result=r) for n, r in enumerate([0, "", [], False, 1.0, "null"])]
            await come_back(storage, tasks)
            for task in tasks:
                stored = await storage.get(task.id)
                assert stored is not None
                assert (stored.payload_text, stored.result_text) == (task.payload_text, task.result_text)

    @pytest.mark.asyncio
    async def test_numbers_come_back(self, open_storage: OpenStorage) -> None:
        """C2.6, S2.2: priorities of 32 signed bits and sequences up to 2**53 come back."""
        async with open_storage() as storage:
            await come_back(
                storage,
                [
                    make_task("low", priority=-(2**31), sequence=0),
                    make_task("high", priority=2**31 - 1, sequence=2**53),
                    make_task("counts", attempts=2**31, interruptions=2**31, payload_version=2**31),
                ],
            )

    @pytest.mark.asyncio
    async def test_nasty_text_comes_back(self, open_storage: OpenStorage) -> None:
        """C1.5, C2.1: any text without NUL works as id, type, key, group, reference and dependency."""
        async with open_storage() as storage:
            await come_back(
                storage,
                [
                    make_task(
                        text,
                        type=text,
                        deduplication_key=text,
                        idempotency_key=text,
                        group=text,
                        hand_off_reference=text,
                        depends_on=(f"{text}!",),
                    )
                    for text in NASTY
                ],
            )

    @pytest.mark.asyncio
    async def test_similar_ids_are_different_ids(self, open_storage: OpenStorage) -> None:
        """C1.5: ids are compared exactly: no folding, trimming, normalising or pattern."""
        async with open_storage() as storage:
            await fill(storage, *(make_task(text, payload={"n": n}) for n, text in enumerate(LOOKALIKES)))
            for number, text in enumerate(LOOKALIKES):
                stored = await storage.get(text)
                assert stored is not None
                assert (stored.id, stored.payload) == (text, {"n": number})
            await storage.delete("ke%")

            assert len(await storage.get_all()) == len(LOOKALIKES) - 1

    @pytest.mark.asyncio
    async def test_many_dependencies_come_back_in_their_order(self, open_storage: OpenStorage) -> None:
        """C2.7: two thousand dependencies come back in the order in which they were given."""
        async with open_storage() as storage:
            names = tuple(f"dep-{number * 7919 % 2000}" for number in range(2000))
            await come_back(storage, [in_status(TaskStatus.WAITING, "join", depends_on=names)])

    @pytest.mark.asyncio
    async def test_a_record_in_hand_does_not_change(self, open_storage: OpenStorage) -> None:
        """C2.8, S1.6: a record that was handed out stays as it was, and changing its payload changes no store."""
        async with open_storage() as storage:
            await storage.save(make_task(payload={"list": [1]}))
            before = await storage.get("task")
            assert before is not None
            before.payload["list"].append(2)
            await storage.update(make_task(payload={"list": [3]}, attempts=1))

            assert (before.payload, before.attempts) == ({"list": [1]}, 0)
            assert await storage.get("task") == make_task(payload={"list": [3]}, attempts=1)

    @pytest.mark.asyncio
    async def test_an_unknown_id_has_no_record(self, open_storage: OpenStorage) -> None:
        """C3.1: `get` returns None for an id that is not stored."""
        async with open_storage() as storage:
            assert await storage.get("nobody") is None

            await storage.save(make_task())
            assert await storage.get("nobody") is None

    @pytest.mark.asyncio
    async def test_saving_a_known_id_is_refused(self, open_storage: OpenStorage) -> None:
        """C3.2: saving a known id raises TaskAlreadyExistsError, in whatever status, and the old record stays."""
        async with open_storage() as storage:
            for status in EVERY_STATUS:
                old = in_status(status, group="old", deduplication_key=status.value)
                await storage.save(old)
                for new in (make_task(status.value, group="new", priority=9), old):
                    with pytest.raises(TaskAlreadyExistsError) as caught:
                        await storage.save(new)
                    assert caught.value.task_id == status.value
                assert await storage.get(status.value) == old
            assert await storage.get_by_group("new") == []
            assert len(await storage.get_all()) == len(EVERY_STATUS)

    @pytest.mark.asyncio
    async def test_updating_an_unknown_id_is_refused(self, open_storage: OpenStorage) -> None:
        """C3.3: updating an id that is not stored raises TaskNotFoundError and stores nothing."""
        async with open_storage() as storage:
            await storage.save(make_task("other"))
            with pytest.raises(TaskNotFoundError) as caught:
                await storage.update(make_task("nobody"))

            assert caught.value.task_id == "nobody"
            assert ids(await storage.get_all()) == ["other"]

    @pytest.mark.asyncio
    async def test_an_update_moves_the_record_everywhere(self, open_storage: OpenStorage) -> None:
        """C3.4: after an update every query knows the new record and none the old one."""
        old = make_task(
            deduplication_key="old",
            group="old",
            depends_on=("old",),
            next_attempt_at=T0,
            sequence=8,
            priority=1,
        )
        new = in_status(
            TaskStatus.WAITING, "task", deduplication_key="new", group="new", depends_on=("new",), sequence=3
        )
        async with open_storage() as storage:
            await storage.save(old)
            for current, gone in ((new, old), (old, new)):
                await storage.update(current)
                key, other = current.deduplication_key or "", gone.deduplication_key or ""
                assert await storage.find_active_by_deduplication_key(key) == current
                assert await storage.find_active_by_deduplication_key(other) is None
                assert await storage.get_by_group(key) == [current]
                assert await storage.get_by_group(other) == []
                assert await storage.get_by_status(current.status) == [current]
                assert await storage.get_by_status(gone.status) == []
                assert await storage.get_dependents(key) == [current]
                assert await storage.get_dependents(other) == []
                assert await storage.get_max_sequence() == current.sequence
                assert await storage.get_all() == [current]
            assert await storage.get_waiting_dependents("new") == []
            assert await storage.get_next_ready(T0) == old
            assert await storage.get_next_wake_at() == T0

    @pytest.mark.asyncio
    async def test_an_update_may_be_repeated(self, open_storage: OpenStorage) -> None:
        """C3.5: repeating an update with the same record succeeds and changes nothing."""
        async with open_storage() as storage:
            await fill(storage, make_task("other", group="g"), make_task("full"))
            for _ in range(3):
                await storage.update(full_task(group="g"))

            assert_same_list(
                await storage.get_by_group("g"), [make_task("other", group="g"), full_task(group="g")]
            )
            assert await storage.get_by_status(TaskStatus.RUNNING) == [full_task(group="g")]
            assert (await storage.count_by_status())[TaskStatus.RUNNING] == 1

    @pytest.mark.asyncio
    async def test_a_deleted_record_is_gone_everywhere(self, open_storage: OpenStorage) -> None:
        """C3.6: after a delete no query knows the record any more."""
        async with open_storage() as storage:
            await fill(
                storage,
                make_task(
                    "ready", deduplication_key="k", group="g", next_attempt_at=T0, sequence=5, expires_at=T0
                ),
                in_status(TaskStatus.WAITING, "waits", depends_on=("ready",), group="g"),
            )
            await storage.delete("ready")
            await storage.delete("waits")

            assert await storage.get("ready") is None
            assert (
                await storage.get_all()
                == await storage.get_pending()
                == await storage.get_by_group("g")
                == []
            )
            assert await storage.find_active_by_deduplication_key("k") is None
            assert (
                await storage.get_waiting_dependents("ready") == await storage.get_dependents("ready") == []
            )
            assert await storage.get_next_ready(T0) is None
            assert await storage.get_next_wake_at() is None
            assert await storage.get_next_expiry_at() is None
            assert await storage.get_max_sequence() == 0

    @pytest.mark.asyncio
    async def test_deleting_again_does_nothing(self, open_storage: OpenStorage) -> None:
        """C3.7: deleting an id that is not stored does nothing, and a deleted id can be saved anew."""
        async with open_storage() as storage:
            await fill(storage, full_task(), make_task("other"))
            await storage.delete("full")
            await storage.delete("full")
            await storage.delete("nobody")
            assert ids(await storage.get_all()) == ["other"]

            await storage.save(make_task("full"))
            assert_same(await storage.get("full"), make_task("full"))


def assert_same(stored: StoredTask | None, expected: StoredTask) -> None:
    """Compare field by field, so that a failure names the field."""
    assert stored is not None
    different = {}
    for field in attrs.fields(StoredTask):
        found, wanted = getattr(stored, field.name), getattr(expected, field.name)
        if (found, type(found)) != (wanted, type(wanted)):
            different[field.name] = {"found": found, "wanted": wanted}
    assert different == {}
    assert stored == expected


def assert_same_list(stored: list[StoredTask], expected: list[StoredTask]) -> None:
    """Compare record by record."""
    assert ids(stored) == ids(expected)
    for left, right in zip(stored, expected, strict=True):
        assert_same(left, right)


async def come_back(storage: QueueStorage, tasks: list[StoredTask]) -> None:
    """Store records and compare what comes back."""
    await fill(storage, *tasks)
    for task in tasks:
        assert_same(await storage.get(task.id), task)
