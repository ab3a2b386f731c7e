"""Rows as records of a Kafka topic, encoded by the tasks; exactly once in the source's cluster."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from typing_extensions import override

from roster.client import (
    Admin,
    AuthenticationError,
    AuthorizationError,
    ClientError,
    TransactionalProducer,
    UnknownTopicError,
    UnreachableError,
)
from roster.model import TopicPartition, parse_addresses
from roster.model.topics import NAME_RULE, is_legal_name
from roster.pipeline.batch import Batch
from roster.pipeline.batch_sink import BatchSink, Source
from roster.pipeline.errors import PipelineError
from roster.pipeline.options import check_security, parse_bootstrap
from roster.pipeline.spark_schemas import arrow_schema
from roster.pipeline.spark_types import DataFrame, SparkSession, StructType
from roster.pipeline.tasks.client_settings import (
    INT32,
    Table,
    number,
    one_of,
    parse_settings,
    refuse_security_names,
    seconds,
)
from roster.pipeline.tasks.writer import TaskWriter, Writer
from roster.records.encoding import EncodingWriter
from roster.records.native import WRITE, compiled
from roster.records.produce import KafkaWriter
from roster.security import Security
from roster.sinks.formats import Avro, check_format, encoding_of
from roster.sinks.kafka_transactions import (
    TRANSACTION_TIMEOUT_MS,
    OtherClusterError,
    TransactionalSink,
    started_producer,
)
from roster.sinks.tasks.encoded_values import RecordEncoding
from roster.wire import ErrorCode
from roster.wire.compression import Compression

log = logging.getLogger("roster.pipeline")

_LOOK_MS = 2_000
_BAD_TIMEOUT = ErrorCode.INVALID_TRANSACTION_TIMEOUT
_COLUMNS = {
    "key": "string or binary",
    "value": "string or binary",
    "topic": "string",
    "partition": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
"""Columns that are written, with their types; others are left out."""


class KafkaSink(BatchSink):
    """Writes rows to a Kafka topic with acks=all; exactly once in the cluster that the pipeline reads from.

    Columns as in Spark's Kafka sink: `value` (string or binary, required), `key` (string or binary), `topic` (string,
    required unless `topic` is given here), `partition` (int), `headers` (array of struct key, value). Rows without a
    partition go where Kafka's Java client puts them: by the key's murmur2 hash, or without a key to one partition after
    the other. A record's timestamp is the time of writing, or with `keep_timestamps` the column `timestamp`.

    `value` and `key` write with schemas, as `value=Avro(registry)`: all other columns are the
    fields of the value, and the column `key` is the key, of any type. All columns of the results
    are the value, and its key column is the key; several are a record.

    Without a transform rows go from the reading task's Arrow columns into record batches, and never cross into the JVM.

    `exactly_once` True: a batch's records and the group's offsets are one Kafka transaction, and readers with
    isolation.level=read_committed see each result once, whatever fails. None: likewise if the cluster supports it, else
    at least once, with a line in the log that says why. False: at least once; each task is an idempotent producer. The
    transactional id begins with the group's name and "-".

    `bootstrap` and `security` are as for `Pipeline`. `options` are settings by the names of Kafka's producers:
    client.id, compression.type, batch.size, max.request.size, buffer.memory, delivery.timeout.ms, request.timeout.ms,
    transaction.timeout.ms.
    Raises PipelineError for an address, a topic name or a setting that is not valid. A run fails with PipelineError if
    no broker answers within its `start_timeout_ms` or lets this client in, the topic does not exist, the rows have
    other columns, or with `exactly_once=True` there can be no such transaction; and with WriteError if rows are not
    acknowledged.
    """

    accepts_part = True

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        topic: str | None = None,
        *,
        security: Security | Mapping[str, object] | None = None,
        options: Mapping[str, str | int | bool] | None = None,
        keep_timestamps: bool = False,
        exactly_once: bool | None = None,
        value: Avro | None = None,
        key: Avro | None = None,
    ) -> None:
        self._bootstrap = parse_bootstrap(bootstrap)
        if topic is not None and not is_legal_name(topic):
            raise PipelineError(f"{topic!r} is not a topic name", field="topic", fix=f"Use {NAME_RULE}")
        self._topic = topic
        self._security = check_security(security)
        refuse_security_names(options or {}, "KafkaSink: options")
        columns = {**_COLUMNS, "timestamp": "timestamp"} if keep_timestamps else _COLUMNS
        self._beside = tuple(name for name in columns if name != "value" or value is None)
        self._columns = {n: columns[n] for n in self._beside if n != "key" or key is None}
        check_format(value, "value")
        check_format(key, "key")
        self._formats, self._encodings = {"key": key, "value": value}, dict[str, RecordEncoding]()
        if exactly_once is not None and not isinstance(exactly_once, bool):
            raise PipelineError(f"{exactly_once!r} is not True, False or None", field="exactly_once")
        self._exactly_once = exactly_once
        self._carries = False
        settings = parse_producer_options(options or {})
        self._transaction_timeout_ms: int = settings.pop("transaction_timeout_ms", TRANSACTION_TIMEOUT_MS)
        self._producer: TransactionalProducer | None = None
        self._partitions: list[TopicPartition] = []
        self._admin: Admin | None = None
        self._missing = ""
        self._writer = KafkaWriter(
            tuple(parse_addresses(self._bootstrap)),
            topic,
            security=self._security,
            keep_timestamps=keep_timestamps,
            **settings,
        )

    @override
    def open(self, spark: SparkSession, group: str, timeout_ms: int = 60_000) -> None:
        try:
            with Admin(self._bootstrap, request_timeout_ms=timeout_ms, security=self._security) as admin:
                if self._topic is None:
                    admin.list_topics()
                else:
                    described = admin.describe_topic(self._topic).partitions
                    self._partitions = [TopicPartition(self._topic, partition.partition) for partition in described]
        except UnknownTopicError:
            fix = f"Create it, for example with `roster topics create {self._topic}`"
            raise PipelineError(f"there is no topic {self._topic!r}", field="KafkaSink", fix=fix) from None
        except AuthorizationError:
            fix = "Grant it WRITE on the topic"
            raise PipelineError(f"this client may not write to {self._topic!r}", field="KafkaSink", fix=fix) from None
        except AuthenticationError as error:
            raise PipelineError(str(error), field="KafkaSink", fix="Check security") from None
        except ClientError as error:
            raise PipelineError(str(error), field="KafkaSink") from error
        self._writer = replace(self._writer, compiled=compiled(WRITE))

    @property
    def topic(self) -> str | None:
        """The topic written to; None if each row names it."""
        return self._topic

    @property
    def is_exactly_once(self) -> bool | None:
        """The argument `exactly_once`."""
        return self._exactly_once

    @property
    def keeps_timestamps(self) -> bool:
        """The argument `keep_timestamps`."""
        return "timestamp" in self._columns

    def carry(self, partitions: Collection[TopicPartition], *, keep_timestamps: bool = False) -> None:
        """Write records for these partitions too, in the same transactions; rows are records with a topic from now on.

        keep_timestamps: records have the time of the rows' column `timestamp`, where that is not null.
        Call it after `open`. `bind` then fails where there can be no transactions.
        """
        self._exactly_once = self._carries = True
        self._formats = dict.fromkeys(self._formats)
        self._partitions = [*self._partitions, *partitions]
        self._writer = replace(self._writer, topic=None, keep_timestamps=keep_timestamps)

    def encoding(self) -> TaskWriter:
        """Return a writer that encodes any number of records for the driver to send."""
        return EncodingWriter(self._writer)

    @override
    def bind(self, source: Source) -> BatchSink:
        self.close()
        if self._exactly_once is False:
            return self
        arguments = source, self._bootstrap, self._security, self._transaction_timeout_ms
        try:
            self._producer = started_producer(*arguments)
        except (ClientError, OtherClusterError) as error:
            is_away = isinstance(error, UnreachableError)  # it may have transactions when it is back
            if self._exactly_once or is_away or (isinstance(error, ClientError) and error.code == _BAD_TIMEOUT):
                fix = _fix_of(error, source.group, optional=not self._carries)
                field = "KafkaSink" if self._carries else "exactly_once"
                raise PipelineError(f"no transactions: {error}", field=field, fix=fix) from error
            log.info("%s: writes to Kafka at least once: %s", source.group, error)
            return self
        return TransactionalSink(self, self._producer, source.group, self._writer, self._partitions)

    @override
    def written_columns(self, df: DataFrame) -> DataFrame:
        if any(self._formats.values()):
            return df
        names = (*self._columns, "timestamp") if self._writer.keep_timestamps else self._columns
        return df.select(*(name for name in dict.fromkeys(names) if name in df.columns))

    @override
    def task_writer(self, batch: Batch | None, schema: StructType) -> KafkaWriter:
        self.check(schema)
        encoding = self._encodings.get(schema.json()) if self._encodings else None
        return self._writer if encoding is None else replace(self._writer, encoding=encoding)

    def result_encoding(self, columns: pa.Schema, keys: Sequence[str]) -> RecordEncoding:
        """Return how results with these columns and keys become records. Raises PipelineError."""
        key: pa.DataType = pa.struct([columns.field(name) for name in keys])
        return self._encoding(pa.struct(list(columns)), key.field(0).type if len(keys) == 1 else key)

    def _encoding(self, value: pa.DataType, key: pa.DataType) -> RecordEncoding:
        kinds = {"key": key, "value": value}
        encodings = {part: encoding_of(self._formats[part], kind, self._topic, part) for part, kind in kinds.items()}
        return RecordEncoding(**encodings, beside=self._beside)

    @override
    def collect(self, writer: Writer, results: Sequence[object], batch: Batch) -> None:
        """Do nothing: the tasks have written."""

    @override
    def check_target(self) -> None:
        # Two in a row, as a broker that has just started may not know its topics yet.
        before, self._missing = self._missing, self._missing_topic()
        if before and before == self._missing:
            problem = f"topic {before!r} was deleted"
            raise PipelineError(problem, field="KafkaSink", fix="Create it again, or write to another one")

    def _missing_topic(self) -> str:
        """Return a target topic that does not exist; "" if all exist or no broker answers."""
        if self._admin is None:
            self._admin = Admin(self._bootstrap, request_timeout_ms=_LOOK_MS, security=self._security)
        for topic in sorted({partition.topic for partition in self._partitions}):
            try:
                self._admin.describe_topic(topic)
            except UnknownTopicError:
                return topic
            except ClientError:
                return ""
        return ""

    @override
    def close(self) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    @override
    def check(self, schema: StructType) -> None:
        types = {field.name: field.dataType.simpleString() for field in schema.fields}
        if self._formats["key"] is not None and "key" not in types:
            raise PipelineError("the rows have no column `key`", field="key", fix="Name the column to be written `key`")
        if self._formats["value"] is None and "value" not in types:
            problem = f"the rows have no column `value` (they have {', '.join(types)})"
            raise PipelineError(problem, field="KafkaSink", fix="Name the column to be written `value`")
        if "timestamp" in self._columns and "timestamp" not in types:
            raise PipelineError(
                "the rows have no column `timestamp`", field="keep_timestamps", fix="Keep it up to here"
            )
        if self._topic is None and "topic" not in types:
            raise PipelineError(
                "no topic to write to", field="KafkaSink", fix="Pass topic= or add a column `topic` to the rows"
            )
        for name, wanted in self._columns.items():
            kind = types.get(name)
            if kind is not None and kind not in (*wanted.split(" or "), "void"):
                fix = f"Cast it, for example with cast({name} AS {wanted.partition(' ')[0]}), or make JSON of it"
                raise PipelineError(f"column `{name}` is {kind}, and must be {wanted}", field="KafkaSink", fix=fix)
        if any(self._formats.values()) and schema.json() not in self._encodings:
            fields = arrow_schema(schema)
            value = pa.struct([field for field in fields if field.name not in self._beside])
            key = fields.field("key").type if "key" in types else pa.null()
            self._encodings[schema.json()] = self._encoding(value, key)


def _fix_of(error: ClientError | OtherClusterError, group: str, *, optional: bool) -> str:
    """Say how to get transactions; `optional` is False if the pipeline cannot do without."""
    code = error.code if isinstance(error, ClientError) else None
    if code == _BAD_TIMEOUT:
        return "Lower transaction.timeout.ms to the brokers' transaction.max.timeout.ms at most"
    fix = "Mend that"
    if code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        fix = (
            "Add the ACL, for example with `kafka-acls.sh --add --allow-principal User:NAME --operation Write "
            f"--operation Describe --transactional-id {group}- --resource-pattern-type prefixed`"
        )
    return f"{fix}, or leave exactly_once out" if optional else fix


_FIELD = "KafkaSink"


def _compression(value: object) -> Compression:
    try:
        return Compression[str(value).upper()]
    except KeyError:
        raise ValueError(f"must be one of {', '.join(kind.name.lower() for kind in Compression)}") from None


_OPTIONS: Table = {
    "client.id": ("client_id", str),
    "compression.type": ("compression", _compression),
    "compression.codec": ("compression", _compression),
    "batch.size": ("batch_bytes", number(1, 1 << 30)),
    "max.request.size": ("request_bytes", number(1000, 1 << 30)),
    "message.max.bytes": ("request_bytes", number(1000, 1 << 30)),
    "buffer.memory": ("memory_bytes", number(1 << 20, 1 << 40)),
    "queue.buffering.max.kbytes": ("memory_bytes", lambda value: number(1 << 10, 1 << 30)(value) << 10),
    "delivery.timeout.ms": ("timeout", seconds(1, INT32)),
    "message.timeout.ms": ("timeout", seconds(1, INT32)),
    "request.timeout.ms": ("request_timeout", seconds(1, 900_000)),
    "transaction.timeout.ms": ("transaction_timeout_ms", number(1, INT32)),
    # Settings with one possible value, and those without meaning for tasks that send full batches and wait for all.
    "acks": (None, one_of("all", "-1")),
    "enable.idempotence": (None, one_of("true")),
    "partitioner": (None, one_of("murmur2_random", "default")),
    "linger.ms": (None, str),
    "retries": (None, str),
    "retry.backoff.ms": (None, str),
}
"""{name in Java's client or librdkafka: (the writer's field, None without effect; check of its value)}."""


def parse_producer_options(options: Mapping[str, str | int | bool]) -> dict[str, Any]:
    """Return fields of a `KafkaWriter`, and `transaction_timeout_ms` if given.

    Raises PipelineError for an unknown or unsupported setting.
    """
    settings = parse_settings(options, _OPTIONS, _FIELD)
    if "request_bytes" in settings:
        settings["batch_bytes"] = min(settings.get("batch_bytes", settings["request_bytes"]), settings["request_bytes"])
    return settings
