"""Joining, staying in and leaving a group."""

from roster.wire.api import ApiKey
from roster.wire.codec.fields import array, boolean, bytes_, int8, int16, int32, string
from roster.wire.codec.table import Message, Struct


class FindCoordinatorRequest(Message, key=ApiKey.FIND_COORDINATOR, versions="0-6", flexible="3+"):
    """Find the coordinator of groups (key_type 0), transactions (1) or share groups (2): one key up to v3, many from
    v4.
    """

    key: str = string("0-3")
    key_type: int = int8("1+")
    coordinator_keys: list[str] = array(string(), "4+")


class FindCoordinatorResponse(Message, key=ApiKey.FIND_COORDINATOR, versions="0-6", flexible="3+"):
    """One answer up to v3, from v4 one per key in `coordinators`."""

    class Coordinator(Struct):
        key: str = string()
        node_id: int = int32()
        host: str = string()
        port: int = int32()
        error_code: int = int16()
        error_message: str | None = string(nullable="0+", default=None, ignorable=True)

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0-3")
    error_message: str | None = string("1-3", nullable="1-3", default=None, ignorable=True)
    node_id: int = int32("0-3")
    host: str = string("0-3")
    port: int = int32("0-3")
    coordinators: list[Coordinator] = array(Coordinator, "4+")


class JoinGroupRequest(Message, key=ApiKey.JOIN_GROUP, versions="0-9", flexible="6+"):
    """Ask to be in the next generation; parked until the join phase ends. Times in ms; up to v0 the rebalance
    timeout is the session timeout.
    """

    class Protocol(Struct):
        """A policy this member can follow, best first, with its metadata for it (a Subscription for consumers)."""

        name: str = string()
        metadata: bytes = bytes_()

    group_id: str = string()
    session_timeout_ms: int = int32()
    rebalance_timeout_ms: int = int32("1+", default=-1, ignorable=True)
    member_id: str = string()
    group_instance_id: str | None = string("5+", nullable="5+", default=None)
    protocol_type: str = string()
    protocols: list[Protocol] = array(Protocol)
    reason: str | None = string("8+", nullable="8+", default=None, ignorable=True)


class JoinGroupResponse(Message, key=ApiKey.JOIN_GROUP, versions="0-9", flexible="6+"):
    """The new generation; `members` is filled for the leader only, and it skips assigning if `skip_assignment`
    (KIP-814).
    """

    class Member(Struct):
        member_id: str = string()
        group_instance_id: str | None = string("5+", nullable="5+", default=None, ignorable=True)
        metadata: bytes = bytes_()

    throttle_time_ms: int = int32("2+", ignorable=True)
    error_code: int = int16()
    generation_id: int = int32(default=-1)
    protocol_type: str | None = string("7+", nullable="7+", default=None, ignorable=True)
    protocol_name: str | None = string(nullable="7+")
    leader: str = string()
    skip_assignment: bool = boolean("9+")
    member_id: str = string()
    members: list[Member] = array(Member)


class SyncGroupRequest(Message, key=ApiKey.SYNC_GROUP, versions="0-5", flexible="4+"):
    """Ask for this member's assignment; the leader's request carries every member's."""

    class Assignment(Struct):
        member_id: str = string()
        assignment: bytes = bytes_()

    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    protocol_type: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    assignments: list[Assignment] = array(Assignment)


class SyncGroupResponse(Message, key=ApiKey.SYNC_GROUP, versions="0-5", flexible="4+"):
    """The member's assignment; empty bytes if the leader left it out."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16()
    protocol_type: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    assignment: bytes = bytes_()


class HeartbeatRequest(Message, key=ApiKey.HEARTBEAT, versions="0-4", flexible="4+"):
    """Renews the session of a member."""

    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string("3+", nullable="3+", default=None)


class HeartbeatResponse(Message, key=ApiKey.HEARTBEAT, versions="0-4", flexible="4+"):
    """The error code says whether to rejoin."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16()


class LeaveGroupRequest(Message, key=ApiKey.LEAVE_GROUP, versions="0-5", flexible="4+"):
    """Up to v2 one member leaves, from v3 many (KIP-345)."""

    class Member(Struct):
        """A member that leaves: its member id, or an empty one with its instance id."""

        member_id: str = string()
        group_instance_id: str | None = string(nullable="0+", default=None)
        reason: str | None = string("5+", nullable="5+", default=None, ignorable=True)

    group_id: str = string()
    member_id: str = string("0-2")
    members: list[Member] = array(Member, "3+")


class LeaveGroupResponse(Message, key=ApiKey.LEAVE_GROUP, versions="0-5", flexible="4+"):
    """One error for all, and from v3 one per member."""

    class Member(Struct):
        member_id: str = string()
        group_instance_id: str | None = string(nullable="0+", default=None)
        error_code: int = int16()

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16()
    members: list[Member] = array(Member, "3+")
