"""What the loop needs from a group member; `roster.client.GroupMember` is one, tests script another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from roster.client import OffsetAndMetadata, Ownership
    from roster.model import TopicPartition


class Membership(Protocol):
    """A member of a group, as `roster.client.GroupMember` describes each method."""

    def start(self, timeout: float = 60.0) -> None:
        """Join; returns with the first assignment or after `timeout` seconds."""

    def ownership(self) -> Ownership:
        """What is owned now."""

    def wait(self, epoch: int, timeout: float) -> Ownership:
        """The newest ownership once its epoch differs from `epoch`, or after `timeout` seconds."""

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], ownership: Ownership) -> None:
        """Commit for work done under `ownership`."""

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Work on these revoking partitions has stopped."""

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's offsets."""

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offsets the logs hold."""

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The logs' ends."""

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first offsets at or after wall-clock ms."""

    def partitions_for(self, topics: Collection[str]) -> dict[str, int]:
        """Partition counts."""

    def close(self, leave: bool = True, timeout: float = 10.0) -> None:
        """Stop, and leave the group."""
