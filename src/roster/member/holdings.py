"""What a member holds, and since when."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from roster.model import TopicPartition


class Holdings:
    """The partitions a member owns, is giving up, or has lost, and the epoch each one's tenure began in.

    A tenure ends when the partition is released or lost. Work begun in one tenure must not be committed in another,
    even when the same partition came back in between: `fenced` tells.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.owned: frozenset[TopicPartition] = frozenset()
        self.revoking: frozenset[TopicPartition] = frozenset()
        self.lost: frozenset[TopicPartition] = frozenset()
        self.deadline: int | None = None
        self._since: dict[TopicPartition, int] = {}

    @property
    def held(self) -> frozenset[TopicPartition]:
        """Owned and not given up yet: what this member may claim and commit for."""
        return self.owned | self.revoking

    def assign(self, partitions: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
        """Own exactly `partitions` from the coming epoch on, returns the new ones. Nothing may be in revocation."""
        added = partitions - self.owned
        for gone in self.owned - partitions:
            del self._since[gone]
        self._since.update(dict.fromkeys(added, self.epoch + 1))
        self.owned = partitions
        self.lost = frozenset()
        return added

    def revoke(self, partitions: frozenset[TopicPartition], deadline: int) -> None:
        """Begin to give up owned `partitions`."""
        self.revoking |= partitions
        self.owned -= partitions
        self.deadline = deadline

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """The application is done with these; others are ignored."""
        done = self.revoking.intersection(partitions)
        self.revoking -= done
        for partition in done:
            del self._since[partition]
        if not self.revoking:
            self.deadline = None

    def lose(self, partitions: frozenset[TopicPartition]) -> None:
        """These held partitions are gone without the application's consent."""
        self.owned -= partitions
        self.lost |= partitions
        self.release(partitions)
        for partition in partitions:
            self._since.pop(partition, None)

    def fenced(self, partitions: Iterable[TopicPartition], epoch: int) -> frozenset[TopicPartition]:
        """Those of `partitions` that were not held without a break since `epoch`."""
        return frozenset(p for p in partitions if self._since.get(p, epoch + 1) > epoch)
