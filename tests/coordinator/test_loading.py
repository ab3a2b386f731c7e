"""Taking over and giving up partitions: what survives, what waits, what is refused (GC-29, S6, S10)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roster.coordinator.events import TimerKind
from roster.coordinator.records import Replay
from roster.coordinator_common import PartitionLoaded, PartitionLoading, PartitionUnloaded
from roster.wire import ErrorCode
from roster.wire.messages import DescribeGroupsRequest, OffsetFetchRequest
from roster.wire.offsets_topic import GroupMetadataKey, GroupMetadataValue, encode_key, encode_value
from tests.coordinator.coordinator_harness import (
    CONFIG,
    GROUP,
    LOG_PARTITION,
    RANGE,
    Client,
    GroupState,
    subscription,
    with_config,
)


def test_a_stable_group_goes_on_as_if_nothing_had_happened() -> None:
    c = Client()
    ids = c.stable_group(None, "i1")
    c.commit(ids[0], 1)
    c.fail_over()
    assert c.state is GroupState.STABLE
    assert c.heartbeat(ids[0], 1) is ErrorCode.NONE
    assert c.heartbeat(ids[1], 1, instance="i1") is ErrorCode.NONE
    assert c.sync(ids[1], 1, instance="i1").reply.assignment == ids[1].encode()
    assert c.join(ids[1], instance="i1").reply.leader == ids[0]
    assert c.fetched() == {("t", 0): 100}


def test_sessions_start_over_when_loaded() -> None:
    c = Client()
    (member,) = c.stable_group(None)
    c.advance(4_000)
    c.fail_over()
    c.advance(4_999)
    assert c.heartbeat(member, 1) is ErrorCode.NONE
    c.advance(5_000)
    assert c.state is GroupState.EMPTY


def test_a_failover_in_the_join_phase_returns_to_the_stored_generation() -> None:
    c = Client()
    ids = c.stable_group(None, None)
    c.join(ids[0])
    c.fail_over()
    assert c.state is GroupState.STABLE
    assert c.heartbeat(ids[1], 1) is ErrorCode.NONE


def test_s10_a_generation_handed_out_is_not_handed_out_again() -> None:
    c = Client()
    ids = c.stable_group(None, None)
    for generation in (2, 3, 4):
        joins = c.rejoin_all(ids, protocols=((("range", bytes([generation]))),))
        assert {call.reply.generation_id for call in joins} == {generation}
    c.fail_over()
    assert c.heartbeat(ids[1], 4) is ErrorCode.NONE
    joins = c.rejoin_all(ids)
    assert {call.reply.generation_id for call in joins} == {5}


def test_s10_a_generation_that_another_coordinator_announced_without_storing_it_is_not_handed_out_again() -> None:
    """Apache Kafka and earlier releases of Roster store a generation with its assignment only."""
    c = Client()
    ids = c.stable_group(None, None)
    assert c.sync(ids[0], 4).error is ErrorCode.ILLEGAL_GENERATION
    assert {call.reply.generation_id for call in c.rejoin_all(ids)} == {5}


def test_s10_a_member_never_sees_its_generation_go_back_over_several_failovers() -> None:
    c = Client()
    (member,) = c.stable_group(None)
    seen = [1]
    for topic in "abcde":
        seen.append(c.join(member, protocols=(("range", subscription(topic)),)).reply.generation_id)
        c.fail_over()
        assert c.heartbeat(member, seen[-1]) is ErrorCode.NONE
    assert seen == [1, 2, 3, 4, 5, 6]


def test_a_claim_beyond_belief_does_not_move_the_generation() -> None:
    c = Client()
    (member,) = c.stable_group(None)
    c.heartbeat(member, 2**31 - 1)
    assert c.join(member).reply.generation_id == 2


@pytest.mark.parametrize("has_offsets", [False, True])
def test_s10_a_new_group_that_failed_over_before_its_first_generation_was_stored(has_offsets: bool) -> None:
    """With offsets the log may hold no record of the group itself."""
    c = Client()
    if has_offsets:
        c.commit()
    first = c.join(version=3)
    c.auto_ack = False
    c.advance(3_000)
    assert first.parked
    c.fail_over()
    assert c.state is GroupState.EMPTY
    c.auto_ack = True
    second = c.join(version=3)
    c.advance(3_000)
    assert second.reply.generation_id == 1


def test_an_empty_group_is_loaded_empty() -> None:
    c = Client()
    (member,) = c.stable_group(None)
    c.leave(member)
    c.fail_over()
    assert c.state is GroupState.EMPTY
    assert c.group().generation == 2
    assert c.group().protocol_type == "consumer"


def test_a_loaded_group_over_the_size_limit_rebalances() -> None:
    c = Client()
    ids = c.stable_group(None, None, None)
    c.config = replace(CONFIG, max_group_size=2)
    c.fail_over()
    assert c.state is GroupState.PREPARING
    calls = c.rejoin_all(ids)
    assert calls[2].error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert calls[0].reply.generation_id == calls[1].reply.generation_id > 1


def test_a_record_without_a_rebalance_timeout_means_the_session_timeout() -> None:
    member = GroupMetadataValue.Member(member_id="m", session_timeout=7_000, subscription=b"s", assignment=b"a")
    value = GroupMetadataValue(protocol_type="consumer", generation=3, protocol="range", leader="m", members=[member])
    c = Client(load=[(encode_key(GroupMetadataKey(group=GROUP)), encode_value(value, 0))])
    assert c.group().members["m"].rebalance_timeout_ms == 7_000
    assert c.group().state_since_ms is None
    assert c.sync("m", 3).reply.assignment == b"a"


# -- while loading, and when given up ----------------------------------------------------------------------------------


def outcomes(c: Client) -> dict[str, ErrorCode]:
    fetch = OffsetFetchRequest(groups=[OffsetFetchRequest.Group(group_id=GROUP, topics=None)])
    return {
        "join": c.join().error,
        "rejoin": c.join("m").error,
        "sync": c.sync("m", 1).error,
        "heartbeat": c.heartbeat("m", 1),
        "leave": c.leave("m").error,
        "commit": c.commit_error("m", 1),
        "fetch": ErrorCode(c.send(fetch, 9).reply.groups[0].error_code),
        "delete offsets": c.delete_offsets(("t", 0)).error,
        "describe": ErrorCode(c.send(DescribeGroupsRequest(groups=[GROUP]), 5).reply.groups[0].error_code),
        "delete": ErrorCode(c.delete_group().reply.results[0].error_code),
    }


def test_while_loading_everything_waits_except_heartbeats() -> None:
    c = Client()
    c.step(PartitionLoading(LOG_PARTITION))
    assert c.coordinator.owns(GROUP)
    found = outcomes(c)
    assert found.pop("heartbeat") is ErrorCode.NONE
    assert set(found.values()) == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    assert c.list_groups().error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    c.step(PartitionLoaded(LOG_PARTITION, (), c.wall_ms))
    assert c.join().error is ErrorCode.MEMBER_ID_REQUIRED


def test_partitions_not_owned_are_refused() -> None:
    c = Client()
    c.unload()
    assert not c.coordinator.owns(GROUP)
    assert set(outcomes(c).values()) == {ErrorCode.NOT_COORDINATOR}
    assert not c.list_groups().error_code
    assert c.join(group="g").error is ErrorCode.MEMBER_ID_REQUIRED


@pytest.mark.parametrize("event", [PartitionUnloaded(LOG_PARTITION), PartitionLoading(LOG_PARTITION)])
def test_giving_up_a_partition_answers_all_that_waits(event: PartitionUnloaded | PartitionLoading) -> None:
    c = Client()
    ids = c.stable_group(None, "i1", session=600_000)
    join = c.join(ids[0], session=600_000)
    c.join(version=3, group="g")
    c.auto_ack = False
    commit = c.commit(ids[1], 1, instance="i1")
    pending = c.join()
    c.step(event)
    assert pending.error is ErrorCode.MEMBER_ID_REQUIRED
    assert join.error is ErrorCode.NOT_COORDINATOR
    assert commit.reply.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    assert c.coordinator.group_ids() == ["g"]
    assert {name.group_id for name in c.timers if name.kind in {TimerKind.JOIN, TimerKind.SYNC, TimerKind.SESSION}} == {
        "g"
    }
    c.ack()
    assert c.coordinator.group_ids() == ["g"]


def test_giving_up_a_partition_answers_parked_syncs_restarts_leaves_and_deletions() -> None:
    c = Client()
    leader, follower = c.stable_group("l", "f")
    c.auto_ack = False
    restart = c.join(instance="f")
    c.unload()
    assert restart.error is ErrorCode.NOT_COORDINATOR
    c = Client()
    leader, follower = c.stable_group(None, None)
    c.rejoin_all([leader, follower])
    c.auto_ack = False
    syncs = [c.sync(follower, 2), c.sync(leader, 2, {})]
    c.unload()
    assert [call.error for call in syncs] == [ErrorCode.NOT_COORDINATOR] * 2
    c = Client()
    (member,) = c.stable_group(None)
    c.auto_ack = False
    leave = c.leave(member)
    delete = c.delete_group()
    c.unload()
    assert leave.error is ErrorCode.NOT_COORDINATOR
    assert delete.reply.results[0].error_code == ErrorCode.NOT_COORDINATOR


def test_loading_twice_replaces_what_was_known() -> None:
    c = Client()
    c.commit()
    c.step(PartitionLoaded(LOG_PARTITION, (), c.wall_ms))
    assert not c.coordinator.group_ids()


# -- a new group that cannot be written --------------------------------------------------------------------------------


def test_a_new_group_that_cannot_be_written_is_dissolved() -> None:
    c = Client()
    c.auto_ack = False
    parked = c.join(version=3)
    pending = c.join()
    c.ack(ErrorCode.KAFKA_STORAGE_ERROR)
    assert parked.error is ErrorCode.NOT_COORDINATOR
    assert not c.coordinator.group_ids()
    assert not [name for name in c.timers if name.kind is not TimerKind.OFFSET_EXPIRATION]
    assert c.join(pending.reply.member_id).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_whose_first_record_failed_late_lives_on() -> None:
    c = Client()
    c.auto_ack = False
    join = c.join(version=3)
    c.advance(3_000)
    c.ack(ErrorCode.KAFKA_STORAGE_ERROR)
    c.ack()
    sync = c.sync(join.reply.member_id, 1, {})
    c.ack()
    assert sync.error is ErrorCode.NONE
    c.fail_over()
    assert c.state is GroupState.STABLE


# -- compaction --------------------------------------------------------------------------------------------------------


def a_long_history() -> Client:
    c = with_config(offsets_retention_check_interval_ms=10**9, initial_rebalance_delay_ms=0)
    for round_ in range(3):
        member = c.join(version=3).reply.member_id
        generation = c.group().generation
        c.sync(member, generation, {member: bytes([round_])})
        c.commit(member, generation, {("t", 0): round_, ("u", round_): 9})
        c.leave(member)
        c.delete_offsets(("u", round_))
        c.commit(group=GROUP, offsets={("v", 0): round_})
        if round_ == 1:
            c.delete_group()
    last = c.join(version=3).reply.member_id
    c.sync(last, c.group().generation, {last: b"last"})
    c.commit(last, c.group().generation, {("t", 5): 50})
    return c


def loaded(records: list[tuple[bytes, bytes | None]]) -> tuple:
    replay = Replay(LOG_PARTITION)
    replay.apply_all(records)
    assert not replay.unreadable
    return {
        group_id: (
            group.state,
            group.generation,
            group.offsets,
            {m.member_id: m.assignment for m in group.members.values()},
        )
        for group_id, group in replay.groups.items()
    }


HISTORY = a_long_history().log[LOG_PARTITION]


@given(st.data())
def test_gc29_any_compaction_of_the_log_loads_the_same(data: st.DataObject) -> None:
    latest = {key: index for index, (key, _) in enumerate(HISTORY)}
    kept = [
        record
        for index, record in enumerate(HISTORY)
        if latest[record[0]] == index or data.draw(st.booleans(), label=f"keep {index}")
    ]
    assert loaded(kept) == loaded(HISTORY)


@given(st.integers(0, len(HISTORY)))
def test_gc29_tombstones_may_be_gone_with_what_they_deleted(start: int) -> None:
    latest = {key: index for index, (key, _) in enumerate(HISTORY)}
    cleaned = [
        record
        for index, record in enumerate(HISTORY)
        if index >= start or (latest[record[0]] == index and record[1] is not None)
    ]
    assert loaded(cleaned) == loaded(HISTORY)


@given(st.lists(st.sampled_from(range(len(HISTORY)))))
def test_gc29_any_subset_of_the_log_loads(indexes: list[int]) -> None:
    c = Client(load=[HISTORY[index] for index in sorted(indexes)])
    c.join(version=3)
    c.advance(1_000_000)


@given(st.lists(st.tuples(st.binary(max_size=40), st.none() | st.binary(max_size=40))))
def test_unreadable_records_are_left_out(records: list[tuple[bytes, bytes | None]]) -> None:
    c = Client(load=records)
    assert c.coordinator.unreadable_records <= len(records)


def test_unreadable_records_are_counted() -> None:
    good = encode_key(GroupMetadataKey(group=GROUP))
    c = Client(load=[(b"", None), (good, b"\x00\x03\xff"), (b"\x00\x09anything", b"")])
    assert c.coordinator.unreadable_records == 2


def test_acknowledged_offsets_survive_a_group_tombstone_of_their_own_group() -> None:
    c = Client()
    c.commit()
    c.log[LOG_PARTITION].append((encode_key(GroupMetadataKey(group=GROUP)), None))
    c.fail_over()
    assert c.fetched() == {("t", 0): 100}
    assert RANGE[0][1] == subscription("t")
