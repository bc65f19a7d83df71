"""Every SQL statement of the adapter, by name.

Lists travel as one JSON parameter (``json_each(?1)``), never as one variable per row, so that no limit of a SQLite
build on variables is met. ``INDEXED BY`` pins the index that a worker query relies on: SQLite then refuses to prepare
the statement without it, where a guess of the planner would only be slow once a million tasks are stored.
"""

from __future__ import annotations

from typing import Final

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


def _records(source: str, rest: str = "", *, first: str = "") -> str:
    """Return a statement that reads whole records from a source that has `task` in it."""
    return f"{first}{_COLUMNS}{source}{_BODIES}{rest}"


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
SELECT task.id, task."row", task.status,
    EXISTS (SELECT 1 FROM results AS result WHERE result."row" = task."row"),
    task.type, task.rank, task.created_at, task.sequence, task.deduplication_key, task.group_name,
    task.on_dependency_failure, task.depends_on
FROM json_each(?1) AS wanted
CROSS JOIN tasks AS task ON task.id = wanted.value
"""

ALLOCATE_ROWS: Final = """
UPDATE allocation SET last_row = last_row + ?1 WHERE only_row = 1 RETURNING last_row
"""

LAST_ROW: Final = "SELECT last_row FROM allocation WHERE only_row = 1"

INSERT_TASK: Final = """
INSERT INTO tasks (
    "row", id, type, rank, created_at, sequence, deduplication_key, group_name, on_dependency_failure, depends_on,
    status, stage, updated_at, attempts, next_attempt_at, expires_at, held, retry_policy, details, writer
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""

UPDATE_STATE: Final = """
UPDATE tasks SET
    status = ?, stage = ?, updated_at = ?, attempts = ?, next_attempt_at = ?, expires_at = ?, held = ?,
    retry_policy = ?, details = ?
WHERE "row" = ?
"""

UPDATE_TASK: Final = """
UPDATE tasks SET
    type = ?, rank = ?, created_at = ?, sequence = ?, deduplication_key = ?, group_name = ?,
    on_dependency_failure = ?, depends_on = ?,
    status = ?, stage = ?, updated_at = ?, attempts = ?, next_attempt_at = ?, expires_at = ?, held = ?,
    retry_policy = ?, details = ?
WHERE "row" = ?
"""

INSERT_PAYLOAD: Final = 'INSERT INTO payloads ("row", text) VALUES (?1, ?2)'

UPDATE_PAYLOAD: Final = """
INSERT INTO payloads ("row", text) VALUES (?1, ?2)
ON CONFLICT ("row") DO UPDATE SET text = excluded.text WHERE text IS NOT excluded.text
"""

PUT_RESULT: Final = """
INSERT INTO results ("row", text) VALUES (?1, ?2)
ON CONFLICT ("row") DO UPDATE SET text = excluded.text WHERE text IS NOT excluded.text
"""

DELETE_TASK: Final = 'DELETE FROM tasks WHERE "row" = ?1'
DELETE_PAYLOAD: Final = 'DELETE FROM payloads WHERE "row" = ?1'
DELETE_RESULT: Final = 'DELETE FROM results WHERE "row" = ?1'
DELETE_EDGES: Final = "DELETE FROM edges INDEXED BY by_dependent WHERE task = ?1"

INSERT_EDGES: Final = """
INSERT INTO edges (dependency_id, task, open)
SELECT wanted.value, ?1, EXISTS (
    SELECT 1 FROM tasks AS dependency WHERE dependency.id = wanted.value AND dependency.status < 4
)
FROM json_each(?2) AS wanted
"""

OPEN_EDGES: Final = """
UPDATE edges SET open = 1
WHERE open = 0 AND dependency_id IN (SELECT value FROM json_each(?1))
"""

CLOSE_EDGES: Final = """
UPDATE edges SET open = 0
WHERE open = 1 AND dependency_id IN (SELECT value FROM json_each(?1))
"""

DATA_VERSION: Final = "PRAGMA data_version"

WAITING_FROM_ELSEWHERE: Final = """
SELECT id FROM tasks NOT INDEXED WHERE "row" > ?1 AND writer <> ?2 AND status = 1 ORDER BY "row"
"""
