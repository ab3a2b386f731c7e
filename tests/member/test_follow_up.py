"""Heartbeats after a rebalance: the second round of a cooperative one comes without a heartbeat interval's wait."""

from __future__ import annotations

from math import log

from hypothesis import given, settings
from hypothesis import strategies as st

from roster.member.timers import FOLLOW_UP_MS, HEARTBEAT
from roster.model import TopicPartition
from roster.wire import ErrorCode
from roster.wire.consumer.messages import Subscription, by_topic, encode_subscription
from roster.wire.messages import HeartbeatRequest, HeartbeatResponse, JoinGroupRequest, JoinGroupResponse
from tests.examples_tried import examples
from tests.member.simulated_group import REBALANCE, SESSION, Faults, World
from tests.member.stage import Stage, group_of, parts

STEP = 5
NETWORK = 12 * Faults().delay + 50
"""Longest time of the messages of one round, the leader's computation and the coordinator's writes."""
COOPERATIVE = ("cooperative-sticky",)


def longest_gaps(world: World, ms: int) -> dict[TopicPartition, int]:
    """Run for `ms`; return the longest time that each partition was held by no member."""
    gaps: dict[TopicPartition, int] = {}
    since = {TopicPartition(topic, n): world.now for topic, size in world.topics.items() for n in range(size)}
    end = world.now + ms
    while world.now < end:
        world.run(STEP)
        held = frozenset().union(*(actor.held for actor in world.living))
        since |= dict.fromkeys(held, world.now)
        gaps = {partition: max(gaps.get(partition, 0), world.now - start) for partition, start in since.items()}
    return gaps


@settings(max_examples=examples(25), deadline=None)
@given(
    seed=st.integers(0, 10_000),
    members=st.integers(1, 4),
    heartbeat=st.sampled_from([500, 1_000, 3_000]),
    finish=st.sampled_from([0, 500, 5_000]),
)
def test_partitions_that_move_to_a_new_member_wait_for_a_twentieth_of_their_last_batch(
    seed: int, members: int, heartbeat: int, finish: int
) -> None:
    world = World(seed, {"t": 12}, Faults(finish=finish))
    for number in range(members):
        world.join(f"m{number}", COOPERATIVE, heartbeat_ms=heartbeat)
    world.run(3 * (SESSION + REBALANCE))
    new = world.join("new", COOPERATIVE, heartbeat_ms=heartbeat)
    gaps = longest_gaps(world, 2 * REBALANCE)
    moved = new.owns.partitions
    assert len(moved) == 12 // (members + 1)
    # Some other owner's batch may be longer than a partition's own; members must all have joined again.
    batch = finish + 100
    most = FOLLOW_UP_MS + batch // 20 + NETWORK + (batch if members > 1 else 0)
    assert max(gaps[partition] for partition in moved) <= most
    assert all(gap == 0 for partition, gap in gaps.items() if partition not in moved), "kept ones are never let go"


@settings(max_examples=examples(30))
@given(st.integers(200, 60_000))
def test_intervals_grow_to_the_configured_one_and_stay_there(configured: int) -> None:
    stage = Stage(heartbeat_interval_ms=configured, session_timeout_ms=200_000, metadata_max_age_ms=10_000_000)
    stage.stable("t-0")
    synced, intervals, count = stage.now, [], 0
    while stage.now < synced + 20 * configured:
        intervals.append(stage.timers[HEARTBEAT] - stage.now)
        stage.wait(intervals[-1])
        stage.answer(HeartbeatRequest, HeartbeatResponse())
        count += 1
    assert intervals[0] == FOLLOW_UP_MS
    assert intervals == sorted(intervals)
    assert stage.timers[HEARTBEAT] - stage.now == configured
    assert count <= 22 + log(configured / FOLLOW_UP_MS, 1.05), "20 heartbeats in 2 s, then 14 for each doubling of time"


def test_an_eager_assignor_has_no_second_round_and_no_extra_heartbeats() -> None:
    stage = Stage(heartbeat_interval_ms=3_000, assignors=("range",))
    stage.stable("t-0")
    assert stage.timers[HEARTBEAT] - stage.now == 3_000


def test_each_rebalance_begins_anew() -> None:
    stage = Stage(heartbeat_interval_ms=3_000)
    stage.stable("t-0")
    for _ in range(300):
        stage.wait(stage.timers[HEARTBEAT] - stage.now)
        stage.answer(HeartbeatRequest, HeartbeatResponse())
    assert stage.timers[HEARTBEAT] - stage.now == 3_000
    stage.wait(3_000)
    stage.answer(HeartbeatRequest, HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    stage.joined(2)
    assert stage.timers[HEARTBEAT] - stage.now == 3_000, "the assignment comes by itself"
    stage.synced("t-0")
    assert stage.timers[HEARTBEAT] - stage.now == FOLLOW_UP_MS


def cooperative_leader(n: str, *, withholds: bool) -> Stage:
    """A leader "m" of a group in which n owned t-0 and t-1, and keeps `n`; the rest waits for the next round."""
    stage = Stage(assignors=("cooperative-sticky",), session_timeout_ms=30_000, rebalance_timeout_ms=20_000)
    stage.start()
    claims = Subscription(topics=["t"], owned_partitions=by_topic(sorted(parts("t-0 t-1"))), generation_id=0)
    member = JoinGroupResponse.Member(member_id="n", metadata=encode_subscription(claims))
    stage.joined(leader="m", members=[*group_of(m="t"), member])
    stage.know({"t": 2})
    stage.assigned(m="", n=n, withholds=withholds)
    stage.synced("")
    return stage


def test_a_leader_asks_for_the_second_round_if_the_member_that_should_is_gone() -> None:
    """A static member that is killed before it joins again, and returns, does not know that it gave something up."""
    stage = cooperative_leader("t-0", withholds=True)
    stage.wait(19_999)
    assert not stage.has(JoinGroupRequest)
    stage.wait(1)
    assert stage.request(JoinGroupRequest).reason == "partitions that were given up have no owner yet"


def test_a_second_round_that_came_is_not_asked_for_again() -> None:
    stage = cooperative_leader("t-0", withholds=True)
    stage.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    stage.joined(2, leader="n")
    stage.synced("t-1")
    stage.wait(60_000)
    assert not stage.has(JoinGroupRequest)


def test_a_leader_that_moves_nothing_expects_no_second_round() -> None:
    stage = cooperative_leader("t-0 t-1", withholds=False)
    stage.wait(60_000)
    assert not stage.has(JoinGroupRequest)
