"""Headers and sizes around the messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roster.wire import API_VERSIONS, ApiKey, ErrorCode, UnsupportedVersion, WireError, encode, frames
from roster.wire.frames import RequestHeader, decode_request, decode_response, encode_request, encode_response
from roster.wire.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    MetadataRequest,
    ProduceRequest,
)

HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=2, member_id="m")


def test_a_classic_request_has_header_v1():
    expected = "000c00030000000900026964" + encode(HEARTBEAT, 3).hex()
    frame = encode_request(HEARTBEAT, 3, 9, "id")
    assert frame == (len(expected) // 2).to_bytes(4, "big") + bytes.fromhex(expected)
    assert decode_request(frame[4:]) == (RequestHeader(ApiKey.HEARTBEAT, 3, 9, "id"), HEARTBEAT)


def test_a_flexible_request_has_header_v2_with_a_classic_client_id():
    expected = "000c000400000009ffff00" + encode(HEARTBEAT, 4).hex()
    frame = encode_request(HEARTBEAT, 4, 9, None)
    assert frame[4:].hex() == expected
    assert decode_request(memoryview(frame)[4:]) == (RequestHeader(ApiKey.HEARTBEAT, 4, 9, None), HEARTBEAT)


def test_unknown_tagged_fields_of_a_header_are_skipped():
    frame = encode_request(HEARTBEAT, 4, 9, None)[4:]
    tagged = frame[:10] + b"\x01\x00\x02hi" + frame[11:]
    assert decode_request(tagged)[1] == HEARTBEAT


def test_response_headers():
    response = HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
    assert encode_response(response, 3, 7).hex() == "0000000a0000000700000000001b"
    assert encode_response(response, 4, 7).hex() == "0000000c000000070000000000001b00"
    for version in (3, 4):
        frame = encode_response(response, version, 7)
        assert decode_response(HeartbeatResponse, version, frame[4:]) == (7, response)


def test_the_api_versions_response_has_header_v0_in_every_version():
    response = ApiVersionsResponse(api_keys=frames.advertised())
    for version in API_VERSIONS[ApiKey.API_VERSIONS]:
        frame = encode_response(response, version, 7)
        assert frame[4:] == b"\0\0\0\7" + encode(response, version)
        assert decode_response(ApiVersionsResponse, version, frame[4:]) == (7, response)


def test_an_unsupported_api_versions_version_is_answered_in_v0():
    request = encode_request(ApiVersionsRequest(), 4, 1, "c")[4:]
    newer = request[:2] + b"\0\x09" + request[4:]
    with pytest.raises(UnsupportedVersion) as refusal:
        decode_request(newer)
    assert refusal.value.header == RequestHeader(ApiKey.API_VERSIONS, 9, 1, "c")
    answer = encode_response(frames.unsupported_api_versions(), 0, 1)
    assert answer[4:].hex() == "00000001002300000001001200000005"
    for asked in (0, 3, 4, 5):
        _, read = decode_response(ApiVersionsResponse, asked, answer[4:])
        assert read == frames.unsupported_api_versions()


@pytest.mark.parametrize(("key", "version"), [(12, 5), (12, -1), (999, 0), (-1, 0), (4, 0), (0, 2)])
def test_unknown_keys_and_versions(key, version):
    head = key.to_bytes(2, "big", signed=True) + version.to_bytes(2, "big", signed=True) + b"\0\0\0\x05" + b"\0\x01c"
    with pytest.raises(UnsupportedVersion, match=f"api key {key} version {version}") as refusal:
        decode_request(head + b"rest")
    assert refusal.value.header == RequestHeader(key, version, 5, "c")


@given(st.binary(max_size=60))
def test_any_bytes_are_refused_or_read(data):
    try:
        decode_request(data)
    except WireError:
        return


@given(st.sampled_from(sorted(API_VERSIONS)), st.integers(0, 20), st.binary(max_size=60))
def test_any_body_is_refused_or_read(key, version, body):
    try:
        decode_request(key.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\0\0\0\1\xff\xff" + body)
    except WireError:
        return


@pytest.mark.parametrize("version", [3, 4])
def test_a_frame_cut_anywhere_is_refused(version):
    request = encode_request(HEARTBEAT, version, 9, "id")[4:]
    response = encode_response(HeartbeatResponse(), version, 9)[4:]
    for size in range(len(request)):
        with pytest.raises(WireError):
            decode_request(request[:size])
    for size in range(len(response)):
        with pytest.raises(WireError):
            decode_response(HeartbeatResponse, version, response[:size])
    told: list[str] = []
    assert decode_request(request + b"\0\1", told.append) == decode_request(request, told.append)
    assert told == [f"HeartbeatRequest v{version}: 2 bytes behind the end of the message"]
    with pytest.raises(WireError, match="behind the end"):
        decode_response(HeartbeatResponse, version, response + b"\0")


def test_librdkafkas_way_of_asking_for_all_topics_is_understood():
    asked = bytes.fromhex("0003000d00000003000772646b61666b61" + "00" + "00000000" + "010000")
    header, message = decode_request(asked)
    assert header.correlation_id == 3
    assert message == MetadataRequest(topics=None, allow_auto_topic_creation=True)
    with pytest.raises(WireError, match="MetadataRequest"):
        decode_request(asked[:-4])
    for longer in (asked + b"\0", asked.replace(b"\1\0\0", b"\1\0\0\0\0")):  # as Apache Kafka reads it
        assert decode_request(longer)[1] == MetadataRequest(topics=None, allow_auto_topic_creation=False)


def test_headers_that_cannot_be_written():
    for correlation_id, client_id in ((2**31, "c"), (1, "c" * 40_000), (1, "\ud800"), (None, "c")):
        with pytest.raises(WireError, match="request header"):
            encode_request(HEARTBEAT, 3, correlation_id, client_id)
    with pytest.raises(WireError, match="response header"):
        encode_response(HeartbeatResponse(), 3, 2**31)
    with pytest.raises(WireError, match="no version 5"):
        encode_request(HEARTBEAT, 5, 1, "c")


def test_produce_is_advertised_from_0_on_for_old_librdkafka():
    ranges = {entry.api_key: (entry.min_version, entry.max_version) for entry in frames.advertised()}
    assert ranges[ApiKey.PRODUCE] == (0, ProduceRequest.__table__.versions.high)
    assert ranges[ApiKey.FETCH][0] == 4
    assert set(ranges) == set(API_VERSIONS)


@given(
    version=st.integers(3, 13),
    transactional_id=st.none() | st.text(max_size=200),
    topics=st.lists(st.tuples(st.text(max_size=200), st.integers(0, 300)), max_size=3),
    client=st.none() | st.text(max_size=50),
    cut=st.integers(0, 600),
)
def test_the_partitions_of_a_produce_to_one_topic_are_counted_without_reading_it(
    version, transactional_id, topics, client, cut
):
    request = ProduceRequest(
        transactional_id=transactional_id,
        topic_data=[
            ProduceRequest.Topic(
                name=name if version < 13 else "", partition_data=[ProduceRequest.Partition(index=1)] * count
            )
            for name, count in topics
        ],
    )
    frame = encode_request(request, version, 1, client)[4:]
    expected = topics[0][1] if len(topics) == 1 else None
    assert frames.produce_partitions(frame) == expected
    head = 10 + len((client or "").encode())
    assert frames.produce_partitions(frame[: head + cut]) in {expected, None}


def test_classes_by_api_key():
    for key in API_VERSIONS:
        request, response = frames.request_class(key), frames.response_class(key)
        assert request.__table__.key == response.__table__.key == key
        assert request.__table__.versions == response.__table__.versions
        assert request.__table__.flexible == response.__table__.flexible
    with pytest.raises(WireError, match="no api key 7"):
        frames.request_class(7)
    with pytest.raises(WireError, match="no api key 7"):
        frames.response_class(7)


@pytest.mark.parametrize(
    ("client_id", "complaint"),
    [
        ("0003ffff", "client_id: length 3 with 2 bytes left"),
        ("fffe", "client_id: length -2"),
        ("0002c328", "not UTF-8"),
    ],
)
def test_a_client_id_that_cannot_be_read_is_refused(client_id, complaint):
    with pytest.raises(WireError, match=f"request header: .*{complaint}"):
        decode_request(bytes.fromhex("000c000300000009" + client_id))
