"""The leader's duty, bytes to bytes."""

import subprocess
import sys

import numpy as np
import pytest

import roster
from roster.assignors import ASSIGNORS
from roster.member.assign_group import plan_group
from roster.member.group_snapshot import GroupSnapshot
from roster.wire.consumer.messages import Subscription, TopicPartitions, decode_assignment, encode_subscription
from roster.wire.consumer.user_data import encode_cooperative_user_data, encode_sticky_user_data


def sent(topics, owned=None, generation=-1, user_data=None, version=3, rack=None) -> bytes:
    lists = [TopicPartitions(topic=t, partitions=list(p)) for t, p in (owned or {}).items()]
    message = Subscription(
        topics=topics.split(), owned_partitions=lists, generation_id=generation, user_data=user_data, rack_id=rack
    )
    return encode_subscription(message, version)


def received(assignments: dict[str, bytes]) -> dict[str, set[str]]:
    return {
        member: {f"{o.topic}-{p}" for o in decode_assignment(data).assigned_partitions for p in o.partitions}
        for member, data in assignments.items()
    }


def sets(**partitions) -> dict[str, set[str]]:
    return {member: set(listed.split()) for member, listed in partitions.items()}


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
def test_every_member_is_answered_in_the_order_given(name):
    group = {"b": sent("t"), "a": sent("t"), "c": sent("gone")}
    got = roster.lead(name, group, {"t": 4, "other": 9})
    assert list(got) == ["b", "a", "c"]
    assert {len(partitions) for partitions in received(got).values()} == {0, 2}


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@pytest.mark.parametrize(
    "damage", [b"", b"\x00", b"\xff\xff", sent("t")[:-1], sent("t")[:7], b"\x00\x03\x7f\xff\xff\xff"]
)
def test_df_4_truncated_bytes_leave_a_valid_plan_for_everyone_else(name, damage):
    """Kafka lets the parsing error escape and the group hangs in its rebalance."""
    got = received(roster.lead(name, {"a": sent("t"), "x": damage, "b": sent("t")}, {"t": 4}))
    assert got["x"] == set()
    assert sorted(got["a"] | got["b"]) == ["t-0", "t-1", "t-2", "t-3"]
    group = GroupSnapshot(subscriptions={"a": sent("t"), "x": damage}, partitions={"t": 4})
    assert plan_group(name, group).problem.unreadable == {"x"}


def test_an_unknown_assignor_is_named():
    with pytest.raises(ValueError, match="there is no assignor 'fair'; known are cooperative-sticky"):
        roster.lead("fair", {"a": sent("t")}, {"t": 1})


def test_ud_2_sticky_reads_user_data_whatever_the_version_of_the_subscription():
    group = {
        "c1": sent("t1", user_data=encode_sticky_user_data({"t1": [0]}, 1), version=0),
        "c2": sent("t1", {"t1": [1]}, user_data=encode_sticky_user_data({"t1": [1]}, 1), version=1),
        "c3": sent("t1", version=2),
    }
    assert received(roster.lead("sticky", group, {"t1": 3})) == sets(c1="t1-0", c2="t1-1", c3="t1-2")


def test_sticky_always_believes_user_data_never_the_fields():
    group = {"a": sent("t", {"t": [0]}, 9, encode_sticky_user_data({"t": [1]}, 1)), "b": sent("t", {"t": [1]}, 9)}
    assert received(roster.lead("sticky", group, {"t": 2})) == sets(a="t-1", b="t-0")


def test_cooperative_sticky_believes_the_fields_and_the_user_data_only_for_a_missing_generation():
    sticky_data = encode_sticky_user_data({"t": [0]}, 9)
    group = {"a": sent("t", {"t": [1]}, 3, sticky_data), "b": sent("t")}
    assert received(roster.lead("cooperative-sticky", group, {"t": 2})) == sets(a="t-1", b="t-0")
    group = {
        "a": sent("t", {"t": [1]}, user_data=encode_cooperative_user_data(3), version=1),
        "b": sent("t", {"t": [1]}, user_data=encode_cooperative_user_data(4), version=1),
    }
    assert received(roster.lead("cooperative-sticky", group, {"t": 2})) == sets(a="t-0", b="t-1")


def test_kip_341_user_data_that_cannot_be_parsed_is_no_claim():
    group = {"a": sent("t", user_data=b"\x00\x00\x00\x09garbage"), "b": sent("t", user_data=b"")}
    plan = plan_group("sticky", GroupSnapshot(subscriptions=group, partitions={"t": 2}))
    assert plan.problem.claims.member.tolist() == []


@pytest.mark.parametrize("order", [["a", "b"], ["b", "a"]])
def test_df_2_a_stale_generation_in_user_data_loses_in_any_order(order):
    """Kafka, with the generation only in user data, lets the claim listed later win."""
    group = {
        "a": sent("t", user_data=encode_sticky_user_data({"t": [0, 1]}, 5), version=1),
        "b": sent("t", user_data=encode_sticky_user_data({"t": [0, 1]}, 4), version=1),
    }
    got = received(roster.lead("sticky", {m: group[m] for m in order}, {"t": 4}))
    assert got == sets(a="t-0 t-1", b="t-2 t-3")


def test_a_generation_that_restarts_from_1_does_not_make_current_claims_look_old():
    """Kafka's assignor remembers the highest generation it ever saw; after a restart everything current is older."""
    old = {"a": sent("t", {"t": [0, 1]}, 57), "b": sent("t", {"t": [2, 3]}, 57)}
    roster.lead("cooperative-sticky", old, {"t": 4})
    restarted = {"a": sent("t", {"t": [2, 3]}, 1), "b": sent("t", {"t": [0, 1]}, 1)}
    assert plan_group("cooperative-sticky", GroupSnapshot(subscriptions=restarted, partitions={"t": 4})).explain() == []
    back = {"a": sent("t", {"t": [2, 3]}, 1), "b": sent("t", {"t": [2, 3]}, 57)}
    plan = plan_group("cooperative-sticky", GroupSnapshot(subscriptions=back, partitions={"t": 4}, generation=2))
    assert plan.assignment()["a"] == {"t": [2, 3]}


def test_static_members_keep_their_place_under_new_member_ids():
    before = roster.lead("range", {"x": sent("t"), "y": sent("t")}, {"t": 3}, instance_ids={"x": "i2", "y": "i1"})
    after = roster.lead("range", {"p": sent("t"), "q": sent("t")}, {"t": 3}, instance_ids={"q": "i2", "p": "i1"})
    assert (before["x"], before["y"]) == (after["q"], after["p"])


def test_kip_881_racks_come_from_the_subscriptions_and_the_metadata():
    racks = {"t1": [{"a"}, {"b"}, {"a"}, {"b"}]}
    group = {"c0": sent("t1", rack="b"), "c1": sent("t1", rack="a")}
    assert received(roster.lead("range", group, {"t1": 4}, racks=racks)) == sets(c0="t1-1 t1-3", c1="t1-0 t1-2")


@pytest.mark.process
def test_importing_roster_does_not_import_numpy():
    code = "import sys, roster; assert 'numpy' not in sys.modules; assert roster.lead('range', {}, {}) == {}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_kafka_pythons_prefixed_sticky_user_data_is_a_claim():
    prefixed = b"\x00\x01" + encode_sticky_user_data({"t": [1]}, 3)
    group = {"a": sent("t", version=1), "b": sent("t", user_data=prefixed, version=1)}
    assert received(roster.lead("sticky", group, {"t": 2})) == sets(a="t-0", b="t-1")


BAD = {
    "subscriptions": [None, {"a": "text"}, {1: b""}],
    "partitions": [None, {"t": -1}, {"t": 1.9}, {"t": "3"}, {"t": True}, {"t": None}, {"t": 2**40}, {2: 3}],
    "instance_ids": [["i"], {"a": 1}],
    "racks": [["r"], {"t": None}, {"t": "ab"}, {"t": ["ab"]}, {"t": [None]}],
    "generation": ["3", 1.5, True],
    "offsets": [
        [1],
        {"t": None},
        {"t": {0: None}},
        {"t": {0: (1, 2)}},
        {"t": {0: (1, "2", None)}},
        {"t": {"0": (0, 1, 0)}},
    ],
    "auto_offset_reset": ["newest", None],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in BAD.items() for value in values])
def test_an_argument_of_the_wrong_type_or_range_is_named(field, value):
    arguments = {"subscriptions": {"a": sent("t")}, "partitions": {"t": 2}, field: value}
    with pytest.raises(ValueError, match=f"^{field}\\b.*(must be|at most|must have)"):
        roster.lead("lag-sticky", **arguments)


def test_whole_numbers_of_numpy_are_whole_numbers():
    answer = roster.lead("sticky", {"a": sent("t")}, {"t": np.int64(2)}, generation=np.int32(3))
    assert received(answer) == received(roster.lead("sticky", {"a": sent("t")}, {"t": 2}, generation=3))
