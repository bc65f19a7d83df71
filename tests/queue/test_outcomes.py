"""How an attempt ends: results, errors, retries, and what is stored of them (S5.1 - S5.5, S13.5)."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from durable_queue import (
    RetryPolicy,
    StoredTask,
    TaskContext,
    TaskRetryScheduled,
    TaskStatus,
)
from durable_queue.testing import collect_events
from tests.queue.conftest import MakeQueue
from tests.queue.handler_support import NOW, SECOND, run
from tests.support import Anything, Work

STORED_TEXT = 100_000
"""More than any stored text of an error may have."""


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "value", [None, 0, False, "", [], {"a": [1, None, "x"]}, 2**62, 0.1 + 0.2, "é\U0001f600"]
)
async def test_the_returned_value_is_the_result(make_queue: MakeQueue, value: Any) -> None:
    """S5.1: what the handler returns is stored and comes back equal."""

    async def work(task: Work, context: TaskContext) -> Any:
        return value

    record = await run(make_queue(), work)

    assert (record.status, record.result, record.last_failure) == (TaskStatus.COMPLETED, value, None)
    assert type(record.result) is type(value)


@pytest.mark.asyncio
async def test_a_result_of_a_class_uses_the_converter(make_queue: MakeQueue) -> None:
    """S5.1: an attrs instance is stored as its JSON form."""

    async def work(task: Work, context: TaskContext) -> Any:
        return Anything({"n": task.n})

    assert (await run(make_queue(), work)).result == {"value": {"n": 1}}


def _ring() -> list[Any]:
    ring: list[Any] = []
    ring.append(ring)
    return ring


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: open(__file__), "TextIOWrapper"),  # noqa: SIM115, PTH123 - an open file is the point
        (lambda: lambda: None, "function"),
        (lambda: {1, 2}, "set"),
        (_ring, ""),
        (lambda: float("nan"), ""),
        (lambda: {"a": [1, {"b": float("inf")}]}, ""),
        (lambda: "\ud800", ""),
        (lambda: {1: "a"}, "int"),
        (object, "object"),
        (lambda: b"x", ""),
    ],
    ids=["file", "lambda", "set", "ring", "nan", "inf", "surrogate", "int key", "object", "bytes"],
)
async def test_pay_03_a_result_that_cannot_be_stored_fails_the_task_once(
    make_queue: MakeQueue, make: Callable[[], Any], named: str
) -> None:
    """S5.1: one start whatever the policy, and a message that names the type and not the value."""
    starts = 0
    kept: list[Any] = []

    async def work(task: Work, context: TaskContext) -> Any:
        nonlocal starts
        starts += 1
        kept.append(make())
        return kept[-1]

    queue = make_queue()
    record = await run(queue, work, retry_policy=RetryPolicy.fixed(max_attempts=3, delay=NOW))
    for value in kept:
        if hasattr(value, "close"):
            value.close()

    if record.status is TaskStatus.COMPLETED:
        # Bytes and sets are values that the converter knows how to write.
        assert isinstance(kept[0], (bytes, set))
    else:
        assert (record.status, record.last_failure.error_type) == (TaskStatus.FAILED, "PayloadError")
        assert named in record.last_failure.error
    assert starts == 1
    await queue.stop()
    await queue.start()
    await queue.drain()
    assert starts == 1


class HostileError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Odd(BaseException):
    """Neither an Exception nor one of the interpreter's."""


def _deep(depth: int) -> None:
    if depth == 0:
        raise ValueError("deep")
    _deep(depth - 1)


def _chained() -> Exception:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("throw", "error_type"),
    [
        (lambda: _raise(HostileError()), "HostileError"),
        (lambda: _raise(ValueError("x" * 50_000_000)), "ValueError"),
        (lambda: _raise(_chained()), "ValueError"),
        (lambda: _deep(700), "ValueError"),
        (lambda: _raise(ValueError("\ud800\x00")), "ValueError"),
        (lambda: _raise(ExceptionGroup("many", [ValueError(n) for n in range(1000)])), "ExceptionGroup"),
    ],
    ids=["no text", "50 MB", "ring of causes", "700 frames", "surrogate", "group"],
)
@pytest.mark.parametrize("plain", [False, True])
async def test_pay_03_any_error_can_be_stored(
    make_queue: MakeQueue, throw: Callable[[], None], error_type: str, plain: bool
) -> None:
    """S5.5: type, text and traceback are made storable and cut, in less than a second."""

    async def work(task: Work, context: TaskContext) -> None:
        throw()

    began = time.monotonic()
    record = await run(make_queue(), (lambda task, context: throw()) if plain else work)
    took = time.monotonic() - began

    assert record.status is TaskStatus.FAILED
    assert record.last_failure.error_type == error_type
    assert record.last_failure.error
    assert len(record.last_failure.error) < STORED_TEXT
    assert len(record.last_failure.stack_trace) < STORED_TEXT
    assert StoredTask.from_json(record.to_json()) == record
    assert took < 1


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("error", "error_type"),
    [
        (asyncio.CancelledError("nobody asked"), "CancelledError"),
        (Odd("odd"), "Odd"),
        (GeneratorExit(), "GeneratorExit"),
        (TimeoutError("inner"), "TimeoutError"),
        (StopIteration("end"), "StopIteration"),
        (StopAsyncIteration("end"), "StopAsyncIteration"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
@pytest.mark.parametrize("plain", [False, True])
async def test_shu_04_whatever_is_raised_is_a_failed_attempt(
    make_queue: MakeQueue, error: BaseException, error_type: str, plain: bool
) -> None:
    """S5.4: an end that is no Exception, CancelledError that nobody asked for included, fails the attempt."""

    async def work(task: Work, context: TaskContext) -> None:
        raise error

    record = await run(make_queue(), (lambda task, context: _raise(error)) if plain else work)

    assert (record.status, record.attempts) == (TaskStatus.FAILED, 1)
    # Python itself makes a RuntimeError of a StopIteration that leaves a coroutine.
    raised = "RuntimeError" if isinstance(error, StopIteration) and not plain else error_type
    assert record.last_failure.error_type == raised


@pytest.mark.asyncio
async def test_an_inner_timeout_is_the_handlers_own_error(make_queue: MakeQueue) -> None:
    """S5.4: asyncio.timeout within a handler ends in its TimeoutError and in no cancellation."""

    async def work(task: Work, context: TaskContext) -> None:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    record = await run(make_queue(), work)

    assert (record.status, record.last_failure.error_type) == (TaskStatus.FAILED, "TimeoutError")


@pytest.mark.asyncio
async def test_a_child_task_that_is_cancelled_does_not_look_like_a_teardown(make_queue: MakeQueue) -> None:
    """S13.5: awaiting a task that has been cancelled is a failed attempt of the handler."""

    async def work(task: Work, context: TaskContext) -> None:
        child = asyncio.create_task(asyncio.Event().wait())
        child.cancel()
        await child

    record = await run(make_queue(), work)

    assert (record.status, record.last_failure.error_type) == (TaskStatus.FAILED, "CancelledError")


class Held:
    """Something that can be watched going away."""


@pytest.mark.asyncio
@pytest.mark.parametrize("plain", [False, True])
async def test_errors_and_their_locals_are_not_kept(make_queue: MakeQueue, plain: bool) -> None:
    """S5.5: once the outcome is stored, nothing holds the exception or what its frames held."""
    watched: list[weakref.ref[Held]] = []

    def throw() -> None:
        held = Held()
        watched.append(weakref.ref(held))
        raise OSError("x")

    async def work(task: Work, context: TaskContext) -> None:
        throw()

    queue = make_queue()
    with queue.subscribe() as events:
        record = await run(queue, (lambda task, context: throw()) if plain else work)
        assert record.last_failure.error == "x"
        # A thread may still be on its way out of the handler; the test hangs, and fails, when it is never let go.
        while watched[0]() is not None:
            await asyncio.sleep(0)
            gc.collect()
        del events


@pytest.mark.asyncio
@pytest.mark.parametrize("source", [lambda: 1 / 0, lambda: "half", lambda: float("nan"), lambda: None])
async def test_a_faulty_source_of_jitter_costs_nothing(make_queue: MakeQueue, source: Any) -> None:
    """S5.3: whatever the injected source raises or returns, the retry has its time."""
    queue = make_queue(random_fraction=source)
    policy = RetryPolicy.exponential(max_attempts=2, initial_delay=SECOND, jitter=True)

    async def fail(task: Work, context: TaskContext) -> None:
        raise ValueError

    queue.register(Work, fail, retry_policy=policy)
    with collect_events(queue, TaskRetryScheduled) as events:
        await queue.enqueue(Work())
        await queue.start()
        await queue.drain()

        assert [SECOND * 0.8 <= event.next_attempt_at - event.at <= SECOND * 1.2 for event in events] == [
            True
        ]


class OddError(BaseException):
    """Neither an Exception nor an order to leave."""


class UnspeakableError(Exception):
    """An error whose text cannot be made."""

    def __str__(self) -> str:
        raise OddError


def odd(error: BaseException) -> Any:
    """Raise what `except Exception` does not catch."""
    raise OddError


@pytest.mark.asyncio
@pytest.mark.parametrize("options", [{"retry_if": odd}, {"retry_delay": odd}, {}])
async def test_a_base_exception_of_the_application_costs_no_slot(make_queue: MakeQueue, options: Any) -> None:
    """S5.2, S5.5: a predicate, a resolver or an error text that raises any exception leaves outcome and slot alone."""
    queue = make_queue(max_concurrent_tasks=1)
    policy = RetryPolicy.fixed(max_attempts=2, delay=NOW)

    async def fail(task: Work, context: TaskContext) -> None:
        raise UnspeakableError

    record = await run(queue, fail, retry_policy=policy, **options)
    record = await queue.wait(record.id)

    assert record.status is TaskStatus.FAILED
    assert record.last_failure is not None
    assert record.last_failure.error_type == "UnspeakableError"
