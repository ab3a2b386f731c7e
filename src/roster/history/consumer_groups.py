"""Records of a KIP-848 consumer group as a classic group's records, so that one timeline reads both.

A generation is a group epoch that every member has reached. Before that, what members gave up and got stands in further
records of the generation before, with the members and owners of that time.
"""

import base64
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, groupby
from operator import itemgetter
from typing import NamedTuple

from roster.model import TopicPartition
from roster.wire import WireError
from roster.wire.consumer import PROTOCOL_TYPE
from roster.wire.consumer.messages import Assignment, Subscription, by_topic, encode_assignment, encode_subscription
from roster.wire.consumer_groups import (
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataValue,
    decode_consumer_key,
    decode_consumer_value,
)
from roster.wire.offsets_topic import GroupMetadataValue, encode_value

_NO_EPOCH = -1
_DAMAGED = b""
Record = tuple[int, bytes | None, bytes | None]
"""Append time in wall-clock ms, key and value; without a key it is a classic group's."""
Stored = tuple[int, bytes | None]
"""Append time, and the value of a classic group's record; None: removed."""


class _Owned(NamedTuple):
    epoch: int
    is_settled: bool
    partitions: tuple[TopicPartition, ...]


def as_classic(records: Iterable[Record], names: Mapping[bytes, str]) -> Iterator[Stored]:
    """Yield the records of a group, given in the order of its log.

    What the coordinator wrote at once is seen at once. names: topics by their ids; a topic that is not there goes by
    its id. A record that cannot be read is yielded as empty bytes.
    """
    group = _Group(names)
    for at_ms, batch in groupby(records, itemgetter(0)):
        classic: list[bytes | None] = []
        for _, key, value in batch:
            try:
                about = None if key is None else decode_consumer_key(key)
                if about is None:
                    classic.append(value)
                else:
                    group.take(about[0], about[2], value)
            except WireError:
                classic.append(_DAMAGED)
        if group.epoch != _NO_EPOCH:  # a group that becomes a consumer group is removed as a classic one
            classic = [value for value in classic if value is not None]
        yield from ((at_ms, value) for value in classic)
        if (value := group.changed(at_ms)) is not None:
            yield at_ms, value


class _Group:
    def __init__(self, names: Mapping[bytes, str]) -> None:
        self._names = names
        self._members: dict[str, ConsumerGroupMemberMetadataValue] = {}
        self._owned: dict[str, _Owned] = {}
        self._matched: dict[str, set[str]] = {}
        """Topics that members with a pattern have had."""
        self.epoch, self._since, self._is_new = _NO_EPOCH, 0, False
        self._last_recorded: tuple[int, frozenset[str], dict[str, tuple[TopicPartition, ...]]] = (
            _NO_EPOCH,
            frozenset(),
            {},
        )

    def take(self, kind: int, member: str, value: bytes | None) -> None:
        """Apply a record."""
        match None if value is None else decode_consumer_value(kind, value):
            case ConsumerGroupMetadataValue() as record:
                self._is_new |= record.epoch != self.epoch
                self.epoch = record.epoch
            case ConsumerGroupMemberMetadataValue() as record:
                self._members[member] = record
            case ConsumerGroupCurrentMemberAssignmentValue() as record:
                listed = chain(record.assigned_partitions, record.partitions_pending_revocation)
                owned = tuple(sorted(TopicPartition(self._name(t.topic_id), n) for t in listed for n in t.partitions))
                self._owned[member] = _Owned(record.member_epoch, not record.state, owned)
                if member in self._members and (pattern := self._members[member].subscribed_topic_regex):
                    self._matched.setdefault(pattern, set()).update(tp.topic for tp in owned)
            case _ if value is None:
                self._remove(kind, member)

    def _remove(self, kind: int, member: str) -> None:
        if kind == 3:
            self.epoch = _NO_EPOCH
        elif kind == 5:
            self._members.pop(member, None)
        elif kind == 8:
            self._owned.pop(member, None)

    def changed(self, at_ms: int) -> bytes | None:
        """Return the group as it is now, None if nothing is other than was told before."""
        if self._is_new:
            self._since, self._is_new = at_ms, False
        if self.epoch == _NO_EPOCH:
            return None
        current = [self._owned.get(member) for member in self._members]
        number, members, _ = self._last_recorded
        if all(owned is not None and owned.is_settled and owned.epoch == self.epoch for owned in current):
            number, members = self.epoch, frozenset(self._members)
        now = (number, members, {name: owned.partitions for name, owned in self._owned.items() if owned.partitions})
        if number == _NO_EPOCH or now == self._last_recorded:
            return None
        self._last_recorded = now
        listed = [self._member(name) for name in sorted(self._members)]
        assignors = {member.server_assignor for member in self._members.values()}
        return encode_value(
            GroupMetadataValue(
                protocol_type=PROTOCOL_TYPE,
                generation=number,
                protocol=assignors.pop() if len(assignors) == 1 else None,
                current_state_timestamp=self._since,
                members=listed,
            )
        )

    def _member(self, name: str) -> GroupMetadataValue.Member:
        about, owned = self._members[name], self._owned.get(name)
        topics = {*about.subscribed_topic_names, *self._matched.get(about.subscribed_topic_regex or "", ())}
        return GroupMetadataValue.Member(
            member_id=name,
            group_instance_id=about.instance_id,
            client_id=about.client_id,
            client_host=about.client_host,
            subscription=encode_subscription(Subscription(topics=sorted(topics))),
            assignment=encode_assignment(Assignment(assigned_partitions=by_topic(owned.partitions if owned else ()))),
        )

    def _name(self, topic_id: bytes) -> str:
        return self._names.get(topic_id) or base64.urlsafe_b64encode(topic_id).decode().rstrip("=")
