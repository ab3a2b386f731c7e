"""Record batches: round trips, other clients' readers and writers, damage."""

from __future__ import annotations

import io
import tracemalloc
import zlib

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from aiokafka.record.memory_records import MemoryRecords as AioRecords
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from roster.wire import WireError
from roster.wire.compression import Compression, compress, decompress
from roster.wire.records import (
    HEADER_SIZE,
    Record,
    build_batch,
    read_batch,
    read_header,
    split_batches,
    verify_crc,
)

RECORDS = [
    Record(10, 1_700_000_000_000, b"key", b"value", (("name", b"data"), ("none", None))),
    Record(11, 1_700_000_000_007, None, b"", ()),
    Record(12, 1_699_999_999_999, b"", None, (("", b""),)),
]
CODECS = list(Compression)

records = st.lists(
    st.builds(
        Record,
        offset=st.just(-1),
        timestamp=st.integers(-(2**40), 2**40),
        key=st.none() | st.binary(max_size=200),
        value=st.none() | st.binary(max_size=200),
        headers=st.lists(
            st.tuples(st.text(st.characters(codec="utf-8"), max_size=4), st.none() | st.binary(max_size=4)), max_size=3
        ).map(tuple),
    ),
    min_size=1,
    max_size=8,
)


@given(records, st.sampled_from(CODECS), st.integers(0, 2**40))
def test_what_is_built_is_read(written, compression, base_offset):
    batch = build_batch(written, base_offset=base_offset, compression=compression)
    assert verify_crc(batch)
    assert read_header(batch).compression is compression
    assert read_batch(batch) == [r._replace(offset=base_offset + n) for n, r in enumerate(written)]


def test_header_fields():
    batch = build_batch(RECORDS, base_offset=10, leader_epoch=4, producer_id=77, producer_epoch=2, base_sequence=9)
    header = read_header(batch)
    assert header.size == len(batch) == header.batch_length + 12
    assert (header.base_offset, header.last_offset, header.records_count) == (10, 12, 3)
    assert (header.base_timestamp, header.max_timestamp) == (1_700_000_000_000, 1_700_000_000_007)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 2, 9)
    assert (header.partition_leader_epoch, header.magic) == (4, 2)
    assert [header.is_control, header.is_transactional, header.is_log_append_time] == [False] * 3
    control = read_header(build_batch(RECORDS, base_offset=10, transactional=True, control=True))
    assert control.is_control
    assert control.is_transactional


def test_offsets_kept_by_compaction_leave_gaps():
    kept = [RECORDS[0], RECORDS[2]]
    batch = build_batch(kept, base_offset=10, last_offset=15)
    assert [r.offset for r in read_batch(batch)] == [10, 12]
    assert read_header(batch).last_offset == 15
    with pytest.raises(WireError, match="offset 10"):
        build_batch([RECORDS[1], RECORDS[0]], base_offset=10)
    with pytest.raises(WireError, match="last offset"):
        build_batch(kept, base_offset=10, last_offset=11)


def test_log_append_time_stamps_every_record():
    buffer = bytearray(build_batch(RECORDS, base_offset=10))
    buffer[22] |= 8
    assert {r.timestamp for r in read_batch(buffer)} == {1_700_000_000_007}
    assert not verify_crc(buffer)


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP])
def test_kafka_python_reads_ours(compression):
    theirs = DefaultRecordBatch(build_batch(RECORDS, base_offset=10, compression=compression))
    assert theirs.validate_crc()
    assert [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in theirs] == RECORDS


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP])
def test_aiokafka_reads_ours(compression):
    theirs = AioRecords(build_batch(RECORDS, base_offset=10, compression=compression)).next_batch()
    assert theirs.validate_crc()
    assert [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in theirs] == RECORDS


@pytest.mark.parametrize("builder", [DefaultRecordBatchBuilder, AioBuilder])
@pytest.mark.parametrize("codec", [0, 1])
def test_we_read_and_write_what_the_python_clients_write(builder, codec):
    theirs = builder(2, codec, False, -1, -1, -1, 1 << 16)
    for n, record in enumerate(RECORDS):
        theirs.append(n, record.timestamp, record.key, record.value, list(record.headers))
    data = bytes(theirs.build())
    assert verify_crc(data)
    assert [r._replace(offset=r.offset + 10) for r in read_batch(data)] == RECORDS
    if codec == 0:
        header = read_header(data)
        ours = build_batch([r._replace(offset=-1) for r in RECORDS], leader_epoch=header.partition_leader_epoch)
        assert ours == data


def test_split_batches():
    one, two = build_batch(RECORDS, base_offset=10), build_batch(RECORDS[:1], base_offset=10)
    parts = split_batches(one + two)
    assert [bytes(view) for _, view in parts] == [one, two]
    assert split_batches(b"") == []
    for size in range(1, len(two)):
        with pytest.raises(WireError):
            split_batches(one + two[:size])


@pytest.mark.parametrize("compression", CODECS)
def test_a_batch_cut_anywhere_is_refused(compression):
    batch = build_batch(RECORDS, base_offset=10, compression=compression)
    for size in range(len(batch)):
        with pytest.raises(WireError):
            read_batch(batch[:size])
        assert not verify_crc(batch[:size])


@given(st.data())
def test_a_damaged_batch_is_read_or_refused(data):
    compression = data.draw(st.sampled_from(CODECS))
    buffer = bytearray(build_batch(RECORDS, base_offset=10, compression=compression))
    for _ in range(data.draw(st.integers(1, 4))):
        buffer[data.draw(st.integers(0, len(buffer) - 1))] = data.draw(st.integers(0, 255))
    try:
        read_batch(buffer, limit=1 << 20)
    except WireError:
        return


@pytest.mark.parametrize("compression", CODECS)
@given(st.binary(max_size=80))
def test_any_bytes_are_decompressed_or_refused(compression, data):
    try:
        decompress(compression, data, 1 << 16)
    except WireError:
        return


@pytest.mark.parametrize("compression", CODECS[1:])
def test_an_expansion_beyond_the_limit_is_refused(compression):
    packed = compress(compression, bytes(1 << 22))
    assert len(packed) < 1 << 19
    assert decompress(compression, packed, 1 << 22) == bytes(1 << 22)
    with pytest.raises(WireError, match="expand"):
        decompress(compression, packed, (1 << 22) - 1)


@pytest.mark.parametrize("compression", CODECS[1:])
def test_a_small_batch_takes_little_memory_to_expand(compression):
    packed = compress(compression, b"abc" * 10_000)
    peaks = []
    tracemalloc.start()
    try:
        for _ in range(5):
            tracemalloc.clear_traces()
            assert len(decompress(compression, packed)) == 30_000
            peaks.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    assert min(peaks) < 300_000, "the least of several: threads of other tests allocate too"


@pytest.mark.parametrize("text", [b"", b"abc" * 20_000])
def test_gzip_members_are_read_in_a_time_that_grows_with_their_bytes(monkeypatch, text):
    taken = 0

    class Counted:
        def __init__(self, wbits):
            self.inflate = inflater(wbits)

        def decompress(self, data, limit):
            nonlocal taken
            taken += len(data)
            return self.inflate.decompress(data, limit)

        def __getattr__(self, name):
            return getattr(self.inflate, name)

    inflater = zlib.decompressobj
    monkeypatch.setattr(zlib, "decompressobj", Counted)
    member = compress(Compression.GZIP, text)
    for members in (100, 1000):
        taken = 0
        assert decompress(Compression.GZIP, member * members) == text * members
        assert taken < members * (len(member) + (4 << 10)), "what is behind a member's end is not copied for each"


def test_gzip_members_count_together_and_none_may_be_cut_off():
    member = compress(Compression.GZIP, bytes(1000))
    assert decompress(Compression.GZIP, member * 3, 3000) == bytes(3000)
    with pytest.raises(WireError, match="expand"):
        decompress(Compression.GZIP, member * 3, 2999)
    for size in range(1, len(member)):
        with pytest.raises(WireError):
            decompress(Compression.GZIP, member + member[:size])


def test_java_framed_snappy_is_read():
    out = io.BytesIO()
    out.write(b"\x82SNAPPY\0" + (1).to_bytes(4, "big") + (1).to_bytes(4, "big"))
    for chunk in (b"first " * 50, b"second"):
        packed = compress(Compression.SNAPPY, chunk)
        out.write(len(packed).to_bytes(4, "big") + packed)
    assert decompress(Compression.SNAPPY, out.getvalue()) == b"first " * 50 + b"second"


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 200_000])
@pytest.mark.parametrize("compression", CODECS)
def test_compression_round_trip_at_block_borders(compression, size):
    data = bytes(n * 7 % 251 for n in range(size))
    assert decompress(compression, compress(compression, data)) == data


def test_headers_no_batch_can_have():
    batch = bytearray(build_batch(RECORDS, base_offset=10))
    for at, value, name in [
        (16, 1, "magic"),
        (8, 0xFF, "batch_length"),
        (57, 0xFF, "records_count"),
        (23, 0x80, "last"),
    ]:
        damaged = bytearray(batch)
        damaged[at] = value
        with pytest.raises(WireError, match=name):
            read_header(damaged)
    damaged = bytearray(batch)
    damaged[22] = 7
    with pytest.raises(WireError, match="compression 7"):
        read_batch(damaged)
    with pytest.raises(WireError, match="header needs"):
        read_header(batch[: HEADER_SIZE - 1])


def test_what_cannot_be_a_batch():
    with pytest.raises(WireError, match="no records"):
        build_batch([])
    with pytest.raises(WireError):
        build_batch([Record(timestamp=2**70)])
    with pytest.raises(WireError):
        build_batch([Record(timestamp=0), Record(timestamp=-(2**70))])
    with pytest.raises(WireError):
        build_batch([Record(value="text")])
    with pytest.raises(WireError):
        build_batch([Record(value=b"")], producer_epoch=1 << 20)


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        (b"\x01\x04nd", "record: header name: null"),
        (b"\x02\xff\x02d", "record: header name: not UTF-8"),
        (b"\x02n\x00d", "record: 1 bytes behind its headers"),
    ],
)
def test_a_header_that_cannot_be_read_is_refused(header, complaint):
    batch = build_batch([Record(0, 0, None, b"v", (("n", b"d"),))])
    assert batch.endswith(b"\x02n\x02d")
    with pytest.raises(WireError, match=complaint):
        read_batch(batch[:-4] + header)


def test_bytes_behind_the_last_record_are_refused():
    batch = bytearray(build_batch(RECORDS[:2]))
    batch[HEADER_SIZE - 1] = 1
    with pytest.raises(WireError, match="bytes behind the last record"):
        read_batch(batch)


@pytest.mark.parametrize("size", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x09"])
def test_a_snappy_chunk_beyond_its_data_is_refused(size):
    framed = b"\x82SNAPPY\0" + (1).to_bytes(4, "big") + (1).to_bytes(4, "big") + size + b"12345678"
    with pytest.raises(WireError, match=r"a snappy chunk of -?[19] bytes with 8 bytes left"):
        decompress(Compression.SNAPPY, framed)
