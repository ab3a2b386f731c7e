"""SubscriptionInfo and AssignmentInfo: worked bytes, round trips, hostile bytes, and what cannot be encoded."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roster.model.address import Address
from roster.model.tasks import RUNNING, STATELESS, TaskId, TaskLags
from roster.wire import WireError
from roster.wire.streams.assignment_info import (
    AssignmentInfo,
    HostTasks,
    decode_assignment_info,
    encode_assignment_info,
)
from roster.wire.streams.subscription_info import (
    AssignorErrorCode,
    SubscriptionInfo,
    decode_subscription_info,
    encode_subscription_info,
)
from tests.wire.task_infos import assignments, subscriptions, values

PROCESS = bytes(range(16))


@given(subscriptions())
def test_a_subscription_comes_back(info):
    encoded = encode_subscription_info(info)
    read = decode_subscription_info(encoded)
    assert values(read) == values(info)
    assert encode_subscription_info(read) == encoded
    assert values(decode_subscription_info(memoryview(encoded))) == values(info)


@given(assignments())
def test_an_assignment_comes_back(info):
    encoded = encode_assignment_info(info)
    read = decode_assignment_info(encoded)
    assert values(read) == values(info)
    assert encode_assignment_info(read) == encoded
    assert values(decode_assignment_info(bytearray(encoded))) == values(info)


# Worked bytes.

UUID = PROCESS.hex()
SUBSCRIPTION_BYTES = bytes.fromhex(
    "00000005 00000005"
    + UUID
    + "00000003"  # PrevTasks: three tasks with their gaps
    + "00000001 00000002 00000000"  # active
    + "00000000 00000003 00002710"
    + "00000004 00000005 ffffffff"  # stateless
    + "0001 68 000003e7"  # EndPoint: HostInfo h, 999
)


def test_the_bytes_of_a_subscription():
    running, stored, third = TaskId(1, 2), TaskId(0, 3), TaskId(4, 5)
    info = SubscriptionInfo(
        version=5,
        latest_supported=5,
        process_id=PROCESS,
        tasks=TaskLags.of({running: RUNNING, stored: 10_000, third: STATELESS}),
        user_endpoint="h:999",
    )
    assert encode_subscription_info(info) == SUBSCRIPTION_BYTES
    assert values(decode_subscription_info(SUBSCRIPTION_BYTES)) == values(info)


ASSIGNMENT_BYTES = bytes.fromhex(
    "00000005 00000005"
    "00000002"  # ActiveTasks: 1_2, 1_3
    "00000001 00000002"
    "00000001 00000003"
    "00000001"  # StandbyTasks: 0_3
    "00000000 00000003"
    "00000001"  # PartitionsByHost: one host, h:999, with two tasks
    "0001 68 000003e7"
    "00000002"
    "00000001 00000002"
    "00000004 00000005"
    "00000001"
)


def test_the_bytes_of_an_assignment():
    info = AssignmentInfo(
        version=5,
        commonly_supported=5,
        active=[TaskId(1, 2), TaskId(1, 3)],
        standby=[TaskId(0, 3)],
        tasks_by_host=HostTasks.of({Address("h", 999): [TaskId(1, 2), TaskId(4, 5)]}),
        error=AssignorErrorCode.INCOMPLETE_SOURCE_TOPIC_METADATA,
    )
    assert encode_assignment_info(info) == ASSIGNMENT_BYTES
    assert values(decode_assignment_info(ASSIGNMENT_BYTES)) == values(info)


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
    host = Address("\0é\U0001f600", 1)
    info = AssignmentInfo(version=5, commonly_supported=5, tasks_by_host=HostTasks.of({host: []}))
    data = encode_assignment_info(info)
    assert data[20:32].hex(" ", 2) == "000a c080 c3a9 eda0 bded b880"
    assert decode_assignment_info(data).tasks_by_host.hosts == [host]


def test_a_subscription_from_the_future_says_its_versions_and_no_more():
    info = decode_subscription_info(bytes.fromhex("00000006 00000009") + b"whatever")
    assert (info.version, info.latest_supported, info.future) == (6, 9, True)
    assert (len(info.tasks), info.user_endpoint) == (0, None)
    with pytest.raises(WireError, match="SubscriptionInfo v6: latest_supported: needs 4 bytes, 3 are left"):
        decode_subscription_info(bytes.fromhex("00000006 000000"))
    assert not decode_subscription_info(SUBSCRIPTION_BYTES).future


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 0}, "SubscriptionInfo: version: 0, there is 5"),
        ({"version": 6}, "SubscriptionInfo: version: 6, there is 5"),
        ({"latest_supported": 4}, "SubscriptionInfo v5: latest_supported: 4 is below the version in use"),
        ({"latest_supported": 2**31}, "SubscriptionInfo v5: latest_supported: 2147483648 is not an int32"),
        ({"process_id": b"short"}, "SubscriptionInfo v5: process_id: b'short' is not 16 bytes"),
        ({"user_endpoint": b"h:1"}, "user_endpoint: bytes instead of text"),
        ({"user_endpoint": "h\0:1"}, r"user_endpoint: 'h\\x00:1' is not host:port"),
        ({"user_endpoint": "h:65536"}, "user_endpoint: 'h:65536' is not host:port"),
        ({"user_endpoint": "h"}, "user_endpoint: 'h' is not host:port"),
        ({"user_endpoint": "h" * 65536 + ":1"}, "end_point.host: 65536 bytes of text, at most 65535 fit"),
        (
            {"tasks": TaskLags.of({TaskId(0, 1): -3})},
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 4}, "AssignmentInfo: version: 4, there is 5"),
        ({"version": 6}, "AssignmentInfo: version: 6, there is 5"),
        ({"error": 2**31}, "AssignmentInfo v5: error: 2147483648 is not an int32"),
        ({"commonly_supported": None}, "AssignmentInfo v5: commonly_supported: None is not an int32"),
        ({"active": [TaskId(0, 2**31)]}, "AssignmentInfo v5: active: 2147483648 is not an int32"),
        ({"standby": [TaskId(2**31, 0)]}, "AssignmentInfo v5: standby: 2147483648 is not an int32"),
        ({"tasks_by_host": HostTasks.of({Address(b"h", 1): []})}, r"v5: .*host: bytes instead of text"),
        (
            {"tasks_by_host": HostTasks.of({Address("é" * 32768, 1): []})},
            r"AssignmentInfo v5: partitions_by_host\[\].host: 65536 bytes of text, at most 65535 fit",
        ),
        ({"tasks_by_host": HostTasks.of({Address("h", 2**31): []})}, r"v5: .*port of h: 2147483648 is no"),
        ({"tasks_by_host": HostTasks.of({Address("", 1): []})}, r"v5: partitions_by_host\[\].host: is empty"),
    ],
)
def test_what_an_assignment_cannot_carry_is_named(change, message):
    with pytest.raises(WireError, match=message):
        encode_assignment_info(replace(AssignmentInfo(version=5, commonly_supported=5), **change))


def test_a_task_of_a_host_must_fit_its_column():
    with pytest.raises(ValueError, match="tasks_by_host: a number beyond int32"):
        HostTasks.of({Address("h", 1): [TaskId(0, 2**31)]})


# Hostile bytes.

MESSAGES = [(decode_subscription_info, SUBSCRIPTION_BYTES), (decode_assignment_info, ASSIGNMENT_BYTES)]
EACH_MESSAGE = pytest.mark.parametrize(("decode", "data"), MESSAGES)


@EACH_MESSAGE
def test_bytes_cut_or_continued_anywhere_are_refused(decode, data):
    for size in range(len(data)):
        with pytest.raises(WireError, match=r"^(SubscriptionInfo|AssignmentInfo)( v\d)?: [a-z_\[\].]+: "):
            decode(data[:size])
    with pytest.raises(WireError, match="Info v5: 1 bytes behind the end"):
        decode(data + b"\0")


@EACH_MESSAGE
def test_hostile_counts_and_lengths_allocate_nothing(decode, data):
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
    decode, data = message
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
        (decode_subscription_info, "00000004", "SubscriptionInfo: version: 4, the first is 5"),
        (decode_subscription_info, "ffffffff", "SubscriptionInfo: version: -1"),
        (decode_subscription_info, "0000", "SubscriptionInfo: version: needs 4 bytes, 2 are left"),
        (decode_subscription_info, "00000006 00000005", "SubscriptionInfo v6: latest_supported: 5 is below"),
        (decode_subscription_info, "00000005 00000005" + UUID + "ffffffff", "tasks: -1 elements of at least 12 bytes"),
        (decode_subscription_info, "00000005 00000005" + UUID + "00000001", "tasks: 1 elements of at least 12 bytes"),
        (
            decode_subscription_info,
            "00000005 00000005" + UUID + "00000001 00000000 00000001 fffffffd 0000 ffffffff",
            "SubscriptionInfo v5: prev_tasks: gap -3 of task 0_1 is neither",
        ),
        (decode_assignment_info, "00000004", "AssignmentInfo: version: 4, there is 5"),
        (decode_assignment_info, "00000006 00000006", "AssignmentInfo: version: 6, there is 5"),
        (decode_assignment_info, "00000005 00000005 80000000", "AssignmentInfo v5: active: -2147483648 elements"),
        (
            decode_assignment_info,
            "00000005 00000005 00000000 00000002 00",
            "AssignmentInfo v5: standby: 2 elements of at least 8",
        ),
        (
            decode_assignment_info,
            "00000005 00000005" + "00" * 8 + "00000001 0001 ff 00000001 00000000",
            r"AssignmentInfo v5: partitions_by_host\[\].host: not UTF-8",
        ),
        (
            decode_assignment_info,
            "00000005 00000005" + "00" * 8 + "00000001 0004 f09f9880 00000001 00000000",
            r"partitions_by_host\[\].host: not UTF-8 \(a form of four bytes",
        ),
        (
            decode_subscription_info,
            "00000005 00000005" + UUID + "00000000" + "0000 00010000",
            "SubscriptionInfo v5: end_point.port: 65536 is not a port",
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
