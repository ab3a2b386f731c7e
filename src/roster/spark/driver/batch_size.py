"""Size, start and partitions of the next batch, learned from those before it: pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from roster.model import TopicPartition

_GROWTH = 2
"""Most by which the rate may rise with one batch."""
_DONE_WITHIN = 0.95
"""Seconds from a look for records to the end of the next batch, which has those that came after the look; 50 ms are for
the looks themselves."""
_SHORTEST_INTERVAL, _LONGEST_INTERVAL = 0.75, 0.9  # seconds
_RECENT = 16
"""Batches whose times the interval goes by."""


class BatchSize:
    """Offsets that a batch may have, so that it ends near a target time, whatever the function does.

    The rate is offsets per second of whole batches. It doubles at most from one batch to the next, so that one batch of
    gaps (compacted offsets cost nothing) does not make the next too large. Only a batch that was near its limit or took
    longer than the target lowers it: what a small batch costs is mostly fixed, and says nothing about a large one.
    """

    def __init__(self, most: int | None, target: float) -> None:
        """`most` offsets in any case; `target` is in seconds."""
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
        """Take note of a batch that ended."""
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
        """Take note of a batch that was cancelled because it took too long: the next has half of its offsets."""
        self._after_cancel = max(offsets // 2, 1)


class BatchInterval:
    """Time between the starts of two batches that are not full, so that records are done within a second.

    A batch costs the same for one record as for hundreds: the fewer there are the better, as long as one that takes the
    longest time of recent ones is done in time. Batches of more than 250 ms do not make the interval shorter than
    750 ms: starting them more often would take a processor for itself.
    """

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_RECENT)

    @property
    def seconds(self) -> float:
        """Seconds between the starts."""
        slowest = max(self._recent, default=_DONE_WITHIN)
        return min(max(_DONE_WITHIN - slowest, _SHORTEST_INTERVAL), _LONGEST_INTERVAL)

    def done(self, seconds: float) -> None:
        """Take note of a batch that ended."""
        self._recent.append(seconds)


class Suspects:
    """Partitions of batches that were cancelled because they took too long: one of them may hold a record that hangs.

    They are read by halves, in turn with all others, so that the others go on and the halves close in on the one.
    """

    def __init__(self) -> None:
        self._suspects: list[TopicPartition] = []
        """Those cancelled longest ago first."""
        self._is_their_turn = False

    def choose(self, available: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
        """Return the partitions of the next batch, among those with records to read."""
        suspects = [partition for partition in self._suspects if partition in available]
        others = available.difference(self._suspects)
        self._is_their_turn = bool(suspects) and (not others or not self._is_their_turn)
        return frozenset(suspects[: max(len(suspects) // 2, 1)]) if self._is_their_turn else others

    def done(self, partitions: Collection[TopicPartition]) -> None:
        """Clear the partitions of a batch that ended."""
        self._suspects = [suspect for suspect in self._suspects if suspect not in partitions]

    def cancelled(self, partitions: Collection[TopicPartition]) -> None:
        """Take note of a batch that took too long; earlier suspects outside of it come first from now on."""
        self.done(partitions)
        self._suspects += sorted(partitions)
