"""Retry policies: what they accept, and the waits that follow from them."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import attrs
import pytest

from durable_queue import RetryPolicy

YEAR = timedelta(days=365)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def test_no_retry_is_one_attempt() -> None:
    """S5.2: the policy `none` allows one attempt; it is the same object every time."""
    assert RetryPolicy.none().max_attempts == 1
    assert RetryPolicy.none() is RetryPolicy.none()


def test_a_fixed_wait_is_the_same_every_time() -> None:
    """S5.3: a fixed policy waits the same after every attempt."""
    policy = RetryPolicy.fixed(max_attempts=4, delay=seconds(1.5))

    assert policy.max_attempts == 4
    assert [policy.delay_after(n) for n in (1, 2, 3, 10**6)] == [seconds(1.5)] * 4


def test_an_exponential_wait_doubles_up_to_its_maximum() -> None:
    """S5.3: the wait after attempt n is min(initial * 2^(n-1), maximum)."""
    policy = RetryPolicy.exponential(max_attempts=9, initial_delay=seconds(1), max_delay=seconds(60))

    assert [policy.delay_after(n) for n in range(1, 9)] == [
        seconds(number) for number in (1, 2, 4, 8, 16, 32, 60, 60)
    ]


def test_an_exponential_wait_follows_the_formula_for_any_attempt() -> None:
    """S5.3: for every attempt up to 5000 and for the millionth the formula holds, without overflow."""
    policy = RetryPolicy.exponential(max_attempts=9, initial_delay=seconds(1), max_delay=seconds(60))

    assert [policy.delay_after(n) for n in range(1, 5001)] == [
        seconds(min(2 ** (n - 1), 60)) for n in range(1, 5001)
    ]
    assert policy.delay_after(10**6) == seconds(60)
    assert policy.delay_after(10**30) == seconds(60)


@pytest.mark.parametrize(
    "policy",
    [
        RetryPolicy.exponential(max_attempts=9, initial_delay=timedelta(microseconds=1)),
        RetryPolicy.exponential(max_attempts=9, initial_delay=seconds(0.1)),
        RetryPolicy.exponential(max_attempts=9, initial_delay=timedelta.max),
        RetryPolicy.exponential(max_attempts=9, initial_delay=timedelta.max, max_delay=timedelta.max),
        RetryPolicy.exponential(max_attempts=9, initial_delay=seconds(1), jitter=True, jitter_factor=1.0),
        RetryPolicy.fixed(max_attempts=9, delay=timedelta.max),
        RetryPolicy.fixed(max_attempts=9, delay=timedelta(days=400)),
    ],
)
@pytest.mark.parametrize("attempt", [60, 64, 1100, 10**6])
def test_no_wait_is_longer_than_a_year(policy: RetryPolicy, attempt: int) -> None:
    """S5.3: without a maximum every wait ends at 365 days, jitter included."""
    assert policy.delay_after(attempt, 0.999999) == YEAR


def test_the_smallest_wait_doubles_exactly() -> None:
    """S5.3: doubling is exact to the microsecond until the cap decides."""
    policy = RetryPolicy.exponential(max_attempts=99, initial_delay=timedelta(microseconds=1))

    assert [policy.delay_after(n) // timedelta(microseconds=1) for n in range(1, 45)] == [
        2 ** (n - 1) for n in range(1, 45)
    ]


def test_a_wait_of_zero_stays_zero() -> None:
    """S5.3: zero doubled is zero, with jitter too."""
    policy = RetryPolicy.exponential(max_attempts=9, initial_delay=seconds(0), jitter=True)

    assert [policy.delay_after(n, 0.9) for n in (1, 50, 10**6)] == [seconds(0)] * 3


@pytest.mark.parametrize(
    ("fraction", "expected"), [(0.0, 8.0), (0.25, 9.0), (0.5, 10.0), (0.75, 11.0), (1.0, 12.0)]
)
def test_jitter_multiplies_by_a_factor_around_one(fraction: float, expected: float) -> None:
    """S5.3: with f = 0.2 a fraction r of [0, 1) multiplies by 1 - f + 2 f r."""
    policy = RetryPolicy.exponential(max_attempts=9, initial_delay=seconds(10), jitter=True)

    assert abs(policy.delay_after(1, fraction) - seconds(expected)) <= timedelta(microseconds=1)


def test_jitter_asks_for_one_fraction_and_only_if_it_is_on() -> None:
    """S5.3: the random source is handed in, as a number or as a function."""
    drawn: list[float] = []

    def draw() -> float:
        drawn.append(0.0)
        return 0.0

    jittered = RetryPolicy.exponential(max_attempts=9, initial_delay=seconds(10), jitter=True)
    plain = RetryPolicy.exponential(max_attempts=9, initial_delay=seconds(10))

    assert plain.delay_after(1, draw) == seconds(10)
    assert drawn == []
    assert jittered.delay_after(1, draw) == seconds(8)
    assert drawn == [0.0]


@pytest.mark.parametrize("factor", [1.0, 0.5, 0.2, 0.001])
def test_jitter_stays_within_its_bounds_and_below_the_maximum(factor: float) -> None:
    """S5.3: ten thousand waits are never negative, within their factor, and capped after the jitter."""
    draw = random.Random(7).random
    policy = RetryPolicy.exponential(
        max_attempts=9,
        initial_delay=seconds(4),
        max_delay=seconds(5),
        jitter=True,
        jitter_factor=factor,
    )
    waits = [policy.delay_after(2, draw) for _ in range(10_000)]

    assert min(waits) >= max(seconds(0), seconds(5 * (1 - factor)) - timedelta(microseconds=1))
    assert max(waits) <= seconds(5)
    assert len(set(waits)) > 1


@pytest.mark.parametrize("fraction", [-5.0, 7.0])
def test_a_random_source_out_of_its_range_does_no_harm(fraction: float) -> None:
    """S5.3: a source that leaves [0, 1) is held to it."""
    policy = RetryPolicy.exponential(max_attempts=9, initial_delay=seconds(10), jitter=True)

    assert seconds(8) <= policy.delay_after(1, fraction) <= seconds(12)


@pytest.mark.parametrize("attempts", [0, -1])
def test_a_wait_follows_an_attempt(attempts: int) -> None:
    """S5.3: there is no wait before the first attempt."""
    with pytest.raises(ValueError, match="completed_attempts must be at least 1"):
        RetryPolicy.none().delay_after(attempts)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_attempts": 0}, ValueError, "max_attempts must be at least 1"),
        ({"max_attempts": -1}, ValueError, "max_attempts must be at least 1"),
        ({"max_attempts": True}, TypeError, "max_attempts must be an int"),
        ({"max_attempts": 2.0}, TypeError, "max_attempts must be an int"),
        ({"initial_delay": seconds(-1)}, ValueError, "initial_delay must not be negative"),
        ({"initial_delay": 1}, TypeError, "initial_delay must be a timedelta"),
        ({"max_delay": seconds(-1)}, ValueError, "max_delay must not be negative"),
        ({"max_delay": 60.0}, TypeError, "max_delay must be a timedelta"),
        ({"jitter_factor": 0}, ValueError, "jitter_factor must be above 0 and at most 1"),
        ({"jitter_factor": 1.01}, ValueError, "jitter_factor must be above 0 and at most 1"),
        ({"jitter_factor": float("nan")}, ValueError, "jitter_factor must be above 0 and at most 1"),
        ({"jitter_factor": True}, TypeError, "jitter_factor must be a number"),
        ({"jitter_factor": "x"}, TypeError, "jitter_factor must be a number"),
        ({"jitter": 1}, TypeError, "jitter"),
    ],
    ids=lambda value: repr(value) if isinstance(value, dict) else None,
)
def test_a_policy_that_makes_no_sense_is_refused(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    """S5.3: a policy is checked when it is made, and the message names the option."""
    with pytest.raises(error, match=message):
        RetryPolicy.exponential(**{"max_attempts": 3, "initial_delay": seconds(1), **options})


def test_a_policy_is_a_value() -> None:
    """S1.2: policies are frozen and compared by what they say."""
    one = RetryPolicy.fixed(max_attempts=3, delay=seconds(1))

    assert one == RetryPolicy.fixed(max_attempts=3, delay=seconds(1))
    assert one != RetryPolicy.fixed(max_attempts=3, delay=seconds(2))
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        one.max_attempts = 5  # type: ignore[misc]  # the point
