"""Groups of a cluster: listed, described, their offsets looked up, set and deleted."""

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
from roster.client.loop import OnLoop, blocking
from roster.client.offsets import committed_offsets, pending_offsets
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
)

_NOT_DESCRIBED = "it cannot be described"
SIMPLE_CONSUMER = (-1, "")
"""Generation and member id of an OffsetCommit from outside the group, which Kafka accepts while it is empty."""


class GroupAdmin(OnLoop):
    """Requests about groups, to their coordinators."""

    _cluster: Cluster
    _coordinators: Coordinators

    @blocking
    async def list_groups(self) -> list[GroupListing]:
        """List the groups of the cluster, sorted by name."""
        return await _listed_groups(self._cluster)

    @blocking
    async def describe_group(self, group: str) -> GroupDescription:
        """Describe a classic or a consumer group: its state and members.

        Raises:
            UnknownGroupError: the group does not exist.
            GroupTypeError: the group is of another type, such as share.
        """
        return await describe_group(self._cluster, self._coordinators, group)

    @blocking
    async def group_offsets(
        self, group: str, partitions: Collection[TopicPartition] | None = None, *, stable: bool = True
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group, all or of `partitions`; partitions without one are left out.

        With `stable`, waits for the end of transactions that hold offsets of these partitions.
        """
        return await committed_offsets(self._coordinators, group, partitions, stable=stable)

    @blocking
    async def pending_offsets(self, group: str, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return the partitions among these for which an open transaction holds an offset of the group."""
        return await pending_offsets(self._coordinators, group, partitions)

    @blocking
    async def commit_group_offsets(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit offsets for a group without members.

        Raises:
            GroupNotEmptyError: the group has members.
            CommitError: not all of the partitions exist.
        """

        def code_of(response: OffsetCommitResponse) -> int:
            return next((p.error_code for t in response.topics for p in t.partitions if p.error_code), 0)

        if not offsets:
            return
        request = offset_commit(offsets, group, SIMPLE_CONSUMER, None)
        what = "its offsets cannot be set"
        try:
            await _ask_group(self._coordinators, group, request, OffsetCommitResponse, code_of, what)
        except ClientError as error:
            if error.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
                raise GroupNotEmptyError(f"group {group!r} has members; stop them first", code=error.code) from None
            if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise CommitError(f"{error}; not all of these partitions exist", partitions=list(offsets)) from None
            raise

    @blocking
    async def delete_group(self, group: str) -> None:
        """Delete a group and its offsets.

        Raises:
            UnknownGroupError: the group does not exist.
            GroupNotEmptyError: the group has members.
        """
        request, what = DeleteGroupsRequest(groups_names=[group]), "it cannot be deleted"
        await _ask_group(
            self._coordinators, group, request, DeleteGroupsResponse, lambda answer: answer.results[0].error_code, what
        )


async def _listed_groups(cluster: Cluster) -> list[GroupListing]:
    listed: dict[str, GroupListing] = {}
    answers = await ask_each_broker(cluster, ListGroupsRequest(), ListGroupsResponse, "groups")
    for response in answers.values():
        listed |= {
            g.group_id: GroupListing(g.group_id, g.protocol_type, g.group_state, g.group_type.lower())
            for g in response.groups
        }
    return [listed[name] for name in sorted(listed)]


async def describe_group(cluster: Cluster, coordinators: Coordinators, group: str) -> GroupDescription:
    """Describe a classic or a consumer group. Raises UnknownGroupError, GroupTypeError and other ClientErrors."""
    described = await _describe_classic(coordinators, group) or await _describe_consumer(coordinators, group)
    if described is not None:
        return described
    other = next((listing for listing in await _listed_groups(cluster) if listing.group_id == group), None)
    if other is not None and other.group_type not in ("", CLASSIC, CONSUMER):
        raise GroupTypeError(f"group {group!r} is a {other.group_type} group, which this client cannot describe")
    raise group_error(ErrorCode.GROUP_ID_NOT_FOUND, group, _NOT_DESCRIBED)


async def _describe_classic(coordinators: Coordinators, group: str) -> GroupDescription | None:
    """Describe a classic group; None if it is of another type or does not exist."""
    request, kind = DescribeGroupsRequest(groups=[group]), DescribeGroupsResponse
    try:
        response, node = await _ask_group(
            coordinators, group, request, kind, lambda answer: answer.groups[0].error_code, _NOT_DESCRIBED
        )
    except UnknownGroupError:
        return None
    described = response.groups[0]
    if described.group_state == "Dead":
        return None
    members = [
        MemberDescription(
            *(m.member_id, m.group_instance_id, m.client_id, m.client_host, partitions),
            metadata=bytes(m.member_metadata),
            user_data=user_data,
        )
        for m in sorted(described.members, key=lambda m: m.member_id)
        for partitions, user_data in (_assignment(m.member_assignment),)
    ]
    names = (described.group_state, described.protocol_type, described.protocol_data)
    return GroupDescription(group, *names, members, coordinator=str(node))


async def _describe_consumer(coordinators: Coordinators, group: str) -> GroupDescription | None:
    """Describe a consumer group of KIP-848; None as above."""
    request, kind = ConsumerGroupDescribeRequest(group_ids=[group]), ConsumerGroupDescribeResponse
    try:
        response, node = await _ask_group(
            coordinators, group, request, kind, lambda answer: answer.groups[0].error_code, _NOT_DESCRIBED
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
            *(m.member_id, m.instance_id, m.client_id, m.client_host),
            sorted(TopicPartition(t.topic_name, n) for t in m.assignment.topic_partitions for n in t.partitions),
        )
        for m in sorted(described.members, key=lambda m: m.member_id)
    ]
    names = (described.group_state, PROTOCOL_TYPE, described.assignor_name)
    return GroupDescription(group, *names, members, str(node), CONSUMER, epoch=described.group_epoch)


async def _ask_group(
    coordinators: Coordinators, group: str, request: Message, kind: type[M], code_of: Callable[[M], int], what: str
) -> tuple[M, Node]:
    """Ask the coordinator until it is ready; returns its response and its node."""
    purpose = f"asking the coordinator of group {group!r}"
    response, code = await coordinators.ask_until_ready(group, request, kind, code_of, purpose)
    if code is ErrorCode.NON_EMPTY_GROUP:
        raise GroupNotEmptyError(f"group {group!r}: {what} while it has members; stop them first", code=code)
    if code is not ErrorCode.NONE:
        raise group_error(code, group, what)
    return response, await coordinators.coordinator(group)


def _assignment(data: bytes) -> tuple[list[TopicPartition], bytes]:
    """Decode partitions and user data of an assignment; both empty if it is not a consumer's."""
    try:
        assignment = decode_assignment(data)
    except WireError:
        return [], b""
    return sorted(flat(assignment.assigned_partitions)), assignment.user_data or b""
