"""Where a switch between two groups is asked for: the metadata of an offset of a group beside each of them.

That group has no members, so any client may commit to it. Brokers keep the offset as long as those of any group without
members, which is far longer than a switch takes.
"""

import contextlib

from roster.client.admin import Admin
from roster.client.errors import AuthorizationError, UnknownGroupError
from roster.model import OffsetAndMetadata, TopicPartition
from roster.model.switch import Request


def request_group(group: str) -> str:
    """Return the name of the group whose offset has the request to a group."""
    return f"{group}-switch"


def switch_asked(admin: Admin, group: str) -> Request | None:
    """Return what a group is asked to do, None if nothing. Raises ClientError."""
    offsets = admin.group_offsets(request_group(group), stable=False)
    return next((request for offset in offsets.values() if (request := Request.of(offset.metadata))), None)


def ask_for_switch(admin: Admin, group: str, request: Request, partition: TopicPartition) -> None:
    """Ask a group for a switch. partition: an existing one, the same for each request. Raises ClientError."""
    admin.commit_group_offsets(request_group(group), {partition: OffsetAndMetadata(0, metadata=request.encode())})


def forget_switch(admin: Admin, group: str, partition: TopicPartition) -> None:
    """Ask a group for nothing any more. Raises ClientError."""
    admin.commit_group_offsets(request_group(group), {partition: OffsetAndMetadata(0)})
    with contextlib.suppress(AuthorizationError, UnknownGroupError):  # the empty request expires
        admin.delete_group(request_group(group))
