"""The timeline of a group: what happened in a made-up history is what it says, and nothing else."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roster.history.generations import Member
from roster.history.timeline import CauseKind, Rebalance, Timeline, timeline
from roster.model import TopicPartition
from roster.wire import WireError
from roster.wire.consumer.messages import decode_assignment
from roster.wire.offsets_topic import GroupMetadataKey, GroupMetadataValue, decode_value, encode_value
from tests.history.made_up import Expected, Group, happening


def partition_of(found: Timeline, number: int) -> TopicPartition:
    return TopicPartition(found.group.topics[found.group.topic[number]], int(found.group.number[number]))


def owner_at(found: Timeline, partition: TopicPartition, at_ms: int) -> Member | None:
    owners = [
        found.group.members[member]
        for number, member, since, until in zip(*(each.tolist() for each in found.ownership), strict=True)
        if partition_of(found, number) == partition and since <= at_ms < until
    ]
    assert len(owners) <= 1
    return owners[0] if owners else None


def moves_of(found: Timeline, made: Rebalance) -> dict[TopicPartition, tuple[str | None, str | None]]:
    names = [*found.names, None]
    ends = zip(made.moved.tolist(), made.source.tolist(), made.target.tolist(), strict=True)
    return {partition_of(found, number): (names[source], names[target]) for number, source, target in ends}


def unowned(found: Timeline, made: Rebalance) -> set[TopicPartition]:
    return {tp for tp, (_, target) in moves_of(found, made).items() if target is None}


def told(found: Timeline) -> list[Expected]:
    return [{(c.kind, c.member.member_id if c.member else "") for c in each.causes} for each in found.rebalances]


@pytest.mark.parametrize("assignor", ["cooperative-sticky", "range"])
@given(st.integers(0, 2**32))
def test_causes_moves_and_owners_are_those_of_the_generator(assignor: str, seed: int) -> None:
    group = happening(seed, 12, assignor)
    found = timeline(group.records)
    assert told(found) == group.done
    assert found.group.damaged == 0
    numbers = [each.now.number for each in found.rebalances]
    assert [each.missing for each in found.rebalances[1:]] == [b - a - 1 for a, b in pairwise(numbers)]
    before: dict[TopicPartition, str] = {}
    for (at, _), owners, each in zip(group.records, group.owners, found.rebalances, strict=True):
        named = {tp: group.names[m] for tp, m in owners.items()}
        was = {tp: group.names[m] for tp, m in before.items()}
        moved = {tp: (was.get(tp), named.get(tp)) for tp in {*was, *named} if was.get(tp) != named.get(tp)}
        assert moves_of(found, each) == moved
        assert unowned(found, each) == before.keys() - owners.keys()
        for tp in {TopicPartition(t, p) for t, count in group.topics.items() for p in range(count)}:
            owned = owner_at(found, tp, at)
            assert (owned and owned.member_id) == owners.get(tp)
        before = owners


def test_a_history_of_ten_kinds_of_rebalances() -> None:
    group = Group(random.Random(1))
    group.join("i1")
    group.rebalance(set())
    group.rebalance(group.join())
    group.rebalance(set())
    group.rebalance(group.grow())
    group.rebalance(group.resubscribe())
    while group.withheld:
        group.rebalance(set())
    group.assignor = "range"
    group.rebalance({(CauseKind.ASSIGNOR, "")})
    group.rebalance(set())
    first = next(name for name, instance in group.instances.items() if instance == "i1")
    group.drop(first)
    group.rebalance({(CauseKind.GONE, first)})
    last = group.leave()
    group.rebalance(last)
    group.records.append((group.now, None))
    group.generation = 0
    group.owners.append({})
    group.rebalance(group.join())
    found = timeline(group.records)
    assert told(found) == group.done
    assert len(found.rebalances[-2].now.member) == len(found.rebalances[-2].now.owned) == 0
    assert {kind for each in told(found) for kind, _ in each} == set(CauseKind) - {
        CauseKind.REPLACED,
    }


def test_a_static_member_that_is_replaced_within_a_generation_moves_nothing() -> None:
    group = Group(random.Random(1), "range")
    group.join("i1")
    group.join("i2")
    group.rebalance(set())
    given = group.owned
    group.members = {"back": group.members["m1"], "m2": group.members["m2"]}
    group.instances = {"back": "i1", "m2": "i2"}
    group.owned = {"back": given["m1"], "m2": given["m2"]}
    group.records.append((group.now + 5, group.record(group.owned)))
    found = timeline(group.records)
    assert told(found)[1] == {(CauseKind.REPLACED, "back")}
    assert moves_of(found, found.rebalances[1]) == {}
    owner = owner_at(found, TopicPartition("t0", 0), group.now + 5)
    assert owner is not None
    assert owner.member_id == "back"


def test_partitions_that_a_round_took_have_no_owner_until_the_next() -> None:
    group = Group(random.Random(3))
    group.join()
    group.rebalance(set())
    group.rebalance(group.join())
    began = group.now
    group.rebalance(set())
    found = timeline(group.records)
    _, first, second = found.rebalances
    assert len(unowned(found, first)) == 5
    assert first.unowned_ms == 5 * (group.now - began)
    assert moves_of(found, second).keys() == unowned(found, first)
    assert timeline(group.records[:2]).rebalances[1].unowned_ms is None


def test_a_generation_stored_before_its_assignment_gives_the_length_of_the_sync_phase() -> None:
    group = Group(random.Random(1))
    group.join()
    group.rebalance(set())
    at, stored = group.records[0]
    assert stored is not None
    member = GroupMetadataValue.Member(member_id="m1", client_id="c", client_host="/h", session_timeout=1)
    early = encode_value(GroupMetadataValue(protocol_type="consumer", generation=1, protocol="range", members=[member]))
    (only,) = timeline([(at - 40, early), (at, stored)]).rebalances
    assert only.sync_ms == 40
    assert timeline([(at - 40, early)]).rebalances == []


@given(st.integers(0, 2**32), st.data())
def test_damaged_records_are_counted_and_the_others_read(seed: int, data: st.DataObject) -> None:
    group = happening(seed, 4, "range")
    at, value = group.records[1]
    assert value is not None
    cut = data.draw(st.integers(2, len(value) - 1))
    found = timeline([group.records[0], (at, value[:cut]), *group.records[2:]])
    assert found.group.damaged == 1
    assert [each.now.number for each in found.rebalances] == [
        each.now.number for each in timeline([group.records[0], *group.records[2:]]).rebalances
    ]


def test_a_group_that_is_not_of_consumers_has_members_and_no_partitions() -> None:
    member = GroupMetadataValue.Member(
        member_id="w", client_id="connect", client_host="/h", session_timeout=1, subscription=b"\1", assignment=b"\2"
    )
    value = encode_value(
        GroupMetadataValue(protocol_type="connect", generation=1, protocol="sessioned", members=[member])
    )
    (only,) = timeline([(1, value)]).rebalances
    assert (len(only.now.member), len(only.now.owned)) == (1, 0)


@given(st.integers(0, 2**32), st.binary(max_size=40), st.booleans())
def test_a_member_whose_bytes_are_damaged_costs_its_generation_only(seed: int, data: bytes, is_cut: bool) -> None:
    group = happening(seed, 3, "range")
    at, value = group.records[1]
    assert value is not None
    record = decode_value(GroupMetadataKey(group="g"), value)
    assert isinstance(record, GroupMetadataValue)
    whole = record.members[0].assignment
    record.members[0].assignment = whole[: len(data) % len(whole)] if is_cut else b"\0\1" + data
    found = timeline([group.records[0], (at, encode_value(record)), group.records[2]])
    try:
        decode_assignment(record.members[0].assignment or whole)
    except WireError:
        # User data behind the partitions is not read.
        assert found.group.damaged == 1 or is_cut or len(data) >= 4
    else:
        assert found.group.damaged == 0
    assert found.group.damaged + len(found.group.generations) == 3
