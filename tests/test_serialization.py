"""The codec of task classes and results: what comes back equal, what is refused, and what errors may tell."""

from __future__ import annotations

import dataclasses
import pathlib
import subprocess
import sys
import traceback
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from typing import Any, ClassVar, Literal, NamedTuple, NewType, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import cattrs
import pytest

from durable_queue import PayloadError
from durable_queue._json import JsonText
from durable_queue.serialization import PayloadCodec, encode_result, make_converter, task_type_name

SECRET = "hunter2"
NOON = datetime(2030, 1, 1, 12, 0, 0, 5, tzinfo=UTC)
UserId = NewType("UserId", int)


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Shade(str, Enum):  # noqa: UP042  # the older form is used too
    DARK = "dark"


class Level(IntEnum):
    HIGH = 3


class Name(StrEnum):
    ANN = "ann"


class Corner(Enum):
    TOP = (0, 1)


class Rights(Flag):
    READ = 1
    WRITE = 2


class Place(NamedTuple):
    x: int
    at: datetime


class Options(TypedDict, total=False):
    level: int


class Text(str):
    __slots__ = ()


@attrs.frozen
class Point:
    x: int
    y: float = 0.0


@attrs.frozen
class Point3(Point):
    z: int = 0


@attrs.define
class Node:
    value: int
    children: list[Node] = attrs.Factory(list)
    following: Node | None = None
    by_name: dict[str, Node] = attrs.Factory(dict)


@attrs.frozen
class Circle:
    radius: int


@attrs.frozen
class Square:
    side: int


FIVE = UUID(int=5)
HERE = Place(1, NOON)


@dataclasses.dataclass
class Everything:
    """Every kind of field there is, with a value of each."""

    text: str = "é😀"
    whole: int = 2**70
    number: float = 0.1 + 0.2
    yes: bool = True
    maybe: int | None = None
    either: int | str = "7"
    anything: Any = None
    thing: object = 5
    things: dict[str, object] = dataclasses.field(default_factory=lambda: {"a": [1, {"b": None}]})
    at: datetime = NOON
    maybe_at: datetime | None = NOON
    day: date = date(2030, 2, 3)
    clock: time = time(4, 5, 6, 7)
    wait: timedelta = timedelta(days=2, microseconds=3)
    uuid: UUID = FIVE
    price: Decimal = Decimal("1.50")
    blob: bytes = b"\x00\xff"
    path: pathlib.Path = pathlib.Path("a/b")
    color: Color = Color.RED
    shade: Shade = Shade.DARK
    level: Level = Level.HIGH
    name: Name = Name.ANN
    corner: Corner = Corner.TOP
    rights: Rights = Rights.READ | Rights.WRITE
    user: UserId = UserId(9)
    numbers: list[int] = dataclasses.field(default_factory=lambda: [1, 2])
    pair: tuple[int, str] = (1, "a")
    row: tuple[datetime, ...] = (NOON,)
    some: set[int] = dataclasses.field(default_factory=lambda: {10, 9, 1})
    frozen: frozenset[str] = frozenset({"b", "a"})
    abstract: AbstractSet[Color] = frozenset({Color.RED})
    sequence: Sequence[int] = (1, 2)
    line: deque[int] = dataclasses.field(default_factory=lambda: deque([1, 2]))
    mapping: Mapping[str, timedelta] = dataclasses.field(default_factory=lambda: {"a": timedelta(1)})
    by_uuid: dict[UUID, Point] = dataclasses.field(default_factory=lambda: {UUID(int=1): Point(1)})
    exactly: Literal["a", 1, Color.BLUE] = 1
    place: Place = HERE
    options: Options = dataclasses.field(default_factory=lambda: Options(level=1))
    point: Point = Point(1)
    maybe_point: Point | None = Point(2, 0.5)
    points: list[Point] = dataclasses.field(default_factory=lambda: [Point(1)])
    shape: Circle | Square = Square(2)
    bare_list: list = dataclasses.field(default_factory=lambda: [1, {"a": None}])  # type: ignore[type-arg]  # bare
    bare_dict: dict = dataclasses.field(default_factory=lambda: {"a": [1]})  # type: ignore[type-arg]  # bare
    bare_tuple: tuple = (1, "a")  # type: ignore[type-arg]  # bare


EVERYTHING_TEXT = (
    '{"abstract":["red"],"anything":null,"at":"2030-01-01T12:00:00.000005+00:00",'
    '"bare_dict":{"a":[1]},"bare_list":[1,{"a":null}],"bare_tuple":[1,"a"],"blob":"AP8=",'
    '"by_uuid":{"00000000-0000-0000-0000-000000000001":{"x":1,"y":0.0}},"clock":"04:05:06.000007",'
    '"color":"red","corner":"TOP","day":"2030-02-03","either":"7","exactly":1,"frozen":["a","b"],"level":3,'
    '"line":[1,2],"mapping":{"a":86400000000},"maybe":null,"maybe_at":"2030-01-01T12:00:00.000005+00:00",'
    '"maybe_point":{"x":2,"y":0.5},"name":"ann","number":0.30000000000000004,"numbers":[1,2],'
    '"options":{"level":1},"pair":[1,"a"],"path":"a/b","place":[1,"2030-01-01T12:00:00.000005+00:00"],'
    '"point":{"x":1,"y":0.0},"points":[{"x":1,"y":0.0}],"price":"1.50","rights":3,'
    '"row":["2030-01-01T12:00:00.000005+00:00"],"sequence":[1,2],"shade":"dark","shape":{"side":2},'
    '"some":[1,9,10],"text":"é😀","thing":5,"things":{"a":[1,{"b":null}]},"user":9,'
    '"uuid":"00000000-0000-0000-0000-000000000005","wait":172800000003,"whole":1180591620717411303424,'
    '"yes":true}'
)


@pytest.fixture(name="converter")
def _converter() -> cattrs.Converter:
    return make_converter()


def codec_of(task_class: type[Any]) -> PayloadCodec[Any]:
    return PayloadCodec(make_converter(), task_class)


def refused(task: Any) -> str:
    """The message with which a task is refused."""
    with pytest.raises(PayloadError) as caught:
        codec_of(type(task)).encode(task)
    return str(caught.value)


def undecodable(task_class: type[Any], text: str) -> str:
    """The message with which a stored text is refused."""
    with pytest.raises(PayloadError) as caught:
        codec_of(task_class).decode(text)
    return str(caught.value)


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


@attrs.frozen
class Picky:
    """Refuses with messages that tell the value, as classes of users do."""

    name: str = attrs.field(validator=attrs.validators.in_(["ok"]))
    tags: dict[str, UUID] = attrs.Factory(dict)
    level: Literal["a", "b"] | None = None
    shape: Circle | Square | None = None

    def __attrs_post_init__(self) -> None:
        if self.tags:
            raise RuntimeError(f"refused: {self.tags}")


@pytest.mark.parametrize(
    "text",
    [
        f'{{"name": "{SECRET}"}}',
        f'{{"name": ["{SECRET}"]}}',
        f'{{"name": "ok", "tags": {{"{SECRET} ": "x"}}}}',
        f'{{"name": "ok", "tags": {{"a": "{SECRET}"}}}}',
        f'{{"name": "ok", "tags": {{"a": "{UUID(int=7)}"}}, "x": "{SECRET}"}}',
        f'{{"name": "ok", "level": "{SECRET}"}}',
        f'{{"name": "ok", "shape": {{"{SECRET}": 1}}}}',
        f'{{"name": "ok", "shape": "{SECRET}"}}',
        f'{{"name": "{SECRET}',
        f'"{SECRET}"',
    ],
)
def test_no_error_of_decoding_tells_a_value(text: str) -> None:
    """S1.8, S13.11: neither the message nor anything chained to it or printed with it holds a value."""
    with pytest.raises(PayloadError) as caught:
        codec_of(Picky).decode(text)

    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    printed = "".join(traceback.format_exception(caught.value))
    assert SECRET not in printed
    assert str(UUID(int=7)) not in printed


def test_no_error_of_encoding_tells_a_value() -> None:
    """S1.8: the same holds for a task that is refused."""
    task = Everything(anything={f"{SECRET} ": [SECRET, {SECRET}]}, numbers=[SECRET])  # type: ignore[list-item]  # the point
    with pytest.raises(PayloadError) as caught:
        codec_of(Everything).encode(task)

    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__context__ is None


@attrs.define(eq=False)
class Nameless:
    """A class without equality, with another one in it."""

    value: Any = None
    other: Nameless | None = None


def test_a_class_without_equality_is_compared_field_by_field() -> None:
    """S2.2: a class that does not define equality is accepted when its fields come back equal."""
    codec = codec_of(Nameless)

    assert codec.decode(codec.encode(Nameless([1], Nameless(2)))).other.value == 2
    assert refused(Nameless(other=Nameless((1,)))) == "$.other.value: a value of type tuple is not JSON"


@attrs.define(eq=False)
class Lossy:
    """Forgets on its way: the field is not given to the constructor."""

    kept: int
    count: int = attrs.field(default=0, init=False)


def test_a_class_that_forgets_is_refused() -> None:
    """S2.2: state that the constructor does not take would be lost, and is refused with its path."""
    task = Lossy(1)
    assert codec_of(Lossy).encode(task) == '{"kept":1}'
    task.count = 5

    assert refused(task) == "$.count: does not come back equal"


class Money:
    """A plain class: no equality, and the queue does not know it."""

    def __init__(self, cents: int) -> None:
        self.cents = cents


@attrs.frozen
class Bill:
    total: Money


def test_a_hook_of_the_user_brings_in_a_class(converter: cattrs.Converter) -> None:
    """S2.2: a class that hooks are registered for can be stored; without equality its text is compared."""
    converter.register_unstructure_hook(Money, lambda money: money.cents)
    converter.register_structure_hook(Money, lambda cents, _: Money(cents))
    codec = PayloadCodec(converter, Bill)

    assert codec.encode(Bill(Money(5))) == '{"total":5}'
    assert codec.decode('{"total":5}').total.cents == 5


def test_a_hook_that_does_not_bring_the_value_back_is_noticed(converter: cattrs.Converter) -> None:
    """S2.2: hooks that do not fit together are found at the first encoding."""
    converter.register_unstructure_hook(Money, lambda money: money.cents)
    converter.register_structure_hook(Money, lambda cents, _: Money(cents + 1))

    with pytest.raises(PayloadError, match=r"^\$: does not come back equal$"):
        PayloadCodec(converter, Bill).encode(Bill(Money(5)))


@pytest.mark.parametrize(
    "error", [ValueError(SECRET), KeyError("total"), RecursionError(), PayloadError(SECRET)]
)
def test_a_hook_that_raises_is_a_payload_error(converter: cattrs.Converter, error: Exception) -> None:
    """S2.2: whatever a hook raises, enqueue answers with a PayloadError."""

    def fail(_: Any, __: Any = None) -> Any:
        raise error

    converter.register_structure_hook(Money, fail)
    converter.register_unstructure_hook(Money, lambda money: money.cents)
    with pytest.raises(PayloadError):
        PayloadCodec(converter, Bill).encode(Bill(Money(5)))
    converter.register_unstructure_hook(Money, fail)
    with pytest.raises(PayloadError):
        PayloadCodec(converter, Bill).encode(Bill(Money(5)))


def test_a_hook_must_make_an_object_of_a_task(converter: cattrs.Converter) -> None:
    """S1.1: a payload is a JSON object, also when a hook of the user writes it."""
    converter.register_unstructure_hook(Point, lambda point: [point.x, point.y])

    with pytest.raises(PayloadError, match="must be an object, not a list"):
        PayloadCodec(converter, Point).encode(Point(1))


class Quarrelsome:
    """Refuses to be compared."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError(SECRET)

    __hash__ = None  # type: ignore[assignment]  # not needed


def test_an_equality_that_raises_is_a_payload_error(converter: cattrs.Converter) -> None:
    """S2.2: a class whose equality raises is refused like any other that does not come back equal."""
    converter.register_unstructure_hook(Quarrelsome, lambda _: 1)
    converter.register_structure_hook(Quarrelsome, lambda _, __: Quarrelsome())
    task_class = attrs.make_class("Holder", {"inner": attrs.field(type=Quarrelsome)})

    with pytest.raises(PayloadError, match=r"^\$: is no valid Holder \(RuntimeError\)$"):
        PayloadCodec(converter, task_class).encode(task_class(Quarrelsome()))


@pytest.mark.parametrize(
    ("task_class", "message"),
    [
        (Money, "Money must be an attrs class or a dataclass to be stored as a task"),
        (dict, "dict must be an attrs class or a dataclass to be stored as a task"),
        (Point(1), "a task class must be a class, not Point"),
        (Bill, "Bill has a field that cannot be stored: .*Money.*register a hook on the converter"),
    ],
)
def test_a_class_that_cannot_be_stored_is_refused_at_registration(task_class: Any, message: str) -> None:
    """S1.1: attrs classes and dataclasses are tasks; the message says what to do about anything else."""
    with pytest.raises(TypeError, match=message):
        PayloadCodec(make_converter(), task_class)


@pytest.mark.parametrize("task", [Point3(1), Circle(1), {"x": 1}, None])
def test_an_instance_of_another_class_is_refused(task: Any) -> None:
    """S1.1: a codec takes instances of its own class, not of a subclass, which would come back as less."""
    with pytest.raises(TypeError, match="expected a task of class Point, not"):
        codec_of(Point).encode(task)


@attrs.frozen
class Named:
    task_type: ClassVar[str] = "mail.send"


@attrs.frozen
class WithField:
    task_type: str


def test_the_stored_name_is_the_given_one_or_the_attribute() -> None:
    """S2.2: a class is stored under `type=`, else under its `task_type`."""
    assert task_type_name(Named) == "mail.send"
    assert task_type_name(Named, "other") == "other"
    assert task_type_name(Point, "point") == "point"


@pytest.mark.parametrize("task_class", [Point, WithField])
def test_the_name_of_the_class_is_never_the_stored_name(task_class: type) -> None:
    """S2.2: without a name registration fails and says what to do, because classes get renamed."""
    with pytest.raises(
        TypeError, match=f"{task_class.__name__} has no stored name: give it a class attribute"
    ):
        task_type_name(task_class)


@pytest.mark.parametrize("name", ["", " ", "a\0b", "\ud800", "x" * 1001])
def test_a_name_that_cannot_be_stored_is_refused(name: str) -> None:
    """S13.11: a type name is checked like every other text."""
    with pytest.raises(ValueError, match=r"^type "):
        task_type_name(Point, name)


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
