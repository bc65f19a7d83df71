"""`DurableQueue`: the public verbs. Each checks its arguments and hands a decision to the ledger."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, TypeVar, Unpack

import cattrs

from durable_queue._core import cancellation, reopening
from durable_queue._core.admission import admit
from durable_queue._core.plan import Decision, GetGroup, GetMaxSequence, GetPage, Plan
from durable_queue._core.removal import delete, purge_batch
from durable_queue._engine.broadcast import Broadcast, Subscription
from durable_queue._engine.context import current_task_id, refuse_inside_handler
from durable_queue._engine.drafts import (
    EnqueueOptions,
    Node,
    SharedOptions,
    check_delay,
    make_draft,
    new_id,
)
from durable_queue._engine.faults import Faults
from durable_queue._engine.ledger import Ledger
from durable_queue._engine.lifecycle import DrainResult, Lifecycle, RunState
from durable_queue._engine.listing import list_tasks
from durable_queue._engine.registry import Registry
from durable_queue._engine.reports import Reports
from durable_queue._engine.waiters import Waiters
from durable_queue._engine.watch import Watch
from durable_queue._engine.worker import SlotWorker
from durable_queue._text import check_name
from durable_queue.clock import QueueClock, SystemQueueClock, check_instant
from durable_queue.errors import QueueClosedError, QueueStateError, TaskNotFoundError
from durable_queue.events import QueueEvent
from durable_queue.graph import TaskGraph
from durable_queue.retry import RetryPolicy
from durable_queue.serialization import make_converter
from durable_queue.storage import QueueStorage, check_limit
from durable_queue.tasks import StoredTask, TaskStatus

_Handler = TypeVar("_Handler", bound=Callable[..., Any])


class DurableQueue:
    """A persistent queue of tasks with dependencies, consumed in the event loop of one process.

    It belongs to the event loop that used it first, until it is stopped (S2.8); a call from another loop is refused
    and another thread uses `asyncio.run_coroutine_threadsafe`. ``async with`` starts it and closes it.

    Args:
        storage: where the tasks are; it stays the caller's, who closes it after the queue.
        clock: the time to live by; the computer's by default.
        max_concurrent_tasks: how many handlers run at once.
        storage_retry_delay: how long the worker waits before it tries a failed storage again (S10.1).
        random_fraction: gives floats in [0, 1) for jitter.
        id_generator: gives ids for new tasks; they must never repeat. Random ones by default.
        max_interruptions: after how many interruptions by a crash a task fails whatever its policy; None for no bound.
        converter: the cattrs converter for payloads and results; `durable_queue.serialization.make_converter` makes
            one to add to.
        stop_grace: the `grace` of the stop at the end of ``async with``.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument has an impossible value.
    """

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
    ) -> None:
        if not isinstance(storage, QueueStorage):
            raise TypeError(f"storage must be a QueueStorage, not {type(storage).__name__}")
        _check_count(max_concurrent_tasks, "max_concurrent_tasks", at_least=1)
        if max_interruptions is not None:
            _check_count(max_interruptions, "max_interruptions", at_least=0)
        check_delay(storage_retry_delay, "storage_retry_delay")
        self._clock = clock or SystemQueueClock()
        self._storage = storage
        self._id_generator = id_generator or new_id
        self._stop_grace = _check_optional_delay(stop_grace, "stop_grace")
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
        """Whether `close` has been called."""
        return self._is_closed

    def register(
        self,
        task_class: type,
        handler: Callable[..., Any] | None = None,
        *,
        type: str | None = None,  # noqa: A002 - the name is part of the interface
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

    def handler(self, task_class: type, **options: Any) -> Callable[[_Handler], _Handler]:
        """Register the decorated function; the options are those of `register`."""

        def decorate(function: _Handler) -> _Handler:
            self.register(task_class, function, **options)
            return function

        return decorate

    async def enqueue(self, task: object, **options: Unpack[EnqueueOptions]) -> str:
        """Store a task; it starts no earlier than `start`, its time, and the end of its dependencies.

        Args:
            task: an instance of a registered class.
            options: any of

                * ``retry_policy``: the type's by default.
                * ``deduplication_key``: while a task with this key is active its id is returned and nothing is
                  stored (S2.3).
                * ``idempotency_key``: handed to the handler; the task's id by default.
                * ``priority``: higher starts first; a signed 32-bit integer, 0 by default.
                * ``depends_on``: ids of tasks that must end first.
                * ``on_dependency_failure``: what to do when one of them does not complete; cancel by default (S4.3).
                * ``group``: a name to list and cancel by.
                * ``run_at`` or ``delay``: the earliest start, as an aware datetime or from now; at most 365 days from now
                  as a delay.
                * ``expires_at`` or ``expires_in``: when to cancel it if it has not started (S8.1).

        Returns:
            The task's id, once it is durably stored; that of the task that holds the key if there is one.

        Raises:
            UnknownTaskTypeError: the class is not registered.
            PayloadError: the task cannot be stored as JSON and come back equal.
            TaskNotFoundError: a dependency is not stored.
            TypeError: an option is unknown or has the wrong type.
            ValueError: an option has an impossible value.
            QueueClosedError: the queue is closed.
            QueueStateError: the call comes from another event loop.
        """
        return (await self._enqueue([Node(name="#1", task=task, options=_known(options, EnqueueOptions))]))["#1"]

    async def enqueue_all(self, tasks: Iterable[object], **options: Unpack[SharedOptions]) -> list[str]:
        """Store several independent tasks with the same options, all or none (S2.6).

        Args:
            tasks: instances of registered classes.
            options: those of `enqueue` but the keys.

        Returns:
            Their ids, in order.

        Raises:
            Exception: as for `enqueue`; nothing is stored then.
        """
        shared = _known(options, SharedOptions)
        return await self._enqueue_listed(tasks, lambda index: shared)

    async def enqueue_chain(self, tasks: Iterable[object], **options: Unpack[SharedOptions]) -> list[str]:
        """Store several tasks of which each depends on the one before, all or none (S2.6).

        Args:
            tasks: instances of registered classes, the first to run first.
            options: those of `enqueue` but the keys; `depends_on`, `run_at` and `delay` are for the first, the others
                for all (S13.19).

        Returns:
            Their ids, in order.

        Raises:
            Exception: as for `enqueue`; nothing is stored then.
        """
        first = _known(options, SharedOptions)
        later = {name: value for name, value in first.items() if name not in ("depends_on", "run_at", "delay")}
        return await self._enqueue_listed(
            tasks, lambda index: first if index == 1 else later | {"depends_on": [f"#{index - 1}"]}
        )

    async def enqueue_graph(self, graph: TaskGraph) -> dict[str, str]:
        """Store a graph of tasks, all or none (S2.6).

        Returns:
            The id of each node by its name; for a node that was folded onto an active task with the same key, that
            task's id.

        Raises:
            DependencyCycleError: nodes depend on each other in a ring; `cycle` names them.
            Exception: as for `enqueue`; nothing is stored then.
        """
        if not isinstance(graph, TaskGraph):
            raise TypeError(f"enqueue_graph takes a TaskGraph, not {graph.__class__.__name__}")
        return await self._enqueue(graph.nodes)

    async def start(self, *, paused: bool = False) -> None:
        """Recover what was interrupted, then run tasks (S7.1).

        Args:
            paused: recover and wait for `resume`.

        Raises:
            QueueStateError: the queue is not idle.
            QueueInUseError: another live queue consumes this storage.
            Exception: what the storage raised; the queue stays idle and can be started again.
        """
        self._begin_call()
        await self._lifecycle.start(paused=paused)

    async def pause(self) -> None:
        """Start nothing more; return once no start can follow. Running handlers go on, expiry too."""
        self._begin_call()
        await self._lifecycle.pause()

    async def resume(self) -> None:
        """Go on after `pause`."""
        self._begin_call()
        await self._lifecycle.resume()

    async def stop(self, *, grace: timedelta | None = None) -> list[str]:
        """Wait for running handlers and return to idle; in any state, any number of times (S7.5).

        Args:
            grace: how long to wait before handlers are cancelled and their tasks put back, without counting the
                attempt; None waits as long as they take. A second stop may shorten it.

        Returns:
            The ids of tasks that were interrupted; those whose handler would not end or whose record could not be
            written are recovered at the next start.

        Raises:
            QueueStateError: called from inside a handler of this queue.
        """
        refuse_inside_handler(self, "stop")
        _check_optional_delay(grace, "grace")
        if self.run_state is RunState.IDLE and self._lifecycle.is_quiet:
            self._loop = None
            return []
        self._bind_loop()
        interrupted = await self._lifecycle.stop(grace)
        if self._lifecycle.is_quiet:
            self._loop = None
        return interrupted

    async def close(self, *, grace: timedelta | None = None) -> None:
        """Stop, then end the event streams; the storage stays open (S7.6).

        Raises:
            QueueStateError: called from inside a handler of this queue.
        """
        refuse_inside_handler(self, "close")
        self._is_closed = True
        try:
            await self.stop(grace=grace)
        finally:
            self._broadcast.close()
            self._waiters.close()

    async def drain(
        self, *, within: timedelta = timedelta(0), timeout: timedelta | None = None
    ) -> DrainResult:
        """Wait until nothing runs in a slot and nothing is or becomes ready within a time (S7.8).

        Args:
            within: how far ahead to look for tasks that become ready.
            timeout: how long to wait at most; None for as long as it takes.

        Returns:
            What remains: later, waiting, handed-off and held tasks.

        Raises:
            TimeoutError: `timeout` passed first.
            QueueStateError: the queue is not running, was paused or stopped meanwhile, or the call comes from inside
                a handler of this queue.
        """
        refuse_inside_handler(self, "drain")
        check_delay(within, "within")
        _check_optional_delay(timeout, "timeout")
        self._begin_call()
        return await self._lifecycle.drain(within, timeout)

    async def wait(self, task_id: str, *, timeout: timedelta | None = None) -> StoredTask:
        """Wait until a task is terminal.

        Args:
            task_id: which.
            timeout: how long at most; None for as long as it takes.

        Returns:
            Its record as of the step that ended it.

        Raises:
            TaskNotFoundError: the id is not stored, or was deleted meanwhile.
            TimeoutError: `timeout` passed first.
            QueueStateError: nobody runs tasks here, so that it might wait for ever, or the call comes from inside a
                handler of this queue.
            QueueClosedError: the queue was closed meanwhile.
        """
        refuse_inside_handler(self, "wait")
        _check_optional_delay(timeout, "timeout")
        self._begin_call()
        return await self._waiters.wait(
            task_id,
            timeout,
            read=self._storage.get,
            is_consumer=lambda: self._lifecycle.is_consumer,
        )

    async def cancel(self, task_id: str, *, force: bool = False) -> None:
        """Cancel a task that has not started, or ask a running one to stop (S6.1); a terminal one is left alone.

        Args:
            task_id: which.
            force: whether to cancel the coroutine of a running handler too.

        Raises:
            TaskNotFoundError: the id is not stored.
            QueueInUseError: the queue is idle and another one consumes the storage.
        """
        check_name(task_id, "task_id")
        await self._change(
            lambda plan: cancellation.cancel(plan, task_id),
            on_written=lambda running: self._tell_running(running, force=force),
        )

    async def cancel_group(self, group: str) -> int:
        """Cancel every active member of a group; dependents outside follow their policy (S6.2).

        Returns:
            How many members were active.

        Raises:
            QueueInUseError: the queue is idle and another one consumes the storage.
        """
        check_name(group, "group")
        count, _ = await self._change(
            lambda plan: cancellation.cancel_group(plan, group),
            on_written=lambda answer: self._tell_running(answer[1], force=False),
        )
        return count

    async def retry(
        self, task_id: str, *, retry_policy: RetryPolicy | None = None, dependents: bool = False
    ) -> str:
        """Give a failed or cancelled task a fresh start under the same id (S6.3).

        Args:
            task_id: which.
            retry_policy: a new policy; the task's own by default.
            dependents: whether to reopen the dependents too that were ended because of it, at any depth.

        Returns:
            The id.

        Raises:
            TaskNotFoundError: the id is not stored.
            TaskStateError: the task is neither failed nor cancelled, an active task holds its key, or a dependency
                did not complete; nothing has changed then.
            QueueInUseError: the queue is idle and another one consumes the storage.
        """
        check_name(task_id, "task_id")
        return await self._change(
            lambda plan: reopening.reopen(plan, task_id, retry_policy=retry_policy, dependents=dependents)
        )

    async def delete(self, task_id: str) -> None:
        """Delete a terminal task that no waiting task depends on (S6.4).

        Raises:
            TaskNotFoundError: the id is not stored.
            TaskStateError: the task is active or needed.
            QueueInUseError: the queue is idle and another one consumes the storage.
        """
        check_name(task_id, "task_id")
        await self._change(lambda plan: delete(plan, task_id))

    async def purge(
        self,
        *,
        statuses: Collection[TaskStatus] = frozenset({TaskStatus.COMPLETED}),
        older_than: timedelta | datetime | None = None,
    ) -> int:
        """Delete terminal tasks that no active task depends on, in bounded batches (S6.4).

        Args:
            statuses: which terminal statuses.
            older_than: only tasks that ended so long ago, or before that instant.

        Returns:
            How many were deleted.

        Raises:
            ValueError: a status is not terminal.
            QueueInUseError: the queue is idle and another one consumes the storage.
        """
        not_after = None
        if isinstance(older_than, datetime):
            not_after = check_instant(older_than, "older_than")
        elif older_than is not None:
            not_after = self._clock.now() - check_delay(older_than, "older_than")
        for status in statuses:
            if not isinstance(status, TaskStatus) or not status.is_terminal:
                raise ValueError("statuses must be terminal ones: completed, failed, cancelled")
        total = 0
        for status in statuses:
            after: StoredTask | None = None
            while True:

                def decide(
                    plan: Plan, status: TaskStatus = status, after: StoredTask | None = after
                ) -> Decision[tuple[int, StoredTask | None]]:
                    return purge_batch(plan, status, not_after=not_after, after=after)

                count, after = await self._change(decide)
                total += count
                if after is None:
                    break
        return total

    async def get_task(self, task_id: str) -> StoredTask | None:
        """Return a task's record, or None.

        Raises:
            CorruptRecordError: the record cannot be read.
        """
        check_name(task_id, "task_id")
        self._bind_loop()
        return await self._storage.get(task_id)

    async def get_tasks(
        self,
        *,
        status: TaskStatus | None = None,
        group: str | None = None,
        limit: int | None = None,
        after: StoredTask | None = None,
    ) -> list[StoredTask]:
        """Return tasks in order: oldest first.

        Args:
            status: only this one.
            group: only this group.
            limit: at most so many.
            after: only what comes later in the order than this record.

        Raises:
            CorruptRecordError: a record among them cannot be read.
            ValueError: `limit` is below 1.
        """
        check_limit(limit)
        if group is not None:
            check_name(group, "group")
        self._bind_loop()
        return await self._ledger.exclusive(lambda: self._list(status, group, limit, after))

    async def counts(self) -> dict[TaskStatus, int]:
        """Return how many tasks there are of each status; every status is a key."""
        self._bind_loop()
        return await self._storage.count_by_status()

    async def complete_hand_off(self, task_id: str, *, reference: str, result: object = None) -> bool:
        """Report that outside work has completed a handed-off task (S9.2).

        Args:
            task_id: which task.
            reference: the reference that it was handed off under.
            result: stored as the task's result.

        Returns:
            True, once it is stored; False when this hand-off has ended already, and nothing has changed.

        Raises:
            TaskNotFoundError: the id is not stored.
            HandOffError: the task is not handed off, or under another reference.
            PayloadError: the result cannot be stored as JSON.
            QueueInUseError: the queue is idle and another one consumes the storage.
        """
        self._begin_call()
        return await self._reports.complete(
            task_id, reference, result, inside=current_task_id(self) == task_id
        )

    async def fail_hand_off(self, task_id: str, error: BaseException | str, *, reference: str) -> bool:
        """Report that outside work has failed; retried by the task's rules (S9.2).

        Args:
            task_id: which task.
            error: an exception, or a text, which `retry_if` sees as a HandOffError.
            reference: the reference that it was handed off under.

        Returns:
            True, once it is stored; False when this hand-off has ended already, and nothing has changed.

        Raises:
            TaskNotFoundError: the id is not stored.
            HandOffError: the task is not handed off, or under another reference.
            QueueInUseError: the queue is idle and another one consumes the storage.
        """
        self._begin_call()
        return await self._reports.fail(task_id, reference, error, inside=current_task_id(self) == task_id)

    async def hand_offs(self) -> list[StoredTask]:
        """Return the tasks that are handed off and not reported yet, oldest first (S9.4)."""
        running = await self.get_tasks(status=TaskStatus.RUNNING)
        return [task for task in running if task.hand_off_reference is not None]

    def subscribe(self, *event_types: type[QueueEvent], buffer: int = 1024) -> Subscription:
        """Listen to what happens from now on (S11.1).

        Args:
            event_types: only these classes and their subclasses; all events without any.
            buffer: how many events may wait for the subscriber before the oldest are dropped and counted.

        Returns:
            A context manager and asynchronous iterator of events.
        """
        return self._broadcast.subscribe(event_types, buffer)

    async def __aenter__(self) -> DurableQueue:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(grace=self._stop_grace)

    async def _enqueue_listed(
        self, tasks: Iterable[object], options_of: Callable[[int], dict[str, Any]]
    ) -> list[str]:
        nodes = [
            Node(name=f"#{index}", task=task, options=options_of(index)) for index, task in enumerate(tasks, 1)
        ]
        ids = await self._enqueue(nodes)
        return [ids[node.name] for node in nodes]

    async def _enqueue(self, nodes: Sequence[Node]) -> dict[str, str]:
        self._begin_call()
        now = self._clock.now()
        drafts = [
            make_draft(node, registry=self._registry, id_generator=self._id_generator, now=now)
            for node in nodes
        ]
        if not drafts:
            return {}
        # Later work must not overtake earlier work when the clock is set back (S1.9).
        self._newest = created_at = now if self._newest is None else max(now, self._newest)
        first: int | None = None

        def decide(plan: Plan) -> Decision[dict[str, str]]:
            nonlocal first
            if first is None:
                if self._next_sequence is None:
                    self._next_sequence = (yield GetMaxSequence()) + 1
                # Kept when the call is decided again, so that the same record is written again (S13.3).
                first = self._next_sequence
                self._next_sequence += len(drafts)
            return (yield from admit(plan, drafts, created_at=created_at, first_sequence=first))

        return await self._ledger.call(decide)

    async def _change(
        self,
        decide: Callable[[Plan], Decision[Any]],
        *,
        on_written: Callable[[Any], object] | None = None,
    ) -> Any:
        self._begin_call()
        return await self._ledger.call(decide, needs_consumer=True, on_written=on_written)

    async def _list(
        self, status: TaskStatus | None, group: str | None, limit: int | None, after: StoredTask | None
    ) -> list[StoredTask]:
        # What worker queries have met before is reported, and is no error of this list.
        await self._worker.report_unreadable()
        tasks = await list_tasks(self._storage, status=status, group=group, limit=limit, after=after)
        for error in await self._worker.report_unreadable():
            raise error
        return tasks

    def _tell_running(self, running: Sequence[str], *, force: bool) -> None:
        for task_id in running:
            attempt = self._worker.attempts.get(task_id)
            if attempt is not None:
                attempt.request_cancellation(force=force)

    def _attempt_ended(self) -> None:
        self._ledger.kick()
        self._watch.notify()
        self._lifecycle.stubborn_ended()

    def _publish(self, plan: Plan) -> None:
        for event in plan.events:
            self._broadcast.emit(event)
        self._waiters.observe(plan)

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
        elif self._loop is not loop:
            raise QueueStateError(
                "the queue belongs to another event loop; from another thread use "
                "asyncio.run_coroutine_threadsafe(..., that_loop), or stop it there before using it here"
            )


def _check_count(value: object, what: str, *, at_least: int) -> None:
    if type(value) is not int:
        raise TypeError(f"{what} must be an int, not {type(value).__name__}")
    if value < at_least:
        raise ValueError(f"{what} must be at least {at_least}, not {value}")


def _check_optional_delay(value: timedelta | None, what: str) -> timedelta | None:
    return None if value is None else check_delay(value, what)


def _known(options: Any, allowed: Any) -> dict[str, Any]:
    unknown = set(options) - allowed.__annotations__.keys()
    if unknown:
        raise TypeError(f"unexpected option {min(unknown)!r}; known are {', '.join(sorted(allowed.__annotations__))}")
    for dependency in options.get("depends_on", ()):
        if isinstance(dependency, str) and dependency.startswith("#"):
            raise TaskNotFoundError(dependency, f"{dependency!r} is no task id: ids never start with '#'")
    return dict(options)
