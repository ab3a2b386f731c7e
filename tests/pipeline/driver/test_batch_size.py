"""Size and partitions of the next batch, with batches whose time is a formula."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.model import TopicPartition
from roster.pipeline.driver.batch_size import BatchInterval, BatchSize, Suspects
from tests.examples_tried import examples

TARGET = 10.0


def play(size: BatchSize, rate: float, fixed: float, backlog: int = 10**9) -> float:
    """Run one batch that costs `fixed` seconds and one more for each `rate` offsets; return its seconds."""
    limit = size.limit
    offsets = backlog if limit is None else min(limit, backlog)
    seconds = fixed + offsets / rate
    size.done(offsets, seconds)
    return seconds


@settings(max_examples=examples(200))
@given(rate=st.floats(0.5, 1e6), fixed=st.floats(0.01, 5.0), first=st.integers(1, 1_000))
def test_from_a_first_small_batch_the_size_grows_to_the_target_and_never_past_it(
    rate: float, fixed: float, first: int
) -> None:
    size = BatchSize(None, TARGET)
    play(size, rate, fixed, backlog=first)
    times = [play(size, rate, fixed) for _ in range(40)]
    one = fixed + 1 / rate  # a batch has one offset at least
    assert max(times) <= max(TARGET + fixed, one) * 1.001
    assert max(times[-2:]) >= (TARGET - 2 / rate) * 0.8, "one of two in a row does not try a half"


@settings(max_examples=examples(200))
@given(fast=st.floats(100, 1e6), factor=st.floats(2, 1_000))
def test_a_function_that_gets_slower_costs_one_long_batch(fast: float, factor: float) -> None:
    size = BatchSize(None, TARGET)
    for _ in range(20):
        play(size, fast, 0.05, backlog=100_000_000)
    play(size, fast / factor, 0.05)
    assert play(size, fast / factor, 0.05) <= TARGET + 0.05 + factor / fast


@settings(max_examples=examples(200))
@given(rate=st.floats(100, 1e5), fixed=st.floats(2.0, 60.0), most=st.sampled_from([10.0, 100.0]))
def test_a_fixed_cost_near_the_target_does_not_shrink_batches(rate: float, fixed: float, most: float) -> None:
    """A size follows from the rate of whole batches only where the fixed cost is little of them."""
    size, seconds, done = BatchSize(None, TARGET, most), 0.0, 0.0
    size.done(1000, fixed + 1000 / rate)
    for number in range(200):
        before = size.limit or 0
        took = play(size, rate, fixed)
        assert took <= max(TARGET, most) + fixed + 1 / rate
        if number >= 30:
            done, seconds = done + before, seconds + took
    best = rate * (max(TARGET, min(6 * fixed, most)) - fixed) / max(TARGET, min(6 * fixed, most))
    if best > 0:
        assert done / seconds >= 0.8 * best


def test_one_batch_of_gaps_does_not_make_the_next_as_large() -> None:
    size = BatchSize(None, TARGET)
    for _ in range(10):
        play(size, 1_000, 0.05)
    size.done(10_000, 0.1)
    assert play(size, 1_000, 0.05) <= 2.1 * TARGET


def test_short_batches_of_a_trickle_do_not_lower_the_rate() -> None:
    size = BatchSize(1_000_000, TARGET)
    for _ in range(10):
        play(size, 50_000, 0.05)
    before = size.limit
    for _ in range(100):
        size.done(20, 0.06)
    assert size.limit == before


def test_small_batches_of_a_sink_whose_commits_are_slow_do_not_lower_the_rate() -> None:
    """Else a backlog after a quiet minute would be read in small batches, each as slow as a large one."""
    size = BatchSize(None, TARGET)
    for _ in range(40):
        play(size, 50_000, 3.0)
    before = size.limit
    for _ in range(10):
        play(size, 50_000, 3.0, backlog=600)
    assert size.limit == before


def test_the_configured_limit_holds_whatever_was_learned() -> None:
    size = BatchSize(500, TARGET)
    assert size.limit == 500
    size.done(500, 0.01)
    assert size.limit == 500
    assert BatchSize(None, TARGET).limit is None


def test_a_cancelled_batch_comes_back_with_half_its_offsets_down_to_one_until_one_ends() -> None:
    size = BatchSize(1_000, TARGET)
    for expected in (500, 250, 125):
        size.cancelled(size.limit or 0)
        assert size.limit == expected
    size.cancelled(1)
    assert size.limit == 1
    size.done(1, 1.0)
    assert size.limit == 10, "one a second, for ten seconds"


@settings(max_examples=examples(200))
@given(st.data())
def test_a_partition_that_hangs_does_not_keep_the_others_from_being_read(data: st.DataObject) -> None:
    partitions = frozenset(TopicPartition("t", n) for n in range(data.draw(st.integers(2, 20))))
    hangs = data.draw(st.sampled_from(sorted(partitions)))
    suspects, reads = Suspects(), dict.fromkeys(partitions, 0)
    cancelled = 0
    for _ in range(60):
        chosen = suspects.choose(partitions)
        assert chosen
        assert chosen <= partitions
        if hangs in chosen:
            suspects.cancelled(chosen)
            cancelled += 1
        else:
            suspects.done(chosen)
            for partition in chosen:
                reads[partition] += 1
    assert reads.pop(hangs) == 0
    assert min(reads.values()) >= 15, "every second batch, once the halves have closed in"
    assert cancelled <= 31


@pytest.mark.parametrize("count", [1, 3])
def test_after_a_passing_trouble_everything_is_read_together_again(count: int) -> None:
    partitions = frozenset(TopicPartition("t", n) for n in range(count))
    suspects = Suspects()
    assert suspects.choose(partitions) == partitions
    suspects.cancelled(partitions)
    for _ in range(10):
        suspects.done(suspects.choose(partitions))
    assert suspects.choose(partitions) == partitions


@settings(max_examples=examples(200))
@given(times=st.lists(st.one_of(st.floats(0.0, 0.1), st.floats(0.0, 3.0)), min_size=1, max_size=40))
def test_batches_take_a_tenth_of_a_core_or_as_much_as_ends_them_within_a_second(times: list[float]) -> None:
    interval = BatchInterval()
    assert interval.seconds == 0.75
    for seconds in times:
        interval.done(seconds)
    recent = times[-16:]
    share = sum(recent) / len(recent) / interval.seconds
    is_in_time = interval.seconds + max(recent) <= 0.95 + 1e-9
    assert 0.1 <= interval.seconds <= 0.9
    assert is_in_time or interval.seconds <= 0.75
    if share > 0.1 + 1e-9:
        assert interval.seconds == pytest.approx(max(0.75, min(0.95 - max(recent), 0.9))), "as few as end in time"
    elif interval.seconds > 0.1:
        assert share == pytest.approx(0.1), "as many as a tenth of a core allows"
