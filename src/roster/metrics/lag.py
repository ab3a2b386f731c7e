"""Series of groups' offsets and lag, under the names that kafka-lag-exporter made common."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import Metric

from roster.metrics.families import MOST_PARTITIONS, gauge
from roster.metrics.groups import GroupState
from roster.metrics.positions import GroupPositions, is_beyond_the_log
from roster.model.switch import results_of

_BY_PARTITION = ("group", "topic", "partition")


def partition_families(groups: Mapping[str, GroupPositions]) -> Iterator[Metric]:
    """Yield offsets and lag of each partition; nothing if there are too many."""
    if sum(len(of_group.positions) for of_group in groups.values()) > MOST_PARTITIONS:
        return
    positions = {
        (group, *tp): position for group, of_group in groups.items() for tp, position in of_group.positions.items()
    }
    logs = {tp: position for of_group in groups.values() for tp, position in of_group.positions.items()}
    ages = {(group, *tp): age for group, of_group in groups.items() for tp, age in of_group.seconds.items()}
    prefix = "kafka_consumergroup_group"
    committed = {labels: position.committed for labels, position in positions.items()}
    yield gauge(f"{prefix}_offset", "Committed offset of a group.", _BY_PARTITION, committed)
    lags = {labels: position.lag for labels, position in positions.items()}
    yield gauge(f"{prefix}_lag", "Offsets between commit and end of log.", _BY_PARTITION, lags)
    yield gauge(f"{prefix}_lag_seconds", "Age of the record at the committed offset.", _BY_PARTITION, ages)
    ends = {tp: position.end or 0 for tp, position in logs.items()}
    yield gauge("kafka_partition_latest_offset", "Next offset of a partition's log.", _BY_PARTITION[1:], ends)
    begins = {tp: position.begin or 0 for tp, position in logs.items()}
    yield gauge("kafka_partition_earliest_offset", "First offset of a partition's log.", _BY_PARTITION[1:], begins)


def group_families(groups: Mapping[str, GroupPositions]) -> Iterator[Metric]:
    """Yield sums and maxima of each group. A group without any known lag has none."""
    totals: dict[str, tuple[str, Callable[[GroupPositions], Iterable[float]], Callable[[list[float]], float]]] = {
        "kafka_consumergroup_group_sum_lag": ("Lag of a group in all partitions.", _lags, sum),
        "kafka_consumergroup_group_max_lag": ("Largest lag of a group in a partition.", _lags, max),
        "kafka_consumergroup_group_max_lag_seconds": (
            "Age of the oldest record that a group has next.",
            lambda of_group: of_group.seconds.values(),
            max,
        ),
        "kafka_consumergroup_group_lost_records": (
            "Offsets deleted from logs before the group had read them.",
            lambda of_group: [position.lost for position in of_group.positions.values()],
            sum,
        ),
        "kafka_consumergroup_group_clamped_partitions": (
            "Partitions whose committed offset is beyond the end of the log: their lag is shown as 0.",
            lambda of_group: [is_beyond_the_log(position) for position in of_group.positions.values()],
            sum,
        ),
    }
    for name, (text, values, total) in totals.items():
        known = {group: list(values(of_group)) for group, of_group in groups.items()}
        yield gauge(name, text, ["group"], {(group,): total(of_group) for group, of_group in known.items() if of_group})
    results = {
        group: results_of(
            position.metadata for position in of_group.positions.values() if position.committed is not None
        )
        for group, of_group in groups.items()
    }
    stands = {(group, text): 1 for group, text in results.items() if text}
    what = "1 for what becomes of the results of a group that is or was paused for another one."
    yield gauge("roster_group_results", what, ["group", "results"], stands)
    sums: dict[tuple[str, str], int] = defaultdict(int)
    for group, of_group in groups.items():
        for tp, position in of_group.positions.items():
            if position.lag is not None:
                sums[group, tp.topic] += position.lag
    yield gauge("kafka_consumergroup_group_topic_sum_lag", "Lag of a group in a topic.", ["group", "topic"], sums)


def state_families(states: Mapping[str, GroupState]) -> Iterator[Metric]:
    """Yield what each group is, and how many members it has."""
    prefix = "kafka_consumergroup_group"
    is_in = {(group, state.kind, state.state): 1 for group, state in states.items()}
    yield gauge(f"{prefix}_state", "1 for the state that a group is in.", ["group", "type", "state"], is_in)
    members = {(group,): state.members for group, state in states.items()}
    yield gauge(f"{prefix}_members", "Members of a group.", ["group"], members)


def _lags(of_group: GroupPositions) -> list[int]:
    return [position.lag for position in of_group.positions.values() if position.lag is not None]
