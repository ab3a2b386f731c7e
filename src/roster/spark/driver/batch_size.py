"""Size, start and partitions of the next batch, learned from earlier batches. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from roster.model import TopicPartition

_GROWTH = 2
"""Largest factor by which the rate may rise with one batch."""
_DONE_WITHIN = 0.95
"""Seconds from a look for records to the end of the next batch, which has the records that came after the look; 50 ms
are for the looks themselves."""
_SHORTEST_INTERVAL, _SHORTEST_OF_SLOW, _LONGEST_INTERVAL = 0.1, 0.75, 0.9  # seconds
_COST_FACTOR = 10
"""The interval in mean durations of batches: a tenth of a core, as a small batch does one thing after another."""
_RECENT = 16
"""Number of recent batches that the interval is derived from."""


class BatchSize:
    """The number of offsets in a batch, chosen so that the batch takes about a target time.

    The rate is offsets per second of whole batches. It at most doubles from one batch to the next, so that a batch of
    gaps (compacted offsets cost nothing) does not make the next too large. Only a batch near its limit or longer than
    the target lowers it: a small batch's cost is mostly fixed and does not predict a large one's.
    """

    def __init__(self, most: int | None, target: float) -> None:
        """`most` caps the offsets of every batch; `target` is in seconds."""
        self._most, self._target = most, target
        self._rate: float | None = None
        self._after_cancel: int | None = None

    @property
    def limit(self) -> int | None:
        """The most offsets that the next batch may have; None: any number."""
        limits = [] if self._most is None else [self._most]
        if self._rate is not None:
            limits.append(max(int(self._rate * self._target), 1))
        if self._after_cancel is not None:
            limits.append(self._after_cancel)
        return min(limits, default=None)

    def done(self, offsets: int, seconds: float) -> None:
        """Record a batch that ended."""
        self._after_cancel = None
        if offsets <= 0:
            return
        rate, known = offsets / max(seconds, 0.001), self._rate
        if known is None:
            self._rate = rate
        elif rate > known:
            self._rate = min(rate, _GROWTH * known)
        elif seconds > self._target or 2 * offsets >= known * self._target:
            self._rate = rate

    def cancelled(self, offsets: int) -> None:
        """Record a batch that was cancelled because it took too long: the next has half of its offsets."""
        self._after_cancel = max(offsets // 2, 1)


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
