"""The timeline of a group: what happened in a made-up history is what it says, and nothing else."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roster.assignors import find_assignor, make_plan
from roster.history.timeline import CauseKind, Timeline, timeline
from roster.history.timeline import Owned as Ownership
from roster.model import MemberInfo, Problem, TopicPartition
from roster.wire.consumer.messages import (
    Assignment,
    Subscription,
    TopicPartitions,
    encode_assignment,
    encode_subscription,
)
from roster.wire.offsets_topic import GroupMetadataValue, encode_value

Expected = set[tuple[CauseKind, str]]
Owned = dict[str, dict[str, list[int]]]


def owner_at(found: Timeline, partition: TopicPartition, at_ms: int) -> Ownership | None:
    return next((each for each in found.ownership if each.partition == partition and each.is_at(at_ms)), None)


@dataclass
class Group:
    """A group that things happen to: its records, and what was done before each of them."""

    chance: random.Random
    assignor: str = "cooperative-sticky"
    topics: dict[str, int] = field(default_factory=lambda: {"t0": 6, "t1": 4})
    members: dict[str, tuple[str, ...]] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """What each member was ever called: its instance id, or its id."""
    owned: Owned = field(default_factory=dict)
    now: int = 1_790_000_000_000
    generation: int = 0
    number: int = 0
    withheld: set[TopicPartition] = field(default_factory=set)
    records: list[tuple[int, bytes | None]] = field(default_factory=list)
    done: list[Expected] = field(default_factory=list)
    owners: list[dict[TopicPartition, str]] = field(default_factory=list)

    def join(self, instance: str | None = None, member: str | None = None) -> Expected:
        self.number += 1
        name = member or f"m{self.number}"
        self.members[name] = tuple(self.topics)
        if instance is not None:
            self.instances[name] = instance
        self.names[name] = instance or name
        return {(CauseKind.JOINED, name)}

    def leave(self) -> Expected:
        name = self.chance.choice(sorted(self.members))
        self.drop(name)
        return {(CauseKind.GONE, name)}

    def drop(self, name: str) -> None:
        for each in (self.members, self.instances, self.owned):
            each.pop(name, None)

    def restart(self) -> Expected:
        name = self.chance.choice(sorted(self.members))
        instance = self.instances.get(name)
        self.drop(name)
        (came,) = self.join(instance)
        return {came, (CauseKind.GONE, name)} if instance is None else {(CauseKind.REPLACED, came[1])}

    def resubscribe(self) -> Expected:
        name = self.chance.choice(sorted(self.members))
        before = self.members[name]
        self.members[name] = ("t0",) if before != ("t0",) else ("t0", "t1")
        return {(CauseKind.SUBSCRIPTION, name)}

    def grow(self) -> Expected:
        read = {topic for topics in self.members.values() for topic in topics}
        topic = self.chance.choice(sorted(read))
        if not any(tp.topic == topic for tp in self.owners[-1]) or self.withheld:
            return set()
        self.topics[topic] += 2
        return {(CauseKind.PARTITIONS, "")}

    def rebalance(self, done: Expected, lost: int = 0) -> None:
        """Store the next generation, as a coordinator does; `lost` generations before it were not stored."""
        self.generation += 1 + lost
        self.now += self.chance.randint(50, 60_000)
        infos = {
            name: MemberInfo(topics, self.owned.get(name, {}), self.generation - 1 if name in self.owned else -1)
            for name, topics in self.members.items()
        }
        given: Owned = {}
        withheld: set[TopicPartition] = set()
        if infos:
            plan = make_plan(
                find_assignor(self.assignor), Problem.build(infos, self.topics, group_generation=self.generation)
            )
            given = {name: {t: sorted(ps) for t, ps in topics.items()} for name, topics in plan.assignment().items()}
            claimed = {TopicPartition(t, p) for topics in self.owned.values() for t, ps in topics.items() for p in ps}
            withheld = claimed - {
                TopicPartition(t, p) for topics in given.values() for t, ps in topics.items() for p in ps
            }
        had = self.owners[-1] if self.owners else {}
        self.records.append((self.now, self.record(given)))
        self.owners.append(
            {TopicPartition(t, p): m for m, topics in given.items() for t, ps in topics.items() for p in ps}
        )
        if self.withheld & self.owners[-1].keys():
            done = done | {(CauseKind.FOLLOW_UP, "")}
        self.done.append(done or {(CauseKind.UNKNOWN, "")})
        still = {tp for tp in withheld if had.get(tp) in self.members and tp.topic in self.members[had[tp]]}
        self.withheld = still
        self.owned = {name: given.get(name, {}) for name in self.members}

    def record(self, given: Owned) -> bytes:
        def listed(topics: dict[str, list[int]]) -> list[TopicPartitions]:
            return [TopicPartitions(topic=topic, partitions=numbers) for topic, numbers in topics.items() if numbers]

        members = [
            GroupMetadataValue.Member(
                member_id=name,
                group_instance_id=self.instances.get(name),
                client_id=f"client-{name}",
                client_host="/10.0.0.1",
                rebalance_timeout=300_000,
                session_timeout=45_000,
                subscription=encode_subscription(
                    Subscription(topics=list(topics), owned_partitions=listed(self.owned.get(name, {})))
                ),
                assignment=encode_assignment(Assignment(assigned_partitions=listed(given.get(name, {})))),
            )
            for name, topics in self.members.items()
        ]
        return encode_value(
            GroupMetadataValue(
                protocol_type="consumer",
                generation=self.generation,
                protocol=self.assignor if members else None,
                leader=next(iter(self.members), None),
                current_state_timestamp=self.now,
                members=members,
            )
        )


def happening(seed: int, rebalances: int, assignor: str) -> Group:
    """A group with a random life; it never gets empty, and something happens in each generation, or nothing at all."""
    chance = random.Random(seed)
    group = Group(chance, assignor)
    for number in range(chance.randint(1, 4)):
        group.join(f"i{number}" if chance.random() < 0.3 else None)
    group.rebalance({(CauseKind.UNKNOWN, "")})
    while len(group.records) < rebalances:
        things = [group.join, group.restart, group.resubscribe, group.grow, set]
        if len(group.members) > 1:
            things += [group.leave, group.leave]
        done = chance.choice(things)() if not group.withheld or chance.random() < 0.2 else set()
        group.rebalance(done, lost=chance.choice([0, 0, 0, 1, 2]))
    return group


def told(found: Timeline) -> list[Expected]:
    return [{(c.kind, c.member.member_id if c.member else "") for c in each.causes} for each in found.rebalances]


@pytest.mark.parametrize("assignor", ["cooperative-sticky", "range"])
@given(st.integers(0, 2**32))
def test_causes_moves_and_owners_are_those_of_the_generator(assignor: str, seed: int) -> None:
    group = happening(seed, 12, assignor)
    found = timeline(group.records)
    assert told(found) == group.done
    assert found.damaged == 0
    numbers = [each.generation for each in found.rebalances]
    assert [each.missing for each in found.rebalances[1:]] == [b - a - 1 for a, b in pairwise(numbers)]
    before: dict[TopicPartition, str] = {}
    for (at, _), owners, each in zip(group.records, group.owners, found.rebalances, strict=True):
        named = {tp: group.names[m] for tp, m in owners.items()}
        was = {tp: group.names[m] for tp, m in before.items()}
        moved = {(tp, was.get(tp), named.get(tp)) for tp in {*was, *named} if was.get(tp) != named.get(tp)}
        assert {tuple(move) for move in each.moves} == moved
        assert set(each.unowned) == before.keys() - owners.keys()
        for tp in {TopicPartition(t, p) for t, count in group.topics.items() for p in range(count)}:
            owned = owner_at(found, tp, at)
            assert (owned and owned.member.member_id) == owners.get(tp)
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
    assert found.rebalances[-2].members == found.rebalances[-2].partitions == 0
    assert {kind for each in told(found) for kind, _ in each} == set(CauseKind) - {CauseKind.REPLACED}


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
    assert found.rebalances[1].moves == []
    owner = owner_at(found, TopicPartition("t0", 0), group.now + 5)
    assert owner is not None
    assert owner.member.member_id == "back"


def test_partitions_that_a_round_took_have_no_owner_until_the_next() -> None:
    group = Group(random.Random(3))
    group.join()
    group.rebalance(set())
    group.rebalance(group.join())
    began = group.now
    group.rebalance(set())
    _, first, second = timeline(group.records).rebalances
    assert len(first.unowned) == 5
    assert first.unowned_partition_ms == 5 * (group.now - began)
    assert sorted(move.partition for move in second.moves) == first.unowned
    assert timeline(group.records[:2]).rebalances[1].unowned_partition_ms is None


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
    assert found.damaged == 1
    assert [each.generation for each in found.rebalances] == [
        each.generation for each in timeline([group.records[0], *group.records[2:]]).rebalances
    ]


def test_a_group_that_is_not_of_consumers_has_members_and_no_partitions() -> None:
    member = GroupMetadataValue.Member(
        member_id="w", client_id="connect", client_host="/h", session_timeout=1, subscription=b"\1", assignment=b"\2"
    )
    value = encode_value(
        GroupMetadataValue(protocol_type="connect", generation=1, protocol="sessioned", members=[member])
    )
    (only,) = timeline([(1, value)]).rebalances
    assert (only.members, only.partitions) == (1, 0)
