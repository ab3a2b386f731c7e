"""`Assignor`: the interface of every assignor, Roster's own and an application's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from roster.assignors.claim_source import ClaimSource
from roster.model import NO_GENERATION, Plan, Problem, TopicPartition


class RebalanceProtocol(IntEnum):
    """Kafka's two client protocols; a group's members must have one in common, the highest wins."""

    EAGER = 0
    COOPERATIVE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinContext:
    """State of a member that is about to send JoinGroup; the input of `Assignor.subscription_user_data`.

    topics: those it subscribes to. owned: partitions it holds while it joins, none in an eager rebalance.
    generation: the generation it is in, -1 outside a group.
    last_assignment, last_generation: the newest assignment and the generation it is from, nothing and -1 before the
    first one and after the membership was lost (KIP-341).
    rack, capacity: the member's options. settling: it joins because it has just given up partitions.
    is_static: it has an instance id: if it joins anew, the leader may not get to see what it sends (KIP-345).
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
    """An assignor (Kafka's ConsumerPartitionAssignor): a decision, and the user data that it exchanges for it.

    A subclass sets `name` and defines `assign`; it may override the rest. One instance belongs to one member.

    name: the protocol name in JoinGroup, the same in every member of a group.
    supported_protocols: rebalance protocols, the preferred first. Under the cooperative one Roster withholds for one
    round what another member still claims, so `assign` need not.
    claim_source: where members' claims (`Problem.claims`) are read from.
    wants_lag: `assign` uses `Problem.lag`, so the leader fetches offsets first.

    The leader runs `assign` in a thread of its own; heartbeats go on meanwhile. The two other methods run on the
    thread that sends heartbeats: they compute from their arguments and return at once, without I/O. An exception in
    `assign` fails the whole group with one error that names the assignor, one in the other methods this member.
    """

    name: str
    supported_protocols: Sequence[RebalanceProtocol] = (RebalanceProtocol.EAGER,)
    claim_source: ClaimSource = ClaimSource.FIELDS
    wants_lag: bool = False

    @abstractmethod
    def assign(self, problem: Problem) -> Plan:
        """Return the plan for a group; `Plan.from_assignment` makes one from a mapping.

        `problem.user_data` has each member's user data and `problem.group_generation` the generation being formed.
        """

    def subscription_user_data(self, join: JoinContext) -> bytes | None:
        """Return this member's user data for the leader, at each join; None sends null."""
        return None

    def on_assignment(
        self, partitions: frozenset[TopicPartition], user_data: bytes | None, generation: int
    ) -> str | None:
        """Receive an assignment, before its partitions are published.

        user_data: what the leader's plan has for this member, None if nothing. generation: the assignment's.
        Returns the reason to join again at once (Kafka Streams does while versions are probed), None to stay.
        """
        return None
