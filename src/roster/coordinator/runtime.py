"""What every handler works with: the groups, the step's clock, and the effects collected so far.

Group state changes at once, in memory; a reply that promises durability is sent by the continuation of its write.
Offsets are different: they only become visible when their write is acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import TypeAlias

from roster.coordinator.config import CoordinatorConfig
from roster.coordinator.events import CancelTimer, Effects, Reply, SetTimer, TimerName, Write
from roster.coordinator.group import Group
from roster.wire import ErrorCode, Message
from roster.wire.offsets_topic import partition_of

LogRecord: TypeAlias = tuple[bytes, bytes | None]
Continuation: TypeAlias = Callable[[ErrorCode], None]
"""What to do when a write is acknowledged; gets the error as clients may see it."""

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
"""How a failed append to the log looks to a group's clients; errors not listed pass unchanged."""


class PartitionStatus(Enum):
    """Whether this process may answer for the groups of a partition of `__consumer_offsets`."""

    LOADING = "loading"
    ACTIVE = "active"


class Runtime:
    """Groups and effects; `now` (monotonic) and `wall_ms` are those of the step under way."""

    def __init__(self, config: CoordinatorConfig, new_id: Callable[[], str]) -> None:
        self.config = config
        self.new_id = new_id
        self.now = 0
        self.wall_ms = 0
        self.groups: dict[str, Group] = {}
        """Every group of the active partitions, by id."""
        self.partitions: dict[int, PartitionStatus] = {}
        self._writes_under_way: dict[int, tuple[int, list[Continuation]]] = {}
        self._last_write = 0
        self._replies: list[Reply] = []
        self._writes: list[Write] = []
        self._timers: list[SetTimer | CancelTimer] = []

    # -- whose group is it ---------------------------------------------------------------------------------------

    def partition_of(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` that the group lives in."""
        return partition_of(group_id, self.config.partitions)

    def unavailable(self, group_id: str) -> ErrorCode:
        """Why this process cannot answer for the group now; NONE if it can."""
        if group_id in self.groups:
            return ErrorCode.NONE
        status = self.partitions.get(self.partition_of(group_id))
        if status is PartitionStatus.ACTIVE:
            return ErrorCode.NONE
        return ErrorCode.NOT_COORDINATOR if status is None else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def create_group(self, group_id: str) -> Group:
        """Start an empty group that the log does not know yet."""
        group = Group(group_id, self.partition_of(group_id), state_since_ms=self.wall_ms)
        self.groups[group_id] = group
        return group

    def drop_group(self, group: Group) -> None:
        """Forget a group, unless its id has been taken by another one since."""
        if self.groups.get(group.group_id) is group:
            del self.groups[group.group_id]

    def groups_in(self, partition: int) -> list[Group]:
        """The groups of one partition."""
        return [group for group in self.groups.values() if group.partition == partition]

    # -- effects -------------------------------------------------------------------------------------------------

    def reply(self, token: int, message: Message) -> None:
        """Answer a request now."""
        self._replies.append(Reply(token, message))

    def reply_when_durable(self, token: int, message: Message, failed: Callable[[ErrorCode], Message]) -> None:
        """Answer a request once the last write that this step started, if any, is acknowledged."""
        if not self._writes:
            self.reply(token, message)
            return
        _, continuations = self._writes_under_way[self._last_write]
        continuations.append(lambda error: self.reply(token, failed(error) if error else message))

    def write(self, partition: int, records: Iterable[LogRecord], then: Continuation) -> None:
        """Append records to the log; `then` runs in the step in which the shell reports the outcome."""
        self._last_write += 1
        self._writes_under_way[self._last_write] = (partition, [then])
        self._writes.append(Write(self._last_write, partition, tuple(records)))

    def set_timer(self, name: TimerName, deadline: int) -> None:
        """Have TimerExpired(name) delivered at `deadline`."""
        self._timers.append(SetTimer(name, deadline))

    def cancel_timer(self, name: TimerName) -> None:
        """Call a timer off."""
        self._timers.append(CancelTimer(name))

    def write_completed(self, write_id: int, error: ErrorCode) -> None:
        """Resume what waited for a write; an id of before an unload is no longer known and means nothing."""
        _, continuations = self._writes_under_way.pop(write_id, (0, []))
        for resume in continuations:
            resume(CLIENT_ERRORS.get(error, error))

    def abandon_writes(self, partition: int) -> None:
        """Fail the writes under way in a partition that is given up: whether they land is for the next owner to see."""
        for write_id in [number for number, (owner, _) in self._writes_under_way.items() if owner == partition]:
            self.write_completed(write_id, ErrorCode.NOT_COORDINATOR)

    def take_effects(self) -> Effects:
        """Hand out what was collected since the last call."""
        effects = Effects(tuple(self._replies), tuple(self._writes), tuple(self._timers))
        if self._replies:
            self._replies = []
        if self._writes:
            self._writes = []
        if self._timers:
            self._timers = []
        return effects
