"""The persistence boundary: what the queue asks of a storage, method by method.

A storage keeps, orders and finds records. It never reads the time, never settles a dependency, never announces
anything: each of these would have to be repeated, and would drift, in every adapter.

An adapter must implement the thirteen abstract methods. The others have defaults built from those and are overridden
where one transaction or one query does better. Every method is atomic on its own and safe against concurrent calls
from the queue's event loop; cancelling a caller never leaves half of it done. A storage error completes the call with
an exception: whatever it is, the queue treats it as a fault of the storage and, for its own work, tries again.

The numbered clauses are in ``docs/reference/storage-contract.md``; `contract_tests.QueueStorageContract` checks them.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Sequence
from datetime import datetime
from typing import Any, ClassVar

import attrs

from durable_queue._core.ordering import is_eligible, order_key, ready_key
from durable_queue.changes import Change as Change
from durable_queue.changes import Delete as Delete
from durable_queue.changes import Save as Save
from durable_queue.changes import Update as Update
from durable_queue.errors import CorruptRecordError, QueueInUseError, StorageError, TaskAlreadyExistsError
from durable_queue.tasks import ACTIVE_STATUSES, CLAIMABLE_STATUSES, StoredTask, TaskStatus

PAGE_SIZE = 100
"""How many records the defaults ask for at a time."""


@attrs.frozen(kw_only=True)
class ReadyHead:
    """The head of the ready order at an instant, for a reader who keeps it for a while (S13.2).

    Attributes:
        tasks: in ready order, as `QueueStorage.get_ready` gives them.
        is_all: whether nothing else was eligible.
        until: the earliest `next_attempt_at` after the instant of all records that can be claimed; None if there is
            none. Nothing becomes eligible before it by the passing of time.
        with_dependents: the ids among `tasks` that the `depends_on` of any stored record may hold.
    """

    tasks: list[StoredTask]
    is_all: bool
    until: datetime | None
    with_dependents: Collection[str]


class QueueStorage(ABC):
    """Where tasks are kept. See the module for the rules that hold for every method.

    *Order* means oldest `created_at` first, then `sequence`, then `id`. *Ready order* means highest `priority` first,
    then that order. *Eligible at an instant* means pending or retryScheduled, not held, and `next_attempt_at` None or
    not after the instant.

    Attributes:
        atomic: whether `apply` is all-or-nothing; the queue then puts a whole step into one call.
        consumed_by: the queue that consumes this object, held weakly. Queues set it, so that another one of the same
            program can wake it; an adapter leaves it alone.
    """

    atomic: ClassVar[bool] = False
    consumed_by: weakref.ref[Any] | None = None

    @abstractmethod
    async def save(self, task: StoredTask) -> None:
        """Insert a new record.

        Raises:
            TaskAlreadyExistsError: the id is stored already, with whatever record.
        """

    @abstractmethod
    async def get(self, task_id: str) -> StoredTask | None:
        """Return the current record, or None.

        Raises:
            CorruptRecordError: the record is there and cannot be read.
        """

    @abstractmethod
    async def update(self, task: StoredTask) -> None:
        """Replace the record of an existing id; doing it again with the same record changes nothing.

        Raises:
            TaskNotFoundError: the id is not stored.
        """

    @abstractmethod
    async def delete(self, task_id: str) -> None:
        """Remove a record, readable or not; a no-op when it is gone."""

    @abstractmethod
    async def get_pending(self) -> list[StoredTask]:
        """Return every pending record, in order."""

    @abstractmethod
    async def get_by_status(
        self, status: TaskStatus, *, limit: int | None = None, after: StoredTask | None = None
    ) -> list[StoredTask]:
        """Return the records of one status, in order.

        Args:
            status: which.
            limit: at most so many; every one when None.
            after: only what comes later in the order than this record, whether or not it is still stored.

        Raises:
            ValueError: `limit` is below 1.
        """

    @abstractmethod
    async def get_next_ready(self, now: datetime) -> StoredTask | None:
        """Return the first record in ready order that is eligible at `now`, or None."""

    @abstractmethod
    async def get_next_wake_at(self) -> datetime | None:
        """Return the earliest `next_attempt_at`, or None.

        Of all pending and retryScheduled records that are not held, overdue ones included.
        """

    @abstractmethod
    async def get_max_sequence(self) -> int:
        """Return the largest stored `sequence`, or 0."""

    @abstractmethod
    async def get_all(self) -> list[StoredTask]:
        """Return every record, in order."""

    @abstractmethod
    async def find_active_by_deduplication_key(self, key: str) -> StoredTask | None:
        """Return the first record, in order, with this key that is pending, waiting, running or retryScheduled."""

    @abstractmethod
    async def get_waiting_dependents(self, task_id: str) -> list[StoredTask]:
        """Return the waiting records whose `depends_on` holds this id, in order."""

    @abstractmethod
    async def get_by_group(self, group: str, *, status: TaskStatus | None = None) -> list[StoredTask]:
        """Return the records of a group, in order, all or those of one status."""

    async def apply(self, changes: Sequence[Change]) -> None:
        """Carry out changes in their order.

        Where `atomic` is true: all of them or none, whatever happens. The default does one after the other and, when
        one fails, deletes again what this call had inserted (S13.8). Doing the same list twice must be safe, because
        the queue repeats a call whose outcome it does not know.

        Raises:
            TaskAlreadyExistsError: a `Save` found another record under its id.
            TaskNotFoundError: an `Update` found none.
        """
        saved: list[str] = []
        try:
            for change in changes:
                if isinstance(change, Save):
                    if await _save_unless_equal(self, change.task):
                        saved.append(change.task.id)
                elif isinstance(change, Update):
                    await self.update(change.task)
                else:
                    await self.delete(change.task_id)
        except Exception:
            for task_id in reversed(saved):
                await self.delete(task_id)
            raise

    async def get_ready(
        self, now: datetime, limit: int, *, types: Collection[str] | None = None
    ) -> list[StoredTask]:
        """Return the next records in ready order that are eligible at `now`.

        Args:
            now: the instant.
            limit: at most so many; fewer are allowed as long as it is not none while there are some.
            types: only these type names, when given; a backlog of other types must not slow the answer (S3.5).

        Raises:
            ValueError: `limit` is below 1.
        """
        check_limit(limit)
        if types is None:
            head = await self.get_next_ready(now)
            return [] if head is None else [head]
        wanted = frozenset(types)
        best: list[StoredTask] = []
        for status in CLAIMABLE_STATUSES:
            async for page in pages(self, status):
                best.extend(task for task in page if task.type in wanted and is_eligible(task, now))
                best.sort(key=ready_key)
                del best[limit:]
        return best

    @property
    def reads_ahead(self) -> bool:
        """Whether `read_ahead` can be asked: it is overridden, and `get_ready` not again by a subclass."""
        order = type(self).__mro__
        ahead, ready = (
            next(place for place, kind in enumerate(order) if name in vars(kind))
            for name in ("read_ahead", "get_ready")
        )
        return ahead <= ready and order[ahead] is not QueueStorage

    async def read_ahead(self, now: datetime, limit: int) -> ReadyHead:
        """Return what `get_ready` would, with what one has to know to keep it for a while.

        Only for adapters that can say all of it by one query; the queue then claims many tasks for one read. Not
        asked where it is not overridden (see `reads_ahead`).

        Args:
            now: the instant.
            limit: at most so many.

        Raises:
            ValueError: `limit` is below 1.
        """
        raise NotImplementedError(f"{type(self).__name__} does not override read_ahead; ask get_ready")

    async def get_many(self, ids: Collection[str]) -> dict[str, StoredTask]:
        """Return the stored records among these ids, by id; what is not stored, or cannot be read, is absent."""
        found: dict[str, StoredTask] = {}
        for task_id in ids:
            try:
                task = await self.get(task_id)
            except CorruptRecordError:
                # One record, not the storage (S7.3): the others are needed all the same.
                continue
            if task is not None:
                found[task_id] = task
        return found

    async def get_waiting_dependents_of(self, ids: Collection[str]) -> list[StoredTask]:
        """Return the waiting records whose `depends_on` holds any of these ids, each once, in order."""
        found: dict[str, StoredTask] = {}
        for task_id in ids:
            for task in await self.get_waiting_dependents(task_id):
                found[task.id] = task
        return sorted(found.values(), key=order_key)

    async def get_judgeable(self, ids: Collection[str]) -> list[StoredTask]:
        """Return the waiting dependents of these ids whose verdict can fall now (S13.21).

        The ids are taken to be finished even where the storage still holds them as active, because the queue asks
        before it writes their outcome. A dependent can be judged when it has no other dependency that is active, or
        when its policy is not `run` and one of the ids is stored as failed or cancelled, or is not stored. Returning
        more waiting dependents than these is correct and only slower; the default returns all.
        """
        return await self.get_waiting_dependents_of(ids)

    async def get_dependents(self, task_id: str) -> list[StoredTask]:
        """Return the records of any status whose `depends_on` holds this id, in order."""
        found: list[StoredTask] = []
        for status in TaskStatus:
            async for page in pages(self, status):
                found.extend(task for task in page if task_id in task.depends_on)
        return sorted(found, key=order_key)

    async def get_dependent_ids(self, ids: Collection[str]) -> Collection[str]:
        """Return the ids of the records of any status whose `depends_on` holds any of these ids, each once.

        The queue asks when it does not need a record, or has read it already: a record with thousands of dependencies
        is a dependent of each. Those that cannot be read may be among them. Default: from `get_dependents`.
        """
        return {task.id for task_id in ids for task in await self.get_dependents(task_id)}

    async def get_expired(self, now: datetime, limit: int) -> list[StoredTask]:  # noqa: ARG002  # for overrides
        """Return at most `limit` records whose time to start is over, earliest first. Default: none.

        Those with no attempt so far that are pending, waiting or retryScheduled, held or not, and whose
        `expires_at` is not after `now`.
        """
        check_limit(limit)
        return []

    async def get_next_expiry_at(self) -> datetime | None:
        """Return the earliest `expires_at` of the records that `get_expired` is about, or None. Default: None."""
        return None

    async def count_by_status(self) -> dict[TaskStatus, int]:
        """Return how many records there are of each status; every status is a key."""
        counts = {}
        for status in TaskStatus:
            counts[status] = 0
            async for page in pages(self, status):
                counts[status] += len(page)
        return counts

    async def count_held(self) -> int:
        """Return how many active records are held."""
        count = 0
        for status in ACTIVE_STATUSES:
            async for page in pages(self, status):
                count += sum(task.held for task in page)
        return count

    async def take_unreadable(self) -> list[CorruptRecordError]:
        """Return, and forget, what queries have had to leave out since the last call (S13.12). Default: nothing.

        Every query but `get` leaves out a record that it cannot read and remembers it here.
        """
        return []

    async def changes_elsewhere(self) -> list[str] | None:
        """Say whether anybody else has written to the store since the last call, without touching its tables.

        Returns:
            None when nothing changed; otherwise the ids of the waiting tasks that others have inserted, often none. The
            first call after `acquire_consumer` looks back at all that nobody was there to judge.
            Overriding this method tells the queue to ask once in a while (S7.9). Default: None.
        """
        return None

    async def acquire_consumer(self) -> None:
        """Claim the right to consume this store; the claim dies with its process (S7.9). Default: per object.

        Raises:
            QueueInUseError: it is claimed already, through this object or another.
        """
        if getattr(self, "_consumer_claimed", False):
            raise QueueInUseError("another live queue consumes this storage object")
        self._consumer_claimed = True

    async def release_consumer(self) -> None:
        """Give the claim back; a no-op without one."""
        self._consumer_claimed = False

    async def close(self) -> None:  # noqa: B027  # most adapters have something to close, not all
        """Let go of files and threads; closing twice is a no-op. Default: nothing to do."""


async def pages(storage: QueueStorage, status: TaskStatus) -> AsyncIterator[list[StoredTask]]:
    """Walk all records of a status by key, `PAGE_SIZE` at a time.

    Raises:
        StorageError: a page does not come after the one before, so that the walk would never end.
    """
    after: StoredTask | None = None
    while page := await storage.get_by_status(status, limit=PAGE_SIZE, after=after):
        if after is not None and order_key(page[0]) <= order_key(after):
            raise StorageError(f"{type(storage).__name__}.get_by_status ignores `after`; see C4.12")
        yield page
        after = page[-1]


def check_limit(limit: int | None) -> None:
    """Raise ValueError unless a limit is None or at least 1."""
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")


async def _save_unless_equal(storage: QueueStorage, task: StoredTask) -> bool:
    try:
        await storage.save(task)
    except TaskAlreadyExistsError:
        if await storage.get(task.id) != task:
            raise
        return False
    return True
