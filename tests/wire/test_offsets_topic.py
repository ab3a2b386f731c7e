"""`__consumer_offsets` keys and values, and the partition a group lives in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roster.wire import WireError
from roster.wire.offsets_topic import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
    partition_of,
)

OFFSET_KEY = OffsetCommitKey(group="g", topic="t", partition=3)
GROUP = GroupMetadataValue(
    protocol_type="consumer",
    generation=7,
    protocol="range",
    leader="m-1",
    current_state_timestamp=1_700_000_000_000,
    members=[
        GroupMetadataValue.Member(
            member_id="m-1",
            group_instance_id="i-1",
            client_id="c",
            client_host="/127.0.0.1",
            rebalance_timeout=300_000,
            session_timeout=45_000,
            subscription=b"sub",
            assignment=b"",
        )
    ],
)


@pytest.mark.parametrize(("group", "partition"), [("group-id", 13), ("g", 3), ("my-group", 12), ("", 0)])
def test_gc_30_partition_of_a_group(group, partition):
    assert partition_of(group) == partition


def test_gc_30_the_most_negative_hash_is_partition_0():
    assert partition_of("polygenelubricants") == 0  # the classic word whose Java hash is -2**31
    assert partition_of("polygenelubricants", 7) == 0


@given(st.text(st.characters(codec="utf-8")), st.integers(1, 1000))
def test_the_hash_is_over_utf_16_units(group, count):
    value = 0
    for character in group:
        point = ord(character)
        units = [point] if point < 0x10000 else [0xD800 + (point - 0x10000 >> 10), 0xDC00 + (point & 0x3FF)]
        for unit in units:
            value = value * 31 + unit
    value %= 2**32
    signed = value - 2**32 if value >= 2**31 else value
    assert partition_of(group, count) == (0 if signed == -(2**31) else abs(signed)) % count


def test_key_bytes():
    assert encode_key(OFFSET_KEY).hex() == "000100016700017400000003"
    assert encode_key(GroupMetadataKey(group="g")).hex() == "0002000167"


def test_offset_value_bytes_version_3():
    value = OffsetCommitValue(offset=5, leader_epoch=2, metadata="m", commit_timestamp=1)
    assert encode_value(value).hex() == "000300000000000000050000000200016d0000000000000001"


def test_an_expire_timestamp_is_written_in_version_1():
    value = OffsetCommitValue(offset=5, metadata="m", commit_timestamp=1, expire_timestamp=9)
    assert encode_value(value).hex() == "0001000000000000000500016d00000000000000010000000000000009"


@pytest.mark.parametrize("version", range(5))
def test_group_value_survives_every_version_but_for_what_it_lacks(version):
    key = GroupMetadataKey(group="g")
    read = decode_value(key, encode_value(GROUP, version))
    assert isinstance(read, GroupMetadataValue)
    assert (read.generation, read.leader, read.members[0].assignment) == (7, "m-1", b"")
    assert read.current_state_timestamp == (GROUP.current_state_timestamp if version >= 2 else -1)
    assert read.members[0].group_instance_id == ("i-1" if version >= 3 else None)


def test_keys_of_both_offset_types_and_unknown_ones():
    assert decode_key(encode_key(OFFSET_KEY)) == OFFSET_KEY
    assert decode_key(b"\0\0" + encode_key(OFFSET_KEY)[2:]) == OFFSET_KEY
    assert decode_key(b"\0\x03whatever") is None


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff", encode_key(OFFSET_KEY)[:-1], encode_key(OFFSET_KEY) + b"\0"])
def test_a_damaged_key_is_refused(data):
    with pytest.raises(WireError):
        decode_key(data)


@pytest.mark.parametrize("version", range(5))
def test_a_value_cut_anywhere_is_refused(version):
    data = encode_value(GROUP, version)
    for size in range(len(data)):
        with pytest.raises(WireError):
            decode_value(GroupMetadataKey(group="g"), data[:size])


def test_a_value_of_an_unknown_version_is_refused():
    with pytest.raises(WireError, match="no version 5"):
        decode_value(OFFSET_KEY, b"\0\x05" + bytes(40))
