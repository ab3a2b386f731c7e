"""Committed offsets: commit, fetch, delete, expire.

A commit becomes visible when its write is acknowledged, never before; what is deleted stays visible until the tombstone
is durable. Fetching is therefore always answered at once, from durable offsets only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from roster.coordinator import records, session
from roster.coordinator.events import RequestReceived
from roster.coordinator.group import CommittedOffset, Group, GroupState
from roster.coordinator.runtime import Continuation, LogRecord, Runtime
from roster.wire import ErrorCode, WireError
from roster.wire.consumer.messages import decode_subscription
from roster.wire.messages import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

GROUP_ID_NOT_FOUND_FROM = 9
"""OffsetCommit version from which a generation in an unknown group is answered GROUP_ID_NOT_FOUND."""
MANY_GROUPS_FROM = 8
"""OffsetFetch version from which one request asks for several groups."""
GROUP_ERROR_FROM = 2
"""OffsetFetch version from which there is an error for the whole group."""
NO_OFFSET = CommittedOffset(offset=-1, leader_epoch=-1, metadata="", committed_at_ms=-1)


# -- commit ----------------------------------------------------------------------------------------------------------


def commit(rt: Runtime, event: RequestReceived, request: OffsetCommitRequest) -> None:
    """Store offsets; answered when they are durable."""
    group = rt.groups.get(request.group_id)
    error = commit_refusal(rt, group, request, event.api_version)
    if error:
        rt.reply(event.token, commit_reply(request, error))
        return
    if group is None:
        group = rt.create_group(request.group_id)
    member = group.members.get(request.member_id)
    if member is not None:
        session.renew(rt, group, member)

    expires_at = None if request.retention_time_ms == -1 else rt.wall_ms + request.retention_time_ms
    offsets: dict[tuple[str, int], CommittedOffset | None] = {}
    for topic in request.topics:
        for partition in topic.partitions:
            text = partition.committed_metadata or ""
            if len(text) <= rt.config.offset_metadata_max_bytes:
                offsets[topic.name, partition.partition_index] = CommittedOffset(
                    partition.committed_offset, partition.committed_leader_epoch, text, rt.wall_ms, expires_at
                )
    if offsets:
        write_offsets(
            rt, group, offsets, lambda error: rt.reply(event.token, commit_reply(request, error, offsets.keys()))
        )
    else:
        rt.reply(event.token, commit_reply(request, ErrorCode.NONE, offsets.keys()))
        drop_if_unused(rt, group)


def commit_refusal(rt: Runtime, group: Group | None, request: OffsetCommitRequest, api_version: int) -> ErrorCode:
    """Why none of the request's offsets may be stored; NONE if they may (worked case GC-25)."""
    generation = request.generation_id_or_member_epoch
    anonymous = generation < 0 and not request.member_id and request.group_instance_id is None
    if group is None:
        if error := rt.unavailable(request.group_id):
            return error
        if generation < 0:
            return ErrorCode.NONE  # a client without group management: a simple group comes to be
        return ErrorCode.GROUP_ID_NOT_FOUND if api_version >= GROUP_ID_NOT_FOUND_FROM else ErrorCode.ILLEGAL_GENERATION
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if generation < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.NONE  # an administrator, or a simple consumer
    if anonymous:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if error := session.validate(group, request.member_id, request.group_instance_id):
        return error
    if generation != group.generation:
        group.witness(generation)
        return ErrorCode.ILLEGAL_GENERATION
    if group.state is GroupState.COMPLETING:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def commit_reply(
    request: OffsetCommitRequest, error: ErrorCode, accepted: Collection[tuple[str, int]] | None = None
) -> OffsetCommitResponse:
    """`error` for every partition; where only some were `accepted`, the metadata of the others was too large."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponse.Topic(
                name=topic.name,
                partitions=[
                    OffsetCommitResponse.Partition(
                        partition_index=partition.partition_index,
                        error_code=error
                        if accepted is None or (topic.name, partition.partition_index) in accepted
                        else ErrorCode.OFFSET_METADATA_TOO_LARGE,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def write_offsets(
    rt: Runtime,
    group: Group,
    offsets: dict[tuple[str, int], CommittedOffset | None],
    then: Continuation,
    *more: LogRecord,
) -> None:
    """Write offsets (None: tombstones), then `more` records; apply them once durable, then go on with `then`."""
    group.offsets_in_flight.update(offsets.keys())

    def written(error: ErrorCode) -> None:
        group.landed(offsets)
        if not error:
            for (topic, partition), committed in offsets.items():
                group.store_offset(topic, partition, committed)
        then(error)
        drop_if_unused(rt, group)

    log = [
        records.offset_record(group.group_id, topic, partition, committed)
        for (topic, partition), committed in offsets.items()
    ]
    rt.write(group.partition, [*log, *more], written)


def drop_if_unused(rt: Runtime, group: Group) -> None:
    """Forget a simple group of which nothing is left: the log has no record of it either."""
    never_joined = group.protocol_type is None and group.generation == 0 and not group.recorded
    if never_joined and group.state is GroupState.EMPTY and not group.pending and not group.known_offsets():
        group.move_to(GroupState.DEAD, rt.wall_ms)
        rt.drop_group(group)


# -- fetch -----------------------------------------------------------------------------------------------------------


def fetch(rt: Runtime, event: RequestReceived, request: OffsetFetchRequest) -> None:
    """Answer with durable offsets; -1 where there is none."""
    if event.api_version >= MANY_GROUPS_FROM:
        groups = [fetch_group(rt, wanted.group_id, wanted.topics) for wanted in request.groups]
        rt.reply(event.token, OffsetFetchResponse(groups=groups))
        return
    answer = fetch_group(rt, request.group_id, request.topics)
    if answer.error_code and event.api_version < GROUP_ERROR_FROM:
        topics = [
            offset_topic(wanted.name, dict.fromkeys(wanted.partition_indexes, NO_OFFSET))
            for wanted in request.topics or []
        ]
        for topic in topics:
            for partition in topic.partitions:
                partition.error_code = answer.error_code
        rt.reply(event.token, OffsetFetchResponse(topics=topics))
        return
    rt.reply(event.token, OffsetFetchResponse(topics=answer.topics, error_code=answer.error_code))


def fetch_group(
    rt: Runtime, group_id: str, topics: list[OffsetFetchRequest.Group.Topic] | None
) -> OffsetFetchResponse.Group:
    """One group's offsets for `topics`, or all it has (None)."""
    if error := rt.unavailable(group_id):
        return OffsetFetchResponse.Group(group_id=group_id, error_code=error)
    group = rt.groups.get(group_id)
    offsets = {} if group is None else group.offsets
    if topics is None:
        found = [offset_topic(topic, partitions) for topic, partitions in offsets.items()]
    else:
        found = []
        for wanted in topics:
            known = offsets.get(wanted.name, {})
            partitions = {partition: known.get(partition, NO_OFFSET) for partition in wanted.partition_indexes}
            found.append(offset_topic(wanted.name, partitions))
    return OffsetFetchResponse.Group(group_id=group_id, topics=found)


def offset_topic(name: str, partitions: dict[int, CommittedOffset]) -> OffsetFetchResponse.Group.Topic:
    """One topic of the answer."""
    return OffsetFetchResponse.Group.Topic(
        name=name,
        partitions=[
            OffsetFetchResponse.Group.Topic.Partition(
                partition_index=partition,
                committed_offset=committed.offset,
                committed_leader_epoch=committed.leader_epoch,
                metadata=committed.metadata,
            )
            for partition, committed in partitions.items()
        ],
    )


# -- delete ----------------------------------------------------------------------------------------------------------


def delete(rt: Runtime, event: RequestReceived, request: OffsetDeleteRequest) -> None:
    """Forget offsets of topics that no member is subscribed to; answered when that is durable (KIP-496)."""
    group = rt.groups.get(request.group_id)
    error = delete_refusal(rt, group, request)
    if error or group is None:
        rt.reply(event.token, OffsetDeleteResponse(error_code=error))
        return
    topics: list[OffsetDeleteResponse.Topic] = []
    doomed: dict[tuple[str, int], CommittedOffset | None] = {}
    known = group.known_offsets()
    subscribed = subscribed_topics(group)
    for topic in request.topics:
        in_use = is_subscribed(group, subscribed, topic.name)
        outcome = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if in_use else ErrorCode.NONE
        topics.append(
            OffsetDeleteResponse.Topic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponse.Partition(partition_index=partition.partition_index, error_code=outcome)
                    for partition in topic.partitions
                ],
            )
        )
        if not in_use:
            keys = ((topic.name, partition.partition_index) for partition in topic.partitions)
            doomed.update({key: None for key in keys if key in known})
    response = OffsetDeleteResponse(topics=topics)
    if not doomed:
        rt.reply(event.token, response)
        return
    write_offsets(
        rt,
        group,
        doomed,
        lambda error: rt.reply(event.token, OffsetDeleteResponse(error_code=error) if error else response),
    )


def delete_refusal(rt: Runtime, group: Group | None, request: OffsetDeleteRequest) -> ErrorCode:
    """Why no offset of the group may be deleted; NONE if some may."""
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if group is None:
        return rt.unavailable(request.group_id) or ErrorCode.GROUP_ID_NOT_FOUND
    if group.state is GroupState.DEAD:
        return ErrorCode.GROUP_ID_NOT_FOUND
    if group.state is not GroupState.EMPTY and not group.is_consumer_group():
        return ErrorCode.NON_EMPTY_GROUP  # nobody here can tell which topics its members use
    return ErrorCode.NONE


def topics_deleted(rt: Runtime, topics: Iterable[str]) -> None:
    """Topics are gone from the cluster: their offsets go as well, whoever is subscribed."""
    gone = set(topics)
    for group in list(rt.groups.values()):
        doomed: dict[tuple[str, int], CommittedOffset | None] = {
            key: None for key in sorted(group.known_offsets()) if key[0] in gone
        }
        if doomed and group.state is not GroupState.DEAD:
            write_offsets(rt, group, doomed, lambda _: None)


def subscribed_topics(group: Group) -> set[str] | None:
    """The topics the members of a consumer group subscribe to; None if nobody here can tell.

    Subscriptions are read here, when somebody asks, and nowhere else: bytes that are no subscription cannot stop a
    rebalance (worked case DF-4), they only keep the group's offsets from being deleted or expiring by topic.
    """
    if not group.is_consumer_group():
        return None
    topics: set[str] = set()
    for member in group.members.values():
        try:
            topics.update(decode_subscription(member.metadata(group.protocol)).topics)
        except WireError:
            return None
    return topics


def is_subscribed(group: Group, subscribed: set[str] | None, topic: str) -> bool:
    """Whether a topic counts as in use: in doubt, a consumer group uses every topic, any other kind none."""
    return group.is_consumer_group() if subscribed is None else topic in subscribed


# -- expiry ----------------------------------------------------------------------------------------------------------


def expire(rt: Runtime, partition: int) -> None:
    """Remove offsets that outlived their retention, and groups that have nothing left (worked case GC-27)."""
    for group in rt.groups_in(partition):
        if group.state is GroupState.DEAD:
            continue
        doomed = expired_offsets(rt, group)
        nothing_left = not group.known_offsets() - doomed.keys()
        if nothing_left and group.state is GroupState.EMPTY and not group.pending:
            bury(rt, group, lambda _: None)
        elif doomed:
            write_offsets(rt, group, doomed, lambda _: None)


def expired_offsets(rt: Runtime, group: Group) -> dict[tuple[str, int], CommittedOffset | None]:
    """The offsets past their retention, as tombstones; those with a write under way stay.

    | group                                              | retention runs from                        |
    |----------------------------------------------------|--------------------------------------------|
    | no protocol type (simple)                          | the commit                                 |
    | Empty                                              | when it became Empty, else the commit      |
    | Stable consumer group with readable subscriptions  | the commit; topics in use never expire     |
    | any other                                          | never                                      |
    """
    since_ms: int | None = None
    in_use: set[str] = set()
    if group.protocol_type is not None and group.state is GroupState.EMPTY:
        since_ms = group.state_since_ms
    elif group.protocol_type is not None:
        subscribed = subscribed_topics(group) if group.state is GroupState.STABLE else None
        if subscribed is None:
            return {}
        in_use = subscribed
    return {
        (topic, partition): None
        for topic, partitions in group.offsets.items()
        if topic not in in_use
        for partition, committed in partitions.items()
        if (topic, partition) not in group.offsets_in_flight and has_expired(rt, committed, since_ms)
    }


def has_expired(rt: Runtime, committed: CommittedOffset, since_ms: int | None) -> bool:
    """Whether the offset's own expiry time, if a client set one, or its retention is over."""
    if committed.expires_at_ms is not None:
        return rt.wall_ms >= committed.expires_at_ms
    start = committed.committed_at_ms if since_ms is None else since_ms
    return rt.wall_ms - start >= rt.config.offsets_retention_ms


def bury(rt: Runtime, group: Group, then: Continuation) -> None:
    """Delete an empty group with all its offsets. Until that is durable it is Dead; if it fails, it lives again."""
    since = group.state_since_ms
    group.move_to(GroupState.DEAD, rt.wall_ms)
    for member_id in list(group.pending):
        session.forget_pending(rt, group, member_id)

    def written(error: ErrorCode) -> None:
        if error:
            group.state, group.state_since_ms = GroupState.EMPTY, since  # undone, which is no transition
        else:
            rt.drop_group(group)
        then(error)

    doomed: dict[tuple[str, int], CommittedOffset | None] = dict.fromkeys(sorted(group.known_offsets()))
    write_offsets(rt, group, doomed, written, records.group_tombstone(group.group_id))
