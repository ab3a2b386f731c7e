"""Common code of the plug-ins: a client's group as columns, and the bytes of its assignments."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from struct import Struct

import numpy as np

from roster.assignors import Assignor, ClaimSource, RebalanceProtocol, make_plan, resolve_assignors
from roster.assignors.base import read_claims
from roster.model import NO_GENERATION, Plan, Problem
from roster.model.arrays import Int32
from roster.wire.consumer.assignments import encode_assignments
from roster.wire.consumer.entries import ListedPartitions
from roster.wire.consumer.topic_index import TopicIndex

LAST_STAMP = 2**31 - 1

_INT32 = Struct(">i")
_FORMER = b"roster-member:"


def resolve_eager(assignor: Assignor) -> Assignor:
    """Return the assignor. Raises ValueError if it is not an Assignor, does not support eager groups, or needs lag."""
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
class MemberView:
    """A member from the view of the leader's client; `owned` are pairs of a topic and its partition numbers."""

    member_id: str
    topics: Sequence[str]
    user_data: bytes | None = None
    instance_id: str | None = None
    owned: Iterable[tuple[str, Sequence[int]]] = ()
    generation: int = NO_GENERATION
    rack: str | None = None


def assign_group(
    assignor: Assignor, members: Sequence[MemberView], partition_count: Callable[[str], int]
) -> dict[str, bytes]:
    """Return {member id: assignment bytes} for all members; with Roster's own assignors, no claim causes an error.

    The assignments have the plan's user data. Roster's own assignors use it for what the clients do not pass on: a
    sticky assignment has a stamp one above every generation claimed, which members of clients without generations send
    with their claims; a cooperative one has the member's id, which the member returns with its claims. Raises
    ValueError for an invalid plan.
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
    """Return the stamp in an assignment's user data; NO_GENERATION if the leader was not a Roster plug-in."""
    return int(_INT32.unpack(user_data)[0]) if user_data and len(user_data) == _INT32.size else NO_GENERATION


def former_member(member_id: bytes | None) -> bytes:
    """Encode the member id that a Roster leader sent with the assignment; it is appended to Kafka's user data."""
    return b"" if not member_id else _FORMER + member_id


def _is_of_former_membership(view: MemberView) -> bool:
    """Return True if the claims are from a former membership, with another member id.

    They are void: a client revokes all partitions before it joins with a new member id.
    """
    former = (view.user_data or b"")[_INT32.size :]
    return former.startswith(_FORMER) and former != _FORMER + view.member_id.encode()


def _problem(source: ClaimSource, members: Sequence[MemberView], partition_count: Callable[[str], int]) -> Problem:
    sections: dict[tuple[str, ...], int] = {}
    section_of = [sections.setdefault(tuple(member.topics), len(sections)) for member in members]
    topics = sorted({topic for section in sections for topic in section})
    index = {topic: i for i, topic in enumerate(topics)}
    names = TopicIndex(topics)
    if source is ClaimSource.FIELDS_AND_USER_DATA:
        owned = [replace(m, owned=()) if _is_of_former_membership(m) else m for m in members]
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


def _owned(members: Sequence[MemberView], index: Mapping[str, int]) -> ListedPartitions:
    """Return the members' lists of owned partitions as columns."""
    member: list[int] = []
    topic: list[int] = []
    size: list[int] = []
    numbers: list[int] = []
    for m, view in enumerate(members):
        for name, listed in view.owned:
            member.append(m)
            topic.append(index.get(name, -1))
            size.append(len(listed))
            numbers += listed

    def column(values: list[int]) -> Int32:
        return np.array(values, dtype=np.int32)

    return ListedPartitions(np.repeat(column(member), size), np.repeat(column(topic), size), column(numbers))
