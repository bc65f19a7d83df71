"""From a record to its row and back.

What is queried has a column; the rest is one JSON object of what differs from its default. Reading is strict: a value
of the wrong kind makes the record unreadable and names the field (S13.11). Payload and result are handed through as
text without a look, because a broken payload is a matter of its attempt (S7.3).
"""

from __future__ import annotations

import json
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, TypeAlias

from durable_queue.errors import CorruptRecordError
from durable_queue.retry import RetryPolicy
from durable_queue.serialization import JsonText
from durable_queue.tasks import (
    CLAIMABLE_STATUSES,
    DependencyFailurePolicy,
    StoredTask,
    TaskFailure,
    TaskStatus,
    from_micros,
    policy_from_json,
    policy_to_json,
    to_micros,
)

Row: TypeAlias = tuple[Any, ...]
"""What a statement of `_statements` that reads whole records answers with, per record."""

FIXED: Final = 8
"""How many of the leading values of `columns_of` an update of a task's state leaves alone."""

READY: Final = 1
SCHEDULED: Final = 2

_STATUSES: Final = (
    TaskStatus.PENDING,
    TaskStatus.WAITING,
    TaskStatus.RUNNING,
    TaskStatus.RETRY_SCHEDULED,
    TaskStatus.COMPLETED,
    TaskStatus.FAILED,
    TaskStatus.CANCELLED,
)
_POLICIES: Final = (
    DependencyFailurePolicy.CANCEL,
    DependencyFailurePolicy.FAIL,
    DependencyFailurePolicy.RUN,
)
STATUS_CODES: Final = {status: code for code, status in enumerate(_STATUSES)}
_POLICY_CODES: Final = {policy: code for code, policy in enumerate(_POLICIES)}
_NO_RETRY: Final = RetryPolicy.none()
_encode_json: Final = json.JSONEncoder(separators=(",", ":")).encode


def columns_of(task: StoredTask, boundary: int) -> tuple[Any, ...]:
    """Return a record's columns: first the `FIXED` ones that seldom change, then its state.

    Args:
        task: the record.
        boundary: the last instant that was asked about, in microseconds; what is due by then needs no promotion.
    """
    status = task.status
    next_attempt_at = None if task.next_attempt_at is None else to_micros(task.next_attempt_at)
    stage = None
    if status in CLAIMABLE_STATUSES and not task.held:
        stage = READY if next_attempt_at is None or next_attempt_at <= boundary else SCHEDULED
    return (
        task.type,
        -task.priority,
        to_micros(task.created_at),
        task.sequence,
        task.deduplication_key,
        task.group,
        _POLICY_CODES[task.on_dependency_failure],
        _encode_json(task.depends_on) if task.depends_on else None,
        STATUS_CODES[status],
        stage,
        to_micros(task.updated_at),
        task.attempts,
        next_attempt_at,
        None if task.expires_at is None else to_micros(task.expires_at),
        int(task.held),
        None if task.retry_policy is _NO_RETRY else _policy_text(task.retry_policy),
        _details_of(task),
    )


def _details_of(task: StoredTask) -> str | None:
    details: dict[str, Any] = {}
    if task.idempotency_key is not None:
        details["idempotencyKey"] = task.idempotency_key
    if task.last_failure is not None:
        details["lastFailure"] = task.last_failure.to_json()
    if task.cancel_requested:
        details["cancelRequested"] = True
    if task.hand_off_reference is not None:
        details["handOffReference"] = task.hand_off_reference
    if task.hand_off_deadline is not None:
        details["handOffDeadlineMicros"] = to_micros(task.hand_off_deadline)
    if task.interruptions:
        details["interruptions"] = task.interruptions
    if task.payload_version != 1:
        details["payloadVersion"] = task.payload_version
    if task.failures:
        details["failures"] = [failure.to_json() for failure in task.failures]
    if task.skipped:
        details["skipped"] = True
    return _encode_json(details) if details else None


def read(row: Row) -> StoredTask:
    """Build the record of a row.

    Raises:
        CorruptRecordError: a column cannot be read.
    """
    (
        _,
        task_id,
        type_name,
        status,
        _,
        rank,
        created_at,
        sequence,
        updated_at,
        attempts,
        next_attempt_at,
        expires_at,
        held,
        deduplication_key,
        group,
        on_dependency_failure,
        depends_on,
        retry_policy,
        details,
        payload,
        result,
        *_,
    ) = row
    try:
        if payload is None:
            raise CorruptRecordError("is missing", field="payload")
        for field, text in (
            ("id", task_id),
            ("type", type_name),
            ("deduplication_key", deduplication_key),
            ("group", group),
        ):
            if text is not None and not text.isascii():
                _check_text(text, field)
        created = _instant(created_at, "created_at")
        return StoredTask(
            id=task_id,
            type=type_name,
            payload=_body(payload),
            status=_choice(_STATUSES, status, "status"),
            attempts=attempts,
            retry_policy=_NO_RETRY if retry_policy is None else _policy(retry_policy),
            created_at=created,
            updated_at=created if updated_at == created_at else _instant(updated_at, "updated_at"),
            sequence=sequence,
            next_attempt_at=None if next_attempt_at is None else _instant(next_attempt_at, "next_attempt_at"),
            deduplication_key=deduplication_key,
            priority=-rank,
            depends_on=() if depends_on is None else _dependencies(depends_on),
            on_dependency_failure=_choice(_POLICIES, on_dependency_failure, "on_dependency_failure"),
            group=group,
            expires_at=None if expires_at is None else _instant(expires_at, "expires_at"),
            result=None if result is None else _body(result),
            held=_flag(held, "held"),
            **({} if details is None else _Details(details).fields()),
        )
    except CorruptRecordError as error:
        raise CorruptRecordError(error.reason, task_id=safe_text(task_id), field=error.field) from None
    except (ValueError, TypeError) as error:
        # The rules of S1.5 name the field and never repeat a value.
        raise CorruptRecordError(str(error), task_id=safe_text(task_id)) from None


def safe_text(text: str) -> str:
    """Return a text that was read leniently, with what is no UTF-8 in it made visible."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _body(text: str) -> JsonText:
    # A backslash and an x are no JSON: bytes that are no UTF-8 fail the attempt like any other broken payload.
    return JsonText(text if text.isascii() else safe_text(text))


def _check_text(text: str, field: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise CorruptRecordError("is not UTF-8", field=field) from None


def _choice(members: tuple[Any, ...], code: int, field: str) -> Any:
    if not 0 <= code < len(members):
        raise CorruptRecordError(f"must be a number below {len(members)}", field=field)
    return members[code]


def _flag(value: int, field: str) -> bool:
    if value not in (0, 1):
        raise CorruptRecordError("must be 0 or 1", field=field)
    return value == 1


def _instant(micros: int, field: str) -> datetime:
    try:
        return from_micros(micros)
    except OverflowError:
        raise CorruptRecordError("is out of the range of datetimes", field=field) from None


def _json(text: str, field: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise CorruptRecordError("is not JSON", field=field) from None


def _dependencies(text: str) -> tuple[str, ...]:
    ids = _json(text, "depends_on")
    if not isinstance(ids, list) or not all(isinstance(item, str) for item in ids):
        raise CorruptRecordError("must be a list of strings", field="depends_on")
    return tuple(ids)


@lru_cache(maxsize=256)
def _policy_text(policy: RetryPolicy) -> str:
    return _encode_json(policy_to_json(policy))


@lru_cache(maxsize=256)
def _policy(text: str) -> RetryPolicy:
    try:
        return policy_from_json(_json(text, "retry_policy"))
    except CorruptRecordError as error:
        raise CorruptRecordError(error.reason, field="retry_policy") from None


class _Details:
    """Strict reads from the JSON object of what has no column."""

    def __init__(self, text: str) -> None:
        data = _json(text, "details")
        if not isinstance(data, dict):
            raise CorruptRecordError("must be a JSON object", field="details")
        self._data: dict[str, Any] = data

    def fields(self) -> dict[str, Any]:
        """Return the fields of a record that have no column."""
        return {
            "idempotency_key": self.take("idempotencyKey", str),
            "last_failure": self.failure("lastFailure"),
            "cancel_requested": self.take("cancelRequested", bool, default=False),
            "hand_off_reference": self.take("handOffReference", str),
            "hand_off_deadline": self.instant("handOffDeadlineMicros"),
            "interruptions": self.take("interruptions", int, default=0),
            "payload_version": self.take("payloadVersion", int, default=1),
            "failures": self.failures("failures"),
            "skipped": self.take("skipped", bool, default=False),
        }

    def take(self, key: str, kind: type, default: Any = None) -> Any:
        value = self._data.get(key, default)
        # bool is an int to Python, not to JSON.
        if value is not default and type(value) is not kind:
            raise CorruptRecordError(f"must be of type {kind.__name__}", field=key)
        return value

    def instant(self, key: str) -> datetime | None:
        micros = self.take(key, int)
        return None if micros is None else _instant(micros, key)

    def failure(self, key: str) -> TaskFailure | None:
        data = self._data.get(key)
        return None if data is None else self._failure(data, key)

    def failures(self, key: str) -> tuple[TaskFailure, ...]:
        items: list[Any] = self.take(key, list, default=[])
        return tuple(self._failure(item, key) for item in items)

    def _failure(self, data: Any, key: str) -> TaskFailure:
        try:
            return TaskFailure.from_json(data)
        except CorruptRecordError as error:
            inner = key if error.field is None else f"{key}.{error.field}"
            raise CorruptRecordError(error.reason, field=inner) from None
