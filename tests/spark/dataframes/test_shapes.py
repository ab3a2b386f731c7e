"""The programs of `shapes`, over a topic by read_stream and write_stream, beside Spark's batch answer."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import AnalysisException

from roster.spark import PipelineError, read_stream, write_stream
from tests.librdkafka import idempotent_producer
from tests.spark.dataframes.shapes import BEGIN, END, FAILING, ORDERS, SHAPES, Query, Shape
from tests.spark.dataframes.test_stateful_queries import last_of, plain
from tests.spark.spark_topics import Topics, committed_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from roster.spark import StreamQuery

COMPLETE = "outputMode: each application of the group would show its part only"
PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "dataframe-code.md"
KAFKA = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"


@pytest.fixture(scope="module")
def filled(topics: Topics) -> dict[str, str]:
    """Topics with orders: all of them, a second one with some, and one whose windows are over."""
    names = {"all": ORDERS, "some": ORDERS[:10], "over": [*ORDERS, END, END, END, END]}
    made = {name: topics.create(2, name=name) for name in names}
    producer = idempotent_producer(topics.bootstrap, {})
    for name, orders in names.items():
        for number, order in enumerate(orders):
            at = int(BEGIN.timestamp() * 1000) + number
            producer.produce(made[name], json.dumps(order), order["shop"], partition=number % 2, timestamp=at)
    assert producer.flush(60) == 0
    return made


@pytest.fixture
def zone(spark: SparkSession, name: str) -> Iterator[None]:
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", SHAPES[name].zone)
    yield
    spark.conf.set("spark.sql.session.timeZone", before)


def read_of(spark: SparkSession, topics: Topics, topic: str, **options: object) -> DataFrame:
    given = {"kafka.bootstrap.servers": topics.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    return read_stream(spark).options(**given, **options).load()


def as_batch(spark: SparkSession, shape: Shape) -> DataFrame:
    """The records of the topics that a shape reads."""
    rows = []
    for orders in (ORDERS, ORDERS[:10])[: shape.topics]:
        for number, order in enumerate(orders):
            at = BEGIN.timestamp() + number / 1000
            key = None if order["shop"] is None else order["shop"].encode()
            rows.append((key, json.dumps(order).encode(), "t", number % 2, number // 2, at, 0))
    frame = spark.createDataFrame(rows, KAFKA.replace("timestamp timestamp", "timestamp double"))
    return frame.withColumn("timestamp", frame["timestamp"].cast("timestamp"))


def score(first: float, second: int) -> float:
    """The model of programs with one."""
    return first * 0.5 + second


class Sink:
    """What a query writes to: starts it, and reads what it wrote."""

    def __init__(self, query: Query, name: str, folder: Path, topics: Topics) -> None:
        self.query, self.name, self.topics = query, name, topics
        self.path = str(folder / name)
        self.rows: list[Any] = []
        self.topic = topics.create(1, name="out") if query.sink == "kafka" else ""

    def started(self) -> StreamQuery:
        sink, query = self.query.sink, self.query
        writer = write_stream(query.frame).queryName(self.name).outputMode(query.mode).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", "checkpoints")
        if sink in ("function", "scores", "sums"):
            return writer.foreachBatch(self.keep).start()
        if sink == "rows":
            path = self.path  # pickled without this object

            def append(row: Any) -> None:
                with Path(path).open("a") as file:
                    file.write(f"{json.dumps(row.asDict())}\n")

            return writer.foreach(append).start()
        if sink == "kafka":
            return writer.format("kafka").option("topic", self.topic).start()
        if sink == "table":
            return writer.toTable(self.name)
        writer = writer.partitionBy(*query.partition_by) if query.partition_by else writer
        return writer.format(sink).start(*([] if sink == "memory" else [self.path]))

    def keep(self, df: DataFrame, _: int) -> None:
        if self.query.sink == "scores":
            self.rows += [score(*row) for row in df.toPandas().itertuples(index=False)]
        elif self.query.sink == "sums":
            self.rows += [tuple(row) for row in df.groupBy("city").sum("amount").collect()]
        else:
            self.rows += df.collect()

    def found(self, spark: SparkSession) -> list[Any]:
        sink, frame = self.query.sink, self.query.frame
        if sink in ("function", "scores", "sums"):
            return self.rows
        if sink in ("memory", "table"):
            rows = spark.table(self.name).select(frame.columns)
            assert rows.schema.simpleString() == frame.schema.simpleString()
            return rows.collect()
        if sink == "kafka":
            return [
                dict(zip(("key", "value"), record[1:], strict=True))
                for record in committed_records(self.topics, self.topic)
            ]
        if sink == "rows":
            return [json.loads(line) for line in Path(self.path).read_text().splitlines()]
        if sink == "delta":
            return DeltaTable(self.path).to_pyarrow_table().select(frame.columns).to_pylist()
        return spark.read.schema(frame.schema).format(sink).load(self.path).select(frame.columns).collect()

    def wanted(self, batch: DataFrame) -> list[Any]:
        """What it has to read, by the same query over a batch."""
        sink = self.query.sink
        if sink == "delta":
            return batch.toArrow().to_pylist()
        rows = batch.collect()
        if sink == "scores":
            return [score(*row) for row in rows]
        if sink == "sums":
            return [tuple(row) for row in batch.groupBy("city").sum("amount").collect()]
        return [row.asDict() | {"key": row.asDict().get("key")} for row in rows] if sink == "kafka" else rows


def compared(rows: list[Any], query: Query) -> list[Any]:
    """Rows in one order, without what depends on the clock; the last of each key of mode `update`."""
    if query.sink == "sums":
        sums = {city: sum(amount for name, amount in rows if name == city) for city, _ in rows}
        return sorted(sums.items(), key=repr)
    made = [_plain(row) if hasattr(row, "asDict") or isinstance(row, dict) else plain(row) for row in rows]
    return sorted(last_of(made, list(query.by)) if query.mode == "update" else made, key=repr)


def _plain(row: Any) -> dict[str, Any]:
    """A row's values, texts out of bytes and the fields of JSON."""
    values: dict[str, Any] = {}
    for name, value in plain(row).items():
        text = bytes(value).decode() if isinstance(value, bytes | bytearray) else value
        if name == "value" and str(text).startswith('{"window"'):
            values |= {f"value {part}": of for part, of in json.loads(text).items()}
        elif not name.startswith("now"):
            values[name] = text
    return values


RUNNING = [name for name, shape in SHAPES.items() if not shape.is_complete]


@pytest.mark.gate
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize("name", RUNNING)
def test_a_program_gives_the_rows_of_a_batch(
    spark: SparkSession, topics: Topics, filled: dict[str, str], group: str, name: str, tmp_path: Path
) -> None:
    shape = SHAPES[name]
    topic = filled["over"] if shape.closes else ",".join([filled["all"], filled["some"]][: shape.topics])
    queries = shape.queries(read_of(spark, topics, topic, **{"roster.state.dir": str(tmp_path / "state")}))
    label = group.replace("-", "_")
    sinks = [Sink(query, f"{label}_{number}", tmp_path, topics) for number, query in enumerate(queries)]
    running = [sink.started() for sink in sinks]
    for query in running:
        query.awaitTermination()
    for sink, query in zip(sinks, shape.queries(as_batch(spark, shape)), strict=True):
        wanted = compared(sink.wanted(query.frame), query)
        assert wanted
        assert compared(sink.found(spark), query) == wanted
        if query.sink == "table":
            spark.sql(f"drop table {sink.name}")


@pytest.mark.spark
@pytest.mark.parametrize("name", [name for name, shape in SHAPES.items() if shape.is_complete])
def test_mode_complete_is_refused(spark: SparkSession, topics: Topics, name: str) -> None:
    query = SHAPES[name].queries(read_of(spark, topics, "unread"))[0]
    with pytest.raises(PipelineError, match=f'{COMPLETE}. Use "update", and a table with one row a key'):
        write_stream(query.frame).queryName("never").outputMode(query.mode)


@pytest.mark.spark
@pytest.mark.parametrize("name", FAILING)
def test_what_fails_in_spark_fails_with_sparks_words(spark: SparkSession, topics: Topics, name: str) -> None:
    with pytest.raises(AnalysisException) as ours:
        FAILING[name](read_of(spark, topics, "unread"))
    spark_stream = spark.readStream.format("rate").load()
    columns = "cast(null as binary) key", "cast(cast(value as string) as binary) value"
    with pytest.raises(AnalysisException) as theirs:
        FAILING[name](spark_stream.selectExpr(*columns))
    assert ours.value.getCondition() == theirs.value.getCondition()


def test_what_differs_is_at_most_ten_rows() -> None:
    section = PAGE.read_text().partition("## What differs")[2].partition("\n## ")[0]
    assert 5 < len(re.findall(r"^\| [^-]", section, re.MULTILINE)) - 1 <= 10


def test_the_page_has_all_programs() -> None:
    section = PAGE.read_text().partition("## Programs of others")[2]
    rows = re.findall(r"^\| (.+?) \| (equal|refused.*|fails.*) \|$", section, re.MULTILINE)
    named = {name: said for row, said in rows for name in row.split("; ")}
    assert sorted(named) == sorted([*SHAPES, *FAILING])
    assert {name for name, said in named.items() if said == "equal"} == set(RUNNING)
    assert (len(named), len(RUNNING)) == (43, 36)
