"""Control batches and `__transaction_state` records, against bytes of Apache Kafka and kafka-python's reader."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record import MemoryRecords

from roster.wire import WireError
from roster.wire.control_records import ControlType, EndTxnMarker, build_marker, read_marker
from roster.wire.records import Record, build_batch, read_batch, read_header
from roster.wire.transactions_topic import TransactionLogValue, decode_key, decode_value, encode_key, encode_value

VALUE = TransactionLogValue(
    producer_id=4,
    producer_epoch=3,
    transaction_timeout_ms=60_000,
    transaction_status=2,
    transaction_partitions=[TransactionLogValue.Topic(topic="t", partition_ids=[0, 1])],
    transaction_last_update_timestamp_ms=5,
    transaction_start_timestamp_ms=4,
    previous_producer_id=4,
    client_transaction_version=2,
)


def marker(kind, epoch=7):
    return build_marker(EndTxnMarker(kind, epoch), producer_id=9, producer_epoch=2, timestamp=1_000)


@pytest.mark.parametrize("kind", ControlType)
def test_a_marker_is_kafkas_control_batch(kind):
    batch = marker(kind)
    header = read_header(batch)
    assert (header.attributes, header.base_sequence, header.records_count) == (0x30, -1, 1)
    (record,) = read_batch(batch)
    assert record.key == bytes((0, 0, 0, kind))
    assert record.value == bytes((0, 0, 0, 0, 0, 7))
    assert read_marker(batch) == EndTxnMarker(kind, 7)


@pytest.mark.parametrize("kind", ControlType)
def test_kafka_python_reads_markers(kind):
    batch = MemoryRecords(bytes(marker(kind))).next_batch()
    assert batch.is_control_batch
    assert batch.is_transactional
    assert (batch.producer_id, batch.producer_epoch) == (9, 2)
    (record,) = batch
    assert (record.abort, record.commit) == (kind is ControlType.ABORT, kind is ControlType.COMMIT)


def test_other_control_records_are_not_markers():
    record = Record(timestamp=1, key=b"\0\0\0\x02", value=b"\0\0\0\0")
    assert read_marker(build_batch([record], control=True)) is None


@pytest.mark.parametrize(("key", "value"), [(None, None), (b"\0\0\0", None), (b"\0\0\0\1", None), (b"\0\0\0\1", b"\0")])
def test_a_malformed_marker_is_refused(key, value):
    with pytest.raises(WireError, match="control record"):
        read_marker(build_batch([Record(timestamp=1, key=key, value=value)], control=True))


def test_key_bytes():
    assert encode_key("tx").hex() == "000000027478"
    assert decode_key(encode_key("tx")) == "tx"
    assert decode_key(b"\0\x09rest") is None


def test_value_bytes_with_the_tagged_fields_of_kip_890():
    expected = (
        "0001000000000000000400030000ea600202027403000000000000000100"
        "00000000000000050000000000000004020008000000000000000402020002"
    )  # fmt: skip
    assert encode_value(VALUE).hex() == expected
    assert decode_value(bytes.fromhex(expected)) == VALUE


def test_version_0_has_no_tagged_fields():
    read = decode_value(encode_value(VALUE, 0))
    assert (read.producer_id, read.previous_producer_id, read.client_transaction_version) == (4, -1, 0)


@pytest.mark.parametrize("version", [0, 1])
def test_a_value_cut_anywhere_is_refused(version):
    data = encode_value(VALUE, version)
    for size in range(len(data)):
        with pytest.raises(WireError):
            decode_value(data[:size])


@given(st.data())
def test_values_survive(messages_of, data):
    value = data.draw(messages_of(TransactionLogValue, 1))
    assert decode_value(encode_value(value)) == value
