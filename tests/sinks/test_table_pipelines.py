"""Pipelines into Delta and Iceberg tables: rows from inside the tasks, and those that a transform has made."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from roster.spark import DeltaSink, IcebergSink, Pipeline
from tests.sinks.table_places import PLACES

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark.spark_topics import Topics

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def delta(path: Path) -> tuple[Any, Any]:
    from deltalake import DeltaTable

    return DeltaSink(path / "table"), lambda: DeltaTable(str(path / "table")).to_pyarrow_table().to_pylist()


def iceberg(path: Path) -> tuple[Any, Any]:
    from pyiceberg.catalog import load_catalog

    catalog = {"type": "sql", "uri": f"sqlite:///{path}/catalog.db", "warehouse": f"file://{path}/warehouse"}
    sink = IcebergSink("shop.orders", catalog)
    return sink, lambda: load_catalog("default", **catalog).load_table("shop.orders").scan().to_arrow().to_pylist()


def postgres(path: Path) -> tuple[Any, Any]:
    place = PLACES["postgres"](str(path))
    return place.sink(), lambda: place.arrow().to_pylist()


@pytest.mark.parametrize("make", [delta, iceberg, pytest.param(postgres, marks=pytest.mark.real)])
def test_each_record_is_in_the_table_once(spark: SparkSession, topics: Topics, tmp_path: Path, make: Any) -> None:
    topic = topics.create(2, 300)
    sink, rows = make(tmp_path)
    group = f"g-{uuid.uuid4().hex[:8]}"

    def pipeline() -> Pipeline:
        return Pipeline(spark, topics.bootstrap, group, [topic], max_offsets_per_batch=200, include_headers=True)

    pipeline().write(sink).run(available_now=True)
    topics.fill(topic, 2, 100)
    pipeline().transform(lambda df: df.where("partition = 1")).write(sink).run(available_now=True)
    found = rows()
    wanted = [pair for pair in topics.everything(topic) if pair[1] < 150 or pair[0] == 1]
    assert sorted((row["partition"], row["offset"]) for row in found) == wanted
    assert {row["topic"] for row in found} == {topic}
    assert {bytes(row["value"]) for row in found} == {b"%d" % number for number in range(300)}
    assert sink.positions(group, topics.ends(topic)) == topics.ends(topic) == topics.committed(group)
