"""Commits on their way: one at a time, in order, each fenced by the tenure of its partitions."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roster.member.events import CommitDone, Failure, FailureKind
from roster.member.failures import commit_fenced, commit_refused
from roster.member.matrix import COMMIT_FAILURES, error_code
from roster.wire import ErrorCode
from roster.wire.messages import OffsetCommitRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roster.member.config import MemberConfig
    from roster.member.events import TimerName
    from roster.member.holdings import Holdings
    from roster.member.offsets import OffsetAndMetadata
    from roster.member.outbox import Outbox
    from roster.model import TopicPartition
    from roster.wire.messages import OffsetCommitResponse


PAUSE: TimerName = ("commit",)
"""Ends the pause before a commit is tried again."""


@dataclass(slots=True, eq=False)
class Commit:
    """What the application asked for, how often it was tried, and what stood in the way last."""

    token: int
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    epoch: int
    attempts: int = 0
    obstacle: str = "the group is rebalancing"


class Commits:
    """Commits in order; only the first may be in flight, so a retry can never overtake a later commit.

    Each has the request timeout to go through, whatever stands in its way. The member sends what is `due` and tells
    what became of it.
    """

    def __init__(self, config: MemberConfig, out: Outbox) -> None:
        self._config = config
        self._out = out
        self._waiting: deque[Commit] = deque()

    def add(self, commit: Commit) -> None:
        """Queue behind the others; the time it has begins now."""
        self._waiting.append(commit)
        self._out.set(("commit", commit.token), self._out.now + self._config.request_timeout_ms)

    def fence(self, holdings: Holdings) -> None:
        """Fail those whose partitions were lost meanwhile, except one that is on its way: its answer will tell."""
        on_its_way = self._waiting[0] if self._waiting and self._out.in_flight("commit") else None
        for commit in list(self._waiting):
            fenced = holdings.fenced(commit.offsets, commit.epoch)
            if fenced and commit is not on_its_way:
                self._done(commit, commit_fenced(fenced))

    def due(self) -> Commit | None:
        """The commit to send now, if any."""
        if not self._waiting or self._out.in_flight("commit") or self._out.paused(PAUSE):
            return None
        return self._waiting[0]

    def answered(self, errors: Mapping[tuple[str, int], ErrorCode]) -> None:
        """The first is written, but for the partitions in `errors`."""
        if self._waiting:
            self._done(self._waiting[0], commit_refused(errors) if errors else None)

    def obstructed(self, reason: str) -> None:
        """The first cannot go through yet."""
        if self._waiting:
            self._waiting[0].obstacle = reason

    def delayed(self, code: ErrorCode) -> None:
        """The first is to be tried again after a pause."""
        if self._waiting:
            commit = self._waiting[0]
            commit.obstacle = code.name
            self._out.pause(PAUSE, commit.attempts)
            commit.attempts += 1

    def expired(self, token: int) -> None:
        """The time of this one is up."""
        for place, commit in enumerate(self._waiting):
            if commit.token == token:
                if place == 0:
                    self._out.forget("commit")
                seconds = self._config.request_timeout_ms / 1000
                text = f"the commit did not go through within {seconds:g} s ({commit.obstacle}), its outcome is unknown"
                self._done(commit, Failure(FailureKind.RETRIABLE, text, partitions=frozenset(commit.offsets)))
                return

    def fail_all(self, failure: Failure) -> None:
        """The member is done."""
        while self._waiting:
            self._done(self._waiting[0], failure)

    def _done(self, commit: Commit, failure: Failure | None) -> None:
        self._waiting.remove(commit)
        self._out.cancel(("commit", commit.token))
        self._out.emit(CommitDone(commit.token, failure))


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
