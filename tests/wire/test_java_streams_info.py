"""SubscriptionInfo and AssignmentInfo against Kafka Streams' own classes, from its published jar."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.model import TopicPartition
from roster.model.tasks import RUNNING, TaskId, TaskLags
from roster.wire.streams.assignment_info import decode_assignment_info, encode_assignment_info
from roster.wire.streams.layout import HostInfo, Layout
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


@pytest.mark.parametrize("version", range(1, 6))
@settings(max_examples=examples(50))
@given(st.data())
def test_java_reads_our_subscriptions_and_we_read_javas(java, version, data):
    info = data.draw(subscriptions(version, Layout.KAFKA_STREAMS))
    written, told = java("subscription", version, encode_subscription_info(info))
    assert subscription_as_java_tells(told) == values(info)
    assert values(decode_subscription_info(written)) == values(info)
    if len(info.tasks) < 2:  # Java writes sets in the order of their hashes
        assert written == encode_subscription_info(info)


@pytest.mark.parametrize("version", range(1, 6))
@settings(max_examples=examples(50))
@given(st.data())
def test_java_reads_our_assignments_and_we_read_javas(java, version, data):
    info = data.draw(assignments(version, Layout.KAFKA_STREAMS))
    written, told = java("assignment", version, encode_assignment_info(info))
    assert assignment_as_java_tells(told) == values(info)
    assert values(decode_assignment_info(written)) == values(info)
    assert len(written) == len(encode_assignment_info(info))


def test_java_does_not_read_the_documents_v5_so_the_two_are_not_mixed(java):
    info = SubscriptionInfo(
        version=5, latest_supported=5, process_id=bytes(16), tasks=TaskLags.of({TaskId(1, 2): 0}), user_endpoint="h:1"
    )
    with pytest.raises(AssertionError, match="Error reading byte array of 92160 byte"):
        java("subscription", 5, encode_subscription_info(info))
