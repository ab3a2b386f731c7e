"""One shape of each request for the rest of the client, whatever version a broker speaks.

The client builds requests and reads answers in their newest shape; `to_version` folds a request into an older one,
`from_version` unfolds the answer. What an older version cannot say at all is an UnsupportedError.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy

from roster.client.errors import UnsupportedError
from roster.wire import API_VERSIONS, ApiKey, Message, Versions
from roster.wire.messages import (
    DeleteTopicsRequest,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    LeaveGroupRequest,
    MetadataRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
)


def choose_version(message: Message, spoken: Mapping[int, Versions], broker: str, highest: int | None = None) -> int:
    """Choose the highest version of the request that both sides support; UnsupportedError if no version is common.

    `highest` limits it for a request whose later versions mean something else.
    """
    key = message.__table__.key
    assert key is not None  # only requests come here
    name = ApiKey(key).name
    theirs, ours = spoken.get(key), API_VERSIONS[key]
    if theirs is None:
        raise UnsupportedError(f"the broker at {broker} does not know {name} requests; use a newer broker")
    version = min(ours.high, theirs.high, ours.high if highest is None else highest)
    if version < max(ours.low, theirs.low):
        raise UnsupportedError(
            f"the broker at {broker} speaks {name} in versions {theirs}, this client in {ours}; use a matching release"
        )
    return version


def to_version(message: Message, version: int) -> Message:
    """Fold a request into the shape that `version` has."""
    match message:
        case FindCoordinatorRequest() if version < 4:
            return FindCoordinatorRequest(key=message.coordinator_keys[0], key_type=message.key_type)
        case LeaveGroupRequest() if version < 3:
            return LeaveGroupRequest(group_id=message.group_id, member_id=message.members[0].member_id)
        case MetadataRequest() if version < 4 and not message.allow_auto_topic_creation:
            folded = copy(message)
            folded.allow_auto_topic_creation = True
            return folded
        case OffsetFetchRequest() if version < 8:
            group, stable = message.groups[0], message.require_stable and version >= 7
            return OffsetFetchRequest(group_id=group.group_id, topics=group.topics, require_stable=stable)
        case DeleteTopicsRequest() if version < 6:
            names = [topic.name or "" for topic in message.topics]
            return DeleteTopicsRequest(topic_names=names, timeout_ms=message.timeout_ms)
    return message


def from_version(request: Message, response: Message, version: int) -> Message:
    """Unfold a response into its newest shape."""
    match request, response:
        case FindCoordinatorRequest(), FindCoordinatorResponse() if version < 4:
            coordinator = FindCoordinatorResponse.Coordinator(
                key=request.coordinator_keys[0],
                node_id=response.node_id,
                host=response.host,
                port=response.port,
                error_code=response.error_code,
                error_message=response.error_message,
            )
            return FindCoordinatorResponse(throttle_time_ms=response.throttle_time_ms, coordinators=[coordinator])
        case OffsetFetchRequest(), OffsetFetchResponse() if version < 8:
            group_id, code = request.groups[0].group_id, response.error_code
            answer = OffsetFetchResponse.Group(group_id=group_id, topics=response.topics, error_code=code)
            return OffsetFetchResponse(throttle_time_ms=response.throttle_time_ms, groups=[answer])
    return response
