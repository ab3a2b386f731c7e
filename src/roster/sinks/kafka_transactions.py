"""A batch and the group's offsets as one Kafka transaction: the driver's part of an exactly-once `KafkaSink`.

Tasks encode record batches without a producer, so Spark may run them as often as it likes. One writer then sends each
partition's batches under this transaction's epoch: on any error the transaction is aborted, its epoch ends, and the
batch is retried. Two fences keep applications apart: the epoch, which a new owner of partitions bumps for a dead one,
and the group's generation, which comes with the offsets.
"""

from __future__ import annotations

import hashlib
import logging
import time
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from typing_extensions import override

from roster.client import (
    Admin,
    ClaimedBy,
    CommitFenced,
    CommitRetriable,
    TransactionAbortedError,
    TransactionalProducer,
)
from roster.model import TopicPartition
from roster.pipeline.batch import Batch, Owner
from roster.pipeline.batch_sink import BatchSink, Source
from roster.pipeline.errors import PipelineError, SinkFencedError
from roster.pipeline.spark_types import DataFrame, StructType
from roster.pipeline.tasks.writer import Writer
from roster.records.encoding import EncodedBatch, EncodingWriter
from roster.records.produce import KafkaWriter, TransactionLostError, WriteError
from roster.records.produce_decisions import ProducerIdentity
from roster.security import Security
from roster.sinks.tasks.shuffle import ExchangeWriter, Written

log = logging.getLogger("roster.pipeline")

TRANSACTION_TIMEOUT_MS = 60_000
_MOST_DRIVER_BYTES = 64 << 20
_FIRST_BYTES_PER_OFFSET = 1000
_LONGEST_BEGUN = 5.0
"""Seconds that a transaction may have been open before its records are made: far less than its timeout."""
_MOST_ABORTED = 20
"""Batches in a row that are aborted before the run ends: not what other applications do, but a setting, is at fault."""


class OtherClusterError(Exception):
    """The sink is not in the source's cluster."""


def transactional_id(source: Source) -> str:
    """Return the transactional id of a run: stable over restarts of a static member, else new."""
    if source.group_instance_id is None:
        return f"{source.group}-{uuid.uuid4()}"
    # Group "a-b" with instance "c" must not have the id of group "a" with instance "b-c".
    parts = f"{source.group}\0{source.group_instance_id}".encode()
    return f"{source.group}-{source.group_instance_id}-{hashlib.sha256(parts).hexdigest()[:8]}"


def started_producer(source: Source, bootstrap: str, security: Security, timeout_ms: int) -> TransactionalProducer:
    """Take a transactional id. Raise OtherClusterError or ClientError if such transactions are impossible."""
    producer = TransactionalProducer(
        bootstrap,
        transactional_id(source),
        source.group,
        transaction_timeout_ms=timeout_ms,
        request_timeout_ms=source.request_timeout_ms,
        client_id=source.client_id,
        group_instance_id=source.group_instance_id,
        security=security,
    )
    try:
        cluster = producer.start()
        if bootstrap != source.bootstrap:
            with Admin(source.bootstrap, security=source.security) as admin:
                of_source = admin.cluster_id()
            if cluster is None or cluster != of_source:
                raise OtherClusterError("it is not in the cluster that the pipeline reads from")
    except BaseException:
        producer.close()
        raise
    return producer


class TransactionalSink(BatchSink):
    """Records of batches and the group's offsets, in one transaction for each batch, one after the other."""

    accepts_part = True
    commits_offsets = True

    def __init__(
        self,
        sink: BatchSink,
        producer: TransactionalProducer,
        group: str,
        writer: KafkaWriter,
        partitions: Collection[TopicPartition],
    ) -> None:
        """producer: has started; the caller closes it. partitions: of the topics that are known beforehand."""
        self._sink, self._producer, self._group = sink, producer, group
        self._writer, self._partitions = writer, partitions
        self._encoder: Any = None
        """The sink's writer of rows with the columns of the last batch."""
        self._columns: StructType | None = None
        self._claim: tuple[str, str] | None = None
        """Member id, and the text beside its offsets."""
        self._is_open = False
        self._begun: tuple[ProducerIdentity, float] | None = None
        """A transaction that has the offsets of a batch but no records yet, and since when it is open."""
        self._written: Mapping[tuple[str, int], int | None] = {}
        self._aborted = 0
        self._learn(_FIRST_BYTES_PER_OFFSET)

    @override
    def check(self, schema: StructType) -> None:
        self._sink.check(schema)

    @override
    def check_target(self) -> None:
        self._sink.check_target()

    @override
    def take_over(self, partitions: Collection[TopicPartition], owner: Owner) -> None:
        """End transactions that earlier owners of partitions left open. Raise ClientError if their state is unknown."""
        try:
            fenced = self._producer.take_over(partitions, owner.generation, owner.member_id)
        except CommitFenced as error:  # the member will find out by its next heartbeat
            raise CommitRetriable(str(error), partitions=partitions, code=error.code) from None
        for name in sorted(fenced):
            log.info("%s: ended what an earlier owner had open: transactional_id=%s", self._group, name)

    @override
    def offset_metadata(self, owner: Owner) -> str:
        """Return the text that names this run's transactional id beside committed offsets."""
        if self._claim is None or self._claim[0] != owner.member_id:
            text = ClaimedBy(self._producer.transactional_id, owner.member_id).to_metadata()
            self._claim = owner.member_id, text
        return self._claim[1]

    @override
    def task_writer(self, batch: Batch | None, schema: StructType) -> EncodingWriter | ExchangeWriter:
        """Return the encoder of a batch: for the driver to send if the batch is small, else for tasks of another stage.

        Another stage costs more than some megabytes through the driver, whose memory does not hold many more.
        """
        if self._columns is not schema:
            self._encoder, self._columns = self._sink.task_writer(batch, schema), schema
        writer = self._encoder
        if batch is None or (not batch.rewrites_state and batch.offsets * self._bytes_per_offset <= _MOST_DRIVER_BYTES):
            return EncodingWriter(writer, _MOST_DRIVER_BYTES)
        # Its transaction has all partitions of the topic, if there is one topic.
        return ExchangeWriter(writer, partial(self._begin, self._partitions))

    @override
    def written_columns(self, df: DataFrame) -> DataFrame:
        return self._sink.written_columns(df)

    @override
    def begin(self, batch: Batch) -> None:
        """Begin the batch's transaction with its offsets, which then need no time once its records are made."""
        self._begun = None
        identity = self._begin(())
        self._producer.send_offsets(batch.group_offsets, batch.owner.generation, batch.owner.member_id)
        self._begun = identity, time.monotonic()

    @override
    def collect(self, writer: Writer, results: Sequence[Any], batch: Batch) -> None:
        if not results:
            return
        if isinstance(writer, ExchangeWriter):
            self._check_written(results[0], batch)
        else:
            self._write(results, batch)

    def _check_written(self, results: Sequence[Written], batch: Batch) -> None:
        """Check what the tasks of an `ExchangeWriter` have written. Raises as `_write` does."""
        problems = [result for result in results if result.problem]
        if problems:
            final = next((result for result in problems if not result.is_lost), None)
            if final is None:
                raise self._lost(TransactionLostError(problems[0].problem))
            raise WriteError(final.problem)
        self._learn_of(batch, sum(result.written_bytes for result in results))

    def _learn(self, bytes_per_offset: float) -> None:
        self._bytes_per_offset = bytes_per_offset
        self.most_offsets = max(int(_MOST_DRIVER_BYTES / bytes_per_offset), 1)

    def _learn_of(self, batch: Batch, size: int) -> None:
        """Learn from the size of a batch's records."""
        if not batch.rewrites_state:
            self._learn(max(size, 1) / max(batch.offsets, 1))

    def _write(self, results: Iterable[list[EncodedBatch] | None], batch: Batch) -> None:
        """Begin a transaction and write the tasks' record batches from the driver.

        Raises SinkFencedError if the transaction is lost or a task made more than it may return; WriteError for errors
        that another transaction would repeat; ClientError.
        """
        batches: list[EncodedBatch] = []
        for some in results:
            if some is None:
                self._learn(float("inf"))
                raise SinkFencedError("records are larger than those before; once more, with tasks that write")
            batches += some
        self._learn_of(batch, sum(encoded.body.size for encoded in batches))
        identity = self._begin({TopicPartition(encoded.topic, encoded.partition) for encoded in batches})
        output = replace(self._writer, identity=identity).open()
        try:
            output.write_encoded(batches)
            output.close()
            self._written = output.ends
        except BaseException as error:
            output.abort()
            if isinstance(error, TransactionLostError):
                raise self._lost(error) from error
            raise

    def _begin(self, partitions: Collection[TopicPartition]) -> ProducerIdentity:
        """Begin a transaction that may write to these partitions. Raises as `_write` does."""
        self._written = {}
        begun, self._begun = self._begun, None
        try:
            if begun is None or time.monotonic() > begun[1] + _LONGEST_BEGUN:
                epoch = self._producer.begin()
                begun = ProducerIdentity(*epoch, self._producer.transactional_id), 0.0
                self._is_open = True
            if partitions:
                self._producer.add_partitions(partitions)
        except TransactionAbortedError as error:
            raise self._lost(error) from error
        return begun[0]

    @override
    def commit_batch(self, written: None, batch: Batch) -> Mapping[TopicPartition, int]:
        """Commit records and offsets; return the ends of the logs that the driver wrote to.

        Raises SinkFencedError if neither counts, ClientError if that is unknown.
        """
        try:
            self._producer.commit(batch.group_offsets, batch.owner.generation, batch.owner.member_id)
        except (TransactionAbortedError, CommitFenced) as error:
            raise self._lost(error) from error
        self._is_open, self._begun, self._aborted = False, None, 0
        # Behind its records each log gets the transaction's marker.
        return {TopicPartition(*partition): end + 1 for partition, end in self._written.items() if end is not None}

    @override
    def abort(self, written: None, batch: Batch) -> None:
        """Abort an open transaction, which fences everything that still writes under its epoch."""
        if self._is_open:
            self._is_open, self._begun = False, None
            self._producer.abort()

    def _lost(self, error: Exception) -> SinkFencedError | PipelineError:
        """Return the exception for a transaction that cannot be committed."""
        self._aborted += 1
        if self._aborted <= _MOST_ABORTED:
            return SinkFencedError(str(error))
        return PipelineError(
            f"{self._aborted} batches in a row could not be committed: {error}",
            field="KafkaSink",
            fix="Raise transaction.timeout.ms if they take longer than that, or lower max_offsets_per_batch",
        )
