"""Area: random sequences of calls, compared with the reference storage after every step (C1.9)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from datetime import datetime
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from contract_tests._base import EVERY_STATUS, SECOND, T0, TICK, ContractBase, OpenStorage, make_task
from durable_queue import (
    Delete,
    DependencyFailurePolicy,
    MemoryQueueStorage,
    QueueStorage,
    Save,
    StoredTask,
    TaskAlreadyExistsError,
    TaskNotFoundError,
    TaskStatus,
    Update,
)

T = TypeVar("T")

IDS = ("a", "b", "c", "d", "e", "f")
KEYS = ("k1", "k2")
GROUPS = ("g1", "g2")
TYPES = ("t1", "t2")
INSTANTS = (T0 - SECOND, T0 - TICK, T0, T0 + TICK, T0 + SECOND)
PLACES = (make_task("b", created_at=T0, sequence=1), make_task("cc", created_at=T0 + TICK))


@st.composite
def tasks(draw: st.DrawFn) -> StoredTask:
    """Records from small pools, so that they collide in every way."""
    task_id = draw(st.sampled_from(IDS))
    others = [other for other in IDS if other != task_id]
    times = st.none() | st.sampled_from(INSTANTS)
    return make_task(
        task_id,
        status=draw(st.sampled_from(EVERY_STATUS)),
        type=draw(st.sampled_from(TYPES)),
        payload={"n": draw(st.integers(0, 2))},
        attempts=draw(st.integers(0, 1)),
        created_at=draw(st.sampled_from((T0, T0 + TICK))),
        sequence=draw(st.integers(0, 2)),
        priority=draw(st.integers(-1, 1)),
        next_attempt_at=draw(times),
        expires_at=draw(times),
        deduplication_key=draw(st.none() | st.sampled_from(KEYS)),
        group=draw(st.none() | st.sampled_from(GROUPS)),
        depends_on=tuple(draw(st.lists(st.sampled_from(others), max_size=3))),
        on_dependency_failure=draw(st.sampled_from(DependencyFailurePolicy)),
        held=draw(st.booleans()),
    )


changes = st.one_of(tasks().map(Save), tasks().map(Update), st.sampled_from(IDS).map(Delete))


class StorageWalk(RuleBasedStateMachine):
    """Does the same to an adapter and to the reference, and asks both the same questions."""

    def __init__(self, open_storage: OpenStorage, *, durable: bool, answers_expiry: bool) -> None:
        super().__init__()
        self.durable = durable
        self.answers_expiry = answers_expiry
        self.now = T0
        self.model: QueueStorage = MemoryQueueStorage()
        self._open_storage = open_storage
        # A loop of its own, which leaves the one that the test runner may have set alone.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._open()
        self._run(self._empty())

    def teardown(self) -> None:
        """Close the adapter; Hypothesis calls it at the end of each walk."""
        try:
            self._close()
        finally:
            self._runner.close()

    @rule(task=tasks())
    def save(self, task: StoredTask) -> None:
        """Save, whether or not the id is known."""
        self._compare_outcomes(self.storage.save(task), self.model.save(task))

    @rule(task=tasks())
    def update(self, task: StoredTask) -> None:
        """Update, whether or not the id is known."""
        self._compare_outcomes(self.storage.update(task), self.model.update(task))

    @rule(task_id=st.sampled_from(IDS))
    def delete(self, task_id: str) -> None:
        """Delete, whether or not the id is known."""
        self._compare_outcomes(self.storage.delete(task_id), self.model.delete(task_id))

    @rule(list_of_changes=st.lists(changes, max_size=5))
    def apply(self, list_of_changes: list[Save | Update | Delete]) -> None:
        """Apply a list, whether or not it can succeed."""
        expected = self._run(_outcome(self.model.apply(list_of_changes)))
        found = self._run(_outcome(self.storage.apply(list_of_changes)))
        assert found == expected
        if found is not None and not self.storage.atomic:
            self._run(self._copy())

    @rule(now=st.sampled_from(INSTANTS))
    def set_time(self, now: datetime) -> None:
        """Move the time, in either direction."""
        self.now = now

    @precondition(lambda self: self.durable)
    @rule()
    def reopen(self) -> None:
        """Close the store and open it again."""
        self._close()
        self._open()

    @invariant()
    def answers_agree(self) -> None:
        """Compare every answer."""
        found = self._run(_ask(self.storage, self.now))
        expected = self._run(_ask(self.model, self.now))
        for question, answer in expected.items():
            assert (question, found[question]) == (question, answer)
        self._run(self._compare_allowances())

    async def _compare_allowances(self) -> None:
        """Compare the answers that an adapter may give in more than one way."""
        for limit in (1, 2, 9):
            for types in (None, ["t1"], ["t2", "t1"]):
                found = await self.storage.get_ready(self.now, limit, types=types)
                expected = await self.model.get_ready(self.now, limit, types=types)
                assert found == expected[: len(found)]
                assert bool(found) == bool(expected)
            if self.storage.reads_ahead:
                await self._compare_heads(limit)
            late = await self.storage.get_expired(self.now, limit)
            all_late = await self.model.get_expired(self.now, 100)
            assert all(task in all_late for task in late)
            if self.answers_expiry:
                times = [task.expires_at for task in all_late[:limit]]
                assert [task.expires_at for task in late] == times
                assert await self.storage.get_next_expiry_at() == await self.model.get_next_expiry_at()
        for finished in (("a",), ("b", "c"), IDS):
            judgeable = await self.storage.get_judgeable(finished)
            dependents = await self.model.get_waiting_dependents_of(finished)
            assert [task for task in dependents if task in judgeable] == judgeable
            assert all(task in judgeable for task in await self.model.get_judgeable(finished))

    async def _compare_heads(self, limit: int) -> None:
        """Compare the head of the ready order with what the records say, without any index."""
        head = await self.storage.read_ahead(self.now, limit)
        records = await self.model.get_all()
        ready = await self.model.get_ready(self.now, len(IDS))
        times = [task.next_attempt_at for task in records if can_be_claimed(task)]
        assert head.tasks == ready[: len(head.tasks)]
        assert len(head.tasks) <= limit
        assert bool(head.tasks) == bool(ready)
        assert not head.is_all or head.tasks == ready
        assert head.until == min((at for at in times if at is not None and at > self.now), default=None)
        parents = {dependency for task in records for dependency in task.depends_on}
        assert parents.intersection(task.id for task in head.tasks) <= set(head.with_dependents)

    def _compare_outcomes(self, found: Awaitable[None], expected: Awaitable[None]) -> None:
        assert self._run(_outcome(found)) == self._run(_outcome(expected))

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(coroutine)

    def _open(self) -> None:
        self._context = self._open_storage()
        self.storage = self._run(self._context.__aenter__())

    def _close(self) -> None:
        self._run(self._context.__aexit__(None, None, None))

    async def _empty(self) -> None:
        for task in await self.storage.get_all():
            await self.storage.delete(task.id)

    async def _copy(self) -> None:
        # How far a list got that failed is not promised where it is not atomic.
        self.model = MemoryQueueStorage()
        await self.model.apply([Save(task) for task in await self.storage.get_all()])


def can_be_claimed(task: StoredTask) -> bool:
    """Whether a record is ready as soon as its time has come."""
    return task.status in (TaskStatus.PENDING, TaskStatus.RETRY_SCHEDULED) and not task.held


async def _outcome(call: Awaitable[None]) -> tuple[type[Exception], str] | None:
    try:
        await call
    except (TaskAlreadyExistsError, TaskNotFoundError) as error:
        return type(error), error.task_id
    return None


async def _ask(storage: QueueStorage, now: datetime) -> dict[str, Any]:
    """Ask, all at the same time, the questions that have one right answer."""
    questions: dict[str, Awaitable[Any]] = {
        "all": storage.get_all(),
        "pending": storage.get_pending(),
        "next ready": storage.get_next_ready(now),
        "next wake": storage.get_next_wake_at(),
        "max sequence": storage.get_max_sequence(),
        "counts": storage.count_by_status(),
        "held": storage.count_held(),
        "many": storage.get_many([*IDS, "nobody"]),
    }
    for status in EVERY_STATUS:
        questions[f"status {status.value}"] = storage.get_by_status(status)
        questions[f"status {status.value}, limit"] = storage.get_by_status(status, limit=2)
        for number, place in enumerate(PLACES):
            questions[f"status {status.value}, after {number}"] = storage.get_by_status(
                status, limit=3, after=place
            )
        questions[f"status {status.value} in g1"] = storage.get_by_group("g1", status=status)
    for name in GROUPS:
        questions[f"group {name}"] = storage.get_by_group(name)
    for key in KEYS:
        questions[f"key {key}"] = storage.find_active_by_deduplication_key(key)
    for task_id in IDS:
        questions[f"record {task_id}"] = storage.get(task_id)
        questions[f"waiting for {task_id}"] = storage.get_waiting_dependents(task_id)
    questions["dependents of a"] = storage.get_dependents("a")
    questions["waiting for any of a, b"] = storage.get_waiting_dependents_of(["a", "b"])
    answers = await asyncio.gather(*questions.values())
    return dict(zip(questions, answers, strict=True))


class WalkArea(ContractBase):
    """See the module."""

    def test_random_walk(self, open_storage: OpenStorage) -> None:
        """C1.9: after each step of a random sequence of calls every query answers as the reference does."""
        durable, answers_expiry = self.durable, self.answers_expiry

        class Walk(StorageWalk):
            def __init__(self) -> None:
                super().__init__(open_storage, durable=durable, answers_expiry=answers_expiry)

        run_state_machine_as_test(
            Walk,
            settings=settings(
                max_examples=self.walk_examples,
                stateful_step_count=self.walk_steps,
                deadline=None,
                database=None,
                derandomize=True,
                report_multiple_bugs=False,
                phases=(Phase.explicit, Phase.generate, Phase.shrink),
                suppress_health_check=list(HealthCheck),
            ),
        )
