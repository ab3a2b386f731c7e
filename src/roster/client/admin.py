"""Topics and groups of a cluster, looked after from plain blocking code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from types import TracebackType

    from roster.client.types import GroupDescription, GroupListing, TopicDescription
    from roster.member.offsets import OffsetAndMetadata
    from roster.model import TopicPartition


class Admin:
    """Administration of any Kafka-compatible cluster; thread-safe and blocking, usable as a context manager."""

    def __init__(
        self, bootstrap: str | Sequence[str], *, client_id: str = "roster-admin", request_timeout_ms: int = 30_000
    ) -> None:
        raise NotImplementedError

    def create_topic(
        self, name: str, partitions: int = 1, *, replication: int = -1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic; TopicExistsError when it is there already."""
        raise NotImplementedError

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records."""
        raise NotImplementedError

    def create_partitions(self, name: str, total: int) -> None:
        """Let the topic have `total` partitions, more than now."""
        raise NotImplementedError

    def list_topics(self, *, internal: bool = False) -> dict[str, int]:
        """Name → number of partitions."""
        raise NotImplementedError

    def describe_topic(self, name: str) -> TopicDescription:
        """The topic's partitions, leaders and replicas."""
        raise NotImplementedError

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset each partition still holds."""
        raise NotImplementedError

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset the next record of each partition will get."""
        raise NotImplementedError

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first offset at or after each wall-clock ms; None where no record is that young."""
        raise NotImplementedError

    def list_groups(self) -> list[GroupListing]:
        """Every group of the cluster."""
        raise NotImplementedError

    def describe_group(self, group: str) -> GroupDescription:
        """The group's state and members; UnknownGroupError when there is no such group."""
        raise NotImplementedError

    def group_offsets(
        self, group: str, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The group's committed offsets, all of them or those asked for."""
        raise NotImplementedError

    def commit_group_offsets(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Set the offsets of a group without members."""
        raise NotImplementedError

    def delete_group(self, group: str) -> None:
        """Delete a group without members, and its offsets."""
        raise NotImplementedError

    def delete_offsets(self, group: str, partitions: Collection[TopicPartition]) -> None:
        """Forget the group's offsets of partitions nobody in the group subscribes to."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connections."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
