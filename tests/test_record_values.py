"""The stored record as a value: equality, snapshots, the rules it keeps, and what its repr tells."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import attrs
import pytest

from durable_queue import (
    DependencyFailurePolicy,
    PayloadError,
    RetryPolicy,
    StoredTask,
    TaskFailure,
    TaskStatus,
)
from durable_queue._json import JsonText
from durable_queue.tasks import from_micros, to_micros
from tests.record_samples import AT, AT_TEXT, FAILURE, FIELDS, FULL, FULL_JSON, SECRET, task

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
