"""ListGroups, DescribeGroups and DeleteGroups."""

from functools import partial

from roster.coordinator.group_context import GroupContext
from roster.coordinator.offset_store import delete_group
from roster.coordinator.runtime import PartitionStatus, Runtime
from roster.coordinator.states import GroupState
from roster.coordinator_common import Reply, RequestReceived
from roster.wire import ErrorCode
from roster.wire.consumer import CLASSIC
from roster.wire.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)


def delete_groups(rt: Runtime, event: RequestReceived, request: DeleteGroupsRequest) -> DeleteGroupsResponse | None:
    """Delete empty groups with their offsets; None if the response waits until all deletions are durable or failed."""
    response = DeleteGroupsResponse(
        results=[
            DeleteGroupsResponse.Result(group_id=group_id, error_code=validate_deletion(rt, group_id))
            for group_id in dict.fromkeys(request.groups_names)
        ]
    )
    deletable = [result for result in response.results if not result.error_code]
    open_deletions = {result.group_id for result in deletable}

    def deleted(result: DeleteGroupsResponse.Result, error: ErrorCode) -> None:
        result.error_code = error
        open_deletions.remove(result.group_id)
        if not open_deletions:
            rt.replies.append(Reply(event.token, response))

    for result in deletable:
        delete_group(GroupContext(rt, rt.groups[result.group_id]), partial(deleted, result))
    return None if deletable else response


def validate_deletion(rt: Runtime, group_id: str) -> ErrorCode:
    """Return the error that rejects the deletion, or NONE."""
    if error := rt.availability_error(group_id):
        return error
    group = rt.groups.get(group_id)
    if group is None or group.state is GroupState.DEAD:
        return ErrorCode.GROUP_ID_NOT_FOUND
    return ErrorCode.NONE if group.state is GroupState.EMPTY else ErrorCode.NON_EMPTY_GROUP


NOT_FOUND_FROM = 6
"""DescribeGroups version from which an unknown group is an error (KIP-1043) and not a Dead group."""


def list_groups(rt: Runtime, event: RequestReceived, request: ListGroupsRequest) -> ListGroupsResponse:
    """List the groups of this process, filtered by state and type, ignoring case."""
    if PartitionStatus.LOADING in rt.partitions.values():
        return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    states = {state.strip().lower() for state in request.states_filter}
    types = {kind.strip().lower() for kind in request.types_filter}
    listed = [
        ListGroupsResponse.Group(
            group_id=group.group_id,
            protocol_type=group.protocol_type or "",
            group_state=group.state.value,
            group_type=CLASSIC,
        )
        for group in rt.groups.values()
        if (not states or group.state.value.lower() in states) and (not types or CLASSIC in types)
    ]
    return ListGroupsResponse(groups=listed)


def describe_groups(rt: Runtime, event: RequestReceived, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    """Describe groups with their members; metadata is shown only while the group is Stable."""
    return DescribeGroupsResponse(groups=[describe(rt, group_id, event.api_version) for group_id in request.groups])


def describe(rt: Runtime, group_id: str, api_version: int) -> DescribeGroupsResponse.Group:
    """Build one group's description; a missing group is Dead."""
    if error := rt.availability_error(group_id):
        return DescribeGroupsResponse.Group(group_id=group_id, error_code=error)
    group = rt.groups.get(group_id)
    if group is None or group.state is GroupState.DEAD:
        is_error = api_version >= NOT_FOUND_FROM
        return DescribeGroupsResponse.Group(
            group_id=group_id,
            group_state=GroupState.DEAD.value,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND if is_error else ErrorCode.NONE,
            error_message=f"Group {group_id} not found." if is_error else None,
        )
    stable = group.state is GroupState.STABLE
    return DescribeGroupsResponse.Group(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol or "") if stable else "",
        members=[
            DescribeGroupsResponse.Member(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(group.protocol) if stable else b"",
                member_assignment=member.assignment,
            )
            for member in group.members.values()
        ],
    )
