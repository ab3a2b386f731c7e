"""Hypothesis strategies of SubscriptionInfo and AssignmentInfo, and what of them can be compared."""

from __future__ import annotations

from hypothesis import strategies as st

from roster.model.address import Address
from roster.model.tasks import RUNNING, STATELESS, TaskId, TaskLags
from roster.wire.streams.assignment_info import AssignmentInfo, HostTasks
from roster.wire.streams.subscription_info import SubscriptionInfo

int32s = st.integers(-(2**31), 2**31 - 1)
tasks = st.builds(TaskId, int32s, int32s)
lags = st.sampled_from([RUNNING, STATELESS, 0]) | st.integers(0, 2**63 - 1)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0[]"), min_size=1, max_size=6)
endpoints = st.builds(Address, names, st.integers(0, 65_535)).map(str)
java_text = st.text(min_size=1, max_size=6) | st.sampled_from(["\0", "é", "\U0001f600", "\ud83d", "a" * 300])


@st.composite
def subscriptions(draw):
    return SubscriptionInfo(
        version=5,
        latest_supported=draw(st.integers(5, 2**31 - 1)),
        process_id=draw(st.binary(min_size=16, max_size=16)),
        tasks=TaskLags.of(draw(st.dictionaries(tasks, lags, max_size=4))),
        user_endpoint=draw(st.none() | endpoints),
    )


@st.composite
def assignments(draw):
    hosts = st.builds(Address, java_text, int32s)
    return AssignmentInfo(
        version=5,
        commonly_supported=draw(int32s),
        active=draw(st.lists(tasks, max_size=4)),
        standby=draw(st.lists(tasks, max_size=3, unique=True)),
        tasks_by_host=HostTasks.of(draw(st.dictionaries(hosts, st.lists(tasks, max_size=3), max_size=3))),
        error=draw(int32s),
    )


def values(info):
    """What can be told of it: running tasks as those without a gap, gaps up to the largest int32."""
    if isinstance(info, SubscriptionInfo):
        gaps = {task: 0 if lag == RUNNING else min(lag, 2**31 - 1) for task, lag in info.tasks.as_dict().items()}
        return info.version, info.latest_supported, info.process_id, gaps, info.user_endpoint
    return (
        info.version,
        info.commonly_supported,
        list(info.active),
        list(info.standby),
        info.tasks_by_host.as_dict(),
        info.error,
    )
