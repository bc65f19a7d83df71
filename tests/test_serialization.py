"""What the codec accepts, field by field: it comes back equal and of the same type, or it is refused."""

from __future__ import annotations

import dataclasses
import pathlib
import subprocess
import sys
from collections import Counter, defaultdict
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import pytest

from durable_queue._json import JsonText
from tests.payload_samples import (
    EVERYTHING_TEXT,
    FIVE,
    NOON,
    Color,
    Everything,
    Level,
    Node,
    Place,
    Point,
    Point3,
    Text,
    codec_of,
    refused,
    undecodable,
)


def test_every_kind_of_field_has_one_form() -> None:
    """S2.2, S13.11: what each type is written as, key by key."""
    assert codec_of(Everything).encode(Everything()) == EVERYTHING_TEXT


def test_every_kind_of_field_comes_back_equal_and_of_the_same_type() -> None:
    """S2.2: what was accepted comes back equal, field by field, and of the same type."""
    task = Everything()
    again = codec_of(Everything).decode(EVERYTHING_TEXT)

    assert again == task
    for field in dataclasses.fields(Everything):
        assert type(getattr(again, field.name)) is type(getattr(task, field.name)), field.name


def test_what_is_written_says_that_it_is_canonical() -> None:
    """S1.6: the codec gives text that a record takes as it is."""
    assert type(codec_of(Point).encode(Point(1))) is JsonText


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text": 5}, "$.text: must be a string, not an integer"),
        ({"text": Text("x")}, "$.text: a value of type Text is not JSON"),
        ({"text": "\ud800"}, "$.text: text with a lone surrogate cannot be stored"),
        ({"whole": "7"}, "$.whole: must be an integer, not a string"),
        ({"whole": True}, "$.whole: must be an integer, not a boolean"),
        ({"whole": 1.0}, "$.whole: must be an integer, not a number"),
        ({"whole": Level.HIGH}, "$.whole: a value of type Level is not JSON"),
        ({"number": True}, "$.number: must be a number, not a boolean"),
        ({"number": "1"}, "$.number: must be a number, not a string"),
        ({"number": float("nan")}, "$.number: NaN and infinities are not JSON"),
        ({"number": 2**53 + 1}, "$.number: does not come back equal"),
        ({"number": 10**400}, "$.number: is no valid float (OverflowError)"),
        ({"yes": 1}, "$.yes: must be a boolean, not an integer"),
        ({"yes": None}, "$.yes: must be a boolean, not null"),
        ({"maybe": "x"}, "$.maybe: must be an integer or null, not a string"),
        ({"maybe": True}, "$.maybe: must be an integer or null, not a boolean"),
        ({"either": 1.5}, "$.either: must be a string or an integer, not a number"),
        ({"either": True}, "$.either: must be a string or an integer, not a boolean"),
        ({"anything": (1, 2)}, "$.anything: a value of type tuple is not JSON"),
        ({"anything": [{"at": NOON}]}, "$.anything[0].at: a value of type datetime is not JSON"),
        ({"anything": {1: "a"}}, "$.anything: object keys must be strings, not int"),
        ({"anything": Level.HIGH}, "$.anything: a value of type Level is not JSON"),
        ({"anything": Point(1)}, "$.anything: a value of type Point is not JSON"),
        ({"thing": {1}}, "$.thing: a value of type set is not JSON"),
        ({"things": {"a": b""}}, "$.things.a: a value of type bytes is not JSON"),
        ({"at": date(2030, 1, 1)}, "$.at: a value of type date is not JSON"),
        ({"at": "2030-01-01T00:00:00+00:00"}, "$.at: comes back as datetime instead of str"),
        ({"day": NOON}, "$.day: is no valid date (ValueError)"),
        ({"wait": 5}, "$.wait: comes back as timedelta instead of int"),
        ({"uuid": str(UUID(int=5))}, "$.uuid: comes back as UUID instead of str"),
        ({"price": 1}, "$.price: must be a string, not an integer"),
        ({"price": Decimal("NaN")}, "$.price: does not come back equal"),
        ({"price": Decimal("sNaN")}, "$: is no valid Everything (InvalidOperation)"),
        ({"blob": bytearray(b"x")}, "$.blob: a value of type bytearray is not JSON"),
        ({"path": "a/b"}, f"$.path: comes back as {type(pathlib.Path()).__name__} instead of str"),
        ({"color": "red"}, "$.color: comes back as Color instead of str"),
        ({"corner": "TOP"}, "$.corner: comes back as Corner instead of str"),
        ({"numbers": (1, 2)}, "$.numbers: a value of type tuple is not JSON"),
        ({"numbers": 5}, "$.numbers: must be a list, not an integer"),
        ({"numbers": "ab"}, "$.numbers: must be a list, not a string"),
        ({"numbers": [1, "2"]}, "$.numbers[1]: must be an integer, not a string"),
        ({"pair": (1, 2)}, "$.pair[1]: must be a string, not an integer"),
        ({"pair": (1,)}, "$.pair: must be a list of 2 values, not of 1"),
        ({"pair": (1, "a", 2)}, "$.pair: must be a list of 2 values, not of 3"),
        ({"pair": [1, "a"]}, "$.pair: comes back as tuple instead of list"),
        ({"pair": Place(1, NOON)}, "$.pair: a value of type Place is not JSON"),
        ({"row": [NOON]}, "$.row[0]: a value of type datetime is not JSON"),
        ({"some": [1]}, "$.some: comes back as set instead of list"),
        ({"some": {"a"}}, "$.some[0]: must be an integer, not a string"),
        ({"sequence": [1]}, "$.sequence: comes back as tuple instead of list"),
        ({"sequence": "ab"}, "$.sequence: must be a list, not a string"),
        ({"by_uuid": {"x y": Point(1)}}, "$.by_uuid.*: is no valid UUID (ValueError)"),
        ({"by_uuid": {UUID(int=1): Point(1), str(UUID(int=1)): Point(2)}}, "$.by_uuid: object keys must be"),
        ({"by_uuid": defaultdict(Point)}, "$.by_uuid: a value of type defaultdict is not JSON"),
        ({"exactly": True}, "$.exactly: is none of the literal values"),
        ({"exactly": 1.0}, "$.exactly: is none of the literal values"),
        ({"exactly": [1]}, "$.exactly: is none of the literal values"),
        ({"place": (1, NOON)}, "$.place: a value of type tuple is not JSON"),
        ({"options": {"level": "x"}}, "$.options.level: must be an integer, not a string"),
        ({"options": []}, "$.options: must be an object, not a list"),
        ({"point": {"x": 1}}, "$.point: comes back as Point instead of dict"),
        ({"point": Point3(1)}, "$.point: a value of type Point3 is not JSON"),
        ({"point": 5}, "$.point: must be an object, not an integer"),
        ({"maybe_point": Point("x")}, "$.maybe_point.x: must be an integer, not a string"),  # type: ignore[arg-type]  # the point
        ({"points": [Point(1), {"x": 1}]}, "$.points[1]: comes back as Point instead of dict"),
        ({"by_uuid": {FIVE: {"x": 1}}}, "$.by_uuid.*: comes back as Point instead of dict"),
        ({"options": {"level": 1, "extra": 2}}, "$.options: does not come back equal"),
        ({"points": [Point(1), Point(True)]}, "$.points[1].x: must be an integer, not a boolean"),
        ({"bare_list": [NOON]}, "$.bare_list[0]: a value of type datetime is not JSON"),
        ({"bare_list": [Level.HIGH]}, "$.bare_list[0]: a value of type Level is not JSON"),
        ({"bare_dict": {"a": (1,)}}, "$.bare_dict.a: a value of type tuple is not JSON"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_value_that_would_change_is_refused_with_its_path(change: dict[str, Any], message: str) -> None:
    """S2.2, S13.11: nothing is coerced; a value of another type than declared is refused, with its path."""
    assert refused(Everything(**change)).startswith(message)


@pytest.mark.parametrize("field", ["at", "maybe_at"])
def test_a_naive_datetime_is_refused_in_both_directions(field: str) -> None:
    """S1.7: a naive datetime is refused when a task is written and when it is read."""
    naive = datetime(2030, 1, 1)  # noqa: DTZ001  # this is the point
    hint = f"$.{field}: a naive datetime cannot be stored; give it a time zone"

    assert refused(Everything(**{field: naive})) == hint
    assert undecodable(Everything, f'{{"{field}": "2030-01-01T00:00:00"}}').startswith(
        f"$.{field}: is no valid"
    )


def test_a_datetime_comes_back_in_utc() -> None:
    """S1.7: an aware datetime of any zone is the same instant in UTC when it comes back."""
    east = datetime(2030, 1, 1, 14, tzinfo=timezone(timedelta(hours=2)))
    codec = codec_of(Everything)
    again = codec.decode(codec.encode(Everything(at=east)))

    assert again.at == east
    assert again.at.tzinfo is UTC


@attrs.frozen
class Unions:
    number: float | None = None
    word: Literal["a", 1] | None = None
    mixed: Literal["a"] | int | UUID = 1
    color: Color | None = None
    name: str | None = None
    deep: list[dict[str, float | None]] = attrs.Factory(list)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"number": true}', "$.number: must be a number or null, not a boolean"),
        ('{"number": "1"}', "$.number: must be a number or null, not a string"),
        ('{"word": true}', "$.word: must be null or a literal value, not a boolean"),
        ('{"word": 1.0}', "$.word: must be null or a literal value, not a number"),
        ('{"word": "b"}', "$.word: must be null or a literal value, not a string"),
        ('{"mixed": true}', "$.mixed: must be a string, not a boolean"),
        ('{"mixed": "b"}', "$.mixed: is no valid"),
        ('{"mixed": null}', "$.mixed: must be a string, not null"),
        ('{"color": true}', "$.color: must be a string or an integer, not a boolean"),
        ('{"name": 5}', "$.name: must be a string or null, not an integer"),
        ('{"deep": [{}, {"a": false}]}', "$.deep[1].a: must be a number or null, not a boolean"),
    ],
)
def test_unions_are_strict(text: str, message: str) -> None:
    """S13.11: the members of a union are as strict as they are alone."""
    assert undecodable(Unions, text).startswith(message)


def test_unions_come_back_equal() -> None:
    """S2.2: the members of unions come back as what they were; an int in place of a float as a float."""
    codec = codec_of(Unions)
    for task in (
        Unions(),
        Unions(number=1.5, word="a", mixed="a", color=Color.RED, deep=[{"a": None, "b": 0.5}]),
        Unions(word=1, mixed=UUID(int=5)),
    ):
        assert repr(codec.decode(codec.encode(task))) == repr(task)

    assert repr(codec.decode(codec.encode(Unions(number=3))).number) == "3.0"


class Address(TypedDict):
    city: str
    since: datetime


@attrs.frozen
class Containers:
    address: Address | None = None
    pair: tuple[int, datetime] | None = None
    by_any: dict[Any, int] = attrs.Factory(dict)
    counts: Counter[str] = attrs.Factory(Counter)
    lists: defaultdict[str, list[int]] = attrs.Factory(lambda: defaultdict(list))


def test_containers_come_back_equal() -> None:
    """S2.2: each member of a typed dict and of a tuple is written and read by its own type."""
    task = Containers(
        Address(city="x", since=NOON), (1, NOON), {"a": 1}, Counter("aab"), defaultdict(list, {"a": [1]})
    )
    codec = codec_of(Containers)
    text = codec.encode(task)

    assert text == (
        '{"address":{"city":"x","since":"2030-01-01T12:00:00.000005+00:00"},"by_any":{"a":1},'
        '"counts":{"a":2,"b":1},"lists":{"a":[1]},"pair":[1,"2030-01-01T12:00:00.000005+00:00"]}'
    )
    assert codec.decode(text) == task
    assert type(codec.decode(text).lists) is defaultdict


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"address": {"city": "x"}}', "$.address.since: is missing"),
        ('{"address": {"city": 5}}', "$.address.city: must be a string, not an integer"),
        ('{"pair": [1, 2]}', "$.pair[1]: must be a string, not an integer"),
        ('{"by_any": {"a": "1"}}', "$.by_any.a: must be an integer, not a string"),
        ('{"counts": {"a": "1"}}', "$.counts.a: must be an integer, not a string"),
        ('{"lists": {"a": ["1"]}}', "$.lists.a[0]: must be an integer, not a string"),
    ],
)
def test_containers_are_strict(text: str, message: str) -> None:
    """S13.11: the path leads into every kind of container, and members of typed dicts are required."""
    assert undecodable(Containers, text) == message


@pytest.mark.parametrize("fold", [0, 1])
def test_the_hour_that_a_zone_repeats_is_accepted(fold: int) -> None:
    """S2.2: a datetime that no datetime of another zone equals (PEP 495) is stored as its instant."""
    repeated = datetime(2030, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=fold)
    codec = codec_of(Everything)

    again = codec.decode(codec.encode(Everything(at=repeated)))

    assert again.at == datetime(2030, 10, 27, fold, 30, tzinfo=UTC)


def test_an_int_in_a_float_field_becomes_a_float() -> None:
    """S2.2: the one documented change: an int is a number, and comes back as the float that it equals."""
    codec = codec_of(Everything)
    again = codec.decode(codec.encode(Everything(number=3)))

    assert type(again.number) is float
    assert again.number == 3.0


def test_a_class_may_contain_itself() -> None:
    """S2.2: a class that refers to itself, in lists, dicts and alone, comes back equal."""
    tree = Node(1, [Node(2, [Node(3)])], Node(4), {"a": Node(5)})
    codec = codec_of(Node)

    assert codec.decode(codec.encode(tree)) == tree
    assert refused(Node(1, [Node(2, by_name={"a": Node("x")})])) == (  # type: ignore[arg-type]  # the point
        "$.children[0].by_name.a.value: must be an integer, not a string"
    )


@pytest.mark.parametrize("depth", [101, 500, 1000, 100_000])
def test_a_task_nested_too_deeply_is_refused(depth: int) -> None:
    """S2.2: however deep a task is nested, the answer is a PayloadError and never a RecursionError."""
    task = Node(0)
    for number in range(depth):
        task = Node(number, following=task)

    assert "nested deeper than 100 levels" in refused(task)


def test_a_task_that_contains_itself_is_refused() -> None:
    """S2.2: a task without an end is refused."""
    task = Node(0)
    task.following = task

    assert "nested deeper than 100 levels" in refused(task)


def test_a_set_is_written_in_one_order_in_every_process() -> None:
    """S13.11: the text of a set of texts does not depend on the hash seed of the process."""
    program = (
        "import attrs\n"
        "from durable_queue.serialization import PayloadCodec, make_converter\n"
        "Bag = attrs.make_class('Bag', {'items': attrs.field(type=set[str])})\n"
        "print(PayloadCodec(make_converter(), Bag).encode(Bag(set('abcdefgh'))))\n"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(pathlib.Path(__file__).parents[1])},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }

    assert texts == {'{"items":["a","b","c","d","e","f","g","h"]}\n'}


def test_every_decoding_gives_new_objects() -> None:
    """S1.6: two attempts share nothing, and the task that was enqueued is not what they get."""
    codec = codec_of(Everything)
    task = Everything()
    text = codec.encode(task)
    one, two = codec.decode(text), codec.decode(text)
    one.numbers.append(3)
    task.numbers.append(4)

    assert two.numbers == [1, 2]
    assert codec.decode(text).numbers == [1, 2]


def test_missing_keys_take_the_defaults_of_the_class_and_unknown_ones_are_ignored() -> None:
    """S13.11: a class may gain fields with defaults and lose fields while tasks of it are stored."""
    assert codec_of(Point).decode('{"x": 1, "gone": [1]}') == Point(1, 0.0)


@pytest.mark.parametrize(
    ("task_class", "text", "message"),
    [
        (Point, "{}", "$.x: is missing"),
        (Point, '{"x": null}', "$.x: must be an integer, not null"),
        (Point, '{"x": "7"}', "$.x: must be an integer, not a string"),
        (Point, "[]", "$: must be an object, not a list"),
        (Point, "null", "$: must be an object, not null"),
        (Point, "{", "$: stored text is not valid JSON (Expecting property name enclosed in double quotes)"),
        (Everything, '{"numbers": "abc"}', "$.numbers: must be a list, not a string"),
        (Everything, '{"numbers": {"a": 1}}', "$.numbers: must be a list, not an object"),
        (Everything, '{"frozen": "abc"}', "$.frozen: must be a list, not a string"),
        (Everything, '{"pair": {"a": 1}}', "$.pair: must be a list, not an object"),
        (Everything, '{"things": []}', "$.things: must be an object, not a list"),
        (Everything, '{"by_uuid": [1]}', "$.by_uuid: must be an object, not a list"),
        (Everything, '{"bare_list": {}}', "$.bare_list: must be a list, not an object"),
        (Everything, '{"points": [{"x": 1}, []]}', "$.points[1]: must be an object, not a list"),
        (Everything, '{"points": [{}]}', "$.points[0].x: is missing"),
        (Everything, '{"color": 1}', "$.color: is no valid Color (ValueError)"),
        (Everything, '{"color": true}', "$.color: must be a string or an integer, not a boolean"),
        (Everything, '{"level": 3.0}', "$.level: must be a string or an integer, not a number"),
        (Everything, '{"level": true}', "$.level: must be a string or an integer, not a boolean"),
        (Everything, '{"corner": "LEFT"}', "$.corner: is no valid Corner (KeyError)"),
        (Everything, '{"at": 5}', "$.at: must be a string, not an integer"),
        (Everything, '{"wait": 1.5}', "$.wait: must be an integer, not a number"),
        (Everything, '{"wait": 1e300}', "$.wait: must be an integer, not a number"),
        (Everything, f'{{"wait": {10**30}}}', "$.wait: is no valid timedelta (OverflowError)"),
        (Everything, '{"blob": "*"}', "$.blob: is no valid bytes (Error)"),
        (Everything, '{"uuid": "x"}', "$.uuid: is no valid UUID (ValueError)"),
        (Everything, '{"shape": {"edge": 1}}', "$.shape: is no valid"),
        (Everything, '{"shape": {"side": "1"}}', "$.shape.side: must be an integer, not a string"),
    ],
)
def test_decoding_is_strict_and_names_path_and_expected_type(
    task_class: type[Any], text: str, message: str
) -> None:
    """S13.11: a stored value of the wrong type is refused with its path and the expected type."""
    assert undecodable(task_class, text).startswith(message)
