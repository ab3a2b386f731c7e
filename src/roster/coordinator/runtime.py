"""Groups, the clock of the current step, and the effects it has collected so far.

The state of a group changes at once, in memory; a reply that promises durability is sent by the continuation of its
write. Committed offsets become visible only when their write is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import TypeAlias

from roster.coordinator.config import CoordinatorConfig
from roster.coordinator.events import Effects, Reply, TimerEffect, Write
from roster.coordinator.group import Group
from roster.wire import ErrorCode, Message
from roster.wire.offsets_topic import partition_of

LogRecord: TypeAlias = tuple[bytes, bytes | None]
Continuation: TypeAlias = Callable[[ErrorCode], None]
"""Called when a write is complete, with the error that clients may see."""

CLIENT_ERRORS: dict[ErrorCode, ErrorCode] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""Error of a failed append to the log: the error for clients of the group; errors not listed pass unchanged."""


class PartitionStatus(Enum):
    """State of a partition of `__consumer_offsets` in this process."""

    LOADING = "loading"
    ACTIVE = "active"


class Runtime:
    """Groups and effects; `now` (monotonic, ms) and `wall_ms` belong to the current step.

    Handlers append to `replies` and `timers` and call `write`; `take_effects` ends the step.
    """

    def __init__(
        self, config: CoordinatorConfig, new_id: Callable[[], str], is_connected: Callable[[int], bool]
    ) -> None:
        self.config = config
        self.new_id = new_id
        self.is_connected = is_connected
        self.now = 0
        self.wall_ms = 0
        self.groups: dict[str, Group] = {}
        """Every group of the active partitions, by id."""
        self.partitions: dict[int, PartitionStatus] = {}
        self.in_transaction: dict[tuple[int, int], set[str]] = {}
        """Ids of the groups with offsets in a transaction, by partition and producer id."""
        self.replies: list[Reply] = []
        self.timers: list[TimerEffect] = []
        self._writes: list[Write] = []
        self._writes_under_way: dict[int, tuple[int, list[Continuation]]] = {}
        self._last_write = 0

    # -- groups -------------------------------------------------------------------------------------------------

    def partition_of(self, group_id: str) -> int:
        """Return the partition of `__consumer_offsets` that has the group."""
        return partition_of(group_id, self.config.partitions)

    def availability_error(self, group_id: str) -> ErrorCode:
        """Return the error for a group whose partition is not loaded here (NOT_COORDINATOR, …), or NONE."""
        if group_id in self.groups:
            return ErrorCode.NONE
        status = self.partitions.get(self.partition_of(group_id))
        if status is PartitionStatus.ACTIVE:
            return ErrorCode.NONE
        return ErrorCode.NOT_COORDINATOR if status is None else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def create_group(self, group_id: str) -> Group:
        """Create an empty group; its record is not written yet."""
        group = Group(group_id, self.partition_of(group_id), state_since_ms=self.wall_ms)
        self.groups[group_id] = group
        return group

    def drop_group(self, group: Group) -> None:
        """Drop a group, unless another one has its id by now."""
        if self.groups.get(group.group_id) is group:
            del self.groups[group.group_id]

    def groups_in(self, partition: int) -> list[Group]:
        """Return the groups of one partition."""
        return [group for group in self.groups.values() if group.partition == partition]

    # -- writes ------------------------------------------------------------------------------------------------

    def write(
        self,
        partition: int,
        records: Iterable[LogRecord],
        then: Continuation,
        producer: tuple[int, int] | None = None,
    ) -> None:
        """Append records to the log, as part of a producer's (id, epoch) transaction if there is one.

        `then` runs in the step that reports the result.
        """
        self._last_write += 1
        self._writes_under_way[self._last_write] = (partition, [then])
        self._writes.append(Write(self._last_write, partition, tuple(records), producer))

    def reply_when_durable(self, token: int, message: Message, failed: Callable[[ErrorCode], Message]) -> None:
        """Answer a request once the last write that this step started, if any, is complete."""
        if not self._writes:
            self.replies.append(Reply(token, message))
            return
        _, continuations = self._writes_under_way[self._last_write]
        continuations.append(lambda error: self.replies.append(Reply(token, failed(error) if error else message)))

    def write_completed(self, write_id: int, error: ErrorCode) -> None:
        """Run the continuations of a write; an id from before an unload is ignored."""
        _, continuations = self._writes_under_way.pop(write_id, (0, []))
        for resume in continuations:
            resume(CLIENT_ERRORS.get(error, error))

    def fail_writes(self, partition: int) -> None:
        """Fail the writes under way in an unloaded partition; its next coordinator sees which are durable."""
        for write_id in [number for number, (owner, _) in self._writes_under_way.items() if owner == partition]:
            self.write_completed(write_id, ErrorCode.NOT_COORDINATOR)

    # -- effects -----------------------------------------------------------------------------------------------

    def take_effects(self) -> Effects:
        """Return the effects collected since the last call."""
        effects = Effects(tuple(self.replies), tuple(self._writes), tuple(self.timers))
        if self.replies:
            self.replies = []
        if self._writes:
            self._writes = []
        if self.timers:
            self.timers = []
        return effects
