"""SubscriptionInfo and AssignmentInfo v1-v5: worked bytes, round trips, hostile bytes, and what cannot be encoded."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roster.model import TopicPartition
from roster.model.tasks import RUNNING, STATELESS, TaskId, TaskLags
from roster.wire import WireError
from roster.wire.streams.assignment_info import (
    AssignmentInfo,
    HostInfo,
    HostPartitions,
    decode_assignment_info,
    encode_assignment_info,
)
from roster.wire.streams.subscription_info import (
    LATEST_VERSION,
    MOST_ENDPOINT,
    UNKNOWN,
    UNKNOWN_VERSION,
    AssignorErrorCode,
    SubscriptionInfo,
    decode_subscription_info,
    encode_subscription_info,
)
from tests.wire.task_infos import assignments, int32s, subscriptions, values

VERSIONS = range(1, LATEST_VERSION + 1)
EACH_VERSION = pytest.mark.parametrize("version", VERSIONS)
PROCESS = bytes(range(16))


@EACH_VERSION
@given(st.data())
def test_a_subscription_comes_back(version, data):
    info = data.draw(subscriptions(version))
    encoded = encode_subscription_info(info)
    read = decode_subscription_info(encoded)
    assert values(read) == values(info)
    assert encode_subscription_info(read) == encoded
    assert values(decode_subscription_info(memoryview(encoded))) == values(info)


@EACH_VERSION
@given(st.data())
def test_an_assignment_comes_back(version, data):
    info = data.draw(assignments(version))
    encoded = encode_assignment_info(info)
    read = decode_assignment_info(encoded)
    assert values(read) == values(info)
    assert encode_assignment_info(read) == encoded
    assert values(decode_assignment_info(bytearray(encoded))) == values(info)


# Worked bytes.

SETS = (
    "00000001" + "00000001 00000002"  # one previous task, 1_2
    "00000002" + "00000000 00000003" + "00000004 00000005"  # two standby tasks, 0_3 and 4_5
)
ENDPOINT = "00000005" + b"h:999".hex()
UUID = PROCESS.hex()
SUBSCRIPTION_BYTES = {
    1: "00000001" + UUID + SETS,
    2: "00000002" + UUID + SETS + ENDPOINT,
    3: "00000003" + "00000005" + UUID + SETS + ENDPOINT,
    4: "00000004" + "00000005" + UUID + SETS + ENDPOINT,
    5: "00000005 00000005"
    + UUID
    + "00000003"  # three tasks with their lags
    + "00000001 00000002 fffffffffffffffe"
    + "00000000 00000003 0000000000002710"
    + "00000004 00000005 ffffffffffffffff"
    + ENDPOINT,
}


@EACH_VERSION
def test_the_bytes_of_a_subscription(version):
    running, stored, third = TaskId(1, 2), TaskId(0, 3), TaskId(4, 5)
    info = SubscriptionInfo(
        version=version,
        latest_supported=5 if version >= 3 else UNKNOWN_VERSION,
        process_id=PROCESS,
        tasks=TaskLags.of({running: RUNNING, stored: 10_000, third: STATELESS if version >= 5 else 7}),
        user_endpoint="h:999" if version >= 2 else None,
    )
    expected = bytes.fromhex(SUBSCRIPTION_BYTES[version])
    assert encode_subscription_info(info) == expected
    assert values(decode_subscription_info(expected)) == values(info)


ACTIVE = "00000002" + "00000001 00000002" * 2
STANDBY = "00000001" + "00000000 00000003" + "00000001" + "0001 74 00000003"
HOSTS = "00000001" + "0001 68 000003e7" + "00000002" + "0001 74 00000003" + "0001 75 00000000"
ASSIGNMENT_BYTES = {
    1: "00000001" + ACTIVE + STANDBY,
    2: "00000002" + ACTIVE + STANDBY + HOSTS,
    3: "00000003" + "00000005" + ACTIVE + STANDBY + HOSTS,
    4: "00000004" + "00000005" + ACTIVE + STANDBY + HOSTS + "00000001",
    5: "00000005 00000005"
    + ACTIVE
    + STANDBY
    + "00000002"  # the dictionary: 0 is t, 1 is u
    + "00000000 0001 74"
    + "00000001 0001 75"
    + "00000001"  # one host, h:999, with two partitions
    + "0001 68 000003e7"
    + "00000002"
    + "00000000 00000003"
    + "00000001 00000000"
    + "00000001",
}


@EACH_VERSION
def test_the_bytes_of_an_assignment(version):
    by_host = {HostInfo("h", 999): [TopicPartition("t", 3), TopicPartition("u", 0)]}
    info = AssignmentInfo(
        version=version,
        commonly_supported=5 if version >= 3 else UNKNOWN_VERSION,
        active=[TaskId(1, 2), TaskId(1, 2)],
        standby={TaskId(0, 3): [TopicPartition("t", 3)]},
        partitions_by_host=HostPartitions.of(by_host if version >= 2 else {}),
        error=AssignorErrorCode.INCOMPLETE_SOURCE_TOPIC_METADATA if version >= 4 else AssignorErrorCode.NONE,
    )
    expected = bytes.fromhex(ASSIGNMENT_BYTES[version])
    assert encode_assignment_info(info) == expected
    assert values(decode_assignment_info(expected)) == values(info)


def test_javas_text_has_two_bytes_for_nul_and_six_for_what_is_beyond_16_bits():
    info = AssignmentInfo(
        version=2,
        commonly_supported=UNKNOWN_VERSION,
        partitions_by_host=HostPartitions.of({HostInfo("\0é\U0001f600", 1): []}),
    )
    data = encode_assignment_info(info)
    assert data.hex(" ", 2).startswith("0000 0002 0000 0000 0000 0000 0000 0001 000a c080 c3a9 eda0 bded b880")
    assert decode_assignment_info(data).partitions_by_host.hosts == [HostInfo("\0é\U0001f600", 1)]


def test_a_dictionary_may_number_its_topics_as_it_likes():
    """As Java's does: its entries stand in the order of a hash map."""
    before = bytes.fromhex("00000005 00000005 00000000 00000000")
    dictionary = bytes.fromhex("00000002" + "00000007 0001 75" + "fffffffe 0001 74")
    host = bytes.fromhex("00000001" + "0001 68 00000001" + "00000002" + "fffffffe 00000004" + "00000007 00000005")
    read = decode_assignment_info(before + dictionary + host + bytes(4))
    assert read.partitions_by_host.as_dict() == {HostInfo("h", 1): [TopicPartition("t", 4), TopicPartition("u", 5)]}


# Versions that cannot say everything.


def test_a_subscription_from_the_future_says_its_versions_and_no_more():
    info = decode_subscription_info(bytes.fromhex("00000006 00000009") + b"whatever")
    assert (info.version, info.latest_supported, info.future) == (6, 9, True)
    assert (len(info.tasks), info.user_endpoint) == (0, None)
    with pytest.raises(WireError, match="SubscriptionInfo v6: latest_supported: needs 4 bytes, 3 are left"):
        decode_subscription_info(bytes.fromhex("00000006 000000"))
    assert not decode_subscription_info(bytes.fromhex(SUBSCRIPTION_BYTES[5])).future


@EACH_VERSION
def test_before_v5_a_stateless_task_is_one_that_runs(version):
    info = SubscriptionInfo(
        version=version,
        latest_supported=5,
        process_id=PROCESS,
        tasks=TaskLags.of({TaskId(0, 0): 3, TaskId(0, 1): STATELESS, TaskId(0, 2): RUNNING}),
        user_endpoint="h:1",
    )
    read = decode_subscription_info(encode_subscription_info(info))
    running = STATELESS if version == 5 else RUNNING
    assert read.tasks.as_dict() == {
        TaskId(0, 0): 3 if version == 5 else UNKNOWN,
        TaskId(0, 1): running,
        TaskId(0, 2): RUNNING,
    }
    assert read.user_endpoint == (None if version == 1 else "h:1")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 0}, "SubscriptionInfo: version: 0, there are 1 to 5"),
        ({"version": 6}, "SubscriptionInfo: version: 6"),
        ({"latest_supported": 4}, "SubscriptionInfo v5: latest_supported: 4 is below the version in use"),
        ({"latest_supported": 2**31}, "SubscriptionInfo v5: latest_supported: 2147483648 is no int32"),
        ({"process_id": b"short"}, "SubscriptionInfo v5: process_id: b'short' is not 16 bytes"),
        ({"user_endpoint": b"h:1"}, "user_endpoint: bytes instead of text"),
        ({"user_endpoint": "\ud800"}, "user_endpoint: .* no UTF-8 form"),
        ({"user_endpoint": "h\0:1"}, "user_endpoint: 4 bytes with NUL among them are no host:port"),
        ({"user_endpoint": "h" * (MOST_ENDPOINT + 1)}, "user_endpoint: 32768 bytes are no host:port"),
        (
            {"tasks": TaskLags.of({TaskId(0, 1): UNKNOWN})},
            "tasks: lag -3 of task 0_1 .* leave a task of unknown lag out",
        ),
    ],
)
def test_what_a_subscription_cannot_carry_is_named(change, message):
    sound = SubscriptionInfo(version=5, latest_supported=5, process_id=PROCESS, tasks=TaskLags.of({}))
    with pytest.raises(WireError, match=message):
        encode_subscription_info(replace(sound, **change))


def test_a_task_has_one_gap():
    number = np.array([3, 3], dtype=np.int32)
    twice = TaskLags(number, number, np.array([5, 6]))
    info = SubscriptionInfo(version=5, latest_supported=5, process_id=PROCESS, tasks=twice)
    with pytest.raises(WireError, match="SubscriptionInfo v5: tasks: 3_3 is listed twice"):
        encode_subscription_info(info)
    row = bytes.fromhex("00000003 00000003 0000000000000005")
    with pytest.raises(WireError, match="SubscriptionInfo v5: tasks: 3_3 is listed twice"):
        decode_subscription_info(bytes.fromhex("00000005 00000005") + PROCESS + b"\0\0\0\2" + row + row + bytes(4))


HOST = HostInfo("h", 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 0}, "AssignmentInfo: version: 0, there are 1 to 5"),
        ({"version": 6}, "AssignmentInfo: version: 6, there are 1 to 5"),
        ({"version": 3, "error": 3}, "AssignmentInfo v3: error: 3 cannot be told before v4"),
        ({"error": 2**31}, "AssignmentInfo v5: error: 2147483648 is no int32"),
        ({"commonly_supported": None}, "AssignmentInfo v5: commonly_supported: None is no int32"),
        ({"active": [TaskId(0, 2**31)]}, "AssignmentInfo v5: active: 2147483648 is no int32"),
        ({"standby": {TaskId(0, 0): [TopicPartition("t", -(2**31) - 1)]}}, "v5: standby: -2147483649 is no int32"),
        ({"standby": {TaskId(0, 0): [TopicPartition(b"t", 0)]}}, "v5: standby: bytes instead of text"),
        ({"partitions_by_host": HostPartitions.of({HostInfo("h", 2**31): []})}, r"v5: .*port of h: 2147483648 is no"),
        (
            {"partitions_by_host": HostPartitions.of({HOST: [TopicPartition("é" * 32768, 0)]}), "version": 4},
            r"AssignmentInfo v4: partitions_by_host\[\].topic: 65536 bytes of text, at most 65535 fit",
        ),
    ],
)
def test_what_an_assignment_cannot_carry_is_named(change, message):
    with pytest.raises(WireError, match=message):
        encode_assignment_info(replace(AssignmentInfo(version=5, commonly_supported=5), **change))


def test_a_partition_number_of_a_host_must_fit_its_column():
    with pytest.raises(ValueError, match="must be from -2"):
        HostPartitions.of({HOST: [TopicPartition("t", 2**31)]})


# Hostile bytes.

MESSAGES = [
    *((decode_subscription_info, version, bytes.fromhex(hexed)) for version, hexed in SUBSCRIPTION_BYTES.items()),
    *((decode_assignment_info, version, bytes.fromhex(hexed)) for version, hexed in ASSIGNMENT_BYTES.items()),
]
EACH_MESSAGE = pytest.mark.parametrize(("decode", "version", "data"), MESSAGES)


@EACH_MESSAGE
def test_bytes_cut_or_continued_anywhere_are_refused(decode, version, data):
    for size in range(len(data)):
        with pytest.raises(WireError, match=r"^(SubscriptionInfo|AssignmentInfo)( v\d)?: [a-z_\[\].]+: "):
            decode(data[:size])
    with pytest.raises(WireError, match=rf"Info v{version}: 1 bytes behind the end"):
        decode(data + b"\0")


@EACH_MESSAGE
def test_hostile_counts_and_lengths_allocate_nothing(decode, version, data):
    del version
    decode(data)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for hostile in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\x7f\xff", b"\xff\xff"):
            for at in range(4, len(data)):
                try:
                    decode(data[:at] + hostile + data[at + len(hostile) :])
                except WireError:
                    continue
        assert tracemalloc.get_traced_memory()[1] - before < 300_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("decode", [decode_subscription_info, decode_assignment_info])
@given(st.data())
def test_any_bytes_are_read_or_refused(decode, data):
    version = data.draw(st.integers(-1, 7)).to_bytes(4, "big", signed=True)
    small = st.integers(0, 3).map(lambda n: n.to_bytes(4, "big"))
    try:
        decode(version + b"".join(data.draw(st.lists(small | st.binary(max_size=9), max_size=12))))
    except WireError:
        return


@given(st.sampled_from(MESSAGES), st.data())
def test_damaged_bytes_are_read_or_refused(message, draws):
    decode, _, data = message
    damaged = bytearray(data)
    for _ in range(draws.draw(st.integers(1, 4))):
        at = draws.draw(st.integers(0, len(damaged) - 1))
        damaged[at : at + draws.draw(st.integers(0, 2))] = draws.draw(st.binary(max_size=3))
        damaged = damaged or bytearray(1)
    try:
        decode(bytes(damaged))
    except WireError:
        return


@pytest.mark.parametrize(
    ("decode", "data", "message"),
    [
        (decode_subscription_info, "00000000", "SubscriptionInfo: version: 0, the first is 1"),
        (decode_subscription_info, "ffffffff", "SubscriptionInfo: version: -1"),
        (decode_subscription_info, "0000", "SubscriptionInfo: version: needs 4 bytes, 2 are left"),
        (decode_subscription_info, "00000003 00000002", "SubscriptionInfo v3: latest_supported: 2 is below"),
        (decode_subscription_info, "00000001" + UUID + "ffffffff", "prev_tasks: -1 elements of at least 8 bytes"),
        (decode_subscription_info, "00000005 00000005" + UUID + "00000001", "tasks: 1 elements of at least 16 bytes"),
        (decode_subscription_info, "00000002" + UUID + "00" * 8 + "ffffffff", "user_endpoint: length -1 with 0"),
        (decode_subscription_info, "00000002" + UUID + "00" * 8 + "00000001 ff", "v2: user_endpoint: not UTF-8"),
        (
            decode_subscription_info,
            "00000005 00000005" + UUID + "00000001 00000000 00000001 fffffffffffffffd 00000000",
            "SubscriptionInfo v5: tasks: lag -3 of task 0_1 is neither",
        ),
        (decode_assignment_info, "00000000", "AssignmentInfo: version: 0, there are 1 to 5"),
        (decode_assignment_info, "00000006 00000006", "AssignmentInfo: version: 6, there are 1 to 5"),
        (decode_assignment_info, "00000001 80000000", "AssignmentInfo v1: active: -2147483648 elements"),
        (
            decode_assignment_info,
            "00000001 00000000 00000002 00",
            "AssignmentInfo v1: standby: 2 elements of at least 12",
        ),
        (
            decode_assignment_info,
            "00000002" + "00" * 8 + "00000001 0001 ff 00000001 00000000",
            r"AssignmentInfo v2: partitions_by_host\[\].host: not UTF-8",
        ),
        (
            decode_assignment_info,
            "00000002" + "00" * 8 + "00000001 0004 f09f9880 00000001 00000000",
            r"partitions_by_host\[\].host: not UTF-8 \(a form of four bytes",
        ),
        (
            decode_assignment_info,
            "00000005 00000005" + "00" * 8 + "00000002" + "00000001 0001 74" * 2 + "00" * 8,
            "AssignmentInfo v5: topics: index 1 is there twice",
        ),
        (
            decode_assignment_info,
            "00000005 00000005" + "00" * 8 + "00000001 00000001 0001 74"
            "00000001 0001 68 00000001 00000001 00000002 00000000 00000000",
            r"AssignmentInfo v5: partitions_by_host\[\].*topic: index 2 is not in the dictionary",
        ),
        (
            decode_assignment_info,
            "00000005 00000005" + "00" * 12 + "00000001 0001 68 00000001 00000001 00000000 00000000 00000000",
            "index 0 is not in the dictionary",
        ),
    ],
)
def test_what_is_wrong_with_bytes_is_said_by_field(decode, data, message):
    with pytest.raises(WireError, match=message):
        decode(bytes.fromhex(data))


# Kafka's own v5.


@given(
    st.lists(st.tuples(int32s | st.integers(0, 60), int32s | st.integers(0, 60)), max_size=4),
    st.lists(st.tuples(int32s | st.integers(0, 60), int32s | st.integers(0, 60)), max_size=6),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=60).map(str.encode),
)
def test_the_v5_of_kafka_streams_is_never_taken_for_ours(running, stores, endpoint):
    sets = [np.array(task_set, dtype=">i4").tobytes() for task_set in (running, stores)]
    body = b"".join(
        (
            len(running).to_bytes(4, "big"),
            sets[0],
            len(stores).to_bytes(4, "big"),
            sets[1],
            len(endpoint).to_bytes(4, "big"),
            endpoint,
        )
    )
    assert decode_subscription_info(b"\0\0\0\4\0\0\0\4" + PROCESS + body).version == 4
    with pytest.raises(WireError, match=r"^SubscriptionInfo v5: "):
        decode_subscription_info(b"\0\0\0\5\0\0\0\5" + PROCESS + body)


def test_the_v5_of_kafka_streams_whose_lengths_add_up_is_told_by_the_nul_in_its_endpoint():
    """One running task and one standby task 0_4: read as ours, the partition 4 is an endpoint's length."""
    body = bytes.fromhex("00000001 00000000 00000000" + "00000001 00000000 00000004" + "00000000")
    with pytest.raises(WireError, match=r"v5: user_endpoint: 4 bytes with NUL .* Kafka Streams 2\.4"):
        decode_subscription_info(b"\0\0\0\5\0\0\0\5" + PROCESS + body)
