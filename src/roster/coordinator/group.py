"""One group's state: its members, who it waits for, its committed offsets. No decisions, no effects.

Every query a request asks is O(1) in the number of members; only what happens once a rebalance walks them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

Protocols: TypeAlias = tuple[tuple[str, bytes], ...]
"""What a member can do, preferred first: (name, metadata), names unique."""

CONSUMER_PROTOCOL_TYPE = "consumer"
FARTHEST_CREDIBLE_CLAIM = 1_000
"""How far ahead of the group a generation named by a member is still believed."""


def metadata_size(protocols: Protocols) -> int:
    """The bytes of metadata of all protocols."""
    return sum(len(metadata) for _, metadata in protocols)


class GroupState(Enum):
    """The states of Kafka's classic protocol, valued as they are named on the wire."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


LEGAL_TRANSITIONS: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING, GroupState.DEAD}),
    GroupState.PREPARING: frozenset({GroupState.COMPLETING, GroupState.EMPTY, GroupState.DEAD}),
    GroupState.COMPLETING: frozenset({GroupState.STABLE, GroupState.PREPARING, GroupState.DEAD}),
    GroupState.STABLE: frozenset({GroupState.PREPARING, GroupState.DEAD}),
    GroupState.DEAD: frozenset(),
}


class IllegalTransition(RuntimeError):  # noqa: N818 - reads as what happened
    """A bug in the coordinator: it asked for a change of state the protocol has not got."""


class ParkedJoin(NamedTuple):
    """A JoinGroup whose answer waits for the join phase to end."""

    token: int
    api_version: int


class CommittedOffset(NamedTuple):
    """A durable committed offset. `expires_at_ms` only where an old client asked for a retention of its own."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int
    expires_at_ms: int | None = None


@dataclass(slots=True, eq=False)
class Member:
    """A member of a group; `deadline` is when its session ends unless it shows a sign of life.

    `alarm` is when the session timer armed at the shell will ring: at or before `deadline`, so that a heartbeat moves
    only a number; None while no timer is armed.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    parked_join: ParkedJoin | None = None
    parked_sync: int | None = None
    is_new: bool = False
    deadline: int = 0
    alarm: int | None = None

    def metadata(self, protocol: str | None) -> bytes:
        """The member's bytes for the protocol; empty when it has none."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def counts_as_alive(self) -> bool:
        """A parked request proves life, except a newcomer's: it may have given up without a trace."""
        return not self.is_new and (self.parked_join is not None or self.parked_sync is not None)


@dataclass(slots=True, eq=False)
class Group:
    """A group and its offsets; `state_since_ms` is wall-clock, None when an old record did not tell."""

    group_id: str
    partition: int
    state: GroupState = GroupState.EMPTY
    state_since_ms: int | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    generation: int = 0
    generation_floor: int = 0
    """The next generation is above this as well: the highest number an earlier coordinator may have handed out."""
    leader_id: str | None = None
    recorded: bool = False
    """Whether the log has, or is being given, a record of the group itself."""

    members: dict[str, Member] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)
    """Static members: group.instance.id to member id."""
    pending: dict[str, int] = field(default_factory=dict)
    """Member ids handed out with MEMBER_ID_REQUIRED and not used yet, with the deadline for using them."""
    supporters: Counter[str] = field(default_factory=Counter)
    """How many members support each protocol name."""
    metadata_bytes: int = 0
    """The metadata of all protocols of all members."""
    joined: int = 0
    """How many members have their JoinGroup parked."""
    pending_sync: set[str] = field(default_factory=set)
    """Members of this generation whose SyncGroup is still to come."""

    initial_budget_ms: int | None = None
    """During the first rebalance of an empty group: how far its window may still be extended; otherwise None."""
    initial_window_ms: int = 0
    new_member_in_window: bool = False
    join_deadline: int | None = None
    sync_deadline: int | None = None
    sync_write_generation: int | None = None
    """The generation whose assignment is being written."""

    offsets: dict[str, dict[int, CommittedOffset]] = field(default_factory=dict)
    offsets_in_flight: Counter[tuple[str, int]] = field(default_factory=Counter)
    """(topic, partition) of offset writes not acknowledged yet."""

    # -- state ---------------------------------------------------------------------------------------------------

    def move_to(self, state: GroupState, wall_ms: int) -> None:
        """Change state along LEGAL_TRANSITIONS."""
        if state not in LEGAL_TRANSITIONS[self.state]:
            raise IllegalTransition(f"group {self.group_id!r}: {self.state.value} to {state.value}")
        self.state = state
        self.state_since_ms = wall_ms

    def can_rebalance(self) -> bool:
        """Whether PreparingRebalance may follow the present state."""
        return GroupState.PREPARING in LEGAL_TRANSITIONS[self.state]

    def is_consumer_group(self) -> bool:
        """Whether members speak the consumer protocol, so that subscriptions can be read."""
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def next_generation(self) -> int:
        """A number above every generation any member may have seen."""
        return max(self.generation, self.generation_floor) + 1

    def witness(self, claimed_generation: int) -> None:
        """A member names a generation this coordinator never gave it: an earlier one did, before it could be stored."""
        if claimed_generation - self.generation <= FARTHEST_CREDIBLE_CLAIM:
            self.generation_floor = max(self.generation_floor, claimed_generation)

    # -- members -------------------------------------------------------------------------------------------------

    def add(self, member: Member) -> None:
        """Take in a member; the first one sets the protocol type's owner and leads."""
        self.pending.pop(member.member_id, None)
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self._count_support(member.protocols, 1)
        if member.parked_join is not None:
            self.joined += 1

    def remove(self, member: Member) -> None:
        """Forget a member; the longest-standing of the others leads if it was the leader."""
        del self.members[member.member_id]
        self.pending_sync.discard(member.member_id)
        if member.instance_id is not None:
            del self.instances[member.instance_id]
        self._count_support(member.protocols, -1)
        if member.parked_join is not None:
            self.joined -= 1
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self.members), None)

    def rename(self, member: Member, new_id: str) -> None:
        """Let a static member go by a new id, with everything that was kept under the old one."""
        old_id = member.member_id
        del self.members[old_id]
        self.members[new_id] = member
        member.member_id = new_id
        if member.instance_id is not None:
            self.instances[member.instance_id] = new_id
        if self.leader_id == old_id:
            self.leader_id = new_id
        if old_id in self.pending_sync:
            self.pending_sync.remove(old_id)
            self.pending_sync.add(new_id)

    def set_protocols(self, member: Member, protocols: Protocols) -> None:
        """Replace what a member supports."""
        self._count_support(member.protocols, -1)
        member.protocols = protocols
        self._count_support(protocols, 1)

    def park_join(self, member: Member, parked: ParkedJoin) -> ParkedJoin | None:
        """Keep a JoinGroup unanswered; returns the one it displaces."""
        displaced = member.parked_join
        member.parked_join = parked
        self.joined += displaced is None
        return displaced

    def unpark_join(self, member: Member) -> ParkedJoin | None:
        """Take the parked JoinGroup to answer it."""
        parked, member.parked_join = member.parked_join, None
        self.joined -= parked is not None
        return parked

    def all_joined(self) -> bool:
        """Whether the join phase waits for nobody; a group without members does not wait for pending ids either."""
        return self.joined == len(self.members) and not (self.members and self.pending)

    def elect_joined_leader(self) -> bool:
        """Make sure the leader has rejoined, else take the longest-standing member that has; False if nobody has."""
        leader = self.members.get(self.leader_id or "")
        if leader is None or leader.parked_join is None:
            leader = next((member for member in self.members.values() if member.parked_join is not None), None)
        if leader is None:
            return False
        self.leader_id = leader.member_id
        return True

    def rebalance_timeout_ms(self) -> int:
        """How long the slowest member may take to rejoin."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # -- protocols -----------------------------------------------------------------------------------------------

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether somebody with these protocols can be in this group: one of them is common to all members."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        size = len(self.members)
        return protocol_type == self.protocol_type and any(self.supporters[name] == size for name, _ in protocols)

    def vote(self) -> str:
        """The protocol of the next generation.

        Candidates are the protocols every member supports; each member votes for the candidate it prefers. Equal votes
        are decided by the smaller sum of ranks over all members' preference lists, then by name: the outcome depends
        neither on the members' order nor on any hash (worked cases, DF-6).
        """
        size = len(self.members)
        candidates = {name for name, supporters in self.supporters.items() if supporters == size}
        votes: Counter[str] = Counter()
        ranks: Counter[str] = Counter()
        for member in self.members.values():
            preferred = [name for name, _ in member.protocols if name in candidates]
            votes[preferred[0]] += 1
            for rank, name in enumerate(preferred):
                ranks[name] += rank
        return min(candidates, key=lambda name: (-votes[name], ranks[name], name))

    def _count_support(self, protocols: Protocols, change: int) -> None:
        self.metadata_bytes += change * metadata_size(protocols)
        for name, _ in protocols:
            self.supporters[name] += change
            if not self.supporters[name]:
                del self.supporters[name]

    # -- offsets -------------------------------------------------------------------------------------------------

    def known_offsets(self) -> set[tuple[str, int]]:
        """(topic, partition) of every offset that is durable or on its way to the log."""
        durable = {(topic, partition) for topic, partitions in self.offsets.items() for partition in partitions}
        return durable | set(self.offsets_in_flight)

    def store_offset(self, topic: str, partition: int, committed: CommittedOffset | None) -> None:
        """Set a durable offset, or forget it (None)."""
        if committed is not None:
            self.offsets.setdefault(topic, {})[partition] = committed
            return
        partitions = self.offsets.get(topic, {})
        partitions.pop(partition, None)
        if not partitions:
            self.offsets.pop(topic, None)

    def landed(self, keys: Iterable[tuple[str, int]]) -> None:
        """Count offset writes as no longer in flight."""
        for key in keys:
            self.offsets_in_flight[key] -= 1
            if self.offsets_in_flight[key] <= 0:
                del self.offsets_in_flight[key]
