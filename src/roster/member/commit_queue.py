"""Queue of offset commits: in order, one in flight at a time; a commit fails if its partitions were lost meanwhile."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from roster.member.config import MemberConfig
from roster.member.error_table import COMMIT_FAILURES
from roster.member.events import CommitDone
from roster.member.failures import commit_fenced, commit_refused
from roster.member.outbox import Outbox
from roster.member.ownership import PartitionOwnership
from roster.member.timers import COMMIT, commit_deadline
from roster.member.types import Failure, FailureKind
from roster.model import OffsetAndMetadata, TopicPartition
from roster.wire import ApiKey, ErrorCode
from roster.wire.errors import error_code
from roster.wire.messages import OffsetCommitResponse


@dataclass(slots=True, eq=False)
class PendingCommit:
    """A requested commit, the number of retries so far, and why it has not been written yet."""

    token: int
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    epoch: int
    retries: int = 0
    obstacle: str = "the group is rebalancing"


class CommitQueue:
    """Commits in order; only the first may be in flight, so a retry can never overtake a later commit.

    Each must complete within the request timeout, retries included. The member sends what is `due` and reports the
    outcome.
    """

    def __init__(self, config: MemberConfig, out: Outbox) -> None:
        self._config = config
        self._out = out
        self._queue: deque[PendingCommit] = deque()

    def add(self, commit: PendingCommit) -> None:
        """Append a commit and start its deadline."""
        self._queue.append(commit)
        self._out.set(commit_deadline(commit.token), self._out.now + self._config.request_timeout_ms)

    def fail_fenced(self, ownership: PartitionOwnership) -> None:
        """Fail queued commits whose partitions were lost; leave the in-flight one to its response."""
        if not self._queue:
            return
        in_flight = self._queue[0] if self._out.in_flight(ApiKey.OFFSET_COMMIT) else None
        for commit in list(self._queue):
            fenced = ownership.fenced(commit.offsets, commit.epoch)
            if fenced and commit is not in_flight:
                self._done(commit, commit_fenced(fenced))

    def due(self) -> PendingCommit | None:
        """Return the commit to send now, if any."""
        if not self._queue or self._out.in_flight(ApiKey.OFFSET_COMMIT) or self._out.backing_off(COMMIT):
            return None
        return self._queue[0]

    def complete(self, errors: Mapping[tuple[str, int], ErrorCode]) -> None:
        """Complete the first commit: its offsets are written, except for the partitions in `errors`."""
        if self._queue:
            self._done(self._queue[0], commit_refused(errors) if errors else None)

    def blocked(self, reason: str) -> None:
        """Record why the first commit cannot be sent."""
        if self._queue:
            self._queue[0].obstacle = reason

    def back_off(self, code: ErrorCode) -> None:
        """Retry the first commit after a back-off."""
        if self._queue:
            commit = self._queue[0]
            commit.obstacle = code.name
            self._out.back_off(COMMIT, commit.retries)
            commit.retries += 1

    def expire(self, token: int) -> None:
        """Fail the commit `token` at its deadline."""
        for place, commit in enumerate(self._queue):
            if commit.token == token:
                if place == 0:
                    self._out.drop(ApiKey.OFFSET_COMMIT)
                seconds = self._config.request_timeout_ms / 1000
                text = f"the commit did not go through within {seconds:g} s ({commit.obstacle}), its outcome is unknown"
                self._done(commit, Failure(FailureKind.RETRIABLE, text, partitions=frozenset(commit.offsets)))
                return

    def fail_all(self, failure: Failure) -> None:
        """Fail every queued commit."""
        while self._queue:
            self._done(self._queue[0], failure)

    def _done(self, commit: PendingCommit, failure: Failure | None) -> None:
        self._queue.remove(commit)
        self._out.cancel(commit_deadline(commit.token))
        self._out.emit(CommitDone(commit.token, failure))


def split_errors(response: OffsetCommitResponse) -> tuple[ErrorCode, dict[tuple[str, int], ErrorCode]]:
    """Return the error that concerns the group (NONE if none), and the errors of single partitions."""
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
