"""Records that a function fails at: found by halving, sent with their source, and no others."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from hypothesis import given, settings
from hypothesis import strategies as st

from roster.pipeline.errors import FunctionError
from roster.pipeline.options import Options
from roster.pipeline.tasks.arrow_function import ArrowFunction
from roster.pipeline.tasks.dead_letters import RefusedRowError, Salvage, class_name
from roster.pipeline.tasks.json_values import JsonColumns, JsonError
from roster.spark import ParquetSink, Pipeline, PipelineError
from tests.examples_tried import examples

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark.spark_topics import Topics

OFFSETS = pa.schema([("offset", pa.int64())])
PARSED = pa.schema([("l", pa.int64()), ("offset", pa.int64())])


def rows(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"topic": ["t"] * count, "partition": [0] * count, "offset": range(count), "headers": pa.nulls(count)}
    )


def salvaged(function: Any, batch: pa.RecordBatch, **options: Any) -> tuple[list[int], list[tuple[int, str]]]:
    """Offsets of the results, and the rejected ones with their errors."""
    rejected: list[tuple[int, str]] = []

    def reject(record: pa.RecordBatch, error: Exception) -> None:
        (row,) = record.to_pylist()
        rejected.append((row["offset"], str(error)))

    salvage = Salvage(ArrowFunction(function, OFFSETS), reject, **options)
    results = [offset for result in salvage(batch) for offset in result.column("offset").to_pylist()]
    return results, rejected


@settings(max_examples=examples(100))
@given(st.integers(1, 60), st.frozensets(st.integers(0, 59)), st.booleans())
def test_exactly_the_records_it_fails_at_are_rejected_and_the_others_keep_their_order(
    count: int, bad: frozenset[int], streaming: bool
) -> None:
    def function(batch: pa.RecordBatch) -> Any:
        for offset in batch.column("offset").to_pylist():
            if offset in bad:
                raise ValueError(f"no {offset}")
        return batch.select(["offset"])

    def stream(batch: pa.RecordBatch) -> Any:
        for n in range(batch.num_rows):
            yield function(batch.slice(n, 1))

    results, rejected = salvaged(stream if streaming else function, rows(count))
    assert results == [offset for offset in range(count) if offset not in bad], "no result twice, none before a failure"
    assert rejected == [(offset, f"no {offset}") for offset in range(count) if offset in bad]


@pytest.mark.parametrize("every", [2, 3, 10])
def test_many_bad_records_cost_few_calls_and_rows(every: int) -> None:
    calls: list[int] = []

    def function(batch: pa.RecordBatch) -> Any:
        calls.append(batch.num_rows)
        if any(offset % every == 0 for offset in batch.column("offset").to_pylist()):
            raise ValueError("x")
        return batch.select(["offset"])

    results, rejected = salvaged(function, rows(4000))
    assert (len(results), len(rejected)) == (4000 - len(range(0, 4000, every)), len(range(0, 4000, every)))
    assert len(calls) < 2 * 4000
    assert sum(calls) < 5 * 4000


def test_json_that_does_not_fit_costs_two_calls() -> None:
    calls: list[int] = []
    parse = JsonColumns(pa.schema([("l", pa.int64())]), "value", "FAILFAST", ["offset"])

    def function(batch: pa.RecordBatch) -> Any:
        calls.append(batch.num_rows)
        return parse(batch).select(["offset"])

    good = rows(5000)
    values = ['{"l": "x"}' if n % 3 == 0 else "{" if n % 7 == 0 else f'{{"l": {n}}}' for n in range(5000)]
    results, rejected = salvaged(function, good.append_column("value", pa.array(values)))
    bad = [n for n in range(5000) if n % 3 == 0 or n % 7 == 0]
    assert results == [n for n in range(5000) if n not in set(bad)]
    assert [offset for offset, _ in rejected] == bad
    assert {error for offset, error in rejected if offset % 3 == 0} == {
        "the value is not JSON of this schema: field 'l': \"x\" is no int64 (another type)"
    }
    assert calls == [5000, 5000 - len(bad)]


def test_json_errors_of_a_step_that_other_rows_came_to_are_found_by_halving() -> None:
    parse = ArrowFunction(JsonColumns(pa.schema([("l", pa.int64())]), "value", "FAILFAST", ["offset"]), PARSED)

    def function(batch: pa.RecordBatch) -> Any:
        for result in parse.results(batch.slice(0, batch.num_rows).take(pa.array(range(batch.num_rows))[::-1])):
            yield result.select(["offset"])

    values = ['{"l": 1}', "[", '{"l": 2}', '{"l": 3}']
    results, rejected = salvaged(function, rows(4).append_column("value", pa.array(values)))
    assert (sorted(results), [offset for offset, _ in rejected]) == ([0, 2, 3], [1])


def test_one_bad_record_costs_a_call_for_each_halving() -> None:
    calls = []

    def function(batch: pa.RecordBatch) -> Any:
        calls.append(batch.num_rows)
        if 700 in batch.column("offset").to_pylist():
            raise KeyError("x")
        return batch.select(["offset"])

    results, rejected = salvaged(function, rows(1024))
    assert (len(results), [offset for offset, _ in rejected]) == (1023, [700])
    assert len(calls) <= 1 + 10 + 1 + 1, "all, halves, the record itself unless it was alone before, and the rest"


@pytest.mark.parametrize("error", [ConnectionError("away"), MemoryError()])
def test_what_a_retry_may_clear_is_no_reason_to_reject_a_record(error: Exception) -> None:
    def function(batch: pa.RecordBatch) -> Any:
        raise error

    with pytest.raises(FunctionError) as caught:
        salvaged(function, rows(4))
    assert caught.value.passing


def test_wrong_columns_are_a_mistake_of_the_function_and_not_of_a_record() -> None:
    with pytest.raises(FunctionError, match="returned the columns"):
        salvaged(lambda batch: batch.select(["topic"]), rows(4))


def test_headers_read_for_the_dead_letter_alone_are_not_shown_to_the_function() -> None:
    seen = []

    def function(batch: pa.RecordBatch) -> Any:
        seen.append(batch.schema.names)
        return batch.select(["offset"])

    salvaged(function, rows(1), hide_headers=True)
    salvaged(function, rows(1))
    assert seen == [["topic", "partition", "offset"], ["topic", "partition", "offset", "headers"]]


@pytest.mark.parametrize(
    ("topic", "message"),
    [("a b", "is not a topic name"), (7, "is not a topic name"), ("t", "the pipeline reads 't' itself")],
)
def test_a_topic_that_cannot_take_dead_letters_is_refused(topic: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=f"dead_letter_topic: .*{message}"):
        Options(spark=None, bootstrap="b:1", group="g", topics=("t",), dead_letter_topic=topic)


def read_all(bootstrap: str, topic: str, count: int) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[Any] = []
    for _ in range(120):
        found += [message for message in consumer.consume(100, 0.5) if message.error() is None]
        if len(found) >= count:
            break
    consumer.close()
    return found


@pytest.mark.spark
@pytest.mark.process
def test_bad_records_go_to_the_topic_with_their_source_and_the_others_to_the_sink(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic, letters = topics.create(2), topics.create(1, name="letters")
    stamp = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    topics.fill(topic, 2, 100, headers=[("trace", b"7"), ("none", None)], timestamp=int(stamp.timestamp() * 1000))

    def whole(rows: pa.RecordBatch) -> pa.RecordBatch:
        if any(int(value) % 10 == 3 for value in rows.column("value").to_pylist()):
            raise ValueError("a three")
        return rows.select(["partition", "offset"])

    progress: list[Any] = []
    sink = ParquetSink(tmp_path / "out")
    pipeline = Pipeline(spark, topics.bootstrap, "dead", topic, dead_letter_topic=letters, on_progress=progress.append)
    pipeline.map_arrow(whole, "partition int, offset long").write(sink).run(available_now=True)
    kept = sorted((row.partition, row.offset) for row in sink.read(spark).collect())
    bad = sorted((number % 2, number // 2) for number in range(100) if number % 10 == 3)
    assert sorted(kept + bad) == topics.everything(topic)
    assert sum(report.dead_letters for report in progress) == len(bad)
    messages = read_all(topics.bootstrap, letters, len(bad))
    found = []
    for message in messages:
        headers = {name: value and value.decode() for name, value in message.headers()}
        found.append((int(headers["__connect.errors.partition"]), int(headers["__connect.errors.offset"])))
        assert headers["__connect.errors.topic"] == topic
        assert headers["__connect.errors.connector.name"] == "dead"
        assert headers["__connect.errors.exception.class.name"] == "ValueError"
        assert headers["__connect.errors.exception.message"] == "a three"
        assert "in whole" in headers["__connect.errors.exception.stacktrace"]
        assert (headers["trace"], headers["none"]) == ("7", None)
        assert message.timestamp()[1] == int(stamp.timestamp() * 1000)
        number = int(message.value())
        assert (number % 2, number // 2) == found[-1]
        assert message.key() == b"k%d" % (number % 7)
    assert sorted(found) == bad, "each once, as nothing was done again"


@pytest.mark.spark
@pytest.mark.process
def test_what_dead_letters_need_is_checked_before_the_group_is_joined(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create(1, 1)

    def pipeline(name: str) -> Pipeline:
        return Pipeline(spark, topics.bootstrap, "dead-2", topic, dead_letter_topic=name)

    with pytest.raises(PipelineError, match="dead_letter_topic: there is no topic 'nowhere'"):
        pipeline("nowhere").map_arrow(iter, "offset long").foreach_batch(print).run()
    assert not topics.exists("dead-2")


def test_letters_call_an_error_the_same_in_all_releases() -> None:
    names = [class_name(kind) for kind in (ValueError, pa.ArrowInvalid, JsonError, RefusedRowError)]
    json_error, refused = "spark.tasks.json_values.JsonError", "spark.tasks.dead_letters.RefusedRowError"
    assert names == ["ValueError", "pyarrow.lib.ArrowInvalid", f"roster.{json_error}", f"roster.{refused}"]
