"""The storage that fails on command: what is passed on, what fails when, and what is held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from inspect import iscoroutinefunction
from typing import Any

import pytest
import pytest_asyncio

from durable_queue import (
    DurableQueue,
    FakeQueueClock,
    MemoryQueueStorage,
    QueueStorage,
    Save,
    StorageError,
    StoredTask,
    TaskNotFoundError,
    TaskStatus,
    Update,
)
from durable_queue.testing import (
    FAKE_START,
    OPERATIONS,
    WRITES,
    FlakyStorage,
)
from tests.support import ThirteenMethodStorage

HOUR = timedelta(hours=1)


def record(task_id: str = "t", **fields: Any) -> StoredTask:
    return StoredTask(id=task_id, type="work", created_at=FAKE_START, **fields)


@pytest.fixture(name="inner")
def _inner() -> MemoryQueueStorage:
    return MemoryQueueStorage()


@pytest.fixture(name="storage")
def _storage(inner: MemoryQueueStorage) -> FlakyStorage:
    return FlakyStorage(inner)


@pytest.fixture(name="clock")
def _clock() -> FakeQueueClock:
    return FakeQueueClock()


@pytest_asyncio.fixture(name="queue")
async def _queue(storage: FlakyStorage, clock: FakeQueueClock) -> AsyncIterator[DurableQueue]:
    async with DurableQueue(storage, clock=clock) as queue:
        yield queue


def test_every_method_of_a_storage_is_known() -> None:
    """S10.1: faults can be planned for every method that the interface has."""
    methods = {name for name, value in vars(QueueStorage).items() if iscoroutinefunction(value)}

    assert methods - {"read_ahead"} == OPERATIONS
    assert {"save", "update", "delete", "apply"} == WRITES
    assert methods - vars(FlakyStorage).keys() == {"changes_elsewhere"}


class Recorder(MemoryQueueStorage):
    """Answers nothing; remembers which methods were called with what."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []


def _recording(name: str) -> Any:
    async def method(self: Recorder, *args: Any, **options: Any) -> str:
        self.seen.append((name, args, options))
        return f"answer of {name}"

    return method


for _name in OPERATIONS:
    setattr(Recorder, _name, _recording(_name))


@pytest.mark.asyncio
@pytest.mark.parametrize("operation", sorted(OPERATIONS))
async def test_every_method_is_passed_on_once_and_counted(operation: str) -> None:
    """S10.1: each method goes to the method of the same name, as it was called, and only there."""
    inner = Recorder()
    storage = FlakyStorage(inner)
    needed: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "get_by_status": ((TaskStatus.PENDING,), {"limit": 3, "after": None}),
        "get_by_group": (("g",), {"status": None}),
        "get_ready": ((FAKE_START, 5), {"types": ["a"]}),
        "get_expired": ((FAKE_START, 5), {}),
    }
    nothing = {
        "get_pending",
        "get_next_wake_at",
        "get_max_sequence",
        "get_all",
        "get_next_expiry_at",
        "count_by_status",
        "count_held",
        "take_unreadable",
        "changes_elsewhere",
        "acquire_consumer",
        "release_consumer",
        "close",
    }
    args, options = needed.get(operation, ((), {}) if operation in nothing else (("argument",), {}))

    answer = await getattr(storage, operation)(*args, **options)

    assert inner.seen == [(operation, args, options)]
    assert storage.calls == {operation: 1}
    assert answer == (None if operation in {"save", "update", "delete"} else f"answer of {operation}")


@pytest.mark.asyncio
async def test_reading_ahead_goes_by_the_name_of_the_read_that_it_replaces() -> None:
    """S10.1: `read_ahead` is passed on where the inner storage has it, and counted and failed as `get_ready`."""
    inner = MemoryQueueStorage()
    storage = FlakyStorage(inner)
    await inner.save(record())

    assert (storage.reads_ahead, FlakyStorage(ThirteenMethodStorage()).reads_ahead) == (True, False)
    assert await storage.read_ahead(FAKE_START, 3) == await inner.read_ahead(FAKE_START, 3)
    assert storage.calls == {"get_ready": 1}
    storage.fail("get_ready")
    with pytest.raises(StorageError, match="get_ready was told to fail"):
        await storage.read_ahead(FAKE_START, 3)
    with pytest.raises(ValueError, match="must be the name of a method"):
        storage.fail("read_ahead")


def test_it_is_atomic_when_the_inner_storage_is() -> None:
    """S4.7: whether a step is one write is for the inner storage to say."""
    assert FlakyStorage(MemoryQueueStorage()).atomic is True
    assert FlakyStorage(ThirteenMethodStorage()).atomic is False
    assert QueueStorage.atomic is False


def test_a_queue_looks_for_foreign_writes_only_where_the_inner_storage_can() -> None:
    """S7.9: wrapping a storage does not make the queue ask it for the writes of others."""

    class Shared(MemoryQueueStorage):
        async def changes_elsewhere(self) -> list[str] | None:
            return ["x"]

    plain, shared = FlakyStorage(MemoryQueueStorage()), FlakyStorage(Shared())

    assert type(plain).changes_elsewhere is QueueStorage.changes_elsewhere
    assert type(shared).changes_elsewhere is not QueueStorage.changes_elsewhere
    assert isinstance(shared, FlakyStorage)


@pytest.mark.asyncio
async def test_a_call_fails_before_its_commit(storage: FlakyStorage, inner: MemoryQueueStorage) -> None:
    """S10.1: a fault before the commit leaves nothing behind, and happens once."""
    storage.fail("save")
    with pytest.raises(StorageError, match="save was told to fail before its commit"):
        await storage.save(record())
    assert await inner.get("t") is None

    await storage.save(record())

    assert await inner.get("t") == record()
    assert storage.calls["save"] == 2


@pytest.mark.asyncio
async def test_a_call_fails_after_its_commit(storage: FlakyStorage, inner: MemoryQueueStorage) -> None:
    """S10.3: a fault after the commit is a lost answer: the work is done."""
    storage.fail("save", after_commit=True)
    with pytest.raises(StorageError, match="save was told to fail after its commit"):
        await storage.save(record())

    assert await inner.get("t") == record()


@pytest.mark.asyncio
async def test_the_nth_matching_calls_fail(storage: FlakyStorage) -> None:
    """S10.1: counting begins when the fault is planned; `times` calls in a row fail."""
    await storage.get("t")
    storage.fail("get", nth=2, times=2)
    outcomes = []
    for _ in range(5):
        await storage.get_pending()
        try:
            await storage.get("t")
        except StorageError:
            outcomes.append("failed")
        else:
            outcomes.append("fine")

    assert outcomes == ["fine", "failed", "failed", "fine", "fine"]


@pytest.mark.asyncio
async def test_a_fault_may_match_several_methods_or_all(storage: FlakyStorage) -> None:
    """S10.1: a fault counts the calls of all methods that it is for."""
    storage.fail(WRITES, nth=2)
    await storage.save(record())
    await storage.get("t")
    with pytest.raises(StorageError, match="update was told to fail"):
        await storage.update(record(priority=1))
    storage.fail()
    with pytest.raises(StorageError, match="count_by_status was told to fail"):
        await storage.count_by_status()

    assert await storage.get("t") == record()


@pytest.mark.asyncio
async def test_the_error_can_be_chosen(storage: FlakyStorage) -> None:
    """S10.1: a fault raises the given error."""
    error = OSError(28, "No space left on device")
    storage.fail("apply", error=error)

    with pytest.raises(OSError, match="No space left") as caught:
        await storage.apply([Save(record())])
    assert caught.value is error


@pytest.mark.asyncio
async def test_an_outage_lasts_until_it_is_cleared(storage: FlakyStorage) -> None:
    """S10.1: `fail_until_cleared` fails every matching call, and `clear` ends all faults."""
    storage.fail_until_cleared()
    storage.fail("get", nth=5)
    for _ in range(3):
        with pytest.raises(StorageError):
            await storage.get("t")
    storage.clear()
    for _ in range(9):
        assert await storage.get("t") is None

    storage.fail_until_cleared("save")
    with pytest.raises(StorageError, match="before its commit"):
        await storage.save(record())
    storage.clear()
    storage.fail_until_cleared("save", after_commit=True, error=TimeoutError("lost"))
    with pytest.raises(TimeoutError, match="lost"):
        await storage.save(record())
    assert await storage.get("t") == record()


@pytest.mark.asyncio
async def test_errors_of_the_inner_storage_pass_through(storage: FlakyStorage) -> None:
    """S10.1: what the inner storage raises is raised; a fault after the commit needs a commit."""
    storage.fail("update", after_commit=True)
    with pytest.raises(TaskNotFoundError):
        await storage.update(record())


@pytest.mark.parametrize(
    ("operation", "options", "message"),
    [
        ("sav", {}, "operation must be the name of a method of QueueStorage, or several"),
        (["save", "x"], {}, "operation must be the name of a method of QueueStorage, or several"),
        ("save", {"nth": 0}, "nth must be at least 1"),
        ("save", {"times": 0}, "times must be at least 1"),
    ],
)
def test_a_plan_that_can_never_match_is_refused(
    storage: FlakyStorage, operation: Any, options: dict[str, int], message: str
) -> None:
    """S10.1: a misspelt method would make a test pass without its fault."""
    with pytest.raises(ValueError, match=message):
        storage.fail(operation, **options)
    if "times" not in options:
        with pytest.raises(ValueError, match=message):
            storage.gate(operation, **options)


@pytest.mark.asyncio
@pytest.mark.parametrize("after_commit", [False, True])
async def test_a_gate_holds_one_call(
    storage: FlakyStorage, inner: MemoryQueueStorage, after_commit: bool
) -> None:
    """S10.3: a call is held before or after its commit until the test lets it go on."""
    gate = storage.gate("save", nth=2, after_commit=after_commit)
    await storage.save(record("first"))
    held = asyncio.create_task(storage.save(record("second")))
    await gate.reached()

    assert not held.done()
    assert (await inner.get("second") is not None) is after_commit
    await storage.save(record("third"))

    gate.release()
    await held
    assert await inner.get("second") == record("second")


@pytest.mark.asyncio
async def test_a_gate_that_is_open_holds_nothing(storage: FlakyStorage) -> None:
    """S10.3: releasing a gate before the call has come, or clearing the plans, lets the call through."""
    storage.gate("save").release()
    await storage.save(record("one"))
    gate = storage.gate("save")
    held = asyncio.create_task(storage.save(record("two")))
    await gate.reached()
    assert await storage.get("two") is None
    storage.clear()
    await held


@pytest.mark.asyncio
async def test_update_is_passed_on_in_a_list_of_changes(storage: FlakyStorage) -> None:
    """S4.7: a list of changes is one call of `apply` and no other."""
    await storage.apply([Save(record()), Update(record(priority=2))])

    assert storage.calls == {"apply": 1}
    assert await storage.get("t") == record(priority=2)
