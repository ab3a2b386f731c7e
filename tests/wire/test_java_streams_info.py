"""SubscriptionInfo and AssignmentInfo against Kafka Streams' own classes, from its published jar."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.model import TopicPartition
from roster.model.tasks import RUNNING, TaskId, TaskLags
from roster.wire import WireError
from roster.wire.streams.assignment_info import HostInfo, decode_assignment_info, encode_assignment_info
from roster.wire.streams.subscription_info import (
    UNKNOWN,
    SubscriptionInfo,
    decode_subscription_info,
    encode_subscription_info,
)
from tests.examples_tried import examples
from tests.real.realparts import jvm
from tests.wire.task_infos import assignments, subscriptions, values

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def java(tmp_path_factory):
    """Ask for (the bytes Kafka writes of what it reads there, in that version; the values it reads)."""
    program = Path(__file__).parent / "java" / "TaskInfoOracle.java"
    with jvm.oracle(program, jvm.streams_jars(), tmp_path_factory.mktemp("java-task-info") / "stderr.log") as ask:
        yield ask


def subscription_as_java_tells(told):
    version, latest, process, running, stores, endpoint = told
    tasks = {TaskId(*task): RUNNING for task in running} | {TaskId(*task): UNKNOWN for task in stores}
    return version, latest, bytes.fromhex(process.replace("-", "")), tasks, endpoint


def assignment_as_java_tells(told):
    version, commonly, active, standby, hosts, error = told
    return (
        version,
        commonly,
        [TaskId(*task) for task in active],
        {TaskId(*task): sorted(TopicPartition(*each) for each in given) for task, given in standby},
        {HostInfo(*host): sorted(TopicPartition(*each) for each in given) for host, given in hosts},
        error,
    )


@pytest.mark.parametrize("version", range(1, 5))
@settings(max_examples=examples(50))
@given(st.data())
def test_java_reads_our_subscriptions_and_we_read_javas(java, version, data):
    info = data.draw(subscriptions(version))
    written, told = java("subscription", version, encode_subscription_info(info))
    assert subscription_as_java_tells(told) == values(info)
    assert values(decode_subscription_info(written)) == values(info)
    if len(info.tasks) < 2:  # Java writes sets in the order of their hashes
        assert written == encode_subscription_info(info)


@pytest.mark.parametrize("version", range(1, 6))
@settings(max_examples=examples(50))
@given(st.data())
def test_java_reads_our_assignments_and_we_read_javas(java, version, data):
    info = data.draw(assignments(version))
    written, told = java("assignment", version, encode_assignment_info(info))
    assert assignment_as_java_tells(told) == values(info)
    assert values(decode_assignment_info(written)) == values(info)
    assert len(written) == len(encode_assignment_info(info))


@settings(max_examples=examples(50))
@given(subscriptions(4))
def test_the_v5_that_java_writes_is_laid_out_as_its_v4_and_refused_here(java, info):
    old = encode_subscription_info(info)
    as_4, _ = java("subscription", 4, old)
    as_5, _ = java("subscription", 5, old[:4] + b"\x7f\xff\xff\xff" + old[8:])
    assert as_5 == b"\0\0\0\5\x7f\xff\xff\xff" + as_4[8:]
    with pytest.raises(WireError, match=r"^SubscriptionInfo v5: "):
        decode_subscription_info(as_5)


def test_java_may_take_our_v5_for_its_own_so_the_two_are_not_mixed(java):
    """A store with nothing left to restore becomes a task that runs."""
    info = SubscriptionInfo(
        version=5, latest_supported=5, process_id=bytes(16), tasks=TaskLags.of({TaskId(1, 2): 0}), user_endpoint=None
    )
    written, told = java("subscription", 5, encode_subscription_info(info))
    assert subscription_as_java_tells(told)[3] == {TaskId(1, 2): RUNNING}
    assert written != encode_subscription_info(info)
