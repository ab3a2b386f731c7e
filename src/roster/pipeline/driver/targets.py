"""Where a run with `available_now` ends."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from roster.client import ClientError
from roster.model import TopicPartition


class Targets:
    """The log end offset of each partition when it was assigned.

    Those of repartition topics are looked up once all targets are reached, once for each of these topics: records of
    one may lead to records of the next.
    """

    def __init__(
        self,
        is_repartition: Callable[[TopicPartition], bool],
        log_ends: Callable[[Collection[TopicPartition]], Mapping[TopicPartition, int]],
    ) -> None:
        """`log_ends` counts records of open transactions."""
        self._is_repartition, self._log_ends = is_repartition, log_ends
        self._targets: dict[TopicPartition, int] = {}
        self._rounds = 0
        """How often those of repartition topics were set since the assignment."""

    def adopt(self, owned: Collection[TopicPartition], new: Collection[TopicPartition]) -> None:
        """Take a new assignment."""
        kept = {p for p in owned if not (new and self._is_repartition(p))}
        self._targets = {p: end for p, end in self._targets.items() if p in kept}
        self._rounds = 0 if new else self._rounds

    def limit(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return up to where to read partitions with these log ends; the first ones seen are the targets."""
        for partition, end in ends.items():
            if not self._is_repartition(partition):
                self._targets.setdefault(partition, end)
        return {partition: min(end, self._targets.get(partition, end)) for partition, end in ends.items()}

    def are_reached(self, positions: Mapping[TopicPartition, int]) -> bool:
        """Return True once repartition topics are read, too, where inputs are. Raises ClientError."""
        repartitioned = [partition for partition in positions if self._is_repartition(partition)]
        while all(positions[partition] >= self._targets.get(partition, 0) for partition in repartitioned):
            if self._rounds >= len({partition.topic for partition in repartitioned}):
                return True
            try:
                self._targets |= self._log_ends(repartitioned)
            except ClientError as error:
                if not error.retriable:
                    raise
                return False
            self._rounds += 1
        return False
