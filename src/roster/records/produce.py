"""Writes Kafka records inside the tasks: the loop around encoder, `produce_decisions` and `connections`."""

import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from roster._errors import RosterError
from roster.model import Address
from roster.model.arrays import Int64
from roster.records.connections import Connections
from roster.records.native import WRITE, Compiled, kernel
from roster.records.produce_decisions import (
    ANY,
    Cluster,
    Key,
    NoTopicError,
    ProduceError,
    ProducerIdentity,
    ProduceSettings,
    Production,
)
from roster.security import PLAINTEXT, Security
from roster.wire import WireError
from roster.wire.columns.writer import Body, Encoder
from roster.wire.compression import Compression

_LONGEST_WAIT = 1.0
_METADATA_AGE = 300.0
"""Seconds after which a worker refreshes metadata, as `metadata.max.age.ms` of Kafka's clients."""
_ANSWER_SLACK = 10.0


class WriteError(RosterError):
    """Rows could not be written; `reason` says why, without their number. Spark retries the task.

    `is_final`: a retry would fail too, for example because the topic does not exist.
    """

    is_final = False

    def __init__(self, problem: str, reason: str = "") -> None:
        super().__init__(problem)
        self.reason = reason or problem


class TransactionLostError(WriteError):
    """The transaction of the rows can no longer be committed."""


@dataclass(frozen=True)
class KafkaWriter:
    """Settings for the records of one batch.

    `topic` None: the rows' column `topic` names it. With `keep_timestamps` the column `timestamp` is the records' time,
    else the time of writing is. `timeout`: seconds without an acknowledgement before it fails. Rows without a key
    change the partition after `sticky_bytes` (None: `batch_bytes`). `identity`: of a producer that the driver has
    initialised, with sequence numbers from 0; None: each worker requests a producer id of its own. `encoding` makes
    keys and values of rows with other columns.
    """

    bootstrap: tuple[Address, ...]
    topic: str | None
    client_id: str = "roster"
    compression: Compression = Compression.NONE
    batch_bytes: int = 900_000
    sticky_bytes: int | None = None
    request_bytes: int = 4 << 20
    memory_bytes: int = 32 << 20
    timeout: float = 120.0
    request_timeout: float = 30.0
    keep_timestamps: bool = False
    security: Security = PLAINTEXT
    identity: ProducerIdentity | None = None
    compiled: Compiled | None = field(default=None, repr=False)
    encoding: Callable[[pa.RecordBatch], pa.RecordBatch] | None = field(default=None, repr=False)

    def open(self, on_wait: Callable[[], None] | None = None) -> "KafkaOutput":
        """Open the output of one attempt of a task; `on_wait` is called ten times a second while it waits."""
        return KafkaOutput(self, on_wait)


@dataclass(slots=True)
class _Session:
    """State that a worker process keeps between tasks."""

    connections: Connections
    cluster: Cluster = field(default_factory=Cluster)
    learned: float = 0.0
    identity: ProducerIdentity | None = None
    sequences: dict[Key, int] = field(default_factory=dict)
    turn: int = 0


_sessions: dict[tuple[object, ...], _Session] = {}
"""Unused sessions, by process and settings."""


class KafkaOutput:
    """Records of one attempt of a task."""

    def __init__(self, writer: KafkaWriter, on_wait: Callable[[], None] | None = None) -> None:
        self._writer, self._on_wait = writer, on_wait
        self._longest_wait = _LONGEST_WAIT if on_wait is None else _LONGEST_WAIT / 10
        self._key = (os.getpid(), writer.bootstrap, writer.client_id, writer.request_timeout, writer.security)
        session, now = _sessions.pop(self._key, None), time.monotonic()
        if session is None:
            patience = writer.request_timeout + _ANSWER_SLACK
            session = _Session(Connections(writer.client_id, patience, writer.security))
        self._session = session
        if now - session.learned > _METADATA_AGE:
            session.cluster, session.learned = Cluster(), now
        self._production = Production(
            session.cluster,
            ProduceSettings(writer.request_bytes, int(writer.request_timeout * 1000)),
            writer.identity or session.identity,
            {} if writer.identity else session.sequences,
        )
        self._encoders: dict[str, Encoder] = {}
        self._held: dict[str, list[pa.RecordBatch]] = {}
        self._held_bytes = self._rows = 0
        self._progress, self._last, self._left = 0, now, now
        self._problem = ""

    def write(self, rows: pa.RecordBatch) -> None:
        """Buffer the rows; encode and send them once there are enough. Raises WriteError if that fails."""
        if self._writer.encoding is not None:
            rows = self._writer.encoding(rows)
        rows = _plain(rows)
        self._rows += rows.num_rows
        for topic, part in self._by_topic(rows):
            if topic in self._held and self._held[topic][-1].schema.names != part.schema.names:
                self.flush()
            self._held.setdefault(topic, []).append(part)
            self._held_bytes += part.nbytes
        if self._held_bytes >= self._writer.memory_bytes // 8:
            self.flush()

    def close(self) -> int:
        """Send the buffered rows, wait until all records are acknowledged, and return their number."""
        self.flush()
        self._pump(lambda: self._production.is_done)
        if self._writer.identity is None:
            session = self._session
            session.identity, session.sequences = self._production.identity, self._production.sequences
        self._release()
        return self._production.acknowledged

    def _release(self) -> None:
        """Keep the session for the next task of this process."""
        session = self._session
        if self._key in _sessions:
            session.connections.close()
        else:
            _sessions[self._key] = session

    def abort(self) -> None:
        """Close the connections. Records may have arrived, so the producer id is not used again."""
        self._session.connections.close()

    @property
    def acknowledged(self) -> int:
        """Number of records that all in-sync replicas have."""
        return self._production.acknowledged

    @property
    def ends(self) -> Mapping[tuple[str, int], int | None]:
        """Offset behind the last acknowledged record of each partition; None: unknown."""
        return self._production.ends

    @property
    def problem(self) -> str:
        """Why records are being resent or cannot be sent yet; "" if neither."""
        return self._production.problem

    def poll(self, seconds: float) -> None:
        """Send and receive for so many seconds. Raises WriteError if records cannot be written."""
        end = time.monotonic() + seconds
        self._pump(lambda: time.monotonic() >= end, end)

    def flush(self) -> None:
        """Encode the buffered rows; they are sent as soon as their partition is free, without waiting for responses."""
        if not self._held:
            return
        held, self._held, self._held_bytes = self._held, {}, 0
        for topic, batches in held.items():
            for rows in pa.Table.from_batches(batches).combine_chunks().to_batches():
                self._send(topic, rows)

    def _by_topic(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if self._writer.topic is not None:
            yield self._writer.topic, rows
            return
        topics = rows.column("topic").cast(pa.string())
        rows = rows.select([name for name in rows.schema.names if name != "topic"])
        if topics.null_count:
            raise WriteError("a row has no topic: its column `topic` is null")
        if rows.num_rows and pc.all(pc.equal(topics, topics[0])).as_py():
            yield topics[0].as_py(), rows
            return
        codes = topics.dictionary_encode()
        indices = codes.indices.to_numpy()
        for number, topic in enumerate(codes.dictionary.to_pylist()):
            yield topic, rows.take(pa.array(np.flatnonzero(indices == number)))

    def _send(self, topic: str, rows: pa.RecordBatch) -> None:
        encoder = self._encoders.get(topic) or self._encoder(topic)
        try:
            for partition, body in encoder.encode(rows, self._timestamps(rows)):
                self._add(topic, partition, body)
        except WireError as error:
            raise WriteError(f"{topic}: {error}") from error

    def write_encoded(self, batches: Iterable[tuple[str, int, Body]]) -> None:
        """Send encoded batches, together as far as there is room. Raises WriteError if that fails."""
        for topic, partition, body in batches:
            self._rows += body.records
            self._production.add(topic, partition, body)
            if self._production.queued_bytes >= self._writer.memory_bytes:
                self._make_room()
        self._make_room()

    def _add(self, topic: str, partition: int, body: Body) -> None:
        self._production.add(topic, partition, body)
        self._make_room()

    def _make_room(self) -> None:
        self._pump(lambda: self._production.queued_bytes < self._writer.memory_bytes)

    def _encoder(self, topic: str) -> Encoder:
        self._pump(lambda: self._production.partitions(topic) is not None)
        count = self._production.partitions(topic) or 1
        first = random.randrange(count)  # spreads rows without a key
        writer = self._writer
        encoder = Encoder(
            kernel(self._writer.compiled, WRITE),
            count,
            compression=writer.compression,
            batch_bytes=writer.batch_bytes,
            first_partition=first,
            sticky_bytes=writer.sticky_bytes,
        )
        return self._encoders.setdefault(topic, encoder)

    def _timestamps(self, rows: pa.RecordBatch) -> Int64:
        now = time.time_ns() // 1_000_000
        if not self._writer.keep_timestamps:
            return np.full(rows.num_rows, now, np.int64)
        column = rows.column("timestamp").cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
        return np.asarray(column.fill_null(now).to_numpy(), np.int64)

    def _pump(self, is_enough: Callable[[], bool], end: float | None = None) -> None:
        """Send and receive until `is_enough` returns True; without waiting if it does at once."""
        self._last += time.monotonic() - self._left  # without the caller's time
        try:
            while True:
                enough = is_enough()
                self._send_due()
                self._take(0.0 if enough else self._wait(end))
                if enough:
                    # Partitions that the responses have freed send before the caller encodes more.
                    self._send_due()
                    return
                if self._on_wait is not None:
                    self._on_wait()
        except ProduceError as error:
            kind = TransactionLostError if error.is_transaction_lost else WriteError
            unwritten = self._unwritten(str(error), kind)
            unwritten.is_final = isinstance(error, NoTopicError)
            raise unwritten from error
        finally:
            self._left = time.monotonic()

    def _send_due(self) -> None:
        session = self._session
        for broker, request in self._production.requests(time.monotonic()):
            address = self._anyone() if broker == ANY else session.cluster.brokers[broker]
            session.connections.send(broker, address, request)

    def _take(self, timeout: float) -> None:
        production, session = self._production, self._session
        for reply in session.connections.poll(timeout):
            now = time.monotonic()
            if reply.is_refused:
                raise ProduceError(reply.problem)
            if reply.response is None:
                self._problem = reply.problem
                session.turn += reply.broker == ANY
                production.failed(reply.broker, now, reply.problem)
            else:
                production.answered(reply.broker, reply.response, now)
        if production.progress != self._progress or production.is_done:
            self._progress, self._last = production.progress, time.monotonic()
        elif time.monotonic() - self._last > self._writer.timeout:
            waiting = ", ".join(production.waiting()[:5])
            after = f"; {self._problem}" if self._problem else ""
            raise ProduceError(f"no acknowledgement for {self._writer.timeout:g} s, waiting for {waiting}{after}")

    def _wait(self, end: float | None) -> float:
        now = time.monotonic()
        wake = self._production.next_wake(now)
        times = [self._last + self._writer.timeout - now, self._longest_wait]
        times += [] if wake is None else [wake]
        times += [] if end is None else [end - now]
        return max(0.001, min(times))

    def _anyone(self) -> Address:
        candidates = list(dict.fromkeys([*self._writer.bootstrap, *self._session.cluster.brokers.values()]))
        return candidates[self._session.turn % len(candidates)]

    def _unwritten(self, problem: str, kind: type[WriteError]) -> WriteError:
        done = self._production.acknowledged
        return kind(f"{self._rows - done} of {self._rows} rows not written: {problem}", problem)


_WRITTEN = ("key", "value", "topic", "partition", "headers", "timestamp")


def _plain(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return only the columns that are written."""
    return rows.select([name for name in _WRITTEN if name in rows.schema.names])
