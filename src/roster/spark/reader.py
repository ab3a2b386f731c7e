"""The task's side: ranges of offsets become Arrow record batches, the same rows however often they are read."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from roster._errors import RosterError
from roster.model.address import parse_addresses
from roster.records.fetch import read_ranges
from roster.records.native import Compiled
from roster.records.ranges import FetchError, Settings
from roster.security import PLAINTEXT, Security
from roster.security.librdkafka import librdkafka_settings
from roster.spark.dead_letters import DeadLetterQueue, Salvage
from roster.spark.errors import FunctionError
from roster.spark.workers import freeze_loaded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark import Accumulator

    from roster.spark.arrow_function import ArrowFunction
    from roster.spark.batch import Split

log = logging.getLogger(__name__)

SCHEMA = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
HEADERS = ", headers array<struct<key: string, value: binary>>"
_HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_TIMESTAMP_TYPE = pa.timestamp("us", tz="UTC")
_LOG_APPEND_TIME = 2  # librdkafka's number; Spark's (and Kafka's) is 1
_CHUNK = 2_000  # messages taken at a time: more of them outgrow the processor's caches
_ROWS_PER_BATCH = 16_000
_FETCH_WAIT_MS = 100
_PATIENCE = 0.02  # seconds a half-full chunk waits for more

_consumers: dict[tuple[Any, ...], Consumer] = {}
"""Consumers of this worker process by settings: connections and metadata outlive a task."""


class ReadError(RosterError):
    """A range could not be read whole: the task fails, Spark tries it again, then the batch fails."""


@dataclass(frozen=True, slots=True)
class ReaderConfig:
    """Settings of a task beside its ranges; pickled to the executors."""

    bootstrap: str
    group: str
    isolation_level: str = "read_uncommitted"
    fail_on_data_loss: bool = True
    read_timeout_ms: int = 60_000
    include_headers: bool = False
    options: Mapping[str, str | int | bool] = field(default_factory=dict, repr=False)
    security: Security = PLAINTEXT
    compiled: Compiled | None = field(default=None, repr=False)
    dead_letter_topic: str | None = None

    @property
    def schema(self) -> str:
        """The columns of Spark's Kafka source, as Spark DDL."""
        return SCHEMA + (HEADERS if self.include_headers else "")


class Counts(NamedTuple):
    """What a task read: records, and those of them that went to the dead-letter topic."""

    records: int
    dead_letters: int = 0


class ReadTask:
    """The function given to `mapInArrow`: each `id` it receives names a task's splits, which it reads.

    `function` maps each record batch in the same process; `counted` collects `{task: Counts}`. With `failed` an
    error of the function that trying again does not mend ends the task without one: `{task: (problem, details)}`.
    """

    def __init__(
        self,
        config: ReaderConfig,
        tasks: Sequence[Sequence[Split]],
        function: ArrowFunction | None = None,
        counted: Accumulator[dict[int, Counts]] | None = None,
        failed: Accumulator[dict[int, tuple[str, str]]] | None = None,
    ) -> None:
        self._config, self._tasks, self._function = config, tasks, function
        self._counted, self._failed = counted, failed

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Reads every task named by the rows of `batches`."""
        if threading.current_thread() is threading.main_thread():
            # Ctrl-C in a terminal reaches the workers too; the driver decides what becomes of the batch.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        for batch in batches:
            for task in batch.column(0).to_pylist():
                try:
                    yield from self._task(task)
                except FunctionError as error:
                    if self._failed is None or error.passing:
                        raise
                    self._failed.add({task: (error.problem, error.details)})
                    return
        freeze_loaded()

    def _task(self, task: int) -> Iterator[pa.RecordBatch]:
        config, records = self._config, 0
        function: Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]] | None = self._function
        queue = None
        if self._function is not None and config.dead_letter_topic is not None:
            queue = DeadLetterQueue(config.bootstrap, config.security, config.dead_letter_topic, config.group, task)
            # A dead letter keeps its headers, also where the function does not see them.
            function = Salvage(self._function, queue.reject, hide_headers=not config.include_headers)
            config = replace(config, include_headers=True)
        for read in read_splits(config, self._tasks[task]):
            records += read.num_rows
            if function is None:
                yield read
            else:
                yield from function(read)
        if queue is not None:
            queue.close()
        if self._counted is not None:
            self._counted.add({task: Counts(records, 0 if queue is None else queue.sent)})


def read_splits(config: ReaderConfig, splits: Sequence[Split]) -> Iterator[pa.RecordBatch]:
    """All records of the splits (each of another partition), in order within a partition.

    A split ends where its end offset is known to be behind: a record at or past it was seen, or the partition's end.
    Raises ReadError when nothing arrives for `read_timeout_ms` or records of the split are gone. With settings that
    only librdkafka knows, librdkafka reads.
    """
    if config.options.keys() <= _OWN_OPTIONS:
        return _fetched_splits(config, splits)
    return consumed_splits(config, splits)


_OWN_OPTIONS = {"client.id", "client.rack", "fetch.wait.max.ms", "check.crcs"}


def _fetched_splits(config: ReaderConfig, splits: Sequence[Split]) -> Iterator[pa.RecordBatch]:
    """The splits over connections of Roster's own (`roster.records`)."""
    settings = Settings(
        is_committed=config.isolation_level == "read_committed",
        fail_on_data_loss=config.fail_on_data_loss,
        max_wait_ms=int(config.options.get("fetch.wait.max.ms", _FETCH_WAIT_MS)),
        rack=str(config.options.get("client.rack", "")),
    )
    try:
        yield from read_ranges(
            parse_addresses(config.bootstrap, default_port=9092),
            str(config.options.get("client.id", config.group)),
            splits,
            settings,
            headers=config.include_headers,
            timeout=config.read_timeout_ms / 1000,
            shipped=config.compiled,
            security=config.security,
        )
    except FetchError as error:
        raise ReadError(f"reading from {config.bootstrap}: {error}") from error


def consumed_splits(config: ReaderConfig, splits: Sequence[Split]) -> Iterator[pa.RecordBatch]:
    """The splits through a consumer of librdkafka's."""
    consumer, key = _consumer(config)
    reading = _Reading(consumer, config, splits)
    try:
        yield from reading.batches()
    except KafkaException as error:
        _consumers.pop(key, None)
        consumer.close()
        raise ReadError(f"reading from {config.bootstrap}: {error.args[0].str()}") from error
    finally:
        if key in _consumers:
            consumer.resume(reading.paused)
            consumer.unassign()


class _Reading:
    """One pass over some splits."""

    def __init__(self, consumer: Consumer, config: ReaderConfig, splits: Sequence[Split]) -> None:
        self._consumer, self._config = consumer, config
        self._open = {(split.topic, split.partition): split for split in splits}
        self._next = {key: split.start for key, split in self._open.items()}
        self._columns = _Columns(config, splits)
        self.paused: list[TopicPartition] = []

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Reads until every split has ended."""
        self._assign()
        last = time.monotonic()
        left = sum(split.end - split.start for split in self._open.values())
        while self._open:
            messages = self._consumer.consume(max(1, min(_CHUNK, left)), _PATIENCE)
            if not messages:
                self._check_patience(last)
                continue
            last = time.monotonic()
            records = [message for message in messages if message.error() is None]
            if records:
                left -= self._take(records)
            # Only now: a partition's end comes after the partition's records in the same chunk.
            if len(records) < len(messages):
                for message in messages:
                    if message.error() is not None:
                        self._event(message)
            if self._columns.rows >= _ROWS_PER_BATCH:
                yield self._columns.batch()
        if self._columns.rows:
            yield self._columns.batch()

    def _assign(self) -> None:
        """Go on with every open split where it stands."""
        # A pause outlives the assignment it was made in.
        self._consumer.resume(self.paused)
        self.paused.clear()
        self._consumer.assign([TopicPartition(*key, self._next[key]) for key in self._open])

    def _take(self, records: list[Any]) -> int:
        """Keep the records inside their splits; returns how many."""
        offsets = np.fromiter((record.offset() for record in records), np.int64, len(records))
        partitions = self._columns.place(records)
        inside = np.ones(len(records), bool)
        for index, key in enumerate(self._columns.keys):
            mine = partitions == index
            if not mine.any():
                continue
            split = self._open.get(key)
            if split is None:
                inside &= ~mine
                continue
            last = int(offsets[mine][-1])
            self._next[key] = last + 1
            if last >= split.end - 1:
                self._end(key)
                inside &= ~mine | (offsets < split.end)
        if not inside.all():
            records = [record for record, keep in zip(records, inside, strict=True) if keep]
            offsets, partitions = offsets[inside], partitions[inside]
        self._columns.add(records, offsets, partitions)
        return len(records)

    def _end(self, key: tuple[str, int]) -> None:
        del self._open[key]
        if self._open:
            # Without this the records after the split's end would crowd out the others'.
            self.paused.append(TopicPartition(*key))
            self._consumer.pause(self.paused[-1:])

    def _event(self, message: Any) -> None:
        """Handle a message that is no record: the end of a partition, lost data, an error."""
        error, key = message.error(), (message.topic(), message.partition())
        split = self._open.get(key)
        if split is None:
            return
        if error.code() == KafkaError._PARTITION_EOF:
            if message.offset() >= split.end:
                self._end(key)
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            self._lost(key, split)
        elif error.code() in _FATAL:
            raise ReadError(f"{key[0]}-{key[1]}: {error.str()}")

    def _lost(self, key: tuple[str, int], split: Split) -> None:
        """Records of the split are gone: fail, or go on with what is left of it."""
        low, high = self._consumer.get_watermark_offsets(TopicPartition(*key), timeout=10, cached=False)
        problem = f"{key[0]}-{key[1]}: offsets {split.start} to {split.end} wanted, the log holds {low} to {high}"
        if self._config.fail_on_data_loss:
            raise ReadError(f"{problem}; fail_on_data_loss=False goes on with what is left")
        log.warning("%s: records are lost", problem)
        if split.start < low < split.end:
            self._next[key] = low
            self._assign()  # a partition that ran into an error cannot seek
        else:
            self._end(key)

    def _check_patience(self, last: float) -> None:
        if time.monotonic() - last > self._config.read_timeout_ms / 1000:
            waiting = ", ".join(f"{s.topic}-{s.partition} up to {s.end}" for s in list(self._open.values())[:5])
            raise ReadError(f"no record for {self._config.read_timeout_ms} ms (read_timeout_ms), waiting for {waiting}")


_FATAL = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._FATAL,
)


class _Columns:
    """Rows on their way into a record batch, as one list per column."""

    def __init__(self, config: ReaderConfig, splits: Sequence[Split]) -> None:
        self.keys = [(split.topic, split.partition) for split in splits]
        self.rows = 0
        self._headers = config.include_headers
        self._index = {key: index for index, key in enumerate(self.keys)}
        self._topics = {topic for topic, _ in self.keys}
        self._by_number = {number: index for index, (_, number) in enumerate(self.keys)}
        self._topic_of = np.array([sorted(self._topics).index(topic) for topic, _ in self.keys], np.int32)
        self._number_of = np.array([number for _, number in self.keys], np.int32)
        self._clear()

    def _clear(self) -> None:
        self.rows = 0
        self._messages_keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._stamps: list[tuple[int, int]] = []
        self._header_lists: list[Any] = []
        self._offsets: list[Any] = []
        self._places: list[Any] = []

    def place(self, records: list[Any]) -> Any:
        """Return the split of each record, as an index into `keys`."""
        if len(self.keys) == 1:
            return np.zeros(len(records), np.int32)
        if len(self._topics) == 1:
            by_number = self._by_number
            return np.fromiter((by_number[r.partition()] for r in records), np.int32, len(records))
        index = self._index
        return np.fromiter((index[r.topic(), r.partition()] for r in records), np.int32, len(records))

    def add(self, records: list[Any], offsets: Any, places: Any) -> None:
        """Take the columns out of the records, so that those can go."""
        self._messages_keys += [record.key() for record in records]
        self._values += [record.value() for record in records]
        self._stamps += [record.timestamp() for record in records]
        if self._headers:
            self._header_lists += [record.headers() for record in records]
        self._offsets.append(offsets)
        self._places.append(places)
        self.rows += len(records)

    def batch(self) -> pa.RecordBatch:
        """The rows so far, as one record batch; starts the next."""
        places = np.concatenate(self._places)
        stamps = np.array(self._stamps, np.int64).reshape(-1, 2)
        topics = pa.DictionaryArray.from_arrays(pa.array(self._topic_of[places]), pa.array(sorted(self._topics)))
        columns = {
            "key": pa.array(self._messages_keys, pa.binary()),
            "value": pa.array(self._values, pa.binary()),
            "topic": topics.dictionary_decode(),
            "partition": pa.array(self._number_of[places]),
            "offset": pa.array(np.concatenate(self._offsets)),
            "timestamp": pa.array(stamps[:, 1] * 1000).cast(_TIMESTAMP_TYPE),
            "timestampType": pa.array((stamps[:, 0] == _LOG_APPEND_TIME).astype(np.int32)),
        }
        if self._headers:
            rows = [h and [{"key": k, "value": v} for k, v in h] for h in self._header_lists]
            columns["headers"] = pa.array(rows, _HEADERS_TYPE)
        self._clear()
        return pa.RecordBatch.from_pydict(columns)


def _consumer(config: ReaderConfig) -> tuple[Consumer, tuple[Any, ...]]:
    settings: dict[str, Any] = {
        "bootstrap.servers": config.bootstrap,
        # Only a name for the broker's ACLs and logs: partitions are assigned by hand and nothing is committed here.
        "group.id": config.group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": config.isolation_level,
        "check.crcs": True,
        # A fetch that waits at the end of one task's range holds up the next task's on the same connection.
        "fetch.wait.max.ms": 10,
        "fetch.queue.backoff.ms": 5,
        "queued.max.messages.kbytes": 32_768,
        "log.connection.close": False,
        "log_level": 2,
        "reconnect.backoff.max.ms": 1_000,
        "error_cb": _quiet,
        **config.options,
    }
    names = sorted((name, str(value)) for name, value in settings.items() if name != "error_cb")
    key = (os.getpid(), config.security, *names)
    consumer = _consumers.get(key)
    if consumer is None:
        consumer = _consumers[key] = Consumer({**settings, **librdkafka_settings(config.security)})
    return consumer, key


def _quiet(error: KafkaError) -> None:
    """Connection trouble heals by itself or ends in `read_timeout_ms`."""
    log.info("reader: %s", error.str())
