"""The hooks for lists, tuples, sets, dicts, named tuples and typed dicts, each both ways.

They are written out instead of wrapped, because those of cattrs iterate over whatever they get, put values into the
text of their errors, and do not know annotations that are text.
"""

from __future__ import annotations

import collections.abc
import inspect
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints, is_typeddict

import cattrs
from cattrs.cols import is_namedtuple
from cattrs.fns import identity

from durable_queue._refusals import JSON_NAMES, Inside, Refusal, mismatch

Read: TypeAlias = Callable[[Any, Any], Any]
Write: TypeAlias = Callable[[Any], Any]

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


def is_anything(kind: Any) -> bool:
    """Whether a type stands for every JSON value."""
    return kind is Any or kind is object


def _is_array(kind: Any) -> bool:
    return (get_origin(kind) or kind) in _ARRAYS


def _array(kind: Any, converter: cattrs.Converter) -> Read:
    origin = get_origin(kind) or kind
    arguments = get_args(kind) or (Any,)
    build = _ARRAYS[origin]
    if origin is tuple and get_args(kind) and arguments[-1] is not Ellipsis:
        hooks = [read_hook(argument, converter) for argument in arguments]
        return partial(_read_tuple, list(zip(hooks, arguments, strict=True)))
    inner = arguments[0]
    if is_anything(inner):
        return partial(_read_plain, list, build)
    return partial(_read_array, read_hook(inner, converter), inner, build)


def _read_plain(expected: type, build: Callable[[Any], Any], value: Any, _: Any) -> Any:
    if type(value) is not expected:
        raise mismatch(JSON_NAMES[expected], value)
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


def _named_tuple(kind: Any, converter: cattrs.Converter) -> Read:
    hints = get_type_hints(kind)
    read = partial(_read_tuple, [(read_hook(hint, converter), hint) for hint in hints.values()])
    return lambda value, _: kind(*read(value, None))


def _typed_dict(kind: Any, converter: cattrs.Converter) -> Read:
    members = {name: (read_hook(hint, converter), hint) for name, hint in get_type_hints(kind).items()}

    def read(value: Any, _: Any) -> Any:
        if type(value) is not dict:
            raise mismatch("an object", value)
        found = {}
        for name, (hook, inner) in members.items():
            try:
                if name in value:
                    found[name] = hook(value[name], inner)
                elif name in kind.__required_keys__:
                    raise Refusal("is missing")
            except Exception as error:  # noqa: BLE001  # hooks of the user may raise anything
                raise Inside(name, inner, error) from None
        return found

    return read


def _is_object(kind: Any) -> bool:
    return (get_origin(kind) or kind) in _OBJECTS


def _object(kind: Any, converter: cattrs.Converter) -> Read:
    key_kind, inner = get_args(kind) or (str, Any)
    if is_anything(key_kind):
        key_kind = str
    if key_kind is str and is_anything(inner):
        return partial(_read_plain, dict, dict)
    return partial(_read_object, read_hook(key_kind, converter), key_kind, read_hook(inner, converter), inner)


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
        hooks = [write_hook(argument, converter) for argument in arguments]
        return partial(_write_tuple, tuple, hooks)
    order = _in_order if issubclass(origin, collections.abc.Set) else list
    return partial(_write_array, origin, write_hook(arguments[0], converter), order)


def _write_array(origin: type, hook: Write, order: Callable[[Iterable[Any]], Any], value: Any) -> Any:
    return order(map(hook, value)) if _is_exactly(value, origin) else value


def _write_tuple(kind: Any, hooks: list[Write], value: Any) -> Any:
    if type(value) is not kind:
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
    key_hook, hook = write_hook(key_kind, converter), write_hook(inner, converter)
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


def _typed_dict_writer(kind: Any, converter: cattrs.Converter) -> Write:
    hooks = {name: write_hook(hint, converter) for name, hint in get_type_hints(kind).items()}

    def write(value: Any) -> Any:
        # A key that the class does not know is written too, so that it is missed when it does not come back.
        return {key: hooks.get(key, identity)(item) for key, item in value.items()}

    return partial(write_exactly, dict, write)


def _named_tuple_writer(kind: Any, converter: cattrs.Converter) -> Write:
    hooks = [write_hook(hint, converter) for hint in get_type_hints(kind).values()]
    return partial(_write_tuple, kind, hooks)


def write_exactly(kind: type, write: Write, value: Any) -> Any:
    """Write a value of the class itself; anything else stays as it is, to be refused with its path."""
    return write(value) if type(value) is kind else value


def write_hook(kind: Any, converter: cattrs.Converter) -> Write:
    """Return the hook that writes a type."""
    try:
        return converter.get_unstructure_hook(kind)
    except RecursionError:
        # A class that contains itself: cattrs is making its hook just now.
        return converter.unstructure


def read_hook(kind: Any, converter: cattrs.Converter) -> Read:
    """Return the hook that reads a type."""
    try:
        return converter.get_structure_hook(kind)
    except RecursionError:
        # A class that contains itself: cattrs is making its hook just now.
        return converter.structure


READERS: tuple[tuple[Callable[[Any], bool], Callable[[Any, cattrs.Converter], Read]], ...] = (
    (is_typeddict, _typed_dict),
    (_is_array, _array),
    (_is_object, _object),
    (is_namedtuple, _named_tuple),
)
"""Which types, and what makes the hook that reads them."""

WRITERS: tuple[tuple[Callable[[Any], bool], Callable[[Any, cattrs.Converter], Write]], ...] = (
    (is_typeddict, _typed_dict_writer),
    (_is_array, _array_writer),
    (_is_object, _object_writer),
    (is_namedtuple, _named_tuple_writer),
)
"""Which types, and what makes the hook that writes them."""
