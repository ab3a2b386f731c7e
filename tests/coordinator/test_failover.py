"""Coordinator failures at each step of a rebalance, and what else the client-side assignment proposal asks for.

Tests are named after the sentences of the proposal ("Coordinator State Machine", "Handling Coordinator Failures") that
they check.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from roster.wire import ErrorCode
from roster.wire.consumer.messages import FAILURE_MAGIC, failure_assignment
from roster.wire.messages import DescribeGroupsRequest
from tests.coordinator.coordinator_harness import CONFIG, GROUP, Call, Client, GroupState, subscription

TWO = (("range", subscription("t")), ("roundrobin", subscription("t")))
RANGE_ONLY = TWO[:1]
CHANGED = (("range", subscription("t", "u")),)


def joining_group(*instances: str | None) -> tuple[Client, list[str], list[Call]]:
    """A stable group that joins again; the record of its second generation is not durable yet."""
    c = Client()
    ids = c.stable_group(*instances)
    c.auto_ack = False
    return c, ids, c.rejoin_all(ids)


# -- step 1: before the generation is persisted ------------------------------------------------------------------------


def test_group_metadata_is_persisted_before_the_responses_to_join_group() -> None:
    c, (leader, follower), joins = joining_group(None, None)
    assert all(call.parked for call in joins)
    c.ack()
    assert [call.reply.generation_id for call in joins] == [2, 2]
    record = c.group_records()[-1]
    assert (record.generation, record.protocol, record.leader) == (2, "range", leader)
    assert [(m.member_id, m.subscription, m.assignment) for m in record.members] == [
        (leader, subscription("t"), b""),
        (follower, subscription("t"), b""),
    ]


def test_before_group_metadata_has_been_persisted_all_members_resend_their_join_group() -> None:
    c, ids, joins = joining_group(None, "i")
    c.fail_over()
    assert all(call.parked for call in joins)
    assert (c.state, c.group().generation) == (GroupState.STABLE, 1)
    c.auto_ack = True
    follower, leader = c.rejoin_all(ids[::-1])
    assert (follower.reply.generation_id, leader.parked) == (1, True)
    assert c.heartbeat(ids[1], 1, instance="i") is ErrorCode.REBALANCE_IN_PROGRESS
    c.join(ids[1], instance="i")
    assert leader.reply.generation_id == 2
    c.sync_all(ids)


def test_before_this_phase_completes_the_old_generation_can_commit_offsets() -> None:
    """Also while the new generation is being written."""
    c, (_, follower), joins = joining_group(None, None)
    assert c.heartbeat(follower, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    commit = c.commit(follower, 1)
    c.ack()
    c.ack()
    assert commit.reply.topics[0].partitions[0].error_code == ErrorCode.NONE
    assert joins[0].reply.generation_id == 2
    assert c.commit_error(follower, 1) is ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize("change", ["join", "leave", "restart", "expire", "change metadata"])
def test_members_that_come_or_go_while_the_generation_is_written_are_in_its_next_record(change: str) -> None:
    c, (_, follower), joins = joining_group(None, "i")
    match change:
        case "join":
            extra = c.join(version=3)
        case "leave":
            c.leave((follower, "i"))
        case "restart":
            extra = c.join(instance="i")
        case "expire":
            extra = c.join(version=3)
            c.advance(CONFIG.new_member_join_timeout_ms)
        case "change metadata":
            extra = c.join(follower, instance="i", protocols=CHANGED)
    assert len(c.writes) == 1, "one record at a time"
    c.ack()
    assert joins[0].parked
    c.ack()
    assert joins[0].reply.generation_id == 2
    assert not c.writes
    assert {m.member_id for m in c.group_records()[-1].members} == set(c.group().members)
    assert {m.member_id for m in joins[0].reply.members} == set(c.group().members)
    if change in {"join", "restart", "change metadata"}:
        assert extra.reply.generation_id == 2


def test_the_last_member_that_leaves_while_the_generation_is_written_leaves_an_empty_group() -> None:
    c, (member,), (join,) = joining_group(None)
    c.leave(member)
    assert join.error is ErrorCode.UNKNOWN_MEMBER_ID
    c.ack()
    assert c.state is GroupState.EMPTY
    c.ack()
    c.fail_over()
    assert c.state is GroupState.EMPTY


def test_a_generation_that_cannot_be_written_is_announced_to_nobody() -> None:
    c, (leader, follower), joins = joining_group(None, "i")
    c.ack(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert [call.error for call in joins] == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2
    assert c.state is GroupState.PREPARING
    assert c.heartbeat(follower, 1, instance="i") is ErrorCode.REBALANCE_IN_PROGRESS
    c.auto_ack = True
    joins = c.rejoin_all([leader, follower])
    assert {call.reply.generation_id for call in joins} == {2}
    c.sync_all([leader, follower])


def test_members_that_stay_away_after_a_failed_write_are_out_when_the_join_phase_ends() -> None:
    c, (leader, follower), _ = joining_group(None, None)
    c.ack(ErrorCode.REQUEST_TIMED_OUT)
    c.auto_ack = True
    again = c.join(leader)
    c.advance(4_999)
    assert again.parked
    c.advance(1)
    assert again.reply.generation_id == 2
    assert list(c.group().members) == [leader]
    assert c.heartbeat(follower, 1) is ErrorCode.UNKNOWN_MEMBER_ID


# -- step 2: after the generation is persisted, before every member has its response -----------------------------------


def persisted_group(*instances: str | None, **options: object) -> tuple[Client, list[str]]:
    """A group that failed over after its second generation was persisted; no member has its response."""
    c = Client()
    ids = c.stable_group(*instances, **options)  # type: ignore[arg-type]
    c.rejoin_all(ids, **options)
    c.fail_over()
    return c, ids


def test_after_group_metadata_has_been_persisted_the_group_awaits_sync() -> None:
    c, (leader, follower) = persisted_group(None, None)
    assert (c.state, c.group().generation, c.group().leader_id) == (GroupState.COMPLETING, 2, leader)
    assert c.heartbeat(follower, 2) is ErrorCode.NONE
    assert c.commit_error(follower, 2) is ErrorCode.REBALANCE_IN_PROGRESS


def test_members_that_resend_their_join_group_get_the_generation_that_was_persisted() -> None:
    c, ids = persisted_group(None, "i", protocols=TWO)
    joins = c.rejoin_all(ids, protocols=TWO)
    assert [call.reply.generation_id for call in joins] == [2, 2]
    assert [m.member_id for m in joins[0].reply.members] == ids
    c.sync_all(ids)
    assert c.group().generation == 2


def test_a_member_that_does_not_know_of_the_generation_is_asked_to_rejoin() -> None:
    """Its partitions and its work in flight are not lost, as they would be with ILLEGAL_GENERATION."""
    c, (leader, follower) = persisted_group(None, None)
    assert c.heartbeat(follower, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert c.commit_error(follower, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert c.heartbeat(follower, 0) is ErrorCode.ILLEGAL_GENERATION
    assert c.join(follower).reply.generation_id == 2
    c.join(leader, protocols=CHANGED)
    assert c.state is GroupState.PREPARING
    assert c.commit_error(follower, 1) is ErrorCode.REBALANCE_IN_PROGRESS


def test_once_the_assignment_is_stored_the_generation_before_is_illegal() -> None:
    c, (leader, follower) = persisted_group(None, None)
    c.sync(leader, 2, {leader: b"L", follower: b"F"})
    assert c.commit_error(follower, 1) is ErrorCode.ILLEGAL_GENERATION


def test_a_join_group_aborts_an_active_synchronization_and_all_members_rejoin() -> None:
    c, (leader, follower) = persisted_group(None, None)
    c.auto_ack = False
    sync = c.sync(leader, 2, {leader: b"L", follower: b"F"})
    join = c.join(follower, protocols=CHANGED)
    assert sync.error is ErrorCode.REBALANCE_IN_PROGRESS
    c.ack()
    assert c.state is GroupState.PREPARING
    c.join(leader)
    c.ack()
    assert join.reply.generation_id == 3


def test_members_that_do_not_come_back_after_a_failover_are_timed_out() -> None:
    c, (leader, follower) = persisted_group(None, None)
    sync = c.sync(follower, 2)
    c.advance(4_000)
    assert c.heartbeat(follower, 2) is ErrorCode.NONE
    c.advance(1_000)
    assert sync.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert list(c.group().members) == [follower]
    assert leader not in c.group().members


def test_the_wait_for_synchronization_ends_after_a_failover_too() -> None:
    c, (leader, follower) = persisted_group(None, None, session=60_000)
    sync = c.sync(follower, 2)
    c.advance(10_000)
    assert sync.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert leader not in c.group().members


def test_a_loaded_group_over_the_size_limit_that_awaits_sync_rebalances() -> None:
    c, ids = persisted_group(None, None, None)
    c.config = replace(CONFIG, max_group_size=2)
    c.fail_over()
    assert c.state is GroupState.PREPARING
    assert c.rejoin_all(ids)[0].reply.generation_id == 3


def test_the_record_of_a_generation_is_not_taken_for_an_assignment_of_nothing() -> None:
    """A leader may give nothing to anyone; such a group is Stable after a failover as well."""
    c = Client()
    (leader,) = c.stable_group(None)
    c.join(leader)
    c.sync(leader, 2, {})
    c.fail_over()
    assert c.state is GroupState.STABLE
    assert c.sync(leader, 2).reply.assignment == b""


# -- step 3: before the assignment is persisted ------------------------------------------------------------------------


@pytest.mark.parametrize("leader_first", [False, True])
def test_before_a_pending_synchronization_has_been_persisted_all_members_re_initiate_the_sync_group(
    leader_first: bool,
) -> None:
    c = Client()
    ids = c.stable_group(None, "i")
    c.rejoin_all(ids)
    c.auto_ack = False
    given = {ids[0]: b"L", ids[1]: b"F"}
    lost = [c.sync(ids[1], 2, instance="i"), c.sync(ids[0], 2, given)]
    c.fail_over()
    c.auto_ack = True
    assert all(call.parked for call in lost)
    if leader_first:
        calls = [c.sync(ids[0], 2, given), c.sync(ids[1], 2, instance="i")]
    else:
        calls = [c.sync(ids[1], 2, instance="i"), c.sync(ids[0], 2, given)][::-1]
    assert [call.reply.assignment for call in calls] == [b"L", b"F"]
    assert (c.state, c.group().generation) == (GroupState.STABLE, 2)


def test_several_failovers_before_the_assignment_is_persisted_change_nothing() -> None:
    c, (leader, follower) = persisted_group(None, None)
    for _ in range(5):
        c.sync(follower, 2)
        c.fail_over()
        assert c.heartbeat(follower, 2) is ErrorCode.NONE
    waiting = c.sync(follower, 2)
    c.sync(leader, 2, {leader: b"L", follower: b"F"})
    assert waiting.reply.assignment == b"F"


# -- step 4: after the assignment is persisted -------------------------------------------------------------------------


def test_after_the_metadata_has_been_persisted_the_coordinator_returns_that_members_state_immediately() -> None:
    c = Client()
    ids = c.stable_group(None, None)
    c.rejoin_all(ids)
    c.sync(ids[0], 2, {ids[0]: b"L", ids[1]: b"F"})
    c.fail_over()
    assert [c.sync(member, 2).reply.assignment for member in ids] == [b"L", b"F"]
    assert (c.state, c.group().generation) == (GroupState.STABLE, 2)


# -- static members ----------------------------------------------------------------------------------------------------


def test_a_static_member_that_restarted_during_a_rebalance_resends_its_join_group_to_the_new_coordinator() -> None:
    c = Client()
    one, _ = c.stable_group("i0", "i1", session=60_000)
    c.join(one, instance="i0", session=60_000)
    again = c.join(instance="i1", session=60_000).reply.member_id
    c.fail_over()
    assert c.join(again, instance="i1", session=60_000).reply.generation_id == 2


@pytest.mark.parametrize(("state", "written"), list(product(("preparing", "completing"), (False, True))))
def test_a_restarted_static_member_has_its_new_id_only_once_that_is_persisted(state: str, written: bool) -> None:
    c = Client()
    one, two = c.stable_group("i0", "i1", session=60_000)
    c.join(one, instance="i0", session=60_000)
    if state == "completing":
        c.join(two, instance="i1", session=60_000)
    c.auto_ack = False
    restart = c.join(instance="i1", session=60_000)
    if state == "completing":
        c.join(one, instance="i0", session=60_000)
    assert restart.parked
    if written:
        c.ack()
    c.fail_over()
    c.auto_ack = True
    if written:
        again = c.join(restart.reply.member_id, instance="i1", session=60_000)
    else:  # it knows of no id, and starts anew
        again = c.join(instance="i1", session=60_000)
    c.join(one, instance="i0", session=60_000)
    assert again.error is ErrorCode.NONE
    beat = c.heartbeat(again.reply.member_id, c.group().generation, instance="i1")
    assert beat in {ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS}


# -- what the document asks for beyond Kafka ---------------------------------------------------------------------------


def test_upon_transition_to_awaiting_sync_the_coordinator_begins_a_timer_for_each_member() -> None:
    """A follower that sent its SyncGroup and died is out at its session timeout."""
    c = Client()
    calls = [c.join(version=3, rebalance=60_000) for _ in range(2)]
    while calls[0].parked:
        c.advance(3_000)
    leader, follower = (call.reply.member_id for call in calls)
    c.sync(follower, 1)
    c.advance(4_000)
    c.heartbeat(leader, 1)
    c.advance(999)
    assert follower in c.group().members
    c.advance(1)
    assert follower not in c.group().members
    assert c.heartbeat(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_follower_on_an_open_connection_may_wait_longer_than_its_session() -> None:
    """Many clients send no heartbeats while their SyncGroup waits, and a leader may need long."""
    c = Client()
    ids = c.stable_group(None, None, rebalance=60_000)
    c.rejoin_all(ids, rebalance=60_000)
    waiting = c.sync(ids[1], 2)
    c.connected.add(waiting.token)
    for _ in range(10):
        c.advance(4_000)
        assert c.heartbeat(ids[0], 2) is ErrorCode.NONE
    assert waiting.parked
    c.connected.clear()
    c.advance(4_000)
    c.heartbeat(ids[0], 2)
    c.advance(1_000)
    assert ids[1] not in c.group().members


@pytest.mark.parametrize("instance", [None, "i"])
def test_a_member_is_compared_with_the_protocols_used_by_the_rest_of_the_group(instance: str | None) -> None:
    """One that is alone may come back with another strategy."""
    c = Client()
    (member,) = c.stable_group(instance)
    other = (("sticky", subscription("t")),)
    again = c.join("" if instance else member, instance=instance, protocols=other)
    assert (again.reply.generation_id, again.reply.protocol_name) == (2, "sticky")
    c.sync_all([again.reply.member_id], protocol="sticky")


def test_a_member_that_supports_no_protocol_of_the_rest_of_the_group_is_rejected() -> None:
    c = Client()
    ids = c.stable_group(None, "i", protocols=TWO)
    sticky = (("sticky", subscription("t")),)
    assert c.join(ids[0], protocols=sticky).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert c.join(instance="i", protocols=sticky).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert c.state is GroupState.STABLE
    assert c.join(instance="i", protocols=TWO[1:]).parked
    assert c.join(ids[0], protocols=TWO).reply.protocol_name == "roundrobin"


def test_a_static_member_that_changes_its_subscription_forces_the_group_to_be_recreated() -> None:
    c = Client()
    leader, _ = c.stable_group("l", "f")
    again = c.join(instance="f", protocols=CHANGED)
    assert again.parked
    assert c.heartbeat(leader, 1, instance="l") is ErrorCode.REBALANCE_IN_PROGRESS
    c.join(leader, instance="l")
    assert again.reply.generation_id == 2
    c.sync_all([leader, again.reply.member_id])


def test_an_error_that_the_leader_transmits_in_sync_group_is_propagated_to_the_other_members() -> None:
    """The generation becomes invalid, and nothing of it is stored."""
    c = Client()
    ids = c.stable_group(None, None, None)
    c.rejoin_all(ids)
    waiting = c.sync(ids[1], 2)
    explanation = failure_assignment("boom")
    leader = c.sync(ids[0], 2, dict.fromkeys(ids, explanation))
    for call in (waiting, leader):
        assert (call.error, call.reply.assignment) == (ErrorCode.UNKNOWN_SERVER_ERROR, explanation)
    assert c.state is GroupState.PREPARING
    assert c.heartbeat(ids[1], 2) is ErrorCode.REBALANCE_IN_PROGRESS
    assert c.sync(ids[2], 2).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert not any(member.assignment for member in c.group_records()[-1].members)
    assert {call.reply.generation_id for call in c.rejoin_all(ids)} == {3}
    c.sync_all(ids)


@pytest.mark.parametrize("data", [FAILURE_MAGIC, b"\x00\x00" + FAILURE_MAGIC, failure_assignment("x")[:-1]])
def test_bytes_that_only_look_like_a_failure_are_an_assignment(data: bytes) -> None:
    c = Client()
    (leader,) = c.stable_group(None)
    c.join(leader)
    assert c.sync(leader, 2, {leader: data}).reply.assignment == data


# -- protocols after a failover ----------------------------------------------------------------------------------------


def test_after_a_failover_a_neighbour_with_another_of_the_members_protocols_is_let_in() -> None:
    """The log has each member's metadata for the selected protocol only."""
    c = Client()
    ids = c.stable_group(None, None, protocols=TWO)
    c.fail_over()
    new = c.join(version=3, protocols=TWO[1:])
    assert new.parked
    c.rejoin_all(ids, protocols=TWO)
    assert (new.reply.generation_id, new.reply.protocol_name) == (2, "roundrobin")
    assert c.join(version=3, protocols=RANGE_ONLY).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_after_a_failover_a_neighbour_without_a_common_protocol_is_rejected_when_the_members_have_rejoined() -> None:
    c = Client()
    ids = c.stable_group(None, "i", protocols=RANGE_ONLY)
    c.fail_over()
    new = c.join(version=3, protocols=TWO[1:])
    assert new.parked
    joins = c.rejoin_all(ids, protocols=RANGE_ONLY)
    assert new.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert {call.reply.protocol_name for call in joins} == {"range"}
    assert set(c.group().members) == set(ids)


def test_after_a_failover_a_static_member_that_returns_with_another_protocol_has_the_group_decide() -> None:
    c = Client()
    leader, _ = c.stable_group(None, "i", protocols=TWO)
    c.fail_over()
    again = c.join(instance="i", protocols=TWO[1:])
    assert again.parked
    assert c.join(leader, protocols=TWO).reply.protocol_name == "roundrobin"
    assert again.reply.generation_id == 2


def test_a_group_that_awaits_sync_after_a_failover_is_described_as_such() -> None:
    c, _ = persisted_group(None, None)
    described = c.send(DescribeGroupsRequest(groups=[GROUP]), 5).reply.groups[0]
    assert described.group_state == "CompletingRebalance"
    assert len(described.members) == 2
