"""The leader's computation: from the subscriptions of all members to their assignments, both as bytes."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from roster.assignors import Assignor, ClaimSource, find_assignor, make_plan
from roster.assignors.base import read_claims
from roster.assignors.lag import with_offsets
from roster.member.group_snapshot import GroupSnapshot
from roster.model import NO_GENERATION, AutoOffsetReset, PartitionOffsets, Plan, Problem
from roster.wire.consumer.assignments import encode_assignments
from roster.wire.consumer.messages import FAILURE_MAGIC
from roster.wire.consumer.subscriptions import decode_subscriptions
from roster.wire.consumer.topic_index import TopicIndex


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
    """Compute a group's assignment: {member id: assignment bytes} with an entry for every member.

    assignor: a name, or an Assignor (with options, or your own).
    subscriptions: the members' metadata in the JoinGroup response.
    partitions: {topic: number of partitions}; topics missing here are not assigned.
    instance_ids: {member id: instance id} of static members, from the JoinGroup response.
    racks: `racks[topic][partition]`, the racks that hold a replica (KIP-881).
    generation: the generation being formed; claims from it or a later one yield to every other claim.
    offsets: for assignors that balance lag, `offsets[topic][partition]` = (log start, log end, committed or None); None
    if they are not available. auto_offset_reset: where members start without a committed offset, as
    `is_auto_offset_reset` knows it.

    A member whose subscription cannot be decoded gets an empty assignment. With Roster's own assignors, no subscription
    causes an error. Raises ValueError that names the argument for an unknown assignor or an invalid value, or that
    names the field of the plan if your assignor's plan is invalid.
    """
    group = GroupSnapshot(
        subscriptions=subscriptions,
        partitions=partitions,
        instance_ids=instance_ids,
        racks=racks,
        generation=generation,
        offsets=offsets,
        auto_offset_reset=auto_offset_reset,
    )
    return assign_group(assignor, group).assignments


class Round(NamedTuple):
    """One round of a rebalance: assignment bytes per member id, and whether partitions are withheld until the next."""

    assignments: dict[str, bytes]
    withholds: bool


def assign_group(assignor: str | Assignor, group: GroupSnapshot) -> Round:
    """Compute the assignment of a snapshot, as `lead` does. Raises ValueError for an invalid plan."""
    plan = plan_group(assignor, group)
    problem = plan.problem
    reserved = [member for member, data in plan.user_data.items() if data.startswith(FAILURE_MAGIC)]
    if reserved:
        raise ValueError(f"user_data[{reserved[0]!r}] starts with the bytes {FAILURE_MAGIC!r}, which mark a failure")
    user_data = [plan.user_data.get(member) for member in problem.members] if plan.user_data else None
    encoded = encode_assignments(plan.given, len(problem.members), problem.topics, problem.first, user_data=user_data)
    by_member = dict(zip(problem.members, encoded, strict=True))
    return Round({member: by_member[member] for member in group.subscriptions}, bool(plan.withheld.any()))


def plan_group(assignor: str | Assignor, group: GroupSnapshot) -> Plan:
    """Compute the plan for a snapshot. Raises ValueError for an unknown assignor and for an invalid plan."""
    chosen = find_assignor(assignor)
    problem = read_group(chosen.claim_source, group)
    if chosen.wants_lag:
        problem = with_offsets(problem, group.offsets, group.auto_offset_reset)
    return make_plan(chosen, problem)


def read_group(claim_source: ClaimSource, group: GroupSnapshot) -> Problem:
    """Decode a snapshot into a problem, with claims from `claim_source`."""
    members = list(group.subscriptions)
    topics = list(group.partitions)
    counts = np.fromiter(group.partitions.values(), dtype=np.int64, count=len(topics))
    names = TopicIndex(topics)
    columns = decode_subscriptions(list(group.subscriptions.values()), names)
    claims, generations, capacity, settling = read_claims(
        claim_source, user_data=columns.user_data, fields=columns.owned, generation=columns.generation, names=names
    )
    if group.generation is not None:
        generations = np.where(generations >= group.generation, np.int32(NO_GENERATION), generations)
    instances = group.instance_ids or {}
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
        replica_racks=group.racks,
        unreadable=frozenset(members[m] for m in np.flatnonzero(~columns.readable).tolist()),
        capacity=capacity,
        settling=settling,
        user_data=columns.user_data,
        group_generation=NO_GENERATION if group.generation is None else int(group.generation),
    )
