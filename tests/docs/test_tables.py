"""The tables and diagrams about statuses and dependencies say what the code does."""

from __future__ import annotations

import re
from itertools import product

import pytest

from durable_queue import DependencyFailurePolicy, TaskStatus
from durable_queue._core.plan import Plan
from durable_queue._core.settlement import Blocked, Fact, Free, end_blocked, judge
from durable_queue._core.transitions import LEGAL_MOVES, MOVES
from tests.core.world import NOW, record
from tests.docs.pages import ROOT, blocks, prose_lines

STATES = ROOT / "docs" / "explanation" / "states.md"
DEPENDENCIES = ROOT / "docs" / "explanation" / "dependencies.md"
KINDS: dict[str, tuple[TaskStatus | None, ...]] = {
    "completed": (TaskStatus.COMPLETED,),
    "active": (TaskStatus.PENDING, TaskStatus.WAITING, TaskStatus.RUNNING, TaskStatus.RETRY_SCHEDULED),
    "not completed": (TaskStatus.FAILED, TaskStatus.CANCELLED, None),
}


def table(page: object, first_heading: str) -> list[list[str]]:
    """The rows of the table whose first column has this heading, cell by cell."""
    lines = iter(prose_lines(page))  # type: ignore[arg-type]  # one of the pages above
    for line in lines:
        if line.startswith(f"| {first_heading} |"):
            next(lines)
            rows = []
            for row in lines:
                if not row.startswith("|"):
                    break
                rows.append([cell.strip() for cell in row.strip("|").split("|")])
            return rows
    raise AssertionError(f"there is no table that begins with {first_heading!r}")


def statuses(cell: str) -> frozenset[TaskStatus]:
    return frozenset(TaskStatus(name) for name in re.findall(r"`(\w+)`", cell))


def test_the_diagram_shows_the_legal_moves_and_no_others() -> None:
    """S4.1, S6.3: each arrow is a legal move and each legal move an arrow."""
    (diagram,) = [block.code for block in blocks(STATES) if block.language == "mermaid"]
    arrows = set(re.findall(r"^ *(\w+) --> (\w+)$", diagram, re.MULTILINE))
    moves = {(before.value, after.value) for before, targets in LEGAL_MOVES.items() for after in targets}
    assert arrows == moves


def test_the_table_of_moves_has_every_move_with_where_it_begins_and_leads() -> None:
    """S4.1, S6.3: for each move, from where and to where, and somebody who makes it."""
    told: dict[str, set[tuple[TaskStatus, TaskStatus]]] = {}
    for before, after, move, who in table(STATES, "from"):
        assert who
        told.setdefault(move.strip("`"), set()).update(product(statuses(before), statuses(after)))
    assert told == {name: set(product(before, after)) for name, (before, after) in MOVES.items()}


def test_every_status_is_explained_as_active_or_terminal() -> None:
    """S1.3: seven statuses, three of them terminal."""
    told = {TaskStatus(name.strip("`")): kind for name, kind, _ in table(STATES, "status")}
    assert told == {status: "terminal" if status.is_terminal else "active" for status in TaskStatus}


ROWS = table(DEPENDENCIES, "one dependency")


def test_the_table_of_verdicts_has_every_pair_once() -> None:
    """S4.3: all combinations of two kinds, in either order."""
    assert sorted(tuple(sorted(row[:2])) for row in ROWS) == sorted(
        {tuple(sorted(pair)) for pair in product(KINDS, repeat=2)}
    )


@pytest.mark.parametrize("column", range(2, 5))
@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(row[:2]).replace(" ", "_"))
def test_each_verdict_of_the_table_is_that_of_the_code(row: list[str], column: int) -> None:
    """S4.2-S4.4: for every status that a kind stands for, in either order."""
    policy = (
        DependencyFailurePolicy.CANCEL,
        DependencyFailurePolicy.FAIL,
        DependencyFailurePolicy.RUN,
    )[column - 2]
    for one, other in product(KINDS[row[0]], KINDS[row[1]]):
        facts = {"a": Fact(one, "a"), "b": Fact(other, "b")}
        for order in ("a", "b"), ("b", "a"):
            assert verdict(policy, facts, order) == row[column]


def verdict(policy: DependencyFailurePolicy, facts: dict[str, Fact], order: tuple[str, str]) -> str:
    """What becomes of a dependent, in the words of the page."""
    task = record("t", *order, on_dependency_failure=policy)
    judged = judge(task, facts)
    if isinstance(judged, Blocked):
        return end_blocked(Plan(NOW), task, judged).status.value
    return {Free.WAIT: "waits", Free.RELEASE: "released"}[judged]


def test_the_columns_are_the_policies() -> None:
    """S4.3: in the order that the test reads them in."""
    (heading,) = [line for line in prose_lines(DEPENDENCIES) if line.startswith("| one dependency")]
    assert re.findall(r"`(\w+)`", heading) == ["cancel", "fail", "run"]
