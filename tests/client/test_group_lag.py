"""Positions and lag of a group, which `groups describe`, `groups list` and `groups watch` share."""

from __future__ import annotations

from dataclasses import astuple

from roster.client import Admin, OffsetAndMetadata, group_lag, total_lags
from roster.console.looking import take_snapshot
from roster.model import GroupPosition, TopicPartition
from tests.real.realparts.cluster import Cluster, unique


def test_all_that_show_a_lag_find_the_same_positions(cluster: Cluster):
    topic, empty, group = cluster.create_topic(partitions=2, records=5), cluster.create_topic(partitions=1), unique("g")
    gone = TopicPartition(topic, 7)
    also = [TopicPartition(topic, 1), TopicPartition(empty, 0), gone, TopicPartition(unique("nosuch"), 0)]
    with Admin(cluster.bootstrap) as admin:
        admin.commit_group_offsets(group, {TopicPartition(topic, 0): OffsetAndMetadata(3)})
        found = group_lag(admin, group, "Stable", also)
        seen = take_snapshot(admin, group, also).positions
        totals = total_lags(admin, [admin.describe_group(group)])
    assert seen == {
        TopicPartition(topic, 0): GroupPosition(3, 5, 0),
        TopicPartition(topic, 1): GroupPosition(None, 5, 0),
        TopicPartition(empty, 0): GroupPosition(None, 0, 0),
    }
    assert {tp: astuple(lag)[2:6] for tp, lag in found.partitions.items()} == {
        tp: (at.committed, at.begin, at.end, at.lag) for tp, at in seen.items()
    }
    assert (found.total.known, found.total.complete) == (2, False)
    assert (totals[group].known, totals[group].complete) == (2, False)
