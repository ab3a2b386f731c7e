"""A group's history: what each look means, and that no look's news is lost."""

from __future__ import annotations

import pytest
from hypothesis import given

from roster.console.events import EventKind
from roster.console.history import GroupHistory
from roster.console.rows import rows_of
from roster.console.snapshot import REBALANCING, Away, MemberSeen, Snapshot
from roster.model import GroupPosition
from tests.console.groups_seen import looks, seen, tp


def told(*snapshots: Snapshot | Away, history: GroupHistory | None = None) -> list[str]:
    history = history or GroupHistory()
    return [event.text for snapshot in snapshots for event in history.see(snapshot)]


def test_the_first_look_is_one_event_and_what_was_there_is_no_news():
    assert told(seen(0, {"a": [0, 1], "b": [2]})) == ["Stable, 2 members, 3 partitions owned"]


def test_a_member_that_returns_has_its_letter_still():
    """The letter of c, whose partition waits, goes to no other one that joins meanwhile or in the same look."""
    history = GroupHistory()
    told(seen(0, {"a": [], "c": [0]}), seen(1, {"a": []}, state="PreparingRebalance"), history=history)
    for at in range(2, 60):  # all letters have had their turn
        told(seen(at, {"a": [], f"b{at}": []}, state="PreparingRebalance"), history=history)
    told(seen(60, {"a": [], "d": [], "c": [0]}), history=history)
    marks = [member.mark for member in history.members.values()]
    assert len(set(marks)) == len(marks) == 3


def test_a_member_that_joins_takes_partitions_from_another():
    history = GroupHistory()
    texts = told(
        seen(0, {"a": [0, 1, 2, 3]}),
        seen(1, {"a": [0, 1, 2, 3], "b": []}, state="PreparingRebalance"),
        seen(2, {"a": [], "b": []}, state="CompletingRebalance", positions={}),
        seen(4, {"a": [0, 1], "b": [2, 3]}),
        history=history,
    )
    assert texts[1:] == [
        "B b-id joined",
        "rebalance began",
        "rebalance ended after 3.0 s: A 2, B 2",
        "A → B: t 2-3",
    ]
    move = history.events[-1]
    assert (move.source, move.target, move.partitions) == ("a-id", "b-id", (tp(2), tp(3)))
    assert history.rebalances == 1


def test_owners_stay_while_a_classic_group_rebalances_and_its_members_show_no_assignment():
    history = GroupHistory()
    told(seen(0, {"a": [0], "b": [1]}), history=history)
    told(seen(1, {"b": []}, state="PreparingRebalance", positions={tp(0): GroupPosition(1, 9)}), history=history)
    rows = rows_of(history)
    assert [(row.partition, row.owner.seen.client_id, row.waits) for row in rows.partitions] == [
        (tp(0), "a", True),
        (tp(1), "b", False),
    ]
    assert [row.member.left_at for row in rows.members] == [None, 1]


def test_a_members_death_tells_that_its_partitions_wait_and_then_who_got_them():
    texts = told(
        seen(0, {"a": [0, 1], "b": [2, 3]}),
        seen(8, {"a": [0, 1]}, state="PreparingRebalance"),
        seen(10, {"a": [0, 1, 2, 3]}),
    )
    assert texts[1:] == [
        "B b-id left (or its session ended); 2 partitions wait for the rebalance",
        "rebalance began",
        "rebalance ended after 2.0 s: A 4",
        "B → A: t 2-3",
    ]


def test_a_rebalance_between_two_looks_is_seen_by_what_it_changed():
    history = GroupHistory()
    texts = told(seen(0, {"a": [0, 1]}), seen(2, {"a": [0], "b": [1]}), history=history)
    assert texts[1:] == ["B b-id joined", "rebalance, over between two looks: A 1, B 1", "A → B: t 1"]
    assert history.rebalances == 1


def test_a_rebalance_that_changed_nothing_is_seen_by_the_generation_members_claim():
    def look(at: float, generation: int) -> Snapshot:
        member = MemberSeen("m", "app", partitions=frozenset({tp(0)}), generation=generation)
        return Snapshot(at, "Stable", members=(member,), positions={})

    history = GroupHistory()
    assert told(look(0, -1), look(1, 4), history=history) == ["Stable, 1 member, 1 partition owned"]
    assert history.generation_at_least == 5
    assert told(look(2, 5), history=history) == ["rebalance, over between two looks: A 1"]
    assert told(look(3, 5), history=history) == []
    assert history.generation_at_least == 6


def test_without_a_claim_no_generation_is_made_up():
    history = GroupHistory()
    told(seen(0, {"a": [0]}), seen(1, {"a": [0], "b": []}), history=history)
    assert (history.generation_at_least, history.epoch) == (None, None)
    told(Snapshot(2, "Stable", epoch=7), history=history)
    assert history.epoch == 7


def test_a_coordinator_that_goes_away_is_said_once_and_comes_back_with_the_time_it_took():
    history = GroupHistory()
    texts = told(seen(0, {"a": [0]}), Away(1, "refused"), Away(2, "refused"), seen(5.5, {"a": [0]}), history=history)
    assert texts[1:] == ["the coordinator does not answer", "the coordinator answers again after 4.5 s"]
    assert history.events[-1].seconds == 4.5
    assert None in history.lag_total.values


def test_a_coordinator_that_moves_is_told():
    there = seen(0, {"a": [0]})
    moved = Snapshot(1, "Stable", "range", "other:2", there.members, there.positions)
    assert told(there, moved)[1:] == ["coordinator moved: host:1 → other:2"]


def test_a_static_member_that_restarts_is_the_same_member():
    def look(at: float, member_id: str) -> Snapshot:
        member = MemberSeen(member_id, "app", instance_id="i-1", partitions=frozenset({tp(0)}))
        return Snapshot(at, "Stable", members=(member,), positions={})

    history = GroupHistory()
    texts = told(look(0, "m-1"), look(1, "m-2"), history=history)
    assert texts[1] == "A i-1 is back"
    assert history.events[1].kind is EventKind.REJOINED
    assert [member.mark for member in history.members.values()] == ["A"]


def test_a_group_that_appears_empties_and_goes_is_told():
    texts = told(
        Snapshot(0),
        seen(1, {"a": [0]}, state="PreparingRebalance"),
        seen(2, {"a": [0]}),
        Snapshot(3, "Empty"),
        Snapshot(4),
    )
    assert texts == [
        "there is no such group yet",
        "the group appears: PreparingRebalance",
        "A a-id joined",
        "rebalance began",
        "no member → A: t 0",
        "rebalance ended after 1.0 s: A 1",
        "no members any more",
        "A a-id left (or its session ended)",
        "A → no member: t 0",
        "the group is gone",
    ]


def test_committed_offsets_that_go_back_are_told():
    there = seen(0, {"a": [0, 1]})
    back = Snapshot(
        1, "Stable", "range", "host:1", there.members, {tp(0): GroupPosition(3, 100), tp(1): GroupPosition(100, 100)}
    )
    assert told(there, back)[1:] == ["committed offsets went back: t 0"]


def test_control_characters_of_clients_do_not_reach_a_terminal():
    history = GroupHistory()
    history.see(Snapshot(0.0, "Empty"))
    evil = MemberSeen("\x1b[2J-1", "\x1b[2J", partitions=frozenset({tp(0)}))
    events = history.see(Snapshot(1.0, "Stable", "ra\x07nge", members=(evil,)))
    shown = [history.protocol, *(member.name for member in history.members.values()), *(each.text for each in events)]
    assert len(shown) == 5
    assert all(text.isprintable() for text in shown)


def test_a_partition_that_comes_into_view_is_no_work():
    history = GroupHistory()
    for at in range(20):
        told(Snapshot(float(at), "Stable", positions={tp(0): GroupPosition(at * 10, 500)}), history=history)
    both = {tp(0): GroupPosition(200, 500), tp(1): GroupPosition(1_000_000, 9_000_000)}
    assert told(Snapshot(20.0, "Stable", positions=both), history=history) == []
    assert history.rate == pytest.approx(10)


@pytest.mark.parametrize(
    ("position", "lag"),
    [
        (GroupPosition(4, 10, 0), 6),
        (GroupPosition(12, 10, 0), 0),
        (GroupPosition(None, 10, 0), None),
        (GroupPosition(None, 10, 10), 0),
        (GroupPosition(None, 0), None),
        (GroupPosition(4, None), None),
    ],
)
def test_lag_is_unknown_where_nothing_is_committed_unless_the_log_is_empty(position, lag):
    assert position.lag == lag


@given(looks())
def test_events_replayed_give_the_members_and_owners_of_the_last_look(sequence):
    """Independent bookkeeping: joined and left, moved from and to, of all events make up the present."""
    history = GroupHistory()
    events, members, owners, started = [], set(), {}, False
    for look in sequence:
        new = history.see(look)
        assert all(event.at == look.at for event in new)
        events += new
        if isinstance(look, Snapshot) and not started:
            started = True
            members = {member.member_id for member in history_members(history)}
            owners = {partition: key_id(history, key) for partition, key in history.owners.items()}
            continue
        for event in new:
            apply(event, members, owners)
    assert list(history.events) == events
    assert len(members) == len(history.members)
    assert owners == {partition: key_id(history, key) for partition, key in history.owners.items()}


def apply(event, members: set[str], owners: dict) -> None:
    if event.kind is EventKind.JOINED:
        members.add(event.member)
    elif event.kind is EventKind.LEFT:
        members.discard(event.member)
    elif event.kind is EventKind.REJOINED:
        for key, owner in owners.items():
            owners[key] = event.member if owner == event.source else owner
        members.discard(event.source)
        members.add(event.member)
    elif event.kind is EventKind.MOVED:
        for partition in event.partitions:
            assert owners.pop(partition, "") == event.source
            if event.target:
                owners[partition] = event.target


def history_members(history: GroupHistory) -> list[MemberSeen]:
    return [member.seen for member in history.members.values()]


def key_id(history: GroupHistory, key: str) -> str:
    return history.member_of(key).seen.member_id


@given(looks())
def test_every_partition_and_member_is_a_row_once(sequence):
    history = GroupHistory()
    positions, owned, members = set(), set(), set()
    for look in sequence:
        history.see(look)
        rows = rows_of(history)
        if isinstance(look, Snapshot):
            positions = set(look.positions)
            members = {member.key for member in look.members}
            if look.state not in REBALANCING or look.state in ("Assigning", "Reconciling"):
                owned = {partition for member in look.members for partition in member.partitions}
                assert {row.partition for row in rows.partitions} == positions | owned
        shown = [row.partition for row in rows.partitions]
        assert shown == sorted(set(shown))
        assert positions <= set(shown)
        assert {row.member.seen.key for row in rows.members if row.member.left_at is None} == members
        in_members = [partition for row in rows.members for partition in row.partitions]
        assert sorted(in_members) == sorted(row.partition for row in rows.partitions if row.owner is not None)
        assert sum(row.lag for row in rows.members) + sum(r.lag or 0 for r in rows.partitions if not r.owner) == (
            history.lag
        )
        marks = [member.mark for member in history.members.values()]
        assert len(set(marks)) == len(marks)


@given(looks())
def test_began_and_ended_take_turns_and_every_end_is_counted(sequence):
    history = GroupHistory()
    for look in sequence:
        history.see(look)
    kinds = [event.kind for event in history.events]
    assert kinds.count(EventKind.REBALANCE_ENDED) == history.rebalances
    open_away = False
    for kind in kinds:
        if kind is EventKind.COORDINATOR_AWAY:
            assert not open_away
            open_away = True
        elif kind is EventKind.COORDINATOR_BACK:
            assert open_away
            open_away = False
    assert open_away == (history.away_since is not None)
