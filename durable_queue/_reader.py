"""Strict reads from a JSON object, for the canonical encoding of records (S1.3, S13.11)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from durable_queue import _json
from durable_queue.clock import check_instant
from durable_queue.errors import CorruptRecordError, PayloadError

_REQUIRED: Any = object()


def as_object(data: object) -> dict[str, Any]:
    """Return a JSON object, known to be one."""
    if not isinstance(data, dict):
        raise CorruptRecordError(f"must be a JSON object, not {type(data).__name__}")
    return data


def text_list(data: object) -> tuple[str, ...]:
    """Return the strings of a JSON list."""
    if not isinstance(data, list) or not all(isinstance(item, str) for item in data):
        raise CorruptRecordError("must be a list of strings")
    return tuple(data)


class Reader:
    """Reads a JSON object: the right type, the default where a key is missing, or an error that names the key.

    A default of None also admits null. The error tells the expected type and never the value (S13.11).
    """

    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data

    def text(self, key: str, default: Any = _REQUIRED) -> Any:
        """Read a string."""
        return self._get(key, default, str, "a string")

    def integer(self, key: str, default: Any = _REQUIRED) -> Any:
        """Read an integer; neither a boolean nor a float."""
        return self._get(key, default, int, "an integer")

    def number(self, key: str, default: Any = _REQUIRED) -> Any:
        """Read an integer or a float."""
        return self._get(key, default, (int, float), "a number")

    def boolean(self, key: str, default: Any = _REQUIRED) -> Any:
        """Read true or false."""
        return self._get(key, default, bool, "true or false")

    def json(self, key: str, kind: type, default: Any = _REQUIRED) -> Any:
        """Read a JSON value of a type into canonical text."""
        value = self._get(key, default, kind, "a JSON object", admit_bool=True)
        if value is None:
            return None
        try:
            return _json.encode(value)
        except PayloadError as error:
            raise CorruptRecordError(f"{error.reason} (at {error.path})", field=key) from None

    def instant(self, key: str, default: Any = _REQUIRED) -> Any:
        """Read an ISO-8601 time with an offset."""
        text = self._get(key, default, str, "an ISO-8601 time")
        if text is default:
            return default
        try:
            return check_instant(datetime.fromisoformat(text), key)
        except ValueError:
            raise CorruptRecordError("must be an ISO-8601 time with an offset", field=key) from None

    def micros(self, key: str, default: Any = _REQUIRED) -> Any:
        """Read a duration in microseconds."""
        micros = self._get(key, default, int, "an integer of microseconds")
        return default if micros is default else timedelta(microseconds=micros)

    def choice(self, key: str, enum: type[Enum], default: Any = _REQUIRED) -> Any:
        """Read the value of an enum."""
        text = self._get(key, default, str, "a string")
        if text is default:
            return default
        try:
            return enum(text)
        except ValueError:
            names = ", ".join(str(member.value) for member in enum)
            raise CorruptRecordError(f"must be one of {names}", field=key) from None

    def converted(self, key: str, convert: Callable[[Any], Any], default: Any = _REQUIRED) -> Any:
        """Read what `convert` makes of a value; what it refuses is named by both keys."""
        value = self._data.get(key, default)
        if value is default and default is not _REQUIRED:
            return default
        if value is _REQUIRED:
            raise CorruptRecordError("is missing", field=key)
        try:
            return convert(value)
        except CorruptRecordError as error:
            raise CorruptRecordError(
                error.reason, field=key if error.field is None else f"{key}.{error.field}"
            ) from None

    def _get(
        self, key: str, default: Any, kind: type | tuple[type, ...], what: str, *, admit_bool: bool = False
    ) -> Any:
        value = self._data.get(key, default)
        if value is _REQUIRED:
            raise CorruptRecordError("is missing", field=key)
        if value is default:
            return default
        # bool is an int to Python, not to JSON.
        is_stray_bool = isinstance(value, bool) and kind is not bool and not admit_bool
        if not isinstance(value, kind) or is_stray_bool:
            raise CorruptRecordError(f"must be {what}, not {type(value).__name__}", field=key)
        return value
