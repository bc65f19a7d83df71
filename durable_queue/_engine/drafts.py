"""Checks of what is enqueued, before anything is stored (S2.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from os import urandom
from typing import Any, TypedDict

import attrs

from durable_queue._core.admission import Draft
from durable_queue._engine.arguments import check_delay, check_kind
from durable_queue._engine.registry import Registry
from durable_queue._text import AUTOMATIC, check_name
from durable_queue.clock import EPOCH, check_instant, later
from durable_queue.retry import RetryPolicy
from durable_queue.tasks import DependencyFailurePolicy

PRIORITY_BOUND = 2**31
_MILLISECOND = timedelta(milliseconds=1)
_48_BITS = 2**48 - 1
_MARKS = 7 << 76 | 0b10 << 62
_RANDOM_BYTES = 10
_RANDOM_BITS = (2**80 - 1) & ~(0xF << 76 | 0b11 << 62)


class SharedOptions(TypedDict, total=False):
    """The options of `enqueue` that also make sense for several tasks at once."""

    retry_policy: RetryPolicy | None
    priority: int
    depends_on: Iterable[str]
    on_dependency_failure: DependencyFailurePolicy
    group: str | None
    run_at: datetime | None
    delay: timedelta | None
    expires_at: datetime | None
    expires_in: timedelta | None


class EnqueueOptions(SharedOptions, total=False):
    """Every option of `enqueue`."""

    deduplication_key: str | None
    idempotency_key: str | None


@attrs.frozen(kw_only=True)
class Node:
    """A task on its way into one enqueue call, with its name there and its options, which nobody changes any more."""

    name: str
    task: object = attrs.field(repr=False)
    options: dict[str, Any] = attrs.field(factory=dict, repr=False)


class Drafting:
    """Turns the tasks of one call into drafts.

    Args:
        registry: the types.
        id_generator: where ids come from; None for random ones.
        now: the time of the call.
    """

    def __init__(self, registry: Registry, id_generator: Callable[[], str] | None, now: datetime) -> None:
        self._registry = registry
        self._id_generator = id_generator
        self._ids = new_ids(now)
        self._now = now
        # Often all tasks of a call share one dict of options: it is checked once.
        self._options: dict[str, Any] | None = None
        self._checked: dict[str, Any] = {}

    def draft(self, node: Node) -> Draft:
        """Check a task and its options and make a draft of them.

        Raises:
            UnknownTaskTypeError: its class is not registered.
            PayloadError: it cannot be stored as JSON.
            TypeError: an option has the wrong type.
            ValueError: an option has an impossible value.
        """
        task_type = self._registry.of(node.task)
        if node.options is not self._options:
            self._checked = _check_options(node.options, self._now)
            self._options = node.options
        return Draft(
            name=node.name,
            id=next(self._ids) if self._id_generator is None else _own_id(self._id_generator),
            type=task_type.name,
            payload_text=task_type.codec.encode(node.task),
            **({"retry_policy": task_type.retry_policy} | self._checked),
        )


def _check_options(options: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Check the options of a task; return the fields of a draft that they set."""
    if not options:
        return {}
    policy = options.get("retry_policy")
    check_kind(policy, RetryPolicy, "retry_policy", "a RetryPolicy")
    on_failure = options.get("on_dependency_failure", DependencyFailurePolicy.CANCEL)
    if not isinstance(on_failure, DependencyFailurePolicy):
        raise TypeError("on_dependency_failure must be a DependencyFailurePolicy")
    fields = {
        "deduplication_key": _optional_name(options, "deduplication_key"),
        "idempotency_key": _optional_name(options, "idempotency_key"),
        "priority": _check_priority(options.get("priority", 0)),
        "depends_on": check_dependencies(options.get("depends_on", ())),
        "on_dependency_failure": on_failure,
        "group": _optional_name(options, "group"),
        "next_attempt_at": _instant(options, "run_at", "delay", now, past_is_none=True),
        "expires_at": _instant(options, "expires_at", "expires_in", now, past_is_none=False),
    }
    return fields if policy is None else fields | {"retry_policy": policy}


def _own_id(id_generator: Callable[[], str]) -> str:
    task_id = check_name(id_generator(), "the generated id")
    if task_id.startswith(AUTOMATIC):
        raise ValueError(
            f"ids must not start with {AUTOMATIC!r}; it marks the automatic names of graph nodes"
        )
    return task_id


def known_options(options: Mapping[str, Any], allowed: type) -> dict[str, Any]:
    """Return options as a dict of its own, checked by name.

    Args:
        options: what the caller gave.
        allowed: the TypedDict of what there is.

    Raises:
        TypeError: one is not known.
    """
    unknown = options and options.keys() - allowed.__annotations__.keys()
    if unknown:
        raise TypeError(
            f"unexpected option {min(unknown)!r}; known are {', '.join(sorted(allowed.__annotations__))}"
        )
    return dict(options)


def new_ids(now: datetime) -> Iterator[str]:
    """Yield random ids; ids are never used again, also not after a deletion.

    They have the layout of a UUID of version 7: ids of one time are neighbours in the index of a storage, where wholly
    random ones would touch another page for each task.

    Args:
        now: the time by the queue's clock; it says nothing about the order of two ids.
    """
    start = ((now - EPOCH) // _MILLISECOND & _48_BITS) << 80 | _MARKS
    count = 1
    while True:
        drawn = urandom(_RANDOM_BYTES * count)
        for place in range(0, len(drawn), _RANDOM_BYTES):
            number = int.from_bytes(drawn[place : place + _RANDOM_BYTES], "big")
            yield f"{start | number & _RANDOM_BITS:032x}"
        # Most calls want one; a long list is served by few draws.
        count = 64


def _optional_name(options: Mapping[str, Any], name: str) -> str | None:
    value = options.get(name)
    return None if value is None else check_name(value, name)


def _check_priority(value: object) -> int:
    if type(value) is not int:
        raise ValueError(f"priority must be an int, not {type(value).__name__}")
    if not -PRIORITY_BOUND <= value < PRIORITY_BOUND:
        raise ValueError("priority must fit a signed 32-bit integer")
    return value


def check_dependencies(value: object) -> tuple[str, ...]:
    """Check ids or names to depend on; return each once, in order.

    Raises:
        TypeError: it is no iterable, or one string, or holds something that is no string.
        ValueError: one of them is no usable text.
    """
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError("depends_on must be a list of task ids or node names")
    return tuple(dict.fromkeys(check_name(item, "a dependency") for item in value))


def _instant(
    options: Mapping[str, Any], absolute: str, relative: str, now: datetime, *, past_is_none: bool
) -> datetime | None:
    instant, span = options.get(absolute), options.get(relative)
    if instant is not None and span is not None:
        raise ValueError(f"give {absolute} or {relative}, not both")
    if span is not None:
        result = later(now, check_delay(span, relative))
    elif instant is not None:
        result = check_instant(instant, absolute)
    else:
        return None
    return None if past_is_none and result <= now else result
