"""Commits on their way: one at a time, in order, each fenced by the tenure of its partitions."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roster.member.matrix import COMMIT_FAILURES, error_code
from roster.wire import ErrorCode
from roster.wire.messages import OffsetCommitRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roster.member.offsets import OffsetAndMetadata
    from roster.model import TopicPartition
    from roster.wire.messages import OffsetCommitResponse


@dataclass(slots=True)
class Commit:
    """What the application asked for, how often it was tried, and what stood in the way last."""

    token: int
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    epoch: int
    attempts: int = 0
    obstacle: str = "the group is rebalancing"


class CommitQueue:
    """Commits in order; the first one may be in flight. A retry can therefore never overtake a later commit."""

    def __init__(self) -> None:
        self._waiting: deque[Commit] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def first(self) -> Commit:
        """The commit whose turn it is."""
        return self._waiting[0]

    def add(self, commit: Commit) -> None:
        """Queue behind the others."""
        self._waiting.append(commit)

    def remove(self, token: int) -> Commit | None:
        """Take one out, wherever it stands; None when it is done already."""
        for commit in self._waiting:
            if commit.token == token:
                self._waiting.remove(commit)
                return commit
        return None

    def tokens(self) -> list[int]:
        """Those that wait, in order."""
        return [commit.token for commit in self._waiting]


def commit_request(
    commit: Commit, group: str, generation: int, member_id: str, instance_id: str | None
) -> OffsetCommitRequest:
    """The request for `commit` as the given member of the given generation."""
    topics: dict[str, OffsetCommitRequest.Topic] = {}
    for (topic, partition), position in sorted(commit.offsets.items()):
        entry = topics.setdefault(topic, OffsetCommitRequest.Topic(name=topic))
        entry.partitions.append(
            OffsetCommitRequest.Partition(
                partition_index=partition,
                committed_offset=position.offset,
                committed_leader_epoch=position.leader_epoch,
                committed_metadata=position.metadata,
            )
        )
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=list(topics.values()),
    )


def split_errors(response: OffsetCommitResponse) -> tuple[ErrorCode, dict[tuple[str, int], ErrorCode]]:
    """The error that concerns the group (NONE if none), and the errors that concern single partitions."""
    group_error = ErrorCode.NONE
    own: dict[tuple[str, int], ErrorCode] = {}
    for topic in response.topics:
        for partition in topic.partitions:
            code = error_code(partition.error_code)
            if code in COMMIT_FAILURES:
                own[topic.name, partition.partition_index] = code
            elif code is not ErrorCode.NONE:
                group_error = code
    return group_error, own
