"""The picture of a group: it fits any screen, shows the newest event, and every partition and member once."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from roster.cli.groups import picture as group_picture
from roster.cli.groups.picture import Size, picture, status
from roster.console.events import Event, EventKind
from roster.console.history import GroupHistory
from roster.console.rows import rows_of
from roster.console.snapshot import Away, MemberSeen, Snapshot
from roster.model import GroupPosition, TopicPartition

SCREENS = [(width, height) for width in (60, 80, 120) for height in (24, 45)]
NEWEST = "the newest event of all is on the screen"


def history_of(partitions: int, members: int, topics: int = 1, looks: int = 3, state: str = "Stable") -> GroupHistory:
    history = GroupHistory()
    everything = [TopicPartition(f"topic-{n % topics}", n // topics) for n in range(partitions)]
    for look in range(looks):
        there = tuple(
            MemberSeen(f"app-{n}-{n:04x}", f"app-{n}", "10.0.0.1", partitions=frozenset(everything[n::members]))
            for n in range(members)
        )
        positions = {tp: GroupPosition(10 * look, 10 * look + at, 0) for at, tp in enumerate(everything)}
        history.see(Snapshot(float(look), state, "range", "host:9092", there, positions))
    return history


def stamp(at: float) -> str:
    return f"{at:6.1f} s"


def drawn(history: GroupHistory, size: Size, events: int = 12) -> list[str]:
    told = [Event(float(at), EventKind.JOINED, f"event number {at}") for at in range(events - 1)]
    told.append(Event(float(events), EventKind.JOINED, NEWEST))
    lines = picture(status("shops", history, size.width, history.now), rows_of(history), told, size, stamp)
    assert all(isinstance(line, Text) for line in lines)
    return [line.plain for line in lines]


def check_fits(lines: list[str], size: Size) -> None:
    assert size.height is None or len(lines) <= size.height
    assert max(Text(line).cell_len for line in lines) <= size.width
    assert NEWEST in " ".join(" ".join(lines).split())
    assert any(NEWEST[:20] in line for line in lines[-size.height // 2 if size.height else 0 :])
    assert lines[0].startswith("shops")


@pytest.mark.parametrize(("width", "height"), SCREENS)
@pytest.mark.parametrize(("partitions", "members"), [(0, 0), (1, 1), (12, 3), (40, 5), (100, 60), (1000, 3)])
def test_it_fits_and_shows_the_newest_event(width, height, partitions, members):
    size = Size(width, height)
    check_fits(drawn(history_of(partitions, members), size), size)


@given(
    st.integers(0, 300),
    st.integers(1, 60),
    st.integers(1, 20),
    st.integers(40, 200),
    st.integers(8, 70),
)
def test_it_fits_any_screen(partitions, members, topics, width, height):
    size = Size(width, height)
    history = history_of(partitions, members, topics, looks=1)
    check_fits(drawn(history, size), size)


@pytest.mark.parametrize(("width", "height"), SCREENS)
def test_twelve_partitions_and_three_members_are_all_named_with_owner_and_lag(width, height):
    history = history_of(12, 3)
    lines = drawn(history, Size(width, height))
    for number in range(12):
        owner = history.members[history.owners[TopicPartition("topic-0", number)]]
        pattern = rf"(^|\s){number}\s+{owner.mark}\s.*?\b{number}\b"
        assert any(re.search(pattern, line) for line in lines), number
    for member in history.members.values():
        assert any(line.startswith(f"{member.mark} {member.name}") for line in lines)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_an_80_by_24_terminal_shows_the_newest_three_events_beside_twelve_partitions(width):
    lines = drawn(history_of(12, 3), Size(width, 24))
    for number in (9, 10):
        assert any(f"event number {number}" in line for line in lines)


@pytest.mark.parametrize(("width", "height"), SCREENS)
def test_of_more_partitions_than_lines_those_furthest_behind_are_shown_and_the_others_summed_up(width, height):
    block = [line.plain for line in group_picture.partitions(rows_of(history_of(1000, 3)), Size(width, height))]
    shown = height - 2
    assert len(block) == height
    assert [line.split()[0] for line in block[1:-1]] == [str(number) for number in range(999, 999 - shown, -1)]
    assert block[-1].rstrip() == f"… {1000 - shown} more, lag {sum(range(1000 - shown)):,}"


def test_partitions_of_unknown_lag_come_behind_those_that_are_known_to_lag():
    history, tps = GroupHistory(), [TopicPartition("t", number) for number in range(9)]
    at = {tp: GroupPosition(5 if tp.partition % 2 else None, 5 + tp.partition) for tp in tps}
    history.see(Snapshot(0.0, "Stable", positions=at))
    block = [line.plain.split() for line in group_picture.partitions(rows_of(history), Size(80, 6))]
    assert [line[0] for line in block[1:5]] == ["7", "5", "3", "1"]
    assert block[5] == ["…", "5", "more,", "lag", "0"]


def test_unknown_lag_is_never_shown_as_nought():
    history = GroupHistory()
    tps = [TopicPartition("t", 0), TopicPartition("t", 1)]
    members = (MemberSeen("m-1", "m", partitions=frozenset(tps)),)
    history.see(Snapshot(0.0, "Stable", members=members, positions=dict.fromkeys(tps, GroupPosition(None, 50, 0))))
    text = "\n".join(drawn(history, Size(80, 24)))
    assert "lag unknown" in text
    assert text.count("unknown") == 4  # the total, the member, both partitions
    history.see(
        Snapshot(
            1.0, "Stable", members=members, positions={tps[0]: GroupPosition(20, 50), tps[1]: GroupPosition(None, 50)}
        )
    )
    text = "\n".join(drawn(history, Size(80, 24)))
    assert "lag at least 30" in text
    assert "≥ 30" in text


def test_the_lag_of_a_group_that_shows_no_partitions_while_it_rebalances_is_unknown():
    history = GroupHistory()
    history.see(Snapshot(0.0, "PreparingRebalance", members=(MemberSeen("m", "m"),)))
    assert "lag unknown" in status("g", history, 80, 0.0)[1].plain
    history.see(Snapshot(1.0, "PreparingRebalance", positions={TopicPartition("t", 0): GroupPosition(1, 4)}))
    assert "lag at least 3" in status("g", history, 80, 1.0)[1].plain


def test_a_coordinator_that_is_away_and_a_rebalance_are_said_in_the_status():
    history = history_of(4, 2)
    history.see(Away(5.0, "cannot connect"))
    first, _, note = (line.plain for line in status("g", history, 80, now=8.0))
    assert "coordinator away" in first
    assert "no answer for 3 s: cannot connect" in note
    history = history_of(4, 2, state="PreparingRebalance")
    note = status("g", history, 80, now=4.5)[2].plain
    assert "rebalancing for 4.5 s" in note


def test_the_generation_is_a_lower_bound_and_absent_where_nothing_is_known():
    history = history_of(4, 2)
    assert "generation" not in status("g", history, 120, 0.0)[0].plain
    claim = MemberSeen("m", "m", generation=6)
    history.see(Snapshot(9.0, "Stable", members=(claim,)))
    assert "generation ≥ 7" in status("g", history, 120, 9.0)[0].plain


def test_a_long_newest_event_takes_up_to_three_lines_and_those_before_it_one():
    text = " ".join(f"word{n}" for n in range(40))
    events = [Event(0.0, EventKind.JOINED, text), Event(1.0, EventKind.JOINED, text)]
    lines = [line.plain for line in group_picture.timeline(events, 60, 6, stamp)]
    assert len(lines) == 1 + 1 + 3
    assert lines[1].rstrip().endswith("…")
    whole = group_picture.timeline(events, 60, 7, stamp)
    assert not any("…" in line.plain for line in whole[:3])


def test_without_a_limit_all_events_and_partitions_are_drawn():
    lines = drawn(history_of(30, 3), Size(80, None), events=200)
    assert sum("event number" in line for line in lines) == 199
    assert NEWEST in lines[-1]
