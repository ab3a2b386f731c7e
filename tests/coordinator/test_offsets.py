"""Committed offsets: who may commit, what is visible when, deletion and expiry (GC-25, GC-26, GC-27)."""

from __future__ import annotations

import pytest

from roster.coordinator.events import TopicsDeleted
from roster.wire import ErrorCode
from roster.wire.messages import OffsetFetchRequest
from tests.coordinator.coordinator_harness import (
    GROUP,
    RANGE,
    WALL_OFFSET,
    Client,
    GroupState,
    subscription,
    with_config,
)

RETENTION = 20_000
EXPIRING = {"offsets_retention_ms": RETENTION, "offsets_retention_check_interval_ms": 1_000}


def group_in(state: GroupState) -> tuple[Client, str, int]:
    """A group in the state, with a member (or former member) of its generation."""
    c = Client()
    (member,) = c.stable_group(None, session=600_000, rebalance=100_000)
    if state is GroupState.PREPARING:
        c.join(version=3, session=600_000)
    elif state is GroupState.COMPLETING:
        c.join(member, session=600_000)
    elif state is GroupState.EMPTY:
        c.leave(member)
    assert c.state is state
    return c, member, c.group().generation


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        (GroupState.STABLE, ErrorCode.NONE),
        (GroupState.PREPARING, ErrorCode.NONE),
        (GroupState.COMPLETING, ErrorCode.REBALANCE_IN_PROGRESS),
        (GroupState.EMPTY, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_gc25_s5_a_members_commit_by_state(state: GroupState, outcome: ErrorCode) -> None:
    c, member, generation = group_in(state)
    assert c.commit_error(member, generation) is outcome
    assert c.fetched() == ({("t", 0): 100} if outcome is ErrorCode.NONE else {})


@pytest.mark.parametrize("state", [GroupState.STABLE, GroupState.PREPARING, GroupState.COMPLETING])
def test_gc25_s5_a_commit_names_the_member_and_its_generation(state: GroupState) -> None:
    c, member, generation = group_in(state)
    assert c.commit_error(member, generation - 1) is ErrorCode.ILLEGAL_GENERATION
    assert c.commit_error(member, generation + 1) is ErrorCode.ILLEGAL_GENERATION
    assert c.commit_error(member, -1) is ErrorCode.ILLEGAL_GENERATION
    assert c.commit_error("who", generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert c.commit_error("", generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert c.commit_error() is ErrorCode.UNKNOWN_MEMBER_ID
    assert c.commit_error(member, generation, instance="i9") is ErrorCode.UNKNOWN_MEMBER_ID
    assert not c.fetched()
    assert not c.offset_records()


def test_gc25_without_a_generation_only_an_empty_group_takes_commits() -> None:
    c, member, _ = group_in(GroupState.EMPTY)
    assert c.commit_error() is ErrorCode.NONE
    assert c.commit_error(member, -1) is ErrorCode.NONE


@pytest.mark.parametrize(("version", "outcome"), [(8, "ILLEGAL_GENERATION"), (9, "GROUP_ID_NOT_FOUND")])
def test_gc25_a_generation_in_an_unknown_group(version: int, outcome: str) -> None:
    c = Client()
    assert c.commit_error("m", 1, version=version).name == outcome
    assert not c.coordinator.group_ids()


@pytest.mark.parametrize("version", range(2, 10))
def test_gc25_a_simple_group_comes_to_be_by_its_first_commit(version: int) -> None:
    c = Client()
    assert c.commit_error(offsets={("t", 0): 7, ("u", 3): 8}, version=version) is ErrorCode.NONE
    assert c.fetched() == {("t", 0): 7, ("u", 3): 8}
    assert not c.group_records()
    listed = c.list_groups().groups
    assert [(g.group_id, g.protocol_type, g.group_state) for g in listed] == [(GROUP, "", "Empty")]


def test_s6_s7_a_commit_is_visible_and_acknowledged_when_durable() -> None:
    c = Client()
    c.commit(offsets={("t", 0): 1})
    c.auto_ack = False
    call = c.commit(offsets={("t", 0): 2})
    assert call.parked
    assert c.fetched() == {("t", 0): 1}
    c.ack()
    assert c.fetched() == {("t", 0): 2}
    assert call.reply.topics[0].partitions[0].error_code == 0


def test_s6_a_commit_that_fails_changes_nothing() -> None:
    c = Client()
    c.commit(offsets={("t", 0): 1})
    c.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS
    assert c.commit_error(offsets={("t", 0): 2}) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert c.fetched() == {("t", 0): 1}
    assert c.commit_error(group="other") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert c.coordinator.group_ids() == [GROUP]


def test_gc26_a_commit_renews_the_session() -> None:
    c = Client()
    (member,) = c.stable_group(None)
    start = c.now
    c.advance_to(start + 2_500)
    assert c.commit_error(member, 1) is ErrorCode.NONE
    c.advance_to(start + 7_499)
    assert member in c.group().members
    c.advance_to(start + 7_500)
    assert c.state is GroupState.EMPTY


def test_metadata_too_large_fails_its_partition_only() -> None:
    c = with_config(offset_metadata_max_bytes=5)
    call = c.commit(metadata="123456")
    assert call.reply.topics[0].partitions[0].error_code == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert not c.coordinator.group_ids()
    assert c.commit_error(metadata="12345") is ErrorCode.NONE
    assert c.commit_error(offsets={("t", 1): 1}, metadata=None) is ErrorCode.NONE
    assert c.fetched() == {("t", 0): 100, ("t", 1): 1}


def test_the_record_of_a_commit() -> None:
    c = Client()
    c.commit(metadata="note")
    c.commit(retention=60_000, version=4)
    first, second = c.offset_records()
    assert (first.offset, first.metadata, first.leader_epoch) == (100, "note", -1)
    assert (first.commit_timestamp, first.expire_timestamp) == (WALL_OFFSET, -1)
    assert second.expire_timestamp == WALL_OFFSET + 60_000


# -- fetch -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 8))
def test_every_single_group_version_can_fetch(version: int) -> None:
    c = Client()
    c.commit(offsets={("t", 0): 5}, metadata="m")
    topics = [OffsetFetchRequest.Group.Topic(name="t", partition_indexes=[0, 1])]
    reply = c.send(OffsetFetchRequest(group_id=GROUP, topics=topics), version).reply
    assert [(p.partition_index, p.committed_offset, p.metadata) for p in reply.topics[0].partitions] == [
        (0, 5, "m"),
        (1, -1, ""),
    ]
    assert not reply.error_code


def test_several_groups_are_fetched_in_one_request() -> None:
    c = Client()
    c.commit(offsets={("t", 0): 5})
    c.commit(offsets={("u", 1): 6}, group="g")
    wanted = [
        OffsetFetchRequest.Group(group_id=GROUP, topics=None),
        OffsetFetchRequest.Group(
            group_id="g", topics=[OffsetFetchRequest.Group.Topic(name="t", partition_indexes=[0])]
        ),
        OffsetFetchRequest.Group(group_id="unknown", topics=None),
    ]
    groups = c.send(OffsetFetchRequest(groups=wanted), 8).reply.groups
    found = [
        (g.group_id, [(t.name, [p.committed_offset for p in t.partitions]) for t in g.topics], g.error_code)
        for g in groups
    ]
    assert found == [(GROUP, [("t", [5])], 0), ("g", [("t", [-1])], 0), ("unknown", [], 0)]


def test_fetch_errors_take_the_form_of_the_version() -> None:
    c = Client()
    c.unload()
    topics = [OffsetFetchRequest.Group.Topic(name="t", partition_indexes=[0])]
    v1 = c.send(OffsetFetchRequest(group_id=GROUP, topics=topics), 1).reply
    assert v1.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    assert c.send(OffsetFetchRequest(group_id=GROUP, topics=topics), 2).error is ErrorCode.NOT_COORDINATOR
    v8 = c.send(OffsetFetchRequest(groups=[OffsetFetchRequest.Group(group_id=GROUP, topics=topics)]), 8).reply
    assert v8.groups[0].error_code == ErrorCode.NOT_COORDINATOR


# -- delete ------------------------------------------------------------------------------------------------------------


def test_kip496_offsets_of_topics_nobody_subscribes_to_can_be_deleted() -> None:
    c = Client()
    (member,) = c.stable_group(None)
    c.commit(member, 1, {("t", 0): 1, ("u", 0): 2})
    reply = c.delete_offsets(("t", 0), ("u", 0), ("u", 9)).reply
    outcomes = [(t.name, [p.error_code for p in t.partitions]) for t in reply.topics]
    assert outcomes == [("t", [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]), ("u", [0]), ("u", [0])]
    assert c.fetched() == {("t", 0): 1}
    assert [value is None for value in c.offset_records()] == [False, False, True]


def test_offset_delete_refusals() -> None:
    c = Client()
    assert c.delete_offsets(("t", 0)).error is ErrorCode.GROUP_ID_NOT_FOUND
    assert c.delete_offsets(("t", 0), group="").error is ErrorCode.INVALID_GROUP_ID
    c.new_member(protocol_type="connect", protocols=(("p", b""),))
    assert c.delete_offsets(("t", 0)).error is ErrorCode.NON_EMPTY_GROUP


def test_df4_while_subscriptions_cannot_be_read_every_topic_counts_as_in_use() -> None:
    c = Client()
    (member,) = c.stable_group(None, protocols=(("range", b"\xff\xff"),))
    c.commit(member, 1)
    reply = c.delete_offsets(("u", 0)).reply
    assert reply.topics[0].partitions[0].error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


def test_deletion_is_visible_when_durable() -> None:
    c = Client()
    c.commit()
    c.auto_ack = False
    call = c.delete_offsets(("t", 0))
    assert call.parked
    assert c.fetched() == {("t", 0): 100}
    c.ack(ErrorCode.REQUEST_TIMED_OUT)
    assert call.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert c.fetched() == {("t", 0): 100}
    call = c.delete_offsets(("t", 0))
    c.ack()
    assert call.error is ErrorCode.NONE
    assert not c.coordinator.group_ids()


def test_offsets_of_deleted_topics_go_too_even_those_on_their_way_to_the_log() -> None:
    c = Client()
    (member,) = c.stable_group(None)
    c.commit(member, 1, {("t", 0): 1, ("u", 0): 2})
    c.auto_ack = False
    c.commit(member, 1, {("t", 1): 3})
    c.step(TopicsDeleted(("t",), c.wall_ms))
    c.ack()
    c.ack()
    assert c.fetched() == {("u", 0): 2}


# -- expiry ------------------------------------------------------------------------------------------------------------


def test_gc27_simple_group_from_the_commit() -> None:
    c = with_config(**EXPIRING)
    c.commit()
    c.advance(10_000)
    c.commit(offsets={("t", 1): 1})
    c.advance_to(RETENTION - 1)
    assert len(c.fetched()) == 2
    c.advance_to(RETENTION)
    assert c.fetched() == {("t", 1): 1}
    c.advance(10_000)
    assert not c.coordinator.group_ids()
    assert c.records()[-1][1] is None


def test_gc27_an_empty_group_from_when_it_became_empty() -> None:
    c = with_config(**EXPIRING)
    (member,) = c.stable_group(None, session=600_000)
    c.commit(member, 1)
    c.advance(10_000)
    c.leave(member)
    left = c.now
    c.advance_to(left + RETENTION - 1)
    assert c.fetched()
    c.advance_to(left + RETENTION)
    assert not c.coordinator.group_ids()
    assert [value for _, value in c.records()[-2:]] == [None, None]


def test_gc27_a_stable_group_keeps_topics_in_use() -> None:
    c = with_config(**EXPIRING)
    (member,) = c.stable_group(None, session=600_000)
    c.commit(member, 1, {("t", 0): 1, ("u", 0): 2})
    for _ in range(4):
        c.advance(10_000)
        assert c.heartbeat(member, 1) is ErrorCode.NONE
    assert c.fetched() == {("t", 0): 1}


@pytest.mark.parametrize(
    "options",
    [
        {"protocols": (("range", b"?"),)},
        {"protocol_type": "connect"},
    ],
)
def test_gc27_never_while_members_topics_are_unknown(options: dict) -> None:
    c = with_config(**EXPIRING)
    member, _ = c.new_member(session=600_000, **options)
    c.advance(3_000)
    c.sync(member, 1, {}, protocol_type=options.get("protocol_type", "consumer"))
    c.commit(member, 1)
    for _ in range(4):
        c.advance(10_000)
        assert c.heartbeat(member, 1) is ErrorCode.NONE
    assert c.fetched()


@pytest.mark.parametrize("state", [GroupState.PREPARING, GroupState.COMPLETING])
def test_gc27_never_during_a_rebalance(state: GroupState) -> None:
    c = with_config(**EXPIRING)
    (member,) = c.stable_group(None, session=600_000, rebalance=2 * RETENTION)
    c.commit(member, 1, {("u", 0): 2})
    c.advance(10_000)
    if state is GroupState.PREPARING:
        c.join(instance="i1", session=600_000, rebalance=2 * RETENTION)
    else:
        c.join(member, session=600_000, rebalance=2 * RETENTION)
    generation = c.group().generation
    for _ in range(8):
        c.advance(2_000)
        c.heartbeat(member, generation)
    assert c.state is state
    assert c.fetched()


def test_gc27_an_explicit_retention_wins() -> None:
    c = with_config(**EXPIRING)
    c.commit(retention=5_000, version=3)
    c.commit(offsets={("t", 1): 1}, retention=3 * RETENTION, version=3)
    c.advance_to(5_000)
    assert c.fetched() == {("t", 1): 1}
    c.advance_to(2 * RETENTION)
    assert c.fetched() == {("t", 1): 1}


def test_s6_an_offset_that_is_being_committed_again_does_not_expire() -> None:
    c = with_config(**EXPIRING)
    c.commit()
    c.advance_to(RETENTION - 1)
    c.auto_ack = False
    again = c.commit(offsets={("t", 0): 200})
    c.advance(1_000)
    while c.writes:
        c.ack()
    assert again.reply is not None
    assert c.fetched() == {("t", 0): 200}
    c.fail_over()
    assert c.fetched() == {("t", 0): 200}


def test_a_group_with_a_pending_id_is_not_expired_from_under_it() -> None:
    c = with_config(**EXPIRING)
    pending = c.join(session=60_000).reply.member_id
    c.advance(5_000)
    assert c.join(pending, protocols=RANGE, session=60_000).parked


def test_an_empty_group_without_offsets_goes_at_the_next_check() -> None:
    c = with_config(**EXPIRING)
    (member,) = c.stable_group(None, protocols=(("range", subscription("t")),))
    c.leave(member)
    c.advance(1_000)
    assert not c.coordinator.group_ids()
    assert c.group_records()[-1] is None
