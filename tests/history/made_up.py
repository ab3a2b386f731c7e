"""Made-up groups: their records as a coordinator writes them, and what was done before each of them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

from roster.assignors import find_assignor, make_plan
from roster.history.derived import ENDS, EVENTS
from roster.history.folder import ENDS_SCHEMA, RECORDS, HistoryFolder
from roster.history.tables import COMMITS, GROUPS
from roster.history.timeline import CauseKind
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
        first, *_ = self.topics
        self.members[name] = (first,) if before != (first,) else tuple(self.topics)
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


def happening(seed: int, rebalances: int, assignor: str, topics: dict[str, int] | None = None) -> Group:
    """A group with a random life; it never gets empty, and something happens in each generation, or nothing at all."""
    chance = random.Random(seed)
    group = Group(chance, assignor) if topics is None else Group(chance, assignor, topics)
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


Points = dict[TopicPartition, list[tuple[int, int]]]
"""(time in ms, offset) of each partition."""


def events(group: Group, name: str = "g", commits: Points | None = None, ends: Points | None = None) -> pa.Table:
    """What is known of a group, as a history has it."""
    rows = [
        {"table": GROUPS, "value": value, "at": at * 1000, "log_offset": number}
        for number, (at, value) in enumerate(group.records)
    ]
    for table, points in ((COMMITS, commits or {}), (ENDS, ends or {})):
        rows += [
            {"table": table, **tp._asdict(), "offset": offset, "at": at * 1000, "log_offset": at}
            for tp, line in points.items()
            for at, offset in line
        ]
    return pa.Table.from_pylist([{"group": name, **row} for row in rows], EVENTS)


def write_history(folder: Path, groups: dict[str, Group], commits: Points, ends: Points) -> None:
    """Write a history of groups that all made the same commits, in files as a recorder writes them."""
    tables = [events(group, name, commits) for name, group in groups.items()]
    rows = pa.concat_tables(tables)
    rows = rows.append_column("day", rows["at"].cast(pa.date32()))
    for name, kind in (("reason", pa.string()), ("records", pa.int64())):  # of the table that has what was not read
        rows = rows.append_column(name, pa.nulls(len(rows), kind))
    partitioning = ds.partitioning(pa.schema([("table", pa.string()), ("day", pa.date32())]), flavor="hive")
    ds.write_dataset(rows, folder / RECORDS, format="parquet", partitioning=partitioning)
    of_ends = [
        {**tp._asdict(), "begin": 0, "end": offset, "at": at * 1000} for tp, line in ends.items() for at, offset in line
    ]
    HistoryFolder(folder).put(
        ENDS, min(row["at"] for row in of_ends) // 1000, pa.Table.from_pylist(of_ends, ENDS_SCHEMA)
    )
