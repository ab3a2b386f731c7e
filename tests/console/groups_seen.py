"""Snapshots for tests: a line each, and any sequence of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from hypothesis import strategies as st

from roster.console.snapshot import ABSENT, Away, MemberSeen, Snapshot
from roster.model import GroupPosition, TopicPartition

STATES = ["Stable", "PreparingRebalance", "CompletingRebalance", "Empty", "Assigning", "Reconciling", ABSENT]


def tp(number: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, number)


def seen(at: float, owned: dict[str, list[int]], *, state: str = "Stable", lag: int | None = 0, **more) -> Snapshot:
    """Members by client id with their partitions of topic t; each partition is 10 behind `lag`."""
    members = tuple(
        MemberSeen(f"{name}-id", name, "host", partitions=frozenset(map(tp, numbers)))
        for name, numbers in owned.items()
    )
    numbers = sorted({number for each in owned.values() for number in each})
    positions = {tp(number): GroupPosition(100, None if lag is None else 100 + lag) for number in numbers}
    more.setdefault("positions", positions)
    return Snapshot(at, state, "range", "host:1", members, **more)


PARTITIONS = [TopicPartition(topic, number) for topic in "tu" for number in range(4)]
OFFSETS = st.one_of(st.none(), st.integers(0, 50))
MEMBERS = st.builds(
    lambda name, restarted, instance, owned, generation: MemberSeen(
        f"{name}-{restarted}", name, "h", f"i-{name}" if instance else None, owned, generation
    ),
    st.sampled_from("abcd"),
    st.integers(0, 1),
    st.booleans(),
    st.frozensets(st.sampled_from(PARTITIONS), max_size=4),
    st.sampled_from([-1, 3, 4]),
)
POSITIONS = st.dictionaries(
    st.sampled_from(PARTITIONS), st.builds(GroupPosition, OFFSETS, OFFSETS, OFFSETS), max_size=4
)
AWAY = st.just(Away(0.0, "no answer"))
SNAPSHOTS = st.builds(
    lambda state, members, positions: Snapshot(0.0, state, "range", "h:1", tuple(members), positions),
    st.sampled_from(STATES),
    st.lists(MEMBERS, unique_by=lambda member: member.client_id, max_size=3),
    POSITIONS,
)


def looks() -> st.SearchStrategy[list[Snapshot | Away]]:
    """Any looks one after the other, also those no coordinator would give: two owners of a partition, offsets that go
    back, members in a group that does not exist."""
    steps = st.tuples(st.sampled_from([0.0, 0.5, 2.0, 30.0]), st.one_of(SNAPSHOTS, SNAPSHOTS, SNAPSHOTS, AWAY))
    return st.lists(steps, min_size=1, max_size=8).map(in_time)


def in_time(steps: list[tuple[float, Snapshot | Away]]) -> list[Snapshot | Away]:
    times = accumulate(step for step, _ in steps)
    return [replace(look, at=at) for at, (_, look) in zip(times, steps, strict=True)]
