"""How far behind a group was, and what stood still: committed offsets beside the ends of the logs, over time."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from roster.model import TopicPartition
from roster.model.arrays import Float64, Int64


class Series(NamedTuple):
    """Offsets over time: two arrays of equal length, times in wall-clock ms ascending."""

    times: Int64
    offsets: Int64


class Lags(NamedTuple):
    """Lag of some partitions at some moments: arrays [partitions, moments], nan where it is not known.

    `ms` is how long ago the end of the log passed the committed offset.
    """

    records: Float64
    ms: Float64

    def of_group(self) -> tuple[Float64, Float64]:
        """Return [moments] the records of all partitions, and the longest ms; nan where no partition's is known."""
        known, timed = ~np.isnan(self.records), ~np.isnan(self.ms)
        records = np.where(known.any(axis=0), np.where(known, self.records, 0).sum(axis=0), np.nan)
        return records, np.where(timed.any(axis=0), np.where(timed, self.ms, 0).max(axis=0, initial=0), np.nan)


class Standstills(NamedTuple):
    """What did not move around each of some rebalances although records were waiting, in seconds; nan: not known."""

    partition_seconds: Float64
    longest_seconds: Float64


class Positions:
    """The committed offsets of one group, and the ends of the logs."""

    def __init__(self, commits: Mapping[TopicPartition, Series], ends: Mapping[TopicPartition, Series]) -> None:
        self.commits = commits
        self.ends = {tp: _since_made(series) for tp, series in ends.items()}

    def lags(self, partitions: Sequence[TopicPartition], moments: Int64) -> Lags:
        """Return the lag at each moment (ms), from the last commits before it and ends interpolated between two."""
        lags = Lags(*(np.full((len(partitions), len(moments)), np.nan) for _ in Lags._fields))
        for row, tp in enumerate(partitions):
            commits, ends = self.commits.get(tp), self.ends.get(tp)
            if commits is None or ends is None:
                continue
            last = np.searchsorted(commits.times, moments, "right") - 1
            known = np.flatnonzero((last >= 0) & (ends.times[0] <= moments) & (moments <= ends.times[-1]))
            committed, times = commits.offsets[last[known]], moments[known]
            lags.records[row, known] = np.maximum(np.rint(np.interp(times, ends.times, ends.offsets)) - committed, 0)
            lags.ms[row, known] = np.maximum(times - _passed(ends, committed), 0)
        return lags

    def standstills(self, moments: Int64) -> Standstills:
        """Return the standstill around each of some moments (ms), ascending, at which rebalances ended.

        A partition stands still from the last commit before to the first one after that moves the offset, as
        far as records were waiting, less the usual time between two commits. A pause that spans several moments counts
        at the first.
        """
        total, longest = np.zeros(len(moments)), np.full(len(moments), np.nan)
        for tp, commits in sorted(self.commits.items()):
            ends = self.ends.get(tp)
            last = np.searchsorted(commits.times, moments, "right") - 1
            if ends is None:
                continue
            later = _next_higher(commits.offsets)[last]
            known = np.flatnonzero((last >= 0) & (later < len(commits.times)))
            last, later = last[known], later[known]
            begin = np.fmax(commits.times[last], _passed(ends, commits.offsets[last]))
            end = commits.times[later]
            begun = np.flatnonzero(begin < moments[known])
            first = begun[np.append(True, np.diff(last[begun]) != 0)[: len(begun)]]
            pause = np.zeros(len(known))
            pause[first] = np.maximum(end - begin - _usual(commits), 0)[first] / 1000
            total[known] += pause
            longest[known] = np.fmax(longest[known], pause)
        return Standstills(np.where(np.isnan(longest), np.nan, total), longest)

    def arriving(self, tp: TopicPartition) -> float | None:
        """Return the records that usually arrive in a second: the median over the recordings of the ends."""
        ends = self.ends.get(tp)
        if ends is None or len(ends.times) < 2:
            return None
        return float(np.median(np.diff(ends.offsets) * 1000 / np.maximum(np.diff(ends.times), 1)))

    def seconds_per_record(self, tp: TopicPartition) -> float | None:
        """Return the seconds that the group usually took for a record that was waiting; None: none ever waited.

        It is the median over the last steps of minutes in which only records were read that were there before.
        """
        commits, ends = self.commits.get(tp), self.ends.get(tp)
        if commits is None or ends is None:
            return None
        before, after = _steps(commits)
        read, elapsed = after.offsets - before.offsets, after.times - before.times
        there = np.interp(before.times, ends.times, ends.offsets, left=-1, right=-1)
        busy = (read > 0) & (after.offsets <= there)
        return float(np.median(elapsed[busy] / 1000 / read[busy])) if busy.any() else None


def _passed(ends: Series, committed: Int64) -> Float64:
    """Return when the end of the log passed each offset, in ms; nan: before the recording began, inf: not yet."""
    index = np.searchsorted(ends.offsets, committed, "right")
    low = np.maximum(index - 1, 0)
    high = np.minimum(index, len(ends.offsets) - 1)
    step = np.maximum(ends.offsets[high] - ends.offsets[low], 1)
    share = (ends.times[high] - ends.times[low]) * (committed - ends.offsets[low]) / step
    return np.select([index == 0, index == len(ends.offsets)], [np.nan, np.inf], ends.times[low] + share)


def _next_higher(offsets: Int64) -> Int64:
    """Return the index of the first later offset that is higher than each, the length where there is none."""
    if (np.diff(offsets) >= 0).all():
        return np.searchsorted(offsets, offsets, "right")
    higher = np.full(len(offsets), len(offsets))
    waiting: list[int] = []
    for index, offset in enumerate(offsets.tolist()):
        while waiting and offsets[waiting[-1]] < offset:
            higher[waiting.pop()] = index
        waiting.append(index)
    return higher


def _since_made(ends: Series) -> Series:
    """Return the ends since they last fell: then the topic was made anew."""
    fell = np.flatnonzero(np.diff(ends.offsets) < 0)
    begin = int(fell[-1]) + 1 if len(fell) else 0
    return Series(ends.times[begin:], ends.offsets[begin:])


def _usual(commits: Series) -> float:
    """Return the median time from a commit to the next one, where that moves the offset, in ms."""
    before, after = _steps(commits)
    return float(np.median(after.times - before.times)) if len(after.times) else 0.0


def _steps(commits: Series) -> tuple[Series, Series]:
    """Return of each minute the last commit that moves the offset, and the one just before it."""
    moves = np.flatnonzero(np.diff(commits.offsets)) + 1
    last = moves[np.flatnonzero(np.diff(commits.times[moves] // 60_000, append=-1))]
    return Series(*(column[last - 1] for column in commits)), Series(*(column[last] for column in commits))
