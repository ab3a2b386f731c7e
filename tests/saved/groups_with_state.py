"""Groups with state to export and import: records, operators, and what pyarrow reads of an export."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from roster.model import TopicPartition
from tests.librdkafka import idempotent_producer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import SparkSession

    from roster.spark import Pipeline
    from roster.spark.state import Export
    from tests.spark.spark_topics import Topics

Record = tuple[int, int, str, int]
"""Partition, offset, name, number."""


def numbers(batch: pa.RecordBatch) -> pa.RecordBatch:
    n = batch["value"].cast(pa.string()).cast(pa.int64())
    return pa.RecordBatch.from_arrays([batch["key"].cast(pa.string()), n, batch["timestamp"]], ["name", "n", "at"])


def sales(batch: pa.RecordBatch) -> pa.RecordBatch:
    return numbers(batch).rename_columns(["shop", "price", "at"]).select(["shop", "price"])


def name_of(n: int) -> str:
    return f"k{n % 43}"


def send(topics: Topics, topic: str, partitions: int, numbers: Sequence[int]) -> list[Record]:
    """Each number twice in one partition, under one of eleven names."""
    producer = idempotent_producer(topics.bootstrap)
    sent: list[Record] = []
    ends = [topics.ends(topic)[TopicPartition(topic, number)] for number in range(partitions)]
    for number in [each for each in numbers for _ in range(2)]:
        partition, name = number % 11 % partitions, f"k{number % 11}"
        producer.produce(topic, str(number), name, partition=partition)
        sent.append((partition, ends[partition], name, number))
        ends[partition] += 1
    assert producer.flush(60) == 0
    return sent


def produce(topics: Topics, topic: str, sent: Iterable[int]) -> None:
    """Each number twice, placed by its key as Kafka's Java client does."""
    producer = idempotent_producer(topics.bootstrap, {"partitioner": "murmur2_random"})
    for n in [each for each in sent for _ in range(2)]:
        producer.produce(topic, str(n), name_of(n))
    assert producer.flush(60) == 0


def below(found: Export, topic: str, sent: list[Record]) -> list[Record]:
    return [each for each in sent if each[1] < found.manifest.offsets.get(TopicPartition(topic, each[0]), 0)]


def totals_of(sent: list[Record]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for _, _, name, n in sent:
        count, total = found.get(name, (0, 0))
        found[name] = count + 1, total + n
    return found


def rows(found: Export, store: str, part: str = "entries") -> list[dict[str, Any]]:
    """What pyarrow reads of an export, without Roster."""
    files = found.manifest.stores[store].files.get(part, ())
    return [row for file in files for row in pq.read_table(f"{found.folder.place}/{file.path}").to_pylist()]


def unordered(found: Export, store: str) -> list[str]:
    return sorted(map(str, rows(found, store)))


def check(found: Export, read: range) -> None:
    """Compare both stores with a plain computation of all numbers."""
    assert {(row["name"], row["n"]) for row in rows(found, "ids")} == {(name_of(n), n) for n in read}
    of = {name: [n for n in read if name_of(n) == name] for name in map(name_of, read)}
    assert len(rows(found, "totals")) == len(of)
    assert {row["name"]: (row["n"], row["mean"]) for row in rows(found, "totals")} == {
        name: (len(each), sum(each) / len(each)) for name, each in of.items()
    }


def no_spark(*_: object) -> SparkSession:
    raise AssertionError("Spark is not needed")


def with_ids_and_totals(pipeline: Pipeline, partitions: int | None = None) -> Pipeline:
    """Add a store of the numbers, and one of each name's count and mean, behind a repartition topic if asked for."""
    pipeline.map_arrow(numbers, "name string, n long, at timestamp")
    pipeline.deduplicate(["name", "n"], within="1000 days", column="at", store="ids")
    if partitions is not None:
        pipeline.repartition("name", partitions=partitions)
    return pipeline.aggregate("name", {"n": "count(*)", "mean": "avg(n)"}, store="totals")
