"""Task classes with every kind of field, and what they are written as, by hand."""

from __future__ import annotations

import dataclasses
import pathlib
from collections import deque
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from typing import Any, Literal, NamedTuple, NewType, TypedDict
from uuid import UUID

import attrs
import pytest

from durable_queue import PayloadError
from durable_queue.serialization import PayloadCodec, make_converter

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


class Money:
    """A plain class: no equality, and the queue does not know it."""

    def __init__(self, cents: int) -> None:
        self.cents = cents


@attrs.frozen
class Bill:
    total: Money


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
