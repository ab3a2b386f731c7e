"""Exports of a group whose applications and broker are killed: each is a plain computation of the records below it.

ROSTER_STATE_KILL_ROUNDS sets the number of blows, ROSTER_KILL_SEED the first seed.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from roster.client import Admin, ClientError
from roster.model import TopicPartition
from roster.spark import PipelineError, ReadError
from roster.spark.state import Export, export
from roster.state.rows import RowLayout
from tests.saved.groups_with_state import rows
from tests.sinks.test_transactional_kills import Told, blows, quick_broker
from tests.spark.apps import every_operator as every
from tests.spark.apps.stateful import COLUMNS, KEYS
from tests.spark.spark_topics import Topics, committed_records
from tests.stateful.test_stateful_kills import ROUNDS, program, repartitioned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from tests.real.realparts.apache import ApacheKafka

pytestmark = [pytest.mark.process, pytest.mark.spark, pytest.mark.gate, pytest.mark.timeout(300 + 60 * ROUNDS)]


class Exporter:
    """Exports the one group of `blows` that begins from now on again and again, in a thread."""

    def __init__(self, spark: SparkSession, bootstrap: str, place: Path) -> None:
        self._spark, self._bootstrap, self._place = spark, bootstrap, place
        with Admin(bootstrap) as admin:
            self._others = {each.group_id for each in admin.list_groups()}
        self.exports: list[Export] = []
        self.without: list[str] = []
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Exporter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._over.wait(1.0):
                self._once()
        except BaseException as error:
            self._failure = error

    def _once(self) -> None:
        place = str(self._place / str(len(self.exports)))
        try:
            with Admin(self._bootstrap, request_timeout_ms=5_000) as admin:
                found = {each.group_id for each in admin.list_groups()} - self._others
                groups = [group for group in found if group.startswith("kills-")]
                if not groups or not admin.group_offsets(groups[0], stable=False):
                    return
            self.exports.append(export(self._spark, self._bootstrap, groups[0], place))
        except (ClientError, PipelineError, ReadError) as error:
            self.without.append(str(error))  # the broker is away, or batches leave no moment


def test_each_export_is_of_the_records_below_its_offsets(spark: SparkSession, tmp_path: Path) -> None:
    with quick_broker(tmp_path / "data") as (topics, restart):
        with Exporter(spark, topics.bootstrap, tmp_path / "exports") as exporter:
            told = blows(topics, tmp_path, restart, program(tmp_path), ROUNDS)
        check(topics, told, exporter, waiting)


def test_each_export_has_the_rows_on_their_way(spark: SparkSession, tmp_path: Path) -> None:
    with quick_broker(tmp_path / "data") as (topics, restart):
        with Exporter(spark, topics.bootstrap, tmp_path / "exports") as exporter:
            told = blows(topics, tmp_path, restart, repartitioned(tmp_path), ROUNDS, "-by-k-repartition")
        exporter.exports.append(export(spark, topics.bootstrap, told.group, str(tmp_path / "last")))
        check(topics, told, exporter, waiting)


def test_each_export_has_all_kinds_of_stores_as_of_its_offsets(spark: SparkSession, tmp_path: Path) -> None:
    with quick_broker(tmp_path / "data") as (topics, restart):
        check_all_kinds(spark, topics, tmp_path, restart)


if ROUNDS >= 10:  # one broker is enough by default

    def test_the_same_on_apache_kafka(spark: SparkSession, apache_kafka: ApacheKafka, tmp_path: Path) -> None:
        with Topics(apache_kafka.bootstrap) as topics:
            check_all_kinds(spark, topics, tmp_path, None)


def check_all_kinds(spark: SparkSession, topics: Topics, tmp_path: Path, restart: Callable[[], object] | None) -> None:
    program = [str(Path(every.__file__)), str(tmp_path / "state"), "1"]
    with Exporter(spark, topics.bootstrap, tmp_path / "exports") as exporter:
        told = blows(topics, tmp_path, restart, program, ROUNDS, f"-{every.PASSED}-repartition")
    exporter.exports.append(export(spark, topics.bootstrap, told.group, str(tmp_path / "last")))
    records = records_of(topics, told)
    for found in exporter.exports:
        read = sorted(below(found, told, records))
        check_kinds(found, read)
        totals = {row["g"]: (row["count"], row["sum"]) for row in rows(found, "totals")}
        assert totals == sums(passed(read, waiting(found, every.COLUMNS)), lambda n: n % every.GROUPS)
    assert len(read) == sum(map(len, records.values()))
    print(f"{len(exporter.exports)} exports; without one: {exporter.without}", flush=True)
    assert len(exporter.exports) > 1


def sums(numbers: Iterable[int], key_of: Callable[[int], Any]) -> dict[Any, tuple[int, int]]:
    found: dict[Any, tuple[int, int]] = {}
    for n in numbers:
        count, total = found.get(key_of(n), (0, 0))
        found[key_of(n)] = count + 1, total + n
    return found


def seconds(time: datetime) -> int:
    return int(time.timestamp())


def check_kinds(found: Export, read: list[int]) -> None:
    """Compare each store of the first sub-topology with a plain computation of these numbers, which ascend."""
    at = every.seconds_of
    firsts: dict[tuple[int, int], int] = {}
    for n in read:
        firsts.setdefault((n % KEYS, n // (2 * KEYS)), at(n))
    assert {(row["k"], row["pair"]): seconds(row["first"]) for row in rows(found, "ids")} == firsts
    assert {row["k"]: (row["count"], row["sum"]) for row in rows(found, "counts")} == sums(read, lambda n: n % KEYS)
    size = int(every.WINDOW.total_seconds())
    windows = {(row["k"], seconds(row["window_start"])): (row["count"], row["sum"]) for row in rows(found, "windows")}
    assert windows == sums(read, lambda n: (n % KEYS, at(n) // size * size))
    starts: dict[int, int] = {}
    last: dict[int, int] = {}
    for n in read:
        key, now = n % KEYS, at(n)
        is_same = key in last and now - at(last[key]) < every.GAP.total_seconds()
        starts[n] = starts[last[key]] if is_same else now
        last[key] = n
    sessions = {(row["k"], seconds(row["window_start"])): (row["count"], row["sum"]) for row in rows(found, "sessions")}
    assert sessions == sums(read, lambda n: (n % KEYS, starts[n]))
    check_pairs(found, read)
    check_timers(found, read, last)


def check_pairs(found: Export, read: list[int]) -> None:
    there = set(read)
    near = {n: [each for each in (n - KEYS, n + KEYS) if each in there] for n in read}
    within = every.WITHIN.total_seconds()
    alone = {n for n in read if all(abs(every.seconds_of(n) - every.seconds_of(each)) > within for each in near[n])}
    left = {(row["k"], row["n"], row["waits"]) for row in rows(found, "pairs", "left")}
    assert left == {(n % KEYS, n, n in alone) for n in read if not every.is_right(n)}
    right = {(row["k"], row["m"]) for row in rows(found, "pairs", "right")}
    assert right == {(n % KEYS, n) for n in read if every.is_right(n)}


def check_timers(found: Export, read: list[int], last: dict[int, int]) -> None:
    values = {row["key"]["k"]: row["value"]["n"] for row in rows(found, "timers", "variables/last")}
    assert values == last
    timers: dict[int, set[int]] = defaultdict(set)
    for n in read:
        timers[n % KEYS] = set() if n % 4 == 0 else timers[n % KEYS] | {every.FAR + n}
    kept = {(row["key"]["k"], row["expiration_timestamp_ms"]) for row in rows(found, "timers", "timers")}
    assert kept == {(key, time) for key, times in timers.items() for time in times}


def waiting(found: Export, columns: pa.Schema = COLUMNS) -> list[int]:
    """The numbers of rows on their way."""
    files = [file for _, each in found.manifest.on_their_way.values() for file in each]
    values = [value for file in files for value in found.folder.read_table(file)["value"].to_pylist()]
    return [int(row["n"]) for row in RowLayout.of(columns).decode(values).table.to_pylist()]


def passed(read: list[int], left: list[int]) -> list[int]:
    """The numbers read but for those on their way, each of which is there once."""
    assert len(set(left)) == len(left)
    assert set(left) <= set(read)
    return sorted(set(read) - set(left))


def records_of(topics: Topics, told: Told) -> dict[int, list[int]]:
    """The numbers of each partition by offset."""
    records: dict[int, list[int]] = defaultdict(list)
    for partition, _, value in committed_records(topics, told.topic):
        records[partition].append(int(value or b""))
    ends = topics.ends(told.topic)
    assert all(end == len(records[at.partition]) for at, end in ends.items()), "an offset is a record's number"
    return records


def below(found: Export, told: Told, records: dict[int, list[int]]) -> list[int]:
    offsets = found.manifest.offsets
    return [n for number, of in records.items() for n in of[: offsets.get(TopicPartition(told.topic, number), 0)]]


def check(topics: Topics, told: Told, exporter: Exporter, waiting: Callable[[Export], list[int]]) -> None:
    records = records_of(topics, told)
    print(f"{len(exporter.exports)} exports; without one: {exporter.without}", flush=True)
    assert exporter.exports
    for found in exporter.exports:
        expected = sums(passed(below(found, told, records), waiting(found)), lambda n: n % KEYS)
        assert {row["k"]: (row["count"], row["sum"]) for row in rows(found, "totals")} == expected
