"""Columns to record batches: held against the record reader of this room, kafka-python's and Java's own vectors."""

from __future__ import annotations

import re
from importlib import resources
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2
from kafka.record.memory_records import MemoryRecords

from roster.records import native
from roster.wire import WireError
from roster.wire.columns import encode_kernel, partition_kernel, writer
from roster.wire.columns.writer import Body, Encoder, Placed, framed, halves
from roster.wire.compression import Compression
from roster.wire.records import read_batch, read_header, verify_crc
from tests.examples_tried import examples
from tests.wire.plain_kernel import PlainKernel

NATIVE = native.kernel(None, native.WRITE)


PLAIN = PlainKernel(partition_kernel, encode_kernel)

JAVA_VECTORS = {  # org.apache.kafka.common.utils.UtilsTest.testMurmur2
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def murmur2(key: bytes) -> int:
    data = np.frombuffer(key, np.uint8)
    value = PLAIN.murmur2(data, 0, len(key))
    return value - (1 << 32) if value >> 31 else value


@pytest.mark.parametrize("loops", native.ALL, ids=lambda each: each.module)
def test_object_code_is_compiled_again_when_any_module_of_its_loops_changes(loops: native.Loops) -> None:
    found, left = set[str](), [loops.module]
    while left:
        found.add(name := left.pop())
        source = (resources.files("roster.wire.columns") / f"{name}.py").read_text()
        of = re.findall(r"^from roster\.wire\.columns(?:\.(\w+) import| import (\w+) as)", source, re.MULTILINE)
        left += {a or b for a, b in of} - found
    assert found == set(loops.made_of)


def test_murmur2_is_javas() -> None:
    assert {key: murmur2(key) for key in JAVA_VECTORS} == JAVA_VECTORS


@given(st.binary(max_size=40))
def test_murmur2_is_kafka_pythons(key: bytes) -> None:
    assert murmur2(key) & 0xFFFFFFFF == kafka_python_murmur2(key) & 0xFFFFFFFF


KEYS = st.none() | st.binary(max_size=20)
HEADERS = st.none() | st.lists(st.tuples(st.text(max_size=5), KEYS), max_size=3)
PARTITIONS = st.none() | st.integers(0, 4)
ROWS = st.lists(
    st.tuples(
        KEYS, st.none() | st.binary(max_size=300), HEADERS, st.none() | st.integers(0, 4), st.integers(0, 1 << 45)
    ),
    max_size=30,
)
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("partition", pa.int32()),
    ]
)


def table(rows: list[tuple[Any, ...]]) -> tuple[pa.RecordBatch, Any]:
    entries = [
        {
            "key": key,
            "value": value,
            "headers": headers and [{"key": name, "value": data} for name, data in headers],
            "partition": partition,
        }
        for key, value, headers, partition, _ in rows
    ]
    return pa.RecordBatch.from_pylist(entries, SCHEMA), np.array([row[-1] for row in rows], np.int64)


def expected(rows: list[tuple[Any, ...]], partition: int) -> list[tuple[Any, ...]]:
    """The rows whose partition is known beforehand, those with a key or a partition of their own."""
    return [
        (key, value, tuple(headers or ()), time)
        for key, value, headers, given, time in rows
        if given == partition
        or (given is None and key is not None and (kafka_python_murmur2(key) & 0x7FFFFFFF) % 5 == partition)
    ]


def test_records_that_readers_would_refuse_to_expand_are_not_compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "most_expanded", lambda size: 20 * size)
    batch, times = table([(b"k", bytes(size), None, 0, 1) for size in (200, 100_000)])
    encoder = Encoder(NATIVE, 1, compression=Compression.GZIP, batch_bytes=1)
    small, large = (body for _, body in encoder.encode(batch, times))
    assert (small.compression, large.compression) == (Compression.GZIP, Compression.NONE)


@settings(deadline=None, max_examples=examples(150))
@given(
    rows=ROWS,
    cut=st.integers(0, 5),
    limit=st.sampled_from([1, 200, 1 << 20]),
    codec=st.sampled_from(Compression),
    loops=st.sampled_from([NATIVE, PLAIN]),
)
@example(
    rows=[(None, None, None, None, 0), (None, None, None, 0, 0)], cut=0, limit=1, codec=Compression.NONE, loops=NATIVE
)
def test_every_row_is_a_record_of_its_partition_in_order(
    rows: list[tuple[Any, ...]], cut: int, limit: int, codec: Compression, loops: Any
) -> None:
    batch, times = table(rows)
    # A slice has ends and bits that do not begin at 0.
    batch, times, rows = batch.slice(cut), times[cut:], rows[cut:]
    found: dict[int, list[tuple[Any, ...]]] = {number: [] for number in range(5)}
    encoder = Encoder(loops, 5, compression=codec, batch_bytes=limit)
    for partition, body in encoder.encode(batch, times):
        whole = framed(body, 7, 3, 11, transactional=True)
        header = read_header(whole)
        assert verify_crc(whole)
        assert (header.size, header.records_count, header.last_offset) == (len(whole), body.records, body.records - 1)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 11)
        assert header.is_transactional
        records = read_batch(whole)
        assert header.max_timestamp == max(record.timestamp for record in records)
        assert [record.offset for record in records] == list(range(body.records))
        assert body.records == 1 or limit > 1
        found[partition] += [(r.key, r.value, r.headers, r.timestamp) for r in records]
    free = [row for row in rows if row[0] is None and row[3] is None]
    anywhere = [(None, value, tuple(headers or ()), time) for _, value, headers, _, time in free]
    for partition, records in found.items():
        others = list(records)
        rest = iter(records)
        for row in expected(rows, partition):
            assert row in rest, "a row is missing or in another order"
            others.remove(row)
        assert all(row in anywhere for row in others)
    assert sum(map(len, found.values())) == len(rows)
    assert sorted((r for part in found.values() for r in part), key=repr) == sorted(
        ((key, value, tuple(headers or ()), time) for key, value, headers, _, time in rows), key=repr
    )


@given(rows=ROWS, codec=st.sampled_from([Compression.NONE, Compression.GZIP]))
def test_kafka_python_reads_the_batches(rows: list[tuple[Any, ...]], codec: Compression) -> None:
    batch, times = table([(key, value, headers, 0, time) for key, value, headers, _, time in rows])
    data = b"".join(framed(body) for _, body in Encoder(NATIVE, 5, compression=codec).encode(batch, times))
    found = []
    records = MemoryRecords(data)
    while (each := records.next_batch()) is not None:
        assert each.validate_crc()
        found += [(r.key, r.value, [tuple(header) for header in r.headers], r.timestamp) for r in each]
    assert found == [(key, value, list(headers or ()), time) for key, value, headers, _, time in rows]


@given(rows=ROWS.filter(lambda rows: len(rows) > 1), codec=st.sampled_from(Compression))
def test_halves_hold_the_records_of_the_whole(rows: list[tuple[Any, ...]], codec: Compression) -> None:
    batch, times = table([(*row[:3], 0, row[4]) for row in rows])
    ((_, body),) = Encoder(NATIVE, 1, compression=codec).encode(batch, times)
    first, second = halves(body)
    plain = [record._replace(offset=-1) for record in read_batch(framed(body))]
    both = [record._replace(offset=-1) for half in (first, second) for record in read_batch(framed(half))]
    assert both == plain
    assert 0 < first.records < body.records


def test_rows_without_a_key_fill_one_partition_after_the_other() -> None:
    rows = pa.record_batch({"value": [b"x" * 100] * 300})
    placed = list(Encoder(NATIVE, 3, batch_bytes=5_000, first_partition=2).encode(rows, np.zeros(300, np.int64)))
    counts = [sum(body.records for partition, body in placed if partition == number) for number in range(3)]
    assert sum(counts) == 300
    assert max(counts) - min(counts) <= 40
    encoder = Encoder(NATIVE, 3, first_partition=2)
    assert {p for p, _ in encoder.encode(rows.slice(0, 10), np.zeros(10, np.int64))} == {2}
    assert {p for p, _ in encoder.encode(rows.slice(0, 10), np.zeros(10, np.int64))} == {2}, "it stays"


def test_strings_large_types_and_columns_of_nulls_are_taken() -> None:
    rows = pa.record_batch(
        [pa.array(["ü", None], pa.large_string()), pa.array(["a", "b"]), pa.nulls(2)],
        names=["key", "value", "headers"],
    )
    found = [r for _, body in Encoder(NATIVE, 1).encode(rows, np.zeros(2, np.int64)) for r in read_batch(framed(body))]
    assert [(r.key, r.value) for r in found] == [("ü".encode(), b"a"), (None, b"b")]


@pytest.mark.parametrize("partition", [-1, 5, 2**31 - 1])
def test_a_partition_that_is_not_there_is_refused(partition: int) -> None:
    batch, times = table([(b"k", b"v", None, partition, 0)])
    with pytest.raises(WireError, match=f"partition {partition}"):
        list(Encoder(NATIVE, 5).encode(batch, times))


def test_a_header_without_a_name_is_refused() -> None:
    batch, times = table([(b"k", b"v", [(None, b"v")], 0, 0)])
    with pytest.raises(WireError, match="header name: null"):
        list(Encoder(NATIVE, 5).encode(batch, times))


def test_a_record_larger_than_a_batch_is_a_batch() -> None:
    batch, times = table([(None, b"x" * n, None, 0, 0) for n in (10, 5000, 10)])
    bodies = [placed.body for placed in Encoder(NATIVE, 1, batch_bytes=500).encode(batch, times)]
    assert [body.records for body in bodies] == [1, 1, 1]
    assert all(isinstance(placed, (Placed, Body)) for placed in bodies)
