"""The hooks that make a cattrs converter strict; `durable_queue.serialization` is the public face.

cattrs coerces by default: ``int("7")``, ``bool(1)``. Here every hook that reads looks at the type of the JSON value
first. Hooks that write let a value of another type pass as it is: what is wrong with it is then found, with its path,
by the check of the JSON or by comparing what comes back.
"""

from __future__ import annotations

import base64
import dataclasses
import types
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from functools import cache, partial, reduce
from operator import or_
from pathlib import Path, PurePath
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin
from uuid import UUID

import attrs
import cattrs
from cattrs.fns import identity

from durable_queue._collection_hooks import (
    READERS,
    WRITERS,
    Read,
    Write,
    is_anything,
    read_hook,
    write_exactly,
)
from durable_queue._refusals import JSON_NAMES, Refusal, mismatch
from durable_queue.clock import check_instant
from durable_queue.tasks import format_instant

_MICROSECOND = timedelta(microseconds=1)
_SCALARS: frozenset[type[Any]] = frozenset({str, int, float, bool, type(None)})


def configure(converter: cattrs.Converter) -> None:
    """Register every hook on a new converter."""
    for kind in _SCALARS:
        converter.register_structure_hook(kind, partial(_scalar, kind))
    converter.register_structure_hook(Enum, _read_enum)
    # str as well: an enum whose members are texts is asked for there first.
    for kind in (Enum, str):
        converter.register_unstructure_hook(kind, _write_enum)
    for kind, form in _FORMS.items():
        converter.register_unstructure_hook(kind, partial(_write, kind, form.write))
        converter.register_structure_hook(kind, partial(_read, form))
    for reads, reader in (*_READERS, *READERS):
        converter.register_structure_hook_factory(reads, reader)
    for writes, writer in (*_WRITERS, *WRITERS):
        converter.register_unstructure_hook_factory(writes, writer)


def _scalar(plain: type, value: Any, kind: Any) -> Any:
    if type(value) is plain and kind is plain:
        return value
    # cattrs asks the hook of str or int for their subclasses too, enums among them.
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _read_enum(value, kind)
    if plain is float and type(value) is int:
        return float(value)
    if type(value) is not plain:
        raise mismatch(JSON_NAMES[plain], value)
    return kind(value)


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
        raise mismatch(JSON_NAMES[form.scalar], value)
    return form.read(kind, value)


def _anything(_: Any, __: Any) -> Read:
    return lambda value, _: value


@cache
def _is_by_value(kind: type[Enum]) -> bool:
    return issubclass(kind, Flag) or all(type(member.value) in (str, int) for member in kind)


def _write_enum(member: Any) -> Any:
    if not isinstance(member, Enum):
        return member
    return member.value if _is_by_value(type(member)) else member.name


def _read_enum(value: Any, kind: type[Enum]) -> Enum:
    if type(value) not in (str, int):
        raise mismatch("a string or an integer", value)
    return kind(value) if _is_by_value(kind) else kind[value]


def _is_literal(kind: Any) -> bool:
    return get_origin(kind) is Literal


def _literals(kind: Any) -> dict[tuple[type, Any], Any]:
    """Return the members of a literal by what they are written as, and by its type, because 1 == True == 1.0."""
    allowed: dict[tuple[type, Any], Any] = {}
    for member in get_args(kind):
        plain = _write_enum(member)
        allowed[type(plain), plain] = member
    return allowed


def _literal(kind: Any, _: Any) -> Read:
    allowed = _literals(kind)

    def read(value: Any, _: Any) -> Any:
        if type(value) not in _SCALARS or (type(value), value) not in allowed:
            raise Refusal("is none of the literal values")
        return allowed[type(value), value]

    return read


def _is_mixed_union(kind: Any) -> bool:
    """Whether a type is a union with a member that the type of the JSON value tells from the others."""
    return get_origin(kind) in (Union, types.UnionType) and any(
        member in _SCALARS or _is_literal(member) for member in get_args(kind)
    )


def _union(kind: Any, converter: cattrs.Converter) -> Read:
    members = get_args(kind)
    scalars = _SCALARS.intersection(members)
    allowed = {
        key: value for member in members if _is_literal(member) for key, value in _literals(member).items()
    }
    # What is left is one type, or a union that cattrs or the user has a hook for.
    others = [member for member in members if member not in scalars and not _is_literal(member)]
    rest = reduce(or_, others) if others else None
    hook = read_hook(rest, converter) if others else None
    float_only = float in scalars and int not in scalars

    def read(value: Any, _: Any) -> Any:
        plain = type(value)
        if plain in scalars:
            return value
        if plain in _SCALARS and (plain, value) in allowed:
            return allowed[plain, value]
        if plain is int and float_only:
            return float(value)
        if hook is None:
            raise mismatch(_either(scalars, bool(allowed)), value)
        return hook(value, rest)

    return read


def _either(scalars: frozenset[type[Any]], has_literals: bool) -> str:
    names = [name for kind, name in JSON_NAMES.items() if kind in scalars]
    return " or ".join([*names, *(["a literal value"] if has_literals else [])])


def _is_fields(kind: Any) -> bool:
    origin = get_origin(kind) or kind
    return isinstance(origin, type) and (attrs.has(origin) or dataclasses.is_dataclass(origin))


def _fields(kind: Any, converter: cattrs.Converter) -> Read:
    hook: Any = converter.gen_structure_attrs_fromdict(kind)

    def read(value: Any, _: Any) -> Any:
        if type(value) is not dict:
            raise mismatch("an object", value)
        return hook(value, kind)

    # cattrs looks here when it tells the members of a union apart.
    read.overrides = getattr(hook, "overrides", {})  # type: ignore[attr-defined]  # functions take attributes
    return read


def _fields_writer(kind: Any, converter: cattrs.Converter) -> Write:
    return partial(write_exactly, get_origin(kind) or kind, converter.gen_unstructure_attrs_fromdict(kind))


_READERS: tuple[tuple[Callable[[Any], bool], Callable[[Any, cattrs.Converter], Read]], ...] = (
    (is_anything, _anything),
    (_is_literal, _literal),
    (_is_mixed_union, _union),
    (_is_fields, _fields),
)

_WRITERS: tuple[tuple[Callable[[Any], bool], Callable[[Any, cattrs.Converter], Write]], ...] = (
    (is_anything, lambda _, __: identity),
    (_is_fields, _fields_writer),
)
