"""SubscriptionInfo and AssignmentInfo v1-v5: worked bytes, round trips, hostile bytes, and what cannot be encoded."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roster.member.task_versions import error_answers
from roster.model import TopicPartition
from roster.model.tasks import RUNNING, STATELESS, TaskId, TaskLags
from roster.wire import WireError
from roster.wire.streams.assignment_info import (
    AssignmentInfo,
    HostPartitions,
    HostTasks,
    decode_assignment_info,
    encode_assignment_info,
)
from roster.wire.streams.layout import HostInfo, Layout
from roster.wire.streams.subscription_info import (
    LATEST_VERSION,
    UNKNOWN,
    UNKNOWN_VERSION,
    AssignorErrorCode,
    SubscriptionInfo,
    decode_subscription_info,
    encode_subscription_info,
)
from tests.wire.task_infos import assignments, subscriptions, values

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
    + "00000003"  # PrevTasks: three tasks with their gaps
    + "00000001 00000002 00000000"  # active
    + "00000000 00000003 00002710"
    + "00000004 00000005 ffffffff"  # stateless
    + "0001 68 000003e7",  # EndPoint: HostInfo h, 999
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
    + "00000001"  # StandbyTasks: 0_3
    + "00000000 00000003"
    + "00000001"  # PartitionsByHost: one host, h:999, with two tasks
    + "0001 68 000003e7"
    + "00000002"
    + "00000001 00000002"
    + "00000004 00000005"
    + "00000001",
}
KAFKAS_V5 = (
    "00000005 00000005"
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
    + "00000001"
)


@EACH_VERSION
def test_the_bytes_of_an_assignment(version):
    host = HostInfo("h", 999)
    info = AssignmentInfo(
        version=version,
        commonly_supported=5 if version >= 3 else UNKNOWN_VERSION,
        active=[TaskId(1, 2), TaskId(1, 2)],
        standby={TaskId(0, 3): [TopicPartition("t", 3)] if version < 5 else []},
        partitions_by_host=HostPartitions.of(
            {host: [TopicPartition("t", 3), TopicPartition("u", 0)]} if 2 <= version < 5 else {}
        ),
        tasks_by_host=HostTasks.of({host: [TaskId(1, 2), TaskId(4, 5)]} if version == 5 else {}),
        error=AssignorErrorCode.INCOMPLETE_SOURCE_TOPIC_METADATA if version >= 4 else AssignorErrorCode.NONE,
    )
    expected = bytes.fromhex(ASSIGNMENT_BYTES[version])
    assert encode_assignment_info(info) == expected
    assert values(decode_assignment_info(expected)) == values(info)


def test_a_member_without_an_endpoint_has_an_empty_host():
    info = SubscriptionInfo(version=5, latest_supported=5, process_id=PROCESS, tasks=TaskLags.of({}))
    expected = bytes.fromhex("00000005 00000005" + UUID + "00000000" + "0000 ffffffff")
    assert encode_subscription_info(info) == expected
    assert decode_subscription_info(expected).user_endpoint is None


def test_larger_gaps_are_written_as_the_largest_int32():
    tasks = TaskLags.of({TaskId(0, 0): 2**31 - 1, TaskId(0, 1): 2**31, TaskId(0, 2): 2**63 - 1})
    info = SubscriptionInfo(version=5, latest_supported=5, process_id=PROCESS, tasks=tasks)
    assert set(decode_subscription_info(encode_subscription_info(info)).tasks.lag.tolist()) == {2**31 - 1}


def test_an_ipv6_endpoint_loses_its_brackets_on_the_wire_and_has_them_as_text():
    info = SubscriptionInfo(
        version=5, latest_supported=5, process_id=PROCESS, tasks=TaskLags.of({}), user_endpoint="[::1]:80"
    )
    data = encode_subscription_info(info)
    assert data.endswith(bytes.fromhex("0003") + b"::1" + bytes.fromhex("00000050"))
    assert decode_subscription_info(data).user_endpoint == "[::1]:80"


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
    assert read.layout is Layout.KAFKA_STREAMS
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
        TaskId(0, 2): 0 if version == 5 else RUNNING,
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
        ({"user_endpoint": "\ud800", "version": 4}, "user_endpoint: .* no UTF-8 form"),
        ({"user_endpoint": b"h:1", "version": 4}, "user_endpoint: bytes instead of text"),
        ({"user_endpoint": "h\0:1"}, r"user_endpoint: 'h\\x00:1' is not host:port"),
        ({"user_endpoint": "h:65536"}, "user_endpoint: 'h:65536' is not host:port"),
        ({"user_endpoint": "h"}, "user_endpoint: 'h' is not host:port"),
        ({"user_endpoint": "h" * 65536 + ":1"}, "end_point.host: 65536 bytes of text, at most 65535 fit"),
        (
            {"tasks": TaskLags.of({TaskId(0, 1): UNKNOWN})},
            "prev_tasks: gap -3 of task 0_1 .* leave a task of unknown gap out",
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
    with pytest.raises(WireError, match="SubscriptionInfo v5: prev_tasks: 3_3 is listed twice"):
        encode_subscription_info(info)
    row = bytes.fromhex("00000003 00000003 00000005")
    with pytest.raises(WireError, match="SubscriptionInfo v5: prev_tasks: 3_3 is listed twice"):
        decode_subscription_info(bytes.fromhex("00000005 00000005") + PROCESS + b"\0\0\0\2" + row + row + bytes(6))


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
        ({"version": 4, "standby": {TaskId(0, 0): [TopicPartition("t", -(2**31) - 1)]}}, "v4: standby: -2147483649 is"),
        ({"version": 4, "standby": {TaskId(0, 0): [TopicPartition(b"t", 0)]}}, "v4: standby: bytes instead of text"),
        ({"standby": {TaskId(0, 0): [TopicPartition("t", 0)]}}, "v5: standby: task 0_0 has partitions"),
        ({"tasks_by_host": HostTasks.of({HostInfo("h", 2**31): []})}, r"v5: .*port of h: 2147483648 is no"),
        ({"tasks_by_host": HostTasks.of({HostInfo("", 1): []})}, r"v5: partitions_by_host\[\].host: is empty"),
        ({"partitions_by_host": HostPartitions.of({HOST: []})}, "v5: partitions_by_host: .* give tasks_by_host"),
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
    with pytest.raises(ValueError, match="tasks_by_host: a number beyond int32"):
        HostTasks.of({HOST: [TaskId(0, 2**31)]})
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


@given(st.sampled_from([*MESSAGES, (decode_assignment_info, 5, bytes.fromhex(KAFKAS_V5))]), st.data())
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
        (decode_subscription_info, "00000005 00000005" + UUID + "00000001", "tasks: 1 elements of at least 12 bytes"),
        (decode_subscription_info, "00000002" + UUID + "00" * 8 + "ffffffff", "user_endpoint: length -1 with 0"),
        (decode_subscription_info, "00000002" + UUID + "00" * 8 + "00000001 ff", "v2: user_endpoint: not UTF-8"),
        (
            decode_subscription_info,
            "00000005 00000005" + UUID + "00000001 00000000 00000001 fffffffd 0000 ffffffff",
            "SubscriptionInfo v5: prev_tasks: gap -3 of task 0_1 is neither",
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
            decode_subscription_info,
            "00000005 00000005" + UUID + "00000000" + "0000 00010000",
            "SubscriptionInfo v5: end_point.port: 65536 is no port",
        ),
        (
            decode_subscription_info,
            "00000005 00000005" + UUID + "00000000" + "0001 68 ffffffff",
            "SubscriptionInfo v5: end_point: 'h:-1' is not host:port",
        ),
        (
            decode_assignment_info,
            "00000005 00000005" + "00" * 4 + "00000002" + "00000001 00000002" * 2 + "00" * 8,
            "AssignmentInfo v5: standby: a task is listed twice",
        ),
        (
            decode_assignment_info,
            "00000005 00000005" + "00" * 8 + "00000001 0000 00000001 00000000 00000000",
            r"AssignmentInfo v5: partitions_by_host\[\].host: is empty",
        ),
    ],
)
def test_what_is_wrong_with_bytes_is_said_by_field(decode, data, message):
    with pytest.raises(WireError, match=message):
        decode(bytes.fromhex(data))


# Kafka's own v5.


def test_the_bytes_of_kafkas_v5_of_an_assignment():
    by_host = {HostInfo("h", 999): [TopicPartition("t", 3), TopicPartition("u", 0)]}
    info = AssignmentInfo(
        version=5,
        commonly_supported=5,
        active=[TaskId(1, 2), TaskId(1, 2)],
        standby={TaskId(0, 3): [TopicPartition("t", 3)]},
        partitions_by_host=HostPartitions.of(by_host),
        error=AssignorErrorCode.INCOMPLETE_SOURCE_TOPIC_METADATA,
        layout=Layout.KAFKA_STREAMS,
    )
    assert encode_assignment_info(info) == bytes.fromhex(KAFKAS_V5)
    read = decode_assignment_info(bytes.fromhex(KAFKAS_V5))
    assert (values(read), read.layout) == (values(info), Layout.KAFKA_STREAMS)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("00000002" + "00000001 0001 74" * 2, "topics: index 1 is there twice"),
        ("00000001" + "00000001 0001 74", r"partitions_by_host\[\].*topic: index 2 is not in the dictionary"),
        ("00000000", r"partitions_by_host\[\].*topic: index 2 is not in the dictionary"),
    ],
)
def test_a_damaged_dictionary_of_kafkas_v5_is_refused(entry, message):
    del message  # what is wrong is said of the document's layout, which such bytes fit as little
    host = "00000001 0001 68 00000001 00000001 00000002 00000000"
    with pytest.raises(WireError, match=r"^AssignmentInfo v5: "):
        decode_assignment_info(bytes.fromhex("00000005 00000005" + "00" * 8 + entry + host + "00000000"))


@given(subscriptions(5, Layout.KAFKA_STREAMS))
def test_a_subscription_of_kafka_streams_2_4_is_read_as_such(info):
    """Its bytes are those of v4 behind the number 5."""
    encoded = encode_subscription_info(info)
    assert encode_subscription_info(replace(info, version=4))[4:] == encoded[4:]
    read = decode_subscription_info(encoded)
    assert (values(read), read.layout) == (values(info), Layout.KAFKA_STREAMS)


@given(
    assignments(5, Layout.KAFKA_STREAMS).filter(lambda info: all(host.host for host in info.partitions_by_host.hosts))
)
def test_an_assignment_of_kafka_streams_2_4_is_read_as_such(info):
    read = decode_assignment_info(encode_assignment_info(info))
    assert (values(read), read.layout) == (values(info), Layout.KAFKA_STREAMS)


def test_what_kafka_streams_2_4_joined_with_is_answered_in_its_layout():
    info = SubscriptionInfo(
        version=5, latest_supported=5, process_id=PROCESS, tasks=TaskLags.of({}), layout=Layout.KAFKA_STREAMS
    )
    (told,) = error_answers({"m": info}, AssignorErrorCode.ASSIGNMENT_ERROR).values()
    assert encode_assignment_info(told) == bytes.fromhex("00000005 00000005" + "00" * 16 + "00000003")
