"""The classes in the real clients, on Roster's broker."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest
from aiokafka import AIOKafkaConsumer

from roster.client import Admin, GroupMember
from roster.model import parse_address
from roster.plugins import aiokafka as for_aiokafka
from roster.plugins import kafka_python as for_kafka_python
from roster.wire.consumer.messages import Subscription, encode_subscription
from roster.wire.consumer.user_data import encode_sticky_user_data
from roster.wire.messages import JoinGroupRequest, LeaveGroupRequest
from tests.broker.rawclient import RawClient
from tests.real.realparts.clients import Member
from tests.real.realparts.kafka_python import KafkaConsumer
from tests.waiting import until

PATIENCE = 90.0
QUICK = {"session_timeout_ms": 10_000, "heartbeat_interval_ms": 100, "auto_offset_reset": "earliest"}


class Polling:
    """A kafka-python consumer polled by a thread of its own."""

    def __init__(self, bootstrap: str, group: str, topic: str, strategy: object, **settings: object) -> None:
        self.consumer = KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            partition_assignment_strategy=[strategy],
            max_poll_interval_ms=20_000,
            **{**QUICK, **settings},
        )
        self.error: BaseException | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        try:
            while not self._end.is_set():
                self.consumer.poll(timeout_ms=100)
        except BaseException as error:
            self.error = error

    def owns(self) -> set[int]:
        assert self.error is None, self.error
        return {partition for _, partition in self.consumer.assignment() or ()}

    def close(self) -> None:
        self._end.set()
        self._thread.join(20)
        self.consumer.close()


class Looping:
    """aiokafka consumers on an event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._consumers: list[AIOKafkaConsumer] = []

    def run(self, coroutine: object, timeout: float = PATIENCE) -> object:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout)

    def open(self, bootstrap: str, group: str, topic: str, strategy: object) -> AIOKafkaConsumer:
        async def opened() -> AIOKafkaConsumer:
            consumer = AIOKafkaConsumer(
                topic,
                bootstrap_servers=bootstrap,
                group_id=group,
                partition_assignment_strategy=[strategy],
                rebalance_timeout_ms=10_000,
                **QUICK,
            )
            await consumer.start()
            return consumer

        consumer = self.run(opened())
        self._consumers.append(consumer)
        return consumer

    def stop(self, consumer: AIOKafkaConsumer) -> None:
        self._consumers.remove(consumer)
        self.run(consumer.stop())

    def close(self) -> None:
        for consumer in list(self._consumers):
            self.stop(consumer)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


@pytest.fixture
def polling() -> Iterator[Callable[..., Polling]]:
    with contextlib.ExitStack() as stack:

        def opened(*arguments: object, **settings: object) -> Polling:
            consumer = Polling(*arguments, **settings)
            stack.callback(consumer.close)
            return consumer

        yield opened


@pytest.fixture
def looping() -> Iterator[Looping]:
    loop = Looping()
    yield loop
    loop.close()


def numbers(consumer: AIOKafkaConsumer) -> set[int]:
    return {partition for _, partition in consumer.assignment()}


def divided(*owners: Callable[[], set[int]], of: int = 6) -> Callable[[], bool]:
    """Every partition has one owner, and nobody has two more than another."""

    def check() -> bool:
        parts = [owner() for owner in owners]
        sizes = [len(part) for part in parts]
        return set().union(*parts) == set(range(of)) and sum(sizes) == of and max(sizes) - min(sizes) <= 1

    return check


def test_two_kafka_python_consumers_share_a_topic_cooperatively(broker, topic, polling):
    one = polling(broker.bootstrap, topic, topic, for_kafka_python.RosterCooperativeSticky)
    until(lambda: len(one.owns()) == 6)
    two = polling(broker.bootstrap, topic, topic, for_kafka_python.RosterCooperativeSticky)
    until(divided(one.owns, two.owns))
    kept = one.owns()
    three = polling(broker.bootstrap, topic, topic, for_kafka_python.RosterCooperativeSticky)
    until(divided(one.owns, two.owns, three.owns))
    assert one.owns() < kept
    with Admin(broker.bootstrap) as admin:
        # A group has no protocol until its last, empty rebalance is over.
        until(lambda: admin.describe_group(topic).protocol == "cooperative-sticky")


def test_a_cooperative_group_of_kafka_python_and_roster(broker, topic, polling):
    with GroupMember(broker.bootstrap, topic, [topic], heartbeat_interval_ms=100) as member:

        def owns() -> set[int]:
            ownership = member.ownership()
            assert ownership.error is None
            if ownership.revoking:
                member.release(ownership.revoking)
            return {partition for _, partition in ownership.partitions}

        until(lambda: len(owns()) == 6)
        other = polling(broker.bootstrap, topic, topic, for_kafka_python.RosterCooperativeSticky)
        until(divided(owns, other.owns))


@pytest.mark.parametrize("strategy", ["RosterRange", "RosterRoundRobin", "RosterSticky"])
def test_kafka_python_and_aiokafka_in_one_group(broker, topic, polling, looping, strategy):
    one = polling(broker.bootstrap, topic, topic, getattr(for_kafka_python, strategy))
    until(lambda: len(one.owns()) == 6)
    two = looping.open(broker.bootstrap, topic, topic, getattr(for_aiokafka, strategy))
    until(divided(one.owns, lambda: numbers(two)))


def test_stickiness_holds_between_the_two_clients_whoever_leads(broker, topic, polling, looping):
    one = looping.open(broker.bootstrap, topic, topic, for_aiokafka.RosterSticky)
    two = polling(broker.bootstrap, topic, topic, for_kafka_python.RosterSticky)
    until(divided(lambda: numbers(one), two.owns))
    before = numbers(one), two.owns()
    three = looping.open(broker.bootstrap, topic, topic, for_aiokafka.RosterSticky)
    until(divided(lambda: numbers(one), two.owns, lambda: numbers(three)))
    assert numbers(one) < before[0]
    assert two.owns() < before[1]
    kept = numbers(three), two.owns()
    looping.stop(one)  # it led the group; now another does
    until(divided(two.owns, lambda: numbers(three)))
    assert numbers(three) > kept[0]
    assert two.owns() > kept[1]


def test_consumers_of_one_process_share_no_state_though_aiokafka_calls_the_class(broker, topic, looping):
    owners = [looping.open(broker.bootstrap, topic, topic, for_aiokafka.RosterSticky) for _ in range(3)]
    until(divided(*(lambda consumer=consumer: numbers(consumer) for consumer in owners)))
    before = [numbers(consumer) for consumer in owners]
    looping.stop(owners[2])
    until(divided(lambda: numbers(owners[0]), lambda: numbers(owners[1])))
    assert numbers(owners[0]) > before[0]
    assert numbers(owners[1]) > before[1]


def test_an_instance_does_for_aiokafka_as_well(broker, topic, looping):
    one = looping.open(broker.bootstrap, topic, topic, for_aiokafka.RosterSticky(rack="a"))
    until(lambda: len(numbers(one)) == 6)


class RawMember:
    """A member that sends whatever bytes it likes in its subscription."""

    def __init__(self, bootstrap: str, group: str, protocol: str, metadata: bytes) -> None:
        self._client = RawClient(parse_address(bootstrap), 10)
        self._request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequest.Protocol(name=protocol, metadata=metadata)],
        )

    def join(self) -> None:
        """Send JoinGroup twice: the first answer names the member id."""
        self._request.member_id = self._client.ask(self._request, 5).member_id
        self._client.send(self._request, 5)

    def close(self) -> None:
        """Leave, lest the others' next rebalance wait for the end of the session."""
        leave = LeaveGroupRequest(group_id=self._request.group_id, member_id=self._request.member_id)
        self._client.send(leave, 1)
        self._client.socket.close()


HOSTILE_USER_DATA = [
    b"\xff" * 40,
    b"\x00\x01\x00\x00\x00\x00",
    b"\x7f\xff\xff\xff",
    encode_sticky_user_data({"elsewhere": [0, 1]}, 2**31 - 1),
]


@pytest.mark.parametrize("user_data", HOSTILE_USER_DATA)
@pytest.mark.sampled(1)
def test_a_member_with_hostile_user_data_does_not_keep_the_others_from_their_partitions(
    broker, topic, polling, user_data
):
    one = polling(broker.bootstrap, topic, topic, for_kafka_python.RosterSticky)
    until(lambda: len(one.owns()) == 6)
    subscription = encode_subscription(Subscription(topics=[topic, "not-there"], user_data=user_data))

    def gets_its_share() -> bool:
        raw = RawMember(broker.bootstrap, topic, "sticky", subscription)
        try:
            raw.join()
            until(lambda: len(one.owns()) == 3, 15)
        except AssertionError:
            return False
        finally:
            raw.close()
        return True

    # kafka-python joins again when it has looked for the topic that is not there; the raw member does not.
    assert any(gets_its_share() for _ in range(8))


def test_kafka_pythons_own_sticky_assignor_keeps_its_partitions_in_a_group_led_by_rosters(broker, topic, polling):
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

    one = polling(broker.bootstrap, topic, topic, for_kafka_python.RosterSticky)
    until(lambda: len(one.owns()) == 6)
    two = polling(broker.bootstrap, topic, topic, StickyPartitionAssignor)
    until(divided(one.owns, two.owns))
    kept = two.owns()
    three = polling(broker.bootstrap, topic, topic, for_kafka_python.RosterSticky)
    until(divided(one.owns, two.owns, three.owns))
    assert two.owns() < kept


def owned_by(member: Member) -> Callable[[], set[int]]:
    return lambda: {partition for _, partition in member.owned}


@pytest.mark.parametrize("leader", ["java", "plug-in"])
@pytest.mark.parametrize("strategy", [for_kafka_python.RosterSticky, for_kafka_python.RosterCooperativeSticky])
@pytest.mark.gate
def test_java_and_a_plug_in_keep_what_they_need_not_give_up_whoever_leads(
    roster_broker, client, polling, leader, strategy
):
    topic = roster_broker.create_topic(partitions=6)

    def java() -> Callable[[], set[int]]:
        return owned_by(client("java", roster_broker, topic, topics=[topic], assignors=[strategy.name]))

    def plug_in() -> Callable[[], set[int]]:
        return polling(roster_broker.bootstrap, topic, topic, strategy).owns

    first, second = (java, plug_in) if leader == "java" else (plug_in, java)
    members = [first()]
    until(divided(*members))
    members.append(second())
    until(divided(*members))
    kept = [member() for member in members]
    members.append(second())
    until(divided(*members))
    assert members[0]() < kept[0]
    assert members[1]() < kept[1]
