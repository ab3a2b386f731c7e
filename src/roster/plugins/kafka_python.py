"""The assignors as classes for kafka-python 3: `partition_assignment_strategy=[RosterCooperativeSticky]`.

Give the class, and each consumer makes an instance of its own; give an instance (`RosterRange(rack="a")`, which lets
Java and Roster leaders place by racks) to one consumer only.

Subscriptions are Kafka's version 3 with the generation, and sticky user data is Kafka's V1, without the two bytes that
kafka-python's own sticky assignor puts in front; both forms are read. So a group may mix these classes with Java,
librdkafka, aiokafka and Roster.

What kafka-python does not pass on:

- That a consumer lost its membership: the class goes on claiming what its consumer had. Such claims are dated, so newer
  ones win; and they name the member id they were given to, so a leader of these classes knows that they are void. Under
  under another leader an uncontested one can hold a partition back until the next rebalance.
- The generation being formed, and the racks of replicas. As a leader these classes look at no racks.
- Members whose subscription cannot be parsed: kafka-python's leader fails on them before it asks an assignor.

Two more things to know of kafka-python 3.0. Partitions are revoked after the new assignment is in place, so that
`position()` fails in `on_partitions_revoked` of a cooperative consumer: commit from offsets you keep yourself. And a
`poll` that times out while the group rebalances can lose the assignment, whatever the assignor: poll for half a second
or more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from kafka.coordinator.assignors.abstract import AbstractPartitionAssignor, RebalanceProtocol
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from roster.assignors import COOPERATIVE_STICKY, RANGE, ROUNDROBIN, STICKY, Assignor
from roster.model import NO_GENERATION
from roster.plugins.group import Seen, assign_group, cooperative_user_data, grouped
from roster.wire.consumer.user_data import encode_sticky_user_data

__all__ = ["RosterCooperativeSticky", "RosterRange", "RosterRoundRobin", "RosterSticky"]

_VERSION = 3


class _RosterAssignor(AbstractPartitionAssignor):  # type: ignore[misc]  # kafka-python is untyped
    """Common base; its state is the last assignment of one consumer."""

    name: ClassVar[str]
    _assignor: ClassVar[Assignor]

    def __init__(self, rack: str | None = None) -> None:
        self._rack = rack
        self._given: dict[str, list[int]] | None = None
        self._generation = NO_GENERATION
        self._member_id: bytes | None = None

    def metadata(self, topics: Collection[str]) -> Any:
        """The subscription to join with."""
        owned = self._owned(topics)
        return ConsumerProtocolSubscription(
            version=_VERSION,
            topics=sorted(topics),
            user_data=self._user_data(),
            owned_partitions=[
                ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=numbers)
                for topic, numbers in owned.items()
            ],
            generation_id=self._generation,
            rack_id=self._rack,
        )

    def assign(self, cluster: Any, members: Sequence[Any]) -> dict[str, bytes]:
        """Every member's assignment, in bytes; `members` carry decoded subscriptions."""
        return assign_group(
            self._assignor,
            [
                Seen(
                    member_id=member.member_id,
                    topics=member.metadata.topics,
                    user_data=member.metadata.user_data,
                    instance_id=member.group_instance_id,
                    owned=[(entry.topic, entry.partitions) for entry in member.metadata.owned_partitions or ()],
                    generation=member.metadata.generation_id,
                    rack=member.metadata.rack_id or None,
                )
                for member in members
            ],
            lambda topic: len(cluster.partitions_for_topic(topic) or ()),
        )

    def on_assignment(self, assignment: Any, generation: int) -> None:
        """Remember what the consumer was given, and in which generation."""
        self._given = grouped(assignment.partitions())
        self._generation = generation
        self._member_id = assignment.user_data or None

    def _owned(self, _topics: Collection[str]) -> dict[str, list[int]]:
        """Return what the consumer owns while it joins: nothing, as an eager rebalance revokes everything."""
        return {}

    def _user_data(self) -> bytes | None:
        return None


class RosterRange(_RosterAssignor):
    """`range`, each topic cut into contiguous ranges."""

    name = RANGE.name
    _assignor = RANGE


class RosterRoundRobin(_RosterAssignor):
    """`roundrobin`, all partitions dealt in turn."""

    name = ROUNDROBIN.name
    _assignor = ROUNDROBIN


class RosterSticky(_RosterAssignor):
    """`sticky`: as balanced as can be, then the fewest moves; everything is given up while the group rebalances."""

    name = STICKY.name
    _assignor = STICKY

    def _user_data(self) -> bytes | None:
        return None if self._given is None else encode_sticky_user_data(self._given, self._generation)


class RosterCooperativeSticky(_RosterAssignor):
    """`cooperative-sticky`: a member goes on reading the partitions it keeps while the group rebalances."""

    name = COOPERATIVE_STICKY.name
    _assignor = COOPERATIVE_STICKY

    def supported_protocols(self) -> list[Any]:
        """Cooperative only: an assignor does not learn which protocol its consumer chose, and must know what to
        claim.
        """
        return [RebalanceProtocol.COOPERATIVE]

    def _owned(self, topics: Collection[str]) -> dict[str, list[int]]:
        """Return what the consumer owns while it joins: its last assignment, of the topics still subscribed to."""
        return {topic: numbers for topic, numbers in (self._given or {}).items() if topic in topics}

    def _user_data(self) -> bytes | None:
        return cooperative_user_data(self._generation, self._member_id)
