"""Pipelines over Avro with a registry: a schema that turns up amid a run, dead letters, state."""

from __future__ import annotations

import logging
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from roster.spark import ParquetSink, Pipeline, PipelineError, Registry
from roster.testing import SchemaRegistry
from tests.librdkafka import idempotent_producer
from tests.spark.spark_topics import committed_records
from tests.spark.test_avro_values import ONE, TWO, body, frame, order

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.spark_topics import Topics

PAGE = (Path(__file__).parents[2] / "docs/how-to/avro-and-protobuf.md").read_text()


@pytest.mark.spark
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
            (lambda p: p.avro_columns(Registry(registry.url), framing="x"), "framing: 'x' is none"),
            (lambda p: p.avro_columns(Registry(registry.url)), "404 Subject .* not found"),
            (lambda p: p.avro_columns(Registry(registry.url), "n tinyint"), "'n' has the type int8, which Avro has no"),
            (lambda p: p.avro_columns(schema="{"), "avro_columns: the schema is no JSON"),
            (lambda p: p.avro_columns(schema=order(key="int"), keep=["key"]), "the schema has a field 'key' too"),
        ):
            with pytest.raises(PipelineError, match=problem):
                declare(made()).write(ParquetSink(str(tmp_path / "out"))).run(available_now=True)
