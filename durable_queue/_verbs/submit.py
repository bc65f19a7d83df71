"""The verbs that bring tasks in (S2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Unpack

from durable_queue._core.admission import Draft, admit
from durable_queue._core.plan import BREATHE_EVERY, Decision, GetMaxSequence, Plan
from durable_queue._engine.drafts import (
    Drafting,
    EnqueueOptions,
    Node,
    SharedOptions,
    check_dependencies,
    known_options,
)
from durable_queue._text import AUTOMATIC
from durable_queue._verbs.base import QueueBase
from durable_queue.errors import TaskNotFoundError
from durable_queue.graph import TaskGraph


class Submitting(QueueBase):
    """Enqueue one task, several, a chain or a graph."""

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
                * ``run_at`` or ``delay``: the earliest start, as an aware datetime or from now; a delay is
                  at most 365 days.
                * ``expires_at`` or ``expires_in``: when to cancel it if it has not started (S8.1).

        Returns:
            The task's id, once it is durably stored; that of the task that holds the key if there is one.

        Raises:
            UnknownTaskTypeError: the class is not registered.
            PayloadError: the task cannot be stored as JSON and come back equal.
            TaskNotFoundError: a dependency is not stored.
            TaskAlreadyExistsError: the queue's `id_generator` gave an id that is taken.
            TypeError: an option is unknown or has the wrong type.
            ValueError: an option has an impossible value.
            QueueClosedError: the queue is closed.
            QueueStateError: the call comes from another event loop.
        """
        node = Node(name=_listed(1), task=task, options=_known(options, EnqueueOptions))
        return (await self._enqueue([node]))[node.name]

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
        return await self._enqueue_listed(tasks, lambda _: shared)

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
        later = {
            name: value for name, value in first.items() if name not in ("depends_on", "run_at", "delay")
        }
        return await self._enqueue_listed(
            tasks, lambda index: first if index == 1 else later | {"depends_on": [_listed(index - 1)]}
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

    async def _enqueue_listed(
        self, tasks: Iterable[object], options_of: Callable[[int], dict[str, Any]]
    ) -> list[str]:
        nodes = [
            Node(name=_listed(index), task=task, options=options_of(index))
            for index, task in enumerate(tasks, 1)
        ]
        ids = await self._enqueue(nodes)
        return [ids[node.name] for node in nodes]

    async def _enqueue(self, nodes: Sequence[Node]) -> dict[str, str]:
        self._begin_call()
        now = self._clock.now()
        drafting = Drafting(self._registry, self._id_generator, now)
        drafts: list[Draft] = []
        for node in nodes:
            drafts.append(drafting.draft(node))
            if len(drafts) % BREATHE_EVERY == 0:
                await asyncio.sleep(0)
                self._begin_call()
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
            return (
                yield from admit(
                    plan,
                    drafts,
                    created_at=created_at,
                    updated_at=now,
                    first_sequence=first,
                    ids_may_repeat=self._id_generator is not None,
                )
            )

        return await self._ledger.call(decide)


def _known(options: Any, allowed: Any) -> dict[str, Any]:
    known = known_options(options, allowed)
    if "depends_on" in known:
        # Kept, because an iterator could be walked only once and the options may be for several tasks.
        known["depends_on"] = check_dependencies(known["depends_on"])
        for dependency in known["depends_on"]:
            if dependency.startswith(AUTOMATIC):
                raise TaskNotFoundError(
                    dependency, f"{dependency!r} is no task id: ids never start with {AUTOMATIC!r}"
                )
    return known


def _listed(index: int) -> str:
    """Return the name of the task at a place of a list, counted from 1."""
    return f"{AUTOMATIC}{index}"
