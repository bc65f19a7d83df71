"""What the hooks of the converter raise: errors whose text tells types and never a value (S1.8)."""

from __future__ import annotations

from typing import Any, get_origin

JSON_NAMES: dict[type, str] = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
    list: "a list",
    dict: "an object",
}


class Refusal(ValueError):  # noqa: N818  # never leaves the package; PayloadError does
    """A JSON value that a hook refuses; the text is safe to show, because it tells no value."""


def mismatch(expected: str, value: object) -> Refusal:
    """Return the error for a JSON value of the wrong type."""
    kind = type(value)
    return Refusal(f"must be {expected}, not {JSON_NAMES.get(kind, kind.__qualname__)}")


class Inside(Exception):  # noqa: N818  # it says where an error is; the error is another one
    """Carries an error out of a collection: which element, and the type that it should have."""

    def __init__(self, step: object, expected: Any, error: Exception) -> None:
        super().__init__()
        self.step = step
        self.expected = expected
        self.error = error


def type_name(kind: Any) -> str:
    """Return how a message calls a type."""
    if get_origin(kind) is None and isinstance(kind, type):
        return kind.__qualname__
    return str(kind).replace("typing.", "")
