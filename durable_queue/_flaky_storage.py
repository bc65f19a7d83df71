"""A storage that fails when it is told to; `durable_queue.testing` is its public home."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from datetime import datetime
from typing import Any, ParamSpec, TypeVar

from durable_queue.errors import StorageError
from durable_queue.storage import QueueStorage, ReadyHead
from durable_queue.tasks import StoredTask, TaskStatus

_P = ParamSpec("_P")
_T = TypeVar("_T")

WRITES = frozenset({"save", "update", "delete", "apply"})
"""The operations of a storage that change it, for `FlakyStorage`."""


class FlakyStorage(QueueStorage):
    """A storage around another one that fails, or is held up, when it is told to.

    It passes every method on, `apply` included, and is `atomic` when the other one is. `fail` and
    `fail_until_cleared` plan faults, `gate` holds one call until the test lets it go on. Each plan counts the
    calls that match it from the moment it was made.

    Args:
        inner: the storage that does the work.

    Attributes:
        inner: the same.
        calls: how often each method has been called, by name.
    """

    def __new__(cls, inner: QueueStorage) -> FlakyStorage:  # noqa: PYI034  # it chooses a subclass
        # Overriding `changes_elsewhere` makes a queue ask for it now and then, so only who wraps one has it.
        if type(inner).changes_elsewhere is not QueueStorage.changes_elsewhere:
            cls = _FlakySharedStorage  # noqa: PLW0642  # this is what __new__ is for
        return super().__new__(cls)

    def __init__(self, inner: QueueStorage) -> None:
        self.inner = inner
        self.atomic = inner.atomic  # type: ignore[misc]  # a class attribute elsewhere, here the inner one's
        self.calls: Counter[str] = Counter()
        self._plans: list[_Plan] = []

    def fail(
        self,
        operation: str | Collection[str] | None = None,
        *,
        nth: int = 1,
        times: int = 1,
        after_commit: bool = False,
        error: Exception | None = None,
    ) -> None:
        """Let coming calls fail.

        Args:
            operation: the name of a method, or several (see `WRITES`); every method when None.
            nth: which matching call from now on is the first to fail, from 1.
            times: how many matching calls in a row fail.
            after_commit: fail after the storage has done the work, as when its answer is lost.
            error: what to raise; a `StorageError` by default.
        """
        _check_count(nth, "nth")
        _check_count(times, "times")
        self._plans.append(_Fault(operation, nth, nth + times, after_commit, error))

    def fail_until_cleared(
        self,
        operation: str | Collection[str] | None = None,
        *,
        after_commit: bool = False,
        error: Exception | None = None,
    ) -> None:
        """Let every matching call fail until `clear`; the arguments are those of `fail`."""
        self._plans.append(_Fault(operation, 1, None, after_commit, error))

    def gate(
        self, operation: str | Collection[str] | None = None, *, nth: int = 1, after_commit: bool = False
    ) -> Gate:
        """Hold a coming call until the test releases it.

        Args:
            operation: as for `fail`.
            nth: which matching call from now on is held, from 1.
            after_commit: hold it after the storage has done the work.

        Returns:
            The gate; wait for the call with `Gate.reached` and let it go on with `Gate.release`.
        """
        _check_count(nth, "nth")
        gate = Gate()
        self._plans.append(_Hold(operation, nth, nth + 1, after_commit, gate))
        return gate

    def clear(self) -> None:
        """Forget every planned fault and open every gate."""
        plans, self._plans = self._plans, []
        for plan in plans:
            plan.forget()

    async def save(self, task: StoredTask) -> None:
        """See `QueueStorage.save`."""
        await self._call("save", self.inner.save, task)

    async def get(self, task_id: str) -> StoredTask | None:
        """See `QueueStorage.get`."""
        return await self._call("get", self.inner.get, task_id)

    async def update(self, task: StoredTask) -> None:
        """See `QueueStorage.update`."""
        await self._call("update", self.inner.update, task)

    async def delete(self, task_id: str) -> None:
        """See `QueueStorage.delete`."""
        await self._call("delete", self.inner.delete, task_id)

    async def get_pending(self) -> list[StoredTask]:
        """See `QueueStorage.get_pending`."""
        return await self._call("get_pending", self.inner.get_pending)

    async def get_by_status(
        self, status: TaskStatus, *, limit: int | None = None, after: StoredTask | None = None
    ) -> list[StoredTask]:
        """See `QueueStorage.get_by_status`."""
        return await self._call("get_by_status", self.inner.get_by_status, status, limit=limit, after=after)

    async def get_next_ready(self, now: datetime) -> StoredTask | None:
        """See `QueueStorage.get_next_ready`."""
        return await self._call("get_next_ready", self.inner.get_next_ready, now)

    async def get_next_wake_at(self) -> datetime | None:
        """See `QueueStorage.get_next_wake_at`."""
        return await self._call("get_next_wake_at", self.inner.get_next_wake_at)

    async def get_max_sequence(self) -> int:
        """See `QueueStorage.get_max_sequence`."""
        return await self._call("get_max_sequence", self.inner.get_max_sequence)

    async def get_all(self) -> list[StoredTask]:
        """See `QueueStorage.get_all`."""
        return await self._call("get_all", self.inner.get_all)

    async def find_active_by_deduplication_key(self, key: str) -> StoredTask | None:
        """See `QueueStorage.find_active_by_deduplication_key`."""
        find = self.inner.find_active_by_deduplication_key
        return await self._call("find_active_by_deduplication_key", find, key)

    async def get_waiting_dependents(self, task_id: str) -> list[StoredTask]:
        """See `QueueStorage.get_waiting_dependents`."""
        return await self._call("get_waiting_dependents", self.inner.get_waiting_dependents, task_id)

    async def get_by_group(self, group: str, *, status: TaskStatus | None = None) -> list[StoredTask]:
        """See `QueueStorage.get_by_group`."""
        return await self._call("get_by_group", self.inner.get_by_group, group, status=status)

    @property
    def reads_ahead(self) -> bool:
        """Whether the inner storage can be asked for `read_ahead`."""
        return self.inner.reads_ahead

    async def read_ahead(self, now: datetime, limit: int) -> ReadyHead:
        """See `QueueStorage.read_ahead`; counted, failed and held as the `get_ready` that it is asked instead of."""
        return await self._call("get_ready", self.inner.read_ahead, now, limit)

    async def _call(
        self, operation: str, method: Callable[_P, Awaitable[_T]], *args: _P.args, **options: _P.kwargs
    ) -> _T:
        self.calls[operation] += 1
        plans = [plan for plan in self._plans if plan.is_hit_by(operation)]
        for plan in plans:
            if not plan.after_commit:
                await plan.carry_out(operation)
        answer = await method(*args, **options)
        for plan in plans:
            if plan.after_commit:
                await plan.carry_out(operation)
        return answer


class _FlakySharedStorage(FlakyStorage):
    """The form of `FlakyStorage` around a storage that notices the writes of others."""

    async def changes_elsewhere(self) -> list[str] | None:
        return await self._call("changes_elsewhere", self.inner.changes_elsewhere)


def _pass_on(name: str) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(getattr(QueueStorage, name))
    async def method(self: FlakyStorage, *args: Any, **options: Any) -> Any:
        return await self._call(name, getattr(self.inner, name), *args, **options)

    return method


OPERATIONS = frozenset(
    name
    for name, method in vars(QueueStorage).items()
    # Asked in the place of `get_ready`, and known under that name.
    if inspect.iscoroutinefunction(method) and name != "read_ahead"
)
"""The names of the methods of `QueueStorage`, for `FlakyStorage`; `read_ahead` goes by the name of `get_ready`."""

# The methods with a default are passed on too: the default would answer with calls of others, and hide what
# the wrapped storage does better.
for _name in OPERATIONS - vars(FlakyStorage).keys() - {"changes_elsewhere"}:
    setattr(FlakyStorage, _name, _pass_on(_name))


class Gate:
    """One call of a `FlakyStorage` that is held."""

    def __init__(self) -> None:
        self._reached = asyncio.Event()
        self._released = asyncio.Event()

    async def reached(self) -> None:
        """Return once the call is held here."""
        await self._reached.wait()

    def release(self) -> None:
        """Let the call go on; before it has come, it will not be held at all."""
        self._released.set()

    async def hold(self) -> None:
        """Wait here; what the storage does."""
        self._reached.set()
        await self._released.wait()


class _Plan:
    """What happens to the calls number `first` to `end - 1` of those that match."""

    def __init__(
        self, operation: str | Collection[str] | None, first: int, end: int | None, after_commit: bool
    ) -> None:
        names = OPERATIONS if operation is None else {operation} if isinstance(operation, str) else operation
        if not OPERATIONS.issuperset(names):
            raise ValueError("operation must be the name of a method of QueueStorage, or several")
        self._names = frozenset(names)
        self._first = first
        self._end = end
        self._seen = 0
        self.after_commit = after_commit

    def is_hit_by(self, operation: str) -> bool:
        if operation not in self._names:
            return False
        self._seen += 1
        return self._first <= self._seen and (self._end is None or self._seen < self._end)

    async def carry_out(self, operation: str) -> None:
        raise NotImplementedError

    def forget(self) -> None:
        """Nothing to undo."""


class _Fault(_Plan):
    def __init__(
        self,
        operation: str | Collection[str] | None,
        first: int,
        end: int | None,
        after_commit: bool,
        error: Exception | None,
    ) -> None:
        super().__init__(operation, first, end, after_commit)
        self._error = error

    async def carry_out(self, operation: str) -> None:
        when = "after" if self.after_commit else "before"
        raise self._error or StorageError(f"{operation} was told to fail {when} its commit")


class _Hold(_Plan):
    def __init__(
        self,
        operation: str | Collection[str] | None,
        first: int,
        end: int | None,
        after_commit: bool,
        gate: Gate,
    ) -> None:
        super().__init__(operation, first, end, after_commit)
        self._gate = gate

    async def carry_out(self, operation: str) -> None:  # noqa: ARG002  # the faults name it
        await self._gate.hold()

    def forget(self) -> None:
        self._gate.release()


def _check_count(count: int, what: str) -> None:
    if count < 1:
        raise ValueError(f"{what} must be at least 1")
