"""Pipelines over Avro with a registry: a schema that turns up amid a run, dead letters, state."""

from __future__ import annotations

import logging
import uuid
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from roster.spark import Avro, KafkaSink, ParquetSink, Pipeline, PipelineError, Registry, State
from roster.testing import SchemaRegistry
from tests.librdkafka import idempotent_producer
from tests.pipeline.tasks.test_avro_values import ONE, TWO, body, frame, order
from tests.spark.spark_topics import committed_records

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own dependencies warn of theirs
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from tests.spark.spark_topics import Topics

PAGE = (Path(__file__).parents[3] / "docs/how-to/avro.md").read_text()


@pytest.mark.spark
@pytest.mark.gate
def test_a_schema_that_turns_up_amid_a_run_is_fetched_and_its_batch_done_again(
    spark: SparkSession, topics: Topics, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "roster")
    topic, letters, out = topics.create(2), topics.create(1), str(tmp_path / "out")
    producer = idempotent_producer(topics.bootstrap)

    def send(*each: bytes) -> None:
        for number, value in enumerate(each):
            producer.produce(topic, value, partition=number % 2)
        assert producer.flush(60) == 0

    with SchemaRegistry() as registry:
        one = registry.register(f"{topic}-value", ONE)
        registry._levels[""] = "NONE"
        send(*(frame(one, body(ONE, shop=f"s{n}", price=n)) for n in range(10)))
        two = 0
        batches: list[int] = []

        def progress(_: object) -> None:
            nonlocal two
            batches.append(1)
            if not two:
                two = registry.register(f"{topic}-value", TWO)
                send(*(frame(two, body(TWO, note=None, price=n + 0.5, shop="new")) for n in range(6)))
                send(frame(one, body(ONE, shop="last", price=99)), b"no frame", frame(two, b"\x07"), frame(77, b""))
                return
            pipeline.stop()

        pipeline = Pipeline(
            spark,
            topics.bootstrap,
            f"g-{uuid.uuid4().hex[:8]}",
            topic,
            dead_letter_topic=letters,
            on_progress=progress,
            trigger_interval_ms=1500,
        )
        pipeline.avro_columns(Registry(registry.url), mode="FAILFAST", keep=["offset"]).write(ParquetSink(out)).run()
        asked = [each for each in registry.requests if "/schemas/ids/" in each]
        assert sorted(asked) == [f"GET /schemas/ids/{two}", "GET /schemas/ids/77"], "once each, by the driver"
    rows = [(row.shop, row.price) for row in spark.read.parquet(out).collect()]
    assert sorted(rows) == sorted([*((f"s{n}", n) for n in range(10)), ("last", 99)]), (
        "TWO has a double where the reader, the latest at the start, has an int"
    )
    dead = [(key, value) for _, key, value in committed_records(topics, letters)]
    assert len(dead) == 9
    assert "is done again, with schemas that were not known" in caplog.text


@pytest.mark.spark
@pytest.mark.parametrize(
    "parsed",
    [
        lambda p: p.avro_columns(schema=order(n="int"), keep=["offset"]),
        lambda p: p.json_columns("n int not null", keep=["offset"]),
    ],
)
@pytest.mark.sampled(1)
def test_what_cannot_be_read_is_a_row_of_nulls_though_the_schema_has_none(
    spark: SparkSession, topics: Topics, tmp_path: Path, parsed: Callable[[Pipeline], Pipeline]
) -> None:
    topic, group, out = topics.create(1), f"g-{uuid.uuid4().hex[:8]}", str(tmp_path / "out")
    producer = idempotent_producer(topics.bootstrap)
    for value in (None, b"\xff\xff", body(order(n="int"), n=7), b'{"n": 7}'):
        producer.produce(topic, value)
    assert producer.flush(60) == 0
    parsed(Pipeline(spark, topics.bootstrap, group, topic)).write(ParquetSink(out)).run(available_now=True)
    rows = [row.n for row in spark.read.parquet(out).orderBy("offset").collect()]
    assert rows[:2] == [None, None]
    assert sorted(rows[2:], key=str) == [7, None]


@pytest.mark.spark
@pytest.mark.gate
def test_the_program_of_the_page_on_avro_and_what_is_refused(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic, results = topics.create(1), topics.create(1)
    producer = idempotent_producer(topics.bootstrap)

    def made(**options: object) -> Pipeline:
        return Pipeline(spark, topics.bootstrap, f"g-{uuid.uuid4().hex[:8]}", topic, **options)  # type: ignore[arg-type]

    with SchemaRegistry() as registry:
        registry._levels[""] = "NONE"
        one, two = registry.register("a", ONE), registry.register("a", TWO)
        for n in range(6):
            producer.produce(topic, frame(one, body(ONE, shop=f"s{n % 2}", price=n)))
            producer.produce(topic, frame(two, body(TWO, note="x", shop=f"s{n % 2}", price=n + 0.5)))
        assert producer.flush(60) == 0
        program = PAGE.split("```python\n")[1].partition("```")[0].replace('session("totals")', "given")
        places = {"localhost:9092": topics.bootstrap, "http://localhost:8081": registry.url, "/data": str(tmp_path)}
        for said, here in {**places, '"orders",': f'"{topic}",', "totals-by-shop": results}.items():
            program = program.replace(said, here)
        exec(program, {"given": spark})
        assert sorted(value for _, _, value in committed_records(topics, results)) == [
            b'{"shop":"s0","orders":6,"revenue":13.5}',
            b'{"shop":"s1","orders":6,"revenue":19.5}',
        ]
        for declare, problem in (
            (lambda p: p.avro_columns(), "avro_columns: the writers' schemas are not known. Name registry="),
            (lambda p: p.avro_columns(Registry(registry.url)), "404 Subject .* not found"),
            (lambda p: p.avro_columns(Registry(registry.url), "n tinyint"), "column 'n': Avro has no values of int8"),
            (lambda p: p.avro_columns(Registry(registry.url), ["n"]), r"avro_columns: \['n'\] is not a schema"),
            (lambda p: p.avro_columns(registry.url), "registry: 'http.*' is none. Use Registry"),
            (
                lambda p: p.avro_columns(schema=[{"type": "int"}]),
                r"schema: \[{'type': 'int'}\] is not a text. Use json.dumps",
            ),
            (lambda p: p.avro_columns(schema={"type": "int"}), "schema: {'type': 'int'} is not a text. Use json.dumps"),
            (lambda p: p.avro_columns(schema="{"), "avro_columns: the schema is not JSON"),
            (lambda p: p.avro_columns(schema=order(key="int"), keep=["key"]), "the schema has a field 'key' too"),
        ):
            with pytest.raises(PipelineError, match=problem):
                declare(made()).write(ParquetSink(str(tmp_path / "out"))).run(available_now=True)


@pytest.mark.spark
def test_avro_becomes_avro_then_totals_then_rows_of_a_transform_and_spark_reads_json_behind_frames(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    orders, messages, totals, copies, documents = (topics.create(2) for _ in range(5))
    out = str(tmp_path / "out")
    with SchemaRegistry() as registry:
        ask, client = Registry(registry.url), SchemaRegistryClient({"url": registry.url})
        one = registry.register(f"{orders}-value", ONE)
        document = registry.register(
            f"{documents}-value", '{"properties": {"n": {"type": "integer"}}, "required": ["n"]}', "JSON"
        )
        producer = idempotent_producer(topics.bootstrap)
        for n in range(10):
            producer.produce(orders, frame(one, body(ONE, shop=f"s{n % 3}", price=n)), partition=n % 2)
            producer.produce(documents, b"\0" + document.to_bytes(4) + b'{"n": %d}' % n, partition=n % 2)
        assert producer.flush(60) == 0

        def made(topic: str, **options: Any) -> Pipeline:
            return Pipeline(spark, topics.bootstrap, f"g-{uuid.uuid4().hex[:8]}", topic, **options)

        def sink(topic: str, **formats: Any) -> KafkaSink:
            return KafkaSink(topics.bootstrap, topic, **formats)

        def ended(pipeline: Pipeline) -> None:
            pipeline.run(available_now=True)

        ended(made(orders).avro_columns(ask).write(sink(messages, value=Avro(ask))))
        of_avro = AvroDeserializer(client)
        found = [
            of_avro(value, SerializationContext(messages, MessageField.VALUE))
            for _, _, value in committed_records(topics, messages)
        ]
        expected = sorted((f"s{n % 3}", float(n)) for n in range(10))
        assert sorted((each["shop"], each["price"]) for each in found) == expected

        counted = made(messages, state=State(dir=str(tmp_path / "state"))).avro_columns(ask)
        counted = (
            counted.map_arrow(_shop_and_price, "key string, shop string, price double")
            .repartition("shop")
            .aggregate("shop", {"orders": "count(*)", "revenue": "sum(price)"})
        )
        ended(counted.write(sink(totals, value=Avro(ask), key=Avro(ask))))
        contexts = [SerializationContext(totals, each) for each in (MessageField.KEY, MessageField.VALUE)]
        results = {
            of_avro(key, contexts[0]): of_avro(value, contexts[1])
            for _, key, value in committed_records(topics, totals)
        }
        assert results == {
            f"s{n}": {"shop": f"s{n}", "orders": len(range(n, 10, 3)), "revenue": float(sum(range(n, 10, 3)))}
            for n in range(3)
        }

        copied = made(totals).avro_columns(ask).transform(lambda df: df.selectExpr("shop", "orders * 2 AS twice"))
        ended(copied.write(sink(copies, value=Avro(ask), exactly_once=False)))
        ended(made(copies).avro_columns(ask, mode="FAILFAST").write(ParquetSink(out)))
        assert {(row.shop, row.twice) for row in spark.read.parquet(out).collect()} == {("s0", 8), ("s1", 6), ("s2", 6)}

        text = F.expr("substring(value, 6)").cast("string")
        numbers = made(documents).transform(
            lambda df: df.select(F.from_json(text, "n int").alias("row")).select("row.*")
        )
        ended(numbers.write(ParquetSink(f"{out}-json")))
        assert sorted(row.n for row in spark.read.parquet(f"{out}-json").collect()) == list(range(10))

        for wrong, problem in (
            (
                sink(totals, value=Avro(ask, subject=f"{orders}-value")),
                "column 'price': double is not written as the schema's int",
            ),
            (sink(totals, value=Avro(ask, subject=f"{documents}-value")), "-value is of type JSON, not AVRO"),
        ):
            with pytest.raises(PipelineError, match=problem):
                ended(
                    made(messages)
                    .avro_columns(ask)
                    .map_arrow(_shop_and_price, "key string, shop string, price double")
                    .write(wrong)
                )


def _shop_and_price(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch([*2 * [batch["shop"]], batch["price"].cast(pa.float64())], ["key", "shop", "price"])
