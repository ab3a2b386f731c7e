"""SyncGroup, heartbeats, sessions and leaving: worked cases of section 8 and Apache Kafka's rules."""

from __future__ import annotations

import pytest

from roster.wire import ErrorCode
from tests.coordinator.coordinator_harness import Client, GroupState, subscription


def completing_group(*instances: str | None, **options: object) -> tuple[Client, list[str]]:
    """A group whose second generation waits for its SyncGroups."""
    c = Client()
    ids = c.stable_group(*instances, **options)
    c.rejoin_all(ids, **options)
    assert c.state is GroupState.COMPLETING
    return c, ids


def test_the_leaders_assignment_is_stored_before_anybody_gets_it() -> None:
    c, (leader, follower) = completing_group(None, None)
    c.auto_ack = False
    calls = [c.sync(follower, 2), c.sync(leader, 2, {leader: b"L", follower: b"F"})]
    assert all(call.parked for call in calls)
    assert c.state is GroupState.COMPLETING
    c.ack()
    assert [call.reply.assignment for call in calls] == [b"F", b"L"]
    assert c.state is GroupState.STABLE
    record = c.group_records()[-1]
    assert (record.generation, record.protocol, record.leader) == (2, "range", leader)
    assert [(m.member_id, m.assignment) for m in record.members] == [(leader, b"L"), (follower, b"F")]
    assert {m.subscription for m in record.members} == {subscription("t")}


def test_gc17_the_leader_dies_before_its_sync() -> None:
    c = Client()
    leader = c.join(version=3, session=5_000)
    follower = c.join(version=3, session=10_000)
    c.advance_to(6_000)
    start = c.now
    leader_id, follower_id = leader.reply.member_id, follower.reply.member_id
    waiting = c.sync(follower_id, 1)
    c.advance_to(start + 4_999)
    assert waiting.parked
    c.advance_to(start + 5_000)
    assert waiting.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert c.state is GroupState.PREPARING
    assert list(c.group().members) == [follower_id]
    assert leader_id not in c.group().members


def test_gc18_a_member_the_leader_left_out_gets_an_empty_assignment() -> None:
    c, (leader, follower) = completing_group(None, None)
    waiting = c.sync(follower, 2)
    assert c.sync(leader, 2, {leader: b"all", "stranger": b"x"}).reply.assignment == b"all"
    assert (waiting.error, waiting.reply.assignment) == (ErrorCode.NONE, b"")
    assert c.sync(leader, 2).reply.assignment == b"all"
    assert c.sync(follower, 2).reply.assignment == b""
    assert [record.generation for record in c.group_records()] == [0, 1, 1, 2, 2]


def test_gc23_what_is_checked_first() -> None:
    c, (leader, _) = completing_group(None, "i1")
    assert c.sync("who", 7, instance="i9", protocol="x").error is ErrorCode.UNKNOWN_MEMBER_ID
    assert c.sync("who", 7, instance="i1", protocol="x").error is ErrorCode.FENCED_INSTANCE_ID
    assert c.sync("who", 7, protocol="x").error is ErrorCode.UNKNOWN_MEMBER_ID
    assert c.sync(leader, 7, protocol="x").error is ErrorCode.ILLEGAL_GENERATION
    assert c.sync(leader, 2, protocol="x").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert c.sync(leader, 2, protocol_type="x").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    c.leave(("", "i1"))
    assert c.sync(leader, 2).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_gc23_a_group_being_deleted_is_not_available() -> None:
    c = Client()
    (member,) = c.stable_group(None)
    c.leave(member)
    c.auto_ack = False
    c.delete_group()
    assert c.sync(member, 2).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert c.heartbeat(member, 2) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert c.join().error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert c.leave(member).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert c.commit_error() is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_kip559_from_v5_on_the_protocol_has_to_be_named() -> None:
    c, (leader,) = completing_group(None)
    assert c.sync(leader, 2, protocol=None).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert c.sync(leader, 2, protocol_type=None).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert c.sync(leader, 2, {leader: b"A"}, version=4).reply.assignment == b"A"


def test_sync_without_a_group() -> None:
    c = Client()
    assert c.sync("m", 1).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert c.sync("m", 1, group="").error is ErrorCode.INVALID_GROUP_ID
    assert c.heartbeat("m", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert c.heartbeat("m", 1, group="") is ErrorCode.INVALID_GROUP_ID


def test_members_that_do_not_sync_are_out_at_the_rebalance_timeout() -> None:
    c, (leader, follower) = completing_group(None, None, session=60_000)
    c.sync(leader, 2, {})
    assert c.state is GroupState.STABLE
    c.advance(9_999)
    assert c.state is GroupState.STABLE
    c.advance(1)
    assert list(c.group().members) == [leader]
    assert c.heartbeat(leader, 2) is ErrorCode.REBALANCE_IN_PROGRESS
    assert c.heartbeat(follower, 2) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_leader_that_does_not_sync_is_out_at_the_rebalance_timeout_and_the_others_rejoin() -> None:
    c, (leader, follower) = completing_group(None, None, session=60_000)
    waiting = c.sync(follower, 2)
    c.advance(10_000)
    assert waiting.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert leader not in c.group().members


def test_absent_static_members_are_out_when_the_sync_phase_ends() -> None:
    c = Client()
    leader, _ = c.stable_group(None, "i1", session=60_000)
    c.join(leader, session=60_000)
    c.advance(10_000)
    assert "i1" in c.group().instances
    c.sync(leader, 2, {leader: b"A"})
    c.advance(10_000)
    assert "i1" not in c.group().instances
    assert c.state is GroupState.PREPARING


def test_once_all_have_synced_the_group_stays_stable() -> None:
    c = Client()
    ids = c.stable_group(None, None)
    for _ in range(20):
        c.advance(3_000)
        assert [c.heartbeat(member, 1) for member in ids] == [ErrorCode.NONE, ErrorCode.NONE]
    assert len(c.group_records()) == 3


def test_s9_a_repeated_sync_of_the_leader_is_written_once() -> None:
    c, (leader,) = completing_group(None)
    c.auto_ack = False
    first, second = c.sync(leader, 2, {leader: b"A"}), c.sync(leader, 2, {leader: b"B"})
    assert first.error is ErrorCode.REBALANCE_IN_PROGRESS
    c.ack()
    assert second.reply.assignment == b"A"
    assert not c.writes


def test_an_assignment_that_arrives_at_the_log_after_a_new_rebalance_began_is_not_handed_out() -> None:
    c, (leader, follower) = completing_group(None, None)
    c.auto_ack = False
    waiting = [c.sync(follower, 2), c.sync(leader, 2, {leader: b"L", follower: b"F"})]
    c.join(version=3)
    assert [call.error for call in waiting] == [ErrorCode.REBALANCE_IN_PROGRESS] * 2
    c.ack()
    assert c.state is GroupState.PREPARING
    joins = c.rejoin_all([leader, follower])
    c.ack()
    assert {call.reply.generation_id for call in joins} == {3}
    assert all(member.assignment == b"" for member in c.group().members.values())


def test_an_assignment_that_arrives_at_the_log_in_the_next_generation_is_not_taken_for_that_ones() -> None:
    c, (leader, follower) = completing_group(None, None)
    c.auto_ack = False
    c.sync(leader, 2, {leader: b"old", follower: b"old"})
    c.join(follower, protocols=(("range", b"changed"),))
    c.join(leader)
    c.ack()
    c.ack()
    waiting = c.sync(follower, 3)
    assert waiting.parked
    assert c.state is GroupState.COMPLETING
    c.sync(leader, 3, {leader: b"new", follower: b"new"})
    c.ack()
    assert waiting.reply.assignment == b"new"


@pytest.mark.parametrize(
    ("failure", "seen"),
    [
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.CORRUPT_MESSAGE, ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_an_assignment_that_cannot_be_stored_fails_every_sync_and_rebalances(
    failure: ErrorCode, seen: ErrorCode
) -> None:
    c, (leader, follower) = completing_group(None, None)
    c.fail_with = failure
    calls = [c.sync(follower, 2), c.sync(leader, 2, {leader: b"L", follower: b"F"})]
    assert [call.error for call in calls] == [seen, seen]
    assert c.state is GroupState.PREPARING
    c.fail_with = ErrorCode.NONE
    assert c.rejoin_all([leader, follower])[0].reply.generation_id == 3
    c.sync_all([leader, follower])


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_s12_a_silent_member_is_out_at_its_session_timeout_and_not_before() -> None:
    c = Client()
    ids = c.stable_group(None, None)
    start = c.now
    for ms in (1_000, 2_000, 4_999):
        c.advance_to(start + ms)
        assert c.heartbeat(ids[1], 1) is ErrorCode.NONE
    assert ids[0] in c.group().members
    c.advance_to(start + 5_000)
    assert ids[0] not in c.group().members
    assert c.state is GroupState.PREPARING
    c.advance_to(start + 9_998)
    assert ids[1] in c.group().members
    c.advance_to(start + 9_999)
    assert c.state is GroupState.EMPTY


def test_heartbeats_move_no_timer() -> None:
    c = Client()
    (member,) = c.stable_group(None)
    before = dict(c.timers)
    c.advance(1_000)
    c.heartbeat(member, 1)
    assert c.timers == before


def test_a_shorter_session_timeout_counts_from_the_next_sign_of_life() -> None:
    c = Client()
    leader, follower = c.stable_group(None, None, session=60_000)
    c.rejoin_all([leader], session=60_000)
    c.rejoin_all([follower], session=2_000)
    c.sync_all([leader, follower])
    c.advance(2_000)
    assert list(c.group().members) == [leader]


def test_a_parked_member_is_not_expired() -> None:
    c = Client()
    ids = c.stable_group(None, None, session=5_000, rebalance=60_000)
    join = c.join(ids[0], session=5_000, rebalance=60_000)
    for _ in range(10):
        c.advance(4_000)
        assert c.heartbeat(ids[1], 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert join.parked
    c.join(ids[1], session=5_000, rebalance=60_000)
    assert join.reply.generation_id == 2


def test_heartbeat_checks() -> None:
    c = Client()
    member, static = c.stable_group(None, "i1")
    assert c.heartbeat(member, 2) is ErrorCode.ILLEGAL_GENERATION
    assert c.heartbeat("who", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert c.heartbeat("who", 1, instance="i1") is ErrorCode.FENCED_INSTANCE_ID
    assert c.heartbeat(static, 1, instance="i9") is ErrorCode.UNKNOWN_MEMBER_ID
    assert c.heartbeat(static, 1, instance="i1") is ErrorCode.NONE


def test_heartbeats_are_answered_while_the_leader_assigns() -> None:
    c, (leader, follower) = completing_group(None, None)
    for _ in range(2):
        c.advance(4_000)
        assert [c.heartbeat(member, 2) for member in (leader, follower)] == [ErrorCode.NONE] * 2


# -- leaving -----------------------------------------------------------------------------------------------------------


def test_gc24_a_batch_leaves_with_an_error_for_each_entry() -> None:
    c = Client()
    dynamic, _, s2, _ = c.stable_group(None, "i1", "i2", "i3")
    pending = c.join().reply.member_id
    call = c.leave(("", "i1"), ("wrong", "i2"), "who", ("", "i9"), ("", ""), pending, (s2, "i2"), dynamic)
    assert [ErrorCode(member.error_code) for member in call.reply.members] == [
        ErrorCode.NONE,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.NONE,
    ]
    assert set(c.group().instances) == {"i3"}
    assert c.state is GroupState.PREPARING
    assert not c.group().pending_members


def test_gc24_leaving_an_unknown_group() -> None:
    c = Client()
    call = c.leave("a", ("", "i1"))
    assert [ErrorCode(m.error_code) for m in call.reply.members] == [ErrorCode.UNKNOWN_MEMBER_ID] * 2
    assert c.leave("a", version=2).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert c.leave("a", group="").error is ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("version", range(6))
def test_every_version_can_leave(version: int) -> None:
    c = Client()
    (member,) = c.stable_group(None)
    assert c.leave(member, version=version).error is ErrorCode.NONE
    assert c.state is GroupState.EMPTY
    assert c.leave(member, version=0).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_gc24_leaving_may_complete_the_join_phase() -> None:
    c = Client()
    ids = c.stable_group(None, None)
    join = c.join(ids[0])
    c.leave(ids[1])
    assert join.reply.generation_id == 2


def test_a_leaving_members_own_parked_requests_are_answered() -> None:
    c = Client()
    ids = c.stable_group(None, None)
    join = c.join(ids[0])
    c.leave(ids[0])
    assert join.error is ErrorCode.UNKNOWN_MEMBER_ID
    c.join(ids[1])
    waiting = c.sync(ids[1], 2, {})
    assert waiting.error is ErrorCode.NONE
    c, ids = completing_group(None, None)
    waiting = c.sync(ids[1], 2)
    c.leave(ids[1])
    assert waiting.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_last_members_leaving_is_durable_when_answered() -> None:
    c = Client()
    (member,) = c.stable_group(None)
    c.auto_ack = False
    call = c.leave(member)
    assert call.parked
    assert c.state is GroupState.EMPTY
    c.ack()
    assert call.error is ErrorCode.NONE
    assert c.group_records()[-1].generation == 2


def test_a_pending_id_that_leaves_a_stable_group_does_not_disturb_it() -> None:
    c = Client()
    c.stable_group(None)
    pending = c.join().reply.member_id
    c.leave(pending)
    assert c.state is GroupState.STABLE


def test_leaving_while_assignments_are_awaited_rebalances() -> None:
    c, ids = completing_group(None, None)
    waiting = c.sync(ids[0], 2) if c.group().leader_id != ids[0] else c.sync(ids[1], 2)
    c.leave(ids[0])
    assert waiting.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert c.state is GroupState.PREPARING
