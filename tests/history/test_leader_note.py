"""What a leader notes in its own assignment, against the plan, other clients' readers, and the timeline made of it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import ConsumerProtocolAssignment

from roster.history.derived import BEST, GroupHistory
from roster.history.timeline import CauseKind, timeline
from roster.member.assign_group import assign_group, plan_group
from roster.member.causes import Cause
from roster.member.group_snapshot import GroupSnapshot
from roster.model import TopicPartition
from roster.wire.consumer.leader_note import MAX_SIZE, LeaderNote, append_note, read_note, split_note
from roster.wire.consumer.messages import Assignment, by_topic, decode_assignment, encode_assignment
from roster.wire.offsets_topic import GroupMetadataKey, GroupMetadataValue, decode_value, encode_value
from tests.history.made_up import Group, events
from tests.member.test_leader import sent

notes = st.builds(
    LeaderNote,
    generation=st.integers(-1, 2**31 - 1),
    cause=st.sampled_from(list(Cause)),
    reason=st.text(max_size=30),
    proof=st.none() | st.text(max_size=30),
    moved=st.integers(0, 10),
    moves=st.lists(
        st.builds(LeaderNote.Moves, topic=st.text(max_size=5), why=st.text(max_size=5), partitions=st.binary())
    ),
)
assignments = st.builds(
    lambda owned, data: encode_assignment(Assignment(assigned_partitions=by_topic(sorted(owned)), user_data=data)),
    st.frozensets(st.builds(TopicPartition, st.text("abc", min_size=1, max_size=3), st.integers(0, 9))),
    st.none() | st.binary(min_size=1, max_size=40),
)


@given(assignments, notes)
def test_a_note_is_read_and_no_trouble_to_other_readers(assignment: bytes, note: LeaderNote) -> None:
    told = append_note(assignment, note)
    assert read_note(told) == note
    assert read_note(assignment) is None
    theirs = ConsumerProtocolAssignment.decode(told)
    ours = decode_assignment(assignment)
    assert [(t.topic, list(t.partitions)) for t in theirs.assigned_partitions] == [
        (t.topic, t.partitions) for t in ours.assigned_partitions
    ]
    assert split_note(bytes(theirs.user_data)) == (ours.user_data, note)


@given(assignments, notes, st.data())
def test_damaged_notes_are_no_notes(assignment: bytes, note: LeaderNote, data: st.DataObject) -> None:
    told = bytearray(append_note(assignment, note))
    for _ in range(data.draw(st.integers(1, 4))):
        told[data.draw(st.integers(0, len(told) - 1))] = data.draw(st.integers(0, 255))
    found = read_note(bytes(told))
    assert found is None or isinstance(found, LeaderNote)
    assert read_note(bytes(told[: data.draw(st.integers(0, len(told) - 1))])) is None or found is not None


def listed(note: LeaderNote) -> dict[tuple[str, int], str]:
    return {
        (each.topic, number): each.why
        for each in note.moves
        for number in range(8 * len(each.partitions))
        if each.partitions[number // 8] >> number % 8 & 1
    }


@given(st.integers(0, 2**32), st.sampled_from(["cooperative-sticky", "sticky", "lag-cooperative-sticky", "range"]))
def test_moves_and_their_reasons_are_those_of_the_plan(seed: int, assignor: str) -> None:
    chance = random.Random(seed)
    counts = {"t": chance.randint(1, 20), "u": chance.randint(0, 9)}
    claims: dict[str, dict[str, list[int]]] = {f"m{n}": {} for n in range(chance.randint(1, 4))}
    for topic, count in counts.items():
        for number in range(count):
            if chance.random() < 0.8:
                claims[chance.choice(sorted(claims))].setdefault(topic, []).append(number)
    group = GroupSnapshot(
        subscriptions={m: sent(chance.choice(["t u", "t", "u"]), owned, 1) for m, owned in claims.items()},
        partitions=counts,
        racks={topic: [{"a"}] * count for topic, count in counts.items()},
        generation=2,
    )
    note = assign_group(assignor, group, explain=True).note
    assert note is not None
    moves = plan_group(assignor, group).explain()
    found = listed(note)
    assert note.moved == len(moves)
    assert found.keys() == {(move.topic, move.partition) for move in moves}
    for move in moves:
        why = found[move.topic, move.partition]
        assert move.why.startswith(why) or why in {
            "its owner no longer reads the topic",
            "room for another partition",
            "placed anew",
            "rack",
        }
        assert (why in {"it had no owner", "claimed by several members in one generation"}) == (move.source is None)


def test_a_note_on_ten_thousand_partitions_is_small_and_one_on_very_many_topics_counts_only() -> None:
    def noted(topics: int, each: int) -> LeaderNote:
        counts = {f"a-topic-with-a-name-{n}": each for n in range(topics)}
        names = " ".join(counts)
        group = GroupSnapshot(subscriptions={f"m{n}": sent(names) for n in range(10)}, partitions=counts)
        note = assign_group("cooperative-sticky", group, explain=True).note
        assert note is not None
        return note

    big, many = noted(1, 10_000), noted(1_000, 10)
    assert (big.moved, big.proof) == (many.moved, many.proof) == (10_000, "")
    assert len(listed(big)) == 10_000
    empty = encode_assignment(Assignment())
    assert len(append_note(empty, big)) < 1_500
    assert many.moves == []
    assert len(append_note(empty, many)) < MAX_SIZE


def test_the_proof_names_what_a_better_plan_would_improve() -> None:
    group = GroupSnapshot(subscriptions={"a": sent("t u"), "b": sent("t u")}, partitions={"t": 1, "u": 1})
    best, worse = (assign_group(name, group, explain=True).note for name in ("sticky", "range"))
    assert best is not None
    assert worse is not None
    assert (best.proof, worse.proof) == ("", "a has 2, b 0, and load can be passed on")


def noted_group(cause: Cause, reason: str, moves: list[tuple[str, list[int]]]) -> list[tuple[int, bytes | None]]:
    """Records of a group of two that a third joins, whose leader noted something on the last of them."""
    group = Group(random.Random(3), topics={"t0": 6})
    group.join()
    group.rebalance(set())
    group.rebalance(group.join())
    at, value = group.records[-1]
    assert value is not None
    record = decode_value(GroupMetadataKey(group="g"), value)
    assert isinstance(record, GroupMetadataValue)
    bits = [LeaderNote.Moves(topic="t0", why=why, partitions=bytes([sum(1 << n for n in p)])) for why, p in moves]
    note = LeaderNote(
        generation=2, cause=cause, reason=reason, join_ms=30, assign_ms=4, proof="", moved=len(bits), moves=bits
    )
    leader = next(each for each in record.members if each.member_id == record.leader)
    leader.assignment = append_note(leader.assignment, note)
    record.current_state_timestamp = at - 9
    return [group.records[0], (at, encode_value(record))]


@pytest.mark.parametrize(
    ("cause", "kinds"),
    [
        (Cause.JOIN, ["joined"]),
        (Cause.UNKNOWN, ["joined"]),
        (Cause.OWN, ["asked_for", "joined"]),
        (Cause.EXPIRED, ["session_expired", "joined"]),
        (Cause.PARTITIONS, ["partitions_added", "joined"]),
    ],
)
def test_what_the_leader_says_goes_before_what_records_show(cause: Cause, kinds: list[str]) -> None:
    records = noted_group(cause, "because", [("balance", [0, 1, 2, 3, 4, 5])])
    _, made = timeline(records).rebalances
    assert [each.kind.value for each in made.causes] == kinds
    if len(kinds) > 1:
        assert made.causes[0].detail == "because"
        assert (made.causes[0].member is None) == (cause is Cause.PARTITIONS)
    # The same generation stored once more, as when a static member returns, is not the leader's doing.
    again = timeline([*records, (records[-1][0] + 5, records[-1][1])]).rebalances
    assert len(again) == 2


def test_the_tables_have_phases_proof_and_why_each_partition_moves() -> None:
    group = Group(random.Random(3))
    group.records = noted_group(Cause.JOIN, "", [("balance", list(range(6)))])
    history = GroupHistory(events(group))
    first, second = history.table("rebalances").to_pylist()
    phases = ("join_ms", "assign_ms", "sync_ms", "proof")
    assert [second[name] for name in phases] == [30, 4, 9, BEST]
    assert [first[name] for name in phases] == [None, None, 0, None]
    moves = [row for row in history.table("moves").to_pylist() if row["generation"] == 2]
    assert len(moves) == 3
    assert {(row["why"], row["target"]) for row in moves} == {("balance", None)}


def test_polled_groups_get_their_generation_from_the_note() -> None:
    records = noted_group(Cause.JOIN, "", [])
    value = decode_value(GroupMetadataKey(group="g"), records[1][1] or b"")
    assert isinstance(value, GroupMetadataValue)
    value.generation, value.leader = -1, None
    (only,) = timeline([(1, encode_value(value))]).rebalances
    assert only.now.number == 2
    assert [each.kind for each in only.causes] == [CauseKind.UNKNOWN]
