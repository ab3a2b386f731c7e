"""`roster plan --group` on groups that live."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from itertools import count

import pytest
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from roster.assignors import ASSIGNORS
from roster.broker import Broker
from roster.client import (
    Admin,
    GroupMember,
    OffsetAndMetadata,
    Ownership,
)
from roster.model import TopicPartition, parse_address
from roster.testing.broker import running_broker
from roster.wire.messages import JoinGroupRequest, SyncGroupRequest
from tests.broker.rawclient import RawClient
from tests.real.realparts.kafka_python import KafkaConsumer
from tests.waiting import until

numbers = count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker() as running:
        yield running


@pytest.fixture
def admin(broker: Broker) -> Iterator[Admin]:
    with Admin(broker.bootstrap) as connection:
        yield connection


@pytest.fixture
def group(admin: Admin) -> str:
    """A group's name, and of a topic of four partitions and one, name-2, of two."""
    name = f"plan-{next(numbers)}"
    admin.create_topic(name, 4)
    admin.create_topic(f"{name}-2", 2)
    return name


class RawMember:
    """The only member of its group, with any bytes as its subscription."""

    def __init__(self, bootstrap: str, group: str, protocol: str, metadata: bytes, assignment: bytes = b"") -> None:
        self._client = RawClient(parse_address(bootstrap), 10)
        protocols = [JoinGroupRequest.Protocol(name=protocol, metadata=metadata)]
        join = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            protocol_type="consumer",
            protocols=protocols,
        )
        join.member_id = self._client.ask(join, 5).member_id
        joined = self._client.ask(join, 5)
        sync = SyncGroupRequest(group_id=group, generation_id=joined.generation_id, member_id=joined.member_id)
        sync.assignments = [SyncGroupRequest.Assignment(member_id=joined.member_id, assignment=assignment)]
        assert self._client.ask(sync, 3).error_code == 0
        self.member_id = joined.member_id

    def close(self) -> None:
        self._client.socket.close()


def at_rest(ownerships: list[Ownership]) -> bool:
    """All six partitions are given out, everybody has some (a newcomer begins with none), and nobody any to let go."""
    return (
        sum(len(each.partitions) for each in ownerships) == 6
        and all(each.partitions for each in ownerships)
        and not any(each.revoking for each in ownerships)
    )


@contextlib.contextmanager
def members(
    broker: Broker, group: str, *subscriptions: list[str], assignor: str = "range", capacities: tuple[int, ...] = (1, 1)
) -> Iterator[list[GroupMember]]:
    """Members under one assignor, one for each subscription, with all partitions given out."""
    joined: list[GroupMember] = []
    done = threading.Event()

    def let_go() -> None:
        while not done.wait(0.01):
            for each in joined:
                each.release(each.ownership().revoking)

    with contextlib.ExitStack() as stack:
        letting_go = threading.Thread(target=let_go)
        letting_go.start()
        stack.callback(letting_go.join)
        stack.callback(done.set)
        for topics, capacity in zip(subscriptions, capacities, strict=True):
            member = GroupMember(
                broker.bootstrap, group, topics, assignors=assignor, capacity=capacity, heartbeat_interval_ms=100
            )
            joined.append(stack.enter_context(member))
        until(lambda: at_rest([each.ownership() for each in joined]), what="the group comes to rest")
        yield joined


def test_a_dry_run_says_what_each_assignor_would_do_and_changes_nothing(broker, admin, group, shell):
    with members(broker, group, [group, f"{group}-2"], [group]) as joined:
        before = [each.ownership() for each in joined]
        code, out, err = shell("plan", "--group", group)
        assert (code, err) == (0, "")
        assert f"{group}: 2 members, 6 partitions of 2 topics, protocol range; nothing is changed" in out
        table = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line}
        assert table["(now)"] == ["-", "-", "2", "to", "4", "no", "-"]
        assert table["range"] == ["0", "1", "2", "to", "4", "no", "-"]
        assert table["sticky"] == ["1", "1", "3", "to", "3", "yes", "-"]
        assert table[before[0].member_id][:3] == ["roster", "4", "4"]

        code, out, err = shell("plan", "-g", group, "-a", "sticky", "-a", "cooperative-sticky", "--json")
        assert (code, err) == (0, "")
        document = json.loads(out)
        assert list(document["plans"]) == ["sticky", "cooperative-sticky"]
        assert document["now"]["balance"] == {"min": 2, "max": 4, "optimal": False}
        assert document["now"]["assignment"][before[1].member_id] == {group: sorted(n for _, n in before[1].partitions)}
        assert document["plans"]["sticky"]["moved"] == 1
        (transfer,) = document["plans"]["cooperative-sticky"]["transferring"].values()
        assert set(transfer.values()) == {before[1].member_id}

        code, out, err = shell("plan", "-g", group, "-a", "sticky", "--explain")
        assert (code, err) == (0, "")
        assert "sticky: 5 unchanged, 1 moved" in out
        assert [each.ownership() for each in joined] == before
        assert admin.describe_group(group).state == "Stable"
        joined[1].close()
        alone = f"{group}: 1 member, 6 partitions of 2 topics"
        until(lambda: alone in shell("plan", "--group", group)[1], what="one member is left")


def test_lag_is_looked_at_when_asked_or_when_an_assignor_wants_it(broker, admin, group, shell):
    with Admin(broker.bootstrap) as other:
        other.commit_group_offsets(group, {TopicPartition(group, 0): OffsetAndMetadata(0)})
    with members(broker, group, [group, f"{group}-2"], [group]):
        _, out, _ = shell("plan", "-g", group, "--lag", "--auto-offset-reset", "earliest", "--json")
        document = json.loads(out)
        assert set(document["plans"]) == set(ASSIGNORS)
        assert all(set(plan["lag"].values()) == {0} for plan in [*document["plans"].values(), document["now"]])
        _, out, _ = shell("plan", "-g", group, "-a", "lag-sticky", "--json")
        assert "lag" in json.loads(out)["plans"]["lag-sticky"]
        _, out, _ = shell("plan", "-g", group, "--lag")
        assert "most lag" in out
        assert "4 (0)" in out


@pytest.mark.parametrize("policy", ["lag-sticky", "lag-cooperative-sticky"])
def test_a_member_that_counts_for_two_is_taken_for_two(broker, group, shell, policy):
    """Of 4 and 2 partitions it is due 4 of 6: were its capacity not read, the policy would move one away."""
    with members(
        broker, group, [group, f"{group}-2"], [group, f"{group}-2"], assignor=policy, capacities=(2, 1)
    ) as two:
        assert [len(each.ownership().partitions) for each in two] == [4, 2]
        code, out, err = shell("plan", "-g", group, "-a", policy, "--json")
        assert (code, err) == (0, "")
        assert json.loads(out)["plans"][policy]["moved"] == 0


def test_brokers_without_racks_leave_racks_out_of_it(admin, group):
    assert admin.replica_racks([group, f"{group}-not"]) == {group: [frozenset()] * 4}
    assert admin.replica_racks([]) == {}


def test_a_group_without_members_or_none_at_all_is_the_callers_mistake(group, admin, shell):
    assert shell("plan", "-g", f"{group}-not")[0] == 2
    admin.commit_group_offsets(group, {TopicPartition(group, 0): OffsetAndMetadata(0)})
    code, _, err = shell("plan", "-g", group)
    assert code == 2
    assert err == f"roster: error: --group: {group} has no members (it is Empty)\n"


def test_a_member_whose_subscription_cannot_be_read_is_named(broker, group, shell):
    raw = RawMember(broker.bootstrap, group, "sticky", b"\x00\x01\x00\x00\x00\x05")
    try:
        code, out, _ = shell("plan", "-g", group)
        assert code == 0
        assert f"their subscriptions cannot be read: {raw.member_id}" in out
    finally:
        raw.close()


def test_a_group_of_kafka_python_with_its_own_sticky_assignor(broker, admin, group, shell):
    own = StickyPartitionAssignor()
    consumer = KafkaConsumer(
        group,
        bootstrap_servers=broker.bootstrap,
        group_id=group,
        client_id="kp",
        partition_assignment_strategy=[own],
        session_timeout_ms=10_000,
    )
    try:
        deadline = time.monotonic() + 90
        while own.generation < 0:
            assert time.monotonic() < deadline, "the group does not come to rest"
            consumer.poll(timeout_ms=500)
        admin.create_partitions(group, 6)
        code, out, _ = shell("plan", "-g", group, "-a", "sticky", "--json")
        assert code == 0
        plan = json.loads(out)["plans"]["sticky"]
        assert (plan["moved"], [move["partition"] for move in plan["moves"]]) == (0, [4, 5])
    finally:
        consumer.close()
