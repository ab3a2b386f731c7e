"""Apache Kafka 4.4 beside the release of the other tests: Roster's clients on its broker, its clients on Roster's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from roster.client import Admin, GroupMember, OffsetAndMetadata, ProducerFencedError, UnknownGroupError
from roster.client.transactional_producer import TransactionalProducer
from roster.model import TopicPartition
from tests.conftest import MemberFactory
from tests.real.realparts import clients
from tests.real.realparts.apache import ApacheKafka
from tests.real.realparts.clients import Host
from tests.real.realparts.cluster import Cluster, unique
from tests.real.realparts.groups import consumed_up_to, partitions, shared_out
from tests.waiting import until

VERSION = "4.4.0"
pytestmark = [pytest.mark.real, pytest.mark.gate]


@pytest.fixture(scope="module")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROSTER_KAFKA_VERSION", VERSION)
        broker = ApacheKafka(tmp_path_factory.mktemp("kafka-4.4"))
        yield broker
        broker.stop()


@pytest.fixture(scope="module")
def java_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A JVM with the Java clients of that release."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROSTER_KAFKA_VERSION", VERSION)
        host = clients.java_host(tmp_path_factory.mktemp("java-4.4") / "host.log")
        yield host
        host.stop()


@contextmanager
def member_of(cluster: Cluster, group: str, topic: str, said: list[str]) -> Iterator[GroupMember]:
    """A member of a group that releases what it is to give up; it says by which assignor it has joined."""

    def on_event(event: Any) -> None:
        if event.kind == "joined":
            said.append(event.text)

    times = {"heartbeat_interval_ms": 200, "session_timeout_ms": 6_000}
    with GroupMember(cluster.bootstrap, group, [topic], assignors=["range"], on_event=on_event, **times) as member:
        yield member


def owned(member: GroupMember) -> set[tuple[str, int]]:
    now = member.ownership()
    member.release(now.revoking)
    return {tuple(partition) for partition in now.partitions}


def test_offsets_in_a_transaction_and_a_fenced_producer(apache_kafka: ApacheKafka) -> None:
    topic, group, name = apache_kafka.create_topic(partitions=2), unique("group"), unique("tx")
    everything, said = partitions(topic, 2), list[str]()
    with member_of(apache_kafka, group, topic, said) as member:
        until(lambda: owned(member) == everything)
        now = member.ownership()
        with closing(TransactionalProducer(apache_kafka.bootstrap, name, group)) as producer:
            producer.start()
            producer.begin()
            producer.commit({TopicPartition(topic, 0): OffsetAndMetadata(5)}, now.generation, now.member_id)
            producer.begin()
            with closing(TransactionalProducer(apache_kafka.bootstrap, name, group)) as second:
                second.start()
                with pytest.raises(ProducerFencedError):
                    producer.commit({TopicPartition(topic, 0): OffsetAndMetadata(6)}, now.generation, now.member_id)
    assert apache_kafka.committed(group) == {(topic, 0): 5}
    assert said[-1].endswith("assignor range")
    with closing(Admin(apache_kafka.bootstrap)) as admin:
        until(lambda: apache_kafka.group_state(group) == "EMPTY")
        admin.delete_group(group)
        with pytest.raises(UnknownGroupError):
            admin.delete_group(group)


def test_a_member_says_that_the_broker_assigns_beside_consumers_of_the_new_protocol(
    apache_kafka: ApacheKafka, client: MemberFactory
) -> None:
    """librdkafka with `group.protocol=consumer` joins and leaves the group of a member that knows the classic one."""
    topic, group = apache_kafka.create_topic(partitions=6, records=5), unique("group")
    everything, said = partitions(topic, 6), list[str]()
    with member_of(apache_kafka, group, topic, said) as member:
        until(lambda: owned(member) == everything)
        assert "assignor range" in said[-1]
        new = client("confluent", apache_kafka, group, topics=[topic], protocol="consumer")
        until(lambda: (len(owned(member)), len(new.owned)) == (3, 3) and owned(member) | new.owned == everything)
        assert "the broker assigns (KIP-848)" in said[-1], said
        committed = {TopicPartition(*partition): OffsetAndMetadata(4) for partition in owned(member)}
        member.commit(committed, member.ownership())
        new.close()
        until(lambda: owned(member) == everything)
        until(lambda: "assignor range" in said[-1], what=lambda: said)


def test_java_clients_of_that_release_on_rosters_broker(
    roster_broker: Cluster, java_host: Host, client: MemberFactory
) -> None:
    topic, group = roster_broker.create_topic(partitions=4, records=5), unique("group")
    everything = partitions(topic, 4)
    members = [client(kind, roster_broker, group, topics=[topic]) for kind in ("java", "roster")]
    shared_out(members, everything)
    consumed_up_to(members, dict.fromkeys(everything, 5))
    for member in members:
        member.close()
    until(lambda: roster_broker.group_state(group) == "EMPTY")
    java_host.ask(bootstrap=roster_broker.bootstrap, operation="delete", group=group)
    assert group not in java_host.ask(bootstrap=roster_broker.bootstrap, operation="groups")
