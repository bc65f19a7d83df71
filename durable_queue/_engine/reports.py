"""Reports of outside work about tasks that are handed off, early ones included (S9.2, S13.10)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from durable_queue._core.handoff import find_reported
from durable_queue._core.plan import Decision, Plan
from durable_queue._core.settlement import settle
from durable_queue._core.work import Ended, conclude_all
from durable_queue._engine.attempt import Attempt, failed_outcome
from durable_queue._engine.ledger import Ledger
from durable_queue._engine.registry import Registry
from durable_queue._engine.worker import SlotWorker
from durable_queue._text import check_name
from durable_queue.clock import QueueClock
from durable_queue.errors import HandOffError
from durable_queue.outcomes import Completed, Outcome
from durable_queue.serialization import encode_result
from durable_queue.tasks import StoredTask


class Reports:
    """Turns a report into the outcome of the task that it is about."""

    def __init__(self, ledger: Ledger, worker: SlotWorker, registry: Registry, clock: QueueClock) -> None:
        self._ledger = ledger
        self._worker = worker
        self._registry = registry
        self._clock = clock

    async def complete(self, task_id: str, reference: str, result: object, *, inside: bool) -> bool:
        """Report a completion; see `DurableQueue.complete_hand_off`."""
        result_text = encode_result(self._registry.converter, result)
        return await self._report(task_id, reference, lambda _: Completed(result_text=result_text), inside)

    async def fail(self, task_id: str, reference: str, error: BaseException | str, *, inside: bool) -> bool:
        """Report a failure; see `DurableQueue.fail_hand_off`."""
        if isinstance(error, str):
            cause: BaseException = HandOffError(error)
        elif isinstance(error, BaseException):
            cause = error
        else:
            raise TypeError(f"error must be an exception or a text, not {type(error).__name__}")
        return await self._report(
            task_id,
            reference,
            lambda task: failed_outcome(task, self._registry.named(task.type), cause, at=self._clock.now()),
            inside,
        )

    async def _report(
        self, task_id: str, reference: str, outcome_of: Callable[[StoredTask], Outcome], inside: bool
    ) -> bool:
        check_name(task_id, "task_id")
        check_name(reference, "reference")
        while True:
            attempt = self._worker.attempts.get(task_id)
            if attempt is not None and attempt.is_running and attempt.hand_off is None:
                raise HandOffError(f"task {task_id!r} is running and not handed off")
            if attempt is not None and attempt.awaits_report:
                return await self._keep(attempt, reference, outcome_of, inside)
            try:
                return await self._ledger.call(
                    lambda plan: self._decide(plan, task_id, reference, outcome_of), needs_consumer=True
                )
            except HandOffError:
                if attempt is None or not self._worker.holds(attempt) or not attempt.hands_off:
                    raise
                # The write of its hand-off was under way when the report came, and has failed: it is early after all,
                # or comes behind the next try.

    async def _keep(
        self, attempt: Attempt, reference: str, outcome_of: Callable[[StoredTask], Outcome], inside: bool
    ) -> bool:
        """Keep a report until the handler has returned and its outcome is stored (S13.10)."""
        if attempt.hand_off is None or attempt.hand_off[0] != reference:
            raise HandOffError(f"task {attempt.task.id!r} is handed off under another reference")
        if attempt.early_report is not None:
            return False
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        attempt.early_report = (lambda: outcome_of(attempt.task), answer)
        if inside:
            # The handler cannot wait for its own return; should it raise after all, nobody has to be told.
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())
            return True
        return await answer

    def _decide(
        self, plan: Plan, task_id: str, reference: str, outcome_of: Callable[[StoredTask], Outcome]
    ) -> Decision[bool]:
        task = yield from find_reported(task_id, reference)
        if task is None:
            return False
        end = Ended(
            task=task,
            outcome=outcome_of(task),
            at=plan.now,
            fraction=self._worker.random_fraction(),
        )
        yield from settle(plan, conclude_all(plan, [end]))
        return True
