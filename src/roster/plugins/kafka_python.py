"""The assignors as classes for kafka-python 3: `partition_assignment_strategy=[RosterCooperativeSticky]`.

If you give the class, each consumer makes an instance of its own. Give an instance, such as `RosterRange(rack="a")`, to
one consumer only. (With `rack`, leaders that are Java or Roster clients can place by racks.)

Subscriptions have Kafka's version 3 with the generation. Sticky user data is Kafka's V1, without the two bytes that
kafka-python's own sticky assignor puts in front of it; both formats are read. So a group may mix these classes with
Java, librdkafka, aiokafka and Roster.

What kafka-python does not pass on:

- That a consumer lost its membership: the class continues to claim the consumer's former partitions. Such claims have
an
  old generation, so newer claims win. They also have the former member id, so a leader with these classes ignores them.
  With another leader, an uncontested claim can withhold a partition until the next rebalance.
- The generation being formed, and the racks of replicas: as a leader, these classes ignore racks.
- Members whose subscription cannot be parsed: kafka-python's leader fails on them before it calls an assignor.

Two limitations of kafka-python 3.0: it calls `on_partitions_revoked` after the new assignment is in place, so
`position()` fails there in a cooperative consumer; commit from offsets that you keep yourself. With any assignor, a
`poll` that times out while the group rebalances can lose the assignment; poll for half a second or more.
"""

from collections.abc import Collection, Sequence
from typing import Any

from kafka.coordinator.assignors.abstract import AbstractPartitionAssignor, RebalanceProtocol
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from roster.assignors import COOPERATIVE_STICKY, RANGE, ROUNDROBIN, STICKY, Assignor, JoinContext
from roster.model import NO_GENERATION, TopicPartition
from roster.model.topics import numbers_by_topic
from roster.plugins.group import MemberView, assign_group, former_member, resolve_eager

__all__ = ["RosterCooperativeSticky", "RosterCustom", "RosterRange", "RosterRoundRobin", "RosterSticky"]

_VERSION = 3


class _RosterAssignor(AbstractPartitionAssignor):  # type: ignore[misc]  # kafka-python is untyped
    """Base of the classes; its state is the last assignment of one consumer."""

    name: str
    _assignor: Assignor

    def __init__(self, rack: str | None = None) -> None:
        self._rack = rack
        self._given: frozenset[TopicPartition] = frozenset()
        self._generation = NO_GENERATION
        self._member_id: bytes | None = None

    def metadata(self, topics: Collection[str]) -> Any:
        """Return the subscription for JoinGroup."""
        owned = self._owned(topics)
        join = JoinContext(
            topics=frozenset(topics),
            owned=owned,
            generation=self._generation,
            last_assignment=self._given,
            last_generation=self._generation,
            rack=self._rack,
        )
        return ConsumerProtocolSubscription(
            version=_VERSION,
            topics=sorted(topics),
            user_data=self._user_data(join),
            owned_partitions=[
                ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=numbers)
                for topic, numbers in numbers_by_topic(owned).items()
            ],
            generation_id=self._generation,
            rack_id=self._rack,
        )

    def assign(self, cluster: Any, members: Sequence[Any]) -> dict[str, bytes]:
        """Return the bytes of every member's assignment; `members` have decoded subscriptions."""
        return assign_group(
            self._assignor,
            [
                MemberView(
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
        """Store the consumer's assignment and its generation."""
        self._given = frozenset(TopicPartition(*partition) for partition in assignment.partitions())
        self._generation = generation
        self._member_id = assignment.user_data or None
        self._assignor.on_assignment(self._given, assignment.user_data or None, generation)

    def _owned(self, _topics: Collection[str]) -> frozenset[TopicPartition]:
        """Return the partitions that the consumer owns while it joins: none, as an eager rebalance revokes all."""
        return frozenset()

    def _user_data(self, join: JoinContext) -> bytes | None:
        return self._assignor.subscription_user_data(join)


class RosterCustom(_RosterAssignor):
    """An eager assignor of your own: `partition_assignment_strategy=[RosterCustom(MyAssignor())]`.

    Give each consumer an instance of its own. The generation being formed and the racks of replicas are not known.
    """

    name = "custom"

    def __init__(self, assignor: Assignor, rack: str | None = None) -> None:
        super().__init__(rack)
        self._assignor = resolve_eager(assignor)
        self.name = assignor.name


class RosterRange(_RosterAssignor):
    """`range`: each topic divided into contiguous ranges."""

    name = RANGE.name
    _assignor = RANGE


class RosterRoundRobin(_RosterAssignor):
    """`roundrobin`: all partitions given to the members in turn."""

    name = ROUNDROBIN.name
    _assignor = ROUNDROBIN


class RosterSticky(_RosterAssignor):
    """`sticky`: as balanced as possible, then the fewest moves; members revoke all partitions in a rebalance."""

    name = STICKY.name
    _assignor = STICKY


class RosterCooperativeSticky(_RosterAssignor):
    """`cooperative-sticky`: members continue to read the partitions that they keep while the group rebalances."""

    name = COOPERATIVE_STICKY.name
    _assignor = COOPERATIVE_STICKY

    def supported_protocols(self) -> list[Any]:
        """Cooperative only: an assignor does not learn which protocol its consumer chose, and must know what to
        claim.
        """
        return [RebalanceProtocol.COOPERATIVE]

    def _owned(self, topics: Collection[str]) -> frozenset[TopicPartition]:
        """Return the partitions that the consumer owns while it joins: its last assignment, of subscribed topics."""
        return frozenset(partition for partition in self._given if partition.topic in topics)

    def _user_data(self, join: JoinContext) -> bytes | None:
        return (super()._user_data(join) or b"") + former_member(self._member_id)
