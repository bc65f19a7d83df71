"""Nothing that an application put in appears in reprs, logs, warnings or messages of the library (S1.8, SEC-03)."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest

from durable_queue import (
    DurableQueue,
    FakeQueueClock,
    MemoryQueueStorage,
    PayloadError,
    QueueStorage,
    RetryPolicy,
    Save,
    StoredTask,
    TaskContext,
    TaskFailure,
    TaskGraph,
    TaskStatus,
    Update,
)
from durable_queue.testing import WRITES, FlakyStorage, collect_events, crash, run_until_idle
from durable_queue_sqlite import SqliteQueueStorage
from tests.queue.conftest import MakeQueue
from tests.queue.fault_support import time_goes_on
from tests.queue.handler_support import SECOND, begin_stop, settle
from tests.support import Anything, Work

TOKEN = "tok-EXAMPLE-7731"
SECRET = {"token": TOKEN, TOKEN: [TOKEN]}
HOUR = timedelta(hours=1)
TWICE = RetryPolicy.fixed(max_attempts=2, delay=timedelta(0))


@attrs.frozen
class Login:
    """A task with a secret in a typed field."""

    task_type = "login"
    token: str
    n: int = 0


@pytest.fixture
def heard(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[list[str]]:
    """Collects texts; at the end neither they, nor any log line of any logger, nor stderr may hold the token."""
    texts: list[str] = []
    caplog.set_level(logging.DEBUG)
    for name in ("asyncio", "aiosqlite", "durable_queue", "filelock"):
        caplog.set_level(logging.DEBUG, name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield texts
    texts += [
        f"{record.getMessage()} {record.exc_text or ''} {record.args}"
        for record in caplog.get_records("call")
    ]
    texts += [str(warning.message) for warning in caught]
    texts += capfd.readouterr()
    assert [text for text in texts if TOKEN in text] == []


async def everything_about(queue: DurableQueue, events: Any, texts: list[str]) -> None:
    """Collect the forms in which a program might print what it has met."""
    for thing in (queue, *await queue.get_tasks(), *events):
        texts += [repr(thing), str(thing), f"{thing}"]
        if isinstance(thing, StoredTask):
            texts += [repr(Save(thing)), repr(Update(thing)), repr([thing]), repr(thing.last_failure)]
    texts.append(repr(events))
    texts += [repr(task) for task in asyncio.all_tasks()]


@pytest.mark.asyncio
async def test_sec_03_a_life_of_secrets(
    make_queue: MakeQueue, storage: QueueStorage, clock: FakeQueueClock, heard: list[str]
) -> None:
    """S1.8: success, failure, retry, time-out, faults, cancel and stop; the token is in payloads, results, keys."""
    asyncio.get_running_loop().set_debug(True)
    flaky = FlakyStorage(storage)
    queue = make_queue(storage=flaky, max_concurrent_tasks=3)
    gate = asyncio.Event()

    async def work(task: Anything, context: TaskContext) -> Any:
        heard.append(repr(context))
        if context.attempt == 1:
            raise ValueError("no secret")
        return SECRET

    async def swallow(task: Login, context: TaskContext) -> Any:
        while not gate.is_set():
            with suppress(asyncio.CancelledError):
                await gate.wait()
        return TOKEN

    def plain(task: Work, context: TaskContext) -> Any:
        context.hand_off(TOKEN)

    queue.register(Anything, work, retry_policy=TWICE)
    queue.register(Login, swallow, timeout=SECOND)
    queue.register(Work, plain)
    with collect_events(queue) as events:
        ids = [
            await queue.enqueue(
                Anything(SECRET), deduplication_key=TOKEN, idempotency_key=TOKEN, group=TOKEN
            ),
            await queue.enqueue(Anything(SECRET), delay=HOUR, group=TOKEN),
        ]
        outside = await queue.enqueue(Work())
        stubborn = await queue.enqueue(Login(TOKEN))
        async with time_goes_on(queue, clock):
            await queue.start()
            flaky.fail(WRITES, nth=2, times=5)
            assert (await queue.wait(ids[0])).result == SECRET
        clock.advance(SECOND)
        await settle()
        await queue.cancel(stubborn, force=True)
        await queue.cancel_group(TOKEN)
        await everything_about(queue, events, heard)
        while not (await queue.get_task(outside)).hand_off_reference:
            await settle()
        assert await queue.complete_hand_off(outside, reference=TOKEN, result=SECRET) is True
        stopping = await begin_stop(queue, SECOND)
        clock.advance(SECOND)
        await settle()
        clock.advance(SECOND)
        heard.append(repr(await stopping))
        await everything_about(queue, events, heard)
        gate.set()
        await settle()


REFUSED: list[Callable[[DurableQueue], Awaitable[object]]] = [
    lambda queue: queue.enqueue(Anything({"a": {TOKEN, 1}})),
    lambda queue: queue.enqueue(Anything({TOKEN: float("nan")})),
    lambda queue: queue.enqueue(Anything([TOKEN, object()])),
    lambda queue: queue.enqueue(Anything(TOKEN + "\ud800")),
    lambda queue: queue.enqueue(Anything({(TOKEN,): 1})),
    lambda queue: queue.enqueue(Login(token=5, n=TOKEN)),  # type: ignore[arg-type]  # what is refused
    lambda queue: queue.enqueue(Work(), group=TOKEN + "\0"),
    lambda queue: queue.enqueue(Work(), deduplication_key=TOKEN * 100),
    lambda queue: queue.enqueue(Work(), idempotency_key=TOKEN + "\ud800"),
    lambda queue: queue.enqueue(Work(), group=[TOKEN]),  # type: ignore[arg-type]  # what is refused
    lambda queue: queue.enqueue(_Unregistered(TOKEN)),
    lambda queue: queue.get_tasks(group=TOKEN + "\0"),
    lambda queue: queue.cancel_group(TOKEN + "\0"),
    lambda queue: queue.complete_hand_off("id", reference=TOKEN + "\0"),
    lambda queue: queue.complete_hand_off("unknown", reference=TOKEN),
    lambda queue: queue.fail_hand_off("unknown", TOKEN, reference=TOKEN),
    lambda queue: queue.complete_hand_off("id", reference="r", result={TOKEN: object()}),
]


@attrs.frozen
class _Unregistered:
    token: str


@pytest.mark.asyncio
@pytest.mark.parametrize("call", REFUSED)
async def test_sec_03_refusals_do_not_repeat_what_they_refuse(
    make_queue: MakeQueue, heard: list[str], call: Callable[[DurableQueue], Awaitable[object]]
) -> None:
    """S1.8: an error names the argument or the path, never the value."""
    queue = make_queue()
    for kind in (Anything, Login, Work):
        queue.register(kind)
    with pytest.raises((ValueError, TypeError, LookupError)) as caught:
        await call(queue)
    heard += _texts_of(caught.value)


def _texts_of(error: BaseException | None) -> list[str]:
    """Return the texts of an error and of what it came from."""
    texts = []
    while error is not None:
        if not isinstance(error, PayloadError) or TOKEN not in error.path:
            texts += [str(error), repr(error)]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return texts


@pytest.mark.asyncio
async def test_sec_03_graphs_and_drafts(make_queue: MakeQueue, heard: list[str]) -> None:
    """S1.8: a graph with secrets in tasks and options shows neither."""
    queue = make_queue()
    queue.register(Login)
    graph = TaskGraph()
    graph.add(Login(TOKEN), group=TOKEN, deduplication_key=TOKEN)
    heard += [repr(graph), repr(graph.nodes), str(graph)]
    await queue.enqueue_graph(graph)


DAMAGE = {
    "payload": ("UPDATE payloads SET text = ?", '{"token": ["' + TOKEN + '"], "n": "' + TOKEN + '"}'),
    "payload_text": ("UPDATE payloads SET text = ?", '{"token": "' + TOKEN),
    "policy": ("UPDATE tasks SET retry_policy = ?", '{"type": "' + TOKEN + '"}'),
    "details": ("UPDATE tasks SET details = ?", '{"lastFailure": {"error": "' + TOKEN),
    "dependencies": ("UPDATE tasks SET depends_on = ?", '{"x": "' + TOKEN + '"}'),
    "type": ("UPDATE tasks SET type = ?", "gone"),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("damage", DAMAGE)
async def test_sec_03_a_damaged_row(
    tmp_path: Path, clock: FakeQueueClock, heard: list[str], damage: str
) -> None:
    """S1.8: a row that does not decode is reported without what is in it."""
    file = tmp_path / "queue.db"
    async with SqliteQueueStorage(file) as storage:
        queue = DurableQueue(storage, clock=clock)
        queue.register(Login, _return_token)
        task_id = await queue.enqueue(Login(TOKEN), group=TOKEN)
        await queue.close()
    with closing(sqlite3.connect(file, isolation_level=None)) as database:
        statement, text = DAMAGE[damage]
        assert database.execute(statement, (text,)).rowcount == 1
    async with SqliteQueueStorage(file) as storage:
        queue = DurableQueue(storage, clock=clock)
        queue.register(Login, _return_token)
        with collect_events(queue) as events:
            await queue.start()
            await run_until_idle(queue)
            heard += [repr(events), *map(repr, events)]
            for event in events:
                heard += _texts_of(getattr(event, "error", None))
            try:
                task = await queue.get_task(task_id)
                await queue.get_tasks()
            except Exception as error:  # noqa: BLE001  # any that the library raises
                heard += _texts_of(error)
            else:
                assert task is not None
                assert task.status is TaskStatus.FAILED
                heard += [repr(task), repr(task.last_failure), task.last_failure.error]
                heard.append(task.last_failure.stack_trace or "")
        await queue.close()


async def _return_token(task: Login, context: TaskContext) -> str:
    return task.token


@pytest.mark.asyncio
@pytest.mark.parametrize("value", [{TOKEN}, object(), {"a": float("inf")}, {1: TOKEN}])
async def test_sec_03_a_result_that_cannot_be_stored(
    make_queue: MakeQueue, heard: list[str], value: object
) -> None:
    """S1.8, S5.1: the task fails with a message that names the type, not the value."""
    queue = make_queue()

    async def give(task: Work, context: TaskContext) -> object:
        return value

    queue.register(Work, give)
    task_id = await queue.enqueue(Work())
    await queue.start()
    task = await queue.wait(task_id)
    assert task.status is TaskStatus.FAILED
    heard += [task.last_failure.error, repr(task)]


@pytest.mark.asyncio
async def test_sec_03_a_program_that_ends_without_closing(clock: FakeQueueClock, heard: list[str]) -> None:
    """S1.8: a queue that is left in the middle of its work complains of nothing that was put in."""
    queue = DurableQueue(MemoryQueueStorage(), clock=clock)
    gate = asyncio.Event()

    async def wait(task: Login, context: TaskContext) -> None:
        await gate.wait()

    queue.register(Login, wait)
    await queue.enqueue(Login(TOKEN))
    await queue.start()
    await settle()
    heard += [repr(task) for task in asyncio.all_tasks()]
    await crash(queue)
    await settle()


def test_values_that_hold_the_texts_of_others_hide_them() -> None:
    """S1.8: the text of a handler's error is stored, and is not in the repr of the failure."""
    failure = TaskFailure(
        error=TOKEN, error_type="E", stack_trace=TOKEN, failed_at=FakeQueueClock().now(), attempt=1
    )
    assert TOKEN not in repr(failure)


@pytest.mark.asyncio
async def test_a_payload_is_a_snapshot(make_queue: MakeQueue) -> None:
    """S1.6: changing what was enqueued, the record's payload or the handler's task changes nothing stored."""
    queue, seen = make_queue(), []

    async def change(task: Anything, context: TaskContext) -> Any:
        seen.append(list(task.value))
        task.value.append("by the handler")
        if context.attempt == 1:
            raise OSError
        return task.value

    queue.register(Anything, change, retry_policy=TWICE)
    value = ["a"]
    task_id = await queue.enqueue(Anything(value))
    value.append("after")
    task = await queue.get_task(task_id)
    assert task is not None
    task.payload["value"].append("by a reader")
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        task.status = TaskStatus.COMPLETED  # type: ignore[misc]  # what is refused
    await queue.start()
    done = await queue.wait(task_id)
    assert seen == [["a"], ["a"]]
    assert done.payload == {"value": ["a"]}
    assert done.result == ["a", "by the handler"]
    done.result.append("by a reader")
    assert done.result == ["a", "by the handler"]
