"""What one member does, named after the sentence each test checks (reference A1, A5, A6; KIPs)."""

from __future__ import annotations

import re

import pytest

from roster.assignors import RANGE, JoinContext
from roster.member import MemberState
from roster.member.assign_group import assign_group
from roster.member.events import Assigned, AssignFailed, Closed, RequestFailed, Responded, SelectionChanged, Started
from roster.member.subscription import subscription_bytes
from roster.member.timers import DISCOVER
from roster.member.types import Channel, FailureKind, ReportKind
from roster.wire import ErrorCode
from roster.wire.consumer.messages import FAILURE_MAGIC, decode_assignment, flat
from roster.wire.messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetCommitRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tests.member.stage import Stage, assignment, group_of, parts

EAGER = {"assignors": ("range",)}
E = ErrorCode


# Joining and staying.


def test_states_go_unjoined_preparing_completing_stable() -> None:
    stage = Stage()
    assert stage.member.state is MemberState.UNJOINED
    stage.start()
    assert stage.member.state is MemberState.PREPARING_REBALANCE
    stage.joined()
    assert stage.member.state is MemberState.COMPLETING_REBALANCE
    stage.synced("t-0")
    assert stage.member.state is MemberState.STABLE
    assert stage.owns.partitions == parts("t-0")
    assert (stage.owns.generation, stage.owns.member_id) == (1, "m")


def test_join_group_carries_the_options_and_every_assignor_in_order() -> None:
    stage = Stage(
        assignors=("sticky", "range"),
        session_timeout_ms=9_000,
        rebalance_timeout_ms=60_000,
        group_instance_id="i1",
        rack_id="r1",
    )
    stage.start()
    request = stage.request(JoinGroupRequest)
    assert (request.group_id, request.protocol_type, request.group_instance_id) == ("g", "consumer", "i1")
    assert (request.session_timeout_ms, request.rebalance_timeout_ms) == (9_000, 60_000)
    assert [protocol.name for protocol in request.protocols] == ["sticky", "range"]
    claims = stage.claims()
    assert (claims.topics, claims.owned_partitions, claims.generation_id, claims.rack_id) == (["t"], [], -1, "r1")


@pytest.mark.parametrize(("leader", "text"), [("other", "assignor range"), ("", "the broker assigns (KIP-848)")])
def test_the_line_of_a_generation_says_who_assigns(leader: str, text: str) -> None:
    """Apache Kafka names no leader in a group with consumers of the new protocol."""
    stage = Stage()
    stage.start()
    stage.joined(7, leader=leader, protocol="range")
    (told,) = [report.text for report in stage.reports if report.kind is ReportKind.JOINED]
    assert told.startswith("generation 7, ")
    assert text in told


def test_a_parked_join_may_take_a_rebalance_and_five_seconds() -> None:
    stage = Stage(rebalance_timeout_ms=60_000, request_timeout_ms=30_000)
    stage.start()
    (join,) = stage.open.values()
    assert join.timeout_ms == 65_000
    assert join.channel is Channel.PARKED


def test_no_heartbeat_while_a_join_is_parked_but_from_its_answer_on() -> None:
    stage = Stage()
    stage.start()
    stage.wait(60_000)
    assert not stage.has(HeartbeatRequest)
    stage.joined()
    stage.wait(3_000)
    assert stage.request(HeartbeatRequest).generation_id == 1


def test_heartbeats_never_wait_for_the_leaders_computation() -> None:
    stage = Stage(heartbeat_interval_ms=1_000)
    stage.start()
    stage.joined(leader="m", members=group_of(m="t"))
    stage.know({"t": 2})
    assert stage.work
    for _ in range(5):
        stage.heartbeat()
    stage.assigned(m="t-0 t-1")
    stage.synced("t-0 t-1")
    assert stage.owns.partitions == parts("t-0 t-1")


def test_an_unanswered_heartbeat_is_given_up_within_the_session() -> None:
    stage = Stage(session_timeout_ms=9_000, heartbeat_interval_ms=1_000)
    stage.stable("t-0")
    stage.wait(1_000)
    (heartbeat,) = stage.open.values()
    assert heartbeat.timeout_ms == 3_000
    assert heartbeat.channel is Channel.PROMPT


def test_heartbeat_goes_out_at_once_when_the_coordinator_is_found_again() -> None:
    stage = Stage()
    stage.stable("t-0")
    stage.heartbeat(E.NOT_COORDINATOR)
    stage.find_coordinator()
    assert stage.has(HeartbeatRequest)


def test_backoff_doubles_with_jitter_up_to_its_limit() -> None:
    """KIP-580."""
    stage = Stage(retry_backoff_ms=100, retry_backoff_max_ms=1_000)
    stage.step(Started())
    pauses = []
    for _ in range(6):
        stage.find_coordinator(E.COORDINATOR_NOT_AVAILABLE)
        pauses.append(stage.timers[DISCOVER] - stage.now)
        stage.wait(pauses[-1])
    for pause, plain in zip(pauses, [100, 200, 400, 800, 1_600, 3_200], strict=True):
        assert 0.8 * plain <= pause <= 1.2 * plain or pause == 1_000
        assert pause <= 1_000


def test_a_protocol_this_member_did_not_offer_is_fatal() -> None:
    stage = Stage()
    stage.start()
    stage.joined(protocol="roundrobin")
    assert stage.owns.failure is not None
    assert stage.owns.failure.kind is FailureKind.PROTOCOL


def test_late_and_repeated_answers_do_no_harm() -> None:
    stage = Stage()
    stage.stable("t-0")
    before = stage.owns
    stage.step(Responded(2, JoinGroupResponse(generation_id=9, member_id="x", leader="x")))
    stage.step(Responded(3, SyncGroupResponse(assignment=assignment("t-7"))))
    stage.step(RequestFailed(2, "late"))
    assert stage.owns == before


# Eager.


def test_eager_gives_everything_up_before_it_joins() -> None:
    stage = Stage(**EAGER)
    stage.stable("t-0 t-1")
    stage.heartbeat(E.REBALANCE_IN_PROGRESS)
    assert stage.owns.revoking == parts("t-0 t-1")
    assert not stage.owns.partitions
    assert not stage.has(JoinGroupRequest)
    stage.release("t-0")
    assert not stage.has(JoinGroupRequest)
    stage.release("t-1")
    assert stage.claims().owned_partitions == []
    assert stage.request(JoinGroupRequest).reason == "group is already rebalancing"


def test_heartbeats_never_wait_for_work_that_is_being_revoked() -> None:
    stage = Stage(**EAGER)
    stage.stable("t-0")
    stage.heartbeat(E.REBALANCE_IN_PROGRESS)
    for _ in range(5):
        stage.heartbeat(E.REBALANCE_IN_PROGRESS)
    assert stage.owns.revoking == parts("t-0")


def test_revocation_is_bounded_by_the_rebalance_timeout_then_the_partitions_are_lost() -> None:
    stage = Stage(**EAGER, rebalance_timeout_ms=20_000)
    stage.stable("t-0 t-1")
    stage.heartbeat(E.REBALANCE_IN_PROGRESS)
    began, deadline = stage.now, stage.owns.revoke_deadline
    assert deadline is not None
    assert began < deadline <= began + 20_000
    stage.release("t-0")
    while stage.owns.revoking:
        stage.heartbeat(E.REBALANCE_IN_PROGRESS) if stage.has(HeartbeatRequest) else stage.wait(100)
    assert stage.now >= deadline
    assert stage.owns.lost == parts("t-1")
    assert stage.has(JoinGroupRequest)


def test_work_of_an_earlier_tenure_cannot_be_committed() -> None:
    """Released and given back: another member may have owned the partition in between."""
    stage = Stage(**EAGER)
    stage.stable("t-0")
    before = stage.owns.epoch
    stage.heartbeat(E.REBALANCE_IN_PROGRESS)
    stage.release("t-0")
    stage.joined(generation=2)
    stage.synced("t-0")
    stage.commit("t-0", epoch=before)
    failure = stage.commits[1].failure
    assert failure is not None
    assert (failure.kind, failure.partitions) == (FailureKind.FENCED, parts("t-0"))
    assert not stage.has(OffsetCommitRequest)
    stage.commit("t-0", token=2)
    stage.committed()
    assert stage.commits[2].failure is None


def test_revoked_work_is_committed_in_its_own_generation_before_the_join() -> None:
    stage = Stage(**EAGER)
    stage.stable("t-0")
    stage.heartbeat(E.REBALANCE_IN_PROGRESS)
    stage.commit("t-0", offset=42)
    request = stage.request(OffsetCommitRequest)
    assert (request.generation_id_or_member_epoch, request.member_id) == (1, "m")
    assert request.topics[0].partitions[0].committed_offset == 42
    stage.committed()
    assert stage.commits[1].failure is None


# Cooperative (KIP-429).


def test_cooperative_keeps_everything_while_it_joins_and_claims_it() -> None:
    stage = Stage()
    stage.stable("t-0 t-1", generation=5)
    stage.heartbeat(E.REBALANCE_IN_PROGRESS)
    assert stage.owns.partitions == parts("t-0 t-1")
    claims = stage.claims()
    assert [(entry.topic, entry.partitions) for entry in claims.owned_partitions] == [("t", [0, 1])]
    assert claims.generation_id == 5
    assert claims.user_data == bytes.fromhex("00000005")


def test_cooperative_revokes_owned_minus_assigned_then_joins_again() -> None:
    stage = Stage()
    stage.stable("t-0 t-1 t-2")
    stage.heartbeat(E.REBALANCE_IN_PROGRESS)
    stage.joined(generation=2)
    stage.synced("t-0 t-3")
    assert stage.owns.partitions == parts("t-0 t-3")
    assert stage.owns.revoking == parts("t-1 t-2")
    assert not stage.has(JoinGroupRequest)
    stage.commit("t-1")
    assert stage.request(OffsetCommitRequest).generation_id_or_member_epoch == 2
    stage.committed()
    stage.release("t-1 t-2")
    assert stage.request(JoinGroupRequest).reason == "need to revoke partitions and re-join"
    assert [(e.topic, e.partitions) for e in stage.claims().owned_partitions] == [("t", [0, 3])]


def test_a_partition_kept_through_a_rebalance_is_committed_in_the_new_generation() -> None:
    stage = Stage()
    stage.stable("t-0")
    before = stage.owns.epoch
    stage.heartbeat(E.REBALANCE_IN_PROGRESS)
    stage.joined(generation=2)
    stage.commit("t-0", epoch=before)
    assert not stage.has(OffsetCommitRequest), "between join and sync the coordinator would refuse it"
    stage.synced("t-0")
    assert stage.request(OffsetCommitRequest).generation_id_or_member_epoch == 2


def test_a_commit_that_meets_no_end_of_the_rebalance_is_retriable() -> None:
    stage = Stage(request_timeout_ms=10_000, heartbeat_interval_ms=3_000)
    stage.stable("t-0")
    stage.heartbeat(E.REBALANCE_IN_PROGRESS)
    stage.joined(generation=2)
    stage.commit("t-0")
    for _ in range(5):
        stage.heartbeat()
    failure = stage.commits[1].failure
    assert failure is not None
    assert (failure.kind, failure.partitions) == (FailureKind.RETRIABLE, parts("t-0"))


def test_a_commit_for_what_was_lost_fails_even_while_there_is_no_coordinator() -> None:
    stage = Stage(**EAGER, rebalance_timeout_ms=10_000, request_timeout_ms=60_000)
    stage.stable("t-0")
    stage.heartbeat(E.REBALANCE_IN_PROGRESS)
    stage.heartbeat(E.NOT_COORDINATOR)
    stage.commit("t-0")
    assert not stage.commits
    stage.wait(10_000)
    failure = stage.commits[1].failure
    assert failure is not None
    assert failure.kind is FailureKind.FENCED


def test_a_commit_on_its_way_when_its_partitions_are_lost_has_the_outcome_that_the_coordinator_says() -> None:
    stage = Stage(**EAGER, rebalance_timeout_ms=10_000, request_timeout_ms=60_000)
    stage.stable("t-0")
    stage.heartbeat(E.REBALANCE_IN_PROGRESS)
    stage.commit("t-0", token=1)
    stage.commit("t-0", token=2)
    stage.wait(10_000)
    assert stage.owns.lost == parts("t-0")
    failure = stage.commits[2].failure
    assert failure is not None
    assert failure.kind is FailureKind.FENCED
    assert 1 not in stage.commits, "it may be written"
    stage.committed()
    assert stage.commits[1].failure is None


def test_commits_go_out_one_at_a_time_and_in_order() -> None:
    stage = Stage()
    stage.stable("t-0")
    stage.commit("t-0", token=1, offset=1)
    stage.commit("t-0", token=2, offset=2)
    assert stage.request(OffsetCommitRequest).topics[0].partitions[0].committed_offset == 1
    stage.committed()
    assert stage.request(OffsetCommitRequest).topics[0].partitions[0].committed_offset == 2


def test_after_a_failed_sync_claims_carry_the_generation_this_member_joined() -> None:
    """The claims took part in generation 2, so nobody else can hold these partitions as of generation 2."""
    stage = Stage()
    stage.stable("t-0")
    stage.heartbeat(E.REBALANCE_IN_PROGRESS)
    stage.joined(generation=2)
    stage.answer(SyncGroupRequest, SyncGroupResponse(error_code=E.REBALANCE_IN_PROGRESS))
    claims = stage.claims()
    assert claims.generation_id == 2
    assert [(entry.topic, entry.partitions) for entry in claims.owned_partitions] == [("t", [0])]
    assert stage.owns.partitions == parts("t-0")


def test_with_several_assignors_the_one_the_group_chose_says_what_is_kept() -> None:
    """Unlike Java's (A6), which is eager as soon as one of them is; what was kept is given up should range come."""
    stage = Stage(assignors=("cooperative-sticky", "range"))
    stage.start()
    stage.joined(protocol="cooperative-sticky")
    stage.synced("t-0")
    stage.heartbeat(E.REBALANCE_IN_PROGRESS)
    assert stage.owns.partitions == parts("t-0")
    stage.joined(protocol="range", generation=2)
    assert stage.owns.lost == parts("t-0")
    stage.synced("t-1")
    assert stage.owns.revoking == parts("t-1"), "it joins once more: others may wait for what it gave up"
    stage.release("t-1")
    stage.joined(protocol="range", generation=3)
    stage.synced("t-1")
    assert stage.owns.partitions == parts("t-1")
    stage.heartbeat(E.REBALANCE_IN_PROGRESS)
    assert stage.owns.revoking == parts("t-1"), "an eager assignor: all is given up before the next join"


def test_what_members_still_claim_is_kept_back_while_the_group_goes_over_to_range() -> None:
    def claims(*owned: str) -> bytes:
        return subscription_bytes(
            RANGE, JoinContext(topics=frozenset({"t"}), owned=parts(" ".join(owned)), generation=1)
        )

    stage = Stage(assignors=("cooperative-sticky", "range"))
    stage.start()
    claiming = {"m": claims(), "n": claims("t-0", "t-1")}
    members = [JoinGroupResponse.Member(member_id=member, metadata=metadata) for member, metadata in claiming.items()]
    stage.joined(protocol="range", leader="m", members=members)
    stage.know({"t": 2})
    stage.assigned(m="t-0", n="t-1")
    sent = {row.member_id: decode_assignment(row.assignment) for row in stage.request(SyncGroupRequest).assignments}
    assert {member: flat(one.assigned_partitions) for member, one in sent.items()} == {"m": [], "n": [*parts("t-1")]}
    stage.synced("")
    assert stage.has(JoinGroupRequest), "once the other has given them up they are dealt again"


def test_a_lost_generation_drops_claims() -> None:
    for assignor in ("cooperative-sticky", "sticky"):
        stage = Stage(assignors=(assignor,))
        stage.stable("t-0 t-1", generation=5)
        stage.heartbeat(E.ILLEGAL_GENERATION)
        assert stage.owns.lost == parts("t-0 t-1")
        claims = stage.claims()
        assert (claims.owned_partitions, claims.generation_id) == ([], -1)
        assert claims.user_data in (None, bytes.fromhex("ffffffff"))
        assert stage.request(JoinGroupRequest).member_id == "m"


def test_sticky_claims_its_last_assignment_in_user_data() -> None:
    """UD-4: foo[1,3] of generation 7."""
    stage = Stage(assignors=("sticky",), selection=frozenset({"foo"}))
    stage.stable("foo-1 foo-3", generation=7)
    stage.heartbeat(E.REBALANCE_IN_PROGRESS)
    stage.release("foo-1 foo-3")
    claims = stage.claims()
    assert claims.user_data == bytes.fromhex("000000010003666f6f00000002000000010000000300000007")
    assert claims.owned_partitions == []


# Leading.


@pytest.mark.parametrize(
    ("others", "told"),
    [
        ({"n": "u"}, "n reads u, this member t,"),
        ({"n": "u v w x", "o": "u", "p": "t u"}, "n (and 1 more) reads u, v, w and 1 more, this member t,"),
        ({"n": "t u"}, None),
        ({"n": ""}, None),
    ],
)
def test_the_leader_tells_of_members_that_read_other_topics(others: dict[str, str], told: str | None) -> None:
    stage = Stage()
    stage.start()
    stage.joined(leader="m", members=group_of(m="t", **others))
    found = [report.text for report in stage.reports if report.kind is ReportKind.DIVIDED]
    assert [text[: len(told or "")] for text in found] == ([told] if told else [])


def test_the_leader_assigns_from_fresh_metadata_of_all_the_groups_topics() -> None:
    stage = Stage()
    stage.start()
    stage.joined(leader="m", members=group_of(m="t", n="t u gone"))
    assert [topic.name for topic in stage.request(MetadataRequest).topics or []] == ["gone", "t", "u"]
    stage.know({"t": 2, "u": 1})
    (task,) = stage.work
    assert task.assignor.name == "cooperative-sticky"
    assert task.group.partitions == {"t": 2, "u": 1}
    assert set(task.group.subscriptions) == {"m", "n"}
    stage.assigned(m="t-0", n="t-1 u-0")
    sent = stage.request(SyncGroupRequest).assignments
    assert {entry.member_id: entry.assignment for entry in sent} == {
        "m": assignment("t-0"),
        "n": assignment("t-1 u-0"),
    }


def test_an_older_metadata_answer_is_not_taken_for_the_leaders_own() -> None:
    stage = Stage(selection=re.compile("t.*"))
    stage.step(Started())
    stage.find_coordinator()
    stage.know({"t": 1})
    stage.joined(leader="m", members=group_of(m="t"))
    stage.know({"t": 1})
    stage.assigned(m="t-0")
    stage.synced("t-0")
    stage.wait(300_000 - 3_000)
    while not stage.has(MetadataRequest):
        stage.heartbeat() if stage.has(HeartbeatRequest) else stage.wait(1_000)
    old = next(n for n, send in stage.open.items() if isinstance(send.message, MetadataRequest))
    stage.heartbeat(E.REBALANCE_IN_PROGRESS)
    stage.joined(generation=2, leader="m", members=group_of(m="t", n="u"))
    answered = stage.open.pop(old)
    assert isinstance(answered.message, MetadataRequest)
    from tests.member.stage import metadata

    stage.step(Responded(old, metadata({"t": 1})))
    assert not stage.work
    stage.know({"t": 1, "u": 3})
    assert stage.work[0].group.partitions == {"t": 1, "u": 3}


def test_a_leader_that_cannot_assign_tells_every_member_in_user_data() -> None:
    stage = Stage()
    stage.start()
    stage.joined(leader="m", members=group_of(m="t", n="t"))
    stage.know({"t": 2})
    stage.step(AssignFailed(stage.work.pop().id, "range: ValueError: no"))
    sent = stage.request(SyncGroupRequest).assignments
    assert [entry.member_id for entry in sent] == ["m", "n"]
    for entry in sent:
        decoded = decode_assignment(entry.assignment)
        assert decoded.assigned_partitions == []
        assert decoded.user_data == FAILURE_MAGIC + b"range: ValueError: no"


@pytest.mark.parametrize("error", [E.NONE, E.UNKNOWN_SERVER_ERROR])
def test_a_member_told_of_a_failed_assignment_raises_it_and_leaves(error: ErrorCode) -> None:
    """With an error from Roster's coordinator, without from Apache Kafka's."""
    stage = Stage()
    stage.start()
    stage.joined()
    told = assignment("", user_data=FAILURE_MAGIC + b"because")
    stage.answer(SyncGroupRequest, SyncGroupResponse(error_code=error, assignment=told))
    assert stage.owns.failure is not None
    assert stage.owns.failure.kind is FailureKind.ASSIGNMENT
    assert "because" in stage.owns.failure.message
    assert stage.request(LeaveGroupRequest).members[0].member_id == "m"


def test_unreadable_assignments_fail_clearly_and_empty_bytes_mean_none() -> None:
    stage = Stage()
    stage.start()
    stage.joined()
    stage.answer(SyncGroupRequest, SyncGroupResponse(assignment=b""))
    assert stage.member.state is MemberState.STABLE
    assert stage.owns.partitions == frozenset()
    other = Stage()
    other.start()
    other.joined()
    other.answer(SyncGroupRequest, SyncGroupResponse(assignment=b"\x00\x00\x00\x09"))
    assert other.owns.failure is not None
    assert other.owns.failure.kind is FailureKind.ASSIGNMENT


def lead(stage: Stage, counts: dict[str, int], text: str, **members: str) -> None:
    stage.joined(leader="m", members=group_of(**(members or {"m": "t"})))
    stage.know(counts)
    stage.assigned(m=text)
    stage.synced(text)


def refresh(stage: Stage, counts: dict[str, int]) -> None:
    while not stage.has(MetadataRequest):
        stage.heartbeat() if stage.has(HeartbeatRequest) else stage.wait(1_000)
    stage.know(counts)


def test_the_leader_joins_again_when_a_topic_of_the_group_gains_partitions() -> None:
    stage = Stage(metadata_max_age_ms=10_000)
    stage.start()
    lead(stage, {"t": 2, "u": 1}, "t-0 t-1", m="t", n="u")
    refresh(stage, {"t": 2, "u": 1})
    assert not stage.has(JoinGroupRequest)
    refresh(stage, {"t": 2, "u": 3})
    assert stage.request(JoinGroupRequest).reason == "cached metadata has changed (u: 1 -> 3)"


def test_the_leader_joins_again_when_a_topic_is_deleted() -> None:
    stage = Stage(metadata_max_age_ms=10_000)
    stage.start()
    lead(stage, {"t": 2}, "t-0 t-1")
    refresh(stage, {})
    assert stage.request(JoinGroupRequest).reason == "cached metadata has changed (t: 2 -> none)"


def test_only_the_leader_watches_metadata_of_named_topics() -> None:
    stage = Stage(metadata_max_age_ms=1_000)
    stage.stable("t-0")
    for _ in range(10):
        stage.heartbeat()
    assert not stage.has(MetadataRequest)


def test_a_returning_static_leader_keeps_tracking_but_does_not_assign() -> None:
    """KIP-814: skipAssignment in JoinGroup v9."""
    stage = Stage(group_instance_id="i", metadata_max_age_ms=10_000)
    stage.start()
    stage.joined(leader="m", skip_assignment=True, members=group_of(m="t", n="u"))
    assert stage.request(SyncGroupRequest).assignments == []
    stage.know({"t": 1, "u": 1})
    assert not stage.work
    stage.synced("t-0")
    refresh(stage, {"t": 1, "u": 2})
    assert stage.request(JoinGroupRequest).reason == "cached metadata has changed (u: 1 -> 2)"


# Subscriptions.


def test_a_pattern_is_matched_with_metadata_before_the_first_join() -> None:
    stage = Stage(selection=re.compile("t[0-9]"))
    stage.step(Started())
    stage.find_coordinator()
    assert stage.request(MetadataRequest).topics is None
    assert stage.request(MetadataRequest).allow_auto_topic_creation is False
    stage.know({"t1": 1, "t22": 1, "t2": 1, "t9": 1}, internal=("t9",))
    assert stage.claims().topics == ["t1", "t2"]


def test_a_new_topic_that_matches_the_pattern_means_joining_again() -> None:
    stage = Stage(selection=re.compile("t.*"), metadata_max_age_ms=10_000)
    stage.start()
    stage.know({"t1": 1})
    stage.joined()
    stage.synced("t1-0")
    refresh(stage, {"t1": 1, "t2": 1})
    assert stage.request(JoinGroupRequest).reason == "subscription has changed from [t1] to [t1, t2]"


def test_a_pattern_accepts_matching_topics_it_has_not_seen_and_nothing_else() -> None:
    stage = Stage(selection=re.compile("t.*"))
    stage.start()
    stage.know({"t1": 1})
    stage.joined()
    stage.synced("t1-0 t2-0")
    assert stage.owns.partitions == parts("t1-0 t2-0")
    assert not stage.has(JoinGroupRequest)
    stage.heartbeat(E.REBALANCE_IN_PROGRESS)
    stage.joined(generation=2)
    stage.synced("t1-0 x-0")
    assert stage.request(JoinGroupRequest).reason == "received assignment does not match the current subscription"
    assert stage.owns.partitions == parts("t1-0 t2-0")


def test_cooperative_gives_up_partitions_of_topics_no_longer_wanted_before_it_joins() -> None:
    stage = Stage(selection=frozenset({"t", "u"}))
    stage.stable("t-0 u-0")
    stage.step(SelectionChanged(frozenset({"t"})))
    assert stage.owns.revoking == parts("u-0")
    assert not stage.has(JoinGroupRequest)
    stage.release("u-0")
    assert stage.claims().topics == ["t"]
    assert stage.request(JoinGroupRequest).reason == "subscription has changed from [t, u] to [t]"


def test_reasons_are_cut_at_255_characters() -> None:
    """KIP-800."""
    stage = Stage(selection=frozenset(f"topic-{number}" for number in range(60)))
    stage.stable("")
    stage.step(SelectionChanged(frozenset({"t"})))
    reason = stage.request(JoinGroupRequest).reason
    assert reason is not None
    assert len(reason) == 255


# Leaving.


def test_a_dynamic_member_says_goodbye_with_its_reason() -> None:
    stage = Stage()
    stage.stable("t-0")
    stage.step(Closed(leave=True, reason="enough"))
    (gone,) = stage.request(LeaveGroupRequest).members
    assert (gone.member_id, gone.reason) == ("m", "enough")
    assert not stage.stopped
    stage.answer(LeaveGroupRequest, LeaveGroupResponse())
    assert stage.stopped
    assert stage.owns.partitions == frozenset()
    assert not stage.timers


def test_a_static_member_never_says_goodbye() -> None:
    """KIP-345."""
    stage = Stage(group_instance_id="i")
    stage.stable("t-0")
    stage.step(Closed(leave=True))
    assert stage.stopped
    assert not stage.has(LeaveGroupRequest)


def test_goodbye_is_said_once_whatever_comes_of_it() -> None:
    stage = Stage()
    stage.stable("t-0")
    stage.step(Closed())
    number = next(n for n, send in stage.open.items() if isinstance(send.message, LeaveGroupRequest))
    stage.step(RequestFailed(number, "gone"))
    stage.step(RequestFailed(number, "gone"))
    assert stage.stopped


def test_static_members_send_their_instance_id_everywhere() -> None:
    stage = Stage(group_instance_id="i")
    stage.start()
    assert stage.request(JoinGroupRequest).group_instance_id == "i"
    stage.joined()
    assert stage.request(SyncGroupRequest).group_instance_id == "i"
    stage.synced("t-0")
    stage.wait(3_000)
    assert stage.request(HeartbeatRequest).group_instance_id == "i"
    stage.commit("t-0")
    assert stage.request(OffsetCommitRequest).group_instance_id == "i"


def test_a_static_member_that_comes_back_is_refused_if_it_has_been_replaced() -> None:
    stage = Stage(group_instance_id="i")
    stage.step(Started("i-1"))
    stage.find_coordinator()
    assert stage.request(JoinGroupRequest).member_id == "i-1"
    stage.answer(JoinGroupRequest, JoinGroupResponse(error_code=E.FENCED_INSTANCE_ID))
    assert stage.owns.failure is not None
    assert stage.owns.failure.kind is FailureKind.FENCED_INSTANCE


def test_a_static_member_that_comes_back_joins_anew_once_the_group_has_forgotten_it() -> None:
    stage = Stage(group_instance_id="i")
    stage.step(Started("i-1"))
    stage.find_coordinator()
    stage.answer(JoinGroupRequest, JoinGroupResponse(error_code=E.UNKNOWN_MEMBER_ID))
    assert stage.request(JoinGroupRequest).member_id == ""
    stage.joined()
    stage.synced("t-0")
    assert stage.member.state is MemberState.STABLE


@pytest.mark.parametrize("steps", range(5))
def test_closing_works_in_every_state(steps: int) -> None:
    stage = Stage()
    passages = [stage.start, stage.joined, lambda: stage.synced("t-0"), lambda: stage.heartbeat(E.NOT_COORDINATOR)]
    for passage in passages[:steps]:
        passage()
    stage.commit("t-0", token=9)
    stage.step(Closed())
    for number, send in list(stage.open.items()):
        if isinstance(send.message, LeaveGroupRequest):
            stage.step(Responded(number, LeaveGroupResponse()))
    assert stage.stopped
    assert 9 in stage.commits
    stage.commit("t-0", token=10)
    assert stage.commits[10].failure is not None


def test_after_a_failure_commits_say_why_and_closing_still_works() -> None:
    stage = Stage()
    stage.stable("t-0")
    stage.heartbeat(E.FENCED_INSTANCE_ID)
    stage.commit("t-0")
    failure = stage.commits[1].failure
    assert failure is not None
    assert failure.kind is FailureKind.FENCED_INSTANCE
    stage.step(Responded(99, HeartbeatResponse()))
    stage.step(Closed())
    assert stage.stopped


def test_a_request_no_broker_version_can_carry_is_fatal() -> None:
    stage = Stage(group_instance_id="i")
    stage.start()
    number = next(iter(stage.open))
    stage.step(RequestFailed(number, "the broker is too old for static membership", unsupported=True))
    assert stage.owns.failure is not None
    assert stage.owns.failure.kind is FailureKind.UNSUPPORTED


def test_a_refused_login_is_fatal() -> None:
    stage = Stage()
    stage.start()
    number = next(iter(stage.open))
    stage.step(RequestFailed(number, "the broker refused user 'u'", refused=True))
    assert stage.owns.failure is not None
    assert stage.owns.failure.kind is FailureKind.AUTHENTICATION


def test_find_coordinator_asks_for_this_group() -> None:
    stage = Stage(group="payments")
    stage.step(Started())
    request = stage.request(FindCoordinatorRequest)
    assert (request.coordinator_keys, request.key_type) == (["payments"], 0)


def test_a_broker_that_names_no_coordinator_is_asked_again() -> None:
    stage = Stage()
    stage.step(Started())
    stage.answer(FindCoordinatorRequest, FindCoordinatorResponse(coordinators=[]))
    assert not stage.has(FindCoordinatorRequest)
    assert "the broker named no coordinator" in stage.reports[-1].text
    stage.wait(1_000)
    stage.find_coordinator()
    assert stage.has(JoinGroupRequest)


@pytest.mark.parametrize("other", [{"protocol_type": "connect"}, {"protocol_name": "roundrobin"}])
def test_an_assignment_under_another_protocol_is_not_taken(other: dict[str, str]) -> None:
    stage = Stage()
    stage.start()
    stage.joined()
    stage.answer(SyncGroupRequest, SyncGroupResponse(assignment=assignment("t-0"), **other))
    assert stage.owns.failure is not None
    assert stage.owns.failure.kind == FailureKind.PROTOCOL
    assert not stage.owns.partitions


def test_a_topic_whose_metadata_has_a_passing_error_keeps_its_count() -> None:
    stage = Stage()
    stage.start()
    stage.joined(leader="m", members=group_of(m="t"))
    stage.know({"t": 3})
    task = stage.work.pop()
    assert task.group.partitions == {"t": 3}
    stage.step(Assigned(task.id, *assign_group(task.assignor, task.group)))
    stage.synced("t-0 t-1 t-2")
    stage.wait(stage.config.metadata_max_age_ms)
    electing = MetadataResponse.Topic(name="t", error_code=ErrorCode.LEADER_NOT_AVAILABLE, partitions=[])
    stage.answer(MetadataRequest, MetadataResponse(topics=[electing]))
    assert not stage.has(JoinGroupRequest), "nothing has changed"
