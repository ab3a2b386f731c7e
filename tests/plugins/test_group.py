"""What the classes put on the wire and make of what others put there, without a broker."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from hypothesis import given
from hypothesis import strategies as st
from kafka.coordinator.assignors.abstract import RebalanceProtocol
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.protocol.consumer.group import JoinGroupResponse
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from roster.assignors import ASSIGNORS, LAG_STICKY, Assignor
from roster.assignors import RebalanceProtocol as RosterProtocol
from roster.model import Plan
from roster.plugins import aiokafka, kafka_python
from roster.plugins.group import stamp_of
from roster.wire.consumer.messages import (
    Assignment,
    by_topic,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    flat,
)
from roster.wire.consumer.user_data import encode_sticky_user_data, without_stray_prefix

Member = JoinGroupResponse.JoinGroupResponseMember


class Cluster:
    """What both clients know of topics, as far as assignors ask."""

    def __init__(self, **topics: int) -> None:
        self._topics = topics

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return set(range(self._topics[topic])) if topic in self._topics else None


def assignment(*partitions: tuple[str, int], user_data: bytes | None = None) -> ConsumerProtocolAssignment:
    data = encode_assignment(Assignment(assigned_partitions=by_topic(sorted(partitions)), user_data=user_data), 0)
    return ConsumerProtocolAssignment.decode(data)


def joined(member_id: str, assignor: object, *topics: str, instance: str | None = None) -> Member:
    """The member as kafka-python's leader passes it on: its bytes decoded."""
    sent = assignor.metadata(set(topics)).encode()
    return Member(
        member_id=member_id, group_instance_id=instance, metadata=ConsumerProtocolSubscription.decode(bytes(sent))
    )


def as_seen(member_id: str, subscription: object) -> Member:
    return Member(member_id=member_id, group_instance_id=None, metadata=subscription)


def holding(cls: type, generation: int, *partitions: tuple[str, int], user_data: bytes | None = None) -> object:
    assignor = cls()
    assignor.on_assignment(assignment(*partitions, user_data=user_data), generation)
    return assignor


def owned(assigned: dict[str, bytes]) -> dict[str, set[tuple[str, int]]]:
    return {member: set(flat(read(data).assigned_partitions)) for member, data in assigned.items()}


def read(data: bytes) -> Assignment:
    return decode_assignment(data)


def test_sticky_user_data_is_kafkas_v1():
    sent = holding(kafka_python.RosterSticky, 7, ("foo", 3), ("foo", 1)).metadata({"foo"})
    assert sent.user_data.hex() == "000000010003666f6f00000002000000010000000300000007"
    assert kafka_python.RosterSticky().metadata({"foo"}).user_data is None


def test_a_subscription_carries_generation_and_claims_as_javas_cooperative_assignor_sends_them():
    sent = bytes(holding(kafka_python.RosterCooperativeSticky, 10, ("b", 1), ("a", 2)).metadata({"b", "a"}).encode())
    subscription = decode_subscription(sent)
    assert subscription.topics == ["a", "b"]
    assert flat(subscription.owned_partitions) == [("a", 2), ("b", 1)]
    assert subscription.generation_id == 10
    assert subscription.user_data.hex() == "0000000a"
    assert decode_subscription(bytes(kafka_python.RosterCooperativeSticky().metadata({"a"}).encode())).user_data == (
        b"\xff\xff\xff\xff"
    )


def test_topics_no_longer_subscribed_to_are_not_claimed():
    sent = holding(kafka_python.RosterCooperativeSticky, 3, ("a", 0), ("b", 0)).metadata({"a"})
    assert [entry.topic for entry in sent.owned_partitions] == ["a"]


def test_only_cooperative_sticky_is_cooperative():
    assert kafka_python.RosterCooperativeSticky().supported_protocols() == [RebalanceProtocol.COOPERATIVE]
    for cls in (kafka_python.RosterRange, kafka_python.RosterRoundRobin, kafka_python.RosterSticky):
        assert cls().supported_protocols() == [RebalanceProtocol.EAGER]


def test_of_two_claims_the_newer_generation_wins_and_the_partition_stays_with_its_owner():
    members = [
        joined("b", holding(kafka_python.RosterCooperativeSticky, 4, ("t", 0)), "t"),
        joined("a", holding(kafka_python.RosterCooperativeSticky, 5, ("t", 0)), "t"),
    ]
    for listed in (members, members[::-1]):
        given_out = owned(kafka_python.RosterCooperativeSticky().assign(Cluster(t=2), listed))
        assert given_out == {"a": {("t", 0)}, "b": {("t", 1)}}


def test_what_another_member_still_claims_is_withheld_for_a_round():
    members = [
        joined("a", holding(kafka_python.RosterCooperativeSticky, 5, *(("t", n) for n in range(4))), "t"),
        joined("b", kafka_python.RosterCooperativeSticky(), "t"),
    ]
    first = owned(kafka_python.RosterCooperativeSticky().assign(Cluster(t=4), members))
    assert len(first["a"]) == 2
    assert first["b"] == set()


def test_claims_of_a_membership_that_ended_hold_nothing_back():
    leader = kafka_python.RosterCooperativeSticky()
    told = read(leader.assign(Cluster(t=4), [joined("a-1", kafka_python.RosterCooperativeSticky(), "t")])["a-1"])
    former = holding(kafka_python.RosterCooperativeSticky, 5, *(("t", n) for n in range(4)), user_data=told.user_data)
    fresh = kafka_python.RosterCooperativeSticky()
    same = owned(leader.assign(Cluster(t=4), [joined("a-1", former, "t"), joined("b", fresh, "t")]))
    assert len(same["a-1"]) == 2
    assert same["b"] == set()
    again = owned(leader.assign(Cluster(t=4), [joined("a-2", former, "t"), joined("b", fresh, "t")]))
    assert sorted(map(len, again.values())) == [2, 2]


def test_kafka_pythons_own_user_data_is_understood():
    theirs = StickyPartitionAssignor()
    theirs.on_assignment(assignment(("t", 0), ("t", 3)), 6)
    raw = ConsumerProtocolSubscription.decode(bytes(theirs.metadata(["t"]).encode())).user_data
    assert without_stray_prefix(raw) == encode_sticky_user_data({"t": [0, 3]}, 6)
    members = [joined("a", kafka_python.RosterSticky(), "t"), joined("b", theirs, "t")]
    assert owned(kafka_python.RosterSticky().assign(Cluster(t=4), members))["b"] == {("t", 0), ("t", 3)}


names = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=249)


@given(st.dictionaries(names, st.lists(st.integers(0, 9), max_size=3), max_size=4), st.integers(-1, 9))
def test_the_stray_prefix_is_told_from_the_plain_form(claims, generation):
    plain = encode_sticky_user_data(claims, generation)
    assert without_stray_prefix(plain) == plain
    assert without_stray_prefix(b"\x00\x01" + plain) == plain


@given(st.binary(max_size=80))
def test_user_data_of_any_bytes_is_at_worst_no_claim(user_data):
    hostile = as_seen("h", ConsumerProtocolSubscription(version=3, topics=["t"], user_data=user_data))
    for cls in (kafka_python.RosterSticky, kafka_python.RosterCooperativeSticky):
        members = [hostile, joined("a", holding(cls, 5, ("t", 0)), "t")]
        given_out = owned(cls().assign(Cluster(t=2), members))
        assert sorted(map(len, given_out.values())) == [1, 1]
    passed_on = {"h": ConsumerProtocolMemberMetadata(0, ["t"], user_data)}
    assert owned(aiokafka.RosterSticky().assign(Cluster(t=2), passed_on))["h"] == {("t", 0), ("t", 1)}


@given(
    st.lists(
        st.tuples(st.sampled_from(["t", "u", "gone", ""]), st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4)),
        max_size=4,
    ),
    st.integers(-(2**31), 2**31 - 1),
)
def test_claims_on_what_does_not_exist_do_no_harm(claims, generation):
    listed = [ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=numbers) for topic, numbers in claims]
    hostile = ConsumerProtocolSubscription(
        version=3, topics=["t", "gone", "t"], user_data=None, owned_partitions=listed, generation_id=generation
    )
    members = [as_seen("h", hostile), joined("a", kafka_python.RosterCooperativeSticky(), "t", "u")]
    given_out = owned(kafka_python.RosterCooperativeSticky().assign(Cluster(t=3, u=1), members))
    everything = set().union(*given_out.values())
    assert everything <= {("t", 0), ("t", 1), ("t", 2), ("u", 0)}
    assert sum(map(len, given_out.values())) == len(everything)


def test_the_order_of_members_decides_nothing():
    members = [
        joined(
            f"m{n}",
            holding(kafka_python.RosterSticky, 3, ("t", n), ("u", n)),
            *(["t", "u"] if n % 3 else ["t"]),
            instance=f"i{n}" if n % 2 else None,
        )
        for n in range(7)
    ]
    for cls in (kafka_python.RosterSticky, kafka_python.RosterRange, kafka_python.RosterRoundRobin):
        expected = cls().assign(Cluster(t=9, u=8), members)
        assert cls().assign(Cluster(t=9, u=8), random.Random(3).sample(members, 7)) == expected


def test_range_follows_instance_ids_where_the_client_passes_them_on():
    statics = [joined(member, kafka_python.RosterRange(), "t", instance=i) for member, i in (("x", "i1"), ("a", "i2"))]
    assert owned(kafka_python.RosterRange().assign(Cluster(t=3), statics))["x"] == {("t", 0), ("t", 1)}


def test_aiokafkas_clock_counts_up_and_follows_stamps():
    assignor = aiokafka.RosterSticky()
    plain = ConsumerProtocolMemberAssignment(0, [("t", [1])], b"")

    def claimed() -> bytes | None:
        return decode_subscription(assignor.metadata(["t"])).user_data

    assert claimed() is None
    assignor.on_assignment(plain)
    assert claimed() == encode_sticky_user_data({"t": [1]}, 0)
    leader = kafka_python.RosterSticky()
    stamped = read(leader.assign(Cluster(t=1), [joined("a", holding(kafka_python.RosterSticky, 41), "t")])["a"])
    assert stamp_of(stamped.user_data) == 42
    assignor.on_assignment(ConsumerProtocolMemberAssignment(0, [("t", [1])], stamped.user_data))
    assert claimed() == encode_sticky_user_data({"t": [1]}, 42)
    assignor.on_assignment(plain)
    assert claimed() == encode_sticky_user_data({"t": [1]}, 43)


def test_a_claim_from_the_last_generation_there_is_stops_nobodys_clock():
    leader, other = aiokafka.RosterSticky(), aiokafka.RosterSticky()
    hostile = ConsumerProtocolMemberMetadata(0, ["t"], encode_sticky_user_data({"t": [0]}, 2**31 - 1))
    for _ in range(3):
        members = {"h": hostile, "o": ConsumerProtocolMemberMetadata.decode(other.metadata(["t"]))}
        assigned = leader.assign(Cluster(t=2), members)
        other.on_assignment(ConsumerProtocolMemberAssignment.decode(assigned["o"]))
    assert owned(assigned) == {"h": {("t", 0)}, "o": {("t", 1)}}


def test_an_aiokafka_consumer_that_missed_a_rebalance_claims_as_of_before_it():
    leader, here, away, third = (aiokafka.RosterSticky() for _ in range(4))

    def rebalance(**consumers: aiokafka.RosterSticky) -> None:
        members = {
            name: ConsumerProtocolMemberMetadata.decode(each.metadata(["t"])) for name, each in consumers.items()
        }
        assigned = leader.assign(Cluster(t=4), members)
        for name, consumer in consumers.items():
            consumer.on_assignment(ConsumerProtocolMemberAssignment.decode(assigned[name]))

    def claimed_in(consumer: aiokafka.RosterSticky) -> int:
        return int.from_bytes(decode_subscription(consumer.metadata(["t"])).user_data[-4:], "big")

    rebalance(here=here, away=away)
    assert claimed_in(here) == claimed_in(away)
    rebalance(here=here)
    rebalance(third=third, here=here)
    assert claimed_in(away) < claimed_in(here) == claimed_in(third)
    rebalance(third=third, here=here, away=away)
    assert claimed_in(away) == claimed_in(here) == claimed_in(third)


async def test_called_on_the_class_each_task_has_a_state_of_its_own():
    async def consumer(number: int) -> bytes:
        aiokafka.RosterSticky.on_assignment(ConsumerProtocolMemberAssignment(0, [("t", [number])], b""))
        await asyncio.sleep(0)
        return aiokafka.RosterSticky.metadata(["t"])

    sent = await asyncio.gather(*(asyncio.create_task(consumer(number)) for number in range(5)))
    assert [decode_subscription(data).user_data for data in sent] == [
        encode_sticky_user_data({"t": [number]}, 0) for number in range(5)
    ]


def test_called_on_the_class_outside_a_task_an_instance_is_asked_for():
    with pytest.raises(RuntimeError, match=r"RosterSticky\(\)"):
        aiokafka.RosterSticky.metadata(["t"])


@pytest.mark.process
@pytest.mark.parametrize(("module", "other"), [("kafka_python", "aiokafka"), ("aiokafka", "kafka")])
def test_each_module_imports_its_own_client_only(module, other):
    program = f"import sys, roster.plugins.{module}; sys.exit({other!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("module", [aiokafka, kafka_python])
@pytest.mark.parametrize("assignor", [ASSIGNORS["lag"], LAG_STICKY])
def test_an_assignor_that_looks_at_lag_is_refused(module, assignor):
    """It would be given no offsets, and assign as if all lags were equal."""
    with pytest.raises(ValueError, match=f"assignor: {assignor.name} looks at lag, and this client tells .* as sticky"):
        module.RosterCustom(assignor)


@pytest.mark.parametrize("module", [aiokafka, kafka_python])
def test_an_assignor_for_cooperative_rebalances_only_is_refused(module):
    class Cooperative(Assignor):
        name = "only-cooperative"
        supported_protocols = (RosterProtocol.COOPERATIVE,)

        def assign(self, problem):
            return Plan.from_assignment(problem, {})

    with pytest.raises(ValueError, match="only-cooperative supports no eager rebalances"):
        module.RosterCustom(Cooperative())
    with pytest.raises(ValueError, match="no assignor"):
        module.RosterCustom(5)
