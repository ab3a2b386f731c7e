"""Structured Streaming programs without state, by read_stream and write_stream, beside the same frame over a batch."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import threading
import uuid
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQueryListener

from roster.spark import PipelineError, PostgresSink, StreamReader, read_stream, write_stream
from roster.spark.dataframes.sinks import FormatSink, MemorySink
from tests.librdkafka import idempotent_producer
from tests.spark.spark_topics import Topics, committed_records
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from roster.pipeline.batch import Batch

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

ORDERS = [{"shop": "abc"[n % 3], "price": n * 1.5, "tags": "x y z"[: n % 6]} for n in range(40)]
FIELDS = "shop string, price double, tags string"


@pytest.fixture(scope="module")
def orders(topics: Topics) -> str:
    topic = topics.create(3, name="orders")
    producer = idempotent_producer(topics.bootstrap, {})
    for number, order in enumerate(ORDERS):
        value = json.dumps(order) if number % 10 else "no JSON"
        producer.produce(topic, value, order["shop"], partition=number % 3, timestamp=1_700_000_000_000 + number)
    assert producer.flush(60) == 0
    return topic


@pytest.fixture(scope="module")
def cities(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("a", "Rome"), ("b", "Oslo")], "shop string, city string")


def reader(spark: SparkSession, topics: Topics, topic: str) -> StreamReader:
    options = {"kafka.bootstrap.servers": topics.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    return read_stream(spark).format("kafka").options(**options)


def program(records: DataFrame, cities: DataFrame) -> DataFrame:
    """The shape of most programs: parsed, filtered, exploded, joined with a table, a function, SQL over a view."""
    shout = F.udf(lambda text: None if text is None else text.upper(), "string")
    rows = (
        records.select(F.from_json(F.col("value").cast("string"), FIELDS).alias("order"), "partition", "timestamp")
        .select("order.*", "partition", "timestamp")
        .withWatermark("timestamp", "1 minute")
        .where("price > 3")
        .withColumn("tag", F.explode(F.split("tags", " ")))
        .join(F.broadcast(cities), "shop", "left")
        .withColumn("loud", shout("shop"))
    )
    rows.createOrReplaceTempView("tagged")
    return records.sparkSession.sql(
        "from tagged |> where tag <> 'z' |> extend to_date(timestamp) as day "
        "|> join lateral (select explode(array(price, 2 * price)) as either)"
    )


def wanted(spark: SparkSession, cities: DataFrame) -> list[Any]:
    """The same program over the records as a batch."""
    rows = [
        (json.dumps(order) if n % 10 else "no JSON", n % 3, 1_700_000_000 + n / 1000) for n, order in enumerate(ORDERS)
    ]
    batch = spark.createDataFrame(rows, "value string, partition int, at double")
    return sorted(program(batch.withColumn("timestamp", F.expr("cast(at as timestamp)")).drop("at"), cities).collect())


class Heard(StreamingQueryListener):  # type: ignore[misc] # PySpark has no hints for it
    """Keeps the metrics of the last batch."""

    last: Any = None

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        self.last = event.progress.observedMetrics["seen"]

    def onQueryTerminated(self, event: Any) -> None:
        pass


def test_a_program_gives_the_rows_of_a_batch_in_memory_and_in_files(
    spark: SparkSession, topics: Topics, orders: str, cities: DataFrame, group: str, tmp_path: Path
) -> None:
    expected = wanted(spark, cities)
    frame = program(reader(spark, topics, orders).load(), cities)
    assert frame.isStreaming

    name = group.replace("-", "_")
    observed = frame.observe("seen", F.count("*").alias("rows"), F.max("shop").alias("last"))
    listener = Heard()
    spark.streams.addListener(listener)
    spark.streams.resetTerminated()
    query = write_stream(observed).queryName(name).format("memory").trigger(availableNow=True).start()
    assert spark.streams.awaitAnyTermination(120)
    assert sorted(spark.table(name).collect()) == expected
    seen = [progress.observedMetrics["seen"] for progress in query.recentProgress]
    until(lambda: listener.last == seen[-1], what="the listener's metrics")
    spark.streams.removeListener(listener)
    assert sum(metrics.rows for metrics in seen) == len(expected)
    assert max(metrics.last for metrics in seen if metrics.last) == max(row["shop"] for row in expected if row["shop"])
    assert (query.isActive, query.exception(), query.name, query.status["message"]) == (False, None, name, "stopped")
    assert query.lastProgress is not None
    assert (query.lastProgress.numInputRows, query.lastProgress.id, query.lastProgress["name"]) == (
        40,
        uuid.UUID(query.id),
        name,
    )

    path = tmp_path / "rows"
    query = write_stream(frame).queryName(group).partitionBy("city").trigger(once=True).start(str(path))
    query.awaitTermination()
    rows = spark.read.parquet(str(path)).select(frame.columns).collect()
    assert sorted(rows, key=repr) == sorted(expected, key=repr)
    assert topics.committed(group) == topics.ends(orders)
    # A second run goes on from the group's offsets.
    write_stream(frame).queryName(group).partitionBy("city").trigger(once=True).start(str(path)).awaitTermination()
    assert spark.read.parquet(str(path)).count() == len(expected)


def test_a_table_in_memory_keeps_rows_in_front_of_and_behind_batches_without_any(spark: SparkSession) -> None:
    sink, batch = MemorySink("kept_in_memory"), cast("Batch", None)
    for numbers in ([], [1, 2], [], [], [3], []):
        rows = spark.createDataFrame([(number, [number]) for number in numbers], "n int, same array<int>")
        sink.write(rows, batch)
        assert spark.table("kept_in_memory").schema == rows.schema
    assert sorted(spark.table("kept_in_memory").collect()) == [(1, [1]), (2, [2]), (3, [3])]


def test_kafka_gets_the_columns_that_spark_takes(spark: SparkSession, topics: Topics, orders: str, group: str) -> None:
    out = topics.create(2, name="out")
    frame = reader(spark, topics, orders).option("kafka.group.id", group).load()
    rows = frame.select("key", F.concat_ws("-", "partition", "offset").alias("value"), "offset")
    write_stream(rows).format("kafka").option("topic", out).trigger(availableNow=True).start().awaitTermination()
    found = [(key, value) for _, key, value in committed_records(topics, out)]
    sent = [(order["shop"].encode(), f"{n % 3}-{n // 3}".encode()) for n, order in enumerate(ORDERS)]
    assert sorted(found) == sorted(sent)


def test_functions_and_sparks_own_formats_get_each_row(
    spark: SparkSession, topics: Topics, orders: str, group: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    frame = reader(spark, topics, orders).load().selectExpr("partition", "offset")
    batches: list[tuple[int, int]] = []

    def keep(df: DataFrame, batch: int) -> None:
        batches.append((batch, df.count()))

    seen = tmp_path / "seen"

    class Rows:
        def __init__(self, *, opens: bool = True, failing: int = -1) -> None:
            self.opens, self.failing = opens, failing

        def tell(self, what: str, value: object) -> None:
            with seen.open("a") as file:
                file.write(f"{what} {value!r}\n")

        def open(self, partition_id: int, epoch_id: int) -> bool:
            self.tell("open", partition_id)
            return self.opens and epoch_id > 0

        def process(self, row: Any) -> None:
            if row.offset == self.failing:
                raise ValueError(f"no place for {row.offset}")
            self.tell("row", (row.partition, row.offset))

        def close(self, error: Exception | None) -> None:
            self.tell("close", error)

    def calls(rows: Rows) -> list[str]:
        """What Spark's protocol has called."""
        seen.unlink(missing_ok=True)
        query = write_stream(frame).queryName(f"{group}-{rows.opens}-{rows.failing}").foreach(rows)
        with contextlib.suppress(StreamingQueryException):
            query.trigger(availableNow=True).start().awaitTermination()
        return seen.read_text().splitlines()

    write_stream(frame).queryName(f"{group}-1").foreachBatch(keep).trigger(availableNow=True).start().awaitTermination()
    assert sum(rows for _, rows in batches) == 40
    told = calls(Rows())
    assert len({call for call in told if call.startswith("row")}) == 40
    assert told.count("close None") == sum(call.startswith("open") for call in told)
    told = calls(Rows(opens=False))
    assert {call.split()[0] for call in told} == {"open", "close"}
    assert "close ValueError('no place for 7')" in calls(Rows(failing=7))
    with caplog.at_level(logging.INFO, "roster.pipeline"):
        write_stream(frame).queryName(f"{group}-3").option("checkpointLocation", "/x").format("json").trigger(
            once=True
        ).start(str(tmp_path / "json")).awaitTermination()
    assert spark.read.json(str(tmp_path / "json")).count() == 40
    said = "\n".join(record.getMessage() for record in caplog.records)
    assert f"checkpointLocation is not used: the group '{group}-3' keeps offsets, and begins at" in said
    assert "format('json') by Spark's batch writer, at least once" in said


def test_an_error_of_the_program_ends_the_query_and_is_told(
    spark: SparkSession, topics: Topics, orders: str, group: str
) -> None:
    def fail(_: DataFrame, __: int) -> None:
        raise ValueError("the database is away")

    spark.streams.resetTerminated()
    query = write_stream(reader(spark, topics, orders).load()).queryName(group).foreachBatch(fail).start()
    with pytest.raises(StreamingQueryException, match="ValueError: the database is away"):
        spark.streams.awaitAnyTermination()
    for wait in (query.awaitTermination, query.processAllAvailable):
        with pytest.raises(StreamingQueryException, match="ValueError: the database is away") as caught:
            wait()
        assert isinstance(caught.value.__cause__, ValueError)
    assert isinstance(ended := query.exception(), StreamingQueryException)
    assert (ended.getCondition(), type(ended.__cause__)) == ("STREAM_FAILED", ValueError)
    query.stop()
    assert not query.isActive
    assert topics.committed(group) == {} or set(topics.committed(group).values()) == {0}


@pytest.mark.gate
def test_what_differs_after_a_failure_and_at_a_number_beyond_its_type(
    spark: SparkSession, topics: Topics, group: str
) -> None:
    """A batch that is done again may have more records and has another number; a record at which sums stop is named."""
    source, dead = topics.create(1, name="numbers"), topics.create(1, name="dead")

    def produce(*numbers: int) -> None:
        producer = idempotent_producer(topics.bootstrap, {})
        for number in numbers:
            producer.produce(source, json.dumps({"n": number}))
        assert producer.flush(60) == 0

    def keep(df: DataFrame, batch: int) -> None:
        batches.append((batch, [row.n for row in df.collect()]))
        if len(batches) == 1:
            raise OSError("away")

    def begun(name: str, frame: DataFrame) -> Any:
        query = write_stream(frame).queryName(f"{group}-{name}").trigger(availableNow=True).foreachBatch(keep).start()
        query.awaitTermination()

    batches: list[tuple[int, list[int]]] = []
    produce(1, 2)
    numbers = (
        reader(spark, topics, source).load().select(F.from_json(F.col("value").cast("string"), "n int").alias("v"))
    )
    with pytest.raises(StreamingQueryException, match="OSError: away"):
        begun("again", numbers.select("v.n"))
    produce(3)
    begun("again", numbers.select("v.n"))
    (first, before), (second, after) = batches
    assert (before, after) == ([1, 2], [1, 2, 3])
    assert first < second
    produce(2**31 - 1, 4)
    sums = "v.n + 1 as n"
    with pytest.raises(StreamingQueryException, match=rf"FunctionError: .*{source}.*offset 3"):
        begun("stops", numbers.selectExpr(sums))
    records = reader(spark, topics, source).option("roster.dead_letter_topic", dead).load()
    rows = records.select(F.from_json(F.col("value").cast("string"), "n int").alias("v")).selectExpr(sums)
    begun("goes-on", rows)
    assert batches[-1][1] == [2, 3, 4, 5]
    assert [value for _, _, value in committed_records(topics, dead)] == [json.dumps({"n": 2**31 - 1}).encode()]


def test_a_query_has_the_pace_of_a_pipeline_unless_it_has_a_trigger(spark: SparkSession, topics: Topics) -> None:
    writer = write_stream(reader(spark, topics, "unread").load())
    assert writer._interval_ms is None  # 100 to 900 ms, as the pipeline's tests hold
    assert writer.trigger(processingTime="0 seconds")._interval_ms == 0


REFUSED: dict[str, tuple[Callable[[DataFrame, DataFrame], Any], str]] = {
    "two streams": (
        lambda df, _: df.alias("a").join(df.alias("b"), "key"),
        r"join\(.*key.*\): a join of two streams has",
    ),
    "everything at once": (
        lambda df, _: df.orderBy("key").limit(3),
        r"limit\(3\): a stream has no end \(Limit each batch in foreachBatch\); orderBy\(key ASC.*\).*: a stream has",
    ),
    "an order": (lambda df, _: df.orderBy("offset"), "a stream has no order"),
    "a table in front": (lambda df, t: t.withColumn("key", F.lit(b"")).join(df, "key", "left"), "Spark: .*[Oo]uter"),
    "no stream": (lambda _, table: table, "the frame is not one of a stream"),
    "another source": (lambda df, _: df.sparkSession.readStream.format("rate").load(), "the source 'rate'"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_run_is_refused_at_the_start_with_the_way_out(
    spark: SparkSession, topics: Topics, cities: DataFrame, kind: str
) -> None:
    program, said = REFUSED[kind]
    frame = program(reader(spark, topics, "unread").load(), cities)
    with pytest.raises(PipelineError, match=said):
        write_stream(frame).queryName("never").format("console").start()


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (lambda w: w.format("console").start(), "queryName: the query has no name, so its consumer group has none"),
        (lambda w: w.outputMode("complete"), "outputMode: each application of the group would show its part only"),
        (lambda w: w.outputMode("upsert"), "outputMode: 'upsert' is not known"),
        (lambda w: w.outputMode(None), "outputMode: None is not known"),
        (lambda w: w.format(None), "format: None is not a name"),
        (lambda w: w.trigger(processingTime="5 sheep"), r"trigger\(processingTime\): "),
        (lambda w: w.trigger(processingTime=5), r"trigger\(processingTime\): 5 is not text. For example"),
        (lambda w: w.trigger(continuous="1 second"), r"trigger\(continuous\): batches only"),
        (lambda w: w.trigger(), "trigger: exactly one kind is needed"),
        (
            lambda w: w.queryName("q").format("memory").option("roster.stat.dir", "x").start(),
            "roster.stat.dir: Roster has",
        ),
        (lambda w: w.queryName("q").format("csv").start(), "start: no path is given"),
        (lambda w: w.queryName("q").format("parket").start("out"), r"format: \[DATA_SOURCE_NOT_FOUND\] .*parket"),
        (
            lambda w: w.queryName("q").format("console").option("numRows", "few").start(),
            r"format\(console\): numRows is",
        ),
        (lambda w: w.queryName("q").format("kafka").option("topik", "x").start(), "topik: Spark's Kafka sink has no"),
        (
            lambda w: (
                w.format("kafka")
                .options(**{"roster.http": "x", "topik": "x", "roster.idle_after": "soon", "kafka.akcs": "1"})
                .start()
            ),
            r"^queryName: .*\(Call queryName.*\); roster.http: .*; roster.idle_after: .*; topik: .*; kafka.akcs: .*",
        ),
        (lambda w: w.foreachBatch("print"), "foreachBatch: 'print' is not callable"),
        (lambda w: w.foreach(object()), "foreach: "),
        (lambda w: w.sink("parquet"), r"sink: 'parquet' is not a Sink\. Use format"),
        (lambda w: w.queryName("q").partitionBy("key").foreachBatch(print).start(), "partitionBy: a function or a"),
    ],
)
def test_a_wrong_option_of_a_query_is_one_line(
    spark: SparkSession, topics: Topics, start: Callable[[Any], Any], said: str
) -> None:
    with pytest.raises(PipelineError, match=said):
        start(write_stream(reader(spark, topics, "unread").load()))


def test_a_writer_of_spark_says_that_it_is_not_the_frames(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    rows = reader(spark, topics, "unread").load().groupBy("key").count().writeStream.outputMode("update")
    query = rows.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(StreamingQueryException, match=r"is written by write_stream\(df\), in place of df\.writeStream"):
        query.awaitTermination(60)


def test_names_that_a_reader_lacks_are_told(spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match=r"load\(path\): topics have no path"):
        read_stream(spark).load("path")
    with pytest.raises(PipelineError, match=r"load\(schema\): its columns are those of Spark's Kafka source"):
        read_stream(spark).load(schema="value string")
    for name in ("rate", None):
        with pytest.raises(PipelineError, match=f"format: {name!r} is not read by a group"):
            read_stream(spark).format(cast("Any", name))


def test_a_union_reads_each_part_of_its_topic(spark: SparkSession, topics: Topics, orders: str, group: str) -> None:
    frame = reader(spark, topics, orders).load().select("offset", "topic")
    counts: list[int] = []
    producer = idempotent_producer(topics.bootstrap, {})
    another = topics.create(1, name="another")
    for number in range(5):
        producer.produce(another, str(number))
    assert producer.flush(60) == 0
    other = reader(spark, topics, another).load().select("offset", "topic").where("offset > 1")
    both = frame.where("offset < 3").union(frame.where("offset >= 3")).union(other)
    query = write_stream(both).queryName(group).foreachBatch(lambda df, _: counts.append(df.count()))
    query.trigger(availableNow=True).start().awaitTermination()
    assert sum(counts) == 43
    latest = reader(spark, topics, another).option("startingOffsets", "latest").load().select("offset", "topic")
    with pytest.raises(PipelineError, match="sources with different options: startingOffsets is earliest and latest"):
        write_stream(frame.union(latest)).queryName(group).format("console").start()


def test_ctrl_c_finishes_the_batch_and_leaves_the_group(
    spark: SparkSession, topics: Topics, orders: str, group: str
) -> None:
    query = write_stream(reader(spark, topics, orders).load()).queryName(group).format("noop").start()
    before = signal.getsignal(signal.SIGINT)

    def interrupt() -> None:
        until(lambda: query.lastProgress is not None and signal.getsignal(signal.SIGINT) is not before, 120, "it runs")
        os.kill(os.getpid(), signal.SIGINT)

    assert query.awaitTermination(0.01) is False
    threading.Thread(target=interrupt).start()
    query.awaitTermination()
    assert query.awaitTermination(1) is True
    assert (query.isActive, query.exception()) == (False, None)
    assert topics.admin.describe_group(group).members == []
    assert signal.getsignal(signal.SIGINT) is before


def test_jdbc_to_postgresql_is_its_own_sink_and_to_others_sparks_writer(spark: SparkSession, topics: Topics) -> None:
    writer = write_stream(reader(spark, topics, "unread").load()).format("jdbc")
    options = {"dbtable": "shop.orders", "user": "me", "password": "p&w", "driver": "org.postgresql.Driver"}
    sink = writer._sink({"url": "jdbc:postgresql://db:5433/shop?sslmode=require", **options}, None, "b:9092")
    assert isinstance(sink, PostgresSink)
    assert sink._parameters == {
        "host": "db",
        "port": "5433",
        "dbname": "shop",
        "sslmode": "require",
        "user": "me",
        "password": "p&w",
    }
    assert "p&w" not in sink._shown
    for url, more in (("jdbc:mysql://db/shop", {}), ("jdbc:postgresql://db/shop", {"batchsize": "9"})):
        sink = writer._sink({"url": url, "dbtable": "orders", **more}, None, "b:9092")
        assert isinstance(sink, FormatSink)
        assert (sink.format, sink.path, sink.options) == ("jdbc", None, {"url": url, "dbtable": "orders", **more})
