"""The embedded broker of the test kit, with kafka-python as the user's client and the core's messages as the others."""

from __future__ import annotations

import itertools
import socket
import threading

import pytest
from kafka import KafkaProducer
from kafka.partitioner.default import murmur2 as kafka_pythons_murmur2

from roster.broker.dispatch import HANDLERS
from roster.broker.stored_records import read_transactional_records
from roster.model import TopicPartition
from roster.testing import EmbeddedBroker, KitArgumentError, KitTimeoutError
from roster.testing.stored import partition_for
from roster.wire import API_VERSIONS, ApiKey, ErrorCode, decode, encode, request_class, response_class
from roster.wire.error_replies import error_response
from roster.wire.records import Record
from tests.real.realparts.kafka_python import KafkaConsumer


@pytest.fixture(scope="module")
def shared():
    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture
def consumer():
    """`consumer(broker, topic, **settings)` opens a member that polls in a thread of its own; all are closed."""
    stop = threading.Event()
    threads = []

    def poll(member: KafkaConsumer) -> None:
        while not stop.is_set():
            member.poll(100)
        member.close()

    def open_member(broker: EmbeddedBroker, topic: str, group: str, name: str, **settings: object) -> None:
        member = KafkaConsumer(
            bootstrap_servers=broker.bootstrap,
            group_id=group,
            client_id=name,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=100,
            **{"session_timeout_ms": 60_000, **settings},
        )
        assert member.partitions_for_topic(topic)
        member.subscribe([topic])
        threads.append(threading.Thread(target=poll, args=(member,)))
        threads[-1].start()

    yield open_member
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def test_records_go_in_and_out_with_and_without_a_client(shared):
    topic = shared.create_topic(partitions=2)
    shared.produce(topic, ["a", ("key", {"n": 1}), b"\xff", ("gone", None)], partition=1)
    producer = KafkaProducer(bootstrap_servers=shared.bootstrap)
    producer.send(topic, b"sent", key=b"k", partition=0).get(60)
    producer.close()
    found = shared.records(topic)
    assert [(each.partition, each.offset, each.key, each.value) for each in found] == [
        (0, 0, b"k", b"sent"),
        (1, 0, None, b"a"),
        (1, 1, b"key", b'{"n": 1}'),
        (1, 2, None, b"\xff"),
        (1, 3, b"gone", None),
    ]
    assert found[2].json == {"n": 1}
    assert found[1].text == "a"
    assert shared.records(topic, 0) == found[:1]
    assert shared.wait_for_records(topic, 5) == found


def test_keys_go_where_kafkas_clients_put_them():
    for size, first in itertools.product(range(12), (0, 7, 200)):
        key = bytes((first + 31 * n) % 256 for n in range(size))
        record = Record(timestamp=0, key=key, value=None)
        for partitions in (1, 5, 2**31 - 1):
            assert partition_for(record, 0, partitions) == (kafka_pythons_murmur2(key) & 0x7FFFFFFF) % partitions


def test_history_has_who_joined_what_each_got_and_why(broker, consumer):
    topic = broker.create_topic(partitions=2)
    consumer(broker, topic, "g", "one")
    assert broker.wait_for_group("g", members=1).members == ("one",)
    consumer(broker, topic, "g", "two")
    broker.wait_for_group("g", members=2)
    first, *others = broker.rebalances("g")
    assert (first.generation, first.joined, first.left) == (1, (first.members[0].member_id,), ())
    assert first.causes[0].startswith("one joined")
    assert first.assigned_to("one") == {topic: (0, 1)}
    assert any(cause.startswith("two joined") for each in others for cause in each.causes)
    last = broker.wait_for_assignments("g", members=2)
    assert last.is_complete
    assert sorted([*last.assigned_to("one")[topic], *last.assigned_to("two")[topic]]) == [0, 1]
    assert "one" in str(last)
    assert topic in str(last)


def test_a_session_that_ends_is_the_cause_of_a_rebalance(broker, consumer):
    topic = broker.create_topic(partitions=2)
    consumer(broker, topic, "g", "one")
    consumer(broker, topic, "g", "two")
    seen = broker.wait_for_assignments("g", members=2)
    broker.expire_session("g", "two")
    broker.wait_for_group("g", members=2, generation=seen.generation + 1)  # it is alive, and joins again
    causes = [cause for each in broker.rebalances("g") for cause in each.causes]
    assert "the session of two ended" in causes
    with pytest.raises(KitArgumentError, match=r"no member of group 'g' 'tow'; did you mean two\?"):
        broker.expire_session("g", "tow")


def test_the_clock_goes_forward_for_the_broker_only(broker, consumer):
    topic = broker.create_topic()
    consumer(broker, topic, "g", "one")
    before = broker.wait_for_assignments("g", members=1)  # without its assignment the member would be late with that
    broker.advance(100)
    after = broker.wait_for_group("g", members=1, generation=before.generation + 1)
    assert after.generation > before.generation
    assert any("the session of one ended" in cause for each in broker.rebalances("g") for cause in each.causes)


def test_a_killed_broker_is_back_with_what_was_acknowledged(broker, consumer):
    topic = broker.create_topic()
    broker.produce(topic, ["a", "b"])
    consumer(broker, topic, "g", "one", auto_commit_interval_ms=100)
    broker.wait_for_commit("g", topic, 2)
    where = broker.bootstrap
    broker.kill()
    with pytest.raises(KitArgumentError, match=r"call start\(\)"):
        broker.records(topic)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(where.rpartition(":")[2])), 5)
    broker.start()
    assert broker.bootstrap == where
    assert [each.text for each in broker.records(topic)] == ["a", "b"]
    assert broker.committed("g") == {TopicPartition(topic, 0): 2}
    broker.produce(topic, ["c"])
    broker.wait_for_commit("g", topic, 3)
    assert broker.wait_for_group("g", members=1).members == ("one",)


def test_a_broker_that_has_started_knows_its_groups(broker, consumer, monkeypatch):
    topic = broker.create_topic()
    broker.produce(topic, ["a"])
    consumer(broker, topic, "g", "one", auto_commit_interval_ms=100)
    broker.wait_for_commit("g", topic, 1)
    broker.kill()
    may_load = threading.Event()

    def read(log):
        assert may_load.wait(60)
        return read_transactional_records(log)

    monkeypatch.setattr("roster.broker.coordinator_shell.read_transactional_records", read)
    threading.Timer(0.5, may_load.set).start()
    broker.start()
    assert broker.committed("g") == {TopicPartition(topic, 0): 1}


def test_waiting_in_vain_says_what_was_there(shared):
    with pytest.raises(KitTimeoutError, match=r"'nobody' is Dead.*not Stable with 2 members.*not rebalanced after 0 s"):
        shared.wait_for_group("nobody", members=2, timeout=0)
    topic = shared.create_topic()
    with pytest.raises(KitTimeoutError, match="has 0 records, not 1"):
        shared.wait_for_records(topic, 1, timeout=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"api": "JoinGrup", "drop": True}, r"no API 'JoinGrup'; did you mean JoinGroup"),
        ({"api": "Heartbeat", "reply": "REBALANCE_IN_PROGES"}, "did you mean REBALANCE_IN_PROGRESS"),
        ({"api": "Heartbeat", "reply": 4711}, "no error code of Kafka's"),
        ({"api": "Heartbeat"}, "a fault needs reply=, drop=, disconnect= or delay="),
        ({"api": "Heartbeat", "reply": 27, "drop": True}, "reply and drop exclude each other"),
        ({"api": "Heartbeat", "drop": True, "times": 0}, "times=0"),
        ({"api": "Heartbeat", "drop": "sometimes"}, "must be True, 'request' or 'reply'"),
        ({"api": "Heartbeat", "drop": True, "topic": "t"}, "Heartbeat has no topic"),
        ({"api": "Produce", "drop": True, "group": "g"}, "Produce has no group"),
        ({"api": 4711, "drop": True}, "no API with this key"),
        ({"api": "Heartbeat", "delay": -1}, "must not be negative"),
    ],
)
def test_faults_that_make_no_sense_are_refused(shared, arguments, message):
    with pytest.raises(KitArgumentError, match=message):
        shared.fault(**arguments)


def test_other_wrong_arguments(shared):
    with pytest.raises(KitArgumentError, match="no broker setting 'auto_create_topic'; did you mean auto_create_"):
        EmbeddedBroker(auto_create_topic=True)
    with pytest.raises(KitArgumentError, match="no group state 'stable'; did you mean Stable"):
        shared.wait_for_group("g", "stable")
    topic = shared.create_topic("there")
    with pytest.raises(KitArgumentError, match="did you mean there"):
        shared.records("theer")
    with pytest.raises(KitArgumentError, match="has 1 partitions"):
        shared.produce(topic, ["a"], partition=1)
    with pytest.raises(KitArgumentError, match="a key or value is"):
        shared.produce(topic, [1])


def filled(kind):
    """A message with one element in every array."""
    message = kind()
    for name, field in kind.__table__.fields:
        if field.kind == "array":
            item = field.item
            element = filled(item.struct) if item.struct is not None else "name" if item.kind == "string" else 1
            setattr(message, name, [element])
    return message


def error_codes(message):
    for name, field in message.__table__.fields:
        if name.endswith("error_code"):
            yield getattr(message, name)
        if field.kind == "array" and field.item.kind == "struct":
            for item in getattr(message, name) or ():
                yield from error_codes(item)


@pytest.mark.parametrize("api", sorted(API_VERSIONS), ids=lambda api: api.label)
def test_every_request_can_be_refused_in_every_version(api):
    for version in API_VERSIONS[api]:
        request = filled(request_class(api))
        for name, field in request.__table__.fields:
            if version not in field.versions and field.kind == "array":
                setattr(request, name, [])
        response = error_response(request, version, ErrorCode.NOT_COORDINATOR)
        sent = decode(response_class(api), version, encode(response, version))
        assert ErrorCode.NOT_COORDINATOR in set(error_codes(sent)), version


def test_every_api_the_broker_has_can_be_named(shared):
    for api in map(ApiKey, HANDLERS):
        for name in (api.label, api.name, api.label.lower() + "request", int(api)):
            fault = shared.fault(name, drop=True)
            assert fault.api is api
            fault.remove()
            fault.remove()
