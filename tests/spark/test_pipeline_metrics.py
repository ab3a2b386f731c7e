"""The metrics of a running pipeline beside what it read, and beside what another client says of the group."""

from __future__ import annotations

import socket
import urllib.request
from typing import TYPE_CHECKING, Any

from roster.client import Ownership
from roster.client.errors import UnreachableError
from roster.metrics.positions import GroupPositions
from roster.model import GroupPosition, TopicPartition
from roster.spark import Pipeline
from roster.spark.batch import Progress, Range
from roster.spark.metrics import PipelineMetrics
from roster.spark.options import Options
from tests.metrics.test_exporter import LAG, lag_by_librdkafka, series
from tests.real.realparts.cluster import Cluster, unique

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import SparkSession

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


def test_a_running_pipeline_shows_what_it_read_and_how_far_behind_it_is(
    spark: SparkSession, roster_broker: Cluster
) -> None:
    group, topic = unique("metered"), roster_broker.create_topic(partitions=2, records=30)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    texts, lags, ready = [], [], []

    def scrape(progress: Progress) -> None:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as response:
            texts.append(response.read().decode())
        with urllib.request.urlopen(f"http://{address}/ready", timeout=60) as response:
            ready.append(response.status)
        lags.append((lag_by_librdkafka(roster_broker, group), sum(progress.lag.values())))

    pipeline = Pipeline(
        spark, roster_broker.bootstrap, group, [topic], max_offsets_per_batch=20, http=address, on_progress=scrape
    )
    pipeline.foreach_batch(lambda df, batch: None).run(available_now=True)
    last = texts[-1]
    assert series(last, "roster_pipeline_records_total") == {(group,): 60}
    assert series(last, "roster_pipeline_batches_total") == {
        (group, "committed"): len(texts),
        (group, "abandoned"): 0,
    }
    assert series(last, "roster_pipeline_batch_seconds_count")[group, "total"] == len(texts)
    assert series(last, "roster_member_assigned_partitions") == {(group,): 2}
    assert series(last, "roster_pipeline_status") == {(group, "running"): 1}
    assert set(ready) == {200}
    for text, (found, left) in zip(texts[:1], lags[:1], strict=True):
        assert series(text, LAG) == found
        assert sum(found.values()) == left == 40


class Positions:
    """A reader of positions that can be told to fail."""

    def __init__(self) -> None:
        self.is_down, self.asked = False, 0

    def read(self, groups: list[str], only: Collection[TopicPartition]) -> dict[str, GroupPositions]:
        self.asked += 1
        if self.is_down:
            raise UnreachableError("no broker answered")
        return {"g": GroupPositions({tp: GroupPosition(1, 5, 0) for tp in only}, dict.fromkeys(only, 2.5))}


def metrics_of(reader: Any) -> PipelineMetrics:
    options = Options(None, "h:1", "g", ("t",))  # type: ignore[arg-type]
    return PipelineMetrics(options, [], lambda: "running", reader, lambda: 1_000.0)


def shown(metrics: PipelineMetrics, name: str) -> dict[tuple[str, ...], float]:
    from roster.metrics.page import metrics_page

    return series(metrics_page(metrics.registry).answer("/metrics").body.decode(), name)


def test_rebalances_and_lost_partitions_are_counted() -> None:
    metrics = metrics_of(Positions())
    metrics.owns(Ownership(3, "m", frozenset({ZERO, ONE}), epoch=1))
    assert shown(metrics, "roster_member_rebalances_total") == {("g",): 0}
    metrics.owns(Ownership(4, "m", frozenset({ZERO}), epoch=2))
    metrics.owns(Ownership(4, "m", frozenset({ZERO}), epoch=3))
    assert shown(metrics, "roster_member_rebalances_total") == {("g",): 1}
    assert shown(metrics, "roster_member_lost_partitions_total") == {("g",): 0}
    metrics.owns(Ownership(-1, "", lost=frozenset({ZERO}), epoch=4))
    assert shown(metrics, "roster_member_lost_partitions_total") == {("g",): 1}
    assert shown(metrics, "roster_member_generation") == {("g",): -1}
    metrics.owns(Ownership(6, "m", frozenset({ONE}), epoch=5))
    assert shown(metrics, "roster_member_rebalances_total") == {("g",): 2}


def test_batches_are_counted_by_how_they_ended_and_timed_by_phase() -> None:
    metrics = metrics_of(Positions())
    for number in range(3):
        metrics.progress(
            Progress("g", "m", 1, number, 0, 300, 10, {ZERO: Range(0, 10)}, {}, 1, {"work": 200}, late=2, restored=4)
        )
    metrics.abandoned()
    assert shown(metrics, "roster_pipeline_batches_total") == {("g", "committed"): 3, ("g", "abandoned"): 1}
    assert shown(metrics, "roster_pipeline_records_total") == {("g",): 30}
    assert shown(metrics, "roster_pipeline_late_total") == {("g",): 6}
    assert shown(metrics, "roster_state_restored_records_total") == {("g",): 12}
    sums = shown(metrics, "roster_pipeline_batch_seconds_sum")
    assert {key: round(value, 6) for key, value in sums.items()} == {("g", "work"): 0.6, ("g", "total"): 0.9}
    assert shown(metrics, "roster_pipeline_last_batch_timestamp_seconds") == {("g",): 1_000}


def test_lag_is_of_own_partitions_only_and_stays_while_no_broker_answers(monkeypatch: Any) -> None:
    from roster.spark import metrics as module

    monkeypatch.setattr(module, "_LOOK_INTERVAL", 0.0)
    reader = Positions()
    metrics = metrics_of(reader)
    assert shown(metrics, LAG) == {}
    assert reader.asked == 0
    metrics.owns(Ownership(1, "m", frozenset({ZERO, ONE}), epoch=1))
    assert shown(metrics, LAG) == {("g", "0", "t"): 4, ("g", "1", "t"): 4}
    reader.is_down = True
    metrics.owns(Ownership(2, "m", frozenset({ONE}), epoch=2))
    assert shown(metrics, LAG) == {("g", "1", "t"): 4}
    assert shown(metrics, "kafka_consumergroup_group_lag_seconds") == {("g", "1", "t"): 2.5}
    metrics.owns(Ownership())
    assert shown(metrics, LAG) == {}
