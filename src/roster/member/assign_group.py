"""The leader's duty, bytes in and bytes out: every member's subscription to every member's assignment."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from roster.assignors import Assignor, ClaimSource, find_assignor
from roster.assignors.lag import with_offsets
from roster.model import NO_GENERATION, AutoOffsetReset, PartitionOffsets, Plan, Problem
from roster.wire.consumer.assignments import encode_assignments
from roster.wire.consumer.entries import ListedPartitions
from roster.wire.consumer.lag_user_data import split_lag_user_data
from roster.wire.consumer.subscriptions import decode_subscriptions
from roster.wire.consumer.topic_index import TopicIndex
from roster.wire.consumer.user_data import decode_cooperative_user_data, decode_sticky_user_data


def lead(
    assignor: str | Assignor,
    subscriptions: Mapping[str, bytes],
    partitions: Mapping[str, int],
    *,
    instance_ids: Mapping[str, str | None] | None = None,
    racks: Mapping[str, Sequence[Collection[str]]] | None = None,
    generation: int | None = None,
    offsets: PartitionOffsets | None = None,
    auto_offset_reset: str = AutoOffsetReset.LATEST,
) -> dict[str, bytes]:
    """Assign a whole group: {member id: subscription bytes} to {member id: assignment bytes}, every member answered.

    partitions: how many partitions each topic has; topics that are missing here are not assigned.
    instance_ids: the static members' instance ids, which the JoinGroup response carries beside the subscriptions.
    racks: racks[topic][partition] are the racks that hold a replica (KIP-881).
    generation: the generation being formed. Claims from it or a later one are left over from an earlier life of the
    group whose generations restarted, and yield to every claim that can be true.
    offsets: for assignors that look at lag, offsets[topic][partition] = (first, end, committed or None); None if nobody
    knows them. auto_offset_reset: where readers start without a committed offset: earliest, latest or none.

    A member whose subscription cannot be read gets an empty assignment; nothing a member sends makes this raise.
    Raises ValueError for an assignor or a reset policy nobody knows.
    """
    plan = plan_group(
        assignor,
        subscriptions,
        partitions,
        instance_ids=instance_ids,
        racks=racks,
        generation=generation,
        offsets=offsets,
        auto_offset_reset=auto_offset_reset,
    )
    problem = plan.problem
    encoded = encode_assignments(plan.given, len(problem.members), problem.topics, problem.first)
    by_member = dict(zip(problem.members, encoded, strict=True))
    return {member: by_member[member] for member in subscriptions}


def plan_group(
    assignor: str | Assignor,
    subscriptions: Mapping[str, bytes],
    partitions: Mapping[str, int],
    *,
    instance_ids: Mapping[str, str | None] | None = None,
    racks: Mapping[str, Sequence[Collection[str]]] | None = None,
    generation: int | None = None,
    offsets: PartitionOffsets | None = None,
    auto_offset_reset: str = AutoOffsetReset.LATEST,
) -> Plan:
    """The same as a Plan, which can explain itself."""
    chosen = find_assignor(assignor)
    problem = read_group(
        chosen.claim_source, subscriptions, partitions, instance_ids=instance_ids, racks=racks, generation=generation
    )
    if chosen.wants_lag:
        problem = with_offsets(problem, offsets, auto_offset_reset)
    return chosen.assign(problem)


def read_group(
    claim_source: ClaimSource,
    subscriptions: Mapping[str, bytes],
    partitions: Mapping[str, int],
    *,
    instance_ids: Mapping[str, str | None] | None = None,
    racks: Mapping[str, Sequence[Collection[str]]] | None = None,
    generation: int | None = None,
) -> Problem:
    """The group's problem as an assignor with this source of claims sees it."""
    members = list(subscriptions)
    topics = list(partitions)
    counts = np.fromiter(partitions.values(), dtype=np.int64, count=len(topics))
    names = TopicIndex(topics)
    columns = decode_subscriptions(list(subscriptions.values()), names)
    claims, generations = columns.owned, columns.generation
    user_data, capacity, settling = split_lag_user_data(columns.user_data)
    if claim_source is ClaimSource.STICKY_USER_DATA:
        claims, generations = decode_sticky_user_data(user_data, names)
    elif claim_source is ClaimSource.FIELDS:
        without = generations == NO_GENERATION
        if without.any():
            generations = np.where(without, decode_cooperative_user_data(user_data), generations)
    else:
        nothing = np.zeros(0, dtype=np.int32)
        claims = ListedPartitions(nothing, nothing, nothing)
    if generation is not None:
        generations = np.where(generations >= generation, np.int32(NO_GENERATION), generations)
    instances = instance_ids or {}
    return Problem.from_columns(
        members=members,
        instances=[instances.get(member) for member in members],
        member_racks=columns.racks,
        topics=topics,
        counts=counts,
        subscriptions=columns.sections,
        subscription_of=columns.section_of,
        generation=generations,
        claim_member=claims.member,
        claim_topic=claims.topic,
        claim_number=claims.number,
        replica_racks=racks,
        unreadable=frozenset(members[m] for m in np.flatnonzero(~columns.readable).tolist()),
        capacity=capacity if (capacity > 1).any() else None,
        settling=settling,
    )
