"""How far behind a group was, and what stood still: committed offsets beside the ends of the logs, over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from roster.model import TopicPartition


class Series(NamedTuple):
    """Offsets over time: two arrays of equal length, times in wall-clock ms ascending."""

    times: Any
    offsets: Any


class Lag(NamedTuple):
    """A group's lag at one time, over the partitions of which it is known; None: of none.

    `ms` is how long ago the end of the log passed the committed offset, the most of any partition.
    """

    records: int | None
    ms: int | None


class Standstill(NamedTuple):
    """What did not move around a rebalance although records were waiting, in seconds; None: not known."""

    partition_seconds: float | None
    longest_seconds: float | None


class Positions:
    """The committed offsets of one group, and the ends of the logs."""

    def __init__(self, commits: Mapping[TopicPartition, Series], ends: Mapping[TopicPartition, Series]) -> None:
        self._commits = commits
        self._ends = {tp: _since_made(each) for tp, each in ends.items()}

    def lag(self, at_ms: int) -> Lag:
        """Return the lag at a time, from the last commits before it and ends interpolated between two recordings."""
        records, times = [], []
        for tp, commits in self._commits.items():
            index = int(np.searchsorted(commits.times, at_ms, "right")) - 1
            ends = self._ends.get(tp)
            if index < 0 or ends is None or not ends.times[0] <= at_ms <= ends.times[-1]:
                continue
            committed = int(commits.offsets[index])
            records.append(max(0, round(float(np.interp(at_ms, ends.times, ends.offsets))) - committed))
            passed = self._passed(tp, committed)
            if passed is not None:
                times.append(max(0.0, at_ms - passed))
        return Lag(sum(records) if records else None, round(max(times)) if times else None)

    def standstills(self, moments: Sequence[int]) -> list[Standstill]:
        """Return the standstill around each of some moments, ascending, at which rebalances ended.

        Of a partition it is the time between the last commit before and the first one after that moves the offset, as
        far as records were waiting, less the usual time between two commits. A pause that spans several moments counts
        at the first.
        """
        found: list[list[float]] = [[] for _ in moments]
        for tp, commits in self._commits.items():
            counted = -1
            usual = _usual(commits)
            for number, moment in enumerate(moments):
                pause = self._pause(tp, commits, moment)
                if pause is None:
                    continue
                begin, end, index = pause
                found[number].append(0.0 if index == counted else max(0.0, (end - begin - usual) / 1000))
                counted = index
        return [Standstill(sum(each), max(each)) if each else Standstill(None, None) for each in found]

    def _pause(self, tp: TopicPartition, commits: Series, moment: int) -> tuple[float, float, int] | None:
        """Return begin and end of the pause around a moment, and the commit before it; None: not known."""
        last = int(np.searchsorted(commits.times, moment, "right")) - 1
        if last < 0 or tp not in self._ends:
            return None
        offset = int(commits.offsets[last])
        later = np.flatnonzero(commits.offsets[last + 1 :] > offset)
        if not len(later):
            return None
        passed, begin = self._passed(tp, offset), float(commits.times[last])
        begin = begin if passed is None else max(begin, passed)
        end = float(commits.times[last + 1 + int(later[0])])
        return (begin, end, last) if begin < moment else (end, end, last)

    def _passed(self, tp: TopicPartition, committed: int) -> float | None:
        """Return when the end of the log passed an offset; None: before the recording began. Not yet is infinite."""
        ends = self._ends[tp]
        index = int(np.searchsorted(ends.offsets, committed, "right"))
        if index == 0:
            return None
        if index == len(ends.offsets):
            return float("inf")
        low, high = float(ends.offsets[index - 1]), float(ends.offsets[index])
        begin, end = float(ends.times[index - 1]), float(ends.times[index])
        return begin + (end - begin) * (committed - low) / (high - low)


def _since_made(ends: Series) -> Series:
    """Return the ends since they last fell: then the topic was made anew."""
    fell = np.flatnonzero(np.diff(ends.offsets) < 0)
    begin = int(fell[-1]) + 1 if len(fell) else 0
    return Series(ends.times[begin:], ends.offsets[begin:])


def _usual(commits: Series) -> float:
    """Return the median time between two commits that move the offset, in ms."""
    moved = commits.times[np.flatnonzero(np.diff(commits.offsets, prepend=-1) > 0)]
    return float(np.median(np.diff(moved))) if len(moved) > 1 else 0.0
