"""The columnar consumer protocol agrees with the message-by-message one on any bytes, and with Kafka's own bytes."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roster.wire import WireError
from roster.wire.consumer.assignments import encode_assignments
from roster.wire.consumer.messages import (
    Subscription,
    TopicPartitions,
    decode_assignment,
    decode_subscription,
    encode_subscription,
)
from roster.wire.consumer.subscriptions import decode_subscriptions
from roster.wire.consumer.topic_index import TopicIndex
from roster.wire.consumer.user_data import (
    decode_cooperative_user_data,
    decode_sticky_user_data,
    encode_cooperative_user_data,
    encode_sticky_user_data,
)

TOPICS = ["t", "topic-1", "topic-2", "topics", "orders.v1", "a-name-of-sixteen", "eightchr", "x" * 249]


def columns_as_dicts(subscriptions, topics=TOPICS):
    got = decode_subscriptions(subscriptions, TopicIndex(topics))
    result = []
    for m in range(len(subscriptions)):
        mine = got.owned.member == m
        owned = list(zip([topics[t] for t in got.owned.topic[mine]], got.owned.number[mine].tolist(), strict=True))
        section = {topics[t] for t in got.sections[got.section_of[m]]}
        result.append(
            (bool(got.readable[m]), section, got.user_data[m], sorted(owned), got.generation[m], got.racks[m])
        )
    return result


def messages_as_dicts(subscriptions, topics=TOPICS):
    result = []
    for data in subscriptions:
        try:
            sub = decode_subscription(data)
        except WireError:
            result.append((False, set(), None, [], -1, None))
            continue
        owned = sorted((o.topic, p) for o in sub.owned_partitions for p in o.partitions if o.topic in topics)
        known = {t for t in sub.topics if t in topics}
        result.append((True, known, sub.user_data, owned, max(sub.generation_id, -1), sub.rack_id or None))
    return result


names = st.sampled_from([*TOPICS, "unknown", ""])
subscription = st.builds(
    Subscription,
    topics=st.lists(names, max_size=6),
    user_data=st.none() | st.binary(max_size=8),
    owned_partitions=st.lists(
        st.builds(TopicPartitions, topic=names, partitions=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5)),
        max_size=5,
    ),
    generation_id=st.integers(-5, 2**31 - 1),
    rack_id=st.none() | st.sampled_from(["", "a", "rack-ü"]),
)
encoded = st.builds(encode_subscription, subscription, st.integers(0, 3))


@given(st.lists(encoded, max_size=8))
def test_a_group_reads_as_its_messages_do(group):
    assert columns_as_dicts(group) == messages_as_dicts(group)


@given(encoded, st.data())
def test_truncated_and_overwritten_bytes_are_refused_exactly_when_the_message_codec_refuses_them(data, draw):
    cut = draw.draw(st.integers(0, len(data)))
    bent = bytearray(data)
    for _ in range(draw.draw(st.integers(0, 3))):
        at = draw.draw(st.integers(0, max(len(bent) - 1, 0)))
        bent[at : at + 1] = bytes([draw.draw(st.integers(0, 255))])
    for damaged in (data[:cut], bytes(bent)):
        (got,) = columns_as_dicts([damaged])
        (wanted,) = messages_as_dicts([damaged])
        assert got == wanted or (got[0] and not wanted[0] and not _is_text(damaged))
        healthy = encode_subscription(Subscription(topics=["t"]))
        assert columns_as_dicts([damaged, healthy])[1] == messages_as_dicts([healthy])[0]


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_noise_never_raises(group):
    assert len(columns_as_dicts(group)) == len(group)


@pytest.mark.parametrize("members", [1, 47, 48, 200])
def test_lists_are_read_alike_in_lock_step_and_one_by_one(members):
    group = [
        encode_subscription(
            Subscription(
                topics=TOPICS[: 1 + m % 8],
                owned_partitions=[
                    TopicPartitions(topic=t, partitions=list(range(m % 4 + i % 3)))
                    for i, t in enumerate(TOPICS[: m % 7])
                ],
                generation_id=m,
            ),
            m % 4,
        )
        for m in range(members)
    ]
    group[members // 2] = group[members // 2][:-3]
    assert columns_as_dicts(group) == messages_as_dicts(group)


@pytest.mark.parametrize("field", [2, -14])
def test_a_count_beyond_the_bytes_is_refused_before_anything_is_allocated(field):
    data = bytearray(encode_subscription(Subscription(topics=["t"]), 3))
    data[field : field + 4] = struct.pack(">i", 2**31 - 1)
    assert [row[0] for row in columns_as_dicts([bytes(data)])] == [False]


def test_versions_above_three_read_as_three_and_negative_ones_not_at_all():
    data = encode_subscription(Subscription(topics=["t"], generation_id=7, rack_id="a"))
    newer = struct.pack(">h", 9) + data[2:] + b"a tail"
    assert columns_as_dicts([newer]) == columns_as_dicts([data])
    assert not columns_as_dicts([struct.pack(">h", -1) + data[2:]])[0][0]


def test_cp_2_subscription_v3_bytes_of_the_java_serializer():
    data = bytes.fromhex(
        "00030000000200036261720003666f6fffffffff00000002000362617200000001000000020003666f6f0000000100000001ffffffffffff"
    )
    assert columns_as_dicts([data], ["foo", "bar"]) == [
        (True, {"foo", "bar"}, None, [("bar", 2), ("foo", 1)], -1, None)
    ]


def test_ud_4_sticky_user_data_bytes_of_the_java_serializer():
    v1 = bytes.fromhex("000000010003666f6f00000002000000010000000300000007")
    assert encode_sticky_user_data({"foo": [1, 3]}, 7) == v1
    claims, generation = decode_sticky_user_data([v1, v1[:-4], None, b"", v1[:-6], v1 + b"tail"], TopicIndex(["foo"]))
    assert generation.tolist() == [7, -1, -1, -1, -1, 7]
    assert list(zip(claims.member.tolist(), claims.number.tolist(), strict=True)) == [
        (m, p) for m in (0, 1, 5) for p in (1, 3)
    ]


def read_version_0(data: bytes) -> dict[str, list[int]]:
    """Sticky user data as a reader has it that knows of no generation: an array, and what follows is ignored."""
    at = 0

    def number(form: str) -> int:
        nonlocal at
        (value,) = struct.unpack_from(form, data, at)
        at += struct.calcsize(form)
        return value

    claims = {}
    for _ in range(number(">i")):
        size = number(">h")
        name, at = data[at : at + size].decode(), at + size
        claims[name] = [number(">i") for _ in range(number(">i"))]
    return claims


@given(
    st.dictionaries(st.text(min_size=1, max_size=9), st.lists(st.integers(0, 2**31 - 1), max_size=4)),
    st.integers(-1, 9),
)
def test_kip_341_a_reader_of_version_0_finds_the_claims_of_version_1(owned, generation):
    assert read_version_0(encode_sticky_user_data(owned, generation)) == owned


def test_ud_4_cooperative_user_data_bytes_of_the_java_serializer():
    assert encode_cooperative_user_data(-1).hex() == "ffffffff"
    assert encode_cooperative_user_data(10).hex() == "0000000a"
    got = decode_cooperative_user_data([bytes.fromhex("0000000a"), b"\x00\x00", None, b"", b"\x00\x00\x00\x05tail"])
    assert got.tolist() == [10, -1, -1, -1, 5]


@given(
    st.lists(st.sampled_from(TOPICS), unique=True, max_size=5),
    st.data(),
    st.integers(0, 3),
    st.none() | st.binary(max_size=20),
)
def test_every_partition_is_written_to_its_owner(topics, draw, version, user_data):
    counts = [draw.draw(st.integers(0, 9)) for _ in topics]
    members = draw.draw(st.integers(1, 4))
    first = np.append(0, np.cumsum(counts)).astype(np.int64)
    owner = np.array(
        draw.draw(st.lists(st.integers(-1, members - 1), min_size=int(first[-1]), max_size=int(first[-1]))),
        dtype=np.int32,
    )
    written = encode_assignments(owner, members, topics, first, version=version, user_data=[user_data] * members)
    assert len(written) == members
    for m, data in enumerate(written):
        assert data[:2] == struct.pack(">h", version)
        got = decode_assignment(data)
        assert got.user_data == user_data
        wanted = {
            topic: [p for p in range(count) if owner[first[t] + p] == m]
            for t, (topic, count) in enumerate(zip(topics, counts, strict=True))
        }
        assert {o.topic: o.partitions for o in got.assigned_partitions} == {t: p for t, p in wanted.items() if p}


def test_more_members_than_two_bytes_can_count():
    members = 70_000
    owner = np.append(np.arange(members), -1).astype(np.int32)
    written = encode_assignments(owner, members, ["t"], np.array([0, members + 1]))
    assert [p for data in written for o in decode_assignment(data).assigned_partitions for p in o.partitions] == list(
        range(members)
    )


def test_cp_3_an_empty_assignment():
    (data,) = encode_assignments(np.zeros(0, dtype=np.int32), 1, [], np.zeros(1, dtype=np.int64), version=3)
    assert data.hex() == "000300000000ffffffff"
