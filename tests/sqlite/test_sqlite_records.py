"""Rows: every field comes back, and a row that cannot be read harms nobody else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest

from durable_queue import (
    CorruptRecordError,
    Delete,
    DependencyFailurePolicy,
    PayloadError,
    RetryPolicy,
    Save,
    StoredTask,
    TaskFailure,
    TaskStatus,
)
from durable_queue_sqlite import SqliteQueueStorage
from tests.sqlite.support import HOUR, SECOND, T0, execute, ids, task

_FAILURE = TaskFailure(
    error="no\0 such \ud800 thing",
    error_type="KeyError",
    stack_trace="line 1\nline 2",
    failed_at=T0,
    attempt=2,
    cause_task_id="root",
)
FULL = StoredTask(
    id="full",
    type="work",
    payload={"ü": [1, 2.5, None, True, {"deep": "日本"}]},
    status=TaskStatus.RUNNING,
    attempts=3,
    retry_policy=RetryPolicy.exponential(
        max_attempts=9, initial_delay=SECOND, max_delay=HOUR, jitter=True, jitter_factor=0.125
    ),
    created_at=datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    updated_at=datetime.max.replace(tzinfo=UTC),
    sequence=2**62,
    next_attempt_at=datetime.min.replace(tzinfo=UTC),
    deduplication_key="key",
    idempotency_key="once",
    last_failure=_FAILURE,
    cancel_requested=True,
    priority=-(2**31),
    depends_on=("z", "a", "ü", 'quo"te', "0"),
    on_dependency_failure=DependencyFailurePolicy.RUN,
    group="group",
    hand_off_reference="reference",
    hand_off_deadline=T0 + timedelta(microseconds=1),
    expires_at=T0 - HOUR,
    result=[None, {"r": 1}],
    interruptions=4,
    payload_version=5,
    failures=(_FAILURE, attrs.evolve(_FAILURE, stack_trace=None, cause_task_id=None)),
    held=True,
    skipped=True,
)


@pytest.mark.asyncio
@pytest.mark.parametrize("name", [field.name for field in attrs.fields(StoredTask)])
async def test_every_field_comes_back(tmp_path: Path, name: str) -> None:
    """S1.2: each field survives on its own, by save and by update, and goes back to its default."""
    alias = next(field.alias for field in attrs.fields(StoredTask) if field.name == name)
    plain = task("full")
    changed = plain if name == "id" else attrs.evolve(plain, **{alias: getattr(FULL, name)})
    async with SqliteQueueStorage(tmp_path / "queue.db", synchronous="NORMAL") as storage:
        await storage.save(changed)
        assert await storage.get("full") == changed
        await storage.update(plain)
        assert await storage.get("full") == plain
        await storage.update(changed)
    async with SqliteQueueStorage(tmp_path / "queue.db", synchronous="NORMAL") as storage:
        assert await storage.get("full") == changed


@pytest.mark.asyncio
async def test_a_full_record_comes_back(tmp_path: Path) -> None:
    """S1.2: all fields at once, at the ends of their ranges."""
    async with SqliteQueueStorage(tmp_path / "queue.db") as storage:
        await storage.apply([Save(FULL)])

        assert await storage.get_all() == [FULL]
        assert (await storage.get_many(["full", "other"])) == {"full": FULL}


@pytest.mark.asyncio
@pytest.mark.parametrize("text", ["{", "[1", "", "nonsense", "[]", '{"a":\ud800}'.replace("\ud800", "NaN")])
async def test_a_broken_payload_loads(tmp_path: Path, text: str) -> None:
    """S7.3: a payload that is no JSON object is handed on; it fails when somebody decodes it."""
    path = tmp_path / "queue.db"
    async with SqliteQueueStorage(path) as storage:
        await storage.save(task("a"))
        execute(path, "UPDATE payloads SET text = ?", text)

        [found] = await storage.get_ready(T0, 1)

        assert found.payload_text == text
        with pytest.raises(PayloadError):
            _ = found.payload
        await storage.update(attrs.evolve(found, status=TaskStatus.FAILED))
        assert await storage.take_unreadable() == []


@pytest.mark.asyncio
async def test_bytes_in_a_payload_that_are_no_text_fail_when_decoded(tmp_path: Path) -> None:
    """S7.3: a payload that is no UTF-8 is no different from one that is no JSON."""
    path = tmp_path / "queue.db"
    async with SqliteQueueStorage(path) as storage:
        await storage.apply([Save(task("a")), Save(task("b"))])
        execute(
            path,
            """UPDATE payloads SET text = CAST(x'7b226b223a22ff227d' AS TEXT)
            WHERE "row" = (SELECT "row" FROM tasks WHERE id = 'a')""",
        )

        found = await storage.get_ready(T0, 2)

        assert ids(found) == ["a", "b"]
        with pytest.raises(PayloadError):
            _ = found[0].payload
        await storage.update(attrs.evolve(found[0], status=TaskStatus.FAILED))


MALFORMED: list[tuple[str, Any, str]] = [
    ("retry_policy", "{", "retry_policy"),
    ("retry_policy", '{"type":"sometimes"}', "retry_policy"),
    ("retry_policy", '{"type":"fixed","maxAttempts":"3","delayMicros":1}', "retry_policy"),
    ("details", "nonsense", "details"),
    ("details", "[]", "details"),
    ("details", '{"lastFailure":{"error":1}}', "lastFailure.error"),
    ("details", '{"lastFailure":[]}', "lastFailure"),
    ("details", '{"failures":[{}]}', "failures.failedAt"),
    ("details", '{"failures":{}}', "failures"),
    ("details", '{"interruptions":true}', "interruptions"),
    ("details", '{"cancelRequested":1}', "cancelRequested"),
    ("details", '{"handOffDeadlineMicros":9223372036854775807}', "handOffDeadlineMicros"),
    ("depends_on", "{}", "depends_on"),
    ("depends_on", "[1]", "depends_on"),
    ("on_dependency_failure", 3, "on_dependency_failure"),
    ("created_at", 2**62, "created_at"),
    ("expires_at", -(2**62), "expires_at"),
    ("held", 2, "held"),
    ("attempts", -1, None),
    ("type", "", None),
    ("group_name", "", None),
    ("group_name", b"\xff", "group"),
    ("status", 7, "status"),
    ("payload", None, "payload"),
]


async def corrupt(path: Path, task_id: str, column: str, value: Any) -> None:
    """Damage one column of one row, behind the storage's back."""
    if column == "payload":
        execute(path, 'DELETE FROM payloads WHERE "row" = (SELECT "row" FROM tasks WHERE id = ?)', task_id)
    else:
        execute(
            path, f"UPDATE tasks SET {column} = ? WHERE id = ?", None, task_id
        ) if value is None else execute(
            path,
            f"UPDATE tasks SET {column} = {'CAST(? AS TEXT)' if isinstance(value, bytes) else '?'} WHERE id = ?",
            value,
            task_id,
        )


@pytest.mark.asyncio
@pytest.mark.parametrize(("column", "value", "field"), MALFORMED)
async def test_a_malformed_row_is_named_and_passed_over(
    tmp_path: Path, column: str, value: Any, field: str | None
) -> None:
    """S13.12: get raises and names the field; queries leave the record out and remember it once."""
    path = tmp_path / "queue.db"
    async with SqliteQueueStorage(path) as storage:
        await storage.apply([Save(task("a")), Save(task("bad")), Save(task("c"))])
        await corrupt(path, "bad", column, value)

        with pytest.raises(CorruptRecordError) as refused:
            await storage.get("bad")

        assert (refused.value.task_id, refused.value.field) == ("bad", field)
        assert ids(await storage.get_all()) == ["a", "c"]
        assert ids(await storage.get_pending()) == ["a", "c"]
        assert ids(await storage.get_ready(T0, 10)) == ["a", "c"]
        assert set(await storage.get_many(["a", "bad"])) == {"a"}
        assert [error.task_id for error in await storage.take_unreadable()] == ["bad"]
        assert await storage.take_unreadable() == []
        await storage.apply([Delete("bad")])
        assert await storage.get("bad") is None


@pytest.mark.asyncio
async def test_an_unreadable_head_does_not_hide_what_follows(tmp_path: Path) -> None:
    """S13.12: a page that holds unreadable rows is followed by what comes after them, not by itself again."""
    path = tmp_path / "queue.db"
    async with SqliteQueueStorage(path) as storage:
        records = [
            task(f"t{number}", sequence=number, priority=-number, expires_at=T0 + number * SECOND)
            for number in range(6)
        ]
        await storage.apply([Save(record) for record in records])
        for number in (0, 1, 3):
            await corrupt(path, f"t{number}", "details", "{")

        head = await storage.get_next_ready(T0)

        assert head is not None
        assert head.id == "t2"
        assert ids(await storage.get_ready(T0, 2)) == ["t2", "t4"]
        assert ids(await storage.get_ready(T0, 2, types=["work"])) == ["t2", "t4"]
        assert ids(await storage.get_by_status(TaskStatus.PENDING, limit=2)) == ["t2", "t4"]
        assert ids(await storage.get_by_status(TaskStatus.PENDING, limit=2, after=records[2])) == ["t4", "t5"]
        assert ids(await storage.get_expired(T0 + HOUR, 2)) == ["t2", "t4"]
        assert sorted(str(error.task_id) for error in await storage.take_unreadable()) == ["t0", "t1", "t3"]


@pytest.mark.asyncio
async def test_an_unreadable_record_holds_no_key(tmp_path: Path) -> None:
    """S13.12: a key whose holder cannot be read is free, or held by the next one."""
    path = tmp_path / "queue.db"
    async with SqliteQueueStorage(path) as storage:
        await storage.save(task("bad", deduplication_key="key"))
        await corrupt(path, "bad", "details", "{")

        assert await storage.find_active_by_deduplication_key("key") is None
        await storage.save(task("good", deduplication_key="key", sequence=1))
        found = await storage.find_active_by_deduplication_key("key")

        assert found is not None
        assert found.id == "good"


@pytest.mark.asyncio
async def test_a_save_over_an_unreadable_record_is_refused(tmp_path: Path) -> None:
    """S13.3: what cannot be read is not equal to anything."""
    path = tmp_path / "queue.db"
    async with SqliteQueueStorage(path) as storage:
        await storage.save(task("bad"))
        await corrupt(path, "bad", "details", "{")

        with pytest.raises(ValueError, match="already stored"):
            await storage.apply([Save(task("bad"))])
        await storage.update(task("bad", attempts=1))

        assert await storage.get("bad") == task("bad", attempts=1)
