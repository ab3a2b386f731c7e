"""Snapshot of a group: the result of one look."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from roster.model import GroupPosition, TopicPartition

REBALANCING = frozenset({"PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"})
"""States of a group in a rebalance: two of classic groups, two of KIP-848's."""

ABSENT = ""
"""The state of a group that does not exist."""


@dataclass(frozen=True, slots=True)
class MemberSeen:
    """One member; `generation` is the one in which it got its partitions, as its subscription claims, or -1."""

    member_id: str
    client_id: str = ""
    host: str = ""
    instance_id: str | None = None
    partitions: frozenset[TopicPartition] = frozenset()
    generation: int = -1

    @property
    def key(self) -> str:
        """Identity of the member: a static member keeps its instance id when it restarts."""
        return self.member_id if self.instance_id is None else f"instance {self.instance_id}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A group at `at` seconds of some monotonic clock; `state` is ABSENT when the coordinator does not know the group.

    `positions` has every partition that is assigned or committed and exists. `trouble` names what could not be found
    out this time, "" when all could. `epoch` is the group epoch of KIP-848, None for a classic group.
    """

    at: float
    state: str = ABSENT
    protocol: str = ""
    coordinator: str = ""
    members: tuple[MemberSeen, ...] = ()
    positions: Mapping[TopicPartition, GroupPosition] = field(default_factory=dict)
    trouble: str = ""
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Away:
    """A failed snapshot: no answer about the group at `at` seconds, with the reason."""

    at: float
    reason: str
