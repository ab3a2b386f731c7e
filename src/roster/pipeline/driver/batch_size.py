"""Size, start and partitions of the next batch, learned from earlier batches. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from statistics import median

from roster.model import TopicPartition
from roster.pipeline.batch import Batch

GROWTH = 2
"""Largest factor by which the size may rise with one batch."""
_WORTH = 5
"""Times the fixed cost that the records of a batch may take: then five sixths of the time are theirs."""
_OTHER = 1.25
"""Least ratio of two sizes whose times tell the fixed cost."""
_ALIKE = 16
"""Batches of one size after which half of it is tried, as nothing else tells whether it takes less time."""
_DONE_WITHIN = 0.95
"""Seconds from a look for records to the end of the next batch, which has the records that came after the look; 50 ms
are for the looks themselves."""
_SHORTEST_INTERVAL, _SHORTEST_OF_SLOW, _LONGEST_INTERVAL = 0.1, 0.75, 0.9  # seconds
_COST_FACTOR = 10
"""The interval in mean durations of batches: a tenth of a core, as a small batch does one thing after another."""
_RECENT = 16
"""Number of recent batches that the interval is derived from."""


class BatchCost:
    """What a batch costs: a fixed time and a rate, both learned from batches of different sizes that follow each other.

    Their times differ by the records alone while the host's speed stays. The fixed time is the median of the last three
    that were found so, as the speed may have changed between two.
    """

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None
        self._found: deque[float] = deque(maxlen=3)
        self._alike = 0
        self._fixed, self._rate = 0.0, 0.0

    def done(self, offsets: int, seconds: float) -> None:
        """Record a batch that ended."""
        seconds, self._alike = max(seconds, 0.001), self._alike + 1
        if self._last is not None:
            offsets_before, seconds_before = self._last
            if max(offsets, offsets_before) >= _OTHER * min(offsets, offsets_before):
                per_offset = max((seconds - seconds_before) / (offsets - offsets_before), 0.0)
                self._found.append(max(min(seconds - per_offset * offsets, seconds, seconds_before), 0.0))
                self._fixed, self._alike = median(self._found), 0
        self._last, self._fixed = (offsets, seconds), min(self._fixed, seconds)
        self._rate = offsets / max(seconds - self._fixed, 0.001)

    @property
    def is_doubtful(self) -> bool:
        """True if batches have had one size for so long that half of it should be tried."""
        return self._alike >= _ALIKE

    def offsets(self, target: float, longest: float) -> int:
        """Return the offsets that take `target` seconds, or more if the fixed time would be most of it.

        longest: most seconds of a batch that takes more.
        """
        records = max(target - self._fixed, min(_WORTH * self._fixed, longest - self._fixed))
        return max(int(self._rate * records), 1)


class BatchSize:
    """The number of offsets in a batch, chosen so that the batch takes about a target time.

    It at most doubles from one batch to the next, so that a batch of gaps (compacted offsets cost nothing) does not
    make the next too large. Only a batch near its limit or longer than the target lowers it.
    """

    def __init__(self, most: int | None, target: float, longest: float | None = None) -> None:
        """`most` caps the offsets of every batch; `target` is in seconds, and so is `longest`, see `BatchCost`."""
        self._most, self._target, self._longest = most, target, longest or target
        self._cost = BatchCost()
        self._learned: int | None = None
        self.limit = most
        """The most offsets that the next batch may have; None: any number."""

    def done(self, offsets: int, seconds: float) -> None:
        """Record a batch that ended."""
        if offsets > 0:
            self._learn(offsets, seconds)
        self._limit(None)

    def cancelled(self, offsets: int) -> None:
        """Record a batch that was cancelled because it took too long: the next has half of its offsets."""
        self._limit(max(offsets // 2, 1))

    def _limit(self, after_cancel: int | None) -> None:
        limits = self._most, self._learned, after_cancel
        self.limit = min((limit for limit in limits if limit is not None), default=None)

    def _learn(self, offsets: int, seconds: float) -> None:
        self._cost.done(offsets, seconds)
        known, fitting = self._learned, self._cost.offsets(self._target, self._longest)
        is_full = known is not None and 2 * offsets >= known
        if known is None:
            self._learned = fitting
        elif is_full and self._cost.is_doubtful:
            self._learned = max(offsets // 2, 1)
        elif is_full or seconds > self._target:
            self._learned = min(fitting, GROWTH * known)
        else:
            self._learned = max(known, min(int(offsets * self._target / max(seconds, 0.001)), GROWTH * known))


class BatchInterval:
    """Time between the starts of two batches that are not full: it follows from what recent ones took.

    A batch costs the same for one record as for hundreds. The interval is ten times the mean of recent batches, so that
    they take about a tenth of a core, but at least 100 ms, as each commits a transaction, and at most so long that
    records are done within a second. Batches of more than 250 ms do not make it shorter than 750 ms: more frequent ones
    would occupy a whole core.
    """

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_RECENT)

    @property
    def seconds(self) -> float:
        """Seconds between the starts."""
        slowest = max(self._recent, default=_DONE_WITHIN)
        longest = min(max(_DONE_WITHIN - slowest, _SHORTEST_OF_SLOW), _LONGEST_INTERVAL)
        if not self._recent:
            return longest
        return min(max(_COST_FACTOR * sum(self._recent) / len(self._recent), _SHORTEST_INTERVAL), longest)

    def done(self, seconds: float) -> None:
        """Record a batch that ended."""
        self._recent.append(seconds)


class Suspects:
    """Partitions of batches that were cancelled because they took too long: one of them may hold a record that hangs.

    They are read in halves, alternating with all other partitions: the others progress while halving finds the culprit.
    """

    def __init__(self) -> None:
        self._suspects: list[TopicPartition] = []
        """Longest suspected first."""
        self._suspects_are_next = False

    def choose(self, available: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
        """Return the partitions of the next batch, among those with records to read."""
        suspects = [partition for partition in self._suspects if partition in available]
        others = available.difference(self._suspects)
        self._suspects_are_next = bool(suspects) and (not others or not self._suspects_are_next)
        return frozenset(suspects[: max(len(suspects) // 2, 1)]) if self._suspects_are_next else others

    def done(self, partitions: Collection[TopicPartition]) -> None:
        """Clear the partitions of a batch that ended."""
        self._suspects = [suspect for suspect in self._suspects if suspect not in partitions]

    def cancelled(self, partitions: Collection[TopicPartition]) -> None:
        """Record a batch that took too long; earlier suspects outside of it come first from now on."""
        self.done(partitions)
        self._suspects += sorted(partitions)


class Pace:
    """What the batches of a run have taught: size, interval, and partitions that may hold a record that hangs."""

    def __init__(self, size: BatchSize) -> None:
        self.size, self.interval = size, BatchInterval()
        self.suspects: Suspects | None = None
        """None until a batch takes too long."""

    def done(self, batch: Batch, seconds: float) -> None:
        """Record a batch that ended."""
        self.size.done(batch.offsets, seconds)
        self.interval.done(seconds)
        if self.suspects is not None:
            self.suspects.done(batch.ranges)

    def cancelled(self, batch: Batch) -> None:
        """Record a batch that was cancelled because it took too long."""
        self.size.cancelled(batch.offsets)
        self.suspects = self.suspects or Suspects()
        self.suspects.cancelled(batch.ranges)
