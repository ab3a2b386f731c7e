"""State of one group: members, generation, pending requests and committed offsets, as in Kafka's ClassicGroup.

A single request costs O(1) in the number of members; only a rebalance visits all of them.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from roster.coordinator.states import TRANSITIONS, GroupState, Trigger
from roster.coordinator_common import IllegalTransitionError
from roster.wire import ErrorCode, WireError
from roster.wire.consumer import PROTOCOL_TYPE
from roster.wire.consumer.messages import decode_subscription
from roster.wire.messages import JoinGroupResponse

Protocols: TypeAlias = tuple[tuple[str, bytes], ...]
"""The protocols (assignors) of a member, preferred first: (name, metadata), names unique."""

MAX_GENERATION_LEAD = 1_000
"""A member's generation is ignored if it is more than this above the group's."""


def metadata_size(protocols: Protocols) -> int:
    """Return the size of the metadata of all protocols, in bytes."""
    return sum(len(metadata) for _, metadata in protocols)


class ParkedJoin(NamedTuple):
    """A JoinGroup whose response waits for the end of the join phase."""

    token: int
    api_version: int


class CommittedOffset(NamedTuple):
    """A durable committed offset; `expires_at_ms` is set if an old client asked for a retention of its own."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int
    expires_at_ms: int | None = None


@dataclass(slots=True, eq=False)
class Member:
    """A member of a group; its session ends at `deadline` unless a request renews it.

    `timer_deadline` is the deadline of the shell's session timer, None while no timer is set. It may be before
    `deadline`, so a heartbeat changes only `deadline` and no timer.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    protocols_complete: bool = True
    """False from loading until the member rejoins: the log has its metadata for the selected protocol only."""
    assignment: bytes = b""
    parked_join: ParkedJoin | None = None
    parked_sync: int | None = None
    is_new: bool = False
    deadline: int = 0
    timer_deadline: int | None = None

    def metadata(self, protocol: str | None) -> bytes:
        """Return the member's metadata for the protocol; empty if it does not support it."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def waits_for_join(self) -> bool:
        """Return True for a member with a parked JoinGroup, except a new one: it may be gone without closing."""
        return not self.is_new and self.parked_join is not None


@dataclass(slots=True, eq=False)
class Group:
    """A group and its offsets; `state_since_ms` is wall-clock time, None if an old record had none."""

    group_id: str
    partition: int
    state: GroupState = GroupState.EMPTY
    state_since_ms: int | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    generation: int = 0
    generation_floor: int = 0
    """Highest generation that a member claims; the next generation is higher."""
    perhaps_unannounced: bool = False
    """True after loading a generation without its assignment; some of its members may not know of it."""
    leader_id: str | None = None
    recorded: bool = False
    """True once a record of the group itself has been written, or is being written."""

    members: dict[str, Member] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)
    """Static members: group.instance.id to member id."""
    pending_members: dict[str, int] = field(default_factory=dict)
    """Deadlines of the member ids that were sent with MEMBER_ID_REQUIRED and not used yet."""
    supported_protocols: Counter[str] = field(default_factory=Counter)
    """Number of members that support each protocol."""
    incomplete_protocols: int = 0
    """Number of members whose protocols are not all known; see `Member.protocols_complete`."""
    metadata_bytes: int = 0
    """Size of the metadata of all protocols of all members."""
    awaiting_join: int = 0
    """Number of members with a parked JoinGroup."""
    pending_sync_members: set[str] = field(default_factory=set)
    """Members of this generation that have not sent SyncGroup yet."""

    initial_delay_left_ms: int | None = None
    """In the first rebalance of an empty group: by how much its delay may still be extended (ms); otherwise None."""
    initial_delay_ms: int = 0
    new_member_added: bool = False
    """A member joined during the current initial delay."""
    join_deadline: int | None = None
    changes: int = 0
    """Number of changes of members, their ids or their protocols so far."""
    generation_write: int | None = None
    """While the next generation is being written: the value of `changes` when its write began."""
    sync_deadline: int | None = None
    sync_write_generation: int | None = None
    """The generation whose assignment is being written."""

    offsets: dict[str, dict[int, CommittedOffset]] = field(default_factory=dict)
    pending_offset_writes: Counter[tuple[str, int]] = field(default_factory=Counter)
    """(topic, partition) of offset writes that are not yet durable."""
    transactional_writes: Counter[tuple[str, int]] = field(default_factory=Counter)
    """The same for offsets in transactions."""
    offset_positions: dict[tuple[str, int], int] = field(default_factory=dict)
    """Place of each durable offset among the group's offset records; the one later in the log is valid."""
    last_position: int = 0
    pending_offsets: dict[int, dict[tuple[str, int], tuple[int, CommittedOffset]]] = field(default_factory=dict)
    """By producer id, the durable offsets of undecided transactions, with their places in the log."""

    # -- state ---------------------------------------------------------------------------------------------------

    def transition(self, trigger: Trigger, wall_ms: int) -> None:
        """Change the state as TRANSITIONS says. Raises IllegalTransitionError for any other combination."""
        state = TRANSITIONS.get((self.state, trigger))
        if state is None:
            raise IllegalTransitionError(f"group {self.group_id!r}: {trigger.value} in state {self.state.value}")
        self.state = state
        self.state_since_ms = wall_ms

    def validate_generation(self, generation: int) -> ErrorCode:
        """Check the generation in a request.

        A generation above the group's is recorded: another coordinator may have announced it without storing it, as
        Apache Kafka does. If a failover came between the record of a generation and its responses, members of the
        previous generation have to rejoin; they may not know of the new one.
        """
        if generation == self.generation:
            return ErrorCode.NONE
        if self.perhaps_unannounced and generation == self.generation - 1:
            return ErrorCode.REBALANCE_IN_PROGRESS
        if generation - self.generation <= MAX_GENERATION_LEAD:
            self.generation_floor = max(self.generation_floor, generation)
        return ErrorCode.ILLEGAL_GENERATION

    # -- members -------------------------------------------------------------------------------------------------

    def validate_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Check the ids in a request; a static member is fenced if another member has its instance id (KIP-345)."""
        if instance_id is not None:
            holder = self.instances.get(instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if holder != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def add(self, member: Member) -> None:
        """Add a member; the first one is the leader."""
        self.pending_members.pop(member.member_id, None)
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self._count_support(member, 1)
        if member.parked_join is not None:
            self.awaiting_join += 1

    def remove(self, member: Member) -> None:
        """Remove a member; if it was the leader, the oldest other member becomes leader."""
        del self.members[member.member_id]
        self.pending_sync_members.discard(member.member_id)
        if member.instance_id is not None:
            del self.instances[member.instance_id]
        self._count_support(member, -1)
        if member.parked_join is not None:
            self.awaiting_join -= 1
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self.members), None)

    def replace_member_id(self, member: Member, new_id: str) -> None:
        """Give a static member a new id, wherever the old one is stored."""
        old_id = member.member_id
        self.changes += 1
        del self.members[old_id]
        self.members[new_id] = member
        member.member_id = new_id
        if member.instance_id is not None:
            self.instances[member.instance_id] = new_id
        if self.leader_id == old_id:
            self.leader_id = new_id
        if old_id in self.pending_sync_members:
            self.pending_sync_members.remove(old_id)
            self.pending_sync_members.add(new_id)

    def update_member(
        self, member: Member, protocols: Protocols, session_timeout_ms: int, rebalance_timeout_ms: int
    ) -> None:
        """Replace the protocols and timeouts of a member."""
        if protocols != member.protocols or not member.protocols_complete:
            self._count_support(member, -1)
            member.protocols, member.protocols_complete = protocols, True
            self._count_support(member, 1)
        member.session_timeout_ms = session_timeout_ms
        member.rebalance_timeout_ms = rebalance_timeout_ms

    def park_join(self, member: Member, parked: ParkedJoin) -> ParkedJoin | None:
        """Park a JoinGroup; return the one that it displaces."""
        displaced = member.parked_join
        member.parked_join = parked
        self.awaiting_join += displaced is None
        return displaced

    def unpark_join(self, member: Member) -> ParkedJoin | None:
        """Remove and return the parked JoinGroup, to answer it."""
        parked, member.parked_join = member.parked_join, None
        self.awaiting_join -= parked is not None
        return parked

    def unpark_joins(self) -> list[tuple[Member, ParkedJoin]]:
        """Remove and return every parked JoinGroup, to answer them."""
        return [(m, parked) for m in self.members.values() if (parked := self.unpark_join(m)) is not None]

    def current_members(self) -> list[JoinGroupResponse.Member]:
        """Return every member with its metadata for the selected protocol, for the leader."""
        return [
            JoinGroupResponse.Member(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata(self.protocol),
            )
            for member in self.members.values()
        ]

    # -- rebalance -----------------------------------------------------------------------------------------------

    def can_rebalance(self) -> bool:
        """Return True if a join phase may begin in the current state."""
        return (self.state, Trigger.REBALANCE_NEEDED) in TRANSITIONS

    def has_all_members_joined(self) -> bool:
        """Return True if all members have joined; a group without members does not wait for pending ones."""
        return self.awaiting_join == len(self.members) and not (self.members and self.pending_members)

    def remove_not_yet_rejoined(self) -> list[Member]:
        """Remove the dynamic members without a parked JoinGroup, and return them."""
        missing = [m for m in self.members.values() if m.parked_join is None and m.instance_id is None]
        for member in missing:
            self.remove(member)
        return missing

    def maybe_elect_new_joined_leader(self) -> bool:
        """Replace a leader that has not rejoined by the oldest member that has; return False if no member has."""
        leader = self.members.get(self.leader_id or "")
        if leader is None or leader.parked_join is None:
            leader = next((member for member in self.members.values() if member.parked_join is not None), None)
        if leader is None:
            return False
        self.leader_id = leader.member_id
        return True

    @property
    def next_generation(self) -> int:
        """Number of the next generation."""
        return max(self.generation, self.generation_floor) + 1

    def become_empty(self, wall_ms: int) -> None:
        """Begin the next generation without members."""
        self.generation = self.next_generation
        self.protocol = self.leader_id = None
        self.perhaps_unannounced = False
        self.transition(Trigger.LAST_MEMBER_LEFT, wall_ms)

    def begin_generation(self, generation: int, protocol: str, wall_ms: int) -> None:
        """Begin a generation with the present members."""
        self.generation, self.protocol = generation, protocol
        self.perhaps_unannounced = False
        self.transition(Trigger.JOIN_PHASE_COMPLETED, wall_ms)
        # Assignments stay: DescribeGroups shows the previous ones until the sync.
        self.pending_sync_members = set(self.members)

    def rebalance_timeout_ms(self) -> int:
        """Return the longest rebalance timeout of the members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # -- protocols -----------------------------------------------------------------------------------------------

    def supports_protocols(self, protocol_type: str, protocols: Protocols, joining: Member | None = None) -> bool:
        """Return True if all other members may support one of the protocols, so a member may join with them.

        The previous protocols of the `joining` member do not count. A member whose protocols are not all known is
        assumed to support any. While there is such a member, one that joins with the group's protocol is accepted; the
        end of the join phase decides (`without_common_protocol`).
        """
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        if protocol_type != self.protocol_type or not protocols:
            return False
        size = len(self.members)
        if any(self.supported_protocols[name] == size for name, _ in protocols):
            return True
        names = {name for name, _ in protocols}
        if joining is not None and self.protocol in names and size not in self.supported_protocols.values():
            return True
        others = size - (joining is not None)
        former = set() if joining is None else {name for name, _ in joining.protocols}
        unknown = self.incomplete_protocols - (joining is not None and not joining.protocols_complete)
        return any(
            self.supported_protocols[name] - (name in former) + (unknown if name != self.protocol else 0) >= others
            for name in names
        )

    def without_common_protocol(self) -> list[Member]:
        """Return the members that have no protocol in common with the members before them."""
        if len(self.members) in self.supported_protocols.values():
            return []
        common: set[str] = set()
        odd = []
        for member in self.members.values():
            names = {name for name, _ in member.protocols}
            if common and not names & common:
                odd.append(member)
            else:
                common = names & common if common else names
        return odd

    def select_protocol(self) -> str | None:
        """Select the protocol of the next generation; None if the members have none in common.

        Candidates are the protocols every member supports; each member votes for the candidate it prefers. Equal votes
        are decided by the smaller sum of ranks over all members' preference lists, then by name: the outcome depends
        neither on the members' order nor on any hash (worked cases, DF-6).
        """
        size = len(self.members)
        candidates = {name for name, count in self.supported_protocols.items() if count == size}
        if not candidates:
            return None
        votes: Counter[str] = Counter()
        ranks: Counter[str] = Counter()
        for member in self.members.values():
            preferred = [name for name, _ in member.protocols if name in candidates]
            votes[preferred[0]] += 1
            for rank, name in enumerate(preferred):
                ranks[name] += rank
        return min(candidates, key=lambda name: (-votes[name], ranks[name], name))

    def _count_support(self, member: Member, change: int) -> None:
        self.changes += 1
        self.incomplete_protocols += 0 if member.protocols_complete else change
        self.metadata_bytes += change * metadata_size(member.protocols)
        for name, _ in member.protocols:
            self.supported_protocols[name] += change
            if not self.supported_protocols[name]:
                del self.supported_protocols[name]

    # -- subscriptions -------------------------------------------------------------------------------------------

    def is_consumer_group(self) -> bool:
        """Return True if members use the consumer protocol, so that their metadata are subscriptions."""
        return self.protocol_type == PROTOCOL_TYPE

    def subscribed_topics(self) -> set[str] | None:
        """Return the topics that the members of a consumer group subscribe to, or None if they cannot be read.

        Subscriptions are decoded only on demand: malformed metadata does not stop a rebalance (worked case DF-4), but
        the group's offsets then cannot be deleted or expire by topic.
        """
        if not self.is_consumer_group():
            return None
        topics: set[str] = set()
        for member in self.members.values():
            subscribed = self.topics_of(member)
            if subscribed is None:
                return None
            topics |= subscribed
        return topics

    def topics_of(self, member: Member) -> set[str] | None:
        """Return the topics that a member of a consumer group subscribes to, None if they cannot be decoded."""
        if not self.is_consumer_group():
            return None
        try:
            return set(decode_subscription(member.metadata(self.protocol)).topics)
        except WireError:
            return None

    # -- offsets -------------------------------------------------------------------------------------------------

    def all_offsets(self) -> set[tuple[str, int]]:
        """Return (topic, partition) of every offset that is durable or being written."""
        durable = {(topic, partition) for topic, partitions in self.offsets.items() for partition in partitions}
        undecided = {key for offsets in self.pending_offsets.values() for key in offsets}
        return durable | undecided | set(self.pending_offset_writes) | set(self.transactional_writes)

    def is_unstable(self, topic: str, partition: int) -> bool:
        """Return True if an offset of the partition is in an undecided transaction (KIP-447)."""
        key = (topic, partition)
        return key in self.transactional_writes or any(key in offsets for offsets in self.pending_offsets.values())

    def store_offset(
        self, topic: str, partition: int, committed: CommittedOffset | None, position: int | None = None
    ) -> None:
        """Set a durable offset, at its place in the log or as the last one; None removes it and pending ones."""
        key = (topic, partition)
        if committed is not None:
            self.offsets.setdefault(topic, {})[partition] = committed
            self.offset_positions[key] = self._next_position() if position is None else position
            return
        self.offset_positions.pop(key, None)
        self._remove_pending(key)
        partitions = self.offsets.get(topic, {})
        partitions.pop(partition, None)
        if not partitions:
            self.offsets.pop(topic, None)

    def _next_position(self) -> int:
        self.last_position += 1
        return self.last_position

    def _remove_pending(self, key: tuple[str, int]) -> None:
        for producer_id, offsets in list(self.pending_offsets.items()):
            offsets.pop(key, None)
            if not offsets:
                del self.pending_offsets[producer_id]

    def add_pending_offset(self, producer_id: int, topic: str, partition: int, committed: CommittedOffset) -> None:
        """Add a durable offset of a producer's transaction, as the last one in the log."""
        pending = self.pending_offsets.setdefault(producer_id, {})
        pending[topic, partition] = self._next_position(), committed

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Commit or drop the pending offsets of a producer's transaction; offsets later in the log stay."""
        for (topic, partition), (position, offset) in self.pending_offsets.pop(producer_id, {}).items():
            if committed and position > self.offset_positions.get((topic, partition), 0):
                self.store_offset(topic, partition, offset, position)

    def take_offsets(self, other: "Group") -> None:
        """Take over the offsets of the group's previous object."""
        self.offsets, self.offset_positions = other.offsets, other.offset_positions
        self.pending_offsets, self.last_position = other.pending_offsets, other.last_position

    def complete_offset_writes(self, keys: Iterable[tuple[str, int]]) -> None:
        """Remove offset writes from the pending ones."""
        for key in keys:
            self.pending_offset_writes[key] -= 1
            if self.pending_offset_writes[key] <= 0:
                del self.pending_offset_writes[key]
