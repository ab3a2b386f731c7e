"""Ranges of a batch and their split over tasks, for any lag."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from roster.model import TopicPartition
from roster.pipeline.batch import Range
from roster.pipeline.driver import offset_ranges

PARTITIONS = st.builds(TopicPartition, st.sampled_from(["a", "b", "c"]), st.integers(0, 40))
RANGES = st.builds(
    lambda start, size: Range(start, start + size), st.integers(0, 1 << 40), st.integers(0, 1 << 20) | st.integers(0, 3)
)
LAGS = st.dictionaries(PARTITIONS, RANGES, max_size=30)


@given(LAGS, st.none() | st.integers(1, 1 << 20))
def test_a_batch_starts_where_each_partition_stands_and_starves_none(
    available: dict[TopicPartition, Range], most: int | None
) -> None:
    ranges = offset_ranges.limit(available, most)
    lagging = {p for p, span in available.items() if span.size}
    assert ranges.keys() == lagging
    for partition, span in ranges.items():
        assert span.start == available[partition].start
        assert span.start < span.end <= available[partition].end


@given(LAGS, st.integers(1, 1 << 20))
def test_a_batch_is_as_large_as_it_may_be(available: dict[TopicPartition, Range], most: int) -> None:
    ranges = offset_ranges.limit(available, most)
    total = sum(span.size for span in available.values())
    assert sum(span.size for span in ranges.values()) == max(min(total, most), len(ranges))


@given(LAGS, st.integers(1, 1 << 20))
def test_shares_are_in_proportion_to_lag(available: dict[TopicPartition, Range], most: int) -> None:
    ranges = offset_ranges.limit(available, most)
    total = sum(span.size for span in available.values())
    if total <= most or most <= len(ranges):
        return
    for partition, span in ranges.items():
        fair = 1 + (available[partition].size - 1) * (most - len(ranges)) / (total - len(ranges))
        assert abs(span.size - fair) <= 1


@given(LAGS, st.integers(1, 64), st.integers(1, 10_000))
def test_tasks_read_each_offset_once_in_order(available: dict[TopicPartition, Range], cores: int, least: int) -> None:
    tasks = offset_ranges.tasks(available, cores, least)
    read: dict[TopicPartition, list[Range]] = {}
    for task in tasks:
        assert len({split[:2] for split in task}) == len(task), "a task has a partition once"
        for split in task:
            read.setdefault(TopicPartition(split.topic, split.partition), []).append(Range(split.start, split.end))
    assert read.keys() == {p for p, span in available.items() if span.size}
    for partition, spans in read.items():
        assert spans[0].start == available[partition].start
        assert spans[-1].end == available[partition].end
        assert all(span.size > 0 for span in spans)
        assert all(before.end == after.start for before, after in itertools.pairwise(spans))


@given(LAGS, st.integers(1, 64), st.integers(1, 10_000))
def test_tasks_are_equal_and_not_more_than_cores(
    available: dict[TopicPartition, Range], cores: int, least: int
) -> None:
    sizes = [sum(s.end - s.start for s in task) for task in offset_ranges.tasks(available, cores, least)]
    total = sum(span.size for span in available.values())
    assert len(sizes) <= cores
    if total:
        assert len(sizes) == max(1, min(cores, total // least))
        assert max(sizes) - min(sizes) <= 1


def test_many_small_ranges_are_packed_and_a_large_one_is_split() -> None:
    small = {TopicPartition("t", n): Range(0, 10) for n in range(100)}
    assert [len(task) for task in offset_ranges.tasks(small, 2)] == [50, 50]
    large = {TopicPartition("t", 0): Range(0, 1000), TopicPartition("t", 1): Range(5, 15)}
    assert [sum(s.end - s.start for s in task) for task in offset_ranges.tasks(large, 4)] == [252, 253, 252, 253]


def test_nothing_to_read_is_no_task() -> None:
    assert offset_ranges.tasks({}, 4) == []
    assert offset_ranges.tasks({TopicPartition("t", 0): Range(7, 7)}, 4) == []


@given(st.data())
def test_a_run_up_to_the_log_ends_reads_records_and_notices_through_all_repartition_topics(data: st.DataObject) -> None:
    """Records, and behind them a notice that is owed, go through a chain; each may be there before it can be read."""
    topics = [f"r{number}" for number in range(data.draw(st.integers(1, 4)))]
    partitions = [TopicPartition(topic, 0) for topic in topics]
    ends, positions = dict.fromkeys(partitions, 0), dict.fromkeys(partitions, 0)
    targets = offset_ranges.Targets(("input",), lambda partitions: {p: ends[p] for p in partitions})
    targets.adopt(partitions, partitions)
    for _ in ("records", "a notice"):
        ends[partitions[0]] += 1
        for partition, following in itertools.zip_longest(partitions, partitions[1:]):
            if data.draw(st.booleans(), label="the marker is on its way"):
                assert not targets.are_reached(positions)
            while targets.limit(ends)[partition] == positions[partition]:
                assert not targets.are_reached(positions), "the run ends in front of what is to be read"
            positions[partition] += 1
            if following is not None:
                ends[following] += 1
    assert targets.are_reached(positions)
