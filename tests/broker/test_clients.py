"""Real clients on the broker: each produces, consumes and commits, alone and together in one group."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from typing import TYPE_CHECKING

import confluent_kafka
import kafka
import kafka.admin
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.real.realparts.kafka_python import KafkaConsumer

if TYPE_CHECKING:
    from collections.abc import Callable

    from roster.broker import Broker

COUNT = 300
SECONDS = 90.0
VALUES = [b"value-%d" % n for n in range(COUNT)]


def produce_with_kafka_python(bootstrap: str, topic: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, acks="all", compression_type="gzip")
    sent = [producer.send(topic, value, key=value) for value in VALUES]
    for future in sent:
        future.get(SECONDS)
    producer.close()


def produce_with_confluent(bootstrap: str, topic: str) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": "gzip"}
    )
    failures: list[object] = []
    for value in VALUES:
        producer.produce(
            topic, value, key=value, on_delivery=lambda error, _: failures.append(error) if error else None
        )
    assert producer.flush(SECONDS) == 0
    assert not failures


def produce_with_aiokafka(bootstrap: str, topic: str) -> None:
    async def run() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
        await producer.start()
        try:
            await asyncio.gather(*[await producer.send(topic, value, key=value) for value in VALUES])
        finally:
            await producer.stop()

    asyncio.run(run())


def consume_with_kafka_python(bootstrap: str, topic: str, group: str) -> list[bytes]:
    consumer = KafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
    )
    got: list[bytes] = []
    deadline = time.monotonic() + SECONDS
    while len(got) < COUNT and time.monotonic() < deadline:
        for records in consumer.poll(200).values():
            got += [record.value for record in records]
    consumer.commit()
    consumer.close()
    return got


def consume_with_confluent(bootstrap: str, topic: str, group: str) -> list[bytes]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "partition.assignment.strategy": "cooperative-sticky",
        }
    )
    consumer.subscribe([topic])
    got: list[bytes] = []
    deadline = time.monotonic() + SECONDS
    while len(got) < COUNT and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None:
            assert message.error() is None, message.error()
            got.append(message.value())
    consumer.commit(asynchronous=False)
    consumer.close()
    return got


def consume_with_aiokafka(bootstrap: str, topic: str, group: str) -> list[bytes]:
    async def run() -> list[bytes]:
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
        )
        await consumer.start()
        got: list[bytes] = []
        try:
            deadline = time.monotonic() + SECONDS
            while len(got) < COUNT and time.monotonic() < deadline:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    got += [record.value for record in records]
            await consumer.commit()
        finally:
            await consumer.stop()
        return got

    return asyncio.run(run())


PRODUCERS = [produce_with_kafka_python, produce_with_confluent, produce_with_aiokafka]
CONSUMERS = [consume_with_kafka_python, consume_with_confluent, consume_with_aiokafka]


def new_topic(broker: Broker) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics([NewTopic(name, 3, 1)]).values():
        future.result(SECONDS)
    return name


@pytest.mark.parametrize("produce", PRODUCERS)
def test_every_client_reads_what_any_client_wrote_and_its_commits_count_for_the_next(
    broker: Broker, produce: Callable[[str, str], None]
) -> None:
    topic = new_topic(broker)
    produce(broker.bootstrap, topic)
    for consume in CONSUMERS:
        assert sorted(consume(broker.bootstrap, topic, f"group-of-{consume.__name__}")) == sorted(VALUES)
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        for consume in CONSUMERS:
            committed = admin.list_group_offsets([f"group-of-{consume.__name__}"])
            mine = next(iter(committed.values()))
            assert sum(where.offset for tp, where in mine.items() if tp.topic == topic) == COUNT
    finally:
        admin.close()


def test_kafka_python_confluent_and_aiokafka_share_one_group(broker: Broker) -> None:
    """All three offer range: each reads its share, together everything once or more, and all of it is committed."""
    topic, group = new_topic(broker), f"g-{uuid.uuid4().hex}"
    got: dict[str, list[bytes]] = {"kafka-python": [], "confluent": [], "aiokafka": []}
    owners: dict[str, int] = {}
    done = threading.Event()
    failures: list[BaseException] = []

    def finished() -> bool:
        return done.is_set() or time.monotonic() > deadline

    deadline = time.monotonic() + SECONDS

    def kafka_python() -> None:
        consumer = KafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            partition_assignment_strategy=[kafka.coordinator.assignors.range.RangePartitionAssignor],
        )
        while not finished():
            for records in consumer.poll(100).values():
                got["kafka-python"] += [record.value for record in records]
            owners["kafka-python"] = len(consumer.assignment())
        consumer.close()

    def confluent() -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "partition.assignment.strategy": "range",
            }
        )
        consumer.subscribe([topic])
        while not finished():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                got["confluent"].append(message.value())
            owners["confluent"] = len(consumer.assignment())
        consumer.close()

    def aio() -> None:
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor

        async def run() -> None:
            consumer = AIOKafkaConsumer(
                topic,
                bootstrap_servers=broker.bootstrap,
                group_id=group,
                auto_offset_reset="earliest",
                partition_assignment_strategy=[RangePartitionAssignor],
                heartbeat_interval_ms=500,
            )
            await consumer.start()
            try:
                while not finished():
                    for records in (await consumer.getmany(timeout_ms=100)).values():
                        got["aiokafka"] += [record.value for record in records]
                    owners["aiokafka"] = len(consumer.assignment())
            finally:
                await consumer.stop()

        asyncio.run(run())

    def guarded(member: Callable[[], None]) -> None:
        try:
            member()
        except BaseException as error:
            failures.append(error)
            done.set()

    threads = [threading.Thread(target=guarded, args=(member,)) for member in (kafka_python, confluent, aio)]
    for thread in threads:
        thread.start()
    while not finished() and list(owners.values()) != [1, 1, 1]:
        time.sleep(0.02)
    assert owners == dict.fromkeys(got, 1)
    produce_with_confluent(broker.bootstrap, topic)
    while not finished() and sum(map(len, got.values())) < COUNT:
        time.sleep(0.02)
    done.set()
    for thread in threads:
        thread.join(SECONDS)
    assert not failures
    assert sorted(value for values in got.values() for value in values) == sorted(VALUES)
    assert all(got.values())
