"""Static membership: KIP-345, KIP-814 and the worked cases about restarts."""

from __future__ import annotations

import pytest

from roster.wire import ErrorCode
from roster.wire.consumer.messages import Subscription, TopicPartitions, encode_subscription
from tests.coordinator.coordinator_harness import Client, GroupState, subscription


def test_s13_a_restart_while_stable_causes_no_rebalance_and_is_written_before_it_is_answered() -> None:
    c = Client()
    leader, old = c.stable_group("l", "f")
    c.auto_ack = False
    join = c.join(instance="f", client_id="restarted")
    assert join.parked
    assert c.state is GroupState.STABLE
    c.ack()
    new = join.reply.member_id
    assert (join.reply.generation_id, join.reply.leader, join.reply.members) == (1, leader, [])
    assert not join.reply.skip_assignment
    record = c.group_records()[-1]
    assert {m.member_id: (m.group_instance_id, m.client_id, m.assignment) for m in record.members} == {
        leader: ("l", "client", leader.encode()),
        new: ("f", "restarted", old.encode()),
    }
    assert c.sync(new, 1, instance="f").reply.assignment == old.encode()
    assert c.heartbeat(leader, 1, instance="l") is ErrorCode.NONE


def test_the_old_id_of_a_restarted_member_is_fenced() -> None:
    c = Client()
    _, old = c.stable_group("l", "f")
    c.join(instance="f")
    assert c.heartbeat(old, 1, instance="f") is ErrorCode.FENCED_INSTANCE_ID
    assert c.sync(old, 1, instance="f").error is ErrorCode.FENCED_INSTANCE_ID
    assert c.join(old, instance="f").error is ErrorCode.FENCED_INSTANCE_ID
    assert c.commit_error(old, 1, instance="f") is ErrorCode.FENCED_INSTANCE_ID
    assert c.heartbeat(old, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_kip814_a_restarted_leader_leads_without_assigning_from_v9_on() -> None:
    c = Client()
    c.stable_group("l", "f")
    reply = c.join(instance="l", version=9).reply
    assert reply.leader == reply.member_id
    assert reply.skip_assignment
    assert len(reply.members) == 2
    assert c.sync(reply.member_id, 1, instance="l").reply.assignment == b"l-id1"


@pytest.mark.parametrize("version", [5, 8])
def test_up_to_v8_a_restarted_leader_is_given_the_old_leaders_id(version: int) -> None:
    c = Client()
    old, _ = c.stable_group("l", "f")
    reply = c.join(instance="l", version=version).reply
    assert (reply.leader, reply.members) == (old, [])
    assert reply.member_id != old
    assert c.group().leader_id == reply.member_id


def test_a_restarted_leader_that_joins_again_starts_a_rebalance() -> None:
    c = Client()
    c.stable_group("l", "f")
    new = c.join(instance="l").reply.member_id
    assert c.join(new, instance="l").parked


def test_a_restart_that_owns_other_partitions_keeps_the_generation() -> None:
    """Only the topics decide: a process that starts owns nothing, whatever the one before it said."""
    c = Client()
    owning = Subscription(topics=["t"], owned_partitions=[TopicPartitions(topic="t", partitions=[1])], generation_id=1)
    c.stable_group("l", "f", protocols=(("range", encode_subscription(owning)),))
    assert c.join(instance="f").reply.generation_id == 1
    assert c.group_records()[-1].members[1].subscription == subscription("t")


def test_a_restart_with_metadata_of_another_protocol_type_keeps_the_generation() -> None:
    c = Client()
    calls = [c.join(instance=i, protocol_type="connect", protocols=(("range", b"one"),)) for i in ("l", "f")]
    c.advance(6_000)
    leader, follower = (call.reply.member_id for call in calls)
    c.sync(leader, 1, {leader: b"L", follower: b"F"}, instance="l", protocol_type="connect")
    assert c.join(instance="f", protocol_type="connect", protocols=(("range", b"two"),)).reply.generation_id == 1


def test_a_restart_that_cannot_be_written_is_undone() -> None:
    c = Client()
    leader, old = c.stable_group("l", "f")
    c.fail_with = ErrorCode.REQUEST_TIMED_OUT
    protocols = (("range", subscription("t")), ("sticky", b"new"))
    join = c.join(instance="f", protocols=protocols, session=9_000, rebalance=9_000, client_id="new")
    assert join.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    member = c.group().members[old]
    assert (member.session_timeout_ms, member.rebalance_timeout_ms, member.client_id) == (5_000, 10_000, "client")
    assert member.protocols == (("range", subscription("t")),)
    assert c.heartbeat(old, 1, instance="f") is ErrorCode.NONE
    c.fail_with = ErrorCode.NONE
    assert c.join(instance="f").reply.generation_id == 1
    c.advance(5_000)
    assert leader not in c.group().members


def test_a_rebalance_that_begins_before_the_restart_is_written_answers_it() -> None:
    c = Client()
    leader, _ = c.stable_group("l", "f")
    c.auto_ack = False
    restart = c.join(instance="f")
    c.join(leader, instance="l")
    c.ack(ErrorCode.REQUEST_TIMED_OUT)
    assert restart.parked
    c.ack()
    assert restart.reply.generation_id == 2
    assert restart.reply.member_id in c.group().members
    assert c.state is GroupState.COMPLETING


def test_gc15_a_restart_while_completing_gives_a_new_generation_at_once() -> None:
    c = Client()
    first = c.join(instance="i1")
    c.advance(3_000)
    assert c.state is GroupState.COMPLETING
    sync = c.sync("who", 1)
    assert sync.error is ErrorCode.UNKNOWN_MEMBER_ID
    again = c.join(instance="i1")
    assert again.reply.generation_id == 2
    assert again.reply.member_id != first.reply.member_id
    assert list(c.group().members) == [again.reply.member_id]


def test_gc15_a_restart_while_preparing_fences_the_parked_join() -> None:
    c = Client()
    leader, follower = c.stable_group("l", "f")
    parked = c.join(follower, instance="f", protocols=(("range", b"new"),))
    duplicate = c.join(instance="f")
    assert parked.error is ErrorCode.FENCED_INSTANCE_ID
    assert parked.reply.generation_id == -1
    assert duplicate.parked
    c.join(leader, instance="l")
    assert duplicate.reply.generation_id == 2


def test_a_restart_fences_the_parked_sync() -> None:
    c = Client()
    leader, follower = c.stable_group("l", "f")
    c.join(leader, instance="l")
    c.join(follower, instance="f")
    waiting = c.sync(follower, 2, instance="f")
    restart = c.join(instance="f")
    assert waiting.error is ErrorCode.FENCED_INSTANCE_ID
    assert restart.parked
    assert c.join(leader, instance="l").reply.generation_id == 3


def test_df5_a_member_replaced_before_its_sync_leaves_nothing_pending() -> None:
    c = Client()
    leader, follower = c.stable_group("l", "f", session=60_000)
    c.rejoin_all([leader, follower], session=60_000)
    c.sync(leader, 2, {leader: b"L", follower: b"F"}, instance="l")
    assert c.state is GroupState.STABLE
    restart = c.join(instance="f", session=60_000).reply
    assert (restart.generation_id, restart.skip_assignment) == (2, False)
    assert c.sync(restart.member_id, 2, instance="f").reply.assignment == b"F"
    assert not c.group().pending_sync_members
    c.advance(20_000)
    assert c.state is GroupState.STABLE
    assert c.group().generation == 2


def test_a_static_member_is_out_when_its_session_ends() -> None:
    c = Client()
    leader, _ = c.stable_group("l", "f")
    c.advance(4_000)
    c.heartbeat(leader, 1, instance="l")
    c.advance(1_000)
    assert set(c.group().instances) == {"l"}
    assert c.state is GroupState.PREPARING
    assert c.join(instance="f").parked


def test_a_restarted_member_is_watched_under_its_new_id() -> None:
    c = Client()
    leader, _ = c.stable_group("l", "f")
    c.advance(4_000)
    c.heartbeat(leader, 1, instance="l")
    new = c.join(instance="f").reply.member_id
    c.advance(4_000)
    c.heartbeat(leader, 1, instance="l")
    assert new in c.group().members
    c.advance(1_000)
    assert new not in c.group().members


def test_an_instance_id_with_a_foreign_member_id_cannot_join() -> None:
    c = Client()
    leader, _ = c.stable_group("l", "f")
    assert c.join(leader, instance="f").error is ErrorCode.FENCED_INSTANCE_ID
    assert c.join(leader, instance="x").error is ErrorCode.UNKNOWN_MEMBER_ID
    pending = c.join().reply.member_id
    assert c.join(pending, instance="x").error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_rolling_bounce_of_static_members_keeps_every_assignment() -> None:
    c = Client()
    instances = ["a", "b", "c", "d"]
    old = dict(zip(instances, c.stable_group(*instances), strict=True))
    for instance in instances:
        reply = c.join(instance=instance).reply
        assert c.sync(reply.member_id, 1, instance=instance).reply.assignment == old[instance].encode()
    assert c.group().generation == 1
    assert c.state is GroupState.STABLE
