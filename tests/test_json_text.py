"""Canonical JSON text: what is written, what comes back, and what is refused with its path."""

from __future__ import annotations

import json
from collections import OrderedDict
from datetime import UTC, datetime
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any

import pytest

from durable_queue import PayloadError, _json

SECRET = "hunter2"


class Level(IntEnum):
    HIGH = 3


class Name(StrEnum):
    ANN = "ann"


class Text(str):
    __slots__ = ()


def nested(depth: int) -> Any:
    """A list inside a list, `depth` of them."""
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def same(one: Any, two: Any) -> bool:
    """Whether two values are equal, of the same types and, for floats, of the same sign."""
    return type(one) is type(two) and repr(one) == repr(two)


def test_text_has_sorted_keys_and_no_spaces() -> None:
    """S13.11: there is one text for one value, whatever the order in which a dict was filled."""
    value = {"b": [1, 2.5, None, True, False], "a": {"z": "x y", "k": {}}, "Z": []}

    assert _json.encode(value) == '{"Z":[],"a":{"k":{},"z":"x y"},"b":[1,2.5,null,true,false]}'


def test_text_is_not_escaped_beyond_need() -> None:
    """S13.11: text beyond ASCII stands as it is; quotes and control characters are escaped."""
    assert _json.encode(["é😀", 'q"\\', "\n\0"]) == '["é😀","q\\"\\\\","\\n\\u0000"]'


def test_what_is_encoded_says_that_it_is() -> None:
    """S1.6: encoded text is of a type of its own, so that a record does not encode it again."""
    assert type(_json.encode({})) is _json.JsonText


@pytest.mark.parametrize(
    "value",
    [
        0,
        -1,
        2**53 + 1,
        2**63,
        -(2**63),
        2**64,
        10**_json.DIGIT_LIMIT - 1,
        -(10**_json.DIGIT_LIMIT) + 1,
        0.1 + 0.2,
        -0.0,
        1.0,
        1e308,
        5e-324,
        True,
        False,
        None,
        "",
        "\0",
        "  ",
        "é😀\u2028",
        {"": 1, " ": {"a b": [[], {}]}},
        [1, 1.0, True, "1", None],
    ],
    ids=repr,
)
def test_a_value_comes_back_equal_and_of_the_same_type(value: Any) -> None:
    """S2.2: what is accepted comes back equal and of the same type."""
    text = _json.encode([value])

    assert same([value], _json.decode(text))
    assert same([value], json.loads(text))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, {"b": float("nan")}]}, "$.a[1].b: NaN and infinities are not JSON"),
        ([float("inf")], "$[0]: NaN and infinities are not JSON"),
        (float("-inf"), "$: NaN and infinities are not JSON"),
        ({"n": 10**640}, "$.n: an int of more than 640 digits cannot be stored"),
        ([-(10**640)], "$[0]: an int of more than 640 digits cannot be stored"),
        ({"n": 10**5000}, "$.n: an int of more than 640 digits cannot be stored"),
        ({"t": ["ok", "\ud800"]}, "$.t[1]: text with a lone surrogate cannot be stored"),
        ({"t": {"\udfff": 1}}, "$.t: text with a lone surrogate cannot be stored"),
        ({"d": {1: "a"}}, "$.d: object keys must be strings, not int"),
        ({1: "a", "1": "b"}, "$: object keys must be strings, not int"),
        ({True: "a"}, "$: object keys must be strings, not bool"),
        ({None: "a"}, "$: object keys must be strings, not NoneType"),
        ({Text("k"): "a"}, "$: object keys must be strings, not Text"),
        ([(1, 2)], "$[0]: a value of type tuple is not JSON"),
        ([{1}], "$[0]: a value of type set is not JSON"),
        ([b"x"], "$[0]: a value of type bytes is not JSON"),
        ([Decimal("1.5")], "$[0]: a value of type Decimal is not JSON"),
        ([datetime(2030, 1, 1, tzinfo=UTC)], "$[0]: a value of type datetime is not JSON"),
        ([Text("x")], "$[0]: a value of type Text is not JSON"),
        ([Level.HIGH], "$[0]: a value of type Level is not JSON"),
        ([Name.ANN], "$[0]: a value of type Name is not JSON"),
        ([OrderedDict()], "$[0]: a value of type OrderedDict is not JSON"),
        ([object()], "$[0]: a value of type object is not JSON"),
    ],
)
def test_what_would_change_is_refused_with_its_path(value: Any, message: str) -> None:
    """S2.2: whatever would not come back equal and of the same type is refused, with its path."""
    with pytest.raises(PayloadError) as caught:
        _json.encode(value)

    assert str(caught.value) == message
    assert caught.value.path == message.partition(": ")[0]
    assert caught.value.reason == message.partition(": ")[2]


def test_a_naive_datetime_is_refused_with_a_hint() -> None:
    """S1.7: a naive datetime is refused, and the message speaks of the time zone."""
    with pytest.raises(
        PayloadError, match=r"^\$\.at: a naive datetime cannot be stored; give it a time zone$"
    ):
        _json.encode({"at": datetime(2030, 1, 1)})  # noqa: DTZ001  # this is the point


def test_a_path_tells_no_key_that_may_be_data() -> None:
    """S1.8: only keys that look like field names stand in a path."""
    with pytest.raises(PayloadError) as caught:
        _json.encode({"ok": {f"{SECRET}@example.org": {1}}})

    assert str(caught.value) == "$.ok.*: a value of type set is not JSON"
    for key, shown in (("a" * 60, "a" * 60), ("a" * 61, "*"), ("", "*"), ("1a", "*")):
        with pytest.raises(PayloadError) as caught:
            _json.encode({key: {1}})
        assert caught.value.path == f"$.{shown}"


def test_the_depth_limit_is_the_same_everywhere() -> None:
    """S2.2: 100 levels are accepted and come back; one more is refused."""
    assert _json.decode(_json.encode(nested(100))) == nested(100)
    with pytest.raises(PayloadError, match="nested deeper than 100 levels"):
        _json.encode(nested(101))
    mixed: Any = nested(50)
    for _ in range(50):
        mixed = {"inner": mixed}
    assert _json.decode(_json.encode(mixed)) == mixed
    with pytest.raises(PayloadError, match="nested deeper than 100 levels"):
        _json.encode({"inner": mixed})


@pytest.mark.parametrize("depth", [500, 950, 1000, 100_000])
def test_any_nesting_is_refused_by_the_limit(depth: int) -> None:
    """S2.2: however deep a value is nested, the answer is a PayloadError and never a RecursionError."""
    with pytest.raises(PayloadError, match="nested deeper than 100 levels"):
        _json.encode(nested(depth))


def test_a_list_that_contains_itself_is_refused() -> None:
    """S2.2: a value without an end is refused."""
    ring: list[Any] = []
    ring.append(ring)

    with pytest.raises(PayloadError, match="nested deeper than 100 levels"):
        _json.encode(ring)


def test_a_value_that_grows_without_end_is_refused_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """S2.2: lists that contain each other twice over are refused before they are walked whole."""
    monkeypatch.setattr(_json, "SIZE_LIMIT", 2_000)
    value: list[Any] = []
    for _ in range(60):
        value = [value, value]

    with pytest.raises(PayloadError, match="more values than fit the limit of 2000 bytes"):
        _json.encode(value)


def test_the_size_limit_counts_bytes() -> None:
    """S2.2: a payload of exactly 16 MiB is accepted, one byte more is refused and the size is told."""
    limit = 16 * 1024 * 1024
    two_bytes_each = "é" * ((limit - 2) // 2)

    assert len(_json.encode("x" * (limit - 2))) == limit
    assert len(_json.encode(two_bytes_each).encode()) == limit
    with pytest.raises(PayloadError, match=f"{limit + 1} bytes of JSON are more than the limit of {limit}"):
        _json.encode("x" * (limit - 1))
    with pytest.raises(PayloadError, match=f"{limit + 2} bytes of JSON are more than the limit of {limit}"):
        _json.encode(two_bytes_each + "é")


@pytest.mark.parametrize(
    "text",
    [
        "",
        SECRET,
        f'{{"password": {SECRET}}}',
        f'["{SECRET}"',
        f'["{SECRET}"] x',
        f'["{SECRET}", NaN]',
        f'["{SECRET}", Infinity]',
        f'["{SECRET}", 1e400]',
        f'["{SECRET}", -1e400]',
        f'["{SECRET}", {"9" * 5000}]',
        f'["{SECRET}", {"[" * 100_000}{"]" * 100_000}]',
    ],
    ids=range(11),
)
def test_text_that_is_not_json_is_refused_without_repeating_it(text: str) -> None:
    """S13.11: text that does not decode is a PayloadError, and nothing of the text stands in it."""
    with pytest.raises(PayloadError) as caught:
        _json.decode(text)

    assert SECRET not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
