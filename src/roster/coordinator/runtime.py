"""Groups, the clock of the current step, and the effects it has collected so far.

A group's state in memory changes at once. A reply that promises durability is sent by the continuation of the write.
Committed offsets are visible only once their write is durable.
"""

from collections.abc import Callable
from enum import Enum

from roster.coordinator.config import CoordinatorConfig
from roster.coordinator.events import Effects, TimerEffect
from roster.coordinator.group import Group
from roster.coordinator_common import PendingWrites, Reply
from roster.wire import ErrorCode, Message
from roster.wire.offsets_topic import partition_of


class PartitionStatus(Enum):
    """State of a partition of `__consumer_offsets` in this process."""

    LOADING = "loading"
    ACTIVE = "active"


class Runtime:
    """Groups and effects; `now` (monotonic, ms) and `wall_ms` belong to the current step.

    Handlers append to `replies` and `timers` and start `writes`; `take_effects` ends the step.
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
        self.writes = PendingWrites()

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
        """Drop a group, unless a new group has its id."""
        if self.groups.get(group.group_id) is group:
            del self.groups[group.group_id]

    def groups_in(self, partition: int) -> list[Group]:
        """Return the groups of one partition."""
        return [group for group in self.groups.values() if group.partition == partition]

    # -- effects -----------------------------------------------------------------------------------------------

    def reply_when_durable(self, token: int, message: Message, failed: Callable[[ErrorCode], Message]) -> None:
        """Answer a request when the last write that this step started is complete, at once if there is none."""
        if not self.writes.started:
            self.replies.append(Reply(token, message))
            return
        self.writes.after_last(lambda error: self.replies.append(Reply(token, failed(error) if error else message)))

    def take_effects(self) -> Effects:
        """Return the effects collected since the last call."""
        effects = Effects(tuple(self.replies), tuple(self.writes.take_started()), tuple(self.timers))
        if self.replies:
            self.replies = []
        if self.timers:
            self.timers = []
        return effects
