"""DeleteGroups: delete empty groups with their offsets."""

from __future__ import annotations

from functools import partial

from roster.coordinator.group_context import GroupContext
from roster.coordinator.offset_store import delete_group
from roster.coordinator.runtime import Runtime
from roster.coordinator.states import GroupState
from roster.coordinator_common import Reply, RequestReceived
from roster.wire import ErrorCode
from roster.wire.messages import DeleteGroupsRequest, DeleteGroupsResponse


def delete_groups(rt: Runtime, event: RequestReceived, request: DeleteGroupsRequest) -> DeleteGroupsResponse | None:
    """Delete empty groups with their offsets; None if the response waits until all deletions are durable or failed."""
    response = DeleteGroupsResponse(
        results=[
            DeleteGroupsResponse.Result(group_id=group_id, error_code=validate(rt, group_id))
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


def validate(rt: Runtime, group_id: str) -> ErrorCode:
    """Return the error that rejects the deletion, or NONE."""
    if error := rt.availability_error(group_id):
        return error
    group = rt.groups.get(group_id)
    if group is None or group.state is GroupState.DEAD:
        return ErrorCode.GROUP_ID_NOT_FOUND
    return ErrorCode.NONE if group.state is GroupState.EMPTY else ErrorCode.NON_EMPTY_GROUP
