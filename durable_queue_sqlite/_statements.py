"""Every SQL statement of the adapter, by name.

Lists travel as one JSON parameter (``json_each(?1)``), never as one variable per row, so that no limit of a SQLite
build on variables is met. Rows are written a batch per statement: the connection's thread must win the interpreter
back after every step of a statement, and an event loop that is hard at work makes each of those wins slow.
``INDEXED BY`` pins the index that a worker query relies on: SQLite then refuses to prepare
the statement without it, where a guess of the planner would only be slow once a million tasks are stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

BATCH_SIZES: Final = (32, 16, 8, 4, 2, 1)
"""How many rows one statement writes; with 20 columns that is within the 999 variables that any build takes."""

_COLUMNS: Final = """
SELECT task."row", task.id, task.type, task.status, task.stage, task.rank, task.created_at, task.sequence,
    task.updated_at, task.attempts, task.next_attempt_at, task.expires_at, task.held, task.deduplication_key,
    task.group_name, task.on_dependency_failure, task.depends_on, task.retry_policy, task.details,
    payload.text, result.text
"""

_BODIES: Final = """
LEFT JOIN payloads AS payload ON payload."row" = task."row"
LEFT JOIN results AS result ON result."row" = task."row"
"""


def _records(source: str, rest: str = "", *, first: str = "", more: str = "") -> str:
    """Return a statement that reads whole records, and `more`, from a source that has `task` in it."""
    return f"{first}{_COLUMNS}{more}{source}{_BODIES}{rest}"


def _for_rows(width: int, before: str, after: str = "") -> Mapping[int, str]:
    """Return a statement about many rows of values, for each of the `BATCH_SIZES`."""
    row = f"({', '.join('?' * width)})"
    return {size: f"{before} {', '.join([row] * size)} {after}" for size in BATCH_SIZES}


BEGIN_WRITE: Final = "BEGIN IMMEDIATE"
BEGIN_READ: Final = "BEGIN"
COMMIT: Final = "COMMIT"
ROLLBACK: Final = "ROLLBACK"

GET: Final = _records("FROM tasks AS task", "WHERE task.id = ?1")

GET_MANY: Final = _records("FROM json_each(?1) AS wanted CROSS JOIN tasks AS task ON task.id = wanted.value")

GET_ALL: Final = _records(
    "FROM tasks AS task NOT INDEXED",
    "ORDER BY task.created_at, task.sequence, task.id",
)

GET_BY_STATUS: Final = _records(
    "FROM tasks AS task INDEXED BY by_status",
    """
    WHERE task.status = ?1 AND (task.created_at, task.sequence, task.id) > (?2, ?3, ?4)
    ORDER BY task.created_at, task.sequence, task.id
    LIMIT ?5
    """,
)

GET_BY_GROUP: Final = _records(
    "FROM tasks AS task INDEXED BY by_group",
    """
    WHERE task.group_name = ?1
    ORDER BY task.created_at, task.sequence, task.id
    """,
)

GET_BY_GROUP_AND_STATUS: Final = _records(
    "FROM tasks AS task INDEXED BY by_group",
    """
    WHERE task.group_name = ?1 AND task.status = ?2
    ORDER BY task.created_at, task.sequence, task.id
    """,
)

GET_ACTIVE_BY_KEY: Final = _records(
    "FROM tasks AS task INDEXED BY by_active_key",
    """
    WHERE task.deduplication_key = ?1 AND task.status < 4
    ORDER BY task.created_at, task.sequence, task.id
    """,
)

GET_READY: Final = _records(
    "FROM tasks AS task INDEXED BY by_readiness",
    """
    WHERE task.stage = 1 AND (task.rank, task.created_at, task.sequence, task.id) > (?1, ?2, ?3, ?4)
    ORDER BY task.rank, task.created_at, task.sequence, task.id
    LIMIT ?5
    """,
)

READ_AHEAD: Final = _records(
    "FROM tasks AS task INDEXED BY by_readiness",
    """
    WHERE task.stage = 1 AND (task.rank, task.created_at, task.sequence, task.id) > (?1, ?2, ?3, ?4)
    ORDER BY task.rank, task.created_at, task.sequence, task.id
    LIMIT ?5
    """,
    more=", EXISTS (SELECT 1 FROM edges AS edge WHERE edge.dependency_id = task.id)",
)

GET_READY_OF_TYPES: Final = _records(
    """
    FROM (
        SELECT head."row" AS "row"
        FROM json_each(?1) AS allowed
        CROSS JOIN tasks AS head ON head."row" IN (
            SELECT candidate."row"
            FROM tasks AS candidate INDEXED BY by_type_and_readiness
            WHERE candidate.stage = 1 AND candidate.type = allowed.value
                AND (candidate.rank, candidate.created_at, candidate.sequence, candidate.id) > (?2, ?3, ?4, ?5)
            ORDER BY candidate.rank, candidate.created_at, candidate.sequence, candidate.id
            LIMIT ?6
        )
        ORDER BY head.rank, head.created_at, head.sequence, head.id
        LIMIT ?6
    ) AS best
    CROSS JOIN tasks AS task ON task."row" = best."row"
    """,
    "ORDER BY task.rank, task.created_at, task.sequence, task.id",
)

IS_STAGING_DUE: Final = """
SELECT
    EXISTS (
        SELECT 1 FROM tasks INDEXED BY by_time WHERE stage = 2 AND next_attempt_at <= ?1
    ),
    EXISTS (
        SELECT 1 FROM tasks INDEXED BY by_time WHERE stage = 1 AND next_attempt_at > ?1
    )
"""

PROMOTE: Final = """
UPDATE tasks SET stage = 1
WHERE "row" IN (
    SELECT "row" FROM tasks INDEXED BY by_time
    WHERE stage = 2 AND next_attempt_at <= ?1
    ORDER BY next_attempt_at
    LIMIT ?2
)
"""

DEMOTE: Final = """
UPDATE tasks SET stage = 2
WHERE "row" IN (
    SELECT "row" FROM tasks INDEXED BY by_time
    WHERE stage = 1 AND next_attempt_at > ?1
    ORDER BY next_attempt_at
    LIMIT ?2
)
"""

NEXT_WAKE: Final = """
SELECT
    (SELECT min(next_attempt_at) FROM tasks INDEXED BY by_time
     WHERE stage = 1 AND next_attempt_at IS NOT NULL),
    (SELECT min(next_attempt_at) FROM tasks INDEXED BY by_time
     WHERE stage = 2 AND next_attempt_at IS NOT NULL)
"""

NEXT_SCHEDULED: Final = """
SELECT min(next_attempt_at) FROM tasks INDEXED BY by_time WHERE stage = 2 AND next_attempt_at IS NOT NULL
"""

GET_EXPIRED: Final = _records(
    "FROM tasks AS task INDEXED BY by_expiry",
    """
    WHERE task.expires_at IS NOT NULL AND task.attempts = 0 AND task.status IN (0, 1, 3)
        AND task.expires_at <= ?1 AND (task.expires_at, task.id) > (?2, ?3)
    ORDER BY task.expires_at, task.id
    LIMIT ?4
    """,
)

NEXT_EXPIRY: Final = """
SELECT min(expires_at) FROM tasks INDEXED BY by_expiry
WHERE expires_at IS NOT NULL AND attempts = 0 AND status IN (0, 1, 3)
"""

MAX_SEQUENCE: Final = "SELECT max(sequence) FROM tasks INDEXED BY by_sequence"

COUNT_BY_STATUS: Final = "SELECT status, count(*) FROM tasks INDEXED BY by_status GROUP BY status"

COUNT_HELD: Final = "SELECT count(*) FROM tasks INDEXED BY by_hold WHERE held = 1 AND status < 4"

GET_DEPENDENTS: Final = _records(
    'FROM edges AS edge CROSS JOIN tasks AS task ON task."row" = edge.task',
    """
    WHERE edge.dependency_id = ?1
    ORDER BY task.created_at, task.sequence, task.id
    """,
)

GET_DEPENDENT_IDS: Final = """
    SELECT task.id
    FROM (
        SELECT DISTINCT edge.task AS "row"
        FROM json_each(?1) AS given
        CROSS JOIN edges AS edge ON edge.dependency_id = given.value
    ) AS dependent
    CROSS JOIN tasks AS task ON task."row" = dependent."row"
"""

GET_WAITING_DEPENDENTS: Final = _records(
    """
    FROM (
        SELECT DISTINCT edge.task AS "row"
        FROM json_each(?1) AS ended
        CROSS JOIN edges AS edge ON edge.dependency_id = ended.value
    ) AS dependent
    CROSS JOIN tasks AS task ON task."row" = dependent."row" AND task.status = 1
    """,
    "ORDER BY task.created_at, task.sequence, task.id",
)

GET_JUDGEABLE: Final = _records(
    """
    FROM dependent
    CROSS JOIN tasks AS task ON task."row" = dependent."row" AND task.status = 1
    """,
    """
    WHERE (dependent.blocked AND task.on_dependency_failure <> 2)
        OR NOT EXISTS (
            SELECT 1 FROM edges AS other INDEXED BY by_dependent
            WHERE other.task = dependent."row" AND other.open = 1
                AND other.dependency_id NOT IN (SELECT id FROM ended)
        )
    ORDER BY task.created_at, task.sequence, task.id
    """,
    first="""
    WITH ended (id, blocks) AS MATERIALIZED (
        SELECT given.value, NOT EXISTS (
            SELECT 1 FROM tasks AS stored WHERE stored.id = given.value AND stored.status < 5
        )
        FROM json_each(?1) AS given
    ),
    dependent ("row", blocked) AS MATERIALIZED (
        SELECT edge.task, max(ended.blocks)
        FROM ended
        CROSS JOIN edges AS edge ON edge.dependency_id = ended.id
        GROUP BY edge.task
    )
    """,
)

KNOWN: Final = """
SELECT json_group_array(json_array(
        task."row", task.status,
        EXISTS (SELECT 1 FROM edges AS edge WHERE edge.dependency_id = wanted.value),
        EXISTS (SELECT 1 FROM results AS result WHERE result."row" = task."row"),
        task.type, task.rank, task.created_at, task.sequence, task.deduplication_key, task.group_name,
        task.on_dependency_failure, task.depends_on
    ))
FROM json_each(?1) AS wanted
LEFT JOIN tasks AS task ON task.id = wanted.value
"""
"""What a list of changes has to know of its ids, one list per id in their order: all of it in one row, and one step."""

IS_ANY_KNOWN: Final = """
SELECT EXISTS (
    SELECT 1 FROM json_each(?1) AS wanted
    WHERE EXISTS (SELECT 1 FROM tasks AS task WHERE task.id = wanted.value)
        OR EXISTS (SELECT 1 FROM edges AS edge WHERE edge.dependency_id = wanted.value)
)
"""
"""Whether any of these ids is stored, or something depends on it; usually not, when they are new."""

LAST_ROW: Final = "SELECT ifnull(max(seq), 0) FROM sqlite_sequence WHERE name = 'tasks'"

INSERT_TASKS: Final = _for_rows(
    20,
    """
    INSERT INTO tasks (
        "row", id, type, rank, created_at, sequence, deduplication_key, group_name, on_dependency_failure,
        depends_on, status, stage, updated_at, attempts, next_attempt_at, expires_at, held, retry_policy, details,
        writer
    )
    VALUES
    """,
)

UPDATE_STATES: Final = _for_rows(
    10,
    """
    UPDATE tasks SET
        status = new.column2, stage = new.column3, updated_at = new.column4, attempts = new.column5,
        next_attempt_at = new.column6, expires_at = new.column7, held = new.column8, retry_policy = new.column9,
        details = new.column10
    FROM (VALUES
    """,
    ') AS new WHERE tasks."row" = new.column1',
)

SET_STATE: Final = """
UPDATE tasks SET
    status = ?2, stage = ?3, updated_at = ?4, attempts = ?5, next_attempt_at = ?6, expires_at = ?7, held = ?8,
    retry_policy = ?9, details = ?10
WHERE "row" IN (SELECT value FROM json_each(?1))
"""
"""The same state for many tasks: most of those that are claimed, completed or released together."""

UPDATE_TASKS: Final = _for_rows(
    18,
    """
    UPDATE tasks SET
        type = new.column2, rank = new.column3, created_at = new.column4, sequence = new.column5,
        deduplication_key = new.column6, group_name = new.column7, on_dependency_failure = new.column8,
        depends_on = new.column9, status = new.column10, stage = new.column11, updated_at = new.column12,
        attempts = new.column13, next_attempt_at = new.column14, expires_at = new.column15, held = new.column16,
        retry_policy = new.column17, details = new.column18
    FROM (VALUES
    """,
    ') AS new WHERE tasks."row" = new.column1',
)

INSERT_PAYLOADS: Final = _for_rows(2, 'INSERT INTO payloads ("row", text) VALUES')

UPDATE_PAYLOADS: Final = _for_rows(
    2,
    'INSERT INTO payloads ("row", text) VALUES',
    'ON CONFLICT ("row") DO UPDATE SET text = excluded.text WHERE text IS NOT excluded.text',
)

PUT_RESULTS: Final = _for_rows(
    2,
    'INSERT INTO results ("row", text) VALUES',
    'ON CONFLICT ("row") DO UPDATE SET text = excluded.text WHERE text IS NOT excluded.text',
)

DELETE_TASKS: Final = 'DELETE FROM tasks WHERE "row" IN (SELECT value FROM json_each(?1))'
DELETE_PAYLOADS: Final = 'DELETE FROM payloads WHERE "row" IN (SELECT value FROM json_each(?1))'
DELETE_RESULTS: Final = 'DELETE FROM results WHERE "row" IN (SELECT value FROM json_each(?1))'
DELETE_EDGES: Final = """
DELETE FROM edges INDEXED BY by_dependent WHERE task IN (SELECT value FROM json_each(?1))
"""

INSERT_EDGES: Final = """
INSERT INTO edges (dependency_id, task, open)
WITH dependent (task, ids) AS MATERIALIZED (
    SELECT json_extract(given.value, '$[0]'), json_extract(given.value, '$[1]') FROM json_each(?1) AS given
)
SELECT wanted.value, dependent.task, EXISTS (
    SELECT 1 FROM tasks AS dependency WHERE dependency.id = wanted.value AND dependency.status < 4
)
FROM dependent CROSS JOIN json_each(dependent.ids) AS wanted
"""
"""Materialized, so that the text of a wide join is taken apart once and not for each of its edges."""

OPEN_EDGES: Final = """
UPDATE edges SET open = 1
WHERE open = 0 AND dependency_id IN (SELECT value FROM json_each(?1))
"""

CLOSE_EDGES: Final = """
UPDATE edges SET open = 0
WHERE open = 1 AND dependency_id IN (SELECT value FROM json_each(?1))
"""

DATA_VERSION: Final = "PRAGMA data_version"

STRANDED: Final = """
SELECT task.id FROM tasks AS task INDEXED BY by_status
WHERE task.status = 1 AND (
    NOT EXISTS (
        SELECT 1 FROM edges AS edge INDEXED BY by_dependent WHERE edge.task = task."row" AND edge.open = 1
    )
    OR task.on_dependency_failure <> 2 AND EXISTS (
        SELECT 1 FROM edges AS edge INDEXED BY by_dependent
        WHERE edge.task = task."row" AND edge.open = 0
            AND NOT EXISTS (SELECT 1 FROM tasks AS other WHERE other.id = edge.dependency_id AND other.status < 5)
    )
)
ORDER BY task.created_at, task.sequence, task.id
"""
"""Waiting tasks whose verdict could fall: none, unless they were inserted while nobody consumed."""

WAITING_FROM_ELSEWHERE: Final = """
SELECT id FROM tasks NOT INDEXED WHERE "row" > ?1 AND writer <> ?2 AND status = 1 ORDER BY "row"
"""
