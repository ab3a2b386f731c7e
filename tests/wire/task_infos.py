"""Hypothesis strategies of SubscriptionInfo and AssignmentInfo, and what of them can be compared."""

from __future__ import annotations

from hypothesis import strategies as st

from roster.model import TopicPartition
from roster.model.tasks import RUNNING, STATELESS, TaskId, TaskLags
from roster.wire.streams.assignment_info import AssignmentInfo, HostPartitions, HostTasks
from roster.wire.streams.layout import HostInfo, Layout
from roster.wire.streams.subscription_info import UNKNOWN, UNKNOWN_VERSION, AssignorErrorCode, SubscriptionInfo

int32s = st.integers(-(2**31), 2**31 - 1)
tasks = st.builds(TaskId, int32s, int32s)
small_tasks = st.builds(TaskId, st.integers(0, 60), st.integers(0, 65_535))
lags = st.sampled_from([RUNNING, STATELESS, 0]) | st.integers(0, 2**63 - 1)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0[]"), min_size=1, max_size=6)
endpoints = st.builds(HostInfo, names, st.integers(0, 65_535)).map(str)
java_text = st.text(max_size=6) | st.sampled_from(["\0", "é", "\U0001f600", "\ud83d", "a" * 300])
partitions = st.sets(st.builds(TopicPartition, java_text, int32s), max_size=3).map(sorted)


@st.composite
def subscriptions(draw, version, layout=Layout.KIP_429):
    """Gaps and endpoints that Kafka Streams too would write where the layout is its own."""
    return SubscriptionInfo(
        version=version,
        latest_supported=draw(st.integers(version, 2**31 - 1)) if version >= 3 else UNKNOWN_VERSION,
        process_id=draw(st.binary(min_size=16, max_size=16)),
        tasks=TaskLags.of(draw(st.dictionaries(tasks if layout is Layout.KIP_429 else small_tasks, lags, max_size=4))),
        user_endpoint=draw(st.none() | endpoints) if version >= 2 else None,
        layout=layout,
    )


@st.composite
def assignments(draw, version, layout=Layout.KIP_429):
    kafka = version < 5 or layout is Layout.KAFKA_STREAMS
    of_host = partitions if kafka else st.sets(tasks, max_size=3).map(sorted)
    hosts = st.builds(HostInfo, java_text if kafka else java_text.filter(bool), int32s)
    by_host = draw(st.dictionaries(hosts, of_host, max_size=3)) if version >= 2 else {}
    standby = draw(st.dictionaries(tasks, partitions if kafka else st.just(()), max_size=3))
    return AssignmentInfo(
        version=version,
        commonly_supported=draw(int32s) if version >= 3 else UNKNOWN_VERSION,
        active=draw(st.lists(tasks, max_size=4)),
        standby=standby,
        partitions_by_host=HostPartitions.of(by_host if kafka else {}),
        tasks_by_host=HostTasks.of({} if kafka else by_host),
        error=draw(int32s) if version >= 4 else AssignorErrorCode.NONE,
        layout=layout,
    )


def values(info):
    """What can be told of it: before v5 running tasks and stores, in v5 gaps of int32; sets have no order."""
    if isinstance(info, SubscriptionInfo):
        told = info.tasks.as_dict()
        if info.version < 5 or info.layout is Layout.KAFKA_STREAMS:
            told = {task: RUNNING if lag in (RUNNING, STATELESS) else UNKNOWN for task, lag in told.items()}
        else:
            told = {task: 0 if lag == RUNNING else min(lag, 2**31 - 1) for task, lag in told.items()}
        return info.version, info.latest_supported, info.process_id, told, info.user_endpoint
    standby = {task: sorted(given) for task, given in info.standby.items()}
    table = info.tasks_by_host if len(info.tasks_by_host) else info.partitions_by_host
    hosts = {host: sorted(given) for host, given in table.as_dict().items()}
    return info.version, info.commonly_supported, list(info.active), standby, hosts, info.error
