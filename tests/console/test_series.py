"""Rates and small drawings of numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roster.console.history import Series
from roster.console.text import BARS, bars, named_briefly, number_runs
from roster.model import TopicPartition


def series(*points: tuple[float, float | None]) -> Series:
    made = Series()
    for at, value in points:
        made.add(at, value)
    return made


@pytest.mark.parametrize(
    ("points", "rate"),
    [
        ([], None),
        ([(0, 5)], None),
        ([(0, None), (1, None)], None),
        ([(0, 0), (2, 10)], 5),
        ([(0, 0), (2, None), (4, 10)], 2.5),
        ([(0, 0), (100, 0), (105, 50), (110, 50)], 5),
        ([(0, 0), (60, 120)], 2),
        ([(0, 100), (1, 110), (2, 0), (3, 5)], 5),
        ([(0, 100), (1, 0)], 0),
        ([(1, 5), (1, 9)], 0),
    ],
)
def test_a_rate_is_the_mean_over_the_window_since_the_value_last_went_back(points, rate):
    assert series(*points).rate(window=10) == rate


@given(st.lists(st.tuples(st.floats(0.1, 5), st.one_of(st.none(), st.integers(0, 1000))), max_size=40))
def test_a_rate_is_never_negative(steps):
    made, at = Series(), 0.0
    for step, value in steps:
        at += step
        made.add(at, value)
        assert (made.rate() or 0) >= 0


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e12)), max_size=50), st.integers(0, 40))
def test_bars_have_the_width_asked_for_and_keep_the_order(values, width):
    drawn = bars(values, width)
    assert len(drawn) == width
    shown = values[-width:] if width else []
    drawn = drawn[width - len(shown) :]
    heights = [(value, BARS.index(glyph)) for value, glyph in zip(shown, drawn, strict=True) if value]
    assert sorted(heights) == sorted(heights, key=lambda pair: (pair[1], pair[0]))
    assert all(glyph == BARS[0] for value, glyph in zip(shown, drawn, strict=True) if value == 0)


def test_a_slope_shows_also_high_up_and_noise_does_not():
    assert bars([1000, 1100, 1200, 1300], 4) == "▂▄▆█"
    assert len(set(bars([1000, 1001, 1002, 1000], 4))) == 1


@given(st.sets(st.integers(0, 40)))
def test_runs_name_every_number_once(numbers):
    read = []
    for run in number_runs(numbers).split():
        first, _, last = run.partition("-")
        read += range(int(first), int(last or first) + 1)
    assert read == sorted(numbers)


def test_many_partitions_are_counted_instead_of_named():
    assert named_briefly([TopicPartition("t", n) for n in (0, 1, 2, 7)]) == "t 0-2 7"
    assert named_briefly([TopicPartition("t", n) for n in range(0, 99, 3)]) == "33 partitions of t"
    assert named_briefly([TopicPartition(f"a-long-name-{n}", 0) for n in range(9)]) == "9 partitions of 9 topics"
