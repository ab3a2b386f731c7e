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

    An application owes a notice to all, of all times and that nothing is left to read, unless its last batch was
    committed and has been such a notice. It is due a second after that batch, or at once where partitions were taken,
    if nothing is left. So it comes again if its transaction is aborted, and whoever takes a partition sends what the
    last owner may not have sent.
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
        self._is_told = self._is_for_all = False
        """Whether no notice is owed; whether the batch planned last tells all."""
        self._planned = float("-inf")
        self._untold: set[int] = set()
        """Sources whose times not all have heard of."""
        self._read: dict[TopicPartition, int] = {}
        """How far committed batches have read: the brokers may not show the last commit yet."""
        self._times: dict[int, int] = {}
        """The largest time of each source's rows in committed batches."""
        self._sent: Mapping[int, int] = {}

    def took(self, partitions: Collection[TopicPartition]) -> None:
        """Look again: these partitions were assigned, and there may be new ones. Times that were read stay true."""
        self._partitions = []
        if any(at.topic in self._topics for at in partitions):
            self._looked = self._planned = float("-inf")
            self._is_committed = self._is_told = False

    def due(
        self, partitions: Collection[TopicPartition], behind: Collection[TopicPartition], *, once: bool
    ) -> Collection[TopicPartition]:
        """Return a partition among these, all that are owned, whose task is to send the notice that is owed.

        behind: those with records to read, whose batches tell. once: if there are none, look at once, as a run ends.
        Raises ClientError.
        """
        own = [at for at in partitions if at.topic in self._topics]
        if not self._is_sent or self._is_told or not own or not {*own}.isdisjoint(behind):
            return ()
        if (behind or not once) and self._now() - max(self._looked, self._planned) < _APART:
            return ()
        self._look()
        self._is_told = not any(self._ends.values())  # nobody has sent anything
        return () if self._behind or self._is_told else own[:1]

    def before(self, batch: Batch) -> Backlog | None:
        """Return what is left to read once a batch's records are, None if it reads none of the input.

        Raises ClientError.
        """
        read = self._read_in(batch)
        if not read:
            return None
        is_known, self._planned = self._is_committed and bool(self._partitions), self._now()
        count = sum(batch.ranges[partition].size for partition in read)
        is_for_all = not 0 < count <= _FEW or bool(self._behind) or not is_known
        is_for_all |= self._planned - self._looked >= _APART
        if is_for_all:
            self._look()
        self._is_committed = self._is_told = False
        is_left = {at for at, end in read.items() if end < self._ends.get(at, end + 1)}
        self._behind = (self._behind - read.keys()) | is_left
        self._is_for_all = is_for_all or bool(self._behind)
        behind, reading = self._sources_of(self._behind), self._sources_of(read)
        told = reading | self._untold if self._is_for_all else reading
        return Backlog(
            secrets.randbits(62) + 1,
            tuple(sorted(behind - reading)),
            {source: source not in behind for source in sorted(reading)},
            self._is_for_all,
            max(at.partition for at in self._partitions) + 1,
            frozenset(self._behind),
            {source: self._times[source] for source in told & self._times.keys()},
        )

    def ran(self, times: Mapping[int, int]) -> None:
        """Record the largest time of each source's rows in the batch planned last."""
        self._sent = times

    def committed(self, batch: Batch) -> None:
        """Record that a batch is committed; the last one that reads the input, if it does."""
        if not (read := self._read_in(batch)):
            return
        self._is_committed, self._is_told = True, self._is_for_all and not self._behind
        self._untold = set() if self._is_for_all else self._untold | self._sources_of(read)
        self._read |= read
        self._times |= self._sent

    def _sources_of(self, partitions: Collection[TopicPartition]) -> set[int]:
        return {source for at in partitions for source in self._sources_at(at)}

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
        self._behind = {at for at, end in self._ends.items() if max(worked.get(at, 0), self._read.get(at, 0)) < end}
