"""Nexmark's queries as pipelines give what Spark's SQL gives for all events at once."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from roster.model import parse_addresses
from roster.records.produce import KafkaWriter
from roster.spark import KafkaSink, Pipeline, State
from tests.spark.nexmark.answers import answers, results, rows_of
from tests.spark.nexmark.events import KEYS, Events, closing, events
from tests.spark.nexmark.queries import QUERIES
from tests.spark.spark_topics import committed_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.spark_topics import Topics

COUNT = 10_000
PARTITIONS = 2
LATER = {"q4", "q5", "q6", "q7", "q11"}
"""Queries with results that come when windows close."""
pytestmark = [pytest.mark.spark, pytest.mark.gate, pytest.mark.timeout(600)]


def produce(topics: Topics, made: Events) -> None:
    for topic in KEYS:
        output = KafkaWriter(tuple(parse_addresses(topics.bootstrap)), topic).open()
        for batch in made.records(topic).combine_chunks().to_batches():
            output.write(batch)
        output.close()


def test_results_are_those_of_sql(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    for topic in (*KEYS, *QUERIES):
        topics.admin.create_topic(
            topic, PARTITIONS, configs={"cleanup.policy": "compact"} if topic == "persons" else {}
        )

    def source(group: str) -> Any:
        return lambda topic: Pipeline(
            spark, topics.bootstrap, group, [topic], state=State(dir=str(tmp_path)), log=False
        )

    pipelines = {name: query(source(name)).write(KafkaSink(topics.bootstrap, name)) for name, query in QUERIES.items()}
    data = events(COUNT)
    for made, names in (
        (data, pipelines.keys() - LATER),
        (closing(timedelta(hours=1)), LATER),
        (closing(timedelta(days=3)), LATER),
    ):
        produce(topics, made)
        running = [pipelines[name].start(available_now=True) for name in sorted(names)]
        for pipeline in running:
            pipeline.wait()
    wrong = {}
    for name, answer in answers(spark, data).items():
        written = (json.loads(value) for _, _, value in committed_records(topics, name) if value)
        found, expected = results(name, answer.schema, written), rows_of(answer)
        assert len(expected) > 0, name
        if found != expected:
            wrong[name] = len(found), len(expected), found[:3], expected[:3]
    assert wrong == {}
