"""Shared by the plug-ins: a client's group as columns, and the bytes of its assignments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from struct import Struct

import numpy as np

from roster.assignors import Assignor, ClaimSource
from roster.model import NO_GENERATION, Problem
from roster.model.arrays import Int32
from roster.wire.consumer.assignments import encode_assignments
from roster.wire.consumer.entries import ListedPartitions
from roster.wire.consumer.topic_index import TopicIndex
from roster.wire.consumer.user_data import (
    decode_cooperative_user_data,
    decode_sticky_user_data,
    encode_cooperative_user_data,
)

LAST_STAMP = 2**31 - 1

_INT32 = Struct(">i")
_NULL = _INT32.pack(-1)
_FORMER = b"roster-member:"


@dataclass(frozen=True, slots=True)
class Seen:
    """One member as its client's leader sees it; `owned` are pairs of a topic and partition numbers."""

    member_id: str
    topics: Sequence[str]
    user_data: bytes | None = None
    instance_id: str | None = None
    owned: Iterable[tuple[str, Sequence[int]]] = ()
    generation: int = NO_GENERATION
    rack: str | None = None


def assign_group(
    assignor: Assignor, members: Sequence[Seen], partition_count: Callable[[str], int]
) -> dict[str, bytes]:
    """Return {member id: assignment bytes} with every member; no claim of a member makes this raise.

    User data of the assignments, which other clients ignore: a sticky assignment has a stamp one above every generation
    claimed, by which members of clients without generations date their claims; a cooperative one has the member's id,
    which the member returns with its claims.
    """
    source = assignor.claim_source
    problem = _problem(source, members, partition_count)
    plan = assignor.assign(problem)
    stamp = None
    if source is ClaimSource.STICKY_USER_DATA:
        newest = int(problem.generation.max(initial=NO_GENERATION))
        stamp = _INT32.pack(min(newest + 1, LAST_STAMP))
    encoded = encode_assignments(plan.given, len(problem.members), problem.topics, problem.first, user_data=stamp)
    assigned = zip(problem.members, encoded, strict=True)
    if source is ClaimSource.FIELDS:
        return {member: assignment[: -len(_NULL)] + _sized(member.encode()) for member, assignment in assigned}
    return dict(assigned)


def stamp_of(user_data: bytes | None) -> int:
    """Return the stamp in an assignment's user data; NO_GENERATION if the leader was not a plug-in of Roster."""
    return int(_INT32.unpack(user_data)[0]) if user_data and len(user_data) == _INT32.size else NO_GENERATION


def cooperative_user_data(generation: int, member_id: bytes | None) -> bytes:
    """Encode Kafka's user data, followed by the member id that a leader of Roster sent with the assignment."""
    return encode_cooperative_user_data(generation) + (b"" if not member_id else _FORMER + member_id)


def _is_of_a_former_life(seen: Seen) -> bool:
    """Return True if the claims are of a former membership.

    Their owner is known under another member id now, and a client revokes everything before it joins under a new one.
    """
    former = (seen.user_data or b"")[_INT32.size :]
    return former.startswith(_FORMER) and former != _FORMER + seen.member_id.encode()


def _sized(data: bytes) -> bytes:
    return _INT32.pack(len(data)) + data


def grouped(partitions: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """{topic: its partitions}, both ascending."""
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    return topics


def _problem(source: ClaimSource, members: Sequence[Seen], partition_count: Callable[[str], int]) -> Problem:
    sections: dict[tuple[str, ...], int] = {}
    section_of = [sections.setdefault(tuple(member.topics), len(sections)) for member in members]
    topics = sorted({topic for section in sections for topic in section})
    index = {topic: i for i, topic in enumerate(topics)}
    names = TopicIndex(topics)
    if source is ClaimSource.STICKY_USER_DATA:
        claims, generation = decode_sticky_user_data([m.user_data for m in members], names)
    elif source is ClaimSource.FIELDS:
        claims = _owned([replace(m, owned=()) if _is_of_a_former_life(m) else m for m in members], index)
        fields = np.array([m.generation for m in members], dtype=np.int32)
        dated_by_user_data = decode_cooperative_user_data([m.user_data for m in members])
        generation = np.where(fields < 0, dated_by_user_data, fields).astype(np.int32)
    else:
        nothing = np.zeros(0, dtype=np.int32)
        claims, generation = ListedPartitions(nothing, nothing, nothing), np.full(len(members), NO_GENERATION, np.int32)
    return Problem.from_columns(
        members=[m.member_id for m in members],
        instances=[m.instance_id for m in members],
        member_racks=[m.rack for m in members],
        topics=topics,
        counts=np.array([partition_count(topic) for topic in topics], dtype=np.int64),
        subscriptions=[np.array([index[topic] for topic in section], dtype=np.int32) for section in sections],
        subscription_of=np.array(section_of, dtype=np.int32),
        generation=generation,
        claim_member=claims.member,
        claim_topic=claims.topic,
        claim_number=claims.number,
    )


def _owned(members: Sequence[Seen], index: Mapping[str, int]) -> ListedPartitions:
    """The members' lists of owned partitions as columns."""
    member: list[int] = []
    topic: list[int] = []
    size: list[int] = []
    numbers: list[int] = []
    for m, seen in enumerate(members):
        for name, listed in seen.owned:
            member.append(m)
            topic.append(index.get(name, -1))
            size.append(len(listed))
            numbers += listed

    def column(values: list[int]) -> Int32:
        return np.array(values, dtype=np.int32)

    return ListedPartitions(np.repeat(column(member), size), np.repeat(column(topic), size), column(numbers))
