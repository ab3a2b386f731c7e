"""Records written inside the tasks, on a Roster broker: what librdkafka's consumer reads is what was written."""

from __future__ import annotations

import pickle
import random
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Assigned

from roster.model.address import parse_addresses
from roster.records.produce import KafkaWriter, WriteError
from roster.sinks.kafka import parse_producer_options
from roster.spark import PipelineError
from roster.wire.compression import Compression
from tests.librdkafka import idempotent_producer

if TYPE_CHECKING:
    from tests.spark.spark_topics import Topics

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("partition", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)


def writer(topics: Topics, topic: str | None, **options: Any) -> KafkaWriter:
    addresses = tuple(parse_addresses(topics.bootstrap, default_port=9092))
    return pickle.loads(pickle.dumps(KafkaWriter(addresses, topic, **options)))


def consumed(topics: Topics, topic: str) -> list[Any]:
    """All records, through librdkafka, partition by partition."""
    consumer = Consumer({"bootstrap.servers": topics.bootstrap, "group.id": uuid.uuid4().hex, "check.crcs": True})
    found: list[Any] = []
    ends = topics.ends(topic)
    for partition, end in sorted(ends.items()):
        consumer.assign([Assigned(topic, partition.partition, 0)])
        count = 0
        while count < end:
            (message,) = consumer.consume(1, 60) or [None]
            assert message is not None
            assert message.error() is None, message.error()
            found.append(message)
            count += 1
    consumer.close()
    return found


def rows_of(chance: random.Random, count: int, largest: int) -> list[dict[str, Any]]:
    def data() -> bytes | None:
        return None if chance.random() < 0.2 else chance.randbytes(chance.randrange(chance.choice([1, 10, largest])))

    return [
        {
            "key": data(),
            "value": data(),
            "partition": chance.choice([None, None, 0, 2]),
            "headers": chance.choice([None, [{"key": "ü", "value": data()}, {"key": "", "value": None}]]),
            "timestamp": 1_700_000_000_000_000 + chance.randrange(10**9) * 1000,
        }
        for _ in range(count)
    ]


@pytest.mark.parametrize("codec", list(Compression))
def test_librdkafka_reads_what_was_written(topics: Topics, codec: Compression) -> None:
    chance = random.Random(int(codec))
    topic = topics.create(4)
    rows = rows_of(chance, 2000, 2000)
    batches = pa.Table.from_pylist(rows, SCHEMA).to_batches(max_chunksize=300)
    made = writer(topics, topic, compression=codec, batch_bytes=20_000, keep_timestamps=True, memory_bytes=1 << 20)
    for attempt in range(2):  # the second one goes on with the worker's connections and sequence numbers
        output = made.open()
        for batch in batches[attempt::2]:
            output.write(batch)
        assert output.close() == sum(batch.num_rows for batch in batches[attempt::2])
    found = consumed(topics, topic)
    wanted = [
        (r["key"], r["value"], r["headers"] and [(h["key"], h["value"]) for h in r["headers"]], r["timestamp"] // 1000)
        for r in rows
    ]
    got = [(m.key(), m.value(), m.headers(), m.timestamp()[1]) for m in found]
    assert sorted(got, key=repr) == sorted(wanted, key=repr)
    partitions = {repr(w): r["partition"] for w, r in zip(wanted, rows, strict=True)}
    assert all(partitions[repr(g)] in (None, m.partition()) for g, m in zip(got, found, strict=True))


def test_keys_go_where_librdkafkas_murmur2_puts_them(topics: Topics) -> None:
    ours, theirs = topics.create(7), topics.create(7)
    keys = [uuid.UUID(int=number * 7919).bytes[number % 16 :] for number in range(500)]
    output = writer(topics, ours).open()
    output.write(pa.record_batch({"key": keys, "value": [None] * 500}))
    output.close()
    producer = idempotent_producer(topics.bootstrap, {"partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(theirs, None, key)
    assert producer.flush(60) == 0
    placed = [sorted((m.key() or b"", m.partition()) for m in consumed(topics, topic)) for topic in (ours, theirs)]
    # librdkafka takes an empty key for none.
    assert [p for p in placed[0] if p[0]] == [p for p in placed[1] if p[0]]


def test_rows_name_their_topics(topics: Topics) -> None:
    names = [topics.create(1), topics.create(3)]
    output = writer(topics, None).open()
    output.write(pa.record_batch({"value": [b"a", b"b", b"c"], "topic": [names[0], names[1], names[0]]}))
    assert output.close() == 3
    assert [sorted(m.value() for m in consumed(topics, name)) for name in names] == [[b"a", b"c"], [b"b"]]
    output = writer(topics, None).open()
    with pytest.raises(WriteError, match="a row has no topic"):
        output.write(pa.record_batch({"value": [b"a"], "topic": pa.array([None], pa.string())}))
    output.abort()


def test_a_topic_that_does_not_come_is_an_error_that_says_how_many_rows_are_missing(topics: Topics) -> None:
    output = writer(topics, "no-such-topic", timeout=0.5).open()
    output.write(pa.record_batch({"value": [b"a", b"b"]}))
    with pytest.raises(WriteError, match=r"2 of 2 rows not written: .*no-such-topic: UNKNOWN_TOPIC_OR_PARTITION"):
        output.close()
    output.abort()
    output = writer(topics, "no-such-topic", timeout=60).open()
    output.write(pa.record_batch({"value": [b"a", b"b"]}))
    with pytest.raises(WriteError, match="2 of 2 rows not written: no such topic: no-such-topic") as caught:
        output.close()
    assert caught.value.is_final
    output.abort()


def test_no_broker_is_an_error_that_says_why(topics: Topics) -> None:
    output = KafkaWriter(tuple(parse_addresses("127.0.0.1:1", default_port=1)), "t", timeout=0.3).open()
    output.write(pa.record_batch({"value": [b"a"]}))
    with pytest.raises(WriteError, match=r"1 of 1 rows not written: .*127\.0\.0\.1:1 broke: .*refused"):
        output.close()
    output.abort()


def test_batches_too_large_for_the_topic_are_sent_in_parts(topics: Topics) -> None:
    topic = f"small-{uuid.uuid4().hex[:8]}"
    topics.admin.create_topic(topic, 1, configs={"max.message.bytes": "2000"})
    values = [b"%04d" % number * 40 for number in range(200)]
    output = writer(topics, topic, batch_bytes=20_000).open()
    output.write(pa.record_batch({"value": values}))
    assert output.close() == 200
    assert [m.value() for m in consumed(topics, topic)] == values
    output = writer(topics, topic).open()
    output.write(pa.record_batch({"value": [b"x" * 3000]}))
    with pytest.raises(WriteError, match=rf"1 of 1 rows not written: {topic}-0: MESSAGE_TOO_LARGE \(\d+ bytes\)"):
        output.close()
    output.abort()


def test_settings_have_the_names_of_kafkas_clients() -> None:
    options = {"compression.type": "zstd", "message.timeout.ms": "700", "max.request.size": 5000, "acks": "all"}
    assert parse_producer_options(options) == {
        "compression": Compression.ZSTD,
        "timeout": 0.7,
        "request_bytes": 5000,
        "batch_bytes": 5000,
    }


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("acks.all", 1, "'acks.all' is not a setting here. Use some of client.id, "),
        ("acks", 1, "acks must be all or -1, not 1"),
        ("compression.type", "zip", "compression.type must be one of none, gzip, snappy, lz4, zstd, not 'zip'"),
        ("batch.size", "many", "batch.size must be a number, not 'many'"),
        ("batch.size", 0, "batch.size must be a number from 1 to 1073741824, not 0"),
        ("partitioner", "random", "partitioner must be murmur2_random or default, not 'random'"),
    ],
)
def test_a_setting_that_cannot_be_is_named(name: str, value: Any, problem: str) -> None:
    with pytest.raises(PipelineError) as caught:
        parse_producer_options({name: value})
    assert problem in str(caught.value)
