"""DeleteGroups: delete empty groups with their offsets."""

from __future__ import annotations

from roster.coordinator.events import RequestReceived
from roster.coordinator.group import Group
from roster.coordinator.group_context import GroupContext
from roster.coordinator.offset_store import delete_group
from roster.coordinator.runtime import Runtime
from roster.coordinator.states import GroupState
from roster.wire import ErrorCode
from roster.wire.messages import DeleteGroupsRequest, DeleteGroupsResponse


def delete_groups(rt: Runtime, event: RequestReceived, request: DeleteGroupsRequest) -> None:
    """Delete empty groups with their offsets; answered once every deletion is durable or has failed."""
    results = [
        DeleteGroupsResponse.Result(group_id=group_id, error_code=validate(rt, group_id))
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

        delete_group(GroupContext(rt, group), deleted)

    for result in results:
        if not result.error_code:
            delete(rt.groups[result.group_id], result)
    reply_if_done()


def validate(rt: Runtime, group_id: str) -> ErrorCode:
    """Return the error that rejects the deletion, or NONE."""
    if error := rt.availability_error(group_id):
        return error
    group = rt.groups.get(group_id)
    if group is None or group.state is GroupState.DEAD:
        return ErrorCode.GROUP_ID_NOT_FOUND
    return ErrorCode.NONE if group.state is GroupState.EMPTY else ErrorCode.NON_EMPTY_GROUP
