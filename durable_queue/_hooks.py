"""The hooks that make a cattrs converter strict; `durable_queue.serialization` is the public face.

cattrs coerces by default: ``int("7")``, ``list("abc")``, ``bool(1)``. Here every hook that reads looks at the
type of the JSON value first. Hooks for collections are written out instead of wrapped, because those of cattrs
iterate over whatever they get and put values into the text of their errors.

Hooks that write let a value of another type pass as it is: what is wrong with it is then found, with its path,
by the check of the JSON or by comparing what comes back.
"""

from __future__ import annotations

import base64
import collections.abc
import dataclasses
import inspect
import types
from collections import deque
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from functools import cache, partial
from pathlib import Path, PurePath
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, is_typeddict
from uuid import UUID

import attrs
import cattrs
from cattrs.cols import is_namedtuple, namedtuple_unstructure_factory
from cattrs.fns import identity
from cattrs.strategies import configure_union_passthrough

from durable_queue.clock import check_instant
from durable_queue.tasks import format_instant

Read = Callable[[Any, Any], Any]
Write = Callable[[Any], Any]
_MICROSECOND = timedelta(microseconds=1)


class Refusal(ValueError):  # noqa: N818  # never leaves the package; PayloadError does
    """A JSON value that a hook refuses; the text is safe to show, because it tells no value."""


def mismatch(expected: str, value: object) -> Refusal:
    """Return the error for a JSON value of the wrong type."""
    kind = type(value)
    return Refusal(f"must be {expected}, not {_JSON_NAMES.get(kind, kind.__qualname__)}")


class Inside(Exception):  # noqa: N818  # it says where an error is; the error is another one
    """Carries an error out of a collection: which element, and the type that it should have."""

    def __init__(self, step: object, expected: Any, error: Exception) -> None:
        super().__init__()
        self.step = step
        self.expected = expected
        self.error = error


def configure(converter: cattrs.Converter) -> None:
    """Register every hook on a new converter."""
    configure_union_passthrough(Union[str, bool, int, float, None], converter)
    for kind, expected in _SCALARS.items():
        converter.register_structure_hook(kind, partial(_scalar, kind, expected))
    converter.register_unstructure_hook(str, _from_text)
    for kind, form in _FORMS.items():
        converter.register_unstructure_hook(kind, partial(_write, kind, form.write))
        converter.register_structure_hook(kind, partial(_read, form))
    for reads, reader in _READERS:
        converter.register_structure_hook_factory(reads, reader)
    for writes, writer in _WRITERS:
        converter.register_unstructure_hook_factory(writes, writer)


def type_name(kind: Any) -> str:
    """Return how a message calls a type."""
    if get_origin(kind) is None and isinstance(kind, type):
        return kind.__qualname__
    return str(kind).replace("typing.", "")


_JSON_NAMES: dict[type, str] = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
    list: "a list",
    dict: "an object",
}
_SCALARS = {kind: _JSON_NAMES[kind] for kind in (str, int, float, bool, type(None))}
_ARRAYS: dict[Any, Callable[[list[Any]], Any]] = {
    list: list,
    collections.abc.MutableSequence: list,
    tuple: tuple,
    collections.abc.Sequence: tuple,
    set: set,
    collections.abc.MutableSet: set,
    frozenset: frozenset,
    collections.abc.Set: frozenset,
    deque: deque,
}
_OBJECTS = frozenset({dict, collections.abc.Mapping, collections.abc.MutableMapping})


def _scalar(plain: type, expected: str, value: Any, kind: Any) -> Any:
    if type(value) is plain and kind is plain:
        return value
    # cattrs asks the hook of str or int for their subclasses too, enums among them.
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _read_enum(value, kind)
    if plain is float and type(value) is int:
        return float(value)
    if type(value) is not plain:
        raise mismatch(expected, value)
    return kind(value)


def _from_text(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


class _Form(NamedTuple):
    """How values of a type are written to a JSON scalar and read back."""

    write: Callable[[Any], Any]
    read: Callable[[Any, Any], Any]
    scalar: type = str


def _write_instant(value: datetime) -> Any:
    return value if value.utcoffset() is None else format_instant(value)


def _read_instant(_: Any, text: str) -> datetime:
    return check_instant(datetime.fromisoformat(text), "datetime")


_BY_CLASS = _Form(str, lambda kind, text: kind(text))
_FORMS: dict[type, _Form] = {
    UUID: _BY_CLASS,
    Decimal: _BY_CLASS,
    PurePath: _BY_CLASS,
    Path: _BY_CLASS,
    date: _Form(lambda value: value.isoformat(), lambda _, text: date.fromisoformat(text)),
    time: _Form(lambda value: value.isoformat(), lambda _, text: time.fromisoformat(text)),
    datetime: _Form(_write_instant, _read_instant),
    timedelta: _Form(
        lambda value: value // _MICROSECOND, lambda _, micros: timedelta(microseconds=micros), int
    ),
    bytes: _Form(
        lambda value: base64.b64encode(value).decode("ascii"),
        lambda _, text: base64.b64decode(text, validate=True),
    ),
}


def _write(kind: type, write: Callable[[Any], Any], value: Any) -> Any:
    return write(value) if isinstance(value, kind) else value


def _read(form: _Form, value: Any, kind: Any) -> Any:
    if type(value) is not form.scalar:
        raise mismatch(_JSON_NAMES[form.scalar], value)
    return form.read(kind, value)


def _is_anything(kind: Any) -> bool:
    return kind is Any or kind is object


def _anything(_: Any, __: Any) -> Read:
    return lambda value, _: value


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


@cache
def _is_by_value(kind: type[Enum]) -> bool:
    return issubclass(kind, Flag) or all(type(member.value) in (str, int) for member in kind)


def _enum_writer(kind: type[Enum], _: Any) -> Write:
    by_value = _is_by_value(kind)

    def write(member: Any) -> Any:
        if not isinstance(member, kind):
            return member
        return member.value if by_value else member.name

    return write


def _enum_reader(_: Any, __: Any) -> Read:
    return _read_enum


def _read_enum(value: Any, kind: type[Enum]) -> Enum:
    if type(value) not in (str, int):
        raise mismatch("a string or an integer", value)
    return kind(value) if _is_by_value(kind) else kind[value]


def _is_literal(kind: Any) -> bool:
    return get_origin(kind) is Literal


def _literal(kind: Any, _: Any) -> Read:
    # By type as well, because 1 == True == 1.0.
    allowed: dict[tuple[type, Any], Any] = {}
    for member in get_args(kind):
        plain = _enum_writer(type(member), None)(member) if isinstance(member, Enum) else member
        allowed[type(plain), plain] = member

    def read(value: Any, _: Any) -> Any:
        try:
            return allowed[type(value), value]
        except (KeyError, TypeError):
            raise Refusal("is none of the literal values") from None

    return read


def _is_optional(kind: Any) -> bool:
    arguments = get_args(kind)
    return get_origin(kind) in (Union, types.UnionType) and len(arguments) == 2 and type(None) in arguments


def _optional(kind: Any, converter: cattrs.Converter) -> Read:
    inner = next(argument for argument in get_args(kind) if argument is not type(None))
    hook = _read_hook(inner, converter)
    return lambda value, _: None if value is None else hook(value, inner)


def _is_fields(kind: Any) -> bool:
    origin = get_origin(kind) or kind
    return isinstance(origin, type) and (attrs.has(origin) or dataclasses.is_dataclass(origin))


def _fields(kind: Any, converter: cattrs.Converter) -> Read:
    return _only_objects(kind, converter.gen_structure_attrs_fromdict(kind))


def _typed_dict(kind: Any, converter: cattrs.Converter) -> Read:
    return _only_objects(kind, converter.gen_structure_typeddict(kind))


def _only_objects(kind: Any, hook: Any) -> Read:
    def read(value: Any, _: Any) -> Any:
        if type(value) is not dict:
            raise mismatch("an object", value)
        return hook(value, kind)

    # cattrs looks here when it tells the members of a union apart.
    read.overrides = getattr(hook, "overrides", {})  # type: ignore[attr-defined]  # functions take attributes
    return read


def _is_array(kind: Any) -> bool:
    return (get_origin(kind) or kind) in _ARRAYS


def _array(kind: Any, converter: cattrs.Converter) -> Read:
    origin = get_origin(kind) or kind
    arguments = get_args(kind) or (Any,)
    build = _ARRAYS[origin]
    if origin is tuple and get_args(kind) and arguments[-1] is not Ellipsis:
        hooks = [_read_hook(argument, converter) for argument in arguments]
        return partial(_read_tuple, list(zip(hooks, arguments, strict=True)))
    inner = arguments[0]
    if _is_anything(inner):
        return partial(_read_plain, list, build)
    return partial(_read_array, _read_hook(inner, converter), inner, build)


def _read_plain(expected: type, build: Callable[[Any], Any], value: Any, _: Any) -> Any:
    if type(value) is not expected:
        raise mismatch(_JSON_NAMES[expected], value)
    return build(value)


def _read_array(hook: Read, inner: Any, build: Callable[[Any], Any], value: Any, _: Any) -> Any:
    if type(value) is not list:
        raise mismatch("a list", value)
    elements: list[Any] = []
    try:
        for item in value:
            elements.append(hook(item, inner))  # noqa: PERF401  # its length says where it failed
    except Exception as error:  # noqa: BLE001  # hooks of the user may raise anything
        raise Inside(len(elements), inner, error) from None
    return build(elements)


def _read_tuple(members: list[tuple[Read, Any]], value: Any, _: Any) -> Any:
    if type(value) is not list:
        raise mismatch("a list", value)
    if len(value) != len(members):
        raise Refusal(f"must be a list of {len(members)} values, not of {len(value)}")
    elements: list[Any] = []
    for item, (hook, inner) in zip(value, members, strict=True):
        try:
            elements.append(hook(item, inner))
        except Exception as error:  # noqa: BLE001  # hooks of the user may raise anything
            raise Inside(len(elements), inner, error) from None
    return tuple(elements)


def _is_object(kind: Any) -> bool:
    return (get_origin(kind) or kind) in _OBJECTS


def _object(kind: Any, converter: cattrs.Converter) -> Read:
    key_kind, inner = get_args(kind) or (str, Any)
    if key_kind is str and _is_anything(inner):
        return partial(_read_plain, dict, dict)
    key_hook = _read_hook(str if _is_anything(key_kind) else key_kind, converter)
    return partial(_read_object, key_hook, key_kind, _read_hook(inner, converter), inner)


def _read_object(key_hook: Read, key_kind: Any, hook: Read, inner: Any, value: Any, _: Any) -> Any:
    if type(value) is not dict:
        raise mismatch("an object", value)
    members = {}
    for key, item in value.items():
        expected = key_kind
        try:
            name = key_hook(key, key_kind)
            expected = inner
            members[name] = hook(item, inner)
        except Exception as error:  # noqa: BLE001  # hooks of the user may raise anything
            raise Inside(key, expected, error) from None
    return members


def _array_writer(kind: Any, converter: cattrs.Converter) -> Write:
    origin = get_origin(kind) or kind
    arguments = get_args(kind) or (Any,)
    if origin is tuple and get_args(kind) and arguments[-1] is not Ellipsis:
        hooks = [_write_hook(argument, converter) for argument in arguments]
        return partial(_write_tuple, hooks)
    order = _in_order if issubclass(origin, collections.abc.Set) else list
    return partial(_write_array, origin, _write_hook(arguments[0], converter), order)


def _write_array(origin: type, hook: Write, order: Callable[[Iterable[Any]], Any], value: Any) -> Any:
    return order(map(hook, value)) if _is_exactly(value, origin) else value


def _write_tuple(hooks: list[Write], value: Any) -> Any:
    if type(value) is not tuple:
        return value
    # One of the wrong length is written whole, so that reading it back refuses it with its path.
    return [hook(item) for hook, item in zip(hooks, value, strict=False)] + list(value[len(hooks) :])


def _in_order(items: Iterable[Any]) -> list[Any]:
    # The text of a payload must depend on its values alone; a set of texts has another order in every process.
    elements = list(items)
    try:
        return sorted(elements)
    except TypeError:
        return sorted(elements, key=repr)


def _object_writer(kind: Any, converter: cattrs.Converter) -> Write:
    key_kind, inner = get_args(kind) or (Any, Any)
    key_hook, hook = _write_hook(key_kind, converter), _write_hook(inner, converter)
    return partial(_write_object, get_origin(kind) or kind, key_hook, hook)


def _write_object(origin: type, key_hook: Write, hook: Write, value: Any) -> Any:
    if not _is_exactly(value, origin):
        return value
    members = {key_hook(key): hook(item) for key, item in value.items()}
    # Two keys with one text: the value is left as it is, and refused because of its keys.
    return members if len(members) == len(value) else value


def _is_exactly(value: Any, origin: type) -> bool:
    """Whether a value may be written as this collection; a subclass would come back as the plain class."""
    if type(value) is origin:
        return True
    return inspect.isabstract(origin) and isinstance(value, origin) and not isinstance(value, (str, bytes))


def _fields_writer(kind: Any, converter: cattrs.Converter) -> Write:
    return partial(_write_exactly, get_origin(kind) or kind, converter.gen_unstructure_attrs_fromdict(kind))


def _typed_dict_writer(kind: Any, converter: cattrs.Converter) -> Write:
    return partial(_write_exactly, dict, converter.gen_unstructure_typeddict(kind))


def _named_tuple_writer(kind: Any, converter: cattrs.Converter) -> Write:
    return partial(_write_exactly, kind, namedtuple_unstructure_factory(kind, converter, unstructure_to=list))


def _write_exactly(kind: type, write: Write, value: Any) -> Any:
    return write(value) if type(value) is kind else value


def _write_hook(kind: Any, converter: cattrs.Converter) -> Write:
    try:
        return converter.get_unstructure_hook(kind)
    except RecursionError:
        # A class that contains itself: cattrs is making its hook just now.
        return converter.unstructure


def _read_hook(kind: Any, converter: cattrs.Converter) -> Read:
    try:
        return converter.get_structure_hook(kind)
    except RecursionError:
        # A class that contains itself: cattrs is making its hook just now.
        return converter.structure


_READERS: tuple[tuple[Callable[[Any], bool], Callable[[Any, Any], Read]], ...] = (
    (_is_anything, _anything),
    (_is_enum, _enum_reader),
    (_is_literal, _literal),
    (_is_optional, _optional),
    (_is_fields, _fields),
    (is_typeddict, _typed_dict),
    (_is_array, _array),
    (_is_object, _object),
)

_WRITERS: tuple[tuple[Callable[[Any], bool], Callable[[Any, Any], Write]], ...] = (
    (_is_anything, lambda _, __: identity),
    (_is_enum, _enum_writer),
    (_is_fields, _fields_writer),
    (is_typeddict, _typed_dict_writer),
    (_is_array, _array_writer),
    (_is_object, _object_writer),
    (is_namedtuple, _named_tuple_writer),
)
