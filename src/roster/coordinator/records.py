"""Records of `__consumer_offsets`: encoded from the state of a group, and replayed to restore it."""

from collections.abc import Iterable, Mapping

from roster.coordinator.events import LoadedRecord, TransactionalRecord, TransactionEnd
from roster.coordinator.group import CommittedOffset, Group, Member
from roster.coordinator.states import GroupState
from roster.wire import WireError
from roster.wire.offsets_topic import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)

UNASSIGNED = -1
"""State timestamp in the record of a generation without its assignment.

Kafka's schema has no field for the state of a group, and Kafka writes a generation only with its assignment. A record
with members, without assignments, and with this timestamp is a generation that has no assignment yet: the timestamp is
the schema's default, which Kafka never writes for a group with members.
"""


# -- state to records ------------------------------------------------------------------------------------------------


def group_record(group: Group, assignments: Mapping[str, bytes] | None = None) -> tuple[bytes, bytes]:
    """Encode the group, with `assignments` by member id, by default the current ones."""
    since = UNASSIGNED if group.state_since_ms is None else group.state_since_ms
    if assignments is None:
        assignments = {member.member_id: member.assignment for member in group.members.values()}
    return encode_group(group, group.generation, group.protocol, since, assignments)


def generation_record(group: Group, generation: int, protocol: str) -> tuple[bytes, bytes]:
    """Encode a generation that is about to begin, with the present members."""
    return encode_group(group, generation, protocol, UNASSIGNED, {})


def encode_group(
    group: Group, generation: int, protocol: str | None, since_ms: int, assignments: Mapping[str, bytes]
) -> tuple[bytes, bytes]:
    """Encode a group and its members; a member that is not in `assignments` gets an empty one."""
    members = [
        GroupMetadataValue.Member(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.metadata(protocol),
            assignment=assignments.get(member.member_id, b""),
        )
        for member in group.members.values()
    ]
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=generation,
        protocol=protocol,
        leader=group.leader_id,
        current_state_timestamp=since_ms,
        members=members,
    )
    group.recorded = True
    return encode_key(GroupMetadataKey(group=group.group_id)), encode_value(value)


def group_tombstone(group_id: str) -> tuple[bytes, None]:
    """Encode the deletion of a group."""
    return encode_key(GroupMetadataKey(group=group_id)), None


def offset_record(
    group_id: str, topic: str, partition: int, committed: CommittedOffset | None
) -> tuple[bytes, bytes | None]:
    """Encode a committed offset, or its tombstone (None)."""
    key = encode_key(OffsetCommitKey(group=group_id, topic=topic, partition=partition))
    if committed is None:
        return key, None
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.committed_at_ms,
        expire_timestamp=-1 if committed.expires_at_ms is None else committed.expires_at_ms,
    )
    return key, encode_value(value)


# -- records to state ------------------------------------------------------------------------------------------------


class Replay:
    """Restores the groups of one partition from its records in log order.

    The log may be compacted or truncated: the last value of a key is valid, a tombstone for an unknown key is ignored
    (worked case GC-29). Records of other kinds are skipped; so are unreadable ones, counted in `unreadable`.
    """

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.groups: dict[str, Group] = {}
        self.unreadable = 0

    def apply_all(self, log: Iterable[LoadedRecord]) -> None:
        """Apply records in order."""
        for record in log:
            try:
                match record:
                    case TransactionalRecord():
                        self._apply_pending(record)
                    case TransactionEnd():
                        for group in self.groups.values():
                            group.end_transaction(record.producer_id, committed=record.committed)
                    case (key, value):
                        self.apply(key, value)
            except WireError:
                self.unreadable += 1

    def _apply_pending(self, record: TransactionalRecord) -> None:
        about = decode_key(record.key)
        content = None if about is None or record.value is None else decode_value(about, record.value)
        if isinstance(about, OffsetCommitKey) and isinstance(content, OffsetCommitValue):
            offset = loaded_offset(content)
            self._group(about.group).add_pending_offset(record.producer_id, about.topic, about.partition, offset)

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply one record. Raises WireError if it cannot be decoded."""
        about = decode_key(key)
        if about is None:
            return
        content = None if value is None else decode_value(about, value)
        match about, content:
            case OffsetCommitKey(), OffsetCommitValue():
                self._group(about.group).store_offset(about.topic, about.partition, loaded_offset(content))
            case OffsetCommitKey(), None:
                self._delete_offset(about)
            case GroupMetadataKey(), GroupMetadataValue():
                group = loaded_group(about.group, self.partition, content)
                group.take_offsets(self._group(about.group))
                self.groups[about.group] = group
            case _:
                self._delete_group(about.group)

    def _group(self, group_id: str) -> Group:
        if group_id not in self.groups:
            self.groups[group_id] = Group(group_id, self.partition)
        return self.groups[group_id]

    def _delete_offset(self, about: OffsetCommitKey) -> None:
        group = self.groups.get(about.group)
        if group is not None:
            group.store_offset(about.topic, about.partition, None)
            if not group.recorded and not group.all_offsets():
                del self.groups[about.group]

    def _delete_group(self, group_id: str) -> None:
        group = self.groups.pop(group_id, None)
        if group is not None and group.all_offsets():  # acknowledged offsets have tombstones of their own
            self._group(group_id).take_offsets(group)


def loaded_offset(value: OffsetCommitValue) -> CommittedOffset:
    """Build a committed offset from its record."""
    expires_at = None if value.expire_timestamp == -1 else value.expire_timestamp
    return CommittedOffset(value.offset, value.leader_epoch, value.metadata, value.commit_timestamp, expires_at)


def loaded_rebalance_timeout_ms(member: GroupMetadataValue.Member) -> int:
    """Return the member's rebalance timeout; its session timeout if the record has none (before v1)."""
    return member.rebalance_timeout if member.rebalance_timeout > 0 else member.session_timeout


def loaded_state(value: GroupMetadataValue) -> GroupState:
    """Return the group's state when the record was written: Empty, Stable, or CompletingRebalance (no assignment)."""
    if not value.members:
        return GroupState.EMPTY
    unassigned = value.current_state_timestamp == UNASSIGNED and not any(m.assignment for m in value.members)
    return GroupState.COMPLETING if unassigned else GroupState.STABLE


def loaded_group(group_id: str, partition: int, value: GroupMetadataValue) -> Group:
    """Build a group from its record."""
    state = loaded_state(value)
    group = Group(
        group_id,
        partition,
        state=state,
        state_since_ms=None if value.current_state_timestamp == -1 else value.current_state_timestamp,
        protocol_type=value.protocol_type or None,
        protocol=value.protocol,
        generation=value.generation,
        perhaps_unannounced=state is GroupState.COMPLETING,
        recorded=True,
    )
    for member in value.members:
        holder = group.members.get(group.instances.get(member.group_instance_id or "", member.member_id))
        if holder is not None:
            group.remove(holder)
        group.add(
            Member(
                member_id=member.member_id,
                instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                session_timeout_ms=member.session_timeout,
                rebalance_timeout_ms=loaded_rebalance_timeout_ms(member),
                protocols=((value.protocol or "", member.subscription),),
                protocols_complete=False,
                assignment=member.assignment,
            )
        )
    if value.leader in group.members:
        group.leader_id = value.leader
    if state is GroupState.COMPLETING:
        group.pending_sync_members = set(group.members)
    return group
