"""The assignor of a group of tasks: what a member sends, what the leader answers, one clear error for each mistake."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.assignors import JoinContext
from roster.member import task_assignor
from roster.member.assign_group import lead
from roster.member.subscription import decode_assignment, subscription_bytes
from roster.member.task_assignor import TaskAssignor
from roster.member.task_options import TaskOptions
from roster.model import NO_GENERATION, TopicPartition
from roster.model.tasks import TaskId
from roster.model.topology import Subtopology, TopologyError
from roster.wire.consumer.messages import Subscription, decode_subscription, encode_subscription
from roster.wire.streams.assignment_info import AssignmentInfo, decode_assignment_info, encode_assignment_info
from roster.wire.streams.subscription_info import (
    MAX_CAPACITY,
    SubscriptionInfo,
    decode_subscription_info,
    encode_subscription_info,
)
from tests.examples_tried import examples
from tests.wire.task_infos import subscriptions

COUNTS = (Subtopology(0, ["a", "b"], ["counts"]), Subtopology(1, ["c"]))
TOPICS = frozenset("abc")
PARTITIONS = {"a": 2, "b": 2, "c": 2}


def assignor(name="m", gaps=None, topology=COUNTS, **options):
    return TaskAssignor(TaskOptions(subtopologies=topology, **options), name.encode().ljust(16), gaps)


def joining(member, owned=(), **more):
    join = JoinContext(topics=member.options.topics, owned=frozenset(owned), **{"generation": 1, **more})
    return subscription_bytes(member, join)


def lags(member):
    return decode_subscription_info(decode_subscription(joining(member)).user_data).tasks.as_dict()


def sources(*tasks):
    return frozenset(p for task in tasks for p in COUNTS_OPTIONS.task_partitions(task))


COUNTS_OPTIONS = TaskOptions(subtopologies=COUNTS)


def answers(leader, members, partitions=PARTITIONS):
    """{name: (its partitions, its AssignmentInfo)}."""
    given = {name: decode_assignment(data) for name, data in lead(leader, members, partitions).items()}
    return {name: (each.partitions, decode_assignment_info(each.user_data)) for name, each in given.items()}


def test_a_task_lost_before_its_store_was_restored_is_joined_with_its_gap():
    member = assignor()
    running = [TaskId(0, 0), TaskId(0, 1)]
    info = AssignmentInfo(version=5, commonly_supported=5, active=running)
    member.on_assignment(sources(*running), encode_assignment_info(info), 1)
    member.report({TaskId(0, 0): 500}, running)
    assert lags(member) == {TaskId(0, 0): 500, TaskId(0, 1): 0}, "one that runs need not be named"


def outside(member):
    """What it joins with outside the group."""
    sent = decode_subscription(joining(member, generation=NO_GENERATION)).user_data
    return decode_subscription_info(sent).tasks.as_dict()


def test_a_member_that_lost_the_group_claims_no_store_until_it_has_looked_at_it_again():
    member = assignor(gaps={TaskId(0, 0): 7}, acceptable_lag=50)
    assert outside(member) == {TaskId(0, 0): 7}, "looked at before the first join"
    info = AssignmentInfo(version=5, commonly_supported=5, active=[TaskId(0, 0)])
    member.on_assignment(sources(TaskId(0, 0)), encode_assignment_info(info), 1)
    member.report({TaskId(0, 1): 0}, [TaskId(0, 0)])
    assert lags(member) == {TaskId(0, 0): 0, TaskId(0, 1): 0}
    assert outside(member) == {}
    assert outside(member) == {}, "nor in the next attempt"
    assert member.report({TaskId(0, 0): 38_740, TaskId(0, 1): 9}) is None, "it has not joined yet"
    assert outside(member) == {TaskId(0, 0): 38_740, TaskId(0, 1): 9}


@pytest.mark.parametrize(("gaps", "reason"), [({}, None), ({TaskId(0, 1): 40_000}, "looked again at 0_1")])
def test_what_a_member_finds_after_it_lost_the_group_is_told_to_the_leader_once(gaps, reason):
    member = assignor(acceptable_lag=50)
    member.report({}, [TaskId(0, 0), TaskId(0, 1)])
    assert outside(member) == {}
    info = AssignmentInfo(version=5, commonly_supported=5, active=[TaskId(0, 0)])
    member.on_assignment(sources(TaskId(0, 0)), encode_assignment_info(info), 2)
    assert member.report(gaps, [TaskId(0, 0)]) == reason
    assert member.report(gaps, [TaskId(0, 0)]) is None


def test_a_task_that_runs_is_joined_with_its_gap_while_its_store_is_restored():
    member = assignor(gaps={TaskId(0, 0): 255_000, TaskId(0, 1): 10_000}, acceptable_lag=10_000)
    owned = sources(TaskId(0, 0), TaskId(0, 1), TaskId(1, 0))
    sent = decode_subscription_info(decode_subscription(joining(member, owned)).user_data).tasks.as_dict()
    assert sent == {TaskId(0, 0): 255_000, TaskId(0, 1): 0, TaskId(1, 0): -1}
    info = AssignmentInfo(version=5, commonly_supported=5, standby=[TaskId(0, 0), TaskId(0, 1)])
    member.on_assignment(frozenset(), encode_assignment_info(info), 2)
    assert member.report({TaskId(0, 0): 7, TaskId(0, 1): 0}) == "caught up on 0_0"


def test_a_task_goes_from_an_owner_that_restores_it_to_a_copy_that_is_whole():
    """The owner gives up what it has to restore, and keeps what it has, whatever the tasks' numbers."""
    behind = {TaskId(0, 0): 1_000_000, TaskId(0, 1): 0}
    for gaps in (behind, {TaskId(0, task.partition ^ 1): gap for task, gap in behind.items()}):
        owner, other = assignor("owner", gaps), assignor("other", dict.fromkeys(gaps, 0))
        owned = sources(*gaps)
        told = answers(owner, {"owner": joining(owner, owned), "other": joining(other)})
        assert [gaps[task] for task in told["owner"][1].active if task in gaps] == [0]


def test_a_task_lost_before_it_had_a_store_is_not_joined_with():
    member = assignor()
    info = AssignmentInfo(version=5, commonly_supported=5, active=[TaskId(0, 0)])
    member.on_assignment(sources(TaskId(0, 0)), encode_assignment_info(info), 1)
    member.report({})
    assert lags(member) == {}, "the last assignment is void: the leader would take an empty store for a caught-up copy"


@pytest.mark.parametrize(
    ("is_static", "generation", "asks"),
    [
        pytest.param(True, NO_GENERATION, True, id="a static member that starts again"),
        pytest.param(True, 4, False, id="a static member that joins again"),
        pytest.param(False, NO_GENERATION, False, id="a new member"),
    ],
)
def test_a_member_asks_for_a_rebalance_if_the_leader_may_not_know_what_it_has_caught_up_on(is_static, generation, asks):
    member = assignor(gaps={TaskId(0, 1): 3})
    joining(member, is_static=is_static, generation=generation)
    info = AssignmentInfo(version=5, commonly_supported=5, standby=[TaskId(0, 1)])
    member.on_assignment(sources(), encode_assignment_info(info), 5)
    assert (member.report({TaskId(0, 1): 3}) is not None) is asks
    joining(member, is_static=is_static, generation=5)
    member.on_assignment(sources(), encode_assignment_info(info), 6)
    assert member.report({TaskId(0, 1): 3}) is None


def test_the_bytes_of_a_subscription_are_the_documents():
    member = assignor(gaps={TaskId(0, 1): 1234, TaskId(0, 0): 7, TaskId(9, 9): 5}, host="h:9092")
    data = decode_subscription(joining(member, sources(TaskId(0, 0), TaskId(1, 1)))).user_data
    rows = struct.pack(">i", 3) + struct.pack(">9i", 0, 0, 0, 0, 1, 1234, 1, 1, -1)
    host = struct.pack(">H", 1) + b"h" + struct.pack(">i", 9092)
    assert data == struct.pack(">ii", 5, 5) + b"m".ljust(16) + rows + host


def test_the_bytes_of_an_assignment_are_the_documents():
    member = assignor(host="h:9092")
    ((data,),) = [lead(member, {"m": joining(member)}, PARTITIONS).values()]
    task = [struct.pack(">ii", *each) for each in ((0, 0), (0, 1), (1, 0), (1, 1))]
    four = struct.pack(">i", 4) + b"".join(task)
    host = struct.pack(">H", 1) + b"h" + struct.pack(">i", 9092)
    by_host = struct.pack(">i", 1) + host + four
    assert decode_assignment(data).user_data == struct.pack(">ii", 5, 5) + four + bytes(4) + by_host + bytes(4)
    assert decode_assignment(data).partitions == {TopicPartition(t, n) for t in "abc" for n in range(2)}


def test_a_task_is_withheld_whole_until_its_owner_gave_it_up_and_is_a_standby_task_meanwhile():
    old, new = assignor("old"), assignor("new", {TaskId(0, 0): 0, TaskId(0, 1): 0})
    owned = sources(TaskId(0, 0), TaskId(0, 1), TaskId(1, 0), TaskId(1, 1))
    told = answers(old, {"old": joining(old, owned), "new": joining(new)})
    assert not told["new"][0]
    assert list(told["new"][1].standby) == [TaskId(0, 1)] or list(told["new"][1].standby) == [TaskId(0, 0)]
    kept = frozenset(told["old"][1].active)
    assert told["old"][0] == sources(*kept)
    assert len(kept) == 2
    told = answers(old, {"old": joining(old, sources(*kept)), "new": joining(new)})
    assert told["old"][0] == sources(*kept)
    assert told["new"][0] == owned - sources(*kept)


def test_a_member_with_another_topology_and_one_without_tasks_get_an_error_and_nothing():
    leader, stranger = assignor("m"), assignor("x", topology=[Subtopology(0, ["a"])])
    plain = encode_subscription(Subscription(topics=["a", "b", "c"]))
    told = answers(leader, {"m": joining(leader), "x": joining(stranger), "plain": plain})
    assert [(len(partitions), info.error) for partitions, info in told.values()] == [(6, 0), (0, 3), (0, 3)]
    with pytest.raises(TopologyError, match="leader runs another topology than this member, which reads a: give all"):
        stranger.on_assignment(frozenset(), encode_assignment_info(told["x"][1]), 1)


def test_a_missing_source_topic_is_told_with_its_error_code():
    leader = assignor()
    ((partitions, info),) = answers(leader, {"m": joining(leader)}, {"a": 2, "b": 2}).values()
    assert (partitions, info.error) == (frozenset(), 1)
    with pytest.raises(TopologyError, match=r"a source topic is missing \(of a, b, c\): create it"):
        leader.on_assignment(partitions, encode_assignment_info(info), 1)


def test_sources_that_are_not_co_partitioned_fail_the_group_with_one_error():
    leader = assignor()
    with pytest.raises(TopologyError, match=r"must have equally many partitions.*\(a 2, b 3\)"):
        lead(leader, {"m": joining(leader)}, PARTITIONS | {"b": 3})


def test_a_member_of_a_later_release_is_told_the_version_to_join_again_with():
    new = assignor("new")
    future = Future(new.options, b"future".ljust(16))
    told = answers(new, {"new": joining(new), "future": joining(future)})
    assert not told["future"][0]
    assert (told["future"][1].version, told["future"][1].commonly_supported) == (5, 5)
    assert len(told["new"][0]) == 6


class Future(TaskAssignor):
    """A member of a later release, whose subscription only says its versions."""

    def subscription_user_data(self, join):
        return struct.pack(">ii", 6, 6) + b"what is not known yet"


def test_a_member_joins_again_with_the_version_that_the_group_shares(monkeypatch):
    """As a member of the next release will."""
    monkeypatch.setattr(task_assignor, "LATEST_VERSION", 6)
    member = assignor()
    shared = encode_assignment_info(AssignmentInfo(version=5, commonly_supported=5))
    assert member.on_assignment(frozenset(), shared, 1) == "version probing: from version 6 to 5"
    joined = decode_subscription_info(decode_subscription(joining(member)).user_data)
    assert (joined.version, joined.latest_supported) == (5, 6)
    assert member.on_assignment(frozenset(), shared, 2) is None


@pytest.mark.parametrize(
    ("active", "partitions", "error"),
    [
        ([TaskId(0, 0)], "", "other partitions than the sources of the active tasks"),
        ([], "a", "other partitions than the sources of the active tasks"),
        ([TaskId(4, 0)], "", "assigned task 4_0, whose sub-topology this member does not know"),
    ],
)
def test_an_assignment_that_contradicts_itself_is_refused(active, partitions, error):
    info = encode_assignment_info(AssignmentInfo(version=5, commonly_supported=5, active=active))
    with pytest.raises(ValueError, match=error):
        assignor().on_assignment(frozenset(TopicPartition(t, 0) for t in partitions), info, 1)


def test_an_assignment_without_user_data_is_refused():
    with pytest.raises(ValueError, match="all members must run tasks"):
        assignor().on_assignment(frozenset(), None, 1)


@pytest.mark.parametrize(("capacity", "carried"), [(1, 1), (7, 7), (MAX_CAPACITY, MAX_CAPACITY)])
def test_capacity_travels_behind_the_documents_bytes(capacity, carried):
    plain = SubscriptionInfo.empty(5)
    info = SubscriptionInfo(
        **{name: getattr(plain, name) for name in ("version", "latest_supported", "process_id", "tasks")},
        capacity=capacity,
    )
    data = encode_subscription_info(info)
    assert decode_subscription_info(data).capacity == carried
    assert data.startswith(encode_subscription_info(plain))
    assert (len(data) == len(encode_subscription_info(plain))) == (capacity == 1)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"subtopologies": ()}, "subtopologies: must name at least one"),
        ({"subtopologies": [Subtopology(0, ["a"]), Subtopology(0, ["b"])]}, "two sub-topologies have the number 0"),
        ({"standbys": -1}, "standbys: -1 is not a whole number from 0"),
        ({"max_warmups": 1.5}, "max_warmups: 1.5 is not a whole number from 1"),
        ({"max_warmups": 0}, "max_warmups: 0 is not a whole number from 1"),
        ({"host": "h"}, "host: 'h' is not host:port, as in app1.example:8080"),
    ],
)
def test_options_are_checked(wrong, error):
    with pytest.raises(ValueError, match=error):
        TaskOptions(**{"subtopologies": COUNTS} | wrong)


@given(st.lists(st.binary(max_size=40) | subscriptions(), min_size=1, max_size=3))
@settings(max_examples=examples(60), deadline=None)
def test_whatever_other_members_send_the_leader_places_every_task_once(sent):
    leader = assignor(host="h:1")
    members = {"m": joining(leader)}
    for number, info in enumerate(sent):
        data = info if isinstance(info, bytes) else encode_subscription_info(info)
        members[f"o{number}"] = encode_subscription(Subscription(topics=["a", "b", "c"], user_data=data))
    given_to = lead(leader, members, PARTITIONS)
    assert given_to.keys() == members.keys()
    given_out = [p for data in given_to.values() for p in decode_assignment(data).partitions]
    assert sorted(given_out) == sorted(TopicPartition(t, n) for t in "abc" for n in range(2))
