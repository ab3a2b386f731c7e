"""Listing, describing and deleting groups."""

from roster.wire.api import ApiKey
from roster.wire.codec.fields import array, boolean, bytes_, int16, int32, string, struct, uuid
from roster.wire.codec.table import Message, Struct


class ListGroupsRequest(Message, key=ApiKey.LIST_GROUPS, versions="0-5", flexible="3+"):
    """List groups; empty filters let every state and type through."""

    states_filter: list[str] = array(string(), "4+")
    types_filter: list[str] = array(string(), "5+")


class ListGroupsResponse(Message, key=ApiKey.LIST_GROUPS, versions="0-5", flexible="3+"):
    """The groups this broker coordinates."""

    class Group(Struct):
        group_id: str = string()
        protocol_type: str = string()
        group_state: str = string("4+", ignorable=True)
        group_type: str = string("5+", ignorable=True)

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16()
    groups: list[Group] = array(Group)


class DescribeGroupsRequest(Message, key=ApiKey.DESCRIBE_GROUPS, versions="0-6", flexible="5+"):
    """Describe classic groups."""

    groups: list[str] = array(string())
    include_authorized_operations: bool = boolean("3+")


class DescribeGroupsResponse(Message, key=ApiKey.DESCRIBE_GROUPS, versions="0-6", flexible="5+"):
    """One description per group asked for."""

    class Group(Struct):
        """State, protocol and members of one group; `protocol_data` is the protocol's name."""

        class Member(Struct):
            """A member with what it subscribed to and what it was given, both as the clients encoded them."""

            member_id: str = string()
            group_instance_id: str | None = string("4+", nullable="4+", default=None, ignorable=True)
            client_id: str = string()
            client_host: str = string()
            member_metadata: bytes = bytes_()
            member_assignment: bytes = bytes_()

        error_code: int = int16()
        error_message: str | None = string("6+", nullable="6+", default=None)
        group_id: str = string()
        group_state: str = string()
        protocol_type: str = string()
        protocol_data: str = string()
        members: list[Member] = array(Member)
        authorized_operations: int = int32("3+", default=-(2**31))

    Member = Group.Member

    throttle_time_ms: int = int32("1+", ignorable=True)
    groups: list[Group] = array(Group)


class ConsumerGroupDescribeRequest(Message, key=ApiKey.CONSUMER_GROUP_DESCRIBE, versions="0", flexible="0+"):
    """Describe groups of the consumer protocol (KIP-848)."""

    group_ids: list[str] = array(string())
    include_authorized_operations: bool = boolean()


class ConsumerGroupDescribeResponse(Message, key=ApiKey.CONSUMER_GROUP_DESCRIBE, versions="0", flexible="0+"):
    """One description per group asked for."""

    class Group(Struct):
        """State, epochs and members of one group; `assignor_name` is the assignor of the broker."""

        class Member(Struct):
            """A member with its subscription, its partitions and its target."""

            class Assignment(Struct):
                class TopicPartitions(Struct):
                    topic_id: bytes = uuid()
                    topic_name: str = string()
                    partitions: list[int] = array(int32())

                topic_partitions: list[TopicPartitions] = array(TopicPartitions)

            member_id: str = string()
            instance_id: str | None = string(nullable="0+", default=None)
            rack_id: str | None = string(nullable="0+", default=None)
            member_epoch: int = int32()
            client_id: str = string()
            client_host: str = string()
            subscribed_topic_names: list[str] = array(string())
            subscribed_topic_regex: str | None = string(nullable="0+", default=None)
            assignment: Assignment = struct(Assignment)
            target_assignment: Assignment = struct(Assignment)

        error_code: int = int16()
        error_message: str | None = string(nullable="0+", default=None)
        group_id: str = string()
        group_state: str = string()
        group_epoch: int = int32()
        assignment_epoch: int = int32()
        assignor_name: str = string()
        members: list[Member] = array(Member)
        authorized_operations: int = int32(default=-(2**31))

    throttle_time_ms: int = int32()
    groups: list[Group] = array(Group)


class DeleteGroupsRequest(Message, key=ApiKey.DELETE_GROUPS, versions="0-3", flexible="2+"):
    """Delete empty groups."""

    groups_names: list[str] = array(string())


class DeleteGroupsResponse(Message, key=ApiKey.DELETE_GROUPS, versions="0-3", flexible="2+"):
    """One result per group."""

    class Result(Struct):
        group_id: str = string()
        error_code: int = int16()
        error_message: str | None = string("3+", nullable="3+", default=None, ignorable=True)

    throttle_time_ms: int = int32()
    results: list[Result] = array(Result)
