"""When the worker has to look again: the next due time, expiry and hand-off deadline (S3.4, S8.2, S9.4).

Nothing polls. The times are lower bounds kept in memory: a write may bring one forward, and one that is no longer
known is read from the storage before the queue goes idle. A look too many costs one read; a look too few would cost a
start, so whatever makes a bound doubtful makes it unknown.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from durable_queue._core.ordering import can_be_claimed, can_expire
from durable_queue._core.plan import Plan
from durable_queue._engine.ahead import ReadAhead
from durable_queue._engine.view import ask
from durable_queue.clock import QueueClock, TimerHandle
from durable_queue.storage import QueueStorage
from durable_queue.tasks import StoredTask, TaskStatus

DOUBTFUL_EVERY = timedelta(seconds=1)
"""How often to look when the storage names a time that is over although nothing is ready: a record that it cannot read
hides the times behind its own (S7.3)."""

ELSEWHERE_EVERY = timedelta(milliseconds=500)
"""How often the storage is asked for commits of other processes; S7.9 allows one second."""


class Agenda:
    """Knows when something is due, and arms one timer for the earliest.

    Attributes:
        claims: whether there may be something to claim.
        expiries: whether something may have expired.
        elsewhere: whether to ask for commits of other processes.
        next_due: the earliest later start, or None.
    """

    def __init__(
        self, clock: QueueClock, storage: QueueStorage, ahead: ReadAhead, wake: Callable[[], object]
    ) -> None:
        self.claims = False
        self.expiries = False
        self.elsewhere = False
        self.next_due: datetime | None = None
        self._next_expiry: datetime | None = None
        self._due_known = False
        self._expiry_known = False
        self._deadlines: list[tuple[datetime, str]] = []
        self._nothing_ready_at: datetime | None = None
        self._nothing_expired_at: datetime | None = None
        self._is_doubtful = False
        self._clock = clock
        self._storage = storage
        self._ahead = ahead
        self._wake = wake
        self._timer: TimerHandle | None = None
        self._armed_for: datetime | str | None = None
        self._poll: TimerHandle | None = None
        self._polls = type(storage).changes_elsewhere is not QueueStorage.changes_elsewhere

    @property
    def background_timers(self) -> list[TimerHandle]:
        """The timers that stand for no work: the look for commits of other processes."""
        return [] if self._poll is None else [self._poll]

    def begin(self) -> None:
        """Assume nothing: the queue has just started, or somebody else has written."""
        self._ahead.forget()
        self.claims = True
        self.expiries = False
        self._due_known = self._expiry_known = False
        self._nothing_ready_at = self._nothing_expired_at = None
        # Not only when the queue becomes idle, which it may never do.
        self.arm_poll()

    def end(self) -> None:
        """Disarm everything; the queue has stopped."""
        for timer in (self._timer, self._poll):
            if timer is not None:
                timer.cancel()
        self._timer = self._poll = None
        self._deadlines.clear()
        self._ahead.forget()
        self.claims = self.expiries = self.elsewhere = False

    def observe(self, plan: Plan) -> None:
        """Take in what has just been written."""
        for task in plan.records.values():
            if task is None or task.status is TaskStatus.CANCELLED:
                # It may have been the one that a bound stands for.
                if self.next_due is not None:
                    self._due_known = False
                continue
            if can_be_claimed(task):
                if task.next_attempt_at is None or task.next_attempt_at <= self._clock.now():
                    self.claims = True
                elif self.next_due is None or task.next_attempt_at < self.next_due:
                    self.next_due = task.next_attempt_at
                    # An earlier look, on a clock that may have gone back since, says nothing about this task.
                    self._nothing_ready_at = None
            if can_expire(task) and (
                self._next_expiry is None or (task.expires_at or self._next_expiry) < self._next_expiry
            ):
                self._next_expiry = task.expires_at
                self._nothing_expired_at = None
            self.note_deadline(task)

    def note_deadline(self, task: StoredTask) -> None:
        """Remember the deadline of a handed-off task."""
        if task.status is TaskStatus.RUNNING and task.hand_off_deadline is not None:
            heapq.heappush(self._deadlines, (task.hand_off_deadline, task.id))

    def take_late(self, now: datetime) -> list[tuple[datetime, str]]:
        """Return, and forget, the deadlines of hand-offs that are over at an instant, with the tasks' ids."""
        late = []
        while self._deadlines and self._deadlines[0][0] <= now:
            late.append(heapq.heappop(self._deadlines))
        return late

    def keep_late(self, late: Iterable[tuple[datetime, str]]) -> None:
        """Remember again what `take_late` has returned: nothing came of it."""
        for deadline in late:
            heapq.heappush(self._deadlines, deadline)

    @property
    def has_late(self) -> bool:
        """Whether a hand-off deadline is over."""
        return bool(self._deadlines) and self._deadlines[0][0] <= self._clock.now()

    async def learn(self) -> None:
        """Read the bounds that are not known."""
        if not self._due_known:
            self.next_due = await ask("get_next_wake_at", self._storage.get_next_wake_at())
            self._due_known = True
        await self._learn_expiry()

    async def look_for_expiries(self, now: datetime) -> None:
        """See whether something has expired; a queue that is never idle has no other occasion."""
        await self._learn_expiry()
        if (
            self._next_expiry is not None
            and self._next_expiry <= now
            and not _is_between(self._nothing_expired_at, self._next_expiry, now)
        ):
            self.expiries = True

    async def _learn_expiry(self) -> None:
        if not self._expiry_known:
            self._next_expiry = await ask("get_next_expiry_at", self._storage.get_next_expiry_at())
            self._expiry_known = True

    def found_nothing(self, now: datetime) -> None:
        """Note that nothing was ready at an instant."""
        self.claims = False
        self._nothing_ready_at = now

    def looked_for_expired(self, plan: Plan) -> None:
        """Note that a batch of expired tasks, perhaps an empty one, is in the plan."""
        self.expiries = any(
            task is not None and task.status is TaskStatus.CANCELLED and task.expires_at is not None
            for task in plan.records.values()
        )
        self._nothing_expired_at = None if self.expiries else plan.now
        self._expiry_known = False

    def look(self) -> None:
        """See what has become due."""
        now = self._clock.now()
        self._is_doubtful = False
        if self.next_due is not None and self.next_due <= now:
            if _is_between(self._nothing_ready_at, self.next_due, now):
                self._is_doubtful = True
            else:
                self.claims = True
            self.next_due = None
            self._due_known = False
        if self._next_expiry is not None and self._next_expiry <= now:
            if _is_between(self._nothing_expired_at, self._next_expiry, now):
                self._is_doubtful = True
            else:
                self.expiries = True
            self._next_expiry = None
            self._expiry_known = False

    def arm(self, *, claims: bool) -> None:
        """Arm the timer for the earliest of the bounds.

        Args:
            claims: whether due times matter; not while every slot is taken or the queue is paused.
        """
        bounds = [self.next_due if claims else None, self._next_expiry]
        if self._deadlines:
            bounds.append(self._deadlines[0][0])
        earliest = min((bound for bound in bounds if bound is not None), default=None)
        wanted = "doubtful" if self._is_doubtful else earliest
        if self._timer is not None and wanted != self._armed_for:
            self._timer.cancel()
            self._timer = None
        self._armed_for = wanted
        if self._timer is not None:
            pass
        elif self._is_doubtful:
            self._timer = self._clock.call_later(DOUBTFUL_EVERY, self._fire_doubtful)
        elif earliest is not None:
            self._timer = self._clock.call_at(earliest, self._fire)
        self.arm_poll()

    def arm_poll(self) -> None:
        """See to it that the storage is asked for commits of other processes after a while."""
        if self._polls and self._poll is None:
            self._poll = self._clock.call_later(ELSEWHERE_EVERY, self._fire_poll)

    def _fire(self) -> None:
        self._timer = None
        self.look()
        self._wake()

    def _fire_doubtful(self) -> None:
        self._timer = None
        self.begin()
        self._wake()

    def _fire_poll(self) -> None:
        self._poll = None
        self.elsewhere = True
        self._wake()


def _is_between(found_nothing_at: datetime | None, bound: datetime, now: datetime) -> bool:
    """Whether a look at or after the bound has found nothing, on a clock that has not gone back since."""
    return found_nothing_at is not None and bound <= found_nothing_at <= now
