"""Shared by the plug-ins: a client's group as columns, and the bytes of its assignments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from struct import Struct

import numpy as np

from roster.assignors import Assignor, ClaimSource, RebalanceProtocol, make_plan, resolve_assignors
from roster.assignors.claim_source import read_claims
from roster.model import NO_GENERATION, Plan, Problem
from roster.model.arrays import Int32
from roster.wire.consumer.assignments import encode_assignments
from roster.wire.consumer.entries import ListedPartitions
from roster.wire.consumer.topic_index import TopicIndex

LAST_STAMP = 2**31 - 1

_INT32 = Struct(">i")
_FORMER = b"roster-member:"


def resolve_eager(assignor: Assignor) -> Assignor:
    """Return the assignor. Raises ValueError if it is not one, cannot assign in an eager group, or looks at lag."""
    (chosen,) = resolve_assignors([assignor]).values()
    if RebalanceProtocol.EAGER not in chosen.supported_protocols:
        raise ValueError(f"{chosen.name} supports no eager rebalances, which this plug-in makes")
    if chosen.wants_lag:
        raise ValueError(
            f"assignor: {chosen.name} looks at lag, and this client tells its assignors no offsets: take one that"
            " does not, as sticky, or roster.client.GroupMember"
        )
    return chosen


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
    """Return {member id: assignment bytes} with every member; no claim of a member makes an assignor of Roster raise.

    User data of the assignments is the plan's. Roster's own assignors use it for what the clients do not pass on: a
    sticky assignment has a stamp one above every generation claimed, by which members of clients without generations
    date their claims; a cooperative one has the member's id, which the member returns with its claims. Raises
    ValueError for a plan that is not valid.
    """
    problem = _problem(assignor.claim_source, members, partition_count)
    plan = make_plan(assignor, problem)
    encoded = encode_assignments(
        plan.given, len(problem.members), problem.topics, problem.first, user_data=_user_data(assignor, plan)
    )
    return dict(zip(problem.members, encoded, strict=True))


def _user_data(assignor: Assignor, plan: Plan) -> list[bytes | None]:
    problem = plan.problem
    if assignor.claim_source is ClaimSource.STICKY_USER_DATA:
        newest = int(problem.generation.max(initial=NO_GENERATION))
        return [_INT32.pack(min(newest + 1, LAST_STAMP))] * len(problem.members)
    if assignor.claim_source is ClaimSource.FIELDS_AND_USER_DATA:
        return [member.encode() for member in problem.members]
    return [plan.user_data.get(member) for member in problem.members]


def stamp_of(user_data: bytes | None) -> int:
    """Return the stamp in an assignment's user data; NO_GENERATION if the leader was not a plug-in of Roster."""
    return int(_INT32.unpack(user_data)[0]) if user_data and len(user_data) == _INT32.size else NO_GENERATION


def former_member(member_id: bytes | None) -> bytes:
    """Encode the member id that a leader of Roster sent with the assignment, to follow Kafka's own user data."""
    return b"" if not member_id else _FORMER + member_id


def _is_of_a_former_life(seen: Seen) -> bool:
    """Return True if the claims are of a former membership.

    Their owner has another member id now, and a client revokes everything before it joins under a new one.
    """
    former = (seen.user_data or b"")[_INT32.size :]
    return former.startswith(_FORMER) and former != _FORMER + seen.member_id.encode()


def _problem(source: ClaimSource, members: Sequence[Seen], partition_count: Callable[[str], int]) -> Problem:
    sections: dict[tuple[str, ...], int] = {}
    section_of = [sections.setdefault(tuple(member.topics), len(sections)) for member in members]
    topics = sorted({topic for section in sections for topic in section})
    index = {topic: i for i, topic in enumerate(topics)}
    names = TopicIndex(topics)
    if source is ClaimSource.FIELDS_AND_USER_DATA:
        owned = [replace(m, owned=()) if _is_of_a_former_life(m) else m for m in members]
    else:
        owned = list(members)
    read = read_claims(
        source,
        user_data=[m.user_data for m in members],
        fields=_owned(owned, index),
        generation=np.array([m.generation for m in members], dtype=np.int32),
        names=names,
    )
    return Problem.from_columns(
        members=[m.member_id for m in members],
        instances=[m.instance_id for m in members],
        member_racks=[m.rack for m in members],
        topics=topics,
        counts=np.array([partition_count(topic) for topic in topics], dtype=np.int64),
        subscriptions=[np.array([index[topic] for topic in section], dtype=np.int32) for section in sections],
        subscription_of=np.array(section_of, dtype=np.int32),
        generation=read.generation,
        claim_member=read.claims.member,
        claim_topic=read.claims.topic,
        claim_number=read.claims.number,
        user_data=[m.user_data for m in members],
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
