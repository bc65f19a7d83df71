"""The stored record and its canonical JSON, written out by hand."""

from __future__ import annotations

import copy
import json
import pickle
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import attrs
import pytest

from durable_queue import (
    CorruptRecordError,
    DependencyFailurePolicy,
    PayloadError,
    RetryPolicy,
    StoredTask,
    TaskFailure,
    TaskStatus,
)
from durable_queue._json import JsonText
from durable_queue.tasks import from_micros, policy_from_json, policy_to_json, to_micros

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


def test_a_full_record_has_exactly_this_json() -> None:
    """S1.2, S1.3: every field has its key, and the keys stand for nothing else."""
    assert FULL.to_json() == FULL_JSON
    assert len(KEYS) == len(FIELDS)


def test_the_json_is_json() -> None:
    """S1.3: the canonical object survives `json`, byte for byte."""
    assert json.loads(json.dumps(FULL.to_json())) == FULL_JSON


def test_a_full_record_comes_back_from_its_json() -> None:
    """S1.3: what `to_json` gives, `from_json` takes back, equal in every field."""
    assert StoredTask.from_json(FULL_JSON) == FULL


def test_missing_keys_take_their_defaults() -> None:
    """S1.3, S13.11: a record of an earlier version has the defaults for what it does not have."""
    old = StoredTask.from_json(REQUIRED_JSON)

    assert old.to_json() == MINIMAL_JSON
    assert old == StoredTask(id="t-1", type="mail.send", created_at=AT)


@pytest.mark.parametrize("key", [key for key in KEYS if key not in REQUIRED_JSON])
def test_each_newer_key_may_be_missing(key: str) -> None:
    """S1.3: each newer key alone may be missing, and takes its default."""
    without = {name: value for name, value in FULL_JSON.items() if name != key}
    # Without the later time it is taken to have changed last when it was created.
    expected = AT_TEXT if key == "updatedAt" else MINIMAL_JSON[key]

    assert StoredTask.from_json(without).to_json() == {**FULL_JSON, key: expected}


@pytest.mark.parametrize("key", REQUIRED_JSON)
def test_the_first_keys_are_required(key: str) -> None:
    """S1.3: the keys that every version has are required, and the error names the one that is missing."""
    error = corrupt({name: value for name, value in FULL_JSON.items() if name != key})

    assert error.field == key
    assert error.reason == "is missing"


def test_unknown_keys_are_ignored() -> None:
    """S1.3: a record of a later version is read as far as it is understood."""
    assert StoredTask.from_json({**FULL_JSON, "later": [1]}) == FULL


NULLABLE = {
    "nextAttemptAt",
    "deduplicationKey",
    "idempotencyKey",
    "lastFailure",
    "group",
    "handOffReference",
    "handOffDeadline",
    "expiresAt",
    "result",
}


@pytest.mark.parametrize("key", KEYS)
def test_null_is_taken_where_nothing_is_a_value(key: str) -> None:
    """S13.11: null is a value of the nullable fields only."""
    data = {**FULL_JSON, key: None}

    if key in NULLABLE:
        assert StoredTask.from_json(data).to_json() == data
    else:
        assert corrupt(data).field == key


WRONG_VALUES = ["x", 7, 1.5, True, [], ["x"], [7], {}, {"x": 1}]
TAKEN: dict[str, tuple[type, ...]] = {
    "id": (str,),
    "type": (str,),
    "payload": (dict,),
    "attempts": (int,),
    "sequence": (int,),
    "deduplicationKey": (str,),
    "idempotencyKey": (str,),
    "cancelRequested": (bool,),
    "priority": (int,),
    "group": (str,),
    "handOffReference": (str,),
    "result": (str, int, float, bool, list, dict),
    "interruptions": (int,),
    "payloadVersion": (int,),
    "held": (bool,),
    "skipped": (bool,),
}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", WRONG_VALUES, ids=repr)
def test_a_value_of_the_wrong_type_is_refused_by_its_key(key: str, value: Any) -> None:
    """S1.3, S13.11: a stored value of the wrong type is refused and the error names its key and its record."""
    data = {**FULL_JSON, key: value}
    if type(value) in TAKEN.get(key, ()):
        assert StoredTask.from_json(data).to_json() == data
        return
    if key == "dependsOn" and value in ([], ["x"]):
        assert StoredTask.from_json(data).depends_on == tuple(value)
        return
    if key == "failures" and value == []:
        assert StoredTask.from_json(data).failures == ()
        return

    error = corrupt(data)

    assert error.field is not None
    assert error.field.partition(".")[0] == key
    assert key in str(error)
    assert error.task_id == (None if key == "id" else "t-1")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": ""}, "record '', field 'id': must not be empty"),
        ({"type": ""}, "record 't-1', field 'type': must not be empty"),
        ({"attempts": -1}, "record 't-1', field 'attempts': must not be negative"),
        ({"attempts": True}, "record 't-1', field 'attempts': must be an integer, not bool"),
        ({"sequence": -1}, "record 't-1', field 'sequence': must not be negative"),
        ({"deduplicationKey": ""}, "record 't-1', field 'deduplicationKey': must not be empty"),
        ({"idempotencyKey": ""}, "record 't-1', field 'idempotencyKey': must not be empty"),
        ({"group": ""}, "record 't-1', field 'group': must not be empty"),
        (
            {"dependsOn": ["t-1"]},
            "record 't-1', field 'dependsOn': must not hold an empty id or the task's own",
        ),
        ({"dependsOn": [1]}, "record 't-1', field 'dependsOn': must be a list of strings"),
        (
            {"status": "done"},
            "record 't-1', field 'status': must be one of pending, waiting, running, retryScheduled, completed, f",
        ),
        (
            {"onDependencyFailure": "skip"},
            "record 't-1', field 'onDependencyFailure': must be one of cancel, fail, run",
        ),
        ({"createdAt": "soon"}, "record 't-1', field 'createdAt': must be an ISO-8601 time with an offset"),
        (
            {"expiresAt": "2030-01-01T00:00:00"},
            "record 't-1', field 'expiresAt': must be an ISO-8601 time with an offset",
        ),
        (
            {"createdAt": "9999-12-31T23:59:59-01:00"},
            "record 't-1', field 'createdAt': must be an ISO-8601 time with an offset",
        ),
        (
            {"payload": {"n": float("nan")}},
            "record 't-1', field 'payload': NaN and infinities are not JSON (at $.n)",
        ),
        ({"result": [{1}]}, "record 't-1', field 'result': a value of type set is not JSON (at $[0])"),
        ({"retryPolicy": {"type": "often"}}, "record 't-1', field 'retryPolicy.type': must be one of none,"),
        ({"retryPolicy": {}}, "record 't-1', field 'retryPolicy.type': is missing"),
        (
            {"retryPolicy": {"type": "fixed", "maxAttempts": 3}},
            "record 't-1', field 'retryPolicy.delayMicros': is missing",
        ),
        (
            {"retryPolicy": {"type": "fixed", "maxAttempts": 0, "delayMicros": 1}},
            "record 't-1', field 'retryPolicy': max_attempts must be at least 1",
        ),
        (
            {"retryPolicy": {"type": "fixed", "maxAttempts": 1, "delayMicros": -1}},
            "record 't-1', field 'retryPolicy': initial_delay must not be negative",
        ),
        (
            {"retryPolicy": {"type": "fixed", "maxAttempts": 1, "delayMicros": 10**30}},
            "record 't-1', field 'retryPolicy': ",
        ),
        ({"lastFailure": {}}, "record 't-1', field 'lastFailure.failedAt': is missing"),
        (
            {"failures": [FAILURE_JSON, {**FAILURE_JSON, "attempt": "2"}]},
            "record 't-1', field 'failures.attempt': must be an integer, not str",
        ),
        (
            {"lastFailure": {**FAILURE_JSON, "causeTaskId": 3}},
            "record 't-1', field 'lastFailure.causeTaskId': must be a string, not int",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_malformed_value_is_refused_with_what_would_be_right(change: dict[str, Any], message: str) -> None:
    """S1.3: the error names the record and the field, and says what is expected there."""
    assert str(corrupt({**FULL_JSON, **change})).startswith(message)


@pytest.mark.parametrize("data", [None, [], "x", 5])
def test_a_record_is_an_object(data: Any) -> None:
    """S1.3: anything but an object is refused."""
    assert str(corrupt(data)) == f"record: must be a JSON object, not {type(data).__name__}"


@pytest.mark.parametrize("key", KEYS)
def test_no_error_of_reading_tells_a_value(key: str) -> None:
    """S1.8, S13.11: the error tells the expected type and never the value."""
    for value in (SECRET, [SECRET], {SECRET: SECRET}, {"type": SECRET, "error": [SECRET]}):
        try:
            StoredTask.from_json({**FULL_JSON, key: value})
        except CorruptRecordError as error:
            assert SECRET not in str(error)  # noqa: PT017  # some of these values are taken


@pytest.mark.parametrize(
    ("policy", "data"),
    [
        (RetryPolicy.none(), {"type": "none"}),
        (
            RetryPolicy.fixed(max_attempts=5, delay=timedelta(days=400)),
            {"type": "fixed", "maxAttempts": 5, "delayMicros": 34_560_000_000_000},
        ),
        (
            RetryPolicy.exponential(max_attempts=4, initial_delay=timedelta(seconds=1)),
            {
                "type": "exponential",
                "maxAttempts": 4,
                "initialDelayMicros": 1_000_000,
                "maxDelayMicros": None,
                "jitter": False,
                "jitterFactor": 0.2,
            },
        ),
        (
            RetryPolicy.exponential(
                max_attempts=4,
                initial_delay=timedelta(microseconds=3),
                max_delay=timedelta(minutes=1),
                jitter=True,
                jitter_factor=0.5,
            ),
            {
                "type": "exponential",
                "maxAttempts": 4,
                "initialDelayMicros": 3,
                "maxDelayMicros": 60_000_000,
                "jitter": True,
                "jitterFactor": 0.5,
            },
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, RetryPolicy) else None,
)
def test_each_retry_policy_has_its_json(policy: RetryPolicy, data: dict[str, Any]) -> None:
    """S1.4: the JSON of each kind of policy, both ways."""
    assert policy_to_json(policy) == data
    assert policy_from_json(data) == policy


def test_the_newer_keys_of_a_policy_may_be_missing() -> None:
    """S1.4, S13.11: an exponential policy without its optional keys has their defaults."""
    data = {"type": "exponential", "maxAttempts": 2, "initialDelayMicros": 5}

    assert policy_from_json(data) == RetryPolicy.exponential(
        max_attempts=2, initial_delay=timedelta(microseconds=5)
    )


def test_a_failure_has_its_json() -> None:
    """S1.4: the JSON of a failure, both ways, nulls included."""
    bare = TaskFailure(error="", error_type="E", failed_at=AT)

    assert FAILURE.to_json() == FAILURE_JSON
    assert TaskFailure.from_json(FAILURE_JSON) == FAILURE
    assert bare.to_json() == {
        "error": "",
        "errorType": "E",
        "stackTrace": None,
        "failedAt": AT_TEXT,
        "attempt": 0,
        "causeTaskId": None,
    }
    assert TaskFailure.from_json(bare.to_json()) == bare


OTHER_VALUES: dict[str, Any] = {
    "id": "t-2",
    "type": "other",
    "payload_text": {"b": [1, None]},
    "status": TaskStatus.PENDING,
    "attempts": 3,
    "retry_policy": RetryPolicy.none(),
    "created_at": AT + timedelta(microseconds=1),
    "updated_at": AT,
    "sequence": 8,
    "next_attempt_at": None,
    "deduplication_key": None,
    "idempotency_key": None,
    "last_failure": None,
    "cancel_requested": False,
    "priority": 5,
    "depends_on": ("d-2", "d-1"),
    "on_dependency_failure": DependencyFailurePolicy.FAIL,
    "group": None,
    "hand_off_reference": None,
    "hand_off_deadline": None,
    "expires_at": None,
    "result_text": {"ok": False},
    "interruptions": 2,
    "payload_version": 5,
    "failures": (),
    "held": False,
    "skipped": False,
}


@pytest.mark.parametrize("field", FIELDS)
def test_records_differ_when_one_field_does(field: str) -> None:
    """S1.2: equality is by every field."""
    alias = {"payload_text": "payload", "result_text": "result"}.get(field, field)

    assert attrs.evolve(FULL) == FULL
    assert attrs.evolve(FULL, **{alias: OTHER_VALUES[field]}) != FULL


@pytest.mark.parametrize("field", FIELDS)
def test_no_field_can_be_set(field: str) -> None:
    """S1.2: a record is frozen."""
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        setattr(FULL, field, OTHER_VALUES[field])


def test_records_are_values() -> None:
    """S1.2: equal records have equal hashes, and copies are equal."""
    assert hash(StoredTask.from_json(FULL_JSON)) == hash(FULL)
    assert copy.deepcopy(FULL) == FULL
    assert pickle.loads(pickle.dumps(FULL)) == FULL


def test_equality_of_payloads_is_by_canonical_text() -> None:
    """S13.11: the order of keys does not count, the types of values do."""
    one, two = task(payload={"a": 1, "b": 2}), task(payload={"b": 2, "a": 1})

    assert one == two
    assert one.payload_text == '{"a":1,"b":2}'
    assert task(payload={"a": 1}) != task(payload={"a": True})
    assert task(payload={"a": 1}) != task(payload={"a": 1.0})
    assert task(result=1) != task(result=True)


def test_nobody_changes_a_payload_through_the_record() -> None:
    """S1.6: what was given, what is read, and another reading share nothing."""
    payload: dict[str, Any] = {"items": [1]}
    record = task(payload=payload, result=payload)
    payload["items"].append(2)
    record.payload["items"].append(3)
    record.result["items"].append(4)
    record.to_json()["payload"]["items"].append(5)

    assert record.payload == {"items": [1]}
    assert record.result == {"items": [1]}


def test_canonical_text_is_taken_as_it_is() -> None:
    """S1.6: a storage that has the text hands it over without decoding it."""
    record = task(payload=JsonText('{"a":1}'), result=JsonText("null"))

    assert record.payload == {"a": 1}
    assert record.result is None
    assert record.result_text == "null"


@pytest.mark.parametrize("payload", [[], "x", 5, None])
def test_a_payload_is_an_object(payload: Any) -> None:
    """S1.1: a payload is a JSON object."""
    with pytest.raises(TypeError, match="payload must be a JSON object"):
        task(payload=payload)


def test_a_payload_or_result_that_is_not_json_is_refused() -> None:
    """S2.2, S5.1: a record holds JSON only, and the path is told."""
    with pytest.raises(PayloadError, match=r"\$\.f: a value of type function is not JSON"):
        task(payload={"f": lambda: None})
    with pytest.raises(PayloadError, match=r"\$\[0\]: NaN"):
        task(result=[float("nan")])


def test_a_stored_payload_that_does_not_decode_is_an_error_of_its_own() -> None:
    """S5.2: a broken payload text is found when it is read, without repeating it."""
    for text in ("{", "[1]"):
        with pytest.raises(PayloadError) as caught:
            _ = task(payload=JsonText(text)).payload
        assert text not in str(caught.value).replace("JSON object", "")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"id": ""}, "id must not be empty"),
        ({"type": ""}, "type must not be empty"),
        ({"attempts": -1}, "attempts must not be negative"),
        ({"sequence": -1}, "sequence must not be negative"),
        ({"group": ""}, "group must not be empty"),
        ({"deduplication_key": ""}, "deduplication_key must not be empty"),
        ({"idempotency_key": ""}, "idempotency_key must not be empty"),
        ({"depends_on": ["a", ""]}, "depends_on must not hold an empty id or the task's own"),
        ({"depends_on": ["t"]}, "depends_on must not hold an empty id or the task's own"),
    ],
)
def test_a_record_that_breaks_a_rule_is_refused(fields: dict[str, Any], message: str) -> None:
    """S1.5: the error names the field and the rule."""
    with pytest.raises(ValueError, match=f"^{message}$"):
        task(**fields)


def test_dependencies_are_folded_in_order() -> None:
    """S1.5: a dependency that is given twice counts once, where it was given first."""
    assert task(depends_on=["b", "a", "b", "c", "a"]).depends_on == ("b", "a", "c")


def test_one_text_is_no_list_of_dependencies() -> None:
    """S1.5: a lone text is refused instead of being taken for its letters."""
    with pytest.raises(TypeError, match="depends_on must be a list of task ids, not one string"):
        task(depends_on="abc")


INSTANTS = ["created_at", "updated_at", "next_attempt_at", "hand_off_deadline", "expires_at"]


@pytest.mark.parametrize("field", INSTANTS)
def test_a_naive_instant_is_refused(field: str) -> None:
    """S1.5, S1.7: a naive datetime is a ValueError that names the field and the way out."""
    naive = datetime(2030, 1, 1)  # noqa: DTZ001  # this is the point
    with pytest.raises(ValueError, match=f"^{field} is a naive datetime; give it a time zone"):
        task(**{field: naive})
    with pytest.raises(ValueError, match=r"^failed_at is a naive datetime"):
        TaskFailure(error="", error_type="E", failed_at=naive)


@pytest.mark.parametrize("field", INSTANTS)
def test_every_instant_is_turned_to_utc(field: str) -> None:
    """S1.7: an aware datetime of any zone is kept as UTC."""
    east = datetime(2030, 1, 2, 5, 4, 5, 678, tzinfo=timezone(timedelta(hours=2)))
    kept = getattr(task(**{field: east}), field)

    assert kept == AT
    assert kept.tzinfo is UTC


@pytest.mark.parametrize("field", INSTANTS)
def test_what_is_no_datetime_is_refused(field: str) -> None:
    """S1.7: a number or a text is no instant."""
    with pytest.raises(TypeError, match=f"^{field} must be a datetime, not int$"):
        task(**{field: 1_900_000_000})


@pytest.mark.parametrize(
    "at",
    [
        datetime.min.replace(tzinfo=UTC),
        datetime(1960, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(2030, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
    ],
    ids=str,
)
def test_instants_are_exact_to_the_microsecond(at: datetime) -> None:
    """S1.3: instants come back exact, as text of one width and as microseconds."""
    data = task(created_at=at).to_json()

    assert len(data["createdAt"]) == len(AT_TEXT)
    assert StoredTask.from_json(data).created_at == at
    assert from_micros(to_micros(at)) == at


def test_the_order_of_texts_is_the_order_of_instants() -> None:
    """S1.3: canonical times have one width, so that their text sorts as they do."""
    at = datetime(2030, 1, 1, 6, tzinfo=UTC)
    steps = [0, 1, 500_000, 500_001, 1_000_000]
    texts = [task(created_at=at + timedelta(microseconds=step)).to_json()["createdAt"] for step in steps]

    assert texts == sorted(texts)
    assert texts[2] == "2030-01-01T06:00:00.500000+00:00"


def test_repr_tells_nothing_that_an_application_put_in() -> None:
    """S1.8: repr has ids, type, status and numbers; no payload, result, key, group, reference or error text."""
    secret = attrs.evolve(
        FULL,
        payload={SECRET: SECRET},
        result=SECRET,
        deduplication_key=SECRET,
        idempotency_key=SECRET,
        group=SECRET,
        hand_off_reference=SECRET,
        last_failure=attrs.evolve(FAILURE, error=SECRET, stack_trace=SECRET),
    )

    assert repr(secret) == (
        "StoredTask(id='t-1', type='mail.send', status=retryScheduled, attempts=2, priority=-5, sequence=7)"
    )
    assert SECRET not in repr(secret.last_failure)


def test_terminal_statuses_say_so() -> None:
    """S2.3: three statuses are terminal, the other four are active."""
    assert {status for status in TaskStatus if status.is_terminal} == {
        TaskStatus.COMPLETED,
        TaskStatus.FAILED,
        TaskStatus.CANCELLED,
    }
