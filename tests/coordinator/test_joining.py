"""The join phase: worked cases of section 8, Apache Kafka's rules, and the tie rule of DF-6."""

from __future__ import annotations

import pytest

from roster.coordinator import CoordinatorConfig
from roster.wire import ErrorCode
from tests.coordinator.coordinator_harness import CONFIG, GROUP, Client, GroupState, subscription, with_config


def test_gc2_a_single_member_waits_for_the_initial_delay() -> None:
    c = Client()
    join = c.join(version=3)
    assert c.group_records()[0].generation == 0  # the new, empty group
    assert c.group_records()[0].protocol_type == ""
    c.advance_to(1_500)
    assert join.parked
    c.advance_to(2_999)
    assert join.parked
    c.advance_to(3_000)
    assert join.reply.generation_id == 1
    assert join.reply.leader == join.reply.member_id
    assert [member.member_id for member in join.reply.members] == [join.reply.member_id]
    assert c.state is GroupState.COMPLETING
    _, second = c.group_records()
    assert (second.generation, second.leader) == (1, join.reply.member_id), "stored before it is announced"


def test_gc4_the_initial_delay_is_extended_by_newcomers_and_capped_by_the_rebalance_timeout() -> None:
    c = Client()
    calls = [c.join(version=3, rebalance=6_000), c.join(version=3, rebalance=6_000)]
    c.advance_to(3_001)
    calls.append(c.join(version=3, rebalance=6_000))
    c.advance_to(5_999)
    assert all(call.parked for call in calls)
    c.advance_to(6_000)
    assert [call.reply.generation_id for call in calls] == [1, 1, 1]
    assert len({call.reply.leader for call in calls}) == 1


def test_the_initial_delay_is_not_extended_without_newcomers() -> None:
    c = Client()
    first = c.join(version=3, rebalance=60_000)
    c.advance_to(2_000)
    second = c.join(version=3, rebalance=60_000)
    c.advance_to(5_999)
    assert first.parked
    c.advance_to(6_000)
    assert first.reply.leader == second.reply.leader == first.reply.member_id


def test_no_initial_delay_completes_the_first_join_at_once() -> None:
    c = with_config(initial_rebalance_delay_ms=0)
    assert c.join(version=3).reply.generation_id == 1


def test_gc7_a_newcomers_parked_join_fails_after_the_new_member_timeout() -> None:
    c = Client()
    (m1,) = c.stable_group(None, session=305_000, rebalance=600_000)
    start = c.now
    join = c.join(version=3, session=305_000, rebalance=600_000)
    for second in range(30, 300, 30):
        c.advance_to(start + second * 1_000)
        assert c.heartbeat(m1, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    c.advance_to(start + 299_999)
    assert join.parked
    c.advance_to(start + 300_000)
    assert join.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert list(c.group().members) == [m1]


def test_gc8_a_dynamic_member_that_does_not_rejoin_is_out() -> None:
    c = Client()
    (leader,) = c.stable_group(None, session=1_000, rebalance=1_000)
    start = c.now
    x = c.join(version=3, session=1_000, rebalance=1_000)
    assert c.state is GroupState.PREPARING
    c.advance_to(start + 1_000)
    assert x.reply.generation_id == 2
    assert x.reply.leader == x.reply.member_id
    assert leader not in c.group().members


def test_gc10_absent_static_members_keep_the_join_phase_open_and_the_generation() -> None:
    c = Client()
    ids = c.stable_group("i1", "i2", session=100_000)
    start = c.now
    c.join(ids[0], instance="i1", protocols=(("range", b"changed"),), session=100_000)
    c.leave(("", "i1"))  # the one that had rejoined goes; nobody has joined now
    assert c.join(instance="i1", session=100_000).parked
    c.leave(("", "i1"))
    for rounds in range(1, 4):
        c.advance_to(start + rounds * 10_000)
        assert c.state is GroupState.PREPARING
        assert c.group().generation == 1
    back = [c.join(ids[1], instance="i2", session=100_000)]
    assert back[0].reply.generation_id == 2


def test_df7_absent_static_members_leave_the_join_phase_when_their_sessions_end() -> None:
    c = Client()
    ids = c.stable_group("i1", "i2", session=25_000)
    start = c.now
    c.join(ids[0], instance="i1", protocols=(("range", b"changed"),), session=25_000)
    c.leave(("", "i1"))
    c.advance_to(start + 20_000)
    assert c.heartbeat(ids[1], 1, instance="i2") is ErrorCode.REBALANCE_IN_PROGRESS
    c.advance_to(start + 44_999)
    assert c.state is GroupState.PREPARING
    c.advance_to(start + 45_000)
    assert c.state is GroupState.EMPTY
    assert c.group().generation == 2
    assert c.group_records()[-1].members == []


def test_gc14_a_static_members_new_protocols_start_a_rebalance_and_absent_ones_stay_listed() -> None:
    both = (("range", subscription("t")), ("rr", subscription("t")))
    c = Client()
    leader, follower = c.stable_group("l", "f", protocols=both, session=60_000)
    start = c.now
    join = c.join(instance="f", protocols=both[1:], session=60_000)
    assert c.state is GroupState.PREPARING
    c.advance_to(start + 10_000)
    assert join.reply.member_id not in {leader, follower}
    assert join.reply.leader == join.reply.member_id
    assert join.reply.protocol_name == "rr"
    assert join.reply.generation_id == 2
    assert {member.group_instance_id for member in join.reply.members} == {"l", "f"}


def test_gc19_a_pending_id_blocks_the_join_phase_until_its_owner_joins() -> None:
    c, joins, pending = rebalance_with_pending_member()
    assert all(call.parked for call in joins)
    third = c.join(pending)
    assert [call.reply.generation_id for call in (*joins, third)] == [2, 2, 2]
    assert len(joins[0].reply.members) == 3


def test_gc19_a_pending_id_blocks_the_join_phase_until_it_expires() -> None:
    c, joins, _ = rebalance_with_pending_member()
    c.advance(4_999)
    assert all(call.parked for call in joins)
    c.advance(1)
    assert [call.reply.generation_id for call in joins] == [2, 2]
    assert len(joins[0].reply.members) == 2


def test_gc19_a_pending_id_blocks_the_join_phase_until_it_leaves() -> None:
    c, joins, pending = rebalance_with_pending_member()
    assert not c.leave(pending).reply.members[0].error_code
    assert [call.reply.generation_id for call in joins] == [2, 2]


def rebalance_with_pending_member() -> tuple[Client, list, str]:
    c = Client()
    ids = c.stable_group(None, None)
    pending = c.join().reply.member_id
    return c, c.rejoin_all(ids), pending


def test_gc21_a_heartbeat_in_the_join_phase_renews_the_session_once() -> None:
    c = Client()
    (member,) = c.stable_group(None)
    start = c.now
    new = c.join(version=3, session=60_000)
    c.advance_to(start + 2_500)
    assert c.heartbeat(member, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    c.advance_to(start + 7_500)
    assert c.heartbeat(member, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    c.advance_to(start + 10_000)
    assert new.reply.generation_id == 2
    assert len(new.reply.members) == 1


def test_gc22_a_joiner_that_vanished_after_the_join_phase_is_out_when_its_session_ends() -> None:
    c = Client()
    c.join(version=3, session=305_000, rebalance=600_000)
    c.advance_to(3_000)
    assert c.state is GroupState.COMPLETING
    c.advance_to(3_000 + 304_999)
    assert c.state is GroupState.COMPLETING
    c.advance_to(3_000 + 305_000)
    assert c.state is GroupState.EMPTY
    assert c.group().generation == 2
    last = c.group_records()[-1]
    assert (last.generation, last.protocol, last.leader, last.members) == (2, None, None, [])


def test_redpanda_25270_the_last_member_expires_while_an_id_is_pending() -> None:
    c = Client()
    c.stable_group(None)
    c.advance(3_000)
    pending = c.join().reply.member_id
    c.advance(2_000)
    assert c.state is GroupState.EMPTY
    assert c.group().generation == 2
    join = c.join(pending)
    c.advance(3_000)
    assert join.reply.generation_id == 3


# -- ids ---------------------------------------------------------------------------------------------------------------


def test_a_dynamic_newcomer_gets_its_id_first_from_v4_on() -> None:
    c = Client()
    call = c.join(client_id="app")
    assert call.error is ErrorCode.MEMBER_ID_REQUIRED
    assert call.reply.member_id == "app-id1"
    assert c.join(version=3, client_id="app").parked


def test_a_static_newcomer_is_named_after_its_instance() -> None:
    c = Client()
    c.join(instance="i1")
    assert list(c.group().members) == ["i1-id1"]


def test_s9_a_lost_member_id_leaves_nothing_behind_after_its_session_timeout() -> None:
    c = Client()
    for _ in range(5):
        c.join()
    assert len(c.group().pending_members) == 5
    c.advance(5_000)
    assert not c.group().pending_members
    assert c.state is GroupState.EMPTY


def test_s14_pending_ids_are_capped() -> None:
    c = with_config(max_pending_members=2)
    assert [c.join().error for _ in range(3)] == [
        ErrorCode.MEMBER_ID_REQUIRED,
        ErrorCode.MEMBER_ID_REQUIRED,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ]


def test_an_expired_pending_id_is_unknown() -> None:
    c = Client()
    member = c.join().reply.member_id
    c.advance(5_000)
    assert c.join(member).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_s9_a_repeated_join_displaces_the_first_and_adds_no_member() -> None:
    c = Client()
    member, first = c.new_member()
    again = c.join(member)
    assert first.error is ErrorCode.REBALANCE_IN_PROGRESS
    c.advance(3_000)
    assert again.reply.generation_id == 1
    assert list(c.group().members) == [member]


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session": -1}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "who"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"instance": "i" * 250}, ErrorCode.INVALID_REQUEST),
    ],
)
@pytest.mark.parametrize("version", [5, 9])
def test_a_join_that_is_refused_creates_no_group(options: dict, error: ErrorCode, version: int) -> None:
    c = Client(config=CoordinatorConfig())
    call = c.join(**{"session": 10_000, **options}, version=version)
    assert call.error is error
    assert call.reply.generation_id == -1
    assert not c.coordinator.group_ids()
    assert not c.records()


def test_a_member_with_nothing_in_common_is_refused() -> None:
    c = Client()
    c.stable_group(None)
    assert c.join(protocols=(("rr", b""),)).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert c.join(protocol_type="connect").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert c.state is GroupState.STABLE


def test_any_protocol_type_will_do() -> None:
    c = Client()
    member, join = c.new_member(protocol_type="connect", protocols=(("sessioned", b"\x00\x01"),))
    c.advance(3_000)
    assert join.reply.protocol_type == "connect"
    c.sync(member, 1, {member: b"tasks"}, protocol_type="connect", protocol="sessioned")
    assert c.describe().protocol_type == "connect"


# -- rejoining ---------------------------------------------------------------------------------------------------------


def test_a_follower_that_rejoins_unchanged_is_told_the_present_generation() -> None:
    c = Client()
    leader, follower = c.stable_group(None, None)
    reply = c.join(follower).reply
    assert (reply.generation_id, reply.leader, reply.members) == (1, leader, [])
    assert c.state is GroupState.STABLE
    assert len(c.group_records()) == 3


def test_a_leader_that_rejoins_unchanged_starts_a_rebalance() -> None:
    c = Client()
    leader, follower = c.stable_group(None, None)
    join = c.join(leader)
    assert join.parked
    assert c.heartbeat(follower, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert c.join(follower).reply.generation_id == 2
    assert join.reply.leader == leader


def test_a_follower_with_a_new_subscription_starts_a_rebalance() -> None:
    c = Client()
    leader, follower = c.stable_group(None, None)
    assert c.join(follower, protocols=(("range", subscription("u")),)).parked
    reply = c.join(leader).reply
    assert {member.member_id: member.metadata for member in reply.members}[follower] == subscription("u")


def test_while_completing_an_unchanged_member_gets_the_same_answer_again_and_a_changed_one_rebalances() -> None:
    c = Client()
    leader, follower = c.stable_group(None, None)
    first = c.rejoin_all([leader, follower])[0].reply
    again = c.join(leader).reply
    assert again == first
    assert len(again.members) == 2
    waiting = c.sync(follower, 2)
    assert c.join(leader, protocols=(("range", b"new"),)).parked
    assert waiting.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert c.join(follower).reply.generation_id == 3


def test_a_member_of_a_group_that_became_empty_is_unknown() -> None:
    c = Client()
    (member,) = c.stable_group(None)
    c.advance(5_000)
    assert c.join(member).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_only_the_leader_gets_the_members_metadata() -> None:
    c = Client()
    ids = c.stable_group(None, None, None)
    replies = [call.reply for call in c.rejoin_all(ids)]
    assert [len(reply.members) for reply in replies] == [3, 0, 0]
    assert [reply.leader for reply in replies] == [ids[0]] * 3


def test_a_leader_that_does_not_rejoin_is_succeeded_by_the_longest_standing_member() -> None:
    c = Client()
    ids = c.stable_group(None, None, None, session=60_000)
    joins = [c.join(member, protocols=(("range", b"new"),), session=60_000) for member in ids[1:]]
    c.advance(10_000)
    assert [call.reply.leader for call in joins] == [ids[1], ids[1]]


def test_the_join_phase_lasts_as_long_as_the_slowest_members_rebalance_timeout() -> None:
    c = Client()
    ids = c.stable_group(None, session=100_000, rebalance=30_000)
    join = c.join(version=3, session=100_000, rebalance=1_000)
    c.advance(29_999)
    assert join.parked
    c.advance(1)
    assert join.reply.generation_id == 2
    assert ids[0] not in c.group().members


def test_up_to_v0_the_session_timeout_is_the_rebalance_timeout() -> None:
    c = Client()
    c.join(version=0, session=7_000, rebalance=-1)
    (member,) = c.group().members.values()
    assert member.rebalance_timeout_ms == 7_000


@pytest.mark.parametrize("version", range(10))
def test_every_version_can_join_and_is_answered_in_its_own_terms(version: int) -> None:
    c = Client()
    if version >= 4:
        _, join = c.new_member(version=version)
    else:
        join = c.join(version=version, rebalance=-1 if version == 0 else 10_000)
    c.advance(3_000)
    assert join.reply.protocol_name == "range"
    assert join.reply.protocol_type == ("consumer" if version >= 7 else None)


# -- size --------------------------------------------------------------------------------------------------------------


def test_a_full_stable_group_takes_nobody_new() -> None:
    c = with_config(max_group_size=2)
    ids = c.stable_group(None, None)
    assert c.join().error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert c.join(version=3).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert c.join(ids[1]).reply.generation_id == 1


def test_while_rejoining_the_first_to_come_fill_the_group() -> None:
    c = with_config(max_group_size=2)
    ids = c.stable_group(None, None)
    pending = [c.join(ids[0]), c.join(version=3)]
    assert all(call.parked for call in pending[:1])
    assert c.join(ids[1]).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert [call.reply.generation_id for call in pending] == [2, 2]
    assert ids[1] not in c.group().members


def test_an_empty_group_may_collect_more_than_its_size_but_only_so_many_join() -> None:
    c = with_config(max_group_size=2)
    ids = [c.join().reply.member_id for _ in range(3)]
    joins = [c.join(member) for member in ids]
    assert joins[2].error is ErrorCode.GROUP_MAX_SIZE_REACHED
    c.advance(6_000)
    assert [call.reply.generation_id for call in joins[:2]] == [1, 1]


def test_a_static_member_may_return_to_a_full_group() -> None:
    c = with_config(max_group_size=2)
    c.stable_group("i1", "i2")
    assert c.join(instance="i2").reply.generation_id == 1


# -- vote --------------------------------------------------------------------------------------------------------------


def chosen(*preferences: str) -> str:
    c = Client()
    calls = [c.join(version=3, protocols=[(name, b"") for name in names.split()]) for names in preferences]
    c.advance(6_000)
    return calls[0].reply.protocol_name


def test_the_protocol_with_most_votes_wins() -> None:
    assert chosen("a b", "b a", "b a") == "b"
    assert chosen("a b", "a b", "b a") == "a"
    assert chosen("a b c", "a b c", "b c a", "c b a") == "a", "b has the least sum of ranks, 3"


def test_only_what_everybody_supports_is_a_candidate() -> None:
    assert chosen("a b", "a b", "c b") == "b"


def test_df6_a_tie_is_decided_by_preference_then_by_name_whatever_the_order() -> None:
    assert chosen("range sticky", "sticky range") == chosen("sticky range", "range sticky") == "range"
    assert chosen("z b a", "a z b") == chosen("a z b", "z b a") == "z"  # ranks: z 0+1, a 2+0


def test_a_group_goes_over_to_the_next_version_of_its_strategy_with_the_last_member_that_is_upgraded() -> None:
    """The example of a rolling upgrade in the client-side assignment proposal, phase by phase."""
    old, upgraded = (("rr-0", b""),), (("rr-1", b""), ("rr-0", b""))
    c = Client()
    knows = [old, old, old]
    calls = [c.join(version=3, protocols=each) for each in knows]
    c.advance(6_000)
    phases = [{call.reply.protocol_name for call in calls}]
    for number in range(3):
        c.leave(calls[number].reply.member_id)
        knows[number] = upgraded
        calls[number] = c.join(version=3, protocols=upgraded)
        for n in {0, 1, 2} - {number}:
            calls[n] = c.join(calls[n].reply.member_id, version=3, protocols=knows[n])
        assert c.group().generation == number + 2
        phases.append({call.reply.protocol_name for call in calls})
    assert phases == [{"rr-0"}, {"rr-0"}, {"rr-0"}, {"rr-1"}]


def test_a_name_given_twice_counts_where_it_stands_first() -> None:
    c = Client()
    join = c.join(version=3, protocols=[("a", b"1"), ("b", b"2"), ("a", b"3")])
    c.advance(3_000)
    assert join.reply.members[0].metadata == b"1"


def test_df4_bytes_that_are_no_subscription_do_not_stop_the_group() -> None:
    c = Client()
    member, join = c.new_member(protocols=(("range", b"\x00\x01\x00\x00\x00\x05\x00"),))
    c.advance(3_000)
    assert join.reply.generation_id == 1
    c.sync_all([member])
    assert c.heartbeat(member, 1) is ErrorCode.NONE
    assert c.join(member, protocols=(("range", b"\xff"),)).reply.generation_id == 2


def test_groups_do_not_touch_each_other() -> None:
    c = Client()
    c.stable_group(None)
    other = c.join(group="g", version=3)
    c.advance(3_000)
    assert other.reply.generation_id == 1
    assert c.coordinator.group(GROUP) is not c.coordinator.group("g")
    assert CONFIG.partitions == 50
