"""A group's records in `__consumer_offsets` as its generations: members, what they read and own, as columns."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from roster.model.arrays import Bool, Int32, Int64
from roster.wire import WireError
from roster.wire.consumer import PROTOCOL_TYPE
from roster.wire.consumer.assignments import decode_assignments
from roster.wire.consumer.entries import ListedPartitions, listed_topics
from roster.wire.consumer.subscriptions import decode_subscriptions
from roster.wire.consumer.topic_index import TopicIndex
from roster.wire.consumer.user_data import split_lag_user_data
from roster.wire.offsets_topic import GroupMetadataKey, GroupMetadataValue, decode_value

_KEY = GroupMetadataKey(group="")
_NO_TIME = -1


class Member(NamedTuple):
    """A member of a group, at any time."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str

    @property
    def name(self) -> str:
        """What stays the same when a static member restarts."""
        return self.instance_id or self.member_id


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """A group as its coordinator stored it at `at_ms` (wall-clock ms); `number` is None where it is not known.

    `is_assigned` is False for a generation whose assignment was still to come, as Roster's broker stores it; Apache
    Kafka stores a generation with its assignment only.

    member: [members] numbers of the members, ascending. subscription, capacity: [members] the number of what each
    reads, and its capacity. owner: [owned] the member of each of the partitions `owned`. claimed: partitions that
    members said they owned when they joined. joined_at_ms: when the join phase ended, or the epoch
    of a consumer group began. note: what the leader said of it.
    """

    at_ms: int
    number: int | None
    assignor: str
    leader: str
    is_assigned: bool
    member: Int32
    subscription: Int32
    capacity: Int32
    owner: Int32
    owned: Int64
    claimed: Int64
    joined_at_ms: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Generations:
    """All generations of a group, with one numbering of members, topics, partitions and subscriptions.

    topics: names, ascending. topic, number: [partitions] each partition that was ever owned, ascending by both.
    subscriptions: topics that a member reads, ascending. damaged: how many records could not be read.
    """

    members: list[Member]
    topics: list[str]
    topic: Int32
    number: Int32
    subscriptions: list[Int32]
    generations: list[Generation]
    damaged: int


def read_generations(records: Iterable[tuple[int, bytes | None]]) -> Generations:
    """Read the records of a group in the order of its log: append time in wall-clock ms, value (None: removed)."""
    heads: list[tuple[int, GroupMetadataValue]] = []
    damaged = 0
    for at_ms, value in records:
        try:
            head = _EMPTY if value is None else decode_value(_KEY, value)
        except WireError:
            damaged += 1
            continue
        assert isinstance(head, GroupMetadataValue)  # by the key
        heads.append((at_ms, head))
    rows = [(g, row, head.protocol_type == PROTOCOL_TYPE) for g, (_, head) in enumerate(heads) for row in head.members]
    numbers: dict[str, int] = {}
    members: list[Member] = []
    for _, row, _ in rows:
        if numbers.setdefault(row.member_id, len(members)) == len(members):
            members.append(Member(row.member_id, row.group_instance_id, row.client_id, row.client_host))
    subscribed = [row.subscription if is_consumers else b"" for _, row, is_consumers in rows]
    assigned = [row.assignment if is_consumers else b"" for _, row, is_consumers in rows]
    topics = sorted(listed_topics(subscribed, with_numbers=False) | listed_topics(assigned, with_numbers=True))
    names = TopicIndex(topics)
    columns = decode_subscriptions(subscribed, names)
    owned, readable = decode_assignments(assigned, names)
    has_bytes = np.array([[bool(s), bool(a)] for s, a in zip(subscribed, assigned, strict=True)], np.bool_).reshape(
        -1, 2
    )
    bad = (has_bytes[:, 0] & ~columns.readable) | (has_bytes[:, 1] & ~readable)
    of_row = np.array([g for g, _, _ in rows], np.int32)
    is_bad = np.zeros(len(heads), np.bool_)
    is_bad[of_row[bad]] = True
    member = np.fromiter((numbers[row.member_id] for _, row, _ in rows), np.int32, len(rows))
    order = np.lexsort((member, of_row))
    subscriptions, section_of = _distinct(columns.sections)
    by_row = [
        column[order] for column in (member, section_of[columns.section_of], split_lag_user_data(columns.user_data)[1])
    ]
    pairs, owned_at, claimed_at = _partitions(owned, columns.owned, ~is_bad[of_row])
    generations = Generations(
        members,
        topics,
        (pairs >> 32).astype(np.int32),
        pairs.astype(np.int32),
        subscriptions,
        [],
        damaged + int(is_bad.sum()),
    )
    row_bounds = np.searchsorted(of_row, np.arange(len(heads) + 1)).tolist()
    owner, partition, owned_bounds = _by_generation(member[owned_at[0]], owned_at, of_row, len(heads))
    _, claimed, claimed_bounds = _by_generation(member[claimed_at[0]], claimed_at, of_row, len(heads))
    for g, (at_ms, head) in enumerate(heads):
        if is_bad[g]:
            continue
        mine, has, claims = (slice(b[g], b[g + 1]) for b in (row_bounds, owned_bounds, claimed_bounds))
        began = head.current_state_timestamp == _NO_TIME and not any(entry.assignment for entry in head.members)
        generations.generations.append(
            Generation(
                at_ms,
                None if head.generation < 0 else head.generation,
                head.protocol or "",
                head.leader or "",
                not (head.members and began),
                by_row[0][mine],
                by_row[1][mine],
                by_row[2][mine],
                owner[has],
                partition[has],
                claimed[claims],
                None if head.current_state_timestamp == _NO_TIME else head.current_state_timestamp,
            )
        )
    return generations


_EMPTY = GroupMetadataValue(protocol_type="", generation=-1)
_At = tuple[Int32, Int64]
"""Rows of members, and for each the number of a partition."""


def _distinct(sections: list[Int32]) -> tuple[list[Int32], Int32]:
    """Return the distinct lists of topics, each ascending, and the number of each list among them."""
    known: dict[bytes, int] = {}
    ordered = [np.unique(section) for section in sections]
    number_of = np.array([known.setdefault(section.tobytes(), len(known)) for section in ordered], np.int32)
    return [np.frombuffer(content, np.int32) for content in known], number_of


def _partitions(owned: ListedPartitions, claimed: ListedPartitions, is_whole: Bool) -> tuple[Int64, _At, _At]:
    """Number the partitions in both lists; return topic << 32 | number of each, and both lists by these numbers."""
    kept = []
    for listed in (owned, claimed):
        keep = is_whole[listed.member] & (listed.number >= 0)
        kept.append((listed.member[keep], (listed.topic[keep].astype(np.int64) << 32) | listed.number[keep]))
    pairs, index = np.unique(np.concatenate([kept[0][1], kept[1][1]]), return_inverse=True)
    size = len(kept[0][0])
    return pairs, (kept[0][0], index[:size]), (kept[1][0], index[size:])


def _by_generation(member: Int32, listed: _At, of_row: Int32, count: int) -> tuple[Int32, Int64, list[int]]:
    """Return members and partitions in the order of generations, and where each generation begins."""
    generation = of_row[listed[0]]
    order = np.argsort(generation, kind="stable")
    bounds = np.searchsorted(generation[order], np.arange(count + 1)).tolist()
    return member[order], listed[1][order], bounds
