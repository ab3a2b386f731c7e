"""Groups of KIP-848: what a made-up coordinator did is what the timeline of its records says."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.history.consumer_groups import Record, as_classic
from roster.history.derived import ENDS, EVENTS, GroupHistory
from roster.history.tables import GROUPS, SKIPPED, rows_of
from roster.history.timeline import CauseKind, timeline
from roster.model import TopicPartition
from roster.records import native
from roster.wire import encode
from roster.wire.codec.table import Message
from roster.wire.consumer_groups import (
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataValue,
)
from tests.examples_tried import examples
from tests.history.test_timeline import moves_of, owner_at, told

Owned = frozenset[int]
TOPIC, TOPIC_ID = "orders", bytes(range(16))
NAMES = {TOPIC_ID: TOPIC}


def key(kind: int, *names: str) -> bytes:
    texts = [struct.pack(">h", len(name)) + name.encode() for name in names]
    return struct.pack(">h", kind) + b"".join(texts)


def value(message: Message) -> bytes:
    return b"\0\0" + encode(message, 0)


@dataclass
class Coordinator:
    """A coordinator of one group and one topic; every write is at a time of its own."""

    chance: random.Random
    partitions: int = 6
    epoch: int = 0
    now: int = 1_790_000_000_000
    number: int = 0
    members: dict[str, str | None] = field(default_factory=dict)
    reached: dict[str, int] = field(default_factory=dict)
    owned: dict[str, Owned] = field(default_factory=dict)
    revoking: set[str] = field(default_factory=set)
    records: list[Record] = field(default_factory=list)
    owners: list[tuple[int, dict[int, str]]] = field(default_factory=list)
    """Who owned what since a time."""
    done: list[tuple[int, set[tuple[CauseKind, str]]]] = field(default_factory=list)
    """Epochs that every member has reached, with what was done since the one before."""
    since: set[tuple[CauseKind, str]] = field(default_factory=set)
    was_empty: bool = True

    def write(self, *records: tuple[bytes, bytes | None]) -> None:
        self.now += self.chance.randint(1, 1_000)
        self.records += [(self.now, *each) for each in records]
        self.owners.append((self.now, {n: member for member, mine in self.owned.items() for n in mine}))

    def bump(self) -> tuple[bytes, bytes]:
        self.epoch += 1
        return key(3, "g"), value(ConsumerGroupMetadataValue(epoch=self.epoch))

    def join(self, instance: str | None = None) -> None:
        self.number += 1
        name = f"m{self.number}"
        self.members[name] = instance
        about = ConsumerGroupMemberMetadataValue(
            instance_id=instance,
            client_id="c",
            client_host="/h",
            subscribed_topic_names=[TOPIC],
            server_assignor="uniform",
        )
        self.since.add((CauseKind.JOINED, name))
        self.write((key(5, "g", name), value(about)), self.bump())

    def leave(self) -> None:
        name = self.chance.choice(sorted(self.members))
        for of in (self.members, self.reached, self.owned):
            of.pop(name, None)
        self.revoking.discard(name)
        if (CauseKind.JOINED, name) in self.since:
            self.since.remove((CauseKind.JOINED, name))
        else:
            self.since.add((CauseKind.GONE, name))
        self.write(*((key(kind, "g", name), None) for kind in (8, 7, 5)), self.bump())
        if not self.members:
            self.settled()

    def grow(self) -> None:
        self.partitions += 2
        self.since.add((CauseKind.PARTITIONS, ""))
        self.write(self.bump())

    def settled(self) -> None:
        if self.members or not self.was_empty:
            self.done.append((self.epoch, self.since or {(CauseKind.UNKNOWN, "")}))
        self.since, self.was_empty = set(), not self.members

    def reconcile(self, steps: int | None = None) -> None:
        """Let members reach a new target, in any order; at most so many steps, so that another change overtakes it."""
        names = sorted(self.members)
        self.write((key(6, "g"), value(ConsumerGroupMetadataValue(epoch=self.epoch))))  # it looks the same
        target = {name: frozenset(range(self.partitions)[place :: len(names)]) for place, name in enumerate(names)}
        while self.members and (waiting := [name for name in names if self.reached.get(name) != self.epoch]):
            if steps is not None and (steps := steps - 1) < 0:
                return
            name = self.chance.choice(waiting)
            mine = self.owned.get(name, frozenset())
            surplus = mine - target[name]
            if surplus and name not in self.revoking:  # it still works on them
                self.revoking.add(name)
                self.current(name, self.reached.get(name, 0), 1, mine & target[name], surplus)
                continue
            self.revoking.discard(name)
            taken = frozenset(n for other, has in self.owned.items() if other != name for n in has)
            self.owned[name] = target[name] - taken
            is_whole = self.owned[name] == target[name]
            if is_whole:
                self.reached[name] = self.epoch
            self.current(name, self.epoch, 0 if is_whole else 2, self.owned[name], frozenset())
        if self.members:
            self.settled()

    def current(self, name: str, epoch: int, state: int, assigned: Owned, pending: Owned) -> None:
        def listed(numbers: Owned) -> list[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions]:
            if not numbers:
                return []
            made = ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions(
                topic_id=TOPIC_ID, partitions=sorted(numbers)
            )
            return [made]

        found = ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=epoch,
            state=state,
            assigned_partitions=listed(assigned),
            partitions_pending_revocation=listed(pending),
        )
        self.write((key(8, "g", name), value(found)))


def life(seed: int) -> Coordinator:
    chance = random.Random(seed)
    group = Coordinator(chance)
    group.join("i1" if chance.random() < 0.3 else None)
    group.reconcile()
    for _ in range(8):
        things = [group.join, group.grow] if group.members else [group.join]
        chance.choice([*things, group.leave, group.leave] if group.members else things)()
        if group.members:
            group.reconcile(chance.choice([None, None, 2, 4]))
    if any(group.reached.get(name) != group.epoch for name in group.members):
        group.reconcile()
    return group


@settings(max_examples=examples(60))
@given(st.integers(0, 2**32))
def test_epochs_causes_and_owners_are_those_of_the_coordinator(seed: int) -> None:
    group = life(seed)
    found = timeline(as_classic(group.records, NAMES))
    assert found.group.damaged == 0
    known = [(each.now.number, causes) for each, causes in zip(found.rebalances, told(found), strict=True)]
    _, *expected = group.done
    assert known[0] == (group.done[0][0], {(CauseKind.UNKNOWN, "")})
    for (number, causes), (epoch, did) in zip(known[1:], expected, strict=True):
        assert number == epoch
        assert causes - {(CauseKind.UNKNOWN, "")} <= did, "never named wrong"
        if {kind for kind, _ in did} <= {CauseKind.JOINED, CauseKind.GONE}:
            assert causes == did
    begin = found.rebalances[0].now.at_ms
    for at, owners in group.owners:
        for partition in range(6) if at >= begin else ():
            owner = owner_at(found, TopicPartition(TOPIC, partition), at)
            assert (owner and owner.member_id) == owners.get(partition)


def small() -> Coordinator:
    group = Coordinator(random.Random(1))
    group.join()
    group.reconcile()
    return group


def test_what_one_gives_up_for_another_moves_once_and_the_pause_is_counted() -> None:
    group = small()
    before = len(group.owners)
    group.join()
    group.reconcile()
    found = timeline(as_classic(group.records, NAMES))
    _, second = found.rebalances
    assert set(moves_of(found, second).values()) == {("m1", "m2")}
    pauses = 0
    for number in (1, 3, 5):
        without = [at for at, owners in group.owners[before:] if number not in owners]
        again = next(at for at, owners in group.owners[before:] if owners.get(number) == "m2")
        pauses += again - without[0] if without else 0
    assert second.unowned_ms == pauses > 0
    assert second.sync_ms == group.now - group.owners[before][0]


def test_a_classic_group_that_turns_into_one_is_not_taken_for_removed() -> None:
    group = small()
    first, *_ = group.records
    records: list[Record] = [(first[0], None, None), *group.records]
    assert list(as_classic(records, NAMES)) == list(as_classic(group.records, NAMES))
    assert list(as_classic([(1, None, None)], NAMES)) == [(1, None)]


def test_a_topic_without_a_known_name_goes_by_its_id() -> None:
    group = small()
    found = timeline(as_classic(group.records, {}))
    assert set(found.group.topics) == {TOPIC, "AAECAwQFBgcICQoLDA0ODw"}


def test_records_become_rows_and_a_history_takes_names_from_the_ends() -> None:
    group = small()
    columns = {
        "key": [each[1] for each in group.records],
        "value": [each[2] for each in group.records],
        "partition": pa.array([0] * len(group.records), pa.int32()),
        "offset": list(range(len(group.records))),
        "timestamp": pa.array([each[0] * 1000 for each in group.records], pa.timestamp("us", "UTC")),
    }
    rows = pa.Table.from_batches(
        list(rows_of(native.kernel(None, native.OFFSETS), pa.RecordBatch.from_pydict(columns)))
    )
    assert set(rows["table"].to_pylist()) == {GROUPS}
    assert set(rows["group"].to_pylist()) == {"g"}
    end = {"table": ENDS, "group": "g", "topic": TOPIC, "partition": 0, "offset": 9, "topic_id": TOPIC_ID}
    known = [name for name in EVENTS.names if name in rows.column_names]
    every = [rows.select(known), pa.Table.from_pylist([{**end, "at": group.now * 1000}], EVENTS)]
    tables = dict(
        GroupHistory(pa.concat_tables(every, promote_options="default").select(EVENTS.names).cast(EVENTS)).tables()
    )
    assert {row["topic"] for row in tables["ownership"].to_pylist()} == {TOPIC}
    assert SKIPPED not in rows["table"].to_pylist()


@pytest.mark.parametrize("kind", range(3, 9))
@given(st.binary(max_size=30))
def test_damaged_records_are_counted(kind: int, data: bytes) -> None:
    group = small()
    damaged: list[Record] = [(1, key(kind, "g", "m"), data), (1, struct.pack(">h", kind) + data, None)]
    found = timeline(as_classic([*damaged, *((at + 2, *each) for at, *each in group.records)], NAMES))
    assert found.group.damaged <= 2
