"""Retry policies: how many attempts, and how long to wait between them (S1.4, S5.3). Pure arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

import attrs

from durable_queue.clock import LONGEST_WAIT

_MICROSECOND = timedelta(microseconds=1)
_LONGEST = LONGEST_WAIT // _MICROSECOND


def _check_attempts(_: Any, __: Any, value: object) -> None:
    if type(value) is not int:
        raise TypeError("max_attempts must be an int")
    if value < 1:
        raise ValueError("max_attempts must be at least 1")


def _check_delay(_: Any, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, timedelta):
        raise TypeError(f"{attribute.name} must be a timedelta")
    if value < timedelta(0):
        raise ValueError(f"{attribute.name} must not be negative")


@attrs.frozen(kw_only=True)
class RetryPolicy:
    """How often a task is attempted and how long it waits in between; made by `none`, `fixed` or `exponential`.

    Attributes:
        kind: which of the three it is.
        max_attempts: starts of the handler in all, 1 or more.
        initial_delay: the wait after the first attempt.
        max_delay: the longest wait, or None; every wait is at most 365 days.
        jitter: whether waits are spread at random.
        jitter_factor: f in (0, 1]; a wait is multiplied by a factor in [1 - f, 1 + f).
    """

    kind: Literal["none", "fixed", "exponential"]
    max_attempts: int = attrs.field(default=1, validator=_check_attempts)
    initial_delay: timedelta = attrs.field(default=timedelta(0), validator=_check_delay)
    max_delay: timedelta | None = attrs.field(default=None, validator=attrs.validators.optional(_check_delay))
    jitter: bool = attrs.field(default=False, validator=attrs.validators.instance_of(bool))
    jitter_factor: float = attrs.field(default=0.2)

    @jitter_factor.validator
    def _check_jitter_factor(self, _: Any, value: object) -> None:
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise TypeError("jitter_factor must be a number")
        if not 0 < value <= 1:
            raise ValueError("jitter_factor must be above 0 and at most 1")

    @classmethod
    def none(cls) -> RetryPolicy:
        """One attempt, no retry."""
        return _NONE

    @classmethod
    def fixed(cls, *, max_attempts: int, delay: timedelta) -> RetryPolicy:
        """The same wait after every failed attempt.

        Args:
            max_attempts: starts in all, 1 or more.
            delay: the wait, not negative.
        """
        return cls(kind="fixed", max_attempts=max_attempts, initial_delay=delay)

    @classmethod
    def exponential(
        cls,
        *,
        max_attempts: int,
        initial_delay: timedelta,
        max_delay: timedelta | None = None,
        jitter: bool = False,
        jitter_factor: float = 0.2,
    ) -> RetryPolicy:
        """A wait that doubles after every failed attempt.

        Args:
            max_attempts: starts in all, 1 or more.
            initial_delay: the wait after the first attempt, not negative.
            max_delay: the longest wait; None stands for 365 days.
            jitter: spread the waits, so that many tasks that failed together do not come back together.
            jitter_factor: how far, in (0, 1].
        """
        return cls(
            kind="exponential",
            max_attempts=max_attempts,
            initial_delay=initial_delay,
            max_delay=max_delay,
            jitter=jitter,
            jitter_factor=jitter_factor,
        )

    def delay_after(
        self, completed_attempts: int, random_fraction: float | Callable[[], float] = 0.5
    ) -> timedelta:
        """Return the wait after that many attempts, for any number of them, without overflow (S5.3).

        Args:
            completed_attempts: how many attempts have failed so far, 1 or more.
            random_fraction: a float in [0, 1), or a function that gives one; used for jitter only.
        """
        if completed_attempts < 1:
            raise ValueError("completed_attempts must be at least 1")
        longest = _LONGEST if self.max_delay is None else min(_LONGEST, self.max_delay // _MICROSECOND)
        micros = self.initial_delay // _MICROSECOND
        if self.kind == "exponential":
            # 2**45 microseconds are more than a year: beyond that the cap decides and the power is never built.
            micros = micros << min(completed_attempts - 1, 45)
        micros = min(micros, longest)
        if self.jitter:
            fraction = random_fraction() if callable(random_fraction) else random_fraction
            spread = 1 - self.jitter_factor + 2 * self.jitter_factor * min(max(fraction, 0.0), 1.0)
            micros = min(int(micros * spread), longest)
        return timedelta(microseconds=micros)


_NONE = RetryPolicy(kind="none")
