"""A group's record in `__consumer_offsets` as a generation: members with what they read and own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from roster.model import TopicPartition
from roster.wire.consumer import PROTOCOL_TYPE
from roster.wire.consumer.messages import decode_assignment, decode_subscription, flat
from roster.wire.offsets_topic import GroupMetadataKey, GroupMetadataValue, decode_value

_KEY = GroupMetadataKey(group="")
_NO_TIME = -1


class MemberSeen(NamedTuple):
    """A member in one generation."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    topics: frozenset[str] = frozenset()
    claimed: frozenset[TopicPartition] = frozenset()
    """Partitions that it said it owned when it joined."""
    assigned: frozenset[TopicPartition] = frozenset()

    @property
    def name(self) -> str:
        """What stays the same when a static member restarts."""
        return self.instance_id or self.member_id


@dataclass(frozen=True)
class Generation:
    """A group as its coordinator stored it at `at_ms` (wall-clock ms); `number` is None where it is not known.

    `is_assigned` is False for a generation whose assignment was still to come, as Roster's broker stores it; Apache
    Kafka stores a generation with its assignment only.
    """

    at_ms: int
    number: int | None
    assignor: str
    leader: str
    members: dict[str, MemberSeen]
    is_assigned: bool = True

    @property
    def owners(self) -> dict[TopicPartition, MemberSeen]:
        """The member that each partition is assigned to."""
        return {tp: member for member in self.members.values() for tp in member.assigned}


def read_generation(at_ms: int, value: bytes | None) -> Generation:
    """Read the value of a group's record, None for a group that was removed. Raises WireError if it is damaged."""
    if value is None:
        return Generation(at_ms, None, "", "", {})
    found = decode_value(_KEY, value)
    assert isinstance(found, GroupMetadataValue)  # noqa: S101 - by the key
    is_consumers = found.protocol_type == PROTOCOL_TYPE
    members = {each.member_id: _member(each, is_consumers) for each in found.members}
    began = found.current_state_timestamp == _NO_TIME and not any(each.assignment for each in found.members)
    number = None if found.generation < 0 else found.generation
    leader = found.leader or ""
    return Generation(at_ms, number, found.protocol or "", leader, members, is_assigned=not (members and began))


def _member(found: GroupMetadataValue.Member, is_consumers: bool) -> MemberSeen:
    member = MemberSeen(found.member_id, found.group_instance_id, found.client_id, found.client_host)
    if not is_consumers:
        return member
    if found.subscription:
        subscription = decode_subscription(found.subscription)
        claimed = frozenset(flat(subscription.owned_partitions))
        member = member._replace(topics=frozenset(subscription.topics), claimed=claimed)
    if found.assignment:
        member = member._replace(assigned=frozenset(flat(decode_assignment(found.assignment).assigned_partitions)))
    return member
