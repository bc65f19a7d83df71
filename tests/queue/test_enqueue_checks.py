"""What is refused before anything is stored, and what comes back equal (S2.2, S13.11, S13.19)."""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import attrs
import pytest

from durable_queue import (
    DurableQueueError,
    FakeQueueClock,
    QueueStorage,
    TaskGraph,
    TaskNotFoundError,
    TaskStatus,
    UnknownTaskTypeError,
)
from durable_queue.testing import FAKE_START
from tests.queue.conftest import MakeQueue
from tests.support import Anything, Other, Work, assert_untouched

MOST = timedelta(days=365)


async def succeed(task: object, context: object) -> None:
    """A handler."""


@pytest.mark.asyncio
async def test_the_class_must_be_registered(make_queue: MakeQueue) -> None:
    """S2.2: an object of a class that is not registered is refused by name, a subclass of one that is included."""

    @attrs.frozen
    class SpecialWork(Work):
        """Not registered."""

    queue = make_queue()
    queue.register(Work, succeed)
    for task in (Other(), SpecialWork(), {"n": 1}, None):
        with pytest.raises(UnknownTaskTypeError, match=type(task).__qualname__):
            await queue.enqueue(task)
    with pytest.raises(UnknownTaskTypeError, match="Work is a class; enqueue an instance"):
        await queue.enqueue(Work)
    with pytest.raises(UnknownTaskTypeError):
        await queue.enqueue_all([Work(), Other()])
    await assert_untouched(queue)


@pytest.mark.asyncio
@pytest.mark.parametrize("option", ["deduplication_key", "idempotency_key", "group", "depends_on"])
@pytest.mark.parametrize("value", ["", " ", "\t\n", "a\0b", "\ud800", "x" * 10_000, 7, b"k"])
async def test_names_are_checked_where_they_enter(make_queue: MakeQueue, option: str, value: object) -> None:
    """S2.2, S13.11: a blank, unusable or endless key, group or dependency is refused, and its value is not told."""
    queue = make_queue()
    queue.register(Work, succeed)
    with pytest.raises((ValueError, TypeError)) as caught:
        await queue.enqueue(Work(), **{option: [value] if option == "depends_on" else value})
    assert "xxx" not in str(caught.value)
    await assert_untouched(queue)


@pytest.mark.asyncio
@pytest.mark.parametrize("value", ["an-id", None, 7, [7], [None], [["an-id"]]])
async def test_dependencies_must_be_a_list_of_texts(make_queue: MakeQueue, value: object) -> None:
    """S2.2: a lone string, which would be read letter by letter, and anything but texts is refused."""
    queue = make_queue()
    queue.register(Work, succeed)
    with pytest.raises(TypeError):
        await queue.enqueue(Work(), depends_on=value)
    with pytest.raises(TypeError):
        await queue.enqueue_chain([Work()], depends_on=value)
    with pytest.raises(TypeError):
        TaskGraph().add(Work(), depends_on=value)
    await assert_untouched(queue)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "priority", [2**31, -(2**31) - 1, 2**63 - 1, -(2**63), 2**63, 1.5, 1.0, math.nan, True, "1", None]
)
async def test_tim_06_priority_out_of_range(make_queue: MakeQueue, priority: object) -> None:
    """S2.2: a priority is an int in the signed 32-bit range; a bool is none."""
    queue = make_queue()
    queue.register(Work, succeed)
    with pytest.raises(ValueError, match="priority"):
        await queue.enqueue(Work(), priority=priority)
    await assert_untouched(queue)


@pytest.mark.asyncio
@pytest.mark.parametrize("priority", [2**31 - 1, -(2**31), 0])
async def test_tim_06_priority_at_the_edge(make_queue: MakeQueue, priority: int) -> None:
    """S2.2: the ends of the range are stored exactly."""
    queue = make_queue()
    queue.register(Work, succeed)
    task = await queue.get_task(await queue.enqueue(Work(), priority=priority))
    assert task is not None
    assert task.priority == priority


@pytest.mark.asyncio
@pytest.mark.parametrize("option", ["delay", "expires_in"])
@pytest.mark.parametrize(
    "value",
    [
        -timedelta(microseconds=1),
        timedelta.min,
        MOST + timedelta(microseconds=1),
        timedelta.max,
        0,
        -1,
        1e-9,
        1e18,
        math.inf,
        math.nan,
    ],
)
async def test_tim_06_a_span_out_of_range(make_queue: MakeQueue, option: str, value: object) -> None:
    """S2.2: a span is a timedelta, not negative and at most 365 days."""
    queue = make_queue()
    queue.register(Work, succeed)
    with pytest.raises((ValueError, TypeError), match=option):
        await queue.enqueue(Work(), **{option: value})
    await assert_untouched(queue)


@pytest.mark.asyncio
async def test_tim_06_spans_and_instants_at_the_edge(make_queue: MakeQueue, clock: FakeQueueClock) -> None:
    """S2.2, S2.5: the ends of the ranges are stored exactly, and the queue runs on beside them."""
    queue = make_queue()
    queue.register(Work, succeed)
    end = datetime.max.replace(tzinfo=UTC)
    for option, value, due in (
        ("delay", timedelta(0), None),
        ("delay", timedelta(microseconds=1), FAKE_START + timedelta(microseconds=1)),
        ("delay", MOST, FAKE_START + MOST),
        ("run_at", end, end),
        ("run_at", datetime(1, 1, 1, tzinfo=UTC), None),
        ("run_at", datetime(1960, 1, 1, tzinfo=UTC), None),
    ):
        task = await queue.get_task(await queue.enqueue(Work(), **{option: value}))
        assert task is not None
        assert task.next_attempt_at == due, option
    await queue.start()
    left = await queue.drain()
    assert left.scheduled == 3
    clock.advance(MOST)
    assert (await queue.drain()).scheduled == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("option", ["run_at", "expires_at"])
@pytest.mark.parametrize(
    "value",
    [
        datetime(2030, 1, 1, 12),  # noqa: DTZ001 - a naive one is what is refused
        datetime.max.replace(tzinfo=timezone(-timedelta(hours=5))),
        1_900_000_000,
        "2030-01-01T00:00:00Z",
    ],
)
async def test_tim_03_an_instant_must_be_aware(make_queue: MakeQueue, option: str, value: object) -> None:
    """S1.7: an instant is an aware datetime; a naive one is refused with a word about time zones."""
    queue = make_queue()
    queue.register(Work, succeed)
    with pytest.raises((ValueError, TypeError), match=option) as caught:
        await queue.enqueue(Work(), **{option: value})
    if isinstance(value, datetime) and value.tzinfo is None:
        assert "time zone" in str(caught.value)
    await assert_untouched(queue)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "options",
    [
        {"run_at": FAKE_START, "delay": timedelta(0)},
        {"expires_at": FAKE_START, "expires_in": timedelta(0)},
        {"retry_policy": "none"},
        {"on_dependency_failure": "cancel"},
        {"no_such_option": 1},
    ],
)
async def test_other_options_are_checked(make_queue: MakeQueue, options: dict[str, Any]) -> None:
    """S2.2: contradicting, mistyped and unknown options are refused by every way to enqueue."""
    queue = make_queue()
    queue.register(Work, succeed)
    name = min(options)
    for call in (queue.enqueue(Work(), **options), queue.enqueue_all([Work()], **options)):
        with pytest.raises((ValueError, TypeError), match=name):
            await call
    with pytest.raises((ValueError, TypeError), match=name):
        await queue.enqueue_chain([Work(), Work()], **options)

    async def graph() -> None:
        built = TaskGraph()
        built.add(Work(), **options)
        await queue.enqueue_graph(built)

    with pytest.raises((ValueError, TypeError), match=name):
        await graph()
    await assert_untouched(queue)


@pytest.mark.asyncio
@pytest.mark.parametrize("option", ["deduplication_key", "idempotency_key"])
async def test_keys_are_no_options_of_several_tasks(make_queue: MakeQueue, option: str) -> None:
    """S2.6: several tasks cannot share a key."""
    queue = make_queue()
    queue.register(Work, succeed)
    for call in (
        queue.enqueue_all([Work(), Work()], **{option: "k"}),
        queue.enqueue_chain([Work()], **{option: "k"}),
    ):
        with pytest.raises(TypeError, match=option):
            await call
    await assert_untouched(queue)


@pytest.mark.asyncio
@pytest.mark.parametrize("task_id", ["#1", " ", "", "a\0b", 7])
async def test_generated_ids_are_checked(make_queue: MakeQueue, task_id: object) -> None:
    """S13.19: an id that starts with '#' or is no usable text is refused."""
    queue = make_queue(id_generator=lambda: task_id)
    queue.register(Work, succeed)
    with pytest.raises((ValueError, TypeError)):
        await queue.enqueue(Work())
    assert await queue.get_tasks() == []


@pytest.mark.asyncio
async def test_an_automatic_name_is_no_id(make_queue: MakeQueue) -> None:
    """S13.19: outside a graph nothing can depend on an automatic name."""
    queue = make_queue()
    queue.register(Work, succeed)
    for call in (
        queue.enqueue(Work(), depends_on=["#1"]),
        queue.enqueue_all([Work(), Work()], depends_on=["#1"]),
        queue.enqueue_chain([Work(), Work()], depends_on=["#2"]),
    ):
        with pytest.raises(TaskNotFoundError, match="#"):
            await call
    await assert_untouched(queue)


NAMES = [
    "x'); DROP TABLE t;--",
    '"',
    'a"b',
    "%",
    "_",
    "[a]",
    "' OR 1=1 --",
    "\U0001f600",
    "x" * 1000,
    "a",
    "xa",
    "ab",
]


@pytest.mark.asyncio
async def test_sec_01_names_are_taken_literally(make_queue: MakeQueue) -> None:
    """S13.11: types, groups and keys of any usable text match themselves and nothing else."""
    queue = make_queue()
    classes = {}
    for name in NAMES:
        classes[name] = attrs.make_class("Named", ["n"], frozen=True)
        queue.register(classes[name], succeed, type=name)
    ids = {name: await queue.enqueue(classes[name](1), group=name, deduplication_key=name) for name in NAMES}
    assert len(set(ids.values())) == len(NAMES)
    for name in NAMES:
        assert await queue.enqueue(classes[name](1), deduplication_key=name) == ids[name]
        (task,) = await queue.get_tasks(group=name)
        assert (task.id, task.type, task.group, task.deduplication_key) == (ids[name], name, name, name)
    for count, name in enumerate(NAMES, 1):
        assert await queue.cancel_group(name) == 1
        assert (await queue.counts())[TaskStatus.CANCELLED] == count
    assert await queue.purge(statuses={TaskStatus.CANCELLED}) == len(NAMES)
    assert await queue.get_tasks() == []


@pytest.mark.asyncio
async def test_a_refused_batch_stores_nothing(make_queue: MakeQueue, storage: QueueStorage) -> None:
    """S2.6: when the last of many tasks is refused nothing of the batch is stored, nor announced, nor run."""
    queue = make_queue()
    queue.register(Work, succeed)
    queue.register(Anything, succeed)
    good = [Work(n) for n in range(20)]
    for bad in (Anything(math.nan), Other()):
        for verb in (queue.enqueue_all, queue.enqueue_chain):
            with pytest.raises(DurableQueueError):
                await verb([*good, bad])
    graph = TaskGraph()
    for task in good:
        graph.add(task)
    graph.add(Work(), priority=2**40)
    with pytest.raises(ValueError, match="priority"):
        await queue.enqueue_graph(graph)
    await asyncio.sleep(0)
    assert await storage.get_all() == []
    await assert_untouched(queue)
