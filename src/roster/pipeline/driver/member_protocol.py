"""The group member as the driver's loop needs it; `roster.client.GroupMember` is one, tests script another."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from roster.client import Admin, ClientError, GroupMember, OffsetAndMetadata, Ownership
from roster.client.live_group import members_of
from roster.client.member_statistics import MemberStatistics
from roster.member.options import MemberSettings
from roster.model import TopicPartition
from roster.model.offsets import Arrival
from roster.model.options import values
from roster.pipeline.options import Options


class Membership(Protocol):
    """A group member; `roster.client.GroupMember` describes each method and what it raises."""

    statistics: MemberStatistics

    def start(self, timeout: float = 60.0) -> None:
        """Join; return with the first assignment or after `timeout` seconds."""

    def ownership(self) -> Ownership:
        """Return the current ownership."""

    def wait(self, epoch: int, timeout: float) -> Ownership:
        """Return the ownership once its epoch differs from `epoch`, or after `timeout` seconds."""

    def wait_for_records(
        self, positions: Mapping[TopicPartition, int], epoch: int, timeout: float, *, is_committed: bool = False
    ) -> Ownership:
        """Wait like `wait`, or until one of these partitions has a record at its position or behind."""

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], ownership: Ownership) -> None:
        """Commit offsets of work done under `ownership`."""

    def confirm(self, partitions: Collection[TopicPartition], ownership: Ownership) -> tuple[int, str]:
        """Return generation and member id for a commit of work done under `ownership`."""

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Give up partitions that are being revoked, once no work on them runs."""

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offsets."""

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log start offsets."""

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log end offsets."""

    def watch(self, positions: Mapping[TopicPartition, int], seconds: float, *, is_committed: bool = False) -> None:
        """Ask brokers, for so long, to send records at these positions or behind, until `arrivals` takes them."""

    def arrivals(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, Sequence[Arrival]]:
        """Return what brokers have sent from these positions on, parts one behind the other, and forget the rest."""

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the first offsets at or after times in milliseconds since the epoch, or None."""

    def partitions_for(self, topics: Collection[str]) -> dict[str, int]:
        """Return partition counts by topic."""

    def topics(self) -> frozenset[str]:
        """Return the topics that the subscription matches now."""

    @property
    def assignor(self) -> str | None:
        """Name of the assignor that the group chose."""

    def close(self, leave: bool = True, timeout: float = 10.0) -> None:
        """Leave the group and stop; from any thread, also while `start` waits."""


def group_member(options: Options) -> Membership:
    """Make the member for a pipeline's options. Raises OptionError for a value that cannot work."""
    kind = StableEndsMember if options.isolation_level == "read_committed" else GroupMember
    return kind(
        options.bootstrap, options.group, options.topics, assignors=options.assignors, **member_settings(options)
    )


def is_alone(options: Options) -> bool:
    """Return True if the group has no members, False if that is unknown."""
    try:
        with Admin(options.bootstrap, request_timeout_ms=2_000, security=options.security) as admin:
            return not members_of(admin, options.group)
    except ClientError:
        return False


def member_settings(options: Options) -> dict[str, Any]:
    """Return the arguments that every kind of member takes from a pipeline's options."""
    return values(MemberSettings, options.settings) | {
        "client_id": options.settings.client_id or "roster",
        "capacity": options.capacity or 1,
        "security": options.security,
        "auto_offset_reset": "latest" if options.start == "latest" else "earliest",
    }


class StableEndsMember(GroupMember):
    """Member for `read_committed`: log ends are last stable offsets, so that no range waits for a transaction."""

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the last stable offset of each partition. Raises ClientError if a broker does not answer."""
        return self.stable_offsets(partitions)
