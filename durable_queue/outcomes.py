"""How an attempt ended, as a value (S5, S7, S9): what the shell hands to the core for a verdict."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TypeAlias

import attrs

from durable_queue._json import JsonText
from durable_queue.tasks import TaskFailure


@attrs.frozen(kw_only=True)
class Completed:
    """The handler, or outside work, returned.

    Attributes:
        result_text: the encoded result, or None.
        duration: how long the attempt took; None where it was not measured.
    """

    result_text: JsonText | None = attrs.field(default=None, repr=False)
    duration: timedelta | None = None


@attrs.frozen(kw_only=True)
class Failed:
    """The attempt failed.

    Attributes:
        failure: why, as text.
        may_retry: whether the kind of error and `retry_if` allow another attempt (S5.2).
        delay: the wait that `retry_delay` chose; None for the policy's.
        cancels: whether the handler said that the task is cancelled (S13.5).
        duration: how long the attempt took; None where it was not measured.
    """

    failure: TaskFailure
    may_retry: bool = True
    delay: timedelta | None = None
    cancels: bool = False
    duration: timedelta | None = None


@attrs.frozen(kw_only=True)
class HandedOff:
    """The handler returned after handing the task off (S9.1)."""

    reference: str = attrs.field(repr=False)
    deadline: datetime | None = None


@attrs.frozen
class PutBack:
    """`stop` took the attempt back: it does not count (S7.5)."""


@attrs.frozen(kw_only=True)
class Interrupted:
    """The process ended while the task ran (S7.2).

    Attributes:
        uses_attempt: whether the interruption counts as a failed attempt (S13.1).
        most: how many interruptions a task may have; None for no bound.
    """

    uses_attempt: bool = True
    most: int | None = 3


Outcome: TypeAlias = Completed | Failed | HandedOff | PutBack | Interrupted
