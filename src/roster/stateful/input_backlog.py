"""What is left to read in a sub-topology's input: it holds event time back, in its tasks or behind a repartition."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Mapping

from roster.client import Admin
from roster.model import TopicPartition
from roster.pipeline.batch import Batch
from roster.stateful.tasks.outgoing import Backlog

_APART = 1.0
"""Seconds between two looks, and two notices to partitions without rows, while nothing is left to read."""
_FEW = 100
"""Offsets of a batch that does not look in between; event time is thought to go on by little."""


class InputBacklog:
    """Looks at all partitions of a sub-topology's input, whoever owns them; for the pipeline's thread.

    A partition has been read to its end if the group's offset is not below a log end that was asked for earlier. So
    all its rows up to that end come before those of the batch that is planned, in each partition of the topic.
    """

    def __init__(
        self,
        admin: Admin,
        group: str,
        topics: Collection[str],
        sources_at: Callable[[TopicPartition], Collection[int]],
        now: Callable[[], float] = time.monotonic,
        *,
        is_sent: bool = True,
    ) -> None:
        """sources_at: returns the sources that a partition's rows have; one has been read if all its partitions have.

        is_sent: others hear of it, behind a repartition.
        """
        self._sources_at, self._is_sent = sources_at, is_sent
        self._admin, self._group, self._topics, self._now = admin, group, topics, now
        self._partitions: list[TopicPartition] = []
        self._looked = float("-inf")
        self._ends: Mapping[TopicPartition, int] = {}
        self._behind: set[TopicPartition] = set()
        """Partitions with more to read behind the last batch."""
        self._is_committed = False
        """Whether that batch is: if not, it is unknown how far the group is."""

    def took(self) -> None:
        """Forget what was seen: partitions were assigned, perhaps new ones."""
        self._partitions, self._is_committed = [], False

    def due(self, partitions: Collection[TopicPartition], *, once: bool) -> Collection[TopicPartition]:
        """Return a partition among these, all that are owned, whose task is to tell that the input has been read.

        So it is if others were behind at the last batch, and are no longer. once: look at once, as a run ends.
        Raises ClientError.
        """
        own = [at for at in partitions if at.topic in self._topics]
        if not own or not self._is_sent or not self._is_committed or not self._behind:
            return ()
        if not once and self._now() - self._looked < _APART:
            return ()
        before = self._behind
        self._look()
        if self._behind:
            return ()
        self._behind = before  # until the batch that tells it
        return own[:1]

    def before(self, batch: Batch) -> Backlog | None:
        """Return what is left to read once a batch's records are, None if it reads none of the input.

        Raises ClientError.
        """
        read = self._read_in(batch)
        if not read:
            return None
        is_known = self._is_committed and bool(self._partitions)
        count = sum(batch.ranges[partition].end - batch.ranges[partition].start for partition in read)
        is_for_all = count > _FEW or bool(self._behind) or not is_known or self._now() - self._looked >= _APART
        if is_for_all:
            self._look()
        self._is_committed = False
        is_left = {at for at, end in read.items() if end < self._ends.get(at, end + 1)}
        self._behind = (self._behind - read.keys()) | is_left
        behind, reading = self._sources_of(self._behind), self._sources_of(read)
        return Backlog(
            secrets.randbits(62) + 1,
            tuple(sorted(behind - reading)),
            {source: source not in behind for source in sorted(reading)},
            is_for_all or bool(self._behind),
            max(at.partition for at in self._partitions) + 1,
            frozenset(self._behind),
        )

    def _sources_of(self, partitions: Collection[TopicPartition]) -> set[int]:
        return {source for at in partitions for source in self._sources_at(at)}

    def committed(self, batch: Batch) -> None:
        """Record that the last batch that reads the input is committed, if this is one."""
        self._is_committed |= bool(self._read_in(batch))

    def _read_in(self, batch: Batch) -> dict[TopicPartition, int]:
        return {at: span.end for at, span in batch.ranges.items() if at.topic in self._topics}

    def _look(self) -> None:
        self._looked = self._now()
        if not self._partitions:
            self._partitions = [
                TopicPartition(name, of.partition)
                for name in self._topics
                for of in self._admin.describe_topic(name).partitions
            ]
        self._ends = self._admin.end_offsets(self._partitions)
        committed = self._admin.group_offsets(self._group, self._partitions, stable=False)
        worked = {at: found.offset for at, found in committed.items()}
        self._behind = {at for at, end in self._ends.items() if worked.get(at, 0) < end}
