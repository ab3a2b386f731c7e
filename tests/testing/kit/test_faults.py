"""Scripted faults as real clients meet them."""

from __future__ import annotations

import socket

import pytest
from kafka import KafkaProducer, OffsetAndMetadata
from kafka import TopicPartition as KafkaPartition
from kafka.errors import KafkaError, RecordListTooLargeError

from roster.client import Admin
from roster.model import TopicPartition
from roster.testing import Rebalance
from roster.wire.frames import encode_request
from roster.wire.messages import HeartbeatRequest, HeartbeatResponse, ListGroupsRequest
from tests.real.realparts.kafka_python import KafkaConsumer
from tests.waiting import until


def member(broker, topic, **settings):
    consumer = KafkaConsumer(
        bootstrap_servers=broker.bootstrap,
        group_id="g",
        client_id="one",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        **settings,
    )
    assert consumer.partitions_for_topic(topic)
    consumer.subscribe([topic])
    return consumer


def read(consumer, count):
    found = []
    for _ in range(60):
        found += [record for batch in consumer.poll(5_000).values() for record in batch]
        if len(found) >= count:
            return found
    raise AssertionError(f"{len(found)} records, not {count}")


def test_a_consumer_gets_over_refused_joins(broker):
    topic = broker.create_topic()
    broker.produce(topic, ["a"])
    fault = broker.fault("JoinGroup", group="g", times=2, reply="COORDINATOR_NOT_AVAILABLE")
    other = broker.fault("JoinGroup", group="another", reply="GROUP_AUTHORIZATION_FAILED")
    with member(broker, topic) as consumer:
        assert [record.value for record in read(consumer, 1)] == [b"a"]
    assert (fault.hits, other.hits) == (2, 0)


def test_a_commit_whose_reply_is_lost_is_carried_out(broker):
    topic = broker.create_topic()
    broker.produce(topic, ["a"])
    with member(broker, topic, request_timeout_ms=305_000) as consumer:
        read(consumer, 1)
        fault = broker.fault("OffsetCommit", disconnect="reply")
        consumer.commit_async({KafkaPartition(topic, 0): OffsetAndMetadata(1, "", -1)})
        consumer.poll(100)
        fault.wait_hit()
        broker.wait_for_commit("g", topic, 1)


def test_a_commit_that_is_refused_is_not_carried_out(broker):
    topic = broker.create_topic()
    broker.produce(topic, ["a"])
    with member(broker, topic) as consumer:
        read(consumer, 1)
        with broker.fault("OffsetCommit", group="g", times=None, reply="OFFSET_METADATA_TOO_LARGE") as fault:
            with pytest.raises(KafkaError, match=r"(?i)metadata"):
                consumer.commit({KafkaPartition(topic, 0): OffsetAndMetadata(1, "", -1)})
            assert fault.hits == 1
        assert broker.committed("g") == {}
        consumer.commit({KafkaPartition(topic, 0): OffsetAndMetadata(1, "", -1)})
    assert broker.committed("g") == {TopicPartition(topic, 0): 1}


def test_a_producer_meets_faults_of_its_topic_only(broker):
    good, bad = broker.create_topic(), broker.create_topic()
    fault = broker.fault("Produce", topic=bad, times=None, reply="RECORD_LIST_TOO_LARGE")
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=False)
    try:
        with pytest.raises(RecordListTooLargeError):
            producer.send(bad, b"x").get(60)
        producer.send(good, b"x").get(60)
        fault.remove()
        producer.send(bad, b"y").get(60)
    finally:
        producer.close()
    assert [each.text for each in broker.records(bad)] == ["y"]
    assert [each.text for each in broker.records(good)] == ["x"]


def test_a_request_of_one_client_is_delayed_after_others_have_passed(broker):
    topic = broker.create_topic()
    fault = broker.fault("ListGroups", client_id="late", after=1, delay=0.05)
    with Admin(broker.bootstrap, client_id="late") as admin, Admin(broker.bootstrap, client_id="other") as other:
        other.list_groups()
        admin.list_groups()
        assert fault.hits == 0
        admin.list_groups()
        assert fault.hits == 1
        assert topic in admin.list_topics()


def test_silence_ends_when_the_client_gives_up_or_the_broker_stops(broker):
    fault = broker.fault("ListGroups", times=None, drop=True)
    ask = encode_request(ListGroupsRequest(), 0, 1, "one")
    where = ("127.0.0.1", int(broker.bootstrap.rpartition(":")[2]))
    with socket.create_connection(where) as gives_up, socket.create_connection(where) as waits:
        gives_up.sendall(ask)
        fault.wait_hit()
        gives_up.settimeout(0.1)
        with pytest.raises(TimeoutError):
            gives_up.recv(1)
        gives_up.close()
        waits.sendall(ask)
        fault.wait_hit(2)
        broker.stop()  # does not wait for it
        assert waits.recv(1) == b""


def test_a_reply_may_be_computed_from_the_request(broker):
    seen = []

    def reply(request: HeartbeatRequest) -> HeartbeatResponse:
        seen.append(request.generation_id)
        return HeartbeatResponse(error_code=27)

    topic = broker.create_topic()
    fault = broker.fault("Heartbeat", group="g", reply=reply)
    with member(broker, topic, heartbeat_interval_ms=100) as consumer:

        def following() -> list[Rebalance]:
            consumer.poll(100)
            return [each for each in broker.rebalances("g") if seen and each.generation == seen[0] + 1]

        after = until(following)
    assert (fault.hits, len(seen)) == (1, 1)
    assert after[0].causes[0].startswith("one rejoined")


def test_metadata_with_an_error_still_names_the_broker(broker):
    topic = broker.create_topic()
    fault = broker.fault("Metadata", topic=topic, times=3, reply="LEADER_NOT_AVAILABLE")
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    producer.send(topic, b"x").get(60)
    producer.close()
    assert fault.hits == 3
