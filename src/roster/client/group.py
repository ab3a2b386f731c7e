"""A member of a consumer group as a blocking facade over an event-loop thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Collection, Mapping, Sequence
    from types import TracebackType

    from roster.client.types import MemberEvent, Ownership
    from roster.member.offsets import OffsetAndMetadata
    from roster.model import TopicPartition


class GroupMember:
    """A member of a consumer group on an event-loop thread of its own; every method is thread-safe and blocking."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        group: str,
        topics: Sequence[str] | re.Pattern[str],
        *,
        assignors: Sequence[str] = ("cooperative-sticky",),
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 3_000,
        rebalance_timeout_ms: int = 300_000,
        request_timeout_ms: int = 30_000,
        metadata_max_age_ms: int = 300_000,
        client_id: str = "roster",
        group_instance_id: str | None = None,
        rack_id: str | None = None,
        on_event: Callable[[MemberEvent], None] | None = None,
    ) -> None:
        raise NotImplementedError

    def start(self, timeout: float = 60.0) -> None:
        """Join the group: returns with the first assignment, or after `timeout` seconds while it goes on joining."""
        raise NotImplementedError

    def ownership(self) -> Ownership:
        """What this member owns now."""
        raise NotImplementedError

    def wait(self, epoch: int, timeout: float) -> Ownership:
        """Wait until the snapshot's epoch differs from `epoch`, at most `timeout` seconds; returns the newest."""
        raise NotImplementedError

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], ownership: Ownership) -> None:
        """Commit for work done under `ownership`: CommitFenced when a partition was lost since, CommitRetriable, ..."""
        raise NotImplementedError

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Say that work on these `revoking` partitions has stopped and is committed."""
        raise NotImplementedError

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets; None where there is none."""
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

    def partitions_for(self, topics: Collection[str]) -> dict[str, int]:
        """How many partitions each topic has; UnknownTopicError when one does not exist."""
        raise NotImplementedError

    def close(self, leave: bool = True, timeout: float = 10.0) -> None:
        """Stop; with `leave` a dynamic member says goodbye so that the others take over at once."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
