"""Checks of arguments that more than one verb takes: what is wrong is said at the door, by the argument's name."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from durable_queue.clock import LONGEST_WAIT


def check_kind(value: object, kind: type | tuple[type, ...], what: str, expected: str) -> None:
    """Check that an argument is None or an instance of a class.

    Args:
        value: the argument.
        kind: the class.
        what: its name.
        expected: how to call the class in the message.

    Raises:
        TypeError: it is something else.
    """
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{what} must be {expected}, not {type(value).__name__}")


def check_function(value: Any, what: str) -> None:
    """Check that an argument is None or can be called.

    Raises:
        TypeError: it cannot.
    """
    if value is not None and not callable(value):
        raise TypeError(f"{what} must be a function, not {type(value).__name__}")


def check_count(value: object, what: str, *, at_least: int, at_most: int | None = None) -> None:
    """Check that an argument is an int within its bounds.

    Raises:
        TypeError: it is no int; a bool is none.
        ValueError: it is too small, or too large.
    """
    if type(value) is not int:
        raise TypeError(f"{what} must be an int, not {type(value).__name__}")
    if value < at_least:
        raise ValueError(f"{what} must be at least {at_least}, not {value}")
    if at_most is not None and value > at_most:
        raise ValueError(f"{what} must be at most {at_most}, not {value}")


def check_delay(value: object, what: str) -> timedelta:
    """Check a duration: not negative, at most 365 days.

    Raises:
        TypeError: it is no timedelta.
        ValueError: it is out of range.
    """
    if not isinstance(value, timedelta):
        raise TypeError(f"{what} must be a timedelta, not {type(value).__name__}")
    if not timedelta(0) <= value <= LONGEST_WAIT:
        raise ValueError(f"{what} must be between 0 and 365 days")
    return value


def check_optional_delay(value: timedelta | None, what: str) -> timedelta | None:
    """Check a duration unless it is None; see `check_delay`."""
    return None if value is None else check_delay(value, what)
