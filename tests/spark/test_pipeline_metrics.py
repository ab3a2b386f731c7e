"""The metrics of a running pipeline beside what it read, and beside what another client says of the group."""

from __future__ import annotations

import json
import socket
import urllib.request
from typing import TYPE_CHECKING, Any

from roster.client import GroupMember, Ownership
from roster.client.errors import UnreachableError
from roster.client.member_statistics import MemberStatistics
from roster.member.causes import Cause
from roster.member.events import CommitDone, Report
from roster.member.types import Failure, FailureKind, ReportKind
from roster.metrics.positions import GroupPositions
from roster.model import GroupPosition, TopicPartition
from roster.pipeline.batch import Progress, Range, StoreProgress
from roster.pipeline.options import Options
from roster.spark import Pipeline
from roster.spark.metrics import PipelineMetrics
from tests.metrics.test_exporter import LAG, lag_by_librdkafka, series
from tests.real.realparts.cluster import Cluster, unique
from tests.waiting import until

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
    texts, lags, ready, members = [], [], [], []

    def scrape(progress: Progress) -> None:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as response:
            texts.append(response.read().decode())
        with urllib.request.urlopen(f"http://{address}/ready", timeout=60) as response:
            ready.append(response.status)
        with urllib.request.urlopen(f"http://{address}/", timeout=60) as response:
            assert b"<title>Roster" in response.read()
        members.append(until(lambda: shown_on_the_page(address, group), 60))
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
    rebalances = series(last, "roster_member_rebalances_total")
    assert {cause: count for (cause, _), count in rebalances.items() if count} == {"join": 1}
    assert series(last, "roster_member_moved_partitions_total") == {(group,): 2}
    assert 0 < series(last, "roster_member_rebalance_seconds_total")[group,] < 60
    assert series(last, "roster_pipeline_status") == {(group, "running"): 1}
    assert set(ready) == {200}
    assert set(members) == {2}
    for text, (found, left) in zip(texts[:1], lags[:1], strict=True):
        assert series(text, LAG) == found
        assert sum(found.values()) == left == 40


def shown_on_the_page(address: str, group: str) -> int | None:
    """The partitions of the group's one member, once the page has seen it."""
    with urllib.request.urlopen(f"http://{address}/page/group?group={group}", timeout=60) as response:
        found = json.load(response)["members"]
    return found[0]["partitions"] if len(found) == 1 else None


class Positions:
    """A reader of positions that can be told to fail."""

    def __init__(self) -> None:
        self.is_down, self.asked = False, 0

    def read(self, groups: list[str], only: Collection[TopicPartition]) -> dict[str, GroupPositions]:
        self.asked += 1
        if self.is_down:
            raise UnreachableError("no broker answered")
        return {"g": GroupPositions({tp: GroupPosition(1, 5, 0) for tp in only}, dict.fromkeys(only, 2.5))}


def metrics_of(reader: Any, statistics: MemberStatistics | None = None) -> PipelineMetrics:
    options = Options(None, "h:1", "g", ("t",))  # type: ignore[arg-type]
    return PipelineMetrics(options, [], lambda: "running", reader, statistics or MemberStatistics(), lambda: 1_000.0)


def shown(metrics: PipelineMetrics, name: str) -> dict[tuple[str, ...], float]:
    from roster.metrics.families import metrics_page

    return series(metrics_page(metrics.registry).answer("/metrics").body.decode(), name)


def test_lost_partitions_are_counted() -> None:
    member = MemberStatistics()
    metrics = metrics_of(Positions(), member)
    member.owns(Ownership(3, "m", frozenset({ZERO, ONE}), epoch=1), 0.0)
    member.owns(Ownership(4, "m", frozenset({ZERO}), epoch=2), 0.0)
    member.owns(Ownership(4, "m", frozenset({ZERO}), epoch=3), 0.0)
    assert shown(metrics, "roster_member_lost_partitions_total") == {("g",): 0}
    member.owns(Ownership(-1, "", lost=frozenset({ZERO}), epoch=4), 0.0)
    assert shown(metrics, "roster_member_lost_partitions_total") == {("g",): 1}
    assert shown(metrics, "roster_member_generation") == {("g",): -1}


def test_ownership_changes_while_a_batch_is_under_way(roster_broker: Cluster) -> None:
    topic, group = roster_broker.create_topic(partitions=4), unique("amid")

    def member() -> GroupMember:
        options = {"assignors": ["cooperative-sticky"], "heartbeat_interval_ms": 50}
        return GroupMember(roster_broker.bootstrap, group, [topic], **options)

    with member() as mine:
        metrics = metrics_of(Positions(), mine.statistics)
        assert shown(metrics, "roster_member_assigned_partitions") == {("g",): 4}
        with member():  # nobody asks `mine` for anything meanwhile, as amid a batch
            until(lambda: shown(metrics, "roster_member_assigned_partitions") == {("g",): 2}, 60)
            assert len(shown(metrics, LAG)) == 2


def test_what_the_member_has_been_through_is_shown() -> None:
    member = MemberStatistics()
    metrics = metrics_of(Positions(), member)
    counted = shown(metrics, "roster_member_rebalances_total")
    assert counted == {(cause, "g"): 0 for cause in Cause}, "a series that begins at 1 would not count as a rise"

    def reports(at: float, *given: tuple[ReportKind, frozenset[TopicPartition], str]) -> None:
        for kind, partitions, cause in given:
            member.take(Report(kind, "", partitions=partitions, cause=cause), at)

    none = frozenset[TopicPartition]()
    reports(10.0, (ReportKind.JOINING, none, ""))
    reports(10.5, (ReportKind.JOINED, none, "join"), (ReportKind.ASSIGNED, frozenset({ZERO, ONE}), ""))
    reports(20.0, (ReportKind.REJOIN, none, ""))
    reports(21.0, (ReportKind.JOINING, none, ""), (ReportKind.JOINED, none, "revoked"))
    reports(22.0, (ReportKind.JOINING, none, ""), (ReportKind.JOINED, none, "unknown"))  # the first had no end
    reports(22.25, (ReportKind.ASSIGNED, frozenset({ONE, TopicPartition("t", 2)}), ""))
    told = {("join", "g"): 1, ("revoked", "g"): 1, ("unknown", "g"): 1}
    assert shown(metrics, "roster_member_rebalances_total") == counted | told
    assert shown(metrics, "roster_member_rebalance_seconds_total") == {("g",): 0.5 + 2.25}
    assert shown(metrics, "roster_member_moved_partitions_total") == {("g",): 3}
    member.take(CommitDone(1), 30.0)
    member.take(CommitDone(2, Failure(FailureKind.FENCED, "gone")), 30.0)
    failures = shown(metrics, "roster_member_commit_failures_total")
    assert {reason: count for (_, reason), count in failures.items() if count} == {"fenced": 1}
    for late in (0.0, 0.003, 70.0):
        member.heartbeat_lateness.add(late)
    buckets = shown(metrics, "roster_member_heartbeat_lateness_seconds_bucket")
    assert [buckets["g", le] for le in ("0.0005", "0.0025", "0.005", "60.0", "+Inf")] == [1, 1, 2, 2, 3]
    assert shown(metrics, "roster_member_heartbeat_lateness_seconds_sum") == {("g",): 70.003}


def test_stores_are_shown_by_name_and_task() -> None:
    metrics = metrics_of(Positions())
    for ms in (1_500, 0):
        store = StoreProgress(12, 4096, changed=3, stream_time_ms=5_500, restored=7, restore_ms=ms, file_bytes=9_000)
        stores = {"s": {"0_0": store, "0_1": StoreProgress(1, 8192)}}
        metrics.progress(Progress("g", "m", 1, 0, 0, 300, {}, {}, 1, rows=10, stores=stores))
    assert shown(metrics, "roster_state_entries") == {("g", "s", "0_0"): 12, ("g", "s", "0_1"): 1}
    assert shown(metrics, "roster_state_bytes") == {("g", "s", "0_0"): 4096, ("g", "s", "0_1"): 8192}
    assert shown(metrics, "roster_state_file_bytes") == {("g", "s", "0_0"): 9_000, ("g", "s", "0_1"): 0}
    assert shown(metrics, "roster_state_stream_time_seconds") == {("g", "s", "0_0"): 5.5}
    assert shown(metrics, "roster_state_restore_seconds_total") == {("g", "s"): 1.5}


def test_which_partition_holds_time_back_is_told_by_one_series_for_each_task_and_each_partition() -> None:
    metrics = metrics_of(Positions())
    held = {"1_0": ("a-b-12", 90_000), "1_1": ("a-b-12", 30_000), "1_2": ("t-1", 500), "1_3": ("", 0)}
    tasks = {task: StoreProgress(1, 9, held_by=by, held_ms=ms) for task, (by, ms) in held.items()}
    tasks["0_0"] = StoreProgress(1, 9)
    metrics.progress(Progress("g", "m", 1, 0, 0, 300, {}, {}, 1, rows=10, stores={"s": tasks}))
    seconds = {("g", "s", task): ms / 1000 for task, (_, ms) in held.items()}
    assert shown(metrics, "roster_state_time_held_seconds") == seconds
    assert shown(metrics, "roster_state_time_held_by") == {("g", "12", "a-b"): 2, ("g", "1", "t"): 1}


def test_batches_are_counted_by_how_they_ended_and_timed_by_phase() -> None:
    metrics = metrics_of(Positions())
    for number in range(3):
        metrics.progress(
            Progress(
                "g", "m", 1, number, 0, 300, {ZERO: Range(0, 10)}, {}, 1, {"work": 200}, rows=10, late=2, restored=4
            )
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
    reader, member = Positions(), MemberStatistics()
    metrics = metrics_of(reader, member)
    assert shown(metrics, LAG) == {}
    assert reader.asked == 0
    member.owns(Ownership(1, "m", frozenset({ZERO, ONE}), epoch=1), 0.0)
    assert shown(metrics, LAG) == {("g", "0", "t"): 4, ("g", "1", "t"): 4}
    reader.is_down = True
    member.owns(Ownership(2, "m", frozenset({ONE}), epoch=2), 0.0)
    assert shown(metrics, LAG) == {("g", "1", "t"): 4}
    assert shown(metrics, "kafka_consumergroup_group_lag_seconds") == {("g", "1", "t"): 2.5}
    member.owns(Ownership(), 0.0)
    assert shown(metrics, LAG) == {}
