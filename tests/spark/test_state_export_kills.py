"""Exports of a group whose applications and broker are killed: each is a plain computation of the records below it.

ROSTER_STATE_KILL_ROUNDS sets the number of blows, ROSTER_KILL_SEED the first seed.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from roster.client import Admin, ClientError
from roster.model import TopicPartition
from roster.spark import PipelineError, ReadError
from roster.spark.state import Export, export
from roster.state.rows import RowLayout
from tests.spark.spark_topics import Topics, committed_records
from tests.spark.stateful_app import COLUMNS, KEYS
from tests.spark.test_state_export import rows
from tests.spark.test_stateful_kills import ROUNDS, program, repartitioned
from tests.spark.test_transactional_kills import Told, blows, quick_broker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.process, pytest.mark.spark, pytest.mark.gate, pytest.mark.timeout(300 + 60 * ROUNDS)]


class Exporter:
    """Exports the only group of a cluster again and again, in a thread."""

    def __init__(self, spark: SparkSession, bootstrap: str, place: Path) -> None:
        self._spark, self._bootstrap, self._place = spark, bootstrap, place
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
                groups = [each.group_id for each in admin.list_groups() if each.group_id.startswith("kills-")]
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


def waiting(found: Export) -> list[int]:
    """The numbers of rows on their way."""
    files = [file for _, each in found.manifest.on_their_way.values() for file in each]
    values = [value for file in files for value in found.folder.read_table(file)["value"].to_pylist()]
    return [int(row["n"]) for row in RowLayout.of(COLUMNS).decode(values).table.to_pylist()]


def check(topics: Topics, told: Told, exporter: Exporter, waiting: Callable[[Export], list[int]]) -> None:
    records: dict[int, list[int]] = defaultdict(list)
    for partition, _, value in committed_records(topics, told.topic):
        records[partition].append(int(value or b""))
    ends = topics.ends(told.topic)
    assert all(end == len(records[at.partition]) for at, end in ends.items()), "an offset is a record's number"
    print(f"{len(exporter.exports)} exports; without one: {exporter.without}", flush=True)
    assert exporter.exports
    for found in exporter.exports:
        offsets = found.manifest.offsets
        read = [n for number, of in records.items() for n in of[: offsets.get(TopicPartition(told.topic, number), 0)]]
        left = waiting(found)
        sums: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
        for n in read:
            count, total = sums[n % KEYS]
            sums[n % KEYS] = count + 1, total + n
        for n in left:
            count, total = sums[n % KEYS]
            sums[n % KEYS] = count - 1, total - n
        expected = {key: each for key, each in sums.items() if each[0]}
        assert {row["k"]: (row["count"], row["sum"]) for row in rows(found, "totals")} == expected
