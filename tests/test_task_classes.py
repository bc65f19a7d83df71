"""Which classes can be tasks, under which name, and what their hooks and errors may do."""

from __future__ import annotations

import traceback
from datetime import datetime
from typing import Any, ClassVar, Literal
from uuid import UUID

import attrs
import cattrs
import pytest

from durable_queue import PayloadError
from durable_queue.serialization import PayloadCodec, make_converter, task_type_name
from tests.payload_samples import (
    SECRET,
    Bill,
    Circle,
    Everything,
    Money,
    Point,
    Point3,
    Square,
    codec_of,
    refused,
)


@pytest.fixture(name="converter")
def _converter() -> cattrs.Converter:
    return make_converter()


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


def test_a_hook_that_reads_a_list_does_not_make_it_a_payload(converter: cattrs.Converter) -> None:
    """S1.1: a payload that is no object is refused both ways, whatever the hooks would take."""
    converter.register_unstructure_hook(Point, lambda point: [point.x])
    converter.register_structure_hook(Point, lambda values, _: Point(values[0]))
    codec = PayloadCodec(converter, Point)

    with pytest.raises(PayloadError, match=r"^\$: must be an object, not a list$"):
        codec.encode(Point(1))
    with pytest.raises(PayloadError, match=r"^\$: must be an object, not a list$"):
        codec.decode("[1]")


def test_a_hook_that_rounds_a_datetime_is_noticed(converter: cattrs.Converter) -> None:
    """S2.2: a datetime that comes back as another instant is found, with its path."""
    converter.register_unstructure_hook(datetime, lambda at: at.replace(microsecond=0).isoformat())

    with pytest.raises(PayloadError, match=r"^\$\.at: does not come back equal$"):
        PayloadCodec(converter, Everything).encode(Everything())


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
