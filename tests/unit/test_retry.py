"""The retry policy: how long a failed message waits, and which policies there can be."""

from __future__ import annotations

import itertools
import math
import pickle
from dataclasses import FrozenInstanceError, fields, replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.retry import RetryPolicy

# Delays from a nanosecond to decades; what lies beyond is arithmetic and no policy.
policies = st.builds(
    RetryPolicy,
    base_delay=st.just(0.0) | st.floats(1e-9, 1e9),
    multiplier=st.floats(1.0, 1e6),
    max_delay=st.just(0.0) | st.floats(1e-9, 1e9),
)
HUGE_ATTEMPTS = [10**9, 2**63, pytest.param(10**400, id="10**400")]


# -- delays ----------------------------------------------------------------------------------------


def test_the_default_delays_double_from_a_tenth_of_a_second_to_half_a_minute() -> None:
    policy = RetryPolicy()

    delays = [policy.delay(attempt) for attempt in range(1, 12)]

    assert delays == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0])


def test_the_defaults_are_five_attempts_and_those_delays() -> None:
    assert RetryPolicy() == RetryPolicy(5, 0.1, 2.0, 30.0)


@given(policies, st.integers(1, 400))
def test_a_delay_is_the_bounded_power(policy: RetryPolicy, attempt: int) -> None:
    power = Fraction(policy.base_delay) * Fraction(policy.multiplier) ** (attempt - 1)

    expected = float(min(Fraction(policy.max_delay), power))

    assert policy.delay(attempt) == pytest.approx(expected, rel=1e-9, abs=1e-300)


@given(policies, st.lists(st.integers(1, 10**30), min_size=2))
def test_delays_never_shrink_and_stay_within_the_bound(policy: RetryPolicy, attempts: list[int]) -> None:
    delays = [policy.delay(attempt) for attempt in sorted(attempts)]

    assert all(first <= second for first, second in itertools.pairwise(delays))
    assert all(0.0 <= delay <= policy.max_delay for delay in delays)


@pytest.mark.parametrize("attempt", HUGE_ATTEMPTS)
@pytest.mark.parametrize("multiplier", [1.5, 2.0, 1e300])
def test_a_huge_attempt_waits_the_longest_delay(attempt: int, multiplier: float) -> None:
    assert RetryPolicy(multiplier=multiplier).delay(attempt) == 30.0


@pytest.mark.parametrize("attempt", [1, 2, *HUGE_ATTEMPTS])
def test_a_multiplier_of_one_gives_the_same_delay_for_ever(attempt: int) -> None:
    assert RetryPolicy(base_delay=0.25, multiplier=1.0).delay(attempt) == 0.25


@pytest.mark.parametrize("attempt", [1, 2, *HUGE_ATTEMPTS])
def test_without_a_base_delay_every_retry_is_at_once(attempt: int) -> None:
    assert RetryPolicy(base_delay=0.0).delay(attempt) == 0.0


@pytest.mark.parametrize("attempt", [1, 2, *HUGE_ATTEMPTS])
def test_a_bound_below_the_base_delay_wins(attempt: int) -> None:
    assert RetryPolicy(base_delay=10.0, max_delay=3.0).delay(attempt) == 3.0


@pytest.mark.parametrize("attempt", [1, 2, 3, 100, *HUGE_ATTEMPTS])
def test_a_policy_of_whole_seconds_gives_floats_too(attempt: int) -> None:
    delay = RetryPolicy(base_delay=1, multiplier=2, max_delay=3).delay(attempt)

    assert type(delay) is float


def test_attempts_beyond_the_limit_have_delays_too() -> None:
    assert RetryPolicy(max_attempts=1).delay(3) == pytest.approx(0.4)


@pytest.mark.parametrize("attempt", [0, -1, -(10**9)])
def test_there_is_no_attempt_before_the_first(attempt: int) -> None:
    with pytest.raises(ValueError, match="attempt"):
        RetryPolicy().delay(attempt)


@pytest.mark.parametrize("attempt", [True, 1.0, "1", None, math.nan])
def test_an_attempt_is_a_whole_number(attempt: object) -> None:
    with pytest.raises(TypeError, match="attempt"):
        RetryPolicy().delay(attempt)  # type: ignore[arg-type]


# -- the policy ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("max_attempts", value) for value in (0, -1, -(10**30))],
        *[("base_delay", value) for value in (-0.1, -1, -math.inf, math.inf, math.nan, 10**400)],
        *[("multiplier", value) for value in (-2.0, 0.0, -math.inf, math.inf, math.nan, 10**400)],
        *[("max_delay", value) for value in (-0.1, -1, -math.inf, math.inf, math.nan, 10**400)],
    ],
)
def test_a_number_out_of_range_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        RetryPolicy(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [field.name for field in fields(RetryPolicy)])
@pytest.mark.parametrize("value", [True, False, None, "1", b"1", 1j, [1]])
def test_what_is_not_a_number_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=name):
        RetryPolicy(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [5.0, 5.5, math.nan, math.inf])
def test_the_number_of_attempts_is_whole(value: float) -> None:
    with pytest.raises(TypeError, match="max_attempts"):
        RetryPolicy(max_attempts=value)  # type: ignore[arg-type]


def test_delays_that_would_shrink_are_refused() -> None:
    with pytest.raises(ValueError, match="multiplier"):
        RetryPolicy(multiplier=0.5)


def test_one_attempt_and_no_delay_at_all_make_a_policy() -> None:
    policy = RetryPolicy(max_attempts=1, base_delay=0, multiplier=1, max_delay=0)

    assert policy.delay(1) == 0.0


@pytest.mark.parametrize("name", [field.name for field in fields(RetryPolicy)])
def test_a_policy_cannot_be_changed(name: str) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(RetryPolicy(), name, 1)


def test_a_changed_copy_is_checked_as_a_new_policy() -> None:
    assert replace(RetryPolicy(), max_attempts=3) == RetryPolicy(max_attempts=3)

    with pytest.raises(ValueError, match="max_attempts"):
        replace(RetryPolicy(), max_attempts=0)


def test_policies_compare_and_hash_by_value_and_survive_pickling() -> None:
    policy = RetryPolicy(max_attempts=7, base_delay=0.5)

    assert {policy, RetryPolicy(max_attempts=7, base_delay=0.5)} == {policy}
    assert policy != RetryPolicy(max_attempts=7)
    assert pickle.loads(pickle.dumps(policy)) == policy
