"""Partitions that a member owns, is revoking or has lost."""

from collections.abc import Iterable

from roster.model import TopicPartition


class PartitionOwnership:
    """The partitions a member owns, is revoking or has lost, and the epoch in which it got each of them.

    If a member loses a partition and gets it back, work begun before the loss must not be committed; `fenced` finds
    such partitions.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.owned: frozenset[TopicPartition] = frozenset()
        self.revoking: frozenset[TopicPartition] = frozenset()
        self.lost: frozenset[TopicPartition] = frozenset()
        self.revoke_deadline: int | None = None
        self._since: dict[TopicPartition, int] = {}

    @property
    def owned_or_revoking(self) -> frozenset[TopicPartition]:
        """Partitions whose offsets this member may still commit."""
        return self.owned | self.revoking

    def assign(self, partitions: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
        """Own exactly `partitions` from the next epoch on; return the new ones. No partition may be revoking."""
        added = partitions - self.owned
        for removed in self.owned - partitions:
            del self._since[removed]
        self._since.update(dict.fromkeys(added, self.epoch + 1))
        self.owned = partitions
        self.lost = frozenset()
        return added

    def revoke(self, partitions: frozenset[TopicPartition], deadline: int) -> None:
        """Begin to revoke owned `partitions`, until `deadline` (ms)."""
        self.revoking |= partitions
        self.owned -= partitions
        self.revoke_deadline = deadline

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """End the revocation of `partitions`; those not being revoked are ignored."""
        released = self.revoking.intersection(partitions)
        self.revoking -= released
        for partition in released:
            del self._since[partition]
        if not self.revoking:
            self.revoke_deadline = None

    def lose(self, partitions: frozenset[TopicPartition]) -> None:
        """Drop `partitions`, owned or revoking, without the application's consent."""
        self.owned -= partitions
        self.lost |= partitions
        self.release(partitions)
        for partition in partitions:
            self._since.pop(partition, None)

    def fenced(self, partitions: Iterable[TopicPartition], epoch: int) -> frozenset[TopicPartition]:
        """Return the `partitions` that were lost at least once since `epoch`."""
        return frozenset(p for p in partitions if self._since.get(p, epoch + 1) > epoch)
