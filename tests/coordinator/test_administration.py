"""ListGroups, DescribeGroups, DeleteGroups, and the configuration."""

from __future__ import annotations

import pytest

from roster.coordinator import CoordinatorConfig
from roster.coordinator.events import TimerKind
from roster.coordinator.group import Group
from roster.coordinator.states import Trigger
from roster.coordinator_common import IllegalTransitionError
from roster.wire import ErrorCode
from roster.wire.messages import DescribeGroupsRequest, ListGroupsRequest
from tests.coordinator.coordinator_harness import GROUP, Client, GroupState, subscription


def three_groups() -> Client:
    c = Client()
    c.stable_group(None)
    c.commit(group="simple")
    c.join(version=3, group="joining", protocol_type="connect")
    return c


def listed(reply: object) -> set[tuple[str, str, str, str]]:
    return {(g.group_id, g.protocol_type, g.group_state, g.group_type) for g in reply.groups}


def test_groups_are_listed_with_type_and_state() -> None:
    assert listed(three_groups().list_groups()) == {
        (GROUP, "consumer", "Stable", "classic"),
        ("simple", "", "Empty", "classic"),
        ("joining", "connect", "PreparingRebalance", "classic"),
    }


@pytest.mark.parametrize(
    ("states", "types", "found"),
    [
        (["Stable"], [], {GROUP}),
        ([" stable ", "EMPTY"], [], {GROUP, "simple"}),
        (["nonsense"], [], set()),
        ([], ["Classic"], {GROUP, "simple", "joining"}),
        ([], ["consumer", "share"], set()),
        (["PreparingRebalance"], ["classic", "consumer"], {"joining"}),
    ],
)
def test_kip518_kip848_list_filters_ignore_case(states: list[str], types: list[str], found: set[str]) -> None:
    assert {g[0] for g in listed(three_groups().list_groups(states, types))} == found


@pytest.mark.parametrize("version", range(6))
def test_every_version_can_list(version: int) -> None:
    assert len(three_groups().send(ListGroupsRequest(), version).reply.groups) == 3


def test_a_stable_group_is_described_with_metadata_and_assignments() -> None:
    c = Client()
    dynamic, static = c.stable_group(None, "i1")
    group = c.describe()
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
    members = {m.member_id: m for m in group.members}
    assert members[static].group_instance_id == "i1"
    assert members[dynamic].client_id == "client"
    assert members[dynamic].client_host == "/127.0.0.1"
    assert members[dynamic].member_metadata == subscription("t")
    assert members[dynamic].member_assignment == dynamic.encode()


def test_a_rebalancing_group_is_described_without_metadata() -> None:
    c = Client()
    ids = c.stable_group(None, None)
    c.join(ids[0])
    group = c.describe()
    assert (group.group_state, group.protocol_data) == ("PreparingRebalance", "")
    assert [m.member_metadata for m in group.members] == [b"", b""]


@pytest.mark.parametrize("version", range(7))
def test_an_unknown_group_is_dead_and_from_v6_on_an_error(version: int) -> None:
    group = Client().send(DescribeGroupsRequest(groups=["no"]), version).reply.groups[0]
    assert group.group_state == "Dead"
    assert group.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE)


def test_only_empty_groups_can_be_deleted() -> None:
    c = three_groups()
    results = {
        r.group_id: ErrorCode(r.error_code) for r in c.delete_group(GROUP, "simple", "no", "simple").reply.results
    }
    assert results == {
        GROUP: ErrorCode.NON_EMPTY_GROUP,
        "simple": ErrorCode.NONE,
        "no": ErrorCode.GROUP_ID_NOT_FOUND,
    }
    assert set(c.coordinator.group_ids()) == {GROUP, "joining"}
    c.fail_over()
    assert "simple" not in c.coordinator.group_ids()


def test_deleting_a_group_deletes_its_offsets_those_on_their_way_too() -> None:
    c = Client()
    c.commit()
    c.auto_ack = False
    c.commit(offsets={("t", 1): 1})
    call = c.delete_group()
    c.ack()
    assert call.parked
    assert c.describe().group_state == "Dead"
    c.ack()
    assert call.reply.results[0].error_code == 0
    assert not c.fetched()
    c.fail_over()
    assert not c.coordinator.group_ids()


def test_a_deletion_that_fails_leaves_the_group_as_it_was() -> None:
    c = Client()
    (member,) = c.stable_group(None)
    c.commit(member, 1)
    c.leave(member)
    since = c.group().state_since_ms
    c.advance(10)
    c.fail_with = ErrorCode.REQUEST_TIMED_OUT
    assert c.delete_group().reply.results[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (c.state, c.group().state_since_ms) == (GroupState.EMPTY, since)
    assert c.fetched() == {("t", 0): 100}


def test_the_answer_to_deleting_several_groups_waits_for_the_last() -> None:
    c = Client()
    c.commit()
    c.commit(group="g")
    c.auto_ack = False
    call = c.delete_group(GROUP, "g")
    c.ack(ErrorCode.KAFKA_STORAGE_ERROR)
    assert call.parked
    c.ack()
    assert {r.group_id: r.error_code for r in call.reply.results} == {GROUP: ErrorCode.NOT_COORDINATOR, "g": 0}


def test_deleting_a_group_voids_its_pending_ids() -> None:
    c = Client()
    pending = c.join().reply.member_id
    c.delete_group()
    assert c.join(pending).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert not [name for name in c.timers if name.kind is TimerKind.SESSION]


# -- the machine's own rules -------------------------------------------------------------------------------------------


def test_s11_an_illegal_transition_is_an_error() -> None:
    with pytest.raises(IllegalTransitionError, match="assignment stored in state Empty"):
        Group("g", 0).transition(Trigger.ASSIGNMENT_STORED, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"partitions": 0},
        {"min_session_timeout_ms": 0},
        {"min_session_timeout_ms": 10, "max_session_timeout_ms": 9},
        {"initial_rebalance_delay_ms": -1},
        {"max_group_size": 0},
        {"offsets_retention_check_interval_ms": 0},
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}.*( is not a whole number from | must )"):
        CoordinatorConfig(**wrong)


def test_gc30_the_partition_of_a_group() -> None:
    c = Client()
    names = ("group-id", "g", "my-group", "")
    assert [c.coordinator.partition_of(name) for name in names] == [13, 3, 12, 0]
