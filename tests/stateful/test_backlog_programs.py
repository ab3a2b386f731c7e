"""Windows by another column over a day that waited: every window is right and no row is late, whatever the input is."""

from __future__ import annotations

import json
import random
import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from roster.spark import KafkaSink, ParquetSink, Pipeline, Progress, State, Window
from tests.librdkafka import idempotent_producer
from tests.spark.backlog_rows import (
    BEGIN,
    DAY,
    END,
    HALF_HOUR,
    Rows,
    Windows,
    counted,
    day,
    empty,
    found,
    hours_ahead,
    send,
    whole_day,
)
from tests.spark.spark_topics import Topics, committed_records
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.gate, pytest.mark.timeout(900)]


def ended(partitions: list[Rows]) -> list[Rows]:
    return [[*rows, *END] if rows else [] for rows in partitions]


def check(results: list[tuple[tuple[str, int], int]], wanted: Windows, progress: list[Progress]) -> None:
    right = sum(wanted[of] == n for of, n in results)
    print(f"{right} of {len(wanted)} windows right, {sum(each.late for each in progress)} rows late")
    assert sum(each.late for each in progress) == 0
    assert dict(results) == wanted
    assert len(results) == len(wanted), "each once"


def windows(
    spark: SparkSession,
    topics: Topics,
    topic: str,
    tmp_path: Path,
    sink: Any,
    progress: list[Progress],
    *,
    is_twice: bool = False,
    **options: Any,
) -> Pipeline:
    """is_twice: rows are joined with a table by another key before."""
    options = {"state": State(dir=str(tmp_path / "state")), "on_progress": progress.append, **options}
    made = Pipeline(spark, topics.bootstrap, f"g-{uuid.uuid4().hex[:8]}", topic, **options)
    made.json_columns("region string, at timestamp" + ", second long" * is_twice)
    if is_twice:
        table = topics.create(2)
        made.repartition("second", partitions=2).join_table(table, "second", "note string", how="left")
    made.repartition("region", partitions=3)
    window = Window("at", "30 minutes", grace="5 minutes")
    made.aggregate("region", {"n": "count(*)"}, window=window, results="final")
    return made.write(sink)


@pytest.mark.parametrize(
    ("made", "options"),
    [
        pytest.param(whole_day, {}, id="whole day"),
        pytest.param(whole_day, {"max_offsets_per_batch": 700}, id="batches of 700"),
        pytest.param(whole_day, {"max_offsets_per_batch": 700, "is_twice": True}, id="a table by another key"),
        pytest.param(hours_ahead, {"max_offsets_per_batch": 700}, id="one partition six hours ahead"),
        pytest.param(empty, {"max_offsets_per_batch": 700}, id="an empty partition"),
    ],
)
def test_every_window_of_a_backlog_is_right(
    spark: SparkSession, topics: Topics, tmp_path: Path, made: Any, options: dict[str, Any]
) -> None:
    partitions = made(random.Random(5))
    topic, files, progress = topics.create(len(partitions)), str(tmp_path / "out"), list[Progress]()
    send(topics, topic, ended(partitions))
    windows(spark, topics, topic, tmp_path, ParquetSink(files), progress, **options).run(available_now=True)
    rows = [(row.region, row.window_start.astimezone(UTC), row.n) for row in spark.read.parquet(files).collect()]
    results = [((region, (start - BEGIN) // timedelta(seconds=HALF_HOUR)), n) for region, start, n in rows]
    check([each for each in results if not each[0][0].startswith("end")], counted(partitions), progress)


def test_every_window_over_two_topics_one_six_hours_ahead_is_right(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    partitions = hours_ahead(random.Random(5))
    both, out, progress = [topics.create(1) for _ in partitions], topics.create(1), list[Progress]()
    for topic, rows in zip(both, ended(partitions), strict=True):
        send(topics, topic, [rows])
    options: dict[str, Any] = {"state": State(dir=str(tmp_path / "state")), "max_offsets_per_batch": 700}
    group = f"g-{uuid.uuid4().hex[:8]}"
    made = Pipeline(spark, topics.bootstrap, group, both, on_progress=progress.append, **options)
    made.json_columns("region string, at timestamp")
    window = Window("at", "30 minutes", grace="5 minutes")
    made.aggregate("region", {"n": "count(*)"}, window=window, results="final")
    made.write(KafkaSink(topics.bootstrap, out)).run(available_now=True)
    check(found(topics, out), counted(partitions), progress)
    held = [store.held_by for each in progress for of in each.stores.values() for store in of.values()]
    assert f"{both[0]}-0" in held or f"{both[1]}-0" in held


def test_every_window_behind_two_repartitions_and_another_operator_is_right(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    partitions = hours_ahead(random.Random(11))
    topic, files, progress = topics.create(len(partitions)), str(tmp_path / "out"), list[Progress]()
    ends = [(f"end {number}", days * DAY + number) for days in (3, 4, 5) for number in range(20)]
    send(topics, topic, [[*rows, *ends] for rows in partitions])
    options: dict[str, Any] = {"state": State(dir=str(tmp_path / "state")), "max_offsets_per_batch": 700}
    group = f"g-{uuid.uuid4().hex[:8]}"
    made = Pipeline(spark, topics.bootstrap, group, topic, on_progress=progress.append, **options)
    made.json_columns("region string, at timestamp").repartition("at", partitions=3)
    made.deduplicate(["region", "at"], within="5 minutes", column="at").repartition("region", partitions=2)
    window = Window("at", "30 minutes", grace="5 minutes")
    made.aggregate("region", {"n": "count(*)"}, window=window, results="final")
    made.write(ParquetSink(files)).run(available_now=True)
    rows = [(row.region, row.window_start.astimezone(UTC), row.n) for row in spark.read.parquet(files).collect()]
    results = [((region, (start - BEGIN) // timedelta(seconds=HALF_HOUR)), n) for region, start, n in rows]
    wanted = counted([sorted({row for rows in partitions for row in rows})])
    check([each for each in results if not each[0][0].startswith("end")], wanted, progress)


def test_a_partition_that_is_silent_for_an_hour_holds_nothing_back_and_comes_back_in_time(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    chance, noon, hour = random.Random(7), DAY // 2, 3_600
    topic, out, progress = topics.create(2), topics.create(1), list[Progress]()
    parts = [
        [day(chance, 300, noon - hour, noon), day(chance, 300, noon - hour, noon)],
        [day(chance, 300, noon, noon + hour), []],
        [day(chance, 300, noon + hour, noon + 2 * hour), day(chance, 300, noon + hour, noon + 2 * hour)],
    ]
    quick = {"consumer": {"heartbeat.interval.ms": 200}, "trigger_interval_ms": 0}
    sink = KafkaSink(topics.bootstrap, out)
    running = windows(spark, topics, topic, tmp_path, sink, progress, **quick).start()
    sent = list[Rows]()
    try:
        for part in parts:
            send(topics, topic, part, apart=240)  # a partition that others outrun by its grace has late rows
            sent += part
            count = sum(map(len, sent))
            until(lambda: sum(each.rows for each in progress) >= 2 * count, 240, "rows and their results")  # noqa: B023
            if part is parts[1]:
                until(lambda: any(start == noon // HALF_HOUR for (_, start), _ in found(topics, out)), 60, "a window")
        send(topics, topic, [END, END])
        until(lambda: dict(found(topics, out)) == counted(sent), 120, "all windows")
    finally:
        running.stop(now=True)
        running.wait(120)
    check(found(topics, out), counted(sent), progress)


def test_a_join_of_a_waiting_day_with_a_side_that_was_read_as_it_came_finds_all_pairs(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    chance, noon, within = random.Random(9), DAY // 2, 600
    orders, payments, out = topics.create(2), topics.create(2), topics.create(1)
    group, progress = f"g-{uuid.uuid4().hex[:8]}", list[Progress]()
    sent: dict[str, list[tuple[str, int]]] = {orders: [], payments: []}

    def add(topic: str, count: int, begin: int, until: int) -> None:
        producer = idempotent_producer(topics.bootstrap, {"linger.ms": 20})
        column = "at" if topic == orders else "paid"
        for key, at in day(chance, count, begin, until):
            value = json.dumps({"k": key, column: (BEGIN + timedelta(seconds=at)).isoformat()})
            producer.produce(topic, value, key, int(key[1:]) % 2)
            sent[topic].append((key, at))
        assert producer.flush(120) == 0

    def run() -> None:
        options: dict[str, Any] = {"state": State(dir=str(tmp_path / "state")), "max_offsets_per_batch": 200}
        made = Pipeline(spark, topics.bootstrap, group, orders, on_progress=progress.append, **options)
        made.json_columns("k string, at timestamp")
        fields, span = "k string, paid timestamp", timedelta(seconds=within)
        made.join(payments, "k", fields, within=span, column="at", other_column="paid")
        made.write(KafkaSink(topics.bootstrap, out)).run(available_now=True)

    add(payments, 200, 0, noon)
    run()
    add(orders, 700, 0, DAY)
    add(payments, 200, noon, DAY)
    run()
    results = Counter(
        tuple(json.loads(value or b"")[name] for name in ("k", "at", "paid"))
        for _, _, value in committed_records(topics, out)
    )
    assert sum(each.late for each in progress) == 0
    pairs = ((k, at, paid) for k, at in sent[orders] for of, paid in sent[payments] if of == k)
    wanted = Counter(pair for pair in pairs if abs(pair[2] - pair[1]) <= within)

    def seconds(text: str) -> int:
        return int((datetime.fromisoformat(text) - BEGIN).total_seconds())

    assert Counter({(k, seconds(at), seconds(paid)): n for (k, at, paid), n in results.items()}) == wanted
