"""The stored record of a task, its status, its failure, and their canonical JSON (S1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

import attrs

from durable_queue import _json
from durable_queue._json import JsonText
from durable_queue._reader import Reader, as_object, text_list
from durable_queue.clock import EPOCH, check_instant
from durable_queue.errors import CorruptRecordError, PayloadError
from durable_queue.retry import RetryPolicy

_MICROSECOND = timedelta(microseconds=1)
_NO_RETRY = RetryPolicy.none()


class TaskStatus(Enum):
    """Where a task is in its life; the value is the name in canonical JSON (S1.3)."""

    PENDING = "pending"
    """Ready, or scheduled for a later time that it has not reached."""
    WAITING = "waiting"
    """At least one dependency has not been judged yet."""
    RUNNING = "running"
    """Claimed: a handler is at work, or outside work is awaited."""
    RETRY_SCHEDULED = "retryScheduled"
    """An attempt failed; the next one has a time."""
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    # Tables and sets of statuses are asked at every step, and the hash that Enum gives is computed in Python.
    __hash__ = object.__hash__

    @property
    def is_terminal(self) -> bool:
        """Whether nothing but `DurableQueue.retry` changes it any more."""
        return self in TERMINAL_STATUSES


TERMINAL_STATUSES = frozenset({TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED})
ACTIVE_STATUSES = frozenset(TaskStatus) - TERMINAL_STATUSES
"""The statuses in which a task holds its deduplication key (S2.3)."""
CLAIMABLE_STATUSES = frozenset({TaskStatus.PENDING, TaskStatus.RETRY_SCHEDULED})
"""The statuses from which a task is claimed (S3.1)."""


class DependencyFailurePolicy(Enum):
    """What a dependent does when a dependency did not complete (S4.3)."""

    CANCEL = "cancel"
    """The dependent is cancelled at once."""
    FAIL = "fail"
    """The dependent fails at once."""
    RUN = "run"
    """The dependent runs once every dependency is terminal or missing, whatever their outcome."""


def _failed_at(value: object) -> datetime:
    return check_instant(value, "failed_at")


@attrs.frozen(kw_only=True)
class TaskFailure:
    """Why an attempt, or the whole task, failed; text only (S5.5).

    Attributes:
        error: the text of the error.
        error_type: its type's name.
        stack_trace: the traceback as text, or None.
        failed_at: when, aware UTC.
        attempt: how many attempts had begun.
        cause_task_id: for a dependent ended by its policy, the task at the root of the cascade (S4.5).
    """

    error: str = attrs.field(repr=False)
    error_type: str
    stack_trace: str | None = attrs.field(default=None, repr=False)
    failed_at: datetime = attrs.field(converter=_failed_at)
    attempt: int = 0
    cause_task_id: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the canonical JSON object (S1.4)."""
        return {
            "error": self.error,
            "errorType": self.error_type,
            "stackTrace": self.stack_trace,
            "failedAt": format_instant(self.failed_at),
            "attempt": self.attempt,
            "causeTaskId": self.cause_task_id,
        }

    @classmethod
    def from_json(cls, data: object) -> TaskFailure:
        """Read the canonical JSON object.

        Raises:
            CorruptRecordError: a value is malformed; the message names its key.
        """
        reader = Reader(as_object(data))
        return cls(
            error=reader.text("error", default=""),
            error_type=reader.text("errorType", default="Exception"),
            stack_trace=reader.text("stackTrace", default=None),
            failed_at=reader.instant("failedAt"),
            attempt=reader.integer("attempt", default=0),
            cause_task_id=reader.text("causeTaskId", default=None),
        )


def _object_text(payload: object) -> JsonText:
    if isinstance(payload, JsonText):
        return payload
    if not isinstance(payload, Mapping):
        raise TypeError(f"payload must be a JSON object (a dict), not {type(payload).__name__}")
    return _json.encode(dict(payload))


def _value_text(result: object) -> JsonText | None:
    if result is None or isinstance(result, JsonText):
        return result
    return _json.encode(result)


def _folded(ids: Iterable[str]) -> tuple[str, ...]:
    if ids == ():
        return ()
    if isinstance(ids, str):
        raise TypeError("depends_on must be a list of task ids, not one string")
    return tuple(dict.fromkeys(ids))


class _BrokenRuleError(ValueError):
    """A field does not keep a rule of S1.5."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field} {reason}")
        self.field = field
        self.reason = reason


# No weak references: `_core.copying` asks for it.
@attrs.frozen(kw_only=True, repr=False, weakref_slot=False)
class StoredTask:
    """One task as it is stored: immutable, compared field by field, free of payload in its repr.

    The constructor takes `payload` and `result` as JSON values; they are held as canonical text and every access
    decodes them afresh (S1.6). A storage adapter that has the text already hands it over as
    `durable_queue.serialization.JsonText`.

    Attributes:
        id: unique among all tasks.
        type: the registered type name.
        payload_text: the payload as canonical JSON text.
        status: see `TaskStatus`.
        attempts: how often it has been claimed.
        retry_policy: see `RetryPolicy`.
        created_at: when it was enqueued; the first part of the order.
        updated_at: when it last changed.
        sequence: the second part of the order.
        next_attempt_at: the earliest start, or None.
        deduplication_key: held while the task is active, or None.
        idempotency_key: handed to the handler, or None.
        last_failure: the last failure, or None.
        cancel_requested: whether a running task was asked to stop.
        priority: higher starts first.
        depends_on: the ids it depends on, each once.
        on_dependency_failure: see `DependencyFailurePolicy`.
        group: the name of its group, or None.
        hand_off_reference: what the outside work answers with, or None.
        hand_off_deadline: when the outside work must have answered, or None.
        expires_at: when it is cancelled if it has not started, or None.
        result_text: the result as canonical JSON text, or None.
        interruptions: how often its process ended while it ran.
        payload_version: the version of its payload's form.
        failures: earlier failures that are kept.
        held: whether it is kept from starting.
        skipped: whether it was completed without running because its effect was found done.

    Raises:
        ValueError: a rule of S1.5 is broken.
        PayloadError: the payload or the result is not JSON.
    """

    id: str
    type: str
    payload_text: JsonText = attrs.field(
        alias="payload", factory=lambda: JsonText("{}"), converter=_object_text
    )
    status: TaskStatus = TaskStatus.PENDING
    attempts: int = 0
    retry_policy: RetryPolicy = _NO_RETRY
    created_at: datetime
    updated_at: datetime = attrs.Factory(lambda self: self.created_at, takes_self=True)
    sequence: int = 0
    next_attempt_at: datetime | None = None
    deduplication_key: str | None = None
    idempotency_key: str | None = None
    last_failure: TaskFailure | None = None
    cancel_requested: bool = False
    priority: int = 0
    depends_on: tuple[str, ...] = attrs.field(default=(), converter=_folded)
    on_dependency_failure: DependencyFailurePolicy = DependencyFailurePolicy.CANCEL
    group: str | None = None
    hand_off_reference: str | None = None
    hand_off_deadline: datetime | None = None
    expires_at: datetime | None = None
    result_text: JsonText | None = attrs.field(alias="result", default=None, converter=_value_text)
    interruptions: int = 0
    payload_version: int = 1
    failures: tuple[TaskFailure, ...] = attrs.field(default=(), converter=tuple)
    held: bool = False
    skipped: bool = False

    def __attrs_post_init__(self) -> None:
        # Every record that is read passes here: the loops over names run only for those that break a rule.
        if "" in (self.id, self.type, self.group, self.deduplication_key, self.idempotency_key):
            raise _BrokenRuleError(next(n for n in _NAMES if getattr(self, n) == ""), "must not be empty")
        if self.attempts < 0 or self.sequence < 0:
            raise _BrokenRuleError("attempts" if self.attempts < 0 else "sequence", "must not be negative")
        if self.depends_on and ("" in self.depends_on or self.id in self.depends_on):
            raise _BrokenRuleError("depends_on", "must not hold an empty id or the task's own")
        for value in (
            self.created_at,
            self.updated_at,
            self.next_attempt_at,
            self.hand_off_deadline,
            self.expires_at,
        ):
            if value is not None and getattr(value, "tzinfo", None) is not UTC:
                self._hold_in_utc()
                break

    def _hold_in_utc(self) -> None:
        for name in _INSTANTS:
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, check_instant(value, name))

    def __repr__(self) -> str:
        # Nothing that an application put in: see S1.8.
        return (
            f"StoredTask(id={self.id!r}, type={self.type!r}, status={self.status.value}, "
            f"attempts={self.attempts}, priority={self.priority}, sequence={self.sequence})"
        )

    @property
    def payload(self) -> dict[str, Any]:
        """The payload, decoded afresh.

        Raises:
            PayloadError: the stored text is not a JSON object.
        """
        value = _json.decode(self.payload_text)
        if not isinstance(value, dict):
            raise PayloadError(f"the stored payload is no JSON object but {type(value).__name__}")
        return value

    @property
    def result(self) -> Any:
        """The result, decoded afresh; None if there is none."""
        return None if self.result_text is None else _json.decode(self.result_text)

    def to_json(self) -> dict[str, Any]:
        """Return the canonical JSON object (S1.3): every field, camelCase keys, ISO-8601 UTC with microseconds."""
        return {
            "id": self.id,
            "type": self.type,
            "payload": self.payload,
            "status": self.status.value,
            "attempts": self.attempts,
            "retryPolicy": policy_to_json(self.retry_policy),
            "createdAt": format_instant(self.created_at),
            "updatedAt": format_instant(self.updated_at),
            "sequence": self.sequence,
            "nextAttemptAt": _maybe(format_instant, self.next_attempt_at),
            "deduplicationKey": self.deduplication_key,
            "idempotencyKey": self.idempotency_key,
            "lastFailure": _maybe(TaskFailure.to_json, self.last_failure),
            "cancelRequested": self.cancel_requested,
            "priority": self.priority,
            "dependsOn": list(self.depends_on),
            "onDependencyFailure": self.on_dependency_failure.value,
            "group": self.group,
            "handOffReference": self.hand_off_reference,
            "handOffDeadline": _maybe(format_instant, self.hand_off_deadline),
            "expiresAt": _maybe(format_instant, self.expires_at),
            "result": self.result,
            "interruptions": self.interruptions,
            "payloadVersion": self.payload_version,
            "failures": [failure.to_json() for failure in self.failures],
            "held": self.held,
            "skipped": self.skipped,
        }

    @classmethod
    def from_json(cls, data: object) -> StoredTask:
        """Read the canonical JSON object; missing newer keys take their defaults, unknown ones are ignored.

        Raises:
            CorruptRecordError: a value is malformed; the message names its key.
        """
        record = as_object(data)
        task_id = record.get("id")
        try:
            return _read(cls, Reader(record))
        except CorruptRecordError as error:
            if error.task_id is not None or not isinstance(task_id, str):
                raise
            raise CorruptRecordError(error.reason, task_id=task_id, field=error.field) from None


def _read(cls: type[StoredTask], reader: Reader) -> StoredTask:
    created_at = reader.instant("createdAt")
    fields: dict[str, Any] = {
        "id": reader.text("id"),
        "type": reader.text("type"),
        "payload": reader.json("payload", dict),
        "status": reader.choice("status", TaskStatus),
        "attempts": reader.integer("attempts", default=0),
        "retry_policy": reader.converted("retryPolicy", policy_from_json, default=_NO_RETRY),
        "created_at": created_at,
        "updated_at": reader.instant("updatedAt", default=created_at),
        "sequence": reader.integer("sequence", default=0),
        "next_attempt_at": reader.instant("nextAttemptAt", default=None),
        "deduplication_key": reader.text("deduplicationKey", default=None),
        "idempotency_key": reader.text("idempotencyKey", default=None),
        "last_failure": reader.converted("lastFailure", TaskFailure.from_json, default=None),
        "cancel_requested": reader.boolean("cancelRequested", default=False),
        "priority": reader.integer("priority", default=0),
        "depends_on": reader.converted("dependsOn", text_list, default=()),
        "on_dependency_failure": reader.choice(
            "onDependencyFailure", DependencyFailurePolicy, default=DependencyFailurePolicy.CANCEL
        ),
        "group": reader.text("group", default=None),
        "hand_off_reference": reader.text("handOffReference", default=None),
        "hand_off_deadline": reader.instant("handOffDeadline", default=None),
        "expires_at": reader.instant("expiresAt", default=None),
        "result": reader.json("result", object, default=None),
        "interruptions": reader.integer("interruptions", default=0),
        "payload_version": reader.integer("payloadVersion", default=1),
        "failures": reader.converted("failures", _failures, default=()),
        "held": reader.boolean("held", default=False),
        "skipped": reader.boolean("skipped", default=False),
    }
    try:
        return cls(**fields)
    except _BrokenRuleError as error:
        head, *words = error.field.split("_")
        raise CorruptRecordError(error.reason, field=head + "".join(map(str.title, words))) from None


def policy_to_json(policy: RetryPolicy) -> dict[str, Any]:
    """Return the canonical JSON object of a retry policy (S1.4)."""
    if policy.kind == "none":
        return {"type": "none"}
    if policy.kind == "fixed":
        return {
            "type": "fixed",
            "maxAttempts": policy.max_attempts,
            "delayMicros": policy.initial_delay // _MICROSECOND,
        }
    return {
        "type": "exponential",
        "maxAttempts": policy.max_attempts,
        "initialDelayMicros": policy.initial_delay // _MICROSECOND,
        "maxDelayMicros": None if policy.max_delay is None else policy.max_delay // _MICROSECOND,
        "jitter": policy.jitter,
        "jitterFactor": policy.jitter_factor,
    }


def policy_from_json(data: object) -> RetryPolicy:
    """Read the canonical JSON object of a retry policy.

    Raises:
        CorruptRecordError: it is malformed; the message names the key.
    """
    reader = Reader(as_object(data))
    kind = reader.text("type")
    try:
        if kind == "none":
            return RetryPolicy.none()
        if kind == "fixed":
            return RetryPolicy.fixed(
                max_attempts=reader.integer("maxAttempts"), delay=reader.micros("delayMicros")
            )
        if kind == "exponential":
            return RetryPolicy.exponential(
                max_attempts=reader.integer("maxAttempts"),
                initial_delay=reader.micros("initialDelayMicros"),
                max_delay=reader.micros("maxDelayMicros", default=None),
                jitter=reader.boolean("jitter", default=False),
                jitter_factor=reader.number("jitterFactor", default=0.2),
            )
    except (ValueError, TypeError, OverflowError) as error:
        raise CorruptRecordError(str(error)) from None
    raise CorruptRecordError("must be one of none, fixed, exponential", field="type")


def format_instant(instant: datetime) -> str:
    """Return ISO-8601 UTC with six digits of a second, always of the same width."""
    return instant.astimezone(UTC).isoformat(timespec="microseconds")


def to_micros(instant: datetime) -> int:
    """Return an instant as whole microseconds since 1970, exactly."""
    return (instant - EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """Return the instant of so many microseconds since 1970, exactly."""
    return EPOCH + timedelta(microseconds=micros)


_NAMES = ("id", "type", "group", "deduplication_key", "idempotency_key")
_INSTANTS = ("created_at", "updated_at", "next_attempt_at", "hand_off_deadline", "expires_at")


def _maybe(function: Any, value: Any) -> Any:
    return None if value is None else function(value)


def _failures(data: object) -> tuple[TaskFailure, ...]:
    if not isinstance(data, list):
        raise CorruptRecordError("must be a list")
    return tuple(TaskFailure.from_json(item) for item in data)
