"""Roster's members on a real Apache Kafka, alone and in one group with kafka-python and librdkafka."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer
from kafka.coordinator.assignors.range import RangePartitionAssignor

from roster.client import Admin, CommitFenced, GroupMember, OffsetAndMetadata, UnknownTopicError
from roster.model import TopicPartition
from tests.real.realparts.kafka_python import KafkaConsumer
from tests.waiting import until

PARTITIONS = 8
View = dict[str, frozenset[int]]
"""What each running member owns, by name."""


class Group:
    """Members of three kinds, each polling in a thread of its own and reporting what it owns."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self.bootstrap, self.topic, self.group = bootstrap, topic, group
        self.view: View = {}
        self.led: list[str] = []
        self._stops: dict[str, threading.Event] = {}
        self._threads: dict[str, threading.Thread] = {}

    def start(self, name: str, kind: Callable[[Group, str, threading.Event], None]) -> None:
        self._stops[name] = threading.Event()
        self._threads[name] = threading.Thread(target=kind, args=(self, name, self._stops[name]), daemon=True)
        self._threads[name].start()

    def stop(self, name: str) -> None:
        self._stops[name].set()
        self._threads[name].join(30)
        self.view.pop(name, None)

    def close(self) -> None:
        for name in list(self._stops):
            self.stop(name)

    def await_shared(self, names: set[str], partitions: int = PARTITIONS, timeout: float = 60.0) -> View:
        def shared() -> View | None:
            view = dict(self.view)
            owned = sorted(number for numbers in view.values() for number in numbers)
            return view if set(view) == names and all(view.values()) and owned == list(range(partitions)) else None

        return until(shared, timeout, lambda: f"still {self.view}")


def roster_member(group: Group, name: str, stop: threading.Event) -> None:
    def led(event: Any) -> None:
        if event.kind == "leading":
            group.led.append(name)

    with GroupMember(
        group.bootstrap,
        group.group,
        [group.topic],
        assignors=["range"],
        heartbeat_interval_ms=200,
        session_timeout_ms=6_000,
        metadata_max_age_ms=500,
        on_event=led,
    ) as member:
        while not stop.is_set():
            now = member.ownership()
            group.view[name] = frozenset(partition.partition for partition in now.partitions)
            member.release(now.revoking)
            member.wait(now.epoch, 0.1)


def librdkafka_member(group: Group, name: str, stop: threading.Event) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": group.bootstrap,
            "group.id": group.group,
            "partition.assignment.strategy": "range",
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 200,
        }
    )
    consumer.subscribe([group.topic])
    while not stop.is_set():
        consumer.poll(0.1)
        group.view[name] = frozenset(partition.partition for partition in consumer.assignment())
    consumer.close()


def kafka_python_member(group: Group, name: str, stop: threading.Event) -> None:
    consumer = KafkaConsumer(
        group.topic,
        bootstrap_servers=group.bootstrap,
        group_id=group.group,
        partition_assignment_strategy=[RangePartitionAssignor],
        session_timeout_ms=6_000,
        heartbeat_interval_ms=200,
    )
    while not stop.is_set():
        consumer.poll(100)
        group.view[name] = frozenset(partition.partition for partition in consumer.assignment())
    consumer.close()


KINDS = {"roster": roster_member, "librdkafka": librdkafka_member, "kafka-python": kafka_python_member}


@contextmanager
def new_group(cluster: Any, stem: str) -> Iterator[Group]:
    topic = cluster.create_topic(stem, PARTITIONS)
    group = Group(cluster.bootstrap, topic, f"group-of-{topic}")
    with ExitStack() as stack:
        stack.callback(group.close)
        yield group


@pytest.mark.parametrize("first", KINDS)
def test_one_group_of_three_clients_whoever_leads(apache_kafka: Any, first: str) -> None:
    """The first to join leads; when it goes, another leader takes over and nothing stays without an owner."""
    with new_group(apache_kafka, "mixed") as group:
        order = [first, *(kind for kind in KINDS if kind != first)]
        for number, kind in enumerate(order):
            group.start(kind, KINDS[kind])
            group.await_shared(set(order[: number + 1]))
        group.stop(first)
        group.await_shared(set(order[1:]))
        assert group.led or first != "roster"


def test_a_roster_leader_notices_new_partitions_for_everyone(apache_kafka: Any) -> None:
    with new_group(apache_kafka, "grows") as group:
        group.start("roster", roster_member)
        group.await_shared({"roster"})
        group.start("librdkafka", librdkafka_member)
        group.await_shared({"roster", "librdkafka"})
        apache_kafka.add_partitions(group.topic, 12)
        group.await_shared({"roster", "librdkafka"}, partitions=12)


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_roster_members_share_commit_and_take_over(apache_kafka: Any, assignor: str) -> None:
    topic = apache_kafka.create_topic("own", PARTITIONS, records=3)
    group = f"own-{topic}"
    options: dict[str, Any] = {"assignors": [assignor], "heartbeat_interval_ms": 200, "session_timeout_ms": 6_000}
    with ExitStack() as stack:
        one = stack.enter_context(GroupMember(apache_kafka.bootstrap, group, [topic], **options))
        first = one.ownership()
        assert set(one.end_offsets(first.partitions).values()) == {3}
        one.commit({partition: OffsetAndMetadata(2) for partition in first.partitions}, first)
        stop = threading.Event()

        def release() -> None:
            while not stop.is_set():
                one.release(one.wait(-1, 0.0).revoking)
                time.sleep(0.02)

        releasing = threading.Thread(target=release, daemon=True)
        releasing.start()
        two = stack.enter_context(GroupMember(apache_kafka.bootstrap, group, [topic], **options))
        until(lambda: len(two.ownership().partitions) == PARTITIONS // 2, what=two.ownership)
        with pytest.raises(CommitFenced):
            one.commit({partition: OffsetAndMetadata(3) for partition in first.partitions}, first)
        assert set(two.committed(two.ownership().partitions).values()) == {OffsetAndMetadata(2)}
        stop.set()
        releasing.join()
    with Admin(apache_kafka.bootstrap) as admin:
        assert admin.describe_group(group).state == "Empty"
        assert admin.group_offsets(group) == {
            TopicPartition(topic, number): OffsetAndMetadata(2) for number in range(PARTITIONS)
        }


def test_a_missing_topic_is_told_at_the_start(apache_kafka: Any) -> None:
    with pytest.raises(UnknownTopicError, match="no such topic: nowhere-at-all"):
        GroupMember(apache_kafka.bootstrap, "g", ["nowhere-at-all"]).start()


def test_partitions_added_while_a_static_leader_restarts_are_noticed(apache_kafka: Any) -> None:
    """Apache Kafka tells it not to assign (KIP-814); it compares the topic with the assignment that the group kept."""
    topic = apache_kafka.create_topic("static", 4)
    group = f"group-of-{topic}"
    led: list[str] = []

    def started(stack: ExitStack, name: str) -> GroupMember:
        member = GroupMember(
            apache_kafka.bootstrap,
            group,
            [topic],
            assignors=["cooperative-sticky"],
            group_instance_id=name,
            heartbeat_interval_ms=200,
            on_event=lambda event: led.append(name) if event.kind == "leading" else None,
        )
        return stack.enter_context(member)

    with ExitStack() as stack:
        members = {name: started(stack, name) for name in ("one", "two")}
        await_owned(members.values(), 4)
        leader = led[-1]
        members[leader].close()
        with Admin(apache_kafka.bootstrap) as admin:
            admin.create_partitions(topic, 6)
        members[leader] = started(stack, leader)
        await_owned(members.values(), 6)


def await_owned(members: Iterable[GroupMember], partitions: int, timeout: float = 60.0) -> None:
    """Let the members release what they are asked for, until each owns its share."""

    def are_shared() -> bool:
        owned = []
        for member in members:
            now = member.ownership()
            member.release(now.revoking)
            owned.append(len(now.partitions))
        return sum(owned) == partitions and max(owned) - min(owned) <= 1

    until(are_shared, timeout, lambda: [member.ownership() for member in members])
