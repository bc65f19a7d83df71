"""Results of handlers as JSON: what is taken, what becomes of it, and what is refused."""

from __future__ import annotations

import pathlib
import sys
from collections import defaultdict
from datetime import datetime
from decimal import Decimal
from typing import Any

import cattrs
import pytest

from durable_queue import PayloadError
from durable_queue.serialization import encode_result, make_converter
from tests.payload_samples import NOON, SECRET, Bill, Color, Level, Money, Place, Point, Text


@pytest.fixture(name="converter")
def _converter() -> cattrs.Converter:
    return make_converter()


def test_a_result_of_none_is_no_text(converter: cattrs.Converter) -> None:
    """S5.1: None is stored as no result."""
    assert encode_result(converter, None) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (False, "false"),
        (0, "0"),
        ("", '""'),
        ([], "[]"),
        ({"b": [1, None], "a": 0.5}, '{"a":0.5,"b":[1,null]}'),
        ((1, (2, "x")), '[1,[2,"x"]]'),
        (NOON, '"2030-01-01T12:00:00.000005+00:00"'),
        (
            {"at": NOON, "points": [Point(1)]},
            '{"at":"2030-01-01T12:00:00.000005+00:00","points":[{"x":1,"y":0.0}]}',
        ),
        (Point(1), '{"x":1,"y":0.0}'),
        (defaultdict(list, a=[1]), '{"a":[1]}'),
        (Place(1, NOON), '[1,"2030-01-01T12:00:00.000005+00:00"]'),
        (Color.RED, '"red"'),
        (Level.HIGH, "3"),
        (Decimal("1.5"), '"1.5"'),
        (pathlib.PurePosixPath("a/b"), '"a/b"'),
    ],
    ids=repr,
)
def test_a_result_is_json_or_what_the_converter_makes_of_it(
    converter: cattrs.Converter, value: Any, text: str
) -> None:
    """S5.1: JSON values stay as they are; tuples become lists, and known classes what the converter says."""
    assert encode_result(converter, value) == text


RING: list[Any] = []
RING.append(RING)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({1, 2}, r"^\$: a value of type set is not JSON; return a sorted list$"),
        ([{"a": frozenset()}], r"^\$\[0\]\.a: a value of type frozenset is not JSON; return a sorted list$"),
        (lambda: None, r"^\$: a value of type function is not JSON$"),
        (object(), r"^\$: a value of type object is not JSON$"),
        (Money(1), r"^\$: a value of type Money is not JSON$"),
        (sys.stdout.__class__, r"^\$: a value of type type is not JSON$"),
        (float("nan"), r"^\$: NaN and infinities are not JSON$"),
        ([10**5000], r"^\$\[0\]: an int of more than 640 digits cannot be stored$"),
        ("\ud800", r"^\$: text with a lone surrogate cannot be stored$"),
        ({1: "a"}, r"^\$: object keys must be strings, not int$"),
        (Text("x"), r"^\$: a value of type Text is not JSON$"),
        (RING, r"nested deeper than 100 levels$"),
        (Bill(Money(1)), r"^\$\.total: a value of type Money is not JSON$"),
    ],
)
def test_a_result_that_is_not_json_is_refused_by_its_type(
    converter: cattrs.Converter, value: Any, message: str
) -> None:
    """S5.1: a result that cannot be encoded is refused, and the message names its type and path."""
    with pytest.raises(PayloadError, match=message) as caught:
        encode_result(converter, value)

    assert caught.value.__context__ is None


def test_a_hook_that_raises_is_told_by_its_place(converter: cattrs.Converter) -> None:
    """S5.1: a hook that fails on a part of a result is a PayloadError with the path of that part."""

    def fail(_: Money) -> int:
        raise RuntimeError(SECRET)

    converter.register_unstructure_hook(Money, fail)

    with pytest.raises(PayloadError) as caught:
        encode_result(converter, {"bills": [1, Money(5)]})
    assert str(caught.value) == "$.bills[1]: is no valid Money (RuntimeError)"
    assert caught.value.__context__ is None


def test_an_open_file_is_no_result(converter: cattrs.Converter, tmp_path: pathlib.Path) -> None:
    """S5.1: an open file is refused by its type."""
    with (
        (tmp_path / "file").open("w", encoding="utf-8") as file,
        pytest.raises(PayloadError, match="a value of type TextIOWrapper is not JSON"),
    ):
        encode_result(converter, file)


def test_a_naive_datetime_is_no_result(converter: cattrs.Converter) -> None:
    """S1.7: a naive datetime is refused in a result too."""
    with pytest.raises(PayloadError, match="a naive datetime cannot be stored; give it a time zone"):
        encode_result(converter, {"at": datetime(2030, 1, 1)})  # noqa: DTZ001  # this is the point


def test_a_result_that_grows_without_end_is_refused_soon(
    converter: cattrs.Converter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S5.1: lists that contain each other twice over are refused before they are walked whole."""
    monkeypatch.setattr("durable_queue._json.SIZE_LIMIT", 2_000)
    value: Any = (1,)
    for _ in range(60):
        value = (value, value)

    with pytest.raises(PayloadError, match="more values than fit the limit of 2000 bytes"):
        encode_result(converter, value)
