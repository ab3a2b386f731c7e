"""Produce to topics whose batches are read: compacted ones, and those with a compression of their own."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any

import confluent_kafka
import google_crc32c
import pyarrow as pa
import pytest

from roster._clock import wall_ms
from roster.wire import ErrorCode
from roster.wire.messages import CreateTopicsRequest, FetchRequest, ListOffsetsRequest, ProduceRequest
from tests.broker.batches import HEADER, batch, record

if TYPE_CHECKING:
    from roster.broker import Broker
    from tests.broker.rawclient import RawClient

GZIP, ZSTD = 1, 4
CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def create(client: RawClient, name: str, **settings: str) -> int:
    configs = [
        CreateTopicsRequest.Topic.Config(name=key.replace("_", "."), value=value) for key, value in settings.items()
    ]
    topic = CreateTopicsRequest.Topic(name=name, num_partitions=1, replication_factor=1, configs=configs)
    return client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 5).topics[0].error_code


def produce(client: RawClient, name: str, data: bytes, version: int = 9) -> Any:
    partition = ProduceRequest.Topic.Partition(index=0, records=data)
    topic = ProduceRequest.Topic(name=name, partition_data=[partition])
    asked = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=10_000, topic_data=[topic])
    return client.ask(asked, version).responses[0].partition_responses[0]


def fetched(client: RawClient, name: str) -> bytes:
    partition = FetchRequest.Topic.Partition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topic = FetchRequest.Topic(topic=name, partitions=[partition])
    asked = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=[topic])
    return bytes(client.ask(asked, 11).responses[0].partitions[0].records or b"")


def framed(
    body: bytes,
    count: int,
    codec: int,
    producer: tuple[int, int, int] = (-1, -1, -1),
    times: tuple[int, int] = (1_000, 2_000),
) -> bytes:
    """A batch of any bytes, with a good CRC; gzip is done here, other codecs by the caller."""
    body = zlib.compress(body, wbits=31) if codec == GZIP else body
    rest = struct.pack(">hiqqqhii", codec, count - 1, *times, *producer, count) + body
    return struct.pack(">qiibI", 0, 4 + 1 + 4 + len(rest), -1, 2, google_crc32c.value(rest)) + rest


HOUR = 3_600_000
GREATEST = (2**63 - 1) // 1000
"""The greatest time in ms that fits 64 bits of microseconds."""


def found(client: RawClient, name: str, at: int) -> tuple[int, int]:
    asked = ListOffsetsRequest.Topic.Partition(partition_index=0, timestamp=at)
    topic = ListOffsetsRequest.Topic(name=name, partitions=[asked])
    answer = client.ask(ListOffsetsRequest(topics=[topic]), 7).topics[0].partitions[0]
    return answer.offset, answer.timestamp


@pytest.mark.parametrize("codec", [0, GZIP])
def test_times_that_a_topic_does_not_take_are_named(client: RawClient, codec: int) -> None:
    name, now = f"times-{codec}", wall_ms()
    assert create(client, name, message_timestamp_before_max_ms=str(10 * HOUR)) == ErrorCode.NONE

    def sent(*times: int) -> tuple[int, list[int]]:
        body = b"".join(record(n, at - times[0], b"k", b"v") for n, at in enumerate(times))
        answer = produce(client, name, framed(body, len(times), codec, times=(times[0], max(times))))
        assert bool(answer.error_message) == bool(answer.error_code)
        return answer.error_code, [each.batch_index for each in answer.record_errors]

    assert sent(now, now + HOUR // 2, -1, now - 9 * HOUR) == (ErrorCode.NONE, [])
    for wrong in (now + 2 * HOUR, now * 1000, now * 1_000_000, 2**63 - 1, now - 11 * HOUR, -2, -(2**62)):
        assert sent(now, wrong, now) == (ErrorCode.INVALID_TIMESTAMP, [1]), wrong
    assert found(client, name, now + 1) == (1, now + HOUR // 2)


def test_a_time_beyond_what_a_timestamp_holds_counts_as_none(client: RawClient) -> None:
    limits = {f"message_timestamp_{side}_max_ms": str(2**63 - 1) for side in ("before", "after")}
    assert create(client, "endless", **limits) == ErrorCode.NONE
    times = [500, GREATEST + 1, 900, 2**63 - 1, GREATEST, -(2**62)]
    for codec in (0, GZIP):
        body = b"".join(record(n, at - 500, b"k", b"v") for n, at in enumerate(times[:-1]))
        assert produce(client, "endless", framed(body, 5, codec, times=(500, 2**63 - 1))).error_code == ErrorCode.NONE
    data = framed(record(0, 0, b"k", b"v"), 1, 0, times=(times[-1], times[-1]))
    assert produce(client, "endless", data).error_code == ErrorCode.NONE
    assert [found(client, "endless", at) for at in (0, 501, 901, GREATEST)] == [
        (0, 500),
        (2, 900),
        (4, GREATEST),
        (4, GREATEST),
    ]
    assert found(client, "endless", GREATEST + 1) == (-1, -1)
    assert found(client, "endless", -3) == (4, GREATEST)


@pytest.mark.parametrize("codec", [0, GZIP])
def test_records_without_a_key_are_named_and_nothing_of_their_batch_is_written(client: RawClient, codec: int) -> None:
    name = f"compacted-{codec}"
    assert create(client, name, cleanup_policy="compact") == ErrorCode.NONE
    keys = [b"a", None, b"", b"c", None, b"d"]
    data = framed(b"".join(record(n, 0, key, b"v") for n, key in enumerate(keys)), 6, codec)
    answer = produce(client, name, data)
    assert (answer.error_code, answer.base_offset, answer.log_start_offset) == (ErrorCode.INVALID_RECORD, -1, 0)
    assert [error.batch_index for error in answer.record_errors] == [1, 4]
    assert all("key" in error.batch_index_error_message for error in answer.record_errors)
    assert produce(client, name, data, version=7).error_code == ErrorCode.INVALID_RECORD, "a version without records"
    good = framed(b"".join(record(n, 0, b"k", None) for n in range(6)), 6, codec)
    assert produce(client, name, good).base_offset == 0
    assert produce(client, name, good).base_offset == 6
    assert create(client, f"both-{codec}", cleanup_policy="compact,delete") == ErrorCode.NONE
    assert produce(client, f"both-{codec}", data).error_code == ErrorCode.INVALID_RECORD


def test_the_first_thousand_records_without_a_key_are_named(client: RawClient) -> None:
    create(client, "many", cleanup_policy="compact")
    answer = produce(client, "many", batch([b"v"] * 5_000))
    assert [error.batch_index for error in answer.record_errors] == list(range(1_000))


KEYED = b"".join(record(n, 0, b"k%d" % n, b"v") for n in range(5))
UNREADABLE = {
    "garbage": (b"\xff" * 100, 5, 0),
    "compressed garbage": (zlib.compress(b"\xff" * 100, wbits=31), 5, 0),
    "not compressed": (b"\xff" * 100, 5, ZSTD),
    "an unknown codec": (KEYED, 5, 7),
    "fewer records": (KEYED, 6, 0),
    "more records": (KEYED, 4, 0),
    "compressed, cut off": (KEYED[:-1], 5, GZIP),
    "the same offset twice": (record(0, 0, b"k", b"v") * 5, 5, GZIP),
    "offsets that go back": (b"".join(record(4 - n, 0, b"k", b"v") for n in range(5)), 5, 0),
    "a gap": (b"".join(record(2 * n, 0, b"k", b"v") for n in range(3)), 3, 0),
    "a bomb": (pa.compress(record(0, 0, None, None) * 3_000_000, codec="zstd", asbytes=True), 3_000_000, ZSTD),
    "more than a reader takes": (pa.compress(bytes(300 << 20), codec="zstd", asbytes=True), 1, ZSTD),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_a_compacted_topic_takes_no_records_that_compaction_cannot_read(client: RawClient, what: str) -> None:
    name = what.replace(" ", "-").replace(",", "")
    create(client, name, cleanup_policy="compact")
    answer = produce(client, name, framed(*UNREADABLE[what]))
    assert (answer.error_code, answer.record_errors) == (ErrorCode.INVALID_RECORD, [])
    assert "cannot be read" in answer.error_message
    assert produce(client, name, batch([b"v"], keys=[b"k"])).base_offset == 0


def test_other_topics_keep_records_as_they_came(client: RawClient) -> None:
    create(client, "plain")
    for number, data in enumerate((batch([b"v"]), framed(b"\xff" * 100, 1, GZIP))):
        assert produce(client, "plain", data).base_offset == number
        assert data[17:] in fetched(client, "plain")


def compressed(codec: int, body: bytes) -> bytes:
    """Another library's form of the bytes, as clients send them."""
    if codec == 0:
        return body
    if codec == GZIP:
        return zlib.compress(body, wbits=31)
    return bytes(pa.compress(body, codec={2: "snappy", 3: "lz4", 4: "zstd"}[codec], asbytes=True))


def expanded(codec: int, body: bytes) -> bytes:
    if codec == 0:
        return body
    if codec == GZIP:
        return zlib.decompress(body, wbits=31)
    if codec == 2:
        size, shift = 0, 0
        for byte in body:
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        return bytes(pa.decompress(body, decompressed_size=size, codec="snappy", asbytes=True))
    with pa.CompressedInputStream(pa.BufferReader(body), {3: "lz4", 4: "zstd"}[codec]) as stream:
        return bytes(stream.read())


@pytest.mark.parametrize("sent", range(5))
@pytest.mark.parametrize("kept", list(CODECS))
def test_batches_are_kept_in_the_compression_of_their_topic(client: RawClient, kept: str, sent: int) -> None:
    name = f"kept-{kept}-{sent}"
    assert create(client, name, compression_type=kept) == ErrorCode.NONE
    values = [b"", b"v" * 100_000, bytes(range(256))]
    body = b"".join(record(n, 7 * n, None, value) for n, value in enumerate(values))
    producer = (1_234_567, 3, 0)
    batch_sent = bytearray(framed(b"", len(values), sent, producer)[:61]) + compressed(sent, body)
    batch_sent[8:12] = struct.pack(">i", len(batch_sent) - 12)
    batch_sent[17:21] = struct.pack(">I", google_crc32c.value(bytes(batch_sent[21:])))
    assert produce(client, name, bytes(batch_sent)).base_offset == 0
    assert produce(client, name, bytes(batch_sent)).base_offset == 0, "a retry is known"
    stored = fetched(client, name)
    before, after = HEADER.unpack_from(batch_sent), HEADER.unpack_from(stored)
    assert after[5] == CODECS[kept]
    assert after[6:] == before[6:], "offsets, times, producer, count"
    assert after[1] == len(stored) - 12
    assert after[4] == google_crc32c.value(stored[21:])
    assert expanded(CODECS[kept], stored[61:]) == body
    if CODECS[kept] == sent:
        assert stored[17:] == bytes(batch_sent)[17:], "as it came"


def test_a_batch_that_gets_too_large_for_its_topic_is_refused(client: RawClient) -> None:
    create(client, "small", compression_type="uncompressed", max_message_bytes="1000")
    data = framed(record(0, 0, b"k", bytes(2_000)), 1, GZIP)
    assert len(data) < 1_000
    assert produce(client, "small", data).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert create(client, "wrong", compression_type="brotli") == ErrorCode.INVALID_CONFIG


def test_librdkafka_names_the_records_that_were_refused_and_reads_what_was_kept(
    broker: Broker, client: RawClient
) -> None:
    create(client, "rdkafka", cleanup_policy="compact", compression_type="lz4")
    outcomes: list[tuple[int, bytes | None]] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap, "linger.ms": 500, "compression.type": "zstd"}
    )

    def send(keys: list[bytes | None]) -> None:
        for key in keys:
            producer.produce(
                "rdkafka",
                b"v",
                key,
                callback=lambda error, message: outcomes.append((error.code() if error else 0, message.key())),
            )
        producer.flush()

    send([b"a", None, b"b", None])
    refused, others = confluent_kafka.KafkaError.INVALID_RECORD, confluent_kafka.KafkaError._INVALID_DIFFERENT_RECORD
    assert outcomes == [(others, b"a"), (refused, None), (others, b"b"), (refused, None)]
    outcomes.clear()
    send([b"a", b"b"])
    assert outcomes == [(0, b"a"), (0, b"b")]
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "r"})
    consumer.assign([confluent_kafka.TopicPartition("rdkafka", 0, 0)])
    try:
        read = [message.key() for message in consumer.consume(2, timeout=60)]
    finally:
        consumer.close()
    assert read == [b"a", b"b"]
