"""Subscription and Assignment bytes against those of Kafka's own serializer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roster.model import TopicPartition
from roster.wire import WireError, decode, encode
from roster.wire.codec.fields import array, int32, string
from roster.wire.codec.table import Message, Struct
from roster.wire.consumer.messages import (
    Assignment,
    Subscription,
    TopicPartitions,
    by_topic,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    flat,
    version_of,
)

BAR_FOO = "0000000200036261720003666f6f"
OWNED = "00000002000362617200000001000000020003666f6f0000000100000001"


def test_cp_2_subscription_v3():
    owned = by_topic([TopicPartition("foo", 1), TopicPartition("bar", 2)])
    subscription = Subscription(topics=["foo", "bar"], owned_partitions=owned, rack_id="")
    data = encode_subscription(subscription)
    assert data.hex() == "0003" + BAR_FOO + "ffffffff" + OWNED + "ffffffff" + "ffff"
    assert decode_subscription(data).rack_id is None
    assert flat(decode_subscription(data).owned_partitions) == [TopicPartition("bar", 2), TopicPartition("foo", 1)]


@pytest.mark.parametrize("version", range(4))
def test_cp_3_assignment(version):
    partitions = [TopicPartition("foo", 1), TopicPartition("bar", 2), TopicPartition("foo", 3)]
    assignment = Assignment(assigned_partitions=by_topic(partitions), user_data=b"hello")
    foo = "0003666f6f" + "00000002" + "00000001" + "00000003"
    bar = "0003626172" + "00000001" + "00000002"
    expected = f"{version:04x}" + "00000002" + foo + bar + "00000005" + b"hello".hex()
    assert encode_assignment(assignment, version).hex() == expected
    assert decode_assignment(bytes.fromhex(expected)) == assignment


def test_cp_3_empty_assignment():
    assert encode_assignment(Assignment()).hex() == "000300000000ffffffff"


def test_ud_4_sticky_user_data():
    class StickyUserData(Message, versions="0-1"):
        class Entry(Struct):
            topic: str = string()
            partitions: list[int] = array(int32())

        previous: list[Entry] = array(Entry)
        generation: int = int32("1+", default=-1, ignorable=True)

    message = StickyUserData(previous=[StickyUserData.Entry(topic="foo", partitions=[1, 3])], generation=7)
    v1 = bytes.fromhex("000000010003666f6f00000002000000010000000300000007")
    assert encode(message, 1) == v1
    assert encode(message, 0) == v1[:-4]
    assert decode(StickyUserData, 1, v1) == message


def test_a_newer_version_is_read_as_3_and_its_tail_ignored():
    data = b"\0\x09" + encode_subscription(Subscription(topics=["t"], generation_id=4, rack_id="r"))[2:] + b"more"
    assert decode_subscription(data) == Subscription(topics=["t"], generation_id=4, rack_id="r")
    assert version_of(data) == 9


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff", b"\x80\0" + bytes(20)])
def test_a_missing_or_negative_version_is_refused(data):
    with pytest.raises(WireError, match="version"):
        decode_subscription(data)
    with pytest.raises(WireError, match="version"):
        decode_assignment(data)


names = st.text(st.characters(codec="utf-8"), max_size=5)
int32s = st.integers(-(2**31), 2**31 - 1)
topics = st.lists(st.builds(TopicPartitions, topic=names, partitions=st.lists(int32s, max_size=3)), max_size=3)
subscriptions = st.builds(
    Subscription,
    topics=st.lists(names, max_size=4),
    user_data=st.none() | st.binary(max_size=5),
    owned_partitions=topics,
    generation_id=int32s,
    rack_id=st.none() | names,
)


@given(subscriptions, st.integers(0, 3))
def test_every_subscription_comes_back_sorted(subscription, version):
    read = decode_subscription(encode_subscription(subscription, version))
    assert read.topics == sorted(subscription.topics)
    assert read.user_data == subscription.user_data
    assert flat(read.owned_partitions) == (sorted(flat(subscription.owned_partitions)) if version >= 1 else [])
    assert read.generation_id == (subscription.generation_id if version >= 2 else -1)
    assert read.rack_id == (subscription.rack_id or None if version >= 3 else None)


@given(subscriptions, st.integers(0, 3))
def test_a_subscription_cut_anywhere_is_refused(subscription, version):
    data = encode_subscription(subscription, version)
    for size in range(len(data)):
        with pytest.raises(WireError):
            decode_subscription(data[:size])


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data):
    for read in (decode_subscription, decode_assignment):
        try:
            read(b"\0\x03" + data)
        except WireError:
            continue


def test_what_cannot_be_encoded_names_the_field():
    with pytest.raises(WireError, match=r"topics\[1\]"):
        encode_subscription(Subscription(topics=["t", 3]))
