"""Canonical JSON text: how payloads and results are held, compared and checked (S1.6, S2.2, S13.11).

A record holds text, not objects: nobody can change it, every attempt decodes it afresh, and writing a record again
costs no encoding. Equality of two records is equality of this text, so it has one form: sorted keys, no spaces.
"""

from __future__ import annotations

import json
import math
from datetime import datetime
from typing import Any

from durable_queue.errors import PayloadError

DEPTH_LIMIT = 100
"""The deepest nesting of lists and objects; the same on every Python version."""

DIGIT_LIMIT = 640
"""The most digits of an int: what every interpreter setting of ``sys.set_int_max_str_digits`` still reads back."""

SIZE_LIMIT = 16 * 1024 * 1024
"""The longest payload or result, in bytes of UTF-8."""

_INT_BOUND = 10**DIGIT_LIMIT
_encoder = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


class JsonText(str):
    """JSON text that is already canonical; what a `StoredTask` holds as payload and result."""

    __slots__ = ()


def encode(value: object) -> JsonText:
    """Encode a value made of dict, list, str, int, float, bool and None.

    Returns:
        Its canonical text; decoding that gives an equal value of the same types.

    Raises:
        PayloadError: a value would not come back equal, with its path (S2.2).
    """
    _check(value)
    text = _encoder.encode(value)
    try:
        size = len(text) if text.isascii() else len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise PayloadError("text with a lone surrogate cannot be stored", _surrogate_path(value)) from None
    if size > SIZE_LIMIT:
        raise PayloadError(f"{size} bytes of JSON are more than the limit of {SIZE_LIMIT}")
    return JsonText(text)


def decode(text: str) -> Any:
    """Decode JSON text, strictly.

    Raises:
        PayloadError: the text is not JSON; the message does not repeat it.
    """
    try:
        if text[:1] != "{":
            return _decoder.decode(text)
        # Canonical text of an object, as a rule: no blanks to look for on either side.
        value, end = _decoder.raw_decode(text)
        return value if end == len(text) else _decoder.decode(text)
    except PayloadError:
        raise
    except RecursionError:
        raise PayloadError("nested too deeply to decode here") from None
    except ValueError as error:
        detail = error.msg if isinstance(error, json.JSONDecodeError) else "a number is out of range"
        raise PayloadError(f"stored text is not valid JSON ({detail})") from None


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise PayloadError("a number is out of range")
    return number


def _refuse_constant(name: str) -> Any:
    raise PayloadError(f"{name} is not JSON")


# Made once: `json.loads` would make a decoder for every call.
_decoder = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse_constant)


def _check(root: object) -> None:
    # An explicit stack, because a hostile nesting must end in a PayloadError and not in a RecursionError.
    # Every value takes two bytes of JSON at least, so more values than that cannot fit the size limit: this ends
    # the walk over a list that contains itself many times.
    budget = SIZE_LIMIT // 2
    stack: list[tuple[Any, int, Any]] = [(root, 0, None)]
    while stack:
        value, depth, where = stack.pop()
        kind = type(value)
        if kind is str or kind is bool or value is None:
            continue
        if kind is int:
            if not -_INT_BOUND < value < _INT_BOUND:
                raise PayloadError(f"an int of more than {DIGIT_LIMIT} digits cannot be stored", _path(where))
        elif kind is float:
            if not math.isfinite(value):
                raise PayloadError("NaN and infinities are not JSON", _path(where))
        elif kind is dict or kind is list:
            budget -= len(value)
            if depth == DEPTH_LIMIT:
                raise PayloadError(f"nested deeper than {DEPTH_LIMIT} levels", _path(where))
            if budget < 0:
                raise PayloadError(f"more values than fit the limit of {SIZE_LIMIT} bytes")
            if kind is list:
                stack.extend((item, depth + 1, (where, i)) for i, item in enumerate(value))
            else:
                for key, item in value.items():
                    if type(key) is not str:
                        raise PayloadError(
                            f"object keys must be strings, not {type(key).__name__}", _path(where)
                        )
                    stack.append((item, depth + 1, (where, key)))
        else:
            raise PayloadError(_not_json(value), _path(where))


def _not_json(value: object) -> str:
    if isinstance(value, datetime) and value.utcoffset() is None:
        return "a naive datetime cannot be stored; give it a time zone"
    return f"a value of type {type(value).__qualname__} is not JSON"


def _path(where: Any) -> str:
    steps: list[str] = []
    while where is not None:
        where, last = where
        steps.append(step(last))
    return "$" + "".join(reversed(steps))


def step(key: object) -> str:
    """Return one step of a path: an index, or the key of an object.

    A key can be data of the user: only what looks like the name of a field is told (S1.8).
    """
    if isinstance(key, int):
        return f"[{key}]"
    return f".{key}" if isinstance(key, str) and key.isidentifier() and len(key) <= 60 else ".*"


def _surrogate_path(root: object) -> str:
    stack: list[tuple[object, Any]] = [(root, None)]
    while stack:
        value, where = stack.pop()
        if isinstance(value, str):
            try:
                value.encode("utf-8")
            except UnicodeEncodeError:
                return _path(where)
        elif isinstance(value, list):
            stack.extend((item, (where, i)) for i, item in enumerate(value))
        elif isinstance(value, dict):
            stack.extend((key, where) for key in value)
            stack.extend((item, (where, key)) for key, item in value.items())
    return "$"
