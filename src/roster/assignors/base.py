"""`Assignor`: the interface of every assignor, Roster's own and an application's."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple

import numpy as np

from roster.model import NO_GENERATION, Plan, Problem, TopicPartition
from roster.model.arrays import Int32
from roster.wire.consumer.entries import ListedPartitions
from roster.wire.consumer.topic_index import TopicIndex
from roster.wire.consumer.user_data import decode_cooperative_user_data, decode_sticky_user_data, split_lag_user_data


class ClaimSource(Enum):
    """The part of a subscription that lists claimed partitions, and the generation of the claims."""

    NONE = "none"
    """No claims; user data is the assignor's own."""
    FIELDS = "fields"
    """The subscription's owned partitions and generation; user data is the assignor's own."""
    STICKY_USER_DATA = "sticky user data"
    """StickyAssignor's user data; the subscription's own fields are ignored."""
    FIELDS_AND_USER_DATA = "fields and user data"
    """The fields, and the generation from CooperativeStickyAssignor's user data if the fields have none."""


class ReadClaims(NamedTuple):
    """Result of `read_claims`: the claims, [members] generation and capacity, and whether any member is settling."""

    claims: ListedPartitions
    generation: Int32
    capacity: Int32 | None = None
    settling: bool = False


def read_claims(
    source: ClaimSource,
    *,
    user_data: Sequence[bytes | None],
    fields: ListedPartitions,
    generation: Int32,
    names: TopicIndex,
) -> ReadClaims:
    """Read the claims of all members; `fields` and `generation` are the columns of the subscriptions' own fields."""
    if source is ClaimSource.NONE:
        nothing = np.zeros(0, dtype=np.int32)
        return ReadClaims(ListedPartitions(nothing, nothing, nothing), generation)
    if source is ClaimSource.FIELDS:
        return ReadClaims(fields, generation)
    rests, capacities, settling = split_lag_user_data(user_data)
    capacity = capacities if (capacities > 1).any() else None
    if source is ClaimSource.STICKY_USER_DATA:
        return ReadClaims(*decode_sticky_user_data(rests, names), capacity, settling)
    without = generation == NO_GENERATION
    if without.any():
        generation = np.where(without, decode_cooperative_user_data(rests), generation)
    return ReadClaims(fields, generation, capacity, settling)


class RebalanceProtocol(IntEnum):
    """Kafka's two rebalance protocols. A group uses the highest one that all its members support."""

    EAGER = 0
    COOPERATIVE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinContext:
    """State of a member that is about to send JoinGroup; the input of `Assignor.subscription_user_data`.

    topics: the topics it subscribes to. owned: partitions it keeps while it joins, none in an eager rebalance.
    generation: its current generation, -1 outside a group.
    last_assignment, last_generation: the newest assignment and its generation; empty and -1 before the first assignment
    and after the membership was lost (KIP-341).
    rack, capacity: the member's options. settling: it joins because it has just given up partitions.
    is_static: it has an instance id, so after a restart the leader may not receive what it sends (KIP-345).
    """

    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = NO_GENERATION
    last_assignment: frozenset[TopicPartition] = frozenset()
    last_generation: int = NO_GENERATION
    rack: str | None = None
    capacity: int = 1
    settling: bool = False
    is_static: bool = False


class Assignor(ABC):
    """An assignor (Kafka's ConsumerPartitionAssignor): it makes a group's plan, and the user data that the plan needs.

    A subclass sets `name` and defines `assign`; it may override the rest. One instance belongs to one member.

    name: the protocol name in JoinGroup, the same in every member of a group.
    supported_protocols: rebalance protocols, the preferred one first. With the cooperative protocol, Roster withholds
    partitions that another member still claims for one round, so `assign` does not have to.
    claim_source: the part of a subscription from which claims (`Problem.claims`) are read.
    wants_lag: `assign` uses `Problem.lag`, so the leader fetches offsets first.

    The leader runs `assign` in a thread of its own while heartbeats continue. The two other methods run on the thread
    that sends heartbeats: they must return at once, without I/O. An exception in `assign` fails the whole group with
    one error that names the assignor; an exception in another method fails this member.
    """

    name: str
    supported_protocols: Sequence[RebalanceProtocol] = (RebalanceProtocol.EAGER,)
    claim_source: ClaimSource = ClaimSource.FIELDS
    wants_lag: bool = False

    @abstractmethod
    def assign(self, problem: Problem) -> Plan:
        """Return the plan for a group; `Plan.from_assignment` makes one from a mapping.

        `problem.user_data` is each member's user data; `problem.group_generation` is the generation being formed.
        """

    def subscription_user_data(self, join: JoinContext) -> bytes | None:
        """Return this member's user data for the leader, at each join; None sends null."""
        return None

    def on_assignment(
        self, partitions: frozenset[TopicPartition], user_data: bytes | None, generation: int
    ) -> str | None:
        """Receive an assignment, before the application sees its partitions.

        user_data: this member's user data in the leader's plan, None if there is none. generation: the assignment's.
        Returns a reason to rejoin at once (as Kafka Streams does while it probes versions), or None to stay.
        """
        return None
