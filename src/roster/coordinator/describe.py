"""ListGroups, DescribeGroups, DeleteGroups: the administrator's view."""

from __future__ import annotations

from roster.coordinator.events import RequestReceived
from roster.coordinator.group import Group, GroupState
from roster.coordinator.offsets import bury
from roster.coordinator.runtime import PartitionStatus, Runtime
from roster.wire import ErrorCode
from roster.wire.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)

GROUP_TYPE = "classic"
NOT_FOUND_FROM = 6
"""DescribeGroups version from which an unknown group is an error (KIP-1043) and not a Dead group."""


def list_groups(rt: Runtime, event: RequestReceived, request: ListGroupsRequest) -> None:
    """List the groups of the partitions this process has, by state and type; names in filters ignore case."""
    if PartitionStatus.LOADING in rt.partitions.values():
        rt.reply(event.token, ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        return
    states = {state.strip().lower() for state in request.states_filter}
    types = {kind.strip().lower() for kind in request.types_filter}
    listed = [
        ListGroupsResponse.Group(
            group_id=group.group_id,
            protocol_type=group.protocol_type or "",
            group_state=group.state.value,
            group_type=GROUP_TYPE,
        )
        for group in rt.groups.values()
        if (not states or group.state.value.lower() in states) and (not types or GROUP_TYPE in types)
    ]
    rt.reply(event.token, ListGroupsResponse(groups=listed))


def describe_groups(rt: Runtime, event: RequestReceived, request: DescribeGroupsRequest) -> None:
    """Describe groups with their members; metadata only while it goes with an assignment, that is when Stable."""
    described = [describe(rt, group_id, event.api_version) for group_id in request.groups]
    rt.reply(event.token, DescribeGroupsResponse(groups=described))


def describe(rt: Runtime, group_id: str, api_version: int) -> DescribeGroupsResponse.Group:
    """One group's description; one that does not exist is Dead."""
    if error := rt.unavailable(group_id):
        return DescribeGroupsResponse.Group(group_id=group_id, error_code=error)
    group = rt.groups.get(group_id)
    if group is None or group.state is GroupState.DEAD:
        missing = DescribeGroupsResponse.Group(group_id=group_id, group_state=GroupState.DEAD.value)
        if api_version >= NOT_FOUND_FROM:
            missing.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            missing.error_message = f"Group {group_id} not found."
        return missing
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


def delete_groups(rt: Runtime, event: RequestReceived, request: DeleteGroupsRequest) -> None:
    """Delete empty groups with their offsets; answered once every deletion is durable or has failed."""
    results = [
        DeleteGroupsResponse.Result(group_id=group_id, error_code=delete_refusal(rt, group_id))
        for group_id in dict.fromkeys(request.groups_names)
    ]
    open_deletions = {result.group_id for result in results if not result.error_code}

    def reply_if_done() -> None:
        if not open_deletions:
            rt.reply(event.token, DeleteGroupsResponse(results=results))

    def delete(group: Group, result: DeleteGroupsResponse.Result) -> None:
        def deleted(error: ErrorCode) -> None:
            result.error_code = error
            open_deletions.remove(result.group_id)
            reply_if_done()

        bury(rt, group, deleted)

    for result in results:
        if not result.error_code:
            delete(rt.groups[result.group_id], result)
    reply_if_done()


def delete_refusal(rt: Runtime, group_id: str) -> ErrorCode:
    """Why the group cannot be deleted; NONE if it can."""
    if error := rt.unavailable(group_id):
        return error
    group = rt.groups.get(group_id)
    if group is None or group.state is GroupState.DEAD:
        return ErrorCode.GROUP_ID_NOT_FOUND
    return ErrorCode.NONE if group.state is GroupState.EMPTY else ErrorCode.NON_EMPTY_GROUP
