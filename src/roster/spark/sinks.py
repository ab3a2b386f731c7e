"""Where batches go: the sink's contract, and the sinks that are at least once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer

from roster.model.topics import NAME_RULE, is_legal_name
from roster.spark.errors import PipelineError
from roster.spark.options import parse_bootstrap

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from roster.model import TopicPartition
    from roster.spark.batch import Batch, Owner

_ANSWER_SECONDS = 10.0
_COLUMNS = {
    "key": "string or binary",
    "value": "string or binary",
    "topic": "string",
    "partition": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
"""The columns that are written and what they must be; the rest of the rows is left out."""


class Sink:
    """Takes batches in three steps: `write` does the work, `commit` makes it count, `abort` drops it.

    The methods here are those of an at-least-once sink without a position. A sink is exactly once when `claim` answers
    where each partition stands in the sink itself and `commit` makes results and new positions visible in one atomic
    step, raising `SinkFencedError` if any partition no longer stands at its range's start.
    """

    default_trigger_interval_ms: int = 0
    """How far apart batches start when the pipeline's `trigger_interval_ms` is None; a full batch does not wait."""

    accepts_part: bool = False
    """`write` may be given part of a batch that is then aborted: a function that fails ends the batch at once. False:
    Spark fails the task, and tries it again, before `write` sees that rows are missing."""

    def open(self, spark: SparkSession, group: str) -> None:
        """Check what can be checked before the pipeline joins the group; errors are `PipelineError`."""

    def claim(
        self, partitions: Collection[TopicPartition], owner: Owner, committed: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        """Called when partitions were taken over: the next offset each needs, without those the sink never saw.

        `committed` are the group's offsets. One past the sink's position means that another kind of member did that
        work: the sink moves on to it.
        """
        return {}

    def write(self, df: DataFrame, batch: Batch) -> Any:
        """Do the batch's work without making it count, in the batch's job group; the result goes to the other two."""
        raise NotImplementedError

    def commit(self, staged: Any, batch: Batch) -> None:
        """Make the work count, or raise `SinkFencedError`."""

    def abort(self, staged: Any, batch: Batch) -> None:
        """Drop the work: ownership was lost or the deadline came first. `staged` is None if `write` did not end."""

    def close(self) -> None:
        """The pipeline has ended."""


class ForeachBatch(Sink):
    """Calls a function with each batch's DataFrame; at least once, unless the function stores `batch.ranges` itself."""

    def __init__(self, function: Callable[[DataFrame, Batch], object]) -> None:
        self._function = function

    def write(self, df: DataFrame, batch: Batch) -> None:
        """Calls the function."""
        self._function(df, batch)


class ConsoleSink(Sink):
    """Prints the first rows of each batch."""

    def __init__(self, rows: int = 20, *, truncate: bool | int = True) -> None:
        self._rows, self._truncate = rows, truncate

    def write(self, df: DataFrame, batch: Batch) -> None:
        """Prints a heading and the first rows."""
        print(f"batch {batch.number}, generation {batch.generation}")  # noqa: T201 - printing is this sink's work
        df.show(self._rows, truncate=self._truncate)


class KafkaSink(Sink):
    """Writes rows to a Kafka topic from the tasks, acks=all, at least once.

    Columns as in Spark's Kafka sink: `value` (string or binary, required), `key` (string or binary), `topic` (string,
    required unless `topic` is given here), `partition` (int), `headers` (array of struct key, value).
    `bootstrap` is as for `Pipeline`, `options` are librdkafka producer settings.
    """

    accepts_part = True

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        topic: str | None = None,
        *,
        options: Mapping[str, str | int | bool] | None = None,
    ) -> None:
        self._bootstrap = parse_bootstrap(bootstrap)
        if topic is not None and not is_legal_name(topic):
            raise PipelineError(f"{topic!r} is not a topic name", field="topic", fix=f"Use {NAME_RULE}")
        self._topic = topic
        self._settings: dict[str, Any] = {
            "bootstrap.servers": self._bootstrap,
            "linger.ms": 5,
            "enable.idempotence": True,
            **(options or {}),
            "acks": "all",
        }

    def open(self, spark: SparkSession, group: str) -> None:
        """PipelineError if the settings are wrong, no broker answers, or the topic is missing and not made on use."""
        try:
            producer = Producer({**self._settings, "log_level": 2, "error_cb": lambda error: None})
        except (KafkaException, TypeError, ValueError) as error:
            text = error.args[0].str() if isinstance(error, KafkaException) else str(error)
            raise PipelineError(text, field="KafkaSink", fix="Check options") from None
        try:
            answer = producer.list_topics(self._topic or "", timeout=_ANSWER_SECONDS)
        except KafkaException as error:
            raise PipelineError(
                f"no answer from {self._bootstrap} within {_ANSWER_SECONDS:g} s: {error.args[0].str()}",
                field="KafkaSink",
                fix="Check bootstrap and options",
            ) from None
        if self._topic is None:
            return
        found = answer.topics[self._topic]
        if found.error is not None and found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise PipelineError(
                f"there is no topic {self._topic!r}",
                field="KafkaSink",
                fix=f"Create it, for example with `roster topics create {self._topic}`",
            )

    def write(self, df: DataFrame, batch: Batch) -> None:
        """Sends the rows from the tasks; an unacknowledged row fails the batch."""
        self.check(df.schema)
        columns = set(df.columns)
        chosen = [name for name in _COLUMNS if name in columns]
        df.select(*chosen).mapInArrow(Produce(self._settings, self._topic), "sent long").write.format("noop").mode(
            "overwrite"
        ).save()

    def check(self, schema: StructType) -> None:
        """PipelineError if rows of these columns cannot be written."""
        types = {field.name: field.dataType.simpleString() for field in schema.fields}
        if "value" not in types:
            raise PipelineError(
                f"the rows have no column `value` (they have {', '.join(types)})",
                field="KafkaSink",
                fix="Name the column to be written `value`",
            )
        if self._topic is None and "topic" not in types:
            raise PipelineError(
                "no topic to write to", field="KafkaSink", fix="Pass topic= or add a column `topic` to the rows"
            )
        for name, wanted in _COLUMNS.items():
            given = types.get(name)
            if given is not None and given not in (*wanted.split(" or "), "void"):
                raise PipelineError(
                    f"column `{name}` is {given}, and must be {wanted}",
                    field="KafkaSink",
                    fix=f"Cast it, for example with cast({name} AS {wanted.partition(' ')[0]}), or make JSON of it",
                )


class Produce:
    """The task's side of `KafkaSink`: sends each row, flushes, and fails the task if any row was not acknowledged."""

    def __init__(self, settings: Mapping[str, Any], topic: str | None) -> None:
        self._settings, self._topic = dict(settings), topic

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Consumes the task's rows; yields one row with the number sent."""
        failures: list[str] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                failures.append(f"{message.topic()}: {error.str()}")

        producer, sent = Producer(self._settings), 0
        for batch in batches:
            for row in batch.to_pylist():
                _enqueue(producer, on_delivery=delivered, **self._record(row))
                sent += 1
            producer.poll(0)
            if failures:
                break
        left = producer.flush()
        if failures or left:
            raise RuntimeError(f"{len(failures) + left} of {sent} rows not written: {'; '.join(failures[:3])}")
        yield pa.RecordBatch.from_pydict({"sent": [sent]})

    def _record(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The row as arguments of `Producer.produce`."""
        topic = self._topic if self._topic is not None else row["topic"]
        record: dict[str, Any] = {"topic": topic, "value": row["value"], "key": row.get("key")}
        if row.get("partition") is not None:
            record["partition"] = row["partition"]
        if row.get("headers"):
            record["headers"] = [(header["key"], header["value"]) for header in row["headers"]]
        return record


def _enqueue(producer: Producer, **record: Any) -> None:
    """Hand one record to librdkafka; while its queue is full, wait for acknowledgements."""
    while True:
        try:
            return producer.produce(**record)
        except BufferError:
            producer.poll(0.1)
