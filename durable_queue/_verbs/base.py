"""What every verb of the queue rests on: the parts of one queue, and the checks at its door."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, TypedDict, TypeVar, Unpack

import cattrs

from durable_queue._core.plan import Decision, Plan
from durable_queue._engine import neighbours
from durable_queue._engine.arguments import (
    check_count,
    check_delay,
    check_function,
    check_kind,
    check_optional_delay,
)
from durable_queue._engine.broadcast import Broadcast
from durable_queue._engine.faults import Faults
from durable_queue._engine.ledger import Ledger
from durable_queue._engine.lifecycle import Lifecycle, RunState
from durable_queue._engine.registry import Registry
from durable_queue._engine.reports import Reports
from durable_queue._engine.retention import Retention
from durable_queue._engine.waiters import Waiters
from durable_queue._engine.watch import Watch
from durable_queue._engine.worker import SlotWorker
from durable_queue.clock import QueueClock, SystemQueueClock, TimerHandle
from durable_queue.errors import QueueClosedError, QueueStateError
from durable_queue.retry import RetryPolicy
from durable_queue.serialization import make_converter
from durable_queue.storage import QueueStorage

_Handler = TypeVar("_Handler", bound=Callable[..., Any])
_T = TypeVar("_T")


MOST_SLOTS = 1_000_000
"""The most handlers at once."""


class RegisterOptions(TypedDict, total=False):
    """The options of `DurableQueue.register`."""

    type: str | None
    retry_policy: RetryPolicy | None
    retry_if: Callable[[BaseException], bool] | None
    retry_delay: Callable[[BaseException], timedelta | None] | None
    timeout: timedelta | None
    rerun_interrupted: bool


class QueueBase:
    """The parts of a queue and what all verbs share; see `durable_queue.queue.DurableQueue`."""

    def __init__(
        self,
        storage: QueueStorage,
        *,
        clock: QueueClock | None = None,
        max_concurrent_tasks: int = 1,
        storage_retry_delay: timedelta = timedelta(seconds=1),
        random_fraction: Callable[[], float] | None = None,
        id_generator: Callable[[], str] | None = None,
        max_interruptions: int | None = 3,
        converter: cattrs.Converter | None = None,
        stop_grace: timedelta | None = None,
        retention: timedelta | None = None,
    ) -> None:
        if not isinstance(storage, QueueStorage):
            raise TypeError(
                f"storage must be a QueueStorage, not {type(storage).__name__}; "
                "for a file use durable_queue_sqlite.SqliteQueueStorage(path)"
            )
        check_kind(clock, QueueClock, "clock", "a QueueClock")
        check_kind(converter, cattrs.BaseConverter, "converter", "a cattrs converter")
        check_function(random_fraction, "random_fraction")
        check_function(id_generator, "id_generator")
        check_count(max_concurrent_tasks, "max_concurrent_tasks", at_least=1, at_most=MOST_SLOTS)
        if max_interruptions is not None:
            check_count(max_interruptions, "max_interruptions", at_least=0)
        check_delay(storage_retry_delay, "storage_retry_delay")
        self._clock = clock or SystemQueueClock()
        self._storage = storage
        self._id_generator = id_generator
        self._stop_grace = check_optional_delay(stop_grace, "stop_grace")
        self._keep = check_optional_delay(retention, "retention")
        self._retention: Retention | None = None
        self._broadcast = Broadcast(self._clock.now)
        self._watch = Watch()
        self._waiters = Waiters(self._clock)
        self._faults = Faults(self._clock, storage_retry_delay, self._broadcast.emit)
        self._registry = Registry(converter or make_converter(), max_interruptions)
        self._ledger = Ledger(storage, self._clock, self._faults, self._watch, self._publish)
        self._worker = SlotWorker(
            self,
            storage,
            self._clock,
            self._registry,
            self._faults,
            slots=max_concurrent_tasks,
            random_fraction=random_fraction or random.random,
            wake=self._ledger.kick,
            ended=self._attempt_ended,
        )
        self._faults.on_over = self._ledger.kick
        self._ledger.attach(self._worker)
        self._lifecycle = Lifecycle(storage, self._clock, self._ledger, self._worker, self._watch)
        self._reports = Reports(self._ledger, self._worker, self._registry, self._clock)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        self._closing: asyncio.Task[None] | None = None
        self._next_sequence: int | None = None
        self._newest: datetime | None = None

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else self.run_state.value
        return f"<DurableQueue {state}, {len(self._worker.attempts)} running>"

    @property
    def run_state(self) -> RunState:
        """What the queue is doing."""
        return self._lifecycle.state

    @property
    def is_closed(self) -> bool:
        """Whether `close` has ended the queue."""
        return self._is_closed

    @property
    def background_timers(self) -> list[TimerHandle]:
        """The armed timers that stand for no task: for tools that move a clock from one timer to the next."""
        housekeeping = [] if self._retention is None else self._retention.timers
        return [*self._worker.agenda.background_timers, *housekeeping]

    def register(
        self,
        task_class: type,
        handler: Callable[..., Any] | None = None,
        *,
        type: str | None = None,
        retry_policy: RetryPolicy | None = None,
        retry_if: Callable[[BaseException], bool] | None = None,
        retry_delay: Callable[[BaseException], timedelta | None] | None = None,
        timeout: timedelta | None = None,
        rerun_interrupted: bool = False,
    ) -> None:
        """Tell which class makes which type of task, and what runs it.

        Args:
            task_class: an attrs class or a dataclass; its fields are the payload.
            handler: ``async def handler(task, context)``, or a plain function of the same form, which is run in a
                thread. Without one, tasks of the class can only be enqueued here (S13.6).
            type: the stored type name; the ``task_type`` attribute of the class by default. The name of the class is
                never used, because renaming a class must not orphan stored tasks.
            retry_policy: for tasks that are enqueued without one; no retry by default.
            retry_if: whether an error may be retried; by default every error (S5.2).
            retry_delay: how long to wait after an error, instead of the policy's wait; None for that.
            timeout: how long an attempt may take (S5.7).
            rerun_interrupted: whether an interruption by a crash uses up no attempt (S13.1).

        Raises:
            DuplicateTaskTypeError: the class or the type name is registered already.
            QueueClosedError: the queue is closed.
            TypeError: the class is neither an attrs class nor a dataclass, or it has no type name.
        """
        self._refuse_closed()
        self._registry.add(
            task_class,
            handler,
            type_=type,
            retry_policy=retry_policy,
            retry_if=retry_if,
            retry_delay=retry_delay,
            timeout=timeout,
            rerun_interrupted=rerun_interrupted,
        )

    def handler(self, task_class: type, **options: Unpack[RegisterOptions]) -> Callable[[_Handler], _Handler]:
        """Register the decorated function; the options are those of `register`."""

        def decorate(function: _Handler) -> _Handler:
            self.register(task_class, function, **options)
            return function

        return decorate

    async def _change(
        self,
        decide: Callable[[Plan], Decision[_T]],
        *,
        on_written: Callable[[_T], object] | None = None,
    ) -> _T:
        self._begin_call()
        return await self._ledger.call(decide, needs_consumer=True, on_written=on_written)

    def _attempt_ended(self) -> None:
        # In a loop that is being torn down, a step without need would be cut off.
        if self._worker.has_work():
            self._ledger.kick()
        self._watch.notify()
        self._lifecycle.stubborn_ended()

    def _publish(self, plan: Plan) -> None:
        for event in plan.events:
            self._broadcast.emit(event)
        self._waiters.observe(plan)
        neighbours.tell(self._storage, plan, by=self._worker)

    def _begin_call(self) -> None:
        self._refuse_closed()
        self._bind_loop()

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise QueueClosedError("the queue is closed; make a new DurableQueue over the same storage")

    def _bind_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            self._ledger.leave_loop()
        elif self._loop is not loop:
            raise QueueStateError(
                "the queue belongs to another event loop; from another thread use "
                "asyncio.run_coroutine_threadsafe(..., that_loop), or stop it there before using it here"
            )
