"""The same rows as librdkafka's, on random topics of both brokers; a broker that goes and comes back.

ROSTER_FETCH_CASES is the number of random ranges a test reads (100 of each topic; 200 without it). One topic in ten is
compacted first.
"""

from __future__ import annotations

import os
import random
import socket
import time
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from roster.model.address import parse_addresses
from roster.records import fetch
from roster.records.fetch import read_ranges
from roster.records.fetch_decisions import FetchError, Settings
from roster.testing.broker import BrokerProcess
from tests.real.realparts.apache import ApacheKafka
from tests.records.librdkafka_reader import consumed
from tests.spark.spark_topics import Topics
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from realparts.cluster import Cluster

CASES = int(os.environ.get("ROSTER_FETCH_CASES", "200"))
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
Range = tuple[str, int, int, int]
ROWS = [("partition", "ascending"), ("offset", "ascending")]


@pytest.fixture
def kafka(cluster: Cluster) -> Iterator[Topics]:
    with Topics(cluster.bootstrap) as made:
        yield made


class Writers:
    """One producer for each codec, and a transactional one for each as well."""

    def __init__(self, bootstrap: str, chance: random.Random) -> None:
        self.chance = chance
        common = {"bootstrap.servers": bootstrap, "log_level": 2, "message.max.bytes": 1_048_588, "acks": "all"}
        self.plain = [Producer({**common, "compression.codec": codec, "linger.ms": 2}) for codec in CODECS]
        self.transactional = []
        for codec in CODECS:
            producer = Producer({**common, "compression.codec": codec, "transactional.id": f"w-{uuid.uuid4()}"})
            producer.init_transactions(30)
            self.transactional.append(producer)

    def fill(self, topic: str, partitions: int) -> None:
        """Records of every shape in batches of every size."""
        chance = self.chance
        for _ in range(chance.randint(1, 12)):
            is_transaction = chance.random() < 0.5
            producer = chance.choice(self.transactional if is_transaction else self.plain)
            if is_transaction:
                producer.begin_transaction()
            for _ in range(chance.choice([1, 1, 3, 40, 200])):
                self.record(producer, topic, chance.randrange(partitions))
            assert producer.flush(30) == 0
            if is_transaction:
                (producer.abort_transaction if chance.random() < 0.5 else producer.commit_transaction)(30)

    def record(self, producer: Producer, topic: str, partition: int) -> None:
        chance = self.chance
        size = chance.choice([0, 1, 10, 100, 100, 3000])
        if chance.random() < 0.004:
            size = chance.randint(100_000, 1_000_000)
        headers = [
            ("h" * chance.randint(0, 3), chance.choice([None, b"", b"x"])) for _ in range(chance.choice([0, 0, 2]))
        ]
        stamp = chance.choice([{}, {"timestamp": 1_600_000_000_000 + chance.randrange(10**9)}])
        value = chance.choice([None, bytes(size), chance.randbytes(size)])
        key = chance.choice([None, b"", b"k%d" % chance.randrange(50)])
        producer.produce(topic, value, key, partition, headers=headers or None, **stamp)
        producer.poll(0)


class Compacted:
    """Compacts topics, but for segments near the end that may still be replaced."""

    def __init__(self, kafka: Topics, cluster: Cluster, writers: Writers) -> None:
        self.kafka, self.writers, self.admin = kafka, writers, cluster.admin
        if cluster.kind == "apache":
            self._alter(ConfigResource(ConfigResource.Type.BROKER, "1"), "log.cleaner.backoff.ms", "100")

    def _alter(self, resource: ConfigResource, name: str, value: str) -> None:
        resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))
        for done in self.admin.incremental_alter_configs([resource]).values():
            done.result(30)

    def fill(self, topic: str, partitions: int) -> None:
        """Records of every shape, and enough of others around them for segments that are compacted and one that is not.

        The log is compacted once the last but one record of a key is gone that is written near its end.
        """
        producer, chance = self.writers.plain[0], self.writers.chance

        def megabytes(size: int) -> None:
            for _ in range(size * 32):
                for partition in range(partitions):
                    producer.produce(topic, chance.randbytes(32_768), b"f%d" % chance.randrange(64), partition)
                producer.poll(0)
            assert producer.flush(60) == 0

        megabytes(3)
        self.writers.fill(topic, partitions)
        megabytes(3)
        witnesses = {p.partition: end for p, end in self.kafka.ends(topic).items()}
        for partition in range(partitions):
            for _ in range(2):
                producer.produce(topic, b"", b"witness", partition)
                assert producer.flush(60) == 0
        megabytes(2)
        self._alter(ConfigResource(ConfigResource.Type.TOPIC, topic), "cleanup.policy", "compact")
        for partition, witness in witnesses.items():
            producer.produce(topic, b"", b"last", partition)  # Roster's broker looks after an append
            assert producer.flush(60) == 0
            span = (topic, partition, witness, witness + 1)
            until(lambda span=span: not list(consumed(self.kafka.bootstrap, [span])), what=f"{span} is compacted")


NAMES = pa.struct([("key", pa.string()), ("value", pa.binary())])
SCHEMA = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
        "headers": pa.list_(NAMES),
    }
)


def table(batches: Iterator[pa.RecordBatch]) -> pa.Table:
    found = list(batches)
    for batch in found:
        batch.validate(full=True)
        assert batch.num_rows > 0
    return pa.Table.from_batches(found, SCHEMA)


def within(ranges: list[Range], rows: pa.Table) -> pa.Table:
    """The rows of these ranges, sorted by place."""
    partition, offset = pc.field("partition"), pc.field("offset")
    return in_order(
        pa.concat_tables(
            rows.filter((partition == number) & (offset >= start) & (offset < end)) for _, number, start, end in ranges
        )
    )


def in_order(rows: pa.Table) -> pa.Table:
    """Sorted by place; in each partition they came so already."""
    for partition in rows.column("partition").unique().to_pylist():
        offsets = rows.filter(pc.equal(rows.column("partition"), partition)).column("offset").to_pylist()
        assert offsets == sorted(set(offsets))
    return rows.sort_by(ROWS).combine_chunks()


@pytest.mark.timeout(1800)
def test_random_ranges_of_random_topics_are_as_librdkafka_reads_them(kafka: Topics, cluster: Cluster) -> None:
    chance = random.Random(CASES)
    addresses = parse_addresses(kafka.bootstrap)
    writers = Writers(kafka.bootstrap, chance)
    compacted = Compacted(kafka, cluster, writers)
    seen: list[int] = []
    gaps = 0
    for number in range(max(1, CASES // 100)):
        is_compacted = number % 10 == 1
        partitions = chance.randint(1, 2 if is_compacted else 5)
        topic = f"f-{uuid.uuid4()}"
        stamps = "LogAppendTime" if number % 3 == 2 and cluster.kind == "apache" else "CreateTime"
        configs = {"message.timestamp.type": stamps, "segment.bytes": str(1 << 20)}
        kafka.admin.create_topic(topic, partitions, configs=configs)
        (compacted if is_compacted else writers).fill(topic, partitions)
        ends = {p.partition: end for p, end in kafka.ends(topic).items()}
        for level in ("read_uncommitted", "read_committed"):
            whole = [(topic, p, 0, end) for p, end in ends.items() if end]

            def read_by_librdkafka(whole: list[Range] = whole, level: str = level) -> pa.Table:
                return in_order(table(consumed(kafka.bootstrap, whole, isolation_level=level)))

            theirs = read_by_librdkafka()
            if is_compacted:
                gaps += sum(ends.values()) - theirs.num_rows
            for _ in range(50):
                ranges = []
                for partition in chance.sample(sorted(ends), chance.randint(1, partitions)):
                    start, end = sorted(chance.randint(0, ends[partition]) for _ in range(2))
                    if chance.random() < 0.1:
                        start, end = 0, ends[partition]
                    ranges.append((topic, partition, start, end))
                settings = Settings(is_committed=level == "read_committed")

                def read(ranges: list[Range] = ranges, settings: Settings = settings) -> pa.Table:
                    return in_order(table(read_ranges(addresses, "c", ranges, settings, headers=True)))

                ours = read()
                if is_compacted and not ours.equals(within(ranges, theirs)):
                    # Segments are replaced one by one, those behind the witness last; what is compacted stays as it is.
                    until(lambda ranges=ranges, read=read: read().equals(within(ranges, read_by_librdkafka())))
                    ours, theirs = read(), read_by_librdkafka()
                assert ours.equals(within(ranges, theirs)), (topic, ranges, level)
                seen.append(ours.num_rows)
    assert len(seen) >= CASES // 100 * 100
    assert sum(seen) > CASES
    assert gaps or CASES < 200
    print(f"{cluster.kind}: {len(seen)} cases, {sum(seen)} rows; compaction and markers left {gaps} gaps")


def read_all(bootstrap: str, ranges: list[tuple[str, int, int, int]], **options: Any) -> list[bytes]:
    batches = read_ranges(parse_addresses(bootstrap), "c", ranges, Settings(), **options)
    return [value for batch in batches for value in batch.column("value").to_pylist()]


@pytest.mark.process
def test_a_broker_that_went_and_came_back_is_read_again(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "--log-level", "error") as broker, Topics(broker.bootstrap) as topics:
        topic = topics.create(2, 1000)
        ranges = [(topic, p, 0, 500) for p in range(2)]
        first = read_all(broker.bootstrap, ranges)
        assert sorted(first) == sorted(b"%d" % n for n in range(1000))
        broker.kill()
        with pytest.raises(FetchError, match=r"no record for 500 ms \(twice request.timeout.ms\).*refused"):
            read_all(broker.bootstrap, ranges, timeout=0.5)
        broker.start()
        assert sorted(read_all(broker.bootstrap, ranges)) == sorted(first)


def test_a_host_name_with_several_addresses_is_tried_through(kafka: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = kafka.create(1, 10)
    (address,) = parse_addresses(kafka.bootstrap)
    real, look_up = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM), socket.getaddrinfo
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = (*real[0][:4], unused.getsockname())

        def several(host: str, *rest: Any, **more: Any) -> list[Any]:
            return [dead, *real] if host == "many.test" else look_up(host, *rest, **more)

        monkeypatch.setattr(socket, "getaddrinfo", several)
        assert len(read_all(f"many.test:{address.port}", [(topic, 0, 0, 10)])) == 10


def test_an_offset_that_is_not_there_yet_is_waited_for(kafka: Topics) -> None:
    topic = kafka.create(1, 10)
    with pytest.raises(
        FetchError, match=rf"no record for 300 ms \(twice request.timeout.ms\), waiting for {topic}-0 up to 11"
    ):
        read_all(kafka.bootstrap, [(topic, 0, 0, 11)], timeout=0.3)
    batches = read_ranges(parse_addresses(kafka.bootstrap), "c", [(topic, 0, 5, 14)], Settings(), timeout=60)
    kafka.fill_one(topic, 0, 5)
    assert sum(batch.num_rows for batch in batches) == 9


def test_a_task_that_stops_early_leaves_nothing_to_the_next(kafka: Topics) -> None:
    topic = kafka.create(3, 3000)
    ranges = [(topic, p, 0, 1000) for p in range(3)]
    for _ in range(5):
        batches = read_ranges(parse_addresses(kafka.bootstrap), "c", ranges, Settings())
        next(batches)
        batches.close()
    assert len(read_all(kafka.bootstrap, ranges)) == 3000


@pytest.mark.real
@pytest.mark.gate
def test_a_log_that_left_the_epoch_read_before_is_an_error_on_apache_kafka(tmp_path: Path) -> None:
    kafka = ApacheKafka(tmp_path)
    try:
        with Topics(kafka.bootstrap) as topics:
            topic = topics.create(1, 10)
            assert read_in_epoch(kafka, topic, 0, 10) == (10, 0)
            kafka.stop()
            kafka._launch(tmp_path / "server.properties")
            kafka._await_ready()
            until(lambda: not topics.fill(topic, 1, 10), 60)
            _, epoch = read_in_epoch(kafka, topic, 10, 20)
            assert epoch > 0, "another leader epoch after the restart"
            # As if the records from 10 on had been read in epoch 0: the log left that epoch at 10.
            with pytest.raises(FetchError, match=r"truncated: offset 14 was read in leader epoch 0.* up to offset 10"):
                read_in_epoch(kafka, topic, 15, 20, (15, 0))
            assert read_in_epoch(kafka, topic, 15, 20, (15, 0), fail_on_data_loss=False) == (5, epoch)
            assert read_in_epoch(kafka, topic, 15, 20, (15, epoch)) == (5, epoch)
            assert read_in_epoch(kafka, topic, 15, 20, (15, epoch + 9)) == (5, epoch), "an epoch it does not know"
    finally:
        kafka.stop()


def read_in_epoch(
    kafka: Cluster, topic: str, start: int, end: int, before: tuple[int, int] | None = None, **settings: Any
) -> tuple[int, int]:
    """Rows of a range and the epoch of the last; `before` is what the process remembers of the last range."""
    name = f"c-{uuid.uuid4()}"
    addresses = parse_addresses(kafka.bootstrap)
    list(read_ranges(addresses, name, [(topic, 0, 0, 0)], Settings()))  # makes the session
    (session,) = (session for known, session in fetch._sessions.items() if name in known)
    if before is not None:
        session.knowledge.epochs[topic, 0] = before
    rows = sum(batch.num_rows for batch in read_ranges(addresses, name, [(topic, 0, start, end)], Settings(**settings)))
    return rows, session.knowledge.epochs[topic, 0][1]


@pytest.mark.gate
def test_gaps_that_compaction_left_on_apache_kafka(apache_kafka: Cluster) -> None:
    compacting = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.001", "segment.ms": "100"}
    chance = random.Random(7)
    with Topics(apache_kafka.bootstrap) as topics:
        topic, keys = f"f-{uuid.uuid4()}", {b"k"}
        topics.admin.create_topic(topic, 1, configs=compacting)
        for codec in ("none", "zstd"):
            producer = Producer({"bootstrap.servers": topics.bootstrap, "compression.codec": codec, "linger.ms": 1})
            for number in range(1000):
                # Some keys stay: gaps inside batches, at their ends, and whole batches gone.
                key = b"once-%d" % number if chance.random() < 0.1 else b"k%d" % chance.randrange(20)
                producer.produce(topic, b"%d" % number, key, partition=0)
                keys.add(key)
                if chance.random() < 0.05:
                    producer.flush(60)
            assert producer.flush(60) == 0
            time.sleep(0.2)  # so that the next record begins a segment, and this one can be compacted
        producer.produce(topic, b"last", b"k", partition=0)
        assert producer.flush(60) == 0
        assert list(topics.ends(topic).values()) == [2001]
        addresses, whole = parse_addresses(topics.bootstrap), [(topic, 0, 0, 2001)]
        until(lambda: len(read_all(topics.bootstrap, whole)) == len(keys), 90, "the cleaner has left one record a key")
        theirs = in_order(table(consumed(topics.bootstrap, whole)))
        for _ in range(100):
            start, end = sorted(chance.randint(0, 2001) for _ in range(2))
            ours = table(read_ranges(addresses, "c", [(topic, 0, start, end)], Settings(), headers=True))
            wanted = theirs.filter((pc.field("offset") >= start) & (pc.field("offset") < end))
            assert ours.combine_chunks().equals(wanted.combine_chunks()), (start, end)
