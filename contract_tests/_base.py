"""What the areas of the contract share: the fixtures an adapter overrides, its flags, and records to store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, TypeAlias

import pytest

from durable_queue import (
    DependencyFailurePolicy,
    QueueStorage,
    RetryPolicy,
    Save,
    StoredTask,
    TaskFailure,
    TaskStatus,
)

OpenStorage: TypeAlias = Callable[[], AbstractAsyncContextManager[QueueStorage]]
Damage: TypeAlias = Callable[[str], Awaitable[None]]

T0 = datetime(2026, 3, 1, 12, 0, 0, 500_000, tzinfo=UTC)
TICK = timedelta(microseconds=1)
SECOND = timedelta(seconds=1)

ACTIVE = (TaskStatus.PENDING, TaskStatus.WAITING, TaskStatus.RUNNING, TaskStatus.RETRY_SCHEDULED)
TERMINAL = (TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED)
EVERY_STATUS = ACTIVE + TERMINAL

NASTY = (
    "it's",
    'say "hi"',
    "100%",
    "under_score",
    "back\\slash",
    "a/b/../c",
    "x'); DROP TABLE t;--",
    "{'json': [1]}",
    "*?[a-z]",
    " padded ",
    "tab\tline\nend",
    "Grüße",
    "gru\u0308ße",
    "名前",
    "👩\u200d🚀",
    "\u202eright to left",
    "null",
    "0",
    "x" * 1_000,
    "👾" * 1_000,
)
"""Texts that an adapter may meet as an id, a type, a key or a group; no two of them are equal."""

LOOKALIKES = ("Key", "key", "KEY", "key ", "ke_", "ke%", "\uff4b\uff45\uff59")
"""Texts that are equal only to those who fold, trim or match patterns."""


class ContractBase:
    """Flags and fixtures. An adapter's test class sets the flags that it can answer for.

    Attributes:
        durable: what was acknowledged is there when the store is opened again.
        answers_expiry: `get_expired` and `get_next_expiry_at` answer exactly, instead of nothing.
        claims_whole_store: a consumer's claim also holds against other objects over the same store.
        walk_examples: how many random walks are compared with the reference storage.
        walk_steps: how many steps each of them takes at most.
    """

    durable: ClassVar[bool] = False
    answers_expiry: ClassVar[bool] = False
    claims_whole_store: ClassVar[bool] = False
    walk_examples: ClassVar[int] = 20
    walk_steps: ClassVar[int] = 25

    @pytest.fixture
    def open_storage(self) -> OpenStorage:
        """Return a function without arguments that opens the same store each time, for `async with`."""
        raise NotImplementedError(
            f"{type(self).__name__} must override the fixture open_storage; it returns a function without "
            "arguments whose result is an async context manager over the same store each time"
        )

    @pytest.fixture
    def damage(self) -> Damage | None:
        """Return an async function that makes the stored record of an id unreadable, or None.

        It is called while no storage object has the store open.
        """
        return None


def make_task(id: str = "task", **fields: Any) -> StoredTask:
    """Make a record with sensible values for whatever is not given."""
    return StoredTask(id=id, **{"type": "mail", "created_at": T0, "payload": {"to": id}, **fields})


def in_status(status: TaskStatus, id: str | None = None, **fields: Any) -> StoredTask:
    """Make a record in a status; its id is the status's name unless one is given."""
    return make_task(id or status.value, status=status, **fields)


def full_task(id: str = "full", **fields: Any) -> StoredTask:
    """Make a record in which no field has its default value."""
    failure = TaskFailure(
        error="it's broken: 50 % \n😀",
        error_type="ValueError",
        stack_trace="Traceback:\n  line 1",
        failed_at=T0 + 17 * TICK,
        attempt=2,
        cause_task_id="root",
    )
    values: dict[str, Any] = {
        "type": "report.monthly",
        "payload": {"z": 1, "a": [True, None, 1.5, "é😀", {"deep": {}}]},
        "status": TaskStatus.RUNNING,
        "attempts": 3,
        "retry_policy": RetryPolicy.exponential(
            max_attempts=7,
            initial_delay=timedelta(microseconds=1),
            max_delay=timedelta(days=30, microseconds=3),
            jitter=True,
            jitter_factor=0.35,
        ),
        "created_at": T0 + TICK,
        "updated_at": T0 + 2 * TICK,
        "sequence": 41,
        "next_attempt_at": T0 + 3 * TICK,
        "deduplication_key": "dedup-1",
        "idempotency_key": "idem-1",
        "last_failure": failure,
        "cancel_requested": True,
        "priority": -5,
        "depends_on": ("dep-b", "dep-a"),
        "on_dependency_failure": DependencyFailurePolicy.RUN,
        "group": "group-1",
        "hand_off_reference": "ref-1",
        "hand_off_deadline": T0 + 5 * TICK,
        "expires_at": T0 + 4 * TICK,
        "result": {"rows": [1, 2, 3]},
        "interruptions": 2,
        "payload_version": 9,
        "failures": (failure, TaskFailure(error="", error_type="KeyError", failed_at=T0)),
        "held": True,
        "skipped": True,
    }
    return StoredTask(id=id, **{**values, **fields})


async def fill(storage: QueueStorage, *tasks: StoredTask) -> None:
    """Store records, in the order given."""
    await storage.apply([Save(task) for task in tasks])


def ids(tasks: Iterable[StoredTask | None]) -> list[str | None]:
    """Return the ids, for comparison with a list written by hand; None stays None."""
    return [None if task is None else task.id for task in tasks]
