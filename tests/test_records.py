"""The canonical JSON of stored records: every key, every default, every malformed value."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from durable_queue import (
    CorruptRecordError,
    RetryPolicy,
    StoredTask,
    TaskFailure,
)
from durable_queue.tasks import policy_from_json, policy_to_json
from tests.record_samples import (
    AT,
    AT_TEXT,
    FAILURE,
    FAILURE_JSON,
    FIELDS,
    FULL,
    FULL_JSON,
    KEYS,
    MINIMAL_JSON,
    REQUIRED_JSON,
    SECRET,
    corrupt,
)


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
