"""A record in which every field says something, and its canonical JSON, written out by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pytest

from durable_queue import (
    CorruptRecordError,
    DependencyFailurePolicy,
    RetryPolicy,
    StoredTask,
    TaskFailure,
    TaskStatus,
)

SECRET = "hunter2"
AT = datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
AT_TEXT = "2030-01-02T03:04:05.000678+00:00"

FAILURE = TaskFailure(
    error="boom",
    error_type="OSError",
    stack_trace="Traceback ...",
    failed_at=AT,
    attempt=2,
    cause_task_id="root",
)
FAILURE_JSON = {
    "error": "boom",
    "errorType": "OSError",
    "stackTrace": "Traceback ...",
    "failedAt": AT_TEXT,
    "attempt": 2,
    "causeTaskId": "root",
}

FULL = StoredTask(
    id="t-1",
    type="mail.send",
    payload={"b": [1, None], "a": "é"},
    status=TaskStatus.RETRY_SCHEDULED,
    attempts=2,
    retry_policy=RetryPolicy.fixed(max_attempts=3, delay=timedelta(milliseconds=1500)),
    created_at=AT,
    updated_at=AT + timedelta(seconds=1),
    sequence=7,
    next_attempt_at=AT + timedelta(seconds=2),
    deduplication_key="key",
    idempotency_key="once",
    last_failure=FAILURE,
    cancel_requested=True,
    priority=-5,
    depends_on=("d-1", "d-2"),
    on_dependency_failure=DependencyFailurePolicy.RUN,
    group="batch",
    hand_off_reference="ticket",
    hand_off_deadline=AT + timedelta(seconds=3),
    expires_at=AT + timedelta(seconds=4),
    result={"ok": True},
    interruptions=1,
    payload_version=4,
    failures=(FAILURE,),
    held=True,
    skipped=True,
)
FULL_JSON: dict[str, Any] = {
    "id": "t-1",
    "type": "mail.send",
    "payload": {"a": "é", "b": [1, None]},
    "status": "retryScheduled",
    "attempts": 2,
    "retryPolicy": {"type": "fixed", "maxAttempts": 3, "delayMicros": 1_500_000},
    "createdAt": AT_TEXT,
    "updatedAt": "2030-01-02T03:04:06.000678+00:00",
    "sequence": 7,
    "nextAttemptAt": "2030-01-02T03:04:07.000678+00:00",
    "deduplicationKey": "key",
    "idempotencyKey": "once",
    "lastFailure": FAILURE_JSON,
    "cancelRequested": True,
    "priority": -5,
    "dependsOn": ["d-1", "d-2"],
    "onDependencyFailure": "run",
    "group": "batch",
    "handOffReference": "ticket",
    "handOffDeadline": "2030-01-02T03:04:08.000678+00:00",
    "expiresAt": "2030-01-02T03:04:09.000678+00:00",
    "result": {"ok": True},
    "interruptions": 1,
    "payloadVersion": 4,
    "failures": [FAILURE_JSON],
    "held": True,
    "skipped": True,
}

REQUIRED_JSON: dict[str, Any] = {
    "id": "t-1",
    "type": "mail.send",
    "payload": {},
    "status": "pending",
    "createdAt": AT_TEXT,
}
MINIMAL_JSON: dict[str, Any] = {
    **REQUIRED_JSON,
    "attempts": 0,
    "retryPolicy": {"type": "none"},
    "updatedAt": AT_TEXT,
    "sequence": 0,
    "nextAttemptAt": None,
    "deduplicationKey": None,
    "idempotencyKey": None,
    "lastFailure": None,
    "cancelRequested": False,
    "priority": 0,
    "dependsOn": [],
    "onDependencyFailure": "cancel",
    "group": None,
    "handOffReference": None,
    "handOffDeadline": None,
    "expiresAt": None,
    "result": None,
    "interruptions": 0,
    "payloadVersion": 1,
    "failures": [],
    "held": False,
    "skipped": False,
}

FIELDS = [field.name for field in attrs.fields(StoredTask)]
KEYS = list(FULL_JSON)


def task(**fields: Any) -> StoredTask:
    return StoredTask(**{"id": "t", "type": "work", "created_at": AT, **fields})


def corrupt(data: Any) -> CorruptRecordError:
    """The error with which a stored record is refused."""
    with pytest.raises(CorruptRecordError) as caught:
        StoredTask.from_json(data)
    return caught.value
