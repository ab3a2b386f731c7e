"""Rows as records of a Kafka topic, produced by the tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaException, Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from typing_extensions import override

from roster.client import Admin, AuthenticationError, AuthorizationError, ClientError, UnknownTopicError
from roster.model.topics import NAME_RULE, is_legal_name
from roster.security import PLAINTEXT, Security
from roster.security.librdkafka import librdkafka_settings
from roster.spark.batch import Batch
from roster.spark.errors import PipelineError
from roster.spark.options import check_security, parse_bootstrap, refuse_security_names
from roster.spark.sinks.base import Sink

_ANSWER_MS = 10_000
_COLUMNS = {
    "key": "string or binary",
    "value": "string or binary",
    "topic": "string",
    "partition": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
"""Columns that are written, with their types; others are left out."""


class KafkaSink(Sink):
    """Writes rows to a Kafka topic from the tasks with acks=all; at least once.

    Columns as in Spark's Kafka sink: `value` (string or binary, required), `key` (string or binary), `topic` (string,
    required unless `topic` is given here), `partition` (int), `headers` (array of struct key, value).

    `bootstrap` and `security` are as for `Pipeline`, `options` are librdkafka producer settings. Raises PipelineError
    for an address, a topic name or a setting that is not valid. A run fails with PipelineError if no broker answers
    within 10 s or lets this client in, the topic does not exist or the rows have other columns, and with Spark's error
    if a row is not acknowledged.
    """

    accepts_part = True

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        topic: str | None = None,
        *,
        security: Security | Mapping[str, object] | None = None,
        options: Mapping[str, str | int | bool] | None = None,
    ) -> None:
        self._bootstrap = parse_bootstrap(bootstrap)
        if topic is not None and not is_legal_name(topic):
            raise PipelineError(f"{topic!r} is not a topic name", field="topic", fix=f"Use {NAME_RULE}")
        self._topic = topic
        self._security = check_security(security)
        refuse_security_names(options or {}, "KafkaSink: options")
        self._settings: dict[str, Any] = {
            "bootstrap.servers": self._bootstrap,
            "linger.ms": 5,
            "enable.idempotence": True,
            **(options or {}),
            "acks": "all",
        }

    @override
    def open(self, spark: SparkSession, group: str) -> None:
        try:
            Producer({**self._settings, "log_level": 2, "error_cb": lambda error: None})
        except (KafkaException, TypeError, ValueError) as error:
            text = error.args[0].str() if isinstance(error, KafkaException) else str(error)
            raise PipelineError(text, field="KafkaSink", fix="Check options") from None
        try:
            with Admin(self._bootstrap, request_timeout_ms=_ANSWER_MS, security=self._security) as admin:
                admin.describe_topic(self._topic) if self._topic is not None else admin.list_topics()
        except UnknownTopicError:
            raise PipelineError(
                f"there is no topic {self._topic!r}",
                field="KafkaSink",
                fix=f"Create it, for example with `roster topics create {self._topic}`",
            ) from None
        except AuthorizationError:
            fix = "Grant it WRITE on the topic"
            raise PipelineError(f"this client may not write to {self._topic!r}", field="KafkaSink", fix=fix) from None
        except AuthenticationError as error:
            raise PipelineError(str(error), field="KafkaSink", fix="Check security") from None
        except ClientError as error:
            raise PipelineError(
                f"no answer from {self._bootstrap} within {_ANSWER_MS / 1000:g} s: {error}",
                field="KafkaSink",
                fix="Check bootstrap and security",
            ) from None

    @override
    def write(self, df: DataFrame, batch: Batch) -> None:
        self.check(df.schema)
        columns = set(df.columns)
        chosen = [name for name in _COLUMNS if name in columns]
        df.select(*chosen).mapInArrow(Produce(self._settings, self._topic, self._security), "sent long").write.format(
            "noop"
        ).mode("overwrite").save()

    def check(self, schema: StructType) -> None:
        """Raise PipelineError if rows with these columns cannot be written."""
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
    """Function of the tasks: produces each row, flushes, and fails the task if a row was not acknowledged."""

    def __init__(self, settings: Mapping[str, Any], topic: str | None, security: Security = PLAINTEXT) -> None:
        self._settings, self._topic, self._security = dict(settings), topic, security

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Produce the task's rows; yield one row with their number."""
        failures: list[str] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                failures.append(f"{message.topic()}: {error.str()}")

        producer, sent = Producer({**self._settings, **librdkafka_settings(self._security)}), 0
        for batch in batches:
            for row in batch.to_pylist():
                _enqueue(producer, on_delivery=delivered, **self._record(row))
                sent += 1
            producer.poll(0)
            if failures:
                break
        unsent = producer.flush()
        if failures or unsent:
            raise RuntimeError(f"{len(failures) + unsent} of {sent} rows not written: {'; '.join(failures[:3])}")
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
