"""The small parts of the stress: plan, records, latencies."""

from __future__ import annotations

import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.cli.stress.histogram import Histogram, bucket, floor
from mpbroker.cli.stress.plan import Plan, priority_of
from mpbroker.cli.stress.records import Answered, Published, Ready, Taken, decode, encode


@given(
    total=st.integers(1, 10_000),
    workers=st.integers(1, 20),
    kills=st.integers(1, 40),
    groups=st.integers(1, 4),
    seed=st.integers(0, 2**32),
)
def test_until_the_last_kill_there_is_a_message_that_nobody_may_ack(
    total: int, workers: int, kills: int, groups: int, seed: int
) -> None:
    plan = Plan(publishers=1, messages=total, workers=workers, subscriptions=groups, kill_workers=kills, seed=seed)
    for group in range(groups):
        if plan.kills(group):
            allowances = plan.allowances(group)
            assert len(allowances) == workers + plan.kills(group) - 1
            assert min(allowances) >= 0
            assert sum(allowances) < total


@given(kills=st.integers(0, 100), groups=st.integers(1, 10))
def test_the_kills_are_shared_among_the_groups(kills: int, groups: int) -> None:
    plan = Plan(subscriptions=groups, kill_workers=kills)
    shares = [plan.kills(group) for group in range(groups)]

    assert sum(shares) == kills
    assert max(shares) - min(shares) <= 1


def test_messages_of_one_call_have_one_priority_and_all_four_occur() -> None:
    plan = Plan(messages=400, batch=4, priorities=True)
    levels = [priority_of(plan, 1, number) for number in range(400)]

    assert all(len(set(levels[at : at + 4])) == 1 for at in range(0, 400, 4))
    assert set(levels) == {0, 1, 2, 3}
    assert {priority_of(Plan(), 1, number) for number in range(400)} == {1}


@given(st.integers(0, 2**62))
def test_a_value_lies_in_its_bucket(value: int) -> None:
    number = bucket(value)

    assert floor(number) <= value < floor(number + 1)
    assert floor(number + 1) - floor(number) <= max(1, value // 64)


def test_percentiles_are_right_to_within_a_bucket() -> None:
    values = random.Random(1).choices(range(10_000_000), k=10_001)
    histogram = Histogram()
    histogram.add(array("Q", values))
    values.sort()

    assert histogram.percentile(50.0) == pytest.approx(values[5000], rel=0.02)
    assert histogram.percentile(99.0) == pytest.approx(values[9900], rel=0.02)
    assert histogram.percentile(100.0) == histogram.largest == values[-1]


def test_no_values_have_no_latency() -> None:
    assert Histogram().percentile(50.0) == 0


@pytest.mark.parametrize("record", [Ready(), Published(1), Taken(2), Answered(1, 5)])
def test_a_record_is_the_same_after_the_way(record: Ready | Published | Taken | Answered) -> None:
    assert decode(encode(record)) == record
