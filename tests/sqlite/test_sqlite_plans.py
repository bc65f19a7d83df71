"""How SQLite carries the statements out: by an index, all of them but the few that are named here."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from durable_queue import Save, TaskStatus
from durable_queue_sqlite import SqliteQueueStorage, _statements
from tests.sqlite.support import T0, task

STATEMENTS = {
    name: value if isinstance(value, str) else value[32]
    for name, value in vars(_statements).items()
    if name.isupper() and not name.startswith("_") and isinstance(value, (str, dict))
}
SCANS = {
    "GET_ALL": {"task"},
    "COUNT_BY_STATUS": {"tasks USING COVERING INDEX by_status"},
}
"""Walks over everything: all of it is asked for, or it is counted by an index alone."""

SMALL = re.compile(
    r"(new|json_each|given|wanted|allowed|ended|dependent|best|CONSTANT ROW|\d+ CONSTANT ROWS|\(subquery-\d+\))\b"
)
"""What comes from the parameters, or has been found by an index one line before."""

SORTED_IN_MEMORY = {
    "GET_ALL",
    "GET_BY_GROUP",
    "GET_DEPENDENTS",
    "GET_JUDGEABLE",
    "GET_READY_OF_TYPES",
    "GET_WAITING_DEPENDENTS",
}
"""Statements that sort what they found, because all of it is the answer or it is a few per type."""


@pytest.fixture(name="file", scope="module")
def _file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("plans") / "queue.db"

    async def fill() -> None:
        async with SqliteQueueStorage(path) as storage:
            await storage.apply(
                [
                    Save(
                        task(
                            f"t{number}",
                            type=f"type{number % 5}",
                            sequence=number,
                            priority=number % 7,
                            status=list(TaskStatus)[number % 7],
                            group=f"g{number % 11}",
                            deduplication_key=f"k{number}",
                            depends_on=[f"t{number - 1}"] if number else [],
                            next_attempt_at=T0 if number % 3 else None,
                            expires_at=T0 if number % 4 else None,
                            held=number % 13 == 0,
                            result=number,
                        )
                    )
                    for number in range(500)
                ]
            )

    asyncio.run(fill())
    return path


@pytest.fixture(name="database")
def _database(file: Path) -> Iterator[sqlite3.Connection]:
    # Nothing that a test does here is committed.
    with closing(sqlite3.connect(file, isolation_level=None)) as database:
        database.execute("BEGIN")
        yield database


def plan(database: sqlite3.Connection, statement: str) -> list[str]:
    """Return the lines of a statement's plan; bound values play no part in it."""
    count = max([int(number) for number in re.findall(r"\?(\d+)", statement)] or [statement.count("?")])
    rows = database.execute("EXPLAIN QUERY PLAN " + statement, [None] * count).fetchall()
    return [row[3] for row in rows]


@pytest.mark.parametrize("name", STATEMENTS)
@pytest.mark.parametrize("analyzed", [False, True])
def test_no_statement_walks_over_a_table(database: sqlite3.Connection, name: str, analyzed: bool) -> None:
    """S3.5: every table is searched by an index, with and without SQLite's statistics."""
    if analyzed:
        database.execute("ANALYZE")
    lines = plan(database, STATEMENTS[name])

    scans = {line.removeprefix("SCAN ") for line in lines if line.startswith("SCAN ")}

    assert {scan for scan in scans if not SMALL.match(scan)} == SCANS.get(name, set())
    assert not any("AUTOMATIC" in line for line in lines)


@pytest.mark.parametrize("name", sorted(STATEMENTS.keys() - SORTED_IN_MEMORY))
def test_a_limited_answer_is_not_sorted(database: sqlite3.Connection, name: str) -> None:
    """S3.5: the index gives the order, so that a limit ends the search."""
    assert not any("TEMP B-TREE FOR ORDER BY" in line for line in plan(database, STATEMENTS[name]))


def test_the_scan_of_a_table_is_noticed(database: sqlite3.Connection) -> None:
    """S3.5: the check above can fail."""
    assert plan(database, "SELECT id FROM tasks WHERE attempts = 3") == ["SCAN tasks"]
    assert not SMALL.match("tasks")
