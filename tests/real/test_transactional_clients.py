"""Transactional producers of other projects, on Roster's broker and on Apache Kafka."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import aiokafka
import kafka
import kafka.errors
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.real.realparts import golang
from tests.real.realparts.clients import AdminError, Host
from tests.real.realparts.cluster import Cluster, unique
from tests.waiting import until

SECONDS = 60


class Librdkafka:
    """confluent-kafka's producer."""

    def __init__(self, cluster: Cluster, transactional_id: str, timeout_ms: int = 60_000) -> None:
        settings = {"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms}
        self._producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0, "log_level": 2, **settings})
        self._producer.init_transactions(SECONDS)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, *values: str) -> None:
        for value in values:
            self._producer.produce(topic, value, partition=0)
        self._producer.flush(SECONDS)

    def send_offsets(self, consumer: Consumer, offsets: dict[tuple[str, int], int]) -> None:
        wanted = [TopicPartition(*key, offset) for key, offset in offsets.items()]
        self._producer.send_offsets_to_transaction(wanted, consumer.consumer_group_metadata(), SECONDS)

    def commit(self) -> None:
        self._producer.commit_transaction(SECONDS)

    def abort(self) -> None:
        self._producer.abort_transaction(SECONDS)

    def close(self) -> None:
        pass

    fenced: tuple[type[Exception], ...] = (KafkaException,)


class KafkaPython:
    """kafka-python's producer."""

    def __init__(self, cluster: Cluster, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=cluster.bootstrap, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
        )
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, *values: str) -> None:
        for future in [self._producer.send(topic, value.encode(), partition=0) for value in values]:
            future.get(SECONDS)

    def send_offsets(self, consumer: Consumer, offsets: dict[tuple[str, int], int]) -> None:
        wanted = {
            kafka.TopicPartition(*key): kafka.OffsetAndMetadata(offset, "", -1) for key, offset in offsets.items()
        }
        self._producer.send_offsets_to_transaction(wanted, GROUPS[id(consumer)])

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(timeout=5)

    fenced = (kafka.errors.KafkaError,)


class Aiokafka:
    """aiokafka's producer."""

    def __init__(self, cluster: Cluster, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self._loop = asyncio.new_event_loop()

        async def start() -> aiokafka.AIOKafkaProducer:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=cluster.bootstrap,
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
            )
            await producer.start()
            return producer

        self._producer = self._loop.run_until_complete(start())

    def _run(self, work):
        return self._loop.run_until_complete(asyncio.wait_for(work, SECONDS))

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, *values: str) -> None:
        for value in values:
            self._run(self._producer.send_and_wait(topic, value.encode(), partition=0))

    def send_offsets(self, consumer: Consumer, offsets: dict[tuple[str, int], int]) -> None:
        wanted = {aiokafka.TopicPartition(*key): offset for key, offset in offsets.items()}
        self._run(self._producer.send_offsets_to_transaction(wanted, GROUPS[id(consumer)]))

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        try:
            self._run(self._producer.stop())
        finally:
            self._loop.close()

    fenced = (aiokafka.errors.KafkaError,)


class Hosted:
    """A producer in a process of its language: Java's or franz-go's."""

    def __init__(self, host: Host, cluster: Cluster, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self._host, self._bootstrap, self._handle = host, cluster.bootstrap, unique("producer")
        self._step("open", name=transactional_id, timeout_ms=timeout_ms)

    def _step(self, step: str, **more: object) -> None:
        known = {"bootstrap": self._bootstrap, "handle": self._handle}
        self._host.ask(2 * SECONDS, operation="transaction", step=step, **known, **more)

    def begin(self) -> None:
        self._step("begin")

    def send(self, topic: str, *values: str) -> None:
        self._step("send", topic=topic, values=values)

    def send_offsets(self, consumer: Consumer, offsets: dict[tuple[str, int], int]) -> None:
        given = [(*key, offset) for key, offset in offsets.items()]
        self._step("offsets", group=GROUPS[id(consumer)], offsets=given)

    def commit(self) -> None:
        self._step("commit")

    def abort(self) -> None:
        self._step("abort")

    def close(self) -> None:
        self._step("close")

    fenced = (AdminError,)


GROUPS: dict[int, str] = {}
"""Group id by consumer: most clients take it as text."""
KINDS = {"librdkafka": Librdkafka, "kafka-python": KafkaPython, "aiokafka": Aiokafka}
HOSTS = {"java": "java_host", "franz-go": "go_host"}
EACH = pytest.mark.parametrize("kind", [*KINDS, *HOSTS])
WITH_OFFSETS = pytest.mark.parametrize("kind", [*KINDS, "java"])
"""franz-go sends offsets in sessions only, which the program of `test_franz_go` runs."""


@pytest.fixture
def opened(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Producers of any kind, closed after the test in the reverse order."""
    with ExitStack() as stack:

        def open_one(kind: str, cluster: Cluster, name: str, **settings: int) -> Any:
            if kind in HOSTS:
                producer = Hosted(request.getfixturevalue(HOSTS[kind]), cluster, name, **settings)
            else:
                producer = KINDS[kind](cluster, name, **settings)
            stack.callback(producer.close)
            return producer

        yield open_one


@contextmanager
def consuming(cluster: Cluster, topic: str, group: str | None = None, level: str = "read_committed") -> Iterator:
    """Consume a topic as a member of a group, or its partition 0 without one."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group or unique("reader"),
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": level,
            "enable.partition.eof": True,
            "session.timeout.ms": 6000,
            "fetch.wait.max.ms": 20,
        }
    )
    if group is None:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    else:
        GROUPS[id(consumer)] = group
        consumer.subscribe([topic])
    try:
        yield consumer
    finally:
        consumer.close()


def values(cluster: Cluster, topic: str, level: str = "read_committed") -> list[str]:
    """Every value in partition 0, by librdkafka's consumer."""
    found = []
    with consuming(cluster, topic, level=level) as consumer:
        while True:
            message = consumer.poll(SECONDS)
            assert message is not None, "neither records nor the end of the partition"
            if message.error() is None:
                found.append(message.value().decode())
            elif message.error().code() == KafkaError._PARTITION_EOF and message.partition() == 0:
                return found


def until_values(cluster: Cluster, topic: str, expected: list[str]) -> None:
    until(lambda: values(cluster, topic) == expected, what=lambda: values(cluster, topic))


@EACH
def test_commit_and_abort(cluster, opened, kind):
    topic = cluster.create_topic(partitions=1)
    producer = opened(kind, cluster, unique("tx"))
    for number, end in enumerate(("commit", "abort", "commit", "abort", "commit")):
        producer.begin()
        producer.send(topic, f"{end}-{number}-a", f"{end}-{number}-b")
        getattr(producer, end)()
    expected = [f"commit-{number}-{each}" for number in (0, 2, 4) for each in "ab"]
    until_values(cluster, topic, expected)
    assert len(values(cluster, topic, "read_uncommitted")) == 10


@EACH
def test_a_second_instance_fences_the_first(cluster, opened, kind):
    topic, name = cluster.create_topic(partitions=1), unique("tx")
    first = opened(kind, cluster, name)
    first.begin()
    first.send(topic, "first")
    second = opened(kind, cluster, name)
    second.begin()
    second.send(topic, "second")
    second.commit()
    with pytest.raises(first.fenced):  # noqa: PT012 (which of the two says so is the client's choice)
        first.send(topic, "late")
        first.commit()
    until_values(cluster, topic, ["second"])


@EACH
def test_a_transaction_that_takes_too_long(roster_broker, opened, kind):
    """On Roster's broker only: Apache Kafka looks for such transactions every ten seconds."""
    topic = roster_broker.create_topic(partitions=1)
    producer = opened(kind, roster_broker, unique("tx"), timeout_ms=1000)
    producer.begin()
    with suppress(*producer.fenced):  # on a busy machine this alone may take too long
        producer.send(topic, "late")
    other = opened(kind, roster_broker, unique("tx"))
    other.begin()
    other.send(topic, "other")
    other.commit()
    until_values(roster_broker, topic, ["other"])
    with pytest.raises(producer.fenced):
        producer.commit()


@WITH_OFFSETS
def test_consume_transform_produce(cluster, opened, kind):
    source, target = cluster.create_topic(partitions=2), cluster.create_topic(partitions=1)
    cluster.produce({(source, 0): 20, (source, 1): 20})
    group = unique("group")
    producer = opened(kind, cluster, unique("tx"))
    for end in ("abort", "commit", "commit"):
        with consuming(cluster, source, group) as consumer:
            positions: dict[tuple[str, int], int] = {}
            read = []
            while len(read) < 10:
                message = consumer.poll(SECONDS)
                if message.error() is None:
                    positions[source, message.partition()] = message.offset() + 1
                    read.append(message.value().decode())
            producer.begin()
            producer.send(target, *read)
            producer.send_offsets(consumer, positions)
            getattr(producer, end)()
    until(lambda: len(values(cluster, target)) == 20)
    copied = values(cluster, target)
    assert len(set(copied)) == 20
    with consuming(cluster, source, group) as consumer:
        rest = []
        while len(rest) < 20:
            message = consumer.poll(SECONDS)
            if message.error() is None:
                rest.append(message.value().decode())
    assert not set(rest) & set(copied)


@pytest.mark.real
def test_franz_go(cluster):
    source, target = cluster.create_topic(partitions=2), cluster.create_topic(partitions=1)
    cluster.produce({(source, 0): 20, (source, 1): 20})
    arguments = ("transact", cluster.bootstrap, unique("tx"), unique("group"), source, target)
    done = subprocess.run([golang.program(), *arguments], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    expected = {"own-0", "own-2", "second", *(f"{source}-{n % 2}-{n // 2}" for n in range(40))}
    until(lambda: len(values(cluster, target)) == len(expected))
    assert set(values(cluster, target)) == expected
