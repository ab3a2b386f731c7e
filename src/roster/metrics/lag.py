"""Series of groups' offsets and lag, under the names that kafka-lag-exporter made common."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric

from roster.metrics.positions import GroupPositions, is_beyond_the_log, lost_records
from roster.model import GroupPosition, TopicPartition

MOST_PARTITIONS = 50_000
"""Above so many partitions of all groups there are sums only: each partition has five series."""
_BY_PARTITION = ("group", "topic", "partition")


@dataclass(frozen=True, slots=True)
class GroupState:
    """What a group is: its protocol as Kafka names it (classic, consumer, share, streams), its state, its members.

    members: None where they cannot be described.
    """

    kind: str
    state: str
    members: int | None


def partition_families(groups: Mapping[str, GroupPositions]) -> Iterator[Metric]:
    """Yield offsets and lag of each partition; nothing if there are too many."""
    if sum(len(each.positions) for each in groups.values()) > MOST_PARTITIONS:
        return
    at = {(group, tp): position for group, each in groups.items() for tp, position in each.positions.items()}
    yield _by_partition(
        "kafka_consumergroup_group_offset", "Committed offset of a group.", at, lambda each: each.committed
    )
    yield _by_partition("kafka_consumergroup_group_lag", "Offsets between commit and end of log.", at, lambda e: e.lag)
    seconds = GaugeMetricFamily(
        "kafka_consumergroup_group_lag_seconds", "Age of the record at the committed offset.", labels=_BY_PARTITION
    )
    for group, each in groups.items():
        for tp, age in each.seconds.items():
            seconds.add_metric([group, tp.topic, str(tp.partition)], age)
    yield seconds
    latest = GaugeMetricFamily(
        "kafka_partition_latest_offset", "Next offset of a partition's log.", labels=_BY_PARTITION[1:]
    )
    earliest = GaugeMetricFamily(
        "kafka_partition_earliest_offset", "First offset of a partition's log.", labels=_BY_PARTITION[1:]
    )
    for tp, position in {tp: position for (_, tp), position in at.items()}.items():
        latest.add_metric([tp.topic, str(tp.partition)], position.end or 0)
        earliest.add_metric([tp.topic, str(tp.partition)], position.begin or 0)
    yield from (latest, earliest)


def group_families(groups: Mapping[str, GroupPositions]) -> Iterator[Metric]:
    """Yield sums and maxima of each group. A group without any known lag has none."""
    totals: dict[str, tuple[str, Callable[[GroupPositions], Iterable[float]], Callable[[list[float]], float]]] = {
        "kafka_consumergroup_group_sum_lag": ("Lag of a group in all partitions.", _lags, sum),
        "kafka_consumergroup_group_max_lag": ("Largest lag of a group in a partition.", _lags, max),
        "kafka_consumergroup_group_max_lag_seconds": (
            "Age of the oldest record that a group has next.",
            lambda each: each.seconds.values(),
            max,
        ),
        "kafka_consumergroup_group_lost_records": (
            "Offsets deleted from logs before the group had read them.",
            lambda each: [lost_records(at) for at in each.positions.values()],
            sum,
        ),
        "kafka_consumergroup_group_clamped_partitions": (
            "Partitions whose committed offset is beyond the end of the log: their lag is shown as 0.",
            lambda each: [is_beyond_the_log(at) for at in each.positions.values()],
            sum,
        ),
    }
    for name, (text, values, total) in totals.items():
        family = GaugeMetricFamily(name, text, labels=["group"])
        for group, each in groups.items():
            if known := list(values(each)):
                family.add_metric([group], total(known))
        yield family
    yield _topic_sums(groups)


def state_families(states: Mapping[str, GroupState]) -> Iterator[Metric]:
    """Yield what each group is, and how many members it has."""
    state = GaugeMetricFamily(
        "kafka_consumergroup_group_state", "1 for the state that a group is in.", labels=["group", "type", "state"]
    )
    members = GaugeMetricFamily("kafka_consumergroup_group_members", "Members of a group.", labels=["group"])
    for group, each in states.items():
        state.add_metric([group, each.kind, each.state], 1)
        if each.members is not None:
            members.add_metric([group], each.members)
    yield from (state, members)


def _topic_sums(groups: Mapping[str, GroupPositions]) -> Metric:
    family = GaugeMetricFamily(
        "kafka_consumergroup_group_topic_sum_lag", "Lag of a group in a topic.", labels=["group", "topic"]
    )
    for group, each in groups.items():
        sums: dict[str, int] = defaultdict(int)
        for tp, at in each.positions.items():
            if at.lag is not None:
                sums[tp.topic] += at.lag
        for topic, lag in sums.items():
            family.add_metric([group, topic], lag)
    return family


def _lags(each: GroupPositions) -> list[int]:
    return [at.lag for at in each.positions.values() if at.lag is not None]


def _by_partition(
    name: str,
    text: str,
    at: Mapping[tuple[str, TopicPartition], GroupPosition],
    value: Callable[[GroupPosition], int | None],
) -> Metric:
    family = GaugeMetricFamily(name, text, labels=_BY_PARTITION)
    for (group, tp), position in at.items():
        if (number := value(position)) is not None:
            family.add_metric([group, tp.topic, str(tp.partition)], number)
    return family
