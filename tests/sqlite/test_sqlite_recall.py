"""Rows known by heart: written without a look, and never trusted when somebody may have changed them."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import pytest_asyncio

from durable_queue import (
    Delete,
    Save,
    StorageError,
    StoredTask,
    TaskAlreadyExistsError,
    TaskNotFoundError,
    TaskStatus,
    Update,
)
from durable_queue_sqlite import SqliteQueueStorage
from durable_queue_sqlite._recall import MOST_ROWS, MOST_TEXT, Recall
from tests.sqlite.support import T0, execute, ids, on_connection, task

RUNNING, COMPLETED, WAITING = TaskStatus.RUNNING, TaskStatus.COMPLETED, TaskStatus.WAITING

A = task("a", sequence=1, group="g", deduplication_key="k", depends_on=["root"])

Learn = Callable[[], Awaitable[StoredTask]]


def claimed(record: StoredTask) -> StoredTask:
    """Return what the queue writes when it starts a task."""
    return attrs.evolve(record, status=RUNNING, attempts=1)


@pytest_asyncio.fixture
async def storage(tmp_path: Path) -> AsyncIterator[SqliteQueueStorage]:
    async with SqliteQueueStorage(tmp_path / "queue.db") as opened:
        yield opened


@pytest_asyncio.fixture
async def other(storage: SqliteQueueStorage, tmp_path: Path) -> AsyncIterator[SqliteQueueStorage]:
    """Another connection to the same file."""
    async with SqliteQueueStorage(tmp_path / "queue.db") as opened:
        yield opened


@pytest.fixture(params=["insert", "update", "read ahead"])
def learn(request: pytest.FixtureRequest, storage: SqliteQueueStorage, other: SqliteQueueStorage) -> Learn:
    """Stores `A` so that the storage knows it by heart, in each of the ways, and returns it as it is handed out."""

    async def learn() -> StoredTask:
        record = A
        if request.param == "insert":
            await storage.save(A)
        else:
            await other.save(A)
            if request.param == "update":
                await storage.update(A)
            else:
                # A write first: what was read would otherwise be older than the last look at others.
                await storage.delete("nobody")
                (record,) = (await storage.read_ahead(T0, 9)).tasks
        assert await recalled(storage) == {"a"}
        assert record == A
        return record

    return learn


async def recalled(storage: SqliteQueueStorage) -> set[str]:
    """Return the ids that the storage knows by heart."""
    return set((await recall_of(storage))._known)


async def recall_of(storage: SqliteQueueStorage) -> Recall:
    link = storage._link
    assert link is not None
    return await link.run("test", lambda session: session.recall)


async def statements_of(storage: SqliteQueueStorage, call: Awaitable[object]) -> list[str]:
    """Return what is executed for a call, transactions and the look at others left out."""
    seen: list[str] = []
    await on_connection(storage, lambda database: database.set_trace_callback(seen.append))
    await call
    await on_connection(storage, lambda database: database.set_trace_callback(None))
    seen = [" ".join(statement.split()) for statement in seen]
    return [text for text in seen if not text.startswith(("BEGIN", "COMMIT", "PRAGMA data_version"))]


async def open_edges(storage: SqliteQueueStorage) -> list[str]:
    """Return the ids that are dependencies taken for active."""
    rows: list[Any] = await on_connection(
        storage,
        lambda database: database.execute(
            "SELECT DISTINCT dependency_id FROM edges WHERE open = 1 ORDER BY 1"
        ).fetchall(),
    )
    return [row[0] for row in rows]


@pytest.mark.asyncio
async def test_what_is_known_is_written_without_a_look(storage: SqliteQueueStorage, learn: Learn) -> None:
    """S13.2: a claim of a row that is known, and its end, are one statement each, and one for the result."""
    a = await learn()
    claim = await statements_of(storage, storage.update(claimed(a)))
    done = attrs.evolve(claimed(a), status=COMPLETED, result=1)
    end = await statements_of(storage, storage.update(done))

    assert [statement[:40] for statement in claim] == ["UPDATE tasks SET status = new.column2, s"]
    assert [statement[:40] for statement in end] == [claim[0][:40], end[1][:40]]
    assert end[1].startswith("INSERT INTO results")
    assert await storage.get("a") == done
    assert await recalled(storage) == set()


CHANGES: dict[str, dict[str, Any]] = {
    "type": {"type": "another"},
    "payload": {"payload": {"of": "another"}},
    "result": {"result": 7},
    "priority": {"priority": 3},
    "created_at": {"created_at": T0.replace(year=2020), "updated_at": T0},
    "sequence": {"sequence": 2},
    "deduplication_key": {"deduplication_key": None},
    "group": {"group": "another"},
    "depends_on": {"depends_on": ("x",)},
    "state": {"status": RUNNING, "attempts": 4, "held": True},
}


@pytest.mark.asyncio
@pytest.mark.parametrize("field", CHANGES)
async def test_another_connection_changed_it(
    storage: SqliteQueueStorage, other: SqliteQueueStorage, learn: Learn, field: str
) -> None:
    """S10.3: a record is written whole when another connection has changed any part of it in between."""
    a = await learn()
    changed = attrs.evolve(a, **CHANGES[field])
    await other.update(changed)
    await storage.update(claimed(a))

    assert await other.get("a") == claimed(a)
    assert await other.get_dependents("x") == []


@pytest.mark.asyncio
async def test_another_program_changed_it(storage: SqliteQueueStorage, learn: Learn, tmp_path: Path) -> None:
    """S10.3: whoever commits to the file, what is known is doubted."""
    a = await learn()
    execute(tmp_path / "queue.db", "UPDATE tasks SET rank = 9, depends_on = '[\"x\"]'")
    execute(tmp_path / "queue.db", "UPDATE payloads SET text = '{}'")
    await storage.update(claimed(a))

    assert await storage.get("a") == claimed(a)


@pytest.mark.asyncio
async def test_another_connection_deleted_it(
    storage: SqliteQueueStorage, other: SqliteQueueStorage, learn: Learn
) -> None:
    """C3.3: an update of a row that another connection has deleted is refused, and an insert is none of an old row."""
    a = await learn()
    await other.delete("a")
    with pytest.raises(TaskNotFoundError):
        await storage.update(claimed(a))
    await storage.save(claimed(a))

    assert await other.get_all() == [claimed(a)]


@pytest.mark.asyncio
async def test_another_connection_deleted_it_and_stored_it_again(
    storage: SqliteQueueStorage, other: SqliteQueueStorage, learn: Learn
) -> None:
    """C3.3, C3.4: the update goes to the row that the id has now."""
    a = await learn()
    await other.apply([Delete("a"), Save(task("b", sequence=2))])
    await other.save(attrs.evolve(A, priority=4))
    with pytest.raises(TaskAlreadyExistsError):
        await storage.save(claimed(a))
    await storage.update(claimed(a))

    assert await other.get_all() == [claimed(a), task("b", sequence=2)]


@pytest.mark.asyncio
async def test_another_connection_made_something_depend_on_it(
    storage: SqliteQueueStorage, other: SqliteQueueStorage, learn: Learn
) -> None:
    """S4.2, S13.6: the end of a task closes the edge that another connection has added since."""
    a = await learn()
    await other.apply([Save(task("b")), Save(task("child", status=WAITING, depends_on=["a", "b"]))])
    await storage.update(attrs.evolve(claimed(a), status=COMPLETED))

    assert await open_edges(storage) == ["b"]
    assert ids(await storage.get_judgeable(["b"])) == ["child"]


@pytest.mark.asyncio
@pytest.mark.parametrize("together", [True, False])
async def test_own_dependents_are_noted(storage: SqliteQueueStorage, learn: Learn, together: bool) -> None:
    """S4.2: the end of a task closes the edges that were added after it was known, in the same list or later."""
    a = await learn()
    added = [
        Save(task("first", status=WAITING, depends_on=["a"])),
        Save(task("second")),
        Update(task("second", status=WAITING, depends_on=["a"])),
    ]
    if together:
        await storage.apply([*added, Update(claimed(a))])
    else:
        for change in added:
            await storage.apply([change])
    assert await open_edges(storage) == ["a"]
    await storage.update(attrs.evolve(claimed(a), priority=3))
    await storage.update(attrs.evolve(claimed(a), status=COMPLETED))
    assert await open_edges(storage) == []
    await storage.update(A)

    assert await open_edges(storage) == ["a"]


@pytest.mark.asyncio
async def test_dependents_are_known_when_a_task_is_read_ahead(
    storage: SqliteQueueStorage, other: SqliteQueueStorage
) -> None:
    """S4.2: a task that is read ahead with its dependents closes their edges when it ends, without a look."""
    await other.apply([Save(A), Save(task("child", status=WAITING, depends_on=["a"]))])
    await storage.delete("nobody")
    (a,) = (await storage.read_ahead(T0, 9)).tasks
    await storage.update(claimed(a))
    end = await statements_of(storage, storage.update(attrs.evolve(claimed(a), status=COMPLETED)))

    assert [statement[:12] for statement in end] == ["UPDATE tasks", "UPDATE edges"]
    assert await open_edges(storage) == []


@pytest.mark.asyncio
@pytest.mark.parametrize("fault", ["a statement", "the commit"])
async def test_a_transaction_that_was_rolled_back_is_not_known(
    storage: SqliteQueueStorage, learn: Learn, tmp_path: Path, fault: str
) -> None:
    """C9.7, S10.3: after a list that was undone, the same list is written in full."""
    a = await learn()
    changes = [
        Update(attrs.evolve(claimed(a), priority=5, payload={"new": 1}, result=2)),
        Save(task("b", depends_on=["a"], status=WAITING)),
        Delete("nobody"),
    ]
    if fault == "a statement":
        trigger = "CREATE TRIGGER fault BEFORE INSERT ON edges BEGIN SELECT RAISE(ABORT, 'injected'); END"
        await on_connection(storage, lambda database: database.execute(trigger).fetchall())
    else:
        await on_connection(storage, lambda database: database.set_authorizer(_no_commit))
    for _ in range(2):
        with pytest.raises(StorageError, match=r"injected|not authorized"):
            await storage.apply(changes)
        assert await storage.get_all() == [A]
    await on_connection(storage, lambda database: database.set_authorizer(None))
    await on_connection(storage, lambda database: database.execute("DROP TRIGGER IF EXISTS fault").fetchall())
    await storage.apply(changes)

    assert await storage.get_all() == [task("b", depends_on=["a"], status=WAITING), changes[0].task]
    assert await open_edges(storage) == ["a"]


def _no_commit(action: int, first: str | None, *_: object) -> int:
    refused = action == sqlite3.SQLITE_TRANSACTION and first == "COMMIT"
    return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK


class LosesTheAnswer:
    """A connection whose first commit is done and then fails, as when the disk goes away at that moment."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self.database = database
        self.has_failed = False

    def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
        cursor = self.database.execute(statement, *parameters)
        if statement == "COMMIT" and not self.has_failed:
            self.has_failed = True
            raise sqlite3.OperationalError("disk I/O error")
        return cursor

    def __getattr__(self, name: str) -> Any:
        return getattr(self.database, name)


@pytest.mark.asyncio
@pytest.mark.parametrize("field", CHANGES)
async def test_after_a_commit_of_unknown_outcome_nothing_is_known(
    storage: SqliteQueueStorage, learn: Learn, field: str
) -> None:
    """S10.3, S13.3: a write that was done although it failed does not show in the next one."""
    a = await learn()
    link = storage._link
    assert link is not None
    link._session._database = LosesTheAnswer(link._session.database)  # type: ignore[assignment]  # it is like one
    changed = attrs.evolve(a, **CHANGES[field])
    with pytest.raises(StorageError, match="disk I/O error"):
        await storage.update(changed)
    assert await storage.get("a") == changed
    await storage.update(claimed(a))

    assert await storage.get("a") == claimed(a)


@pytest.mark.asyncio
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("end", ["delete", "complete and delete"])
async def test_deleted_and_stored_again_under_the_same_id(
    storage: SqliteQueueStorage, learn: Learn, together: bool, end: str
) -> None:
    """C3.7, C9.2: a new record under an old id shares nothing with the old one, in one list or several."""
    a = await learn()
    again = task("a", priority=2, payload={"second": True})
    changes = [Update(attrs.evolve(a, status=COMPLETED, result=1))] if end != "delete" else []
    changes += [Delete("a"), Save(again)]
    if together:
        await storage.apply(changes)
    else:
        for change in changes:
            await storage.apply([change])
    assert await storage.get_all() == [again]
    await storage.update(attrs.evolve(again, attempts=1))

    assert await storage.get_all() == [attrs.evolve(again, attempts=1)]
    assert await storage.get_dependents("root") == []


@pytest.mark.asyncio
async def test_a_payload_goes_forth_and_back(storage: SqliteQueueStorage, learn: Learn) -> None:
    """C3.4: the payload of the last update is what is stored, also when it was stored before."""
    a = await learn()
    first, second = attrs.evolve(a, payload={"n": 1}), attrs.evolve(a, payload={"n": 2})
    for record in (first, second, a, first, attrs.evolve(a, payload=a.payload)):
        await storage.update(record)
        assert await storage.get("a") == record


@pytest.mark.asyncio
@pytest.mark.parametrize("field", CHANGES)
async def test_every_field_goes_forth_and_back(storage: SqliteQueueStorage, learn: Learn, field: str) -> None:
    """C3.4: the record of the last update is what is stored, also when it was stored before."""
    a = await learn()
    changed = attrs.evolve(a, **CHANGES[field])
    for record in (changed, a, claimed(changed), claimed(a), changed):
        await storage.update(record)
        assert await storage.get("a") == record
        assert ids(await storage.get_dependents("root")) == (["a"] if "root" in record.depends_on else [])


@pytest.mark.asyncio
async def test_a_result_comes_and_goes(storage: SqliteQueueStorage, learn: Learn) -> None:
    """C3.4: a result that the last update does not have is not stored."""
    a = await learn()
    for result in (1, None, "x", "y", None, None, 3):
        record = attrs.evolve(a, result=result)
        await storage.update(record)
        assert await storage.get("a") == record
    # It is read ahead with its result, and loses it.
    await storage.delete("nobody")
    assert (await storage.read_ahead(T0, 1)).tasks == [record]
    await storage.update(A)
    assert await storage.get("a") == A


@pytest.mark.asyncio
async def test_a_save_of_what_is_known(storage: SqliteQueueStorage, learn: Learn) -> None:
    """C3.2, C9.3, C9.4: in a list an equal record counts as done and another is refused; `save` refuses both."""
    a = await learn()
    await storage.apply([Save(A)])
    for call in (storage.save(A), storage.save(claimed(a)), storage.apply([Save(claimed(a))])):
        with pytest.raises(TaskAlreadyExistsError):
            await call

    assert await storage.get_all() == [A]


@pytest.mark.asyncio
async def test_more_rows_than_are_known(storage: SqliteQueueStorage) -> None:
    """C9.1: lists of more rows than are remembered are written like any other; the memory stays bounded."""
    count = MOST_ROWS + 300
    records = [task(f"t{n:05}", sequence=n) for n in range(count)]
    await storage.apply([Save(record) for record in records])
    assert await recalled(storage) == {record.id for record in records[-MOST_ROWS:]}
    steps: list[Callable[[StoredTask], StoredTask]] = [
        lambda record: attrs.evolve(record, priority=record.sequence % 3),
        lambda record: attrs.evolve(record, payload={"n": record.sequence}, result=1),
        lambda record: attrs.evolve(record, result=None, interruptions=record.sequence % 2),
        lambda record: attrs.evolve(record, payload={}, group="g") if record.sequence % 2 else record,
    ]
    for step in steps:
        records = [step(record) for record in records]
        await storage.apply([Update(record) for record in records])
        assert await storage.get_all() == records
        assert len(await recalled(storage)) == MOST_ROWS
    # The first ones are not known, the last ones are.
    await storage.apply([Delete(records[0].id), Delete(records[-1].id)])
    with pytest.raises(TaskNotFoundError):
        await storage.update(records[-1])
    assert await storage.get_all() == records[1:-1]


@pytest.mark.asyncio
async def test_large_payloads_are_not_kept(storage: SqliteQueueStorage) -> None:
    """C9.1: what is remembered has a bound in characters too, and the largest payload is written like any other."""
    large = [task(f"t{n}", sequence=n, payload={"text": str(n) * (MOST_TEXT // 4)}) for n in range(6)]
    huge = task("huge", sequence=9, payload={"text": "x" * MOST_TEXT})
    records = {record.id: record for record in (*large, huge)}
    await storage.apply([Save(record) for record in records.values()])
    longer = [attrs.evolve(record, payload={"text": "y" * (MOST_TEXT // 3)}) for record in large]
    shorter = [attrs.evolve(record, payload={"n": record.sequence}) for record in large]
    for record in (*large[:3], *longer[:3], *shorter[:3], huge, *longer[3:], attrs.evolve(huge, attempts=1)):
        await storage.update(record)
        records[record.id] = record
        recall = await recall_of(storage)
        assert recall._text == sum(len(known.payload or "") for known in recall._known.values())
        assert recall._text <= MOST_TEXT

    # Not in the assert itself: a failure would print the payloads.
    same = await storage.get_all() == sorted(records.values(), key=lambda record: record.sequence)
    assert same
