"""Groups of a cluster: listed, described, their offsets set and deleted, on the running event loop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from roster.client.cluster import Cluster, M
from roster.client.coordinators import Coordinators, ask_each_broker
from roster.client.errors import (
    ClientError,
    CommitError,
    GroupNotEmptyError,
    GroupTypeError,
    UnknownGroupError,
    UnsupportedError,
    group_error,
)
from roster.client.types import GroupDescription, GroupListing, MemberDescription
from roster.member.requests import offset_commit
from roster.member.types import Node
from roster.model import OffsetAndMetadata, TopicPartition
from roster.wire import ErrorCode, Message, WireError
from roster.wire.consumer import CLASSIC, CONSUMER, PROTOCOL_TYPE
from roster.wire.consumer.messages import decode_assignment, flat
from roster.wire.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
)

SIMPLE_CONSUMER = (-1, "")
"""Generation and member id of an OffsetCommit from outside the group, which Kafka accepts while it is empty."""


class GroupAdmin:
    """Requests about groups, to their coordinators."""

    def __init__(self, cluster: Cluster, coordinators: Coordinators) -> None:
        self._cluster = cluster
        self._coordinators = coordinators

    async def list_groups(self) -> list[GroupListing]:
        """List the groups of every broker, sorted by name."""
        listed: dict[str, GroupListing] = {}
        answers = await ask_each_broker(self._cluster, ListGroupsRequest(), ListGroupsResponse, "groups")
        for response in answers.values():
            listed |= {
                g.group_id: GroupListing(g.group_id, g.protocol_type, g.group_state, g.group_type.lower())
                for g in response.groups
            }
        return [listed[name] for name in sorted(listed)]

    async def describe(self, group: str) -> GroupDescription:
        """Describe a classic or a consumer group; UnknownGroupError or GroupTypeError."""
        described = await self._describe_classic(group) or await self._describe_consumer(group)
        if described is not None:
            return described
        other = next((listing for listing in await self.list_groups() if listing.group_id == group), None)
        if other is not None and other.group_type not in ("", CLASSIC, CONSUMER):
            raise GroupTypeError(f"group {group!r} is a {other.group_type} group, which this client cannot describe")
        raise group_error(ErrorCode.GROUP_ID_NOT_FOUND, group, "it cannot be described")

    async def _describe_classic(self, group: str) -> GroupDescription | None:
        """Describe a classic group; None if it is of another type or does not exist."""
        request, what = DescribeGroupsRequest(groups=[group]), "it cannot be described"
        try:
            response, node = await self._ask_group(
                group, request, DescribeGroupsResponse, lambda answer: answer.groups[0].error_code, what
            )
        except UnknownGroupError:
            return None
        described = response.groups[0]
        if described.group_state == "Dead":
            return None
        members = []
        for m in sorted(described.members, key=lambda m: m.member_id):
            partitions, user_data = _assignment(m.member_assignment)
            metadata = bytes(m.member_metadata)
            members.append(
                MemberDescription(
                    m.member_id, m.group_instance_id, m.client_id, m.client_host, partitions, metadata, user_data
                )
            )
        return GroupDescription(
            group,
            described.group_state,
            described.protocol_type,
            described.protocol_data,
            members,
            coordinator=str(node),
        )

    async def _describe_consumer(self, group: str) -> GroupDescription | None:
        """Describe a consumer group of KIP-848; None as above."""
        request, what = ConsumerGroupDescribeRequest(group_ids=[group]), "it cannot be described"
        try:
            response, node = await self._ask_group(
                group, request, ConsumerGroupDescribeResponse, lambda answer: answer.groups[0].error_code, what
            )
        except (UnknownGroupError, UnsupportedError):
            return None
        except ClientError as error:
            if error.code == ErrorCode.UNSUPPORTED_VERSION:  # the protocol is switched off on the broker
                return None
            raise
        described = response.groups[0]
        members = [
            MemberDescription(
                m.member_id,
                m.instance_id,
                m.client_id,
                m.client_host,
                sorted(TopicPartition(t.topic_name, n) for t in m.assignment.topic_partitions for n in t.partitions),
            )
            for m in sorted(described.members, key=lambda m: m.member_id)
        ]
        return GroupDescription(
            group,
            described.group_state,
            PROTOCOL_TYPE,
            described.assignor_name,
            members,
            coordinator=str(node),
            group_type=CONSUMER,
            epoch=described.group_epoch,
        )

    async def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit from outside of the group; GroupNotEmptyError if it has members."""

        def code_of(response: OffsetCommitResponse) -> int:
            return next((p.error_code for t in response.topics for p in t.partitions if p.error_code), 0)

        request = offset_commit(offsets, group, SIMPLE_CONSUMER, None)
        try:
            await self._ask_group(group, request, OffsetCommitResponse, code_of, "its offsets cannot be set")
        except ClientError as error:
            if error.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
                raise GroupNotEmptyError(f"group {group!r} has members; stop them first", code=error.code) from None
            if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise CommitError(f"{error}; not all of these partitions exist", partitions=list(offsets)) from None
            raise

    async def delete(self, group: str) -> None:
        """Delete a group without members; GroupNotEmptyError if it has some."""
        request, what = DeleteGroupsRequest(groups_names=[group]), "it cannot be deleted"
        await self._ask_group(group, request, DeleteGroupsResponse, lambda answer: answer.results[0].error_code, what)

    async def delete_offsets(self, group: str, partitions: Collection[TopicPartition]) -> None:
        """Delete offsets; GroupNotEmptyError if a member subscribes to their topic."""

        def code_of(response: OffsetDeleteResponse) -> int:
            rows = (p.error_code for t in response.topics for p in t.partitions if p.error_code)
            return response.error_code or next(rows, 0)

        topics: dict[str, OffsetDeleteRequest.Topic] = {}
        for topic, partition in sorted(partitions):
            entry = topics.setdefault(topic, OffsetDeleteRequest.Topic(name=topic))
            entry.partitions.append(OffsetDeleteRequest.Partition(partition_index=partition))
        request = OffsetDeleteRequest(group_id=group, topics=list(topics.values()))
        await self._ask_group(group, request, OffsetDeleteResponse, code_of, "its offsets cannot be deleted")

    async def _ask_group(
        self, group: str, request: Message, kind: type[M], code_of: Callable[[M], int], what: str
    ) -> tuple[M, Node]:
        """Ask the coordinator until it is ready; returns its response and its node."""
        purpose = f"asking the coordinator of group {group!r}"
        response, code = await self._coordinators.ask_until_ready(group, request, kind, code_of, purpose)
        if code in (ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC):
            raise GroupNotEmptyError(f"group {group!r}: {what} while it has members; stop them first", code=code)
        if code is not ErrorCode.NONE:
            raise group_error(code, group, what)
        return response, await self._coordinators.coordinator(group)


def _assignment(data: bytes) -> tuple[list[TopicPartition], bytes]:
    """Decode partitions and user data of an assignment; both empty if it is not a consumer's."""
    try:
        assignment = decode_assignment(data)
    except WireError:
        return [], b""
    return sorted(flat(assignment.assigned_partitions)), assignment.user_data or b""
