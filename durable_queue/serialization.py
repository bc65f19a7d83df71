"""How a task becomes JSON and comes back: the converter, the codec of a task class, and results (S1.6, S2.2).

The rules are strict in both directions (S13.11): nothing is coerced, so ``"7"`` never becomes ``7``, and what
would not come back equal is refused before it is stored. Unknown keys are ignored and missing keys take the
defaults of the class, so that a class may grow while tasks of it are stored. No message repeats a value (S1.8).
"""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

import attrs
import cattrs
from cattrs.errors import (
    AttributeValidationNote,
    ClassValidationError,
    IterableValidationError,
    IterableValidationNote,
)

from durable_queue import _json
from durable_queue._hooks import configure
from durable_queue._json import JsonText as JsonText
from durable_queue._refusals import Inside, Refusal, mismatch, type_name
from durable_queue._text import check_name
from durable_queue.errors import PayloadError

_T = TypeVar("_T")


def make_converter() -> cattrs.Converter:
    """Return a new converter with the strict rules of the queue.

    It knows attrs classes, dataclasses, typed dicts, named tuples, the JSON types, `typing.Any` and `object`
    (JSON values only), lists, tuples, sets and dicts of any of these, unions, `typing.Literal`, enums, and

    * `datetime.datetime`: aware only, ISO-8601 text; comes back in UTC (S1.7),
    * `datetime.date` and `datetime.time`: ISO-8601 text,
    * `datetime.timedelta`: an integer of microseconds,
    * `uuid.UUID`, `decimal.Decimal` and `pathlib.Path`: text,
    * `bytes`: base64 text.

    Register hooks for classes of your own on the result and hand it to ``DurableQueue(converter=...)``.
    """
    converter = cattrs.Converter()
    configure(converter)
    return converter


def task_type_name(task_class: type, type_: str | None = None) -> str:
    """Return the name under which tasks of a class are stored.

    Args:
        task_class: the class; its ``task_type`` attribute is used when `type_` is None.
        type_: the name given at registration.

    Raises:
        TypeError: there is neither, or it is not a string. The name of the class is never used, because
            renaming a class must not orphan stored tasks.
        ValueError: the name is blank, too long or holds characters that cannot be stored.
    """
    if type_ is None:
        type_ = getattr(task_class, "task_type", None)
        if not isinstance(type_, str):
            raise TypeError(
                f"{task_class.__qualname__} has no stored name: give it a class attribute "
                'task_type: ClassVar[str] = "...", or register it with type="..."'
            )
    return check_name(type_, "type")


class PayloadCodec(Generic[_T]):
    """Turns tasks of one class into canonical JSON text and back.

    Args:
        converter: see `make_converter`.
        task_class: an attrs class or dataclass.

    Attributes:
        task_class: the class.

    Raises:
        TypeError: the class is neither, or one of its fields has a type that the converter does not know.
    """

    def __init__(self, converter: cattrs.Converter, task_class: type[_T]) -> None:
        if not isinstance(task_class, type):
            raise TypeError(f"a task class must be a class, not {type(task_class).__name__}")
        if not _has_fields(task_class):
            raise TypeError(
                f"{task_class.__qualname__} must be an attrs class or a dataclass to be stored as a task"
            )
        self.task_class = task_class
        try:
            self._unstructure = converter.get_unstructure_hook(task_class)
            self._structure = converter.get_structure_hook(task_class)
        except Exception as error:
            raise TypeError(
                f"{task_class.__qualname__} has a field that cannot be stored: {error}; "
                "change its annotation or register a hook on the converter"
            ) from error

    def encode(self, task: _T) -> JsonText:
        """Encode a task, after making sure that it comes back equal.

        "Equal" is what the class says with ``==``; a class without equality is compared field by field.

        Raises:
            TypeError: the task is not an instance of the class itself.
            PayloadError: a value cannot be stored or would come back changed; the message names its path.
        """
        if type(task) is not self.task_class:
            raise TypeError(
                f"expected a task of class {self.task_class.__qualname__}, not {type(task).__qualname__}"
            )
        problem: tuple[str, str]
        try:
            value = self._unstructure(task)
            text = _json.encode(value)
            if type(value) is not dict:
                raise mismatch("an object", value)
            again = self._structure(_json.decode(text), self.task_class)
            if again == task:
                return text
            found = _difference(task, again, "$")
            if found is None and _json.encode(self._unstructure(again)) == text:
                return text
            problem = found or ("does not come back equal", "$")
        except Exception as error:  # noqa: BLE001  # hooks and classes of the user may raise anything
            problem = _explain(error, self.task_class)
        # Raised outside the handler, so that no chained exception carries the value (S1.8).
        raise PayloadError(*problem)

    def decode(self, text: str) -> _T:
        """Decode a payload to a new task.

        Raises:
            PayloadError: the text is no JSON object, or a value in it is of the wrong type; the message has
                the path and the expected type, and never the value.
        """
        try:
            value = _json.decode(text)
            if type(value) is not dict:
                raise mismatch("an object", value)
            task: _T = self._structure(value, self.task_class)
        except Exception as error:  # noqa: BLE001  # hooks and classes of the user may raise anything
            problem = _explain(error, self.task_class)
        else:
            return task
        raise PayloadError(*problem)


def encode_result(converter: cattrs.Converter, value: object) -> JsonText | None:
    """Encode what a handler returned (S5.1).

    JSON values stay as they are. A tuple becomes a list, and what the converter knows becomes what it makes of
    it: an attrs class or dataclass an object, a datetime text, and so on. A bare set has no order and is refused.

    Returns:
        The canonical text, or None for None.

    Raises:
        PayloadError: the value holds something that is not JSON; the message names its type and path.
    """
    if value is None:
        return None
    try:
        return _json.encode(_Plain(converter)(value))
    except Exception as error:  # noqa: BLE001  # hooks of the user may raise anything
        problem = _explain(error, type(value))
    raise PayloadError(*problem)


class _Plain:
    """Turns a result into JSON values by what its parts are, because nothing says what they should be."""

    def __init__(self, converter: cattrs.Converter) -> None:
        self._converter = converter
        # What cannot fit the size limit need not be walked to its end: a list may contain itself many times.
        self._budget = _json.SIZE_LIMIT // 2

    def __call__(self, value: object, path: str = "$", depth: int = 0) -> object:
        kind = type(value)
        if kind in _SCALARS:
            return value
        if depth > _json.DEPTH_LIMIT:
            raise PayloadError(f"nested deeper than {_json.DEPTH_LIMIT} levels", path)
        if isinstance(value, list | tuple | dict) and kind in _CONTAINERS:
            self._budget -= len(value)
            if self._budget < 0:
                raise PayloadError(f"more values than fit the limit of {_json.SIZE_LIMIT} bytes")
            if isinstance(value, dict):
                return {key: self(item, path + _json.step(key), depth + 1) for key, item in value.items()}
            return [self(item, path + _json.step(index), depth + 1) for index, item in enumerate(value)]
        if isinstance(value, set | frozenset):
            raise PayloadError(f"a value of type {kind.__qualname__} is not JSON; return a sorted list", path)
        try:
            return self._converter.unstructure(value)
        except Exception as error:  # noqa: BLE001  # hooks of the user may raise anything
            reason, inner = _explain(error, kind)
        raise PayloadError(reason, path + inner[1:])


_SCALARS = frozenset({str, int, float, bool, type(None)})
_CONTAINERS = frozenset({list, tuple, dict})


def _has_fields(kind: type) -> bool:
    return attrs.has(kind) or dataclasses.is_dataclass(kind)


def _compared_fields(kind: type) -> list[str]:
    if attrs.has(kind):
        return [field.name for field in attrs.fields(kind) if field.eq]
    return [field.name for field in dataclasses.fields(kind) if field.compare]


def _difference(ours: Any, theirs: Any, path: str) -> tuple[str, str] | None:
    """Find the first value that did not come back equal: what is wrong with it, and its path."""
    kind, other = type(ours), type(theirs)
    if isinstance(ours, datetime) and isinstance(theirs, datetime):
        # In the hour that a zone repeats, no datetime of that zone equals one of another zone (PEP 495).
        same = ours.astimezone(UTC) == theirs.astimezone(UTC)
        return None if same else ("does not come back equal", path)
    if kind is not other and not {kind, other} <= {int, float}:
        return f"comes back as {other.__qualname__} instead of {kind.__qualname__}", path
    if ours == theirs:
        return None
    pairs: list[tuple[str, Any, Any]]
    if kind in (list, tuple) and len(ours) == len(theirs):
        pairs = [(_json.step(index), *pair) for index, pair in enumerate(zip(ours, theirs, strict=True))]
    elif kind is dict and ours.keys() == theirs.keys():
        pairs = [(_json.step(key), value, theirs[key]) for key, value in ours.items()]
    elif _has_fields(kind):
        pairs = [(f".{name}", getattr(ours, name), getattr(theirs, name)) for name in _compared_fields(kind)]
    elif kind.__eq__ is object.__eq__:  # type: ignore[comparison-overlap]  # both are functions of the same slot
        # The class has no equality of its own; `PayloadCodec.encode` compares what it is encoded to.
        pairs = []
    else:
        return "does not come back equal", path
    for step, one, two in pairs:
        found = _difference(one, two, path + step)
        if found is not None:
            return found
    return None


def _explain(error: Exception, expected: Any) -> tuple[str, str]:
    """Turn whatever a conversion raised into a message without values, and the path that it is about."""
    path = "$"
    while True:
        if isinstance(error, Inside):
            path += _json.step(error.step)
            expected = error.expected
            error = error.error
        elif isinstance(error, ClassValidationError | IterableValidationError):
            error = error.exceptions[0]
            note = _note(error)
            if note is not None:
                path += _json.step(note.name if isinstance(note, AttributeValidationNote) else note.index)
                expected = note.type
                if isinstance(error, KeyError) and error.args == (getattr(note, "name", None),):
                    return "is missing", path
        else:
            break
    if isinstance(error, PayloadError):
        return error.reason, path + error.path[1:]
    if isinstance(error, Refusal):
        return str(error), path
    if isinstance(error, RecursionError):
        return f"nested deeper than {_json.DEPTH_LIMIT} levels, or contains itself", path
    return f"is no valid {type_name(expected)} ({type(error).__name__})", path


def _note(error: Exception) -> AttributeValidationNote | IterableValidationNote | None:
    for note in reversed(getattr(error, "__notes__", ())):
        if isinstance(note, AttributeValidationNote | IterableValidationNote):
            return note
    return None
