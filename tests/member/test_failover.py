"""Members and a coordinator that dies at each step of a rebalance, in virtual time.

Tests are named after sentences of the client-side assignment proposal ("Handling Coordinator Failures").
"""

from __future__ import annotations

from functools import cache
from random import Random

import pytest

from roster.coordinator.group import GroupState
from roster.member.events import Closed, RebalanceRequested, RequestFailed
from roster.wire import ErrorCode, Message
from roster.wire.messages import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    MetadataRequest,
    OffsetCommitRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tests.examples_tried import examples
from tests.member.simulated_group import GROUP, REBALANCE, SESSION, Faults, World
from tests.member.stage import Stage, assignment, group_of, parts
from tests.simulation.node import Call
from tests.simulation.setting import Fate

SETTLE = 2 * (SESSION + REBALANCE)
COOPERATIVE = ("cooperative-sticky",)
EAGER = ("sticky",)


# -- every write of a record, every outcome ----------------------------------------------------------------------------


def eventful(assignors: tuple[str, ...], fates: dict[int, tuple[Fate, int]]) -> World:
    """A group's life: members join, a topic grows, a static member restarts, one leaves, one is killed, one joins."""
    world = World(1, {"t": 6, "u": 2}, Faults(delay=10))
    world.planned = fates
    first = [world.join(f"m{n}", assignors) for n in range(2)]
    static = world.join("static", assignors, instance="i")
    world.run(4_000)
    world.grow("t", 8)
    world.run(3_000)
    static.kill()
    world.join("static'", assignors, instance="i")
    world.run(5_000)
    world.grow("u", 4)
    world.run(300)
    world.actors[-1].kill()
    world.join("static''", assignors, instance="i")
    world.run(6_000)
    first[0].feed(Closed())
    world.run(4_000)
    first[1].kill()
    world.join("last", assignors)
    world.run(SETTLE)
    return world


@cache
def writes(assignors: tuple[str, ...]) -> int:
    """The number of records of the group that this life takes without faults."""
    return eventful(assignors, {}).group_writes


def cases(assignors: tuple[str, ...]) -> list[tuple[int, Fate, int]]:
    every = [(n, fate, downtime) for n in range(1, writes(assignors) + 1) for fate in Fate for downtime in (20, 3_000)]
    return Random(len(every)).sample(every, min(len(every), examples(24, "ROSTER_FAILOVERS")))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("assignors", [COOPERATIVE, EAGER], ids=lambda names: str(names[0]))
def test_a_coordinator_may_die_at_every_write_of_a_record(assignors: tuple[str, ...]) -> None:
    """When it is back the group is Stable and complete; no acknowledged commit is lost, no generation goes back."""
    assert writes(assignors) >= 10, "two records for each rebalance"
    for number, fate, downtime in cases(assignors):
        world = eventful(assignors, {number: (fate, downtime)})
        world.check_settled()
        rounds = world.rounds
        world.run(20_000)
        assert world.rounds == rounds, "no rebalance while idle"
        assert not any(actor.fenced for actor in world.living)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("fate", Fate, ids=lambda fate: fate.name.lower())
@pytest.mark.parametrize("downtime", [1, 20, 500])
def test_cooperative_members_keep_what_they_own_over_a_failover(fate: Fate, downtime: int) -> None:
    """At both records of a rebalance, of its generation and of its assignment."""
    for seed in range(examples(4, "ROSTER_FAILOVERS", quick=2)):
        for record in (1, 2):
            world = World(seed, {"t": 6}, Faults(delay=2))
            members = [world.join(f"m{n}", COOPERATIVE) for n in range(3)]
            world.run(6_000)
            world.planned = {world.group_writes + record: (fate, downtime)}
            world.grow("t", 7)
            world.run(15_000)
            assert [member.losses for member in members] == [[], [], []]
            world.check_settled()


@pytest.mark.parametrize("downtime", [1, 20, 500])
def test_a_coordinator_that_dies_while_the_leader_assigns_costs_no_partition_and_no_rebalance(downtime: int) -> None:
    for seed in range(examples(4, "ROSTER_FAILOVERS", quick=2)):
        world = World(seed, {"t": 6}, Faults(delay=2))
        members = [world.join(f"m{n}", COOPERATIVE) for n in range(3)]
        world.run(6_000)
        rounds = world.rounds

        def crash(world: World = world) -> None:
            coordinator = world.leader.coordinator
            group = None if coordinator is None else coordinator.group(GROUP)
            if group is not None and group.state is GroupState.COMPLETING:
                world.crash_leader(downtime)
            else:
                world.after(1, crash)

        crash()
        world.grow("t", 7)
        world.run(15_000)
        assert world.counts["coordinator crash"] == 1
        assert [member.losses for member in members] == [[], [], []]
        assert world.rounds == rounds + 1
        world.check_settled()


# -- SyncGroup is sent again -------------------------------------------------------------------------------------------


def test_a_member_that_lost_the_sync_group_response_initiates_sync_group_upon_failover() -> None:
    """Without forcing other members to resync."""
    world = World(5, {"t": 6}, Faults(delay=2))
    for number in range(3):
        world.join(f"m{number}", ("range",))
    world.run(60_000)
    before, node, answer = world.rounds, world.leader, world.leader.answer
    lost: list[Call] = []

    def lose_one(token: int, message: Message) -> None:
        call = node.calls[token]
        answer(token, message)
        if (
            isinstance(message, SyncGroupResponse)
            and not message.error_code
            and not call.message.assignments
            and not lost
        ):  # type: ignore[attr-defined]
            lost.append(call)
            world.network.reset(call.connection)

    node.answer = lose_one  # type: ignore[method-assign]
    world.grow("t", 9)
    world.run(60_000)
    assert lost
    assert world.rounds - before == 1
    world.check_settled()


def completing(**options: object) -> Stage:
    """A member that owns t-0 and t-1 and waits for SyncGroup in generation 2 when its coordinator is lost."""
    stage = Stage(assignors=COOPERATIVE, **options)
    stage.stable("t-0 t-1")
    stage.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    stage.joined(generation=2)
    lose_coordinator(stage, SyncGroupRequest)
    return stage


def lose_coordinator(stage: Stage, kind: type[Message]) -> None:
    number = next(n for n, send in stage.open.items() if isinstance(send.message, kind))
    del stage.open[number]
    stage.step(RequestFailed(number, "connection lost"))


def test_a_member_re_initiates_the_same_sync_group_once_the_new_coordinator_is_ready() -> None:
    stage = completing()
    assert not stage.has(SyncGroupRequest)
    stage.find_coordinator()
    stage.wait(1_200)
    request = stage.request(SyncGroupRequest)
    assert (request.generation_id, request.member_id) == (2, "m")
    assert not stage.has(JoinGroupRequest)
    stage.synced("t-0 t-1")
    assert stage.owns.partitions == parts("t-0 t-1")


@pytest.mark.parametrize("while_assigning", [False, True])
def test_a_leader_re_initiates_its_sync_group_with_the_same_assignments(while_assigning: bool) -> None:
    stage = Stage()
    stage.start()
    stage.joined(leader="m", members=group_of(m="t", n="t"))
    stage.know({"t": 2})
    if while_assigning:
        stage.wait(stage.config.heartbeat_interval_ms)
        lose_coordinator(stage, HeartbeatRequest)
        stage.assigned(m="t-0", n="t-1")
    else:
        stage.assigned(m="t-0", n="t-1")
        lose_coordinator(stage, SyncGroupRequest)
    assert not stage.has(SyncGroupRequest)
    stage.find_coordinator()
    stage.wait(1_200)
    given = {row.member_id: row.assignment for row in stage.request(SyncGroupRequest).assignments}
    assert given == {"m": assignment("t-0"), "n": assignment("t-1")}


def test_a_coordinator_that_is_named_and_not_there_is_looked_for_less_and_less_often() -> None:
    """The other brokers name a dead coordinator until the cluster has noticed its death."""
    stage = Stage(assignors=COOPERATIVE, heartbeat_interval_ms=1_000)
    stage.stable("t-0")
    stage.wait(1_000)
    lose_coordinator(stage, HeartbeatRequest)
    pauses = []
    for _ in range(6):
        began = stage.now
        while not stage.has(FindCoordinatorRequest):
            stage.wait(1)
        pauses.append(stage.now - began)
        stage.find_coordinator()
        lose_coordinator(stage, HeartbeatRequest)
    assert pauses[0] == 0, "the one that was lost worked until then"
    assert all(pause >= 80 for pause in pauses[1:])
    assert pauses[-1] >= 800
    stage.wait(1_200)
    stage.find_coordinator()
    stage.heartbeat()
    assert stage.owns.partitions == parts("t-0")
    stage.wait(1_000)
    lose_coordinator(stage, HeartbeatRequest)
    assert stage.has(FindCoordinatorRequest), "one that has worked is looked for at once"


def test_a_coordinator_that_is_named_and_not_there_is_not_asked_for_in_a_loop_before_an_assignment() -> None:
    """Heartbeats go on while SyncGroup waits to be sent again, and find that it is not there."""
    stage = completing()
    for _ in range(4):
        stage.find_coordinator()
        lose_coordinator(stage, HeartbeatRequest)
        assert not stage.has(FindCoordinatorRequest)
        began = stage.now
        while not stage.has(FindCoordinatorRequest):
            stage.wait(1)
        assert stage.now - began >= 80


@pytest.mark.parametrize("api", ["SyncGroup", "Heartbeat"])
def test_a_coordinator_that_does_not_know_the_generation_costs_no_partition(api: str) -> None:
    """Apache Kafka stores a generation with its assignment only, so its new coordinator refuses what was announced."""
    stage = completing()
    stage.find_coordinator()
    stage.wait(1_200)
    if api == "Heartbeat":
        stage.heartbeat(ErrorCode.ILLEGAL_GENERATION)
    stage.answer(SyncGroupRequest, SyncGroupResponse(error_code=ErrorCode.ILLEGAL_GENERATION))
    assert stage.owns.partitions == parts("t-0 t-1")
    assert stage.request(JoinGroupRequest).member_id == "m"


def test_a_generation_that_was_in_doubt_is_not_once_its_sync_group_succeeded() -> None:
    stage = completing()
    stage.find_coordinator()
    stage.wait(1_200)
    stage.synced("t-0 t-1")
    stage.heartbeat(ErrorCode.ILLEGAL_GENERATION)
    assert stage.owns.lost == parts("t-0 t-1")


def test_a_member_that_resends_its_join_group_sends_no_heartbeat_of_the_generation_before() -> None:
    stage = Stage(assignors=COOPERATIVE)
    stage.stable("t-0 t-1")
    stage.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    lose_coordinator(stage, JoinGroupRequest)
    stage.find_coordinator()
    assert not stage.has(HeartbeatRequest)
    stage.wait(1_200)
    assert stage.has(JoinGroupRequest)
    assert stage.owns.partitions == parts("t-0 t-1")


# -- the leader and the topics -----------------------------------------------------------------------------------------


def test_the_leader_is_responsible_for_topic_changes_while_it_restarts_too() -> None:
    world = World(4, {"t": 6}, Faults())
    members = [world.join(f"m{n}", ("range",), instance=f"i{n}") for n in range(2)]
    world.run(60_000)
    (leader,) = [m for m in members if m.member.leader]
    rounds = world.rounds
    leader.kill()
    world.grow("t", 9)
    world.run(1_000)
    world.join("again", ("range",), instance=leader.config.group_instance_id)
    world.run(60_000)
    world.check_settled()
    assert world.rounds == rounds + 1


def returned_leader() -> Stage:
    """A static leader that returned, of a group that reads t and u; its DescribeGroups is open."""
    stage = Stage(group_instance_id="i", metadata_max_age_ms=10_000)
    stage.start()
    stage.joined(leader="m", skip_assignment=True, members=group_of(m="t", n="t u"))
    stage.synced("t-0")
    assert not stage.has(DescribeGroupsRequest), "the topics are not known yet"
    stage.know({"t": 2, "u": 3})
    assert stage.request(DescribeGroupsRequest).groups == ["g"]
    return stage


def describe(stage: Stage, m: str, n: str, state: str = "Stable") -> None:
    members = [
        DescribeGroupsResponse.Member(member_id=name, member_assignment=assignment(text))
        for name, text in (("m", m), ("n", n))
    ]
    group = DescribeGroupsResponse.Group(group_id="g", group_state=state, members=members)
    stage.answer(DescribeGroupsRequest, DescribeGroupsResponse(groups=[group]))


@pytest.mark.parametrize(
    ("n", "reason"),
    [
        ("t-1 u-0 u-1 u-2", None),
        ("t-1 u-0 u-1 u-2 z-0", None),
        ("t-1 u-0 u-1", "cached metadata has changed (u: 2 -> 3)"),
        ("t-1", "cached metadata has changed (u: none -> 3)"),
        ("t-1 t-2 u-0 u-1 u-2", "cached metadata has changed (t: 3 -> 2)"),
        ("t-1 u-0 u-2", "cached metadata has changed (u: 2 -> 3)"),  # u-1 was to be handed over when its owner died
    ],
)
def test_a_returning_static_leader_compares_the_topics_with_the_assignment_that_the_group_kept(
    n: str, reason: str | None
) -> None:
    stage = returned_leader()
    describe(stage, "t-0", n)
    assert stage.has(JoinGroupRequest) is (reason is not None)
    if reason is not None:
        assert stage.request(JoinGroupRequest).reason == reason


def returned_follower(owns: str, topics: str = "t u") -> Stage:
    stage = Stage(group_instance_id="i", selection=frozenset(topics.split()))
    stage.start()
    stage.joined(5)
    stage.synced(owns)
    assert not stage.has(DescribeGroupsRequest), "the topics are not known yet"
    return stage


@pytest.mark.parametrize(
    ("n", "reason"),
    [
        ("t-1", "no member of the group reads u"),
        ("t-1 u-0", None),  # what the leader has still to give is its affair
    ],
)
def test_a_returning_static_follower_joins_again_if_nobody_reads_one_of_its_topics(n: str, reason: str | None) -> None:
    """Apache Kafka's coordinator keeps the assignment when a static follower returns with another subscription."""
    stage = returned_follower("t-0", "t u missing")
    stage.know({"t": 2, "u": 3})
    describe(stage, "t-0", n)
    assert stage.has(JoinGroupRequest) is (reason is not None)
    if reason is not None:
        assert stage.request(JoinGroupRequest).reason == reason
        assert stage.claims().generation_id == 5, "other bytes than those it returned with: the coordinator acts on it"
        stage.joined(6)
        stage.synced("t-0")
    stage.wait(2_000)
    assert not stage.has(DescribeGroupsRequest), "once is enough, whatever the leader made of it"


def test_a_returning_static_follower_that_has_all_of_its_topics_does_not_ask() -> None:
    stage = returned_follower("t-0 u-0")
    stage.know({"t": 2, "u": 3})
    assert not stage.has(DescribeGroupsRequest)


@pytest.mark.parametrize("instance", [None, "i"])
def test_a_follower_that_has_not_returned_does_not_ask(instance: str | None) -> None:
    stage = Stage(group_instance_id=instance)
    stage.start()
    stage.joined(1)
    stage.synced("t-0")
    stage.step(RebalanceRequested("again"))
    if instance is None:
        assert not stage.has(MetadataRequest)
    else:
        stage.know({"t": 2})
    stage.release("t-0")
    stage.joined(2)
    stage.synced("")
    assert not stage.has(MetadataRequest)
    assert not stage.has(DescribeGroupsRequest)


def test_a_follower_asks_for_metadata_again_that_was_not_to_be_had() -> None:
    stage = returned_follower("t-0")
    (number,) = [n for n, send in stage.open.items() if isinstance(send.message, MetadataRequest)]
    del stage.open[number]
    stage.step(RequestFailed(number, "no connection"))
    stage.wait(2_000)
    stage.know({"t": 2, "u": 3})
    assert stage.has(DescribeGroupsRequest)


def test_a_group_that_rebalances_is_not_compared() -> None:
    stage = returned_leader()
    describe(stage, "", "", state="PreparingRebalance")
    assert not stage.has(JoinGroupRequest)
    assert not stage.has(DescribeGroupsRequest)


@pytest.mark.parametrize("error", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR])
def test_the_assignment_is_asked_for_again_after_an_error_that_passes(error: ErrorCode) -> None:
    stage = returned_leader()
    group = DescribeGroupsResponse.Group(group_id="g", error_code=error)
    stage.answer(DescribeGroupsRequest, DescribeGroupsResponse(groups=[group]))
    if error is ErrorCode.NOT_COORDINATOR:
        stage.find_coordinator()
    stage.wait(1_200)
    describe(stage, "t-0", "t-1")
    assert stage.has(JoinGroupRequest)


def test_without_leave_to_describe_the_group_its_leader_goes_on() -> None:
    stage = returned_leader()
    group = DescribeGroupsResponse.Group(group_id="g", error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    stage.answer(DescribeGroupsRequest, DescribeGroupsResponse(groups=[group]))
    assert not stage.has(DescribeGroupsRequest)
    assert any("DescribeGroups failed" in report.text for report in stage.reports)
    stage.wait(1_200)
    assert stage.owns.partitions == parts("t-0")


@pytest.mark.parametrize(("generation", "missed"), [(2, False), (3, True)])
def test_a_static_member_that_missed_a_generation_commits_nothing_of_what_it_has_to_give_up(
    generation: int, missed: bool
) -> None:
    """The coordinator keeps it in the group (KIP-345), so another member may own that since then."""
    stage = Stage(assignors=("cooperative-sticky",), group_instance_id="i")
    stage.stable("t-0 t-1")
    epoch = stage.owns.epoch
    stage.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    stage.joined(generation)
    stage.synced("t-0")
    assert stage.owns.partitions == parts("t-0")
    assert stage.owns.revoking == (frozenset() if missed else parts("t-1"))
    assert stage.owns.lost == (parts("t-1") if missed else frozenset())
    stage.commit("t-1", epoch=epoch)
    assert stage.has(OffsetCommitRequest) is not missed
    if not missed:
        stage.release("t-1")
    assert stage.has(JoinGroupRequest)
