"""Hypothesis strategies of SubscriptionInfo and AssignmentInfo, and what of them can be compared."""

from __future__ import annotations

from hypothesis import strategies as st

from roster.model import TopicPartition
from roster.model.tasks import RUNNING, STATELESS, TaskId, TaskLags
from roster.wire.streams.assignment_info import AssignmentInfo, HostInfo, HostPartitions
from roster.wire.streams.subscription_info import UNKNOWN, UNKNOWN_VERSION, AssignorErrorCode, SubscriptionInfo

int32s = st.integers(-(2**31), 2**31 - 1)
tasks = st.builds(TaskId, int32s, int32s)
lags = st.sampled_from([RUNNING, STATELESS, 0]) | st.integers(0, 2**63 - 1)
endpoints = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=6)
java_text = st.text(max_size=6) | st.sampled_from(["\0", "é", "\U0001f600", "\ud83d", "a" * 300])
partitions = st.sets(st.builds(TopicPartition, java_text, int32s), max_size=3).map(sorted)


@st.composite
def subscriptions(draw, version):
    return SubscriptionInfo(
        version=version,
        latest_supported=draw(st.integers(version, 2**31 - 1)) if version >= 3 else UNKNOWN_VERSION,
        process_id=draw(st.binary(min_size=16, max_size=16)),
        tasks=TaskLags.of(draw(st.dictionaries(tasks, lags, max_size=4))),
        user_endpoint=draw(st.none() | endpoints) if version >= 2 else None,
    )


@st.composite
def assignments(draw, version):
    by_host = draw(st.dictionaries(st.builds(HostInfo, java_text, int32s), partitions, max_size=3))
    return AssignmentInfo(
        version=version,
        commonly_supported=draw(int32s) if version >= 3 else UNKNOWN_VERSION,
        active=draw(st.lists(tasks, max_size=4)),
        standby=draw(st.dictionaries(tasks, partitions, max_size=3)),
        partitions_by_host=HostPartitions.of(by_host if version >= 2 else {}),
        error=draw(int32s) if version >= 4 else AssignorErrorCode.NONE,
    )


def values(info):
    """A subscription before v5 has but running tasks and stores; sets of partitions have no order."""
    if isinstance(info, SubscriptionInfo):
        told = info.tasks.as_dict()
        if info.version < 5:
            told = {task: RUNNING if lag in (RUNNING, STATELESS) else UNKNOWN for task, lag in told.items()}
        return info.version, info.latest_supported, info.process_id, told, info.user_endpoint
    standby = {task: sorted(given) for task, given in info.standby.items()}
    hosts = {host: sorted(given) for host, given in info.partitions_by_host.as_dict().items()}
    return info.version, info.commonly_supported, list(info.active), standby, hosts, info.error
