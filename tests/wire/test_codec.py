"""Messages through the codec: round trips in every version, refusals that name the field, hostile bytes."""

from __future__ import annotations

import traceback
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.wire import API_VERSIONS, WireError, decode, encode, request_class, response_class
from roster.wire.codec.fields import array, boolean, int8, int16, int32, int64, string, struct, uuid
from roster.wire.codec.table import Message, Struct
from roster.wire.messages import (
    ApiVersionsResponse,
    FetchRequest,
    FetchResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
)
from tests.examples_tried import examples, some


class Everything(Message, versions="0-2", flexible="1+"):
    """One field of each kind, for what the messages themselves do not use."""

    class Inner(Struct):
        number: int = int8(default=5)
        text: str | None = string(nullable="0+", default=None)

    flag: bool = boolean()
    long: int = int64()
    inner: Inner = struct(Inner)
    ids: list[bytes] = array(uuid())
    flags: list[bool] = array(boolean())
    shorts: list[int] | None = array(int16(), nullable="0+", default=None)
    names: list[str] = array(string())
    late: int = int32("2+", default=-1)
    tag_number: int = int32("1+", default=-1, tag=1)
    tag_inner: Inner = struct(Inner, "1+", tag=0)
    tag_names: list[str] = array(string(), "2+", tag=7)


CLASSES = [cls for key in API_VERSIONS for cls in (request_class(key), response_class(key))] + [Everything]
EACH = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)


@EACH
@settings(max_examples=examples(25, quick=4))
@given(st.data())
def test_every_message_comes_back(messages_of, cls, data):
    version = data.draw(st.sampled_from(list(cls.__table__.versions)))
    message = data.draw(messages_of(cls, version))
    encoded = encode(message, version)
    assert decode(cls, version, encoded) == message
    assert decode(cls, version, memoryview(encoded)) == message
    assert decode(cls, version, bytearray(encoded)) == message


@EACH
def test_the_default_and_the_filled_message_come_back_in_each_version(filled, cls):
    for version in cls.__table__.versions:
        for message in (cls(), filled(cls, version)):
            assert decode(cls, version, encode(message, version)) == message, version


@EACH
def test_a_message_cut_or_continued_anywhere_is_refused_in_each_version(filled, cls):
    for version in cls.__table__.versions:
        data = encode(filled(cls, version), version)
        for size in some(range(len(data)), quick=12):
            with pytest.raises(WireError, match=rf"^{cls.__qualname__} v{version}: "):
                decode(cls, version, data[:size])
        with pytest.raises(WireError, match=rf"^{cls.__qualname__} v{version}: .*1 bytes behind the end"):
            decode(cls, version, data + b"\0")


@EACH
@settings(max_examples=examples(25, quick=4))
@given(st.data())
def test_damaged_bytes_are_refused_or_read_as_a_message(filled, cls, data):
    version = data.draw(st.sampled_from(list(cls.__table__.versions)))
    damaged = bytearray(encode(filled(cls, version), version) or b"\0")
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
        damaged = damaged or bytearray(1)
    try:
        message = decode(cls, version, bytes(damaged))
    except WireError:
        return
    again = encode(message, version)
    assert encode(decode(cls, version, again), version) == again


@EACH
@settings(max_examples=examples(30, quick=4))
@given(st.data())
def test_any_bytes_are_refused_or_read_as_a_message(cls, data):
    version = data.draw(st.sampled_from(list(cls.__table__.versions)))
    try:
        decode(cls, version, data.draw(st.binary(max_size=100)))
    except WireError:
        return


@EACH
def test_hostile_counts_and_lengths_allocate_nothing(filled, cls):
    """The largest numbers, written over every place of a message in its first classic and first flexible version."""
    tracemalloc.start()
    try:
        versions, flexible = cls.__table__.versions, cls.__table__.flexible
        for version in sorted({versions.low, max(versions.low, flexible.low)}):
            data = encode(filled(cls, version, nested=1), version)
            decode(cls, version, data)
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            for hostile in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f"):  # of 16 and 32 bits, and a varint
                for at in some(range(len(data)), quick=24):
                    try:
                        decode(cls, version, data[:at] + hostile + data[at + len(hostile) :])
                    except WireError:
                        continue
            assert tracemalloc.get_traced_memory()[1] - before < 300_000
    finally:
        tracemalloc.stop()


def test_the_count_that_aborts_another_reader():
    """JoinGroup v9 with a compact count of 2**31 protocols."""
    data = encode(JoinGroupRequest(group_id="g"), 9)
    assert data.endswith(b"\x01\x00\x00")
    with pytest.raises(WireError, match="protocols: 2147483647 elements of at least 3 bytes with 2 bytes left"):
        decode(JoinGroupRequest, 9, data[:-3] + b"\x80\x80\x80\x80\x08" + b"\0\0")


def test_a_field_absent_from_the_version_must_be_at_its_default():
    message = JoinGroupRequest(group_instance_id="i")
    assert decode(JoinGroupRequest, 5, encode(message, 5)) == message
    with pytest.raises(WireError, match="JoinGroupRequest v4: group_instance_id: set, but not part of this version"):
        encode(message, 4)
    with pytest.raises(WireError, match="forgotten_topics_data"):
        encode(FetchRequest(forgotten_topics_data=[FetchRequest.ForgottenTopic(topic="t")]), 6)
    end = FetchResponse.Partition.EpochEndOffset(epoch=1)
    topic = FetchResponse.Topic(partitions=[FetchResponse.Partition(diverging_epoch=end)])
    with pytest.raises(WireError, match=r"responses\[\].partitions\[\].diverging_epoch"):
        encode(FetchResponse(responses=[topic]), 11)


def test_an_ignorable_field_is_left_out_of_versions_without_it():
    assert decode(JoinGroupRequest, 0, encode(JoinGroupRequest(rebalance_timeout_ms=9), 0)).rebalance_timeout_ms == -1


@pytest.mark.parametrize(
    ("message", "version", "field"),
    [
        (JoinGroupRequest(session_timeout_ms=2**31), 5, "session_timeout_ms"),
        (JoinGroupRequest(session_timeout_ms="5"), 9, "session_timeout_ms"),
        (JoinGroupRequest(session_timeout_ms=1.5), 9, "session_timeout_ms"),
        (JoinGroupRequest(group_id=None), 5, "group_id: None"),
        (JoinGroupRequest(group_id=b"g"), 5, "group_id: bytes"),
        (JoinGroupRequest(group_id="\ud800"), 9, "group_id: .* no UTF-8"),
        (JoinGroupRequest(group_id="g" * 32768), 5, "group_id: 32768 bytes"),
        (JoinGroupRequest(group_id="g" * 32768), 9, "group_id: 32768 bytes"),
        (JoinGroupRequest(protocols=None), 9, "protocols: None"),
        (JoinGroupRequest(protocols=[JoinGroupRequest.Protocol(), None]), 5, r"protocols\[1\]: None"),
        (JoinGroupRequest(protocols=[JoinGroupRequest.Protocol(metadata="m")]), 5, r"protocols\[0\].metadata: str"),
        (JoinGroupRequest(protocols=[JoinGroupRequest.Protocol(metadata=[1])]), 5, r"protocols\[0\].metadata: list"),
        (JoinGroupRequest(protocols=7), 5, "protocols: int"),
        (JoinGroupResponse(protocol_name=None), 6, "protocol_name: None"),
        (MetadataResponse(topics=[MetadataResponse.Topic(topic_id=b"short")]), 10, "topic_id: .* not 16 bytes"),
        (Everything(inner=None), 1, "inner: None"),
        (Everything(inner="x"), 1, "inner: 'x'"),
        (Everything(shorts=[1, 2**15]), 1, r"shorts\[1\]: 32768"),
        (Everything(tag_inner=Everything.Inner(number=300)), 1, "tag_inner.number: 300"),
    ],
)
def test_what_cannot_be_encoded_names_its_field(message, version, field):
    with pytest.raises(WireError, match=f"v{version}: .*{field}"):
        encode(message, version)


@pytest.mark.parametrize("version", [-1, 10, 99])
def test_versions_a_message_has_not_got(version):
    with pytest.raises(WireError, match=f"JoinGroupRequest: no version {version}"):
        encode(JoinGroupRequest(), version)
    with pytest.raises(WireError, match=f"JoinGroupRequest: no version {version}"):
        decode(JoinGroupRequest, version, b"")


HEARTBEAT = encode(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4)


def test_unknown_tagged_fields_are_skipped():
    plain = decode(HeartbeatRequest, 4, HEARTBEAT)
    assert decode(HeartbeatRequest, 4, HEARTBEAT[:-1] + bytes.fromhex("02 00 01 61 05 00")) == plain
    answer = ApiVersionsResponse(finalized_features_epoch=7)
    encoded = encode(answer, 3)
    assert encoded.endswith(bytes.fromhex("01 01 08 0000000000000007"))
    more = encoded[:-11] + bytes.fromhex("02 01 08 0000000000000007 09 03 616263")
    assert decode(ApiVersionsResponse, 3, more) == answer


@pytest.mark.parametrize(
    ("tags", "reason"),
    [
        ("02 05 00 05 00", "tag 5 after 5"),
        ("02 05 00 01 00", "tag 1 after 5"),
        ("01 05 02 00", "length 2 with 1 bytes left"),
        ("ff ff ff ff 0f", "elements"),
        ("ff ff ff ff 7f", "varint above"),
        ("80 80 80 80 80 00", "varint above"),
        ("80", "the bytes end inside a varint"),
        ("", "the bytes end inside a varint"),
    ],
)
def test_bad_tagged_fields_are_refused(tags, reason):
    for cls, head in ((HeartbeatRequest, HEARTBEAT[:-1]), (FetchRequest, encode(FetchRequest(), 15)[:-1])):
        version = 4 if cls is HeartbeatRequest else 15
        with pytest.raises(WireError, match=f"tagged fields: .*{reason}"):
            decode(cls, version, head + bytes.fromhex(tags))


def test_a_known_tagged_field_must_fill_its_size():
    encoded = encode(ApiVersionsResponse(), 3)
    for tag in ("01 09 0000000000000007 00", "01 07 00000000000007"):
        with pytest.raises(WireError, match="finalized_features_epoch"):
            decode(ApiVersionsResponse, 3, encoded[:-1] + bytes.fromhex("01" + tag))


def test_null_where_null_is_not_allowed():
    with pytest.raises(WireError, match="group_id: length -1"):
        decode(HeartbeatRequest, 3, b"\xff\xff" + bytes(20))
    with pytest.raises(WireError, match="group_id: length -1"):
        decode(HeartbeatRequest, 4, b"\0" + bytes(20))
    with pytest.raises(WireError, match="topics: -1 elements"):
        decode(MetadataRequest, 0, b"\xff\xff\xff\xff")
    assert decode(MetadataRequest, 1, b"\xff\xff\xff\xff").topics is None


def test_text_that_is_not_utf_8():
    for bad in (b"\xff", b"\xc0\x80", b"\xed\xa0\x80"):
        with pytest.raises(WireError, match="group_id: not UTF-8"):
            decode(HeartbeatRequest, 3, len(bad).to_bytes(2, "big") + bad + bytes(8))


def test_records_are_views_into_the_frame():
    batches = b"batches"
    partition = ProduceRequest.Partition(index=0, records=batches)
    request = ProduceRequest(topic_data=[ProduceRequest.Topic(name="t", partition_data=[partition])])
    data = encode(request, 7)
    read = decode(ProduceRequest, 7, data).topic_data[0].partition_data[0].records
    assert isinstance(read, memoryview)
    assert read.obj is data
    assert read == batches


def test_messages_are_slotted_mutable_and_comparable():
    message = HeartbeatRequest(group_id="g")
    message.group_id = "h"
    assert message == HeartbeatRequest(group_id="h") != HeartbeatRequest()
    assert repr(JoinGroupRequest.Protocol(name="n")) == "JoinGroupRequest.Protocol(name='n', metadata=b'')"
    assert JoinGroupRequest().protocols is not JoinGroupRequest().protocols
    with pytest.raises(AttributeError):
        message.typo = 1
    with pytest.raises(TypeError):
        HeartbeatRequest("g")


def test_the_source_of_a_compiled_reader_stands_in_tracebacks() -> None:
    encode(HeartbeatRequest(group_id="g", member_id="m"), 3)
    with pytest.raises(WireError) as raised:
        decode(HeartbeatRequest, 3, b"\xff\xff\xff")
    lines = [entry.line for entry in traceback.extract_tb(raised.value.__traceback__) if entry.filename.startswith("<")]
    assert lines
    assert all(lines)
