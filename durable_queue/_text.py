"""Checks and repairs of text: what may enter as an id, key or name, and what an error text becomes.

Every text is checked where it enters (S13.11): a NUL cuts a string short in C code, a lone surrogate cannot be
written as UTF-8, and either would make an acknowledged task unsaveable later.
"""

from __future__ import annotations

ERROR_TEXT_LIMIT = 4_000
"""Characters kept of an error's text (S5.5)."""

STACK_TRACE_LIMIT = 20_000
"""Characters kept of a traceback (S5.5)."""

NAME_LIMIT = 1_000
"""The longest id, type, key, group or reference, in characters."""


AUTOMATIC = "#"
"""How the automatic names of graph nodes begin (S13.19); ids and given names never do."""


def check_name(value: object, what: str) -> str:
    """Check an id, type, key, group or reference.

    Args:
        value: what the caller gave.
        what: how to call it in the message, for example ``"group"``; the value is never repeated (S1.8).

    Returns:
        The value, known to be a usable string.

    Raises:
        TypeError: it is not a string.
        ValueError: it is blank, too long, or holds a NUL or a lone surrogate.
    """
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a string, not {type(value).__name__}")
    if not value or value.isspace():
        raise ValueError(f"{what} must not be blank")
    if len(value) > NAME_LIMIT:
        raise ValueError(f"{what} has {len(value)} characters; at most {NAME_LIMIT} are allowed")
    if "\0" in value:
        raise ValueError(f"{what} must not contain a NUL character")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(f"{what} must not contain a lone surrogate") from None
    return value


def storable(text: str, limit: int) -> str:
    """Make any text storable: surrogates and NULs escaped, the middle cut out when it is longer than `limit`.

    Args:
        text: for example the text of an exception.
        limit: the largest number of characters to keep; both ends of a longer text are kept.
    """
    if len(text) > limit:
        head = limit // 2
        text = (
            f"{text[:head]} ... [{len(text) - limit} characters cut] ... {text[len(text) - (limit - head) :]}"
        )
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")
