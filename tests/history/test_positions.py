"""Lag over time, and what stood still around rebalances, held against worked examples and a plain computation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roster.history.positions import Positions, Series
from roster.model import TopicPartition

TP, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


def series(*points: tuple[int, int]) -> Series:
    return Series(np.array([at for at, _ in points]), np.array([offset for _, offset in points]))


STEADY = series(*((at, at // 10) for at in range(0, 100_001, 10_000)))
"""The end of a log that gets a record each 10 ms, looked at each 10 s."""


def lag(found: Positions, at: int) -> tuple[int | None, int | None]:
    """Records and ms of the group at one moment, None where they are not known."""
    records, ms = found.lags(sorted(found.commits), np.array([at])).of_group()
    return tuple(None if np.isnan(each[0]) else round(float(each[0])) for each in (records, ms))  # type: ignore[return-value]


def stills(found: Positions, *moments: int) -> list[tuple[float | None, float | None]]:
    """Sum and longest around each moment, None where they are not known."""
    columns = ([None if np.isnan(v) else v for v in each.tolist()] for each in found.standstills(np.array(moments)))
    return list(zip(*columns, strict=True))


def every_second(begin: int, end: int) -> list[tuple[int, int]]:
    """Commits up to the end of STEADY."""
    return [(at, at // 10) for at in range(begin, end, 1000)]


def test_lag_is_interpolated_between_two_recordings_of_the_ends() -> None:
    found = Positions({TP: series((5_000, 400))}, {TP: STEADY})
    assert lag(found, 4_000) == (None, None), "before the first commit"
    assert lag(found, 8_000) == (400, 4_000), "record 400 came at 4 s"
    assert lag(found, 100_001) == (None, None), "after the last recording"
    assert lag(Positions({TP: series((5_000, 400))}, {}), 8_000) == (None, None)


def test_lag_of_a_group_is_the_sum_and_the_longest_time() -> None:
    commits = {TP: series((1_000, 100)), OTHER: series((1_000, 300))}
    assert lag(Positions(commits, {TP: STEADY, OTHER: STEADY}), 10_000) == (900 + 700, 9_000)


def test_where_the_end_passed_before_the_recording_began_the_time_is_not_known() -> None:
    assert lag(Positions({TP: series((0, 5))}, {TP: series((0, 50), (60_000, 60))}), 60_000) == (55, None)


def test_a_group_at_the_end_has_no_lag() -> None:
    assert lag(Positions({TP: series((0, 70))}, {TP: series((0, 50), (60_000, 70))}), 60_000) == (0, 0)


def test_a_pause_is_a_standstill_less_the_usual_time_between_commits() -> None:
    commits = series(*every_second(0, 20_001), *every_second(32_000, 60_000))
    found = Positions({TP: commits, OTHER: series(*every_second(0, 60_000))}, {TP: STEADY, OTHER: STEADY})
    assert stills(found, 25_500) == [(11.0, 11.0)]


def test_a_pause_over_two_rebalances_counts_at_the_first() -> None:
    commits = series(*every_second(0, 20_001), *every_second(32_000, 60_000))
    found = Positions({TP: commits}, {TP: STEADY})
    assert stills(found, 25_000, 27_000, 40_500) == [
        (11.0, 11.0),
        (0.0, 0.0),
        (0.0, 0.0),
    ]


def test_a_partition_without_records_does_not_stand_still() -> None:
    """The next record comes 40 s after the rebalance, and is done at once."""
    ends = series((0, 10), (60_000, 10), (60_001, 11), (120_000, 11))
    commits = series((1_000, 5), (2_000, 10), (61_000, 11))
    assert stills(Positions({TP: commits}, {TP: ends}), 20_000) == [(0.0, 0.0)]


def test_records_that_come_during_the_rebalance_wait_from_then_on() -> None:
    ends = series((0, 10), (10_000, 10), (10_001, 20), (120_000, 20))
    commits = series((-119_000, 4), (-117_000, 5), (1_000, 8), (2_000, 10), (25_000, 20))
    (found,) = stills(Positions({TP: commits}, {TP: ends}), 15_000)
    usual = float(np.median([2_000, 23_000])) / 1000  # of the last step of each minute
    assert found[0] == pytest.approx(25 - 10 - usual, abs=0.01)


def test_without_ends_or_without_a_later_commit_a_standstill_is_not_known() -> None:
    assert stills(Positions({TP: series((0, 1), (9_000, 2))}, {}), 5_000) == [(None, None)]
    assert stills(Positions({TP: series((0, 1))}, {TP: STEADY}), 5_000) == [(None, None)]


def test_ends_before_a_topic_was_made_anew_do_not_count() -> None:
    ends = series((0, 1_000), (60_000, 2_000), (120_000, 10), (180_000, 20))
    found = Positions({TP: series((130_000, 10))}, {TP: ends})
    assert lag(found, 60_000) == (None, None)
    assert lag(found, 180_000) == (10, 60_000)


STEPS = st.lists(st.tuples(st.integers(1, 5_000), st.integers(0, 50)), min_size=1, max_size=12)


def summed(steps: list[tuple[int, int]]) -> Series:
    return Series(*(np.cumsum([step[i] for step in steps]) for i in (0, 1)))


@given(STEPS, STEPS, st.integers(0, 60_000))
def test_lag_is_what_a_walk_over_each_millisecond_says(
    commits: list[tuple[int, int]], ends: list[tuple[int, int]], at: int
) -> None:
    committed, end = summed(commits), summed(ends)
    found = lag(Positions({TP: committed}, {TP: end}), at)
    before = [int(offset) for time, offset in zip(*committed, strict=True) if time <= at]
    if not before or not end.times[0] <= at <= end.times[-1]:
        assert found == (None, None)
        return
    left = max(i for i, time in enumerate(end.times) if time <= at)
    there = float(end.offsets[left])
    if end.times[left] < at:
        share = (at - end.times[left]) / (end.times[left + 1] - end.times[left])
        there += share * (end.offsets[left + 1] - end.offsets[left])
    assert found[0] == max(0, round(there) - before[-1])
    if there <= before[-1]:
        assert found[1] in (0, None)
