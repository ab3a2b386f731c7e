"""Problem and Plan: the columns, their canonical order, and the view for people."""

import numpy as np
import pytest

from roster.model import NO_OWNER, MemberInfo, Move, Plan, Problem, TopicPartition
from roster.model.problem import kafka_order, member_order


def test_topics_are_ascending_and_only_those_that_are_subscribed_and_exist():
    problem = Problem.build({"m": MemberInfo(["b", "a", "gone", "a"])}, {"b": 2, "unread": 5, "empty": 0, "a": 3})
    assert problem.topics == ("a", "b")
    assert problem.first.tolist() == [0, 3, 5]
    assert problem.counts.tolist() == [3, 2]
    assert problem.topic_of().tolist() == [0, 0, 0, 1, 1]
    assert problem.number_of().tolist() == [0, 1, 2, 0, 1]
    assert [problem.topic_partition(p) for p in (0, 2, 3, 4)] == [
        TopicPartition("a", 0),
        TopicPartition("a", 2),
        TopicPartition("b", 0),
        TopicPartition("b", 1),
    ]


def test_members_with_the_same_subscription_share_one():
    group = {
        "z": MemberInfo(["a", "b"]),
        "y": MemberInfo(["b"]),
        "x": MemberInfo(["b", "a", "gone"]),
        "w": MemberInfo(),
    }
    problem = Problem.build(group, {"a": 1, "b": 1})
    assert problem.members == ("w", "x", "y", "z")
    assert [problem.subscriptions[s].tolist() for s in problem.subscription_of] == [[], [0, 1], [1], [0, 1]]
    assert len(problem.subscriptions) == 3


def test_static_members_come_first_by_instance_id():
    """AbstractPartitionAssignor.MemberInfo: static by instance id, then dynamic by member id."""
    order = member_order(["d", "b", "c", "a"], [None, "i2", "i1", None])
    assert order.tolist() == [2, 1, 3, 0]


def test_names_sort_as_java_strings_do():
    """String.compareTo compares UTF-16 units, in which U+1F600 comes before U+FF5E."""
    assert kafka_order(["～", "\U0001f600", "a"]).tolist() == [2, 1, 0]


def test_claims_that_cannot_be_are_dropped_and_repeated_ones_counted_once():
    group = {
        "a": MemberInfo(["t"], {"t": [0, 0, -1, 3, 2**31 - 1, 2], "u": [0], "gone": [0]}),
        "b": MemberInfo(["t"], {"t": [2]}),
    }
    problem = Problem.build(group, {"t": 3, "u": 1})
    assert list(zip(problem.claims.member.tolist(), problem.claims.partition.tolist(), strict=True)) == [
        (0, 0),
        (0, 2),
        (1, 2),
    ]


@pytest.mark.parametrize(
    ("replicas", "wanted"),
    [
        ({}, False),
        ({"t": [{"a"}, {"a"}]}, False),
        ({"t": [{"a"}, {"b"}]}, True),
        ({"t": [{"b"}, {"c"}]}, False),
        ({"t": [{"a"}]}, True),
    ],
)
def test_kip_881_racks_matter_if_a_member_is_near_a_replica_and_not_all_partitions_are_everywhere(replicas, wanted):
    group = {"m": MemberInfo(["t"], rack="a"), "n": MemberInfo(["t"])}
    racks = Problem.build(group, {"t": 2}, replica_racks=replicas).racks
    assert (racks is not None and racks.matter([0, 1], np.unique(racks.set_of).tolist())) == wanted


def test_a_member_without_a_rack_is_near_everything():
    group = {"m": MemberInfo(["t"], rack="a"), "n": MemberInfo(["t"])}
    racks = Problem.build(group, {"t": 2}, replica_racks={"t": [{"a"}, {"b"}]}).racks
    assert racks is not None
    assert racks.matches()[:, racks.set_of].tolist() == [[True, False], [True, True]]


def test_a_plan_shows_what_is_handed_out_what_waits_and_what_moves():
    group = {"a": MemberInfo(["t", "u"], {"t": [0, 1, 2]}), "b": MemberInfo(["t"]), "c": MemberInfo()}
    problem = Problem.build(group, {"t": 3, "u": 1})
    plan = Plan.of(
        problem,
        np.array([0, 0, 1, 0]),
        owner_before=np.array([0, 0, 0, NO_OWNER], dtype=np.int32),
        withheld=np.array([False, False, True, False]),
    )
    assert plan.assignment() == {"a": {"t": [0, 1], "u": [0]}, "b": {}, "c": {}}
    assert plan.partitions()["a"] == [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)]
    assert plan.transferring() == {TopicPartition("t", 2): "b"}
    assert plan.loads().tolist() == [3, 1, 0]
    assert plan.moved().tolist() == [False, False, True, False]
    assert plan.explain() == [
        Move("t", 2, "a", "b", "balance: a makes room for a partition that b may not have"),
        Move("u", 0, None, "a", "it had no owner"),
    ]


def test_a_problem_without_members_or_topics_has_an_empty_plan():
    for problem in (Problem.build({}, {"t": 3}), Problem.build({"m": MemberInfo()}, {})):
        plan = Plan.of(problem, np.zeros(0, dtype=np.int32))
        assert plan.explain() == []
        assert plan.assignment() == {m: {} for m in problem.members}
