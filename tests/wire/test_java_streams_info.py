"""SubscriptionInfo and AssignmentInfo against Java's own DataInput and DataOutput, field by field."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings

from roster.model.address import Address
from roster.model.tasks import TaskId
from roster.wire.streams.assignment_info import encode_assignment_info
from roster.wire.streams.subscription_info import encode_subscription_info
from tests.examples_tried import examples
from tests.real.realparts import jvm
from tests.wire.task_infos import assignments, subscriptions, values

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def java(tmp_path_factory):
    """Ask for (the bytes Java writes of what it reads there; the values it reads)."""
    program = Path(__file__).parent / "java" / "TaskInfoOracle.java"
    with jvm.oracle(program, jvm.jars(), tmp_path_factory.mktemp("java-task-info") / "stderr.log") as ask:
        yield ask


@settings(max_examples=examples(50))
@given(subscriptions())
def test_java_reads_our_subscriptions(java, info):
    data = encode_subscription_info(info)
    written, (version, latest, process, gaps, host) = java("subscription", 5, data)
    assert written == data
    endpoint = str(Address(*host)) if host != ["", -1] else None
    told = {TaskId(*task): gap for task, gap in gaps}
    assert (version, latest, bytes.fromhex(process), told, endpoint) == values(info)


@settings(max_examples=examples(50))
@given(assignments())
def test_java_reads_our_assignments(java, info):
    data = encode_assignment_info(info)
    written, (version, commonly, active, standby, hosts, error) = java("assignment", 5, data)
    assert written == data
    by_host = {Address(*host): [TaskId(*task) for task in tasks] for host, tasks in hosts}
    tasks = ([TaskId(*task) for task in named] for named in (active, standby))
    assert (version, commonly, *tasks, by_host, error) == values(info)
