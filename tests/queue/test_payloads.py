"""Payloads and results: what is refused with its path, and that all else comes back equal (S1.6, S2.2, S5.1)."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest

from durable_queue import FakeQueueClock, PayloadError, RetryPolicy, TaskStatus
from tests.queue.conftest import MakeQueue
from tests.support import Anything, Work, assert_untouched


async def succeed(task: object, context: object) -> None:
    """A handler."""


CYCLIC: list[Any] = []
CYCLIC.append(CYCLIC)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("value", "path"),
    [
        (math.nan, "$.value"),
        (math.inf, "$.value"),
        (-math.inf, "$.value"),
        ({"a": [1, {"b": math.nan}]}, "$.value.a[1].b"),
        ("\ud800", "$.value"),
        (["fine", "\udfff"], "$.value[1]"),
        ({"\ud800": 1}, "$.value"),
        ({1: "a"}, "$.value"),
        ({1: "a", "1": "b"}, "$.value"),
        ({None: 1}, "$.value"),
        pytest.param(10**5000, "$.value", id="10**5000"),
        ((1, 2), "$.value"),
        ({1, 2}, "$.value"),
        (b"bytes", "$.value"),
        (Decimal("1.5"), "$.value"),
        (datetime(2030, 1, 1, tzinfo=UTC), "$.value"),
        (datetime(2030, 1, 1), "$.value"),  # noqa: DTZ001 - a naive one is what is refused
        (Enum("Colour", "RED")["RED"], "$.value"),
        (type("Text", (str,), {})("x"), "$.value"),
        (OrderedDict(a=1), "$.value"),
        (Work(1), "$.value"),
        (object(), "$.value"),
        (lambda: None, "$.value"),
        (CYCLIC, "$.value"),
    ],
)
async def test_pay_01_pay_05_a_value_that_would_change_is_refused(
    make_queue: MakeQueue, value: object, path: str
) -> None:
    """S2.2: what is not JSON, or would not come back equal, is refused with its path, and nothing is stored."""
    queue = make_queue()
    queue.register(Anything, succeed)
    queue.register(Work, succeed)
    with pytest.raises(PayloadError) as caught:
        await queue.enqueue(Anything(value))
    assert caught.value.path.startswith(path)
    with pytest.raises(PayloadError):
        await queue.enqueue_all([Anything(1), Anything(value)])
    await assert_untouched(queue)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "value",
    [
        2**63,
        2**64,
        -(2**63),
        10**400,
        0.1 + 0.2,
        5e-324,
        1.7976931348623157e308,
        "1e400",
        -0.0,
        True,
        None,
        "",
        "a\0b",
        "\u2028 \U0001f600 \x7f",
        {"": {"a.b": [[], {}]}, "1": "b"},
        [1, 1.0, "1", True, None],
    ],
)
async def test_pay_01_a_value_comes_back_equal_and_of_the_same_type(
    make_queue: MakeQueue, value: object
) -> None:
    """S1.6, S5.1: a JSON value reaches the handler, and as a result comes back, equal and of the same type."""
    seen: list[object] = []

    async def run(task: Anything, context: object) -> object:
        seen.append(task.value)
        return task.value

    queue = make_queue()
    queue.register(Anything, run)
    await queue.start()
    task = await queue.wait(await queue.enqueue(Anything(value)))
    for back in (seen[0], task.payload["value"], task.result):
        assert repr(back) == repr(value)


def nested(depth: int) -> list[Any]:
    """A list of so many levels."""
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.asyncio
async def test_pay_04_nesting(make_queue: MakeQueue) -> None:
    """S2.2: up to the limit a nesting is delivered; beyond it is refused at any depth, also in a result."""
    returned: dict[int, list[Any]] = {}

    async def run(task: Work, context: object) -> list[Any]:
        return returned[task.n]

    async def take(task: Anything, context: object) -> object:
        return task.value

    queue = make_queue()
    queue.register(Work, run)
    queue.register(Anything, take)
    await queue.start()
    for depth in (50, 99):
        task = await queue.wait(await queue.enqueue(Anything(nested(depth))))
        assert task.result == nested(depth)
    for depth in (101, 500, *range(900, 1001, 10), 100_000):
        with pytest.raises(PayloadError, match="nested"):
            await queue.enqueue(Anything(nested(depth)))
        returned[depth] = nested(depth)
        task = await queue.wait(await queue.enqueue(Work(depth)))
        assert (task.status, task.attempts) == (TaskStatus.FAILED, 1)
        assert task.last_failure is not None
        assert task.last_failure.error_type == "PayloadError"
        while returned[depth]:
            # Taken apart by hand: the interpreter would recurse.
            returned[depth] = returned[depth].pop()


@pytest.mark.asyncio
@pytest.mark.parametrize("result", [lambda: None, {1, 2}, object(), math.nan, CYCLIC, {"a": {2: 1}}])
async def test_pay_03_a_result_that_cannot_be_stored_fails_the_task_once(
    make_queue: MakeQueue, result: object
) -> None:
    """S5.1: a result that cannot be encoded fails the task after one start, whatever its retry policy."""

    async def run(task: Work, context: object) -> object:
        return result if task.n == 0 else None

    queue = make_queue()
    queue.register(Work, run, retry_policy=RetryPolicy.fixed(max_attempts=5, delay=timedelta(0)))
    await queue.start()
    task = await queue.wait(await queue.enqueue(Work(0)))
    assert (task.status, task.attempts, task.result) == (TaskStatus.FAILED, 1, None)
    assert task.last_failure is not None
    assert task.last_failure.error_type == "PayloadError"
    assert (await queue.wait(await queue.enqueue(Work(1)))).status is TaskStatus.COMPLETED


@pytest.mark.asyncio
async def test_pay_05_the_payload_is_a_snapshot(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S1.6: neither a change after enqueue nor one by an attempt reaches the next attempt."""
    seen = []

    async def run(task: Anything, context) -> None:
        seen.append(dict(task.value))
        task.value["n"] = 3
        if context.attempt == 1:
            raise RuntimeError

    queue = make_queue()
    queue.register(Anything, run, retry_policy=RetryPolicy.fixed(max_attempts=2, delay=timedelta(0)))
    value = {"n": 1}
    task_id = await queue.enqueue(Anything(value))
    value["n"] = 2
    record = await queue.get_task(task_id)
    assert record is not None
    record.payload["value"]["n"] = 4
    await queue.start()
    await queue.drain()
    assert seen == [{"n": 1}, {"n": 1}]


class HostileError(Exception):
    """Its text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def loop() -> Exception:
    """An error that is its own cause, at one remove."""
    first, second = RuntimeError("first"), RuntimeError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def deep(levels: int) -> Exception:
    """Raise from so many frames down."""
    if levels:
        return deep(levels - 1)
    raise RuntimeError("deep")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("make", "error_type"),
    [
        (HostileError, "HostileError"),
        (lambda: RuntimeError("x" * 50_000_000), "RuntimeError"),
        (lambda: RuntimeError("\ud800\0"), "RuntimeError"),
        (loop, "RuntimeError"),
        (lambda: deep(900), "RuntimeError"),
    ],
    ids=["hostile", "huge", "unstorable", "loop", "deep"],
)
async def test_pay_03_an_error_that_cannot_be_written_down(
    make_queue: MakeQueue, make: Callable[[], Exception], error_type: str
) -> None:
    """S5.5: whatever a handler raises, its task fails after one start, with the type and a bounded text."""

    async def run(task: Work, context: object) -> None:
        if task.n == 0:
            raise make()

    queue = make_queue()
    queue.register(Work, run)
    await queue.start()
    task = await queue.wait(await queue.enqueue(Work(0)))
    assert (task.status, task.attempts) == (TaskStatus.FAILED, 1)
    assert task.last_failure is not None
    assert task.last_failure.error_type == error_type
    assert len(task.last_failure.error) < 5_000
    assert len(task.last_failure.stack_trace or "") < 25_000
    assert (await queue.wait(await queue.enqueue(Work(1)))).status is TaskStatus.COMPLETED
